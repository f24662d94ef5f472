// The queue as a table, in which the waiting tasks of one array that wait for the same thing are one line; and how an array stands.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "base/text.h"
#include "runner/cli/job_name.h"
#include "runner/cli/table.h"
#include "runner/cli/views.h"

namespace gangline::runner {
namespace {

using Align = Column::Align;
using Shown = Column::Shown;
using Gives = Column::Gives;

// One line of the queue: a job, or tasks of one array of which it is the first.
struct Row {
    const proto::JobView* job = nullptr;
    std::vector<std::uint32_t> tasks;        // empty: the job alone
    std::int64_t least_ms = 0;               // 0 = no estimate
    bool starts_differ = false;
};

std::int64_t expected_ms(const proto::JobView& job, std::int64_t now_ms) {
    return job.state() == proto::QUEUED && job.expected_unix_ms() > now_ms ? job.expected_unix_ms() : 0;
}

// The estimate has a column of its own.
std::string reason_of(const proto::JobView& job, std::int64_t now_ms) {
    return expected_ms(job, now_ms) == 0 ? job.reason() : job.reason().substr(0, job.reason().find("; may start in about "));
}

void join(Row& row, const proto::JobView& job, std::int64_t now_ms) {
    row.tasks.push_back(job.array().task());
    const std::int64_t starts_ms = expected_ms(job, now_ms);
    row.starts_differ = row.starts_differ || starts_ms != row.least_ms;
    if (starts_ms != 0) row.least_ms = row.least_ms == 0 ? starts_ms : std::min(row.least_ms, starts_ms);
}

// In the order of `jobs`; tasks stand where the first of them stood.
std::vector<Row> rows_of(const JobViews& jobs, std::int64_t now_ms) {
    std::vector<Row> rows;
    std::map<std::tuple<std::uint64_t, std::string>, std::size_t> waiting;
    for (const proto::JobView& job : jobs) {
        const bool can_fold = job.state() == proto::QUEUED && job.started_unix_ms() == 0 && job.array().count() > 1;
        if (can_fold) {
            const auto [at, is_first] = waiting.emplace(std::tuple(job.array().job(), reason_of(job, now_ms)), rows.size());
            if (!is_first) {
                join(rows[at->second], job, now_ms);
                continue;
            }
        }
        rows.push_back({&job, {}, expected_ms(job, now_ms), false});
        if (can_fold) rows.back().tasks.push_back(job.array().task());
    }
    return rows;
}

std::string name_of(const Row& row) {
    if (row.tasks.size() < 2) return runner::name_of(*row.job);
    return fmt::format("{}_[{}]", row.job->array().job(), ranges_of(row.tasks, row.job->array().step()));
}

std::string start_of(const Row& row, std::int64_t now_ms) {
    return row.least_ms == 0 ? "-" : span_between(now_ms, row.least_ms) + (row.starts_differ ? "+" : "");     // the first of them; others later
}

std::string step_of(const proto::Progress& progress) {
    if (progress.step() == 0) return "-";
    return std::to_string(progress.step()) + (progress.total_steps() > 0 ? fmt::format("/{}", progress.total_steps()) : "");
}

}  // namespace

std::string ranges_of(std::vector<std::uint32_t> numbers, std::uint32_t step) {
    std::sort(numbers.begin(), numbers.end());
    step = std::max(1U, step);
    std::string text;
    for (std::size_t first = 0; first < numbers.size();) {
        std::size_t last = first;
        while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + step) ++last;
        if (last == first + 1 && step > 1) last = first;     // two numbers are shorter than their range
        text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[first]);
        if (last != first) text += fmt::format("-{}", numbers[last]);
        if (last != first && step > 1) text += fmt::format(":{}", step);
        first = last + 1;
    }
    return text;
}

std::string queue_text(const JobViews& jobs, const Terminal& terminal, std::int64_t now_ms, QueueOf whose) {
    Table table({{"JOB", Align::Right, 12}, {"NAME", Align::Left, 8}, {"USER", Align::Left, 6, Shown::WhereFilled}, {"STATE", Align::Left, 0},
                 {"RANKS", Align::Right, 0}, {"TIME", Align::Right, 0}, {"RESTARTS", Align::Right, 0, Shown::WhereFilled},
                 {"STEP", Align::Right, 0, Shown::WhereFilled}, {"STARTS IN", Align::Right, 0, Shown::WhereFilled},
                 {"NODES / REASON", Align::Left, 14, Shown::Always, Gives::Last}});
    for (const Row& row : rows_of(jobs, now_ms)) {
        const proto::JobView& job = *row.job;
        const std::int64_t from = job.started_unix_ms() == 0 ? job.submitted_unix_ms() : job.started_unix_ms();
        const std::int64_t until = job.ended_unix_ms() == 0 ? now_ms : job.ended_unix_ms();
        const bool placed = job.gang_size() > 0 && (job.state() == proto::RUNNING || job.state() == proto::PREPARING ||
                                                    job.state() == proto::RESERVED);
        table.add({name_of(row), job.name(), whose == QueueOf::OneUser ? "" : job.user(), Cell(state_word(job.state()), state_tone(job.state())),
                   std::to_string(job.ranks()), span_between(from, until), job.restarts() == 0 ? "-" : std::to_string(job.restarts()),
                   step_of(job.progress()), start_of(row, now_ms), placed ? nodes_of(job.gang()) : reason_of(job, now_ms)});
    }
    return table.text(terminal);
}

JobViews with_most_ended(const JobViews& jobs, std::uint32_t most) {
    JobViews kept;
    std::uint32_t ended = 0;
    for (const proto::JobView& job : jobs) {
        if (!has_ended(job.state()) || ended++ < most) *kept.Add() = job;
    }
    return kept;
}

std::string array_text(const JobViews& jobs, std::uint64_t array) {
    std::map<std::string, std::size_t> counts;
    const proto::JobView* shown = nullptr;
    std::size_t known = 0;
    for (const proto::JobView& job : jobs) {
        if (job.array().count() == 0 || job.array().job() != array) continue;
        ++known;
        const bool live = !has_ended(job.state()) && job.state() != proto::QUEUED;
        const char* const word = live ? "running" : job.state() == proto::QUEUED ? "waiting" : job.state() == proto::COMPLETED ? "done"
                                 : job.state() == proto::CANCELLED ? "cancelled" : "failed";
        // A failure says most, the first before others; else the last task.
        const bool is_failure = std::string_view(word) == "failed";
        const bool had_failure = counts["failed"] > 0;
        const bool is_better = shown == nullptr || (is_failure && !had_failure) ||
                               (is_failure == had_failure && (job.array().task() < shown->array().task()) == is_failure);
        if (is_better) shown = &job;
        ++counts[word];
    }
    if (known == 0) return {};
    std::string text = fmt::format("Array {}: {} {}: ", array, known, known == 1 ? "task" : "tasks");
    for (const char* const word : {"done", "failed", "cancelled", "running", "waiting"}) {
        if (counts[word] == 0 && std::string_view(word) == "cancelled") continue;
        text += fmt::format("{}{} {}", text.ends_with(": ") ? "" : ", ", counts[word], word);
    }
    return text + fmt::format("; one of them: gangline show {}\n", runner::name_of(*shown));
}

}  // namespace gangline::runner
