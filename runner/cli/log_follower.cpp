#include "runner/cli/log_follower.h"

#include <fmt/format.h>

#include <algorithm>

#include "runner/cli/views.h"

namespace gangline::runner {
namespace {

constexpr Duration kFirstPause = milliseconds(2);
constexpr Duration kLongestPause = milliseconds(100);
constexpr Duration kAnswerTime = seconds(2);     // then the question was lost, and is asked again
constexpr Duration kPatience = seconds(2);       // for an ended attempt's log that does not come to its end
constexpr std::uint32_t kBite = 256 * 1024;

}  // namespace

void LogFollower::see(const proto::JobView& job, TimePoint at) {
    for (const proto::AttemptView& attempt : job.attempts()) {
        if (only_attempt_ != 0 && attempt.attempt() != only_attempt_) continue;
        const bool over = attempt.gone_unix_ms() > 0 || attempt.attempt() < job.attempt() || has_ended(job.state());
        for (const proto::Placement& part : attempt.gang()) {
            auto cursor = std::find_if(cursors_.begin(), cursors_.end(), [&](const Cursor& c) {
                return c.attempt == attempt.attempt() && c.node == part.node();
            });
            if (cursor == cursors_.end()) {
                cursors_.push_back({});
                cursor = cursors_.end() - 1;
                cursor->attempt = attempt.attempt();
                cursor->node = part.node();
            }
            if (!over || cursor->attempt_over) continue;
            cursor->attempt_over = true;
            cursor->over_since = at;
            cursor->pause = kFirstPause;
            if (cursor->request == 0) cursor->due = at;
        }
    }
}

std::uint32_t LogFollower::current_attempt() const {
    std::uint32_t first = 0;
    for (const Cursor& cursor : cursors_) {
        if (!cursor.complete && (first == 0 || cursor.attempt < first)) first = cursor.attempt;
    }
    return first;
}

void LogFollower::ask(Client& client, TimePoint at) {
    const std::uint32_t current = current_attempt();
    for (Cursor& cursor : cursors_) {
        if (cursor.complete || cursor.attempt != current || cursor.due > at) continue;
        proto::Request request;
        proto::ReadLogs& read = *request.mutable_read_logs();
        read.set_job(job_.job);
        set_task(request, job_);
        read.set_attempt(cursor.attempt);
        read.set_node(cursor.node);
        read.set_offset(cursor.offset);
        read.set_limit_bytes(kBite);
        cursor.request = client.send(request);
        cursor.due = at + kAnswerTime;
    }
}

void LogFollower::fail(Cursor& cursor, const std::string& why, OutputPrinter& printer, TimePoint at) {
    cursor.due = at + kLongestPause;
    if (!cursor.failing_since) cursor.failing_since = at;
    const bool lasting = at - *cursor.failing_since >= kPatience;
    if (!lasting || (!cursor.attempt_over && trouble_ == Trouble::WaitForNode)) return;
    cursor.complete = true;
    printer.say(fmt::format("the rest of attempt {}'s output on {} cannot be read: {}", cursor.attempt, cursor.node,
                            why));
}

bool LogFollower::take(const proto::Response& response, OutputPrinter& printer, TimePoint at) {
    const auto found = std::find_if(cursors_.begin(), cursors_.end(),
                                    [&](const Cursor& c) { return c.request != 0 && c.request == response.id(); });
    if (found == cursors_.end()) return false;
    Cursor& cursor = *found;
    cursor.request = 0;
    const proto::LogData& logs = response.logs();
    if (response.outcome() != proto::OK || !logs.error().empty()) {
        fail(cursor, logs.error().empty() ? response.message() : logs.error(), printer, at);
        return true;
    }
    cursor.failing_since.reset();
    std::string_view bytes = logs.records();
    OutputRecord record;
    while (next_output_record(bytes, record)) printer.print(record);
    if (!logs.records().empty() && logs.next_offset() > cursor.offset) {
        cursor.offset = logs.next_offset();
        cursor.pause = kFirstPause;
    }
    cursor.at_end = logs.at_end() || logs.complete();
    cursor.complete = logs.complete();
    if (cursor.complete) return true;
    if (!cursor.at_end) {
        cursor.due = at;
        return true;
    }
    cursor.due = at + cursor.pause;
    cursor.pause = std::min(cursor.pause * 3 / 2, kLongestPause);
    if (cursor.attempt_over && at - cursor.over_since > kPatience) cursor.complete = true;
    return true;
}

std::optional<TimePoint> LogFollower::next_due() const {
    const std::uint32_t current = current_attempt();
    std::optional<TimePoint> first;
    for (const Cursor& cursor : cursors_) {
        if (cursor.complete || cursor.attempt != current) continue;
        if (!first || cursor.due < *first) first = cursor.due;
    }
    return first;
}

bool LogFollower::is_at_end() const {
    return std::all_of(cursors_.begin(), cursors_.end(), [](const Cursor& c) { return c.complete || c.at_end; });
}

bool LogFollower::is_complete() const {
    return std::all_of(cursors_.begin(), cursors_.end(), [](const Cursor& c) { return c.complete; });
}

}  // namespace gangline::runner
