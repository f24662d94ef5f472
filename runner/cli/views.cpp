#include "runner/cli/views.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "runner/cli/job_name.h"
#include "runner/cli/table.h"

namespace gangline::runner {
namespace {

using Align = Column::Align;

std::string plural(std::uint64_t count, const std::string& word) {
    return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

// "key   value" lines of a story; an empty value is left out.
void fact(std::string& text, const char* key, const std::string& value) {
    if (!value.empty()) text += fmt::format("  {:<12}{}\n", key, value);
}

std::string how_long(const proto::JobView& job, std::int64_t now_ms) {
    if (job.started_unix_ms() == 0) {
        const std::int64_t until = job.ended_unix_ms() == 0 ? now_ms : job.ended_unix_ms();
        return fmt::format("{} in the queue", span_between(job.submitted_unix_ms(), until));
    }
    const std::int64_t until = job.ended_unix_ms() == 0 ? now_ms : job.ended_unix_ms();
    return fmt::format("{} since its start", span_between(job.started_unix_ms(), until));
}

// A script's commands: without its #! line, its remarks and blank lines.
std::vector<std::string> commands_of(const std::string& script) {
    std::vector<std::string> commands;
    for (const std::string& line : split(script, '\n')) {
        const std::string_view words = trim(line);
        if (!words.empty() && !words.starts_with('#')) commands.emplace_back(words);
    }
    return commands;
}

// A program with its words; a script of one line (--wrap) as this line, a longer one by its name and how it begins.
std::string command_of(const proto::JobView& job) {
    const proto::JobSpec& spec = job.spec();
    std::string text;
    if (!spec.script().empty()) {
        const std::vector<std::string> commands = commands_of(spec.script());
        if (commands.size() == 1 && spec.script_args().empty()) return one_line(commands.front());
        text = "script " + one_line(job.name());
        for (const std::string& word : spec.script_args()) text += " " + shell_quote(word);
        return commands.empty() ? text : fmt::format("{}: {}{}", text, one_line(commands.front()), commands.size() > 1 ? " ..." : "");
    }
    for (const std::string& word : spec.argv()) text += (text.empty() ? "" : " ") + shell_quote(word);
    return text;
}

// Where the output is: sbatch's letters resolved, except those by which ranks or nodes differ, or that are not known yet.
std::string file_of(const std::string& pattern, const proto::JobView& job) {
    if (pattern.empty()) return {};
    const std::string id = std::to_string(job.id());
    const bool is_element = job.array().count() != 0;
    const std::string array = is_element ? std::to_string(job.array().job()) : id;
    const std::string task = is_element ? std::to_string(job.array().task()) : "0";
    std::map<char, std::string> values = {{'j', id}, {'A', array}, {'a', task}, {'J', id + ".0"}, {'s', "0"},
                                          {'x', job.name()}, {'u', job.user()}};
    const bool is_script = !job.spec().script().empty();     // it runs once, on the gang's first node
    if (is_script || job.ranks() == 1) values['t'] = "0";
    const auto& gang = job.attempts_size() > 0 ? job.attempts(job.attempts_size() - 1).gang() : job.gang();
    if (!gang.empty() && (is_script || gang.size() == 1)) {
        values['n'] = "0";
        values['N'] = gang.Get(0).node();
    }
    const std::string file = expand_pattern(pattern, values);
    return file.starts_with('/') ? file : (job.spec().cwd() == "/" ? "" : job.spec().cwd()) + "/" + file;
}

std::string cards_of(const proto::JobSpec& spec) {
    return plural(spec.cards_per_rank(), spec.card_model().empty() ? "card" : one_line(spec.card_model()) + " card");
}

std::string elastic_words(const proto::JobSpec& spec) {
    if (!spec.elastic()) return {};
    const std::string steps = spec.nodes_step() > 1 ? fmt::format(" in steps of {}", spec.nodes_step()) : "";
    return fmt::format("; elastic, {} to {} nodes{}", spec.nodes_min(), spec.nodes_max(), steps);
}

std::string array_words(const proto::JobView& job) {
    const proto::ArrayElement& array = job.array();
    if (array.count() == 0) return {};
    std::string text = fmt::format("task {} of {}, {} to {}", array.task(), plural(array.count(), "task"), array.least(), array.most());
    if (array.most_at_once() > 0) text += fmt::format(", at most {} at once", array.most_at_once());
    return text;
}

// What it asks of its places.
std::string wishes_of(const proto::JobSpec& spec) {
    std::vector<std::string> wishes;
    if (!spec.constraint().empty()) wishes.push_back(spec.constraint());
    if (!spec.reservation().empty()) wishes.push_back("the reservation " + spec.reservation());
    if (!spec.within().empty()) wishes.push_back("one " + spec.within());
    if (spec.segment() > 0) wishes.push_back(fmt::format("groups of {} in a rack each", plural(spec.segment(), "node")));
    if (spec.spares() > 0) wishes.push_back(plural(spec.spares(), "spare node"));
    if (spec.spread()) wishes.emplace_back("the emptiest nodes");
    return fmt::format("{}", fmt::join(wishes, ", "));
}

// What people wrote of a node, then its failures, then who has it reserved.
std::string note_of(const proto::NodeView& node) {
    std::string text = node.set_by().empty() ? node.note() : fmt::format("{} (by {})", node.note(), node.set_by());
    for (const std::string& more : {node.lemon_words(), node.reservation().empty() ? "" : "reservation " + node.reservation()}) {
        if (!more.empty()) text += (text.empty() ? "" : "; ") + more;
    }
    return text;
}

void add_attempts(std::string& text, const proto::JobView& job, const Terminal& terminal, std::int64_t now_ms) {
    if (job.attempts_size() == 0) return;
    Table table({{"ATTEMPT", Align::Right, 0}, {"NODES", Align::Left, 8}, {"LASTED", Align::Right, 0},
                 {"FROM STEP", Align::Right, 0}, {"TO STEP", Align::Right, 0}, {"ENDED BECAUSE", Align::Left, 20}});
    for (const proto::AttemptView& attempt : job.attempts()) {
        const std::int64_t until = attempt.ended_unix_ms() == 0 ? now_ms : attempt.ended_unix_ms();
        const bool bad = attempt.kind() != proto::NO_FAULT;
        table.add({std::to_string(attempt.attempt()), nodes_of(attempt.gang()),
                   span_between(attempt.reserved_unix_ms(), until),
                   attempt.has_restored() ? fmt::format("{}{}", attempt.restored().step(), attempt.restored().in_memory() ? " in memory" : "") : "fresh",
                   attempt.last_step() == 0 ? "-" : std::to_string(attempt.last_step()),
                   Cell(attempt.cause().empty() ? "-" : attempt.cause(), bad ? Tone::Bad : Tone::Plain)});
    }
    text += "Attempts\n" + table.text(terminal, 2);
    for (const proto::AttemptView& attempt : job.attempts()) {
        if (attempt.last_lines().empty()) continue;
        text += fmt::format("Last lines of rank {} in attempt {}\n", attempt.rank(), attempt.attempt());
        for (const std::string& line : split(trim(attempt.last_lines()), '\n')) {
            text += fmt::format("  | {}\n", one_line(line));
        }
    }
}

void add_ranks(std::string& text, const proto::JobView& job, const Terminal& terminal) {
    if (job.rank_views_size() == 0 || has_ended(job.state())) return;
    Table table({{"RANK", Align::Right, 0}, {"NODE", Align::Left, 6}, {"PID", Align::Right, 0},
                 {"STATE", Align::Left, 0}, {"STEP", Align::Right, 0}});
    constexpr int kMost = 64;
    for (int i = 0; i < std::min(job.rank_views_size(), kMost); ++i) {
        const proto::RankView& rank = job.rank_views(i);
        table.add({std::to_string(rank.rank()), rank.node(), std::to_string(rank.pid()), rank.state(),
                   rank.step() == 0 ? "-" : std::to_string(rank.step())});
    }
    text += "Ranks\n" + table.text(terminal, 2);
    if (job.rank_views_size() > kMost) {
        text += fmt::format("  ... and {} more (--json shows all)\n", job.rank_views_size() - kMost);
    }
}

void add_checkpoints(std::string& text, const proto::JobView& job, const Terminal& terminal, std::int64_t now_ms) {
    if (job.checkpoints_size() == 0) return;
    Table table({{"STEP", Align::Right, 0}, {"ATTEMPT", Align::Right, 0}, {"AGE", Align::Right, 0}, {"SIZE", Align::Right, 0},
                 {"METRIC", Align::Right, 0, Column::Shown::WhereFilled}, {"NEEDED BY", Align::Left, 9}, {"NOTE", Align::Left, 10, Column::Shown::WhereFilled}});
    for (const proto::CheckpointView& checkpoint : job.checkpoints()) {
        table.add({std::to_string(checkpoint.step()), std::to_string(checkpoint.attempt()),
                   span_between(checkpoint.unix_ms(), now_ms), human_bytes(static_cast<double>(checkpoint.bytes())),
                   checkpoint.has_metric() ? fmt::format("{:.6g}", checkpoint.metric()) : "-", checkpoint.needed_by().empty() ? "-" : checkpoint.needed_by(),
                   Cell(checkpoint.damaged() ? "damaged: " + checkpoint.note() : checkpoint.note(),
                        checkpoint.damaged() ? Tone::Bad : Tone::Plain)});
    }
    text += "Checkpoints\n" + table.text(terminal, 2);
}

}  // namespace

std::string state_word(proto::JobState state) {
    switch (state) {
        case proto::QUEUED: return "queued";
        case proto::RESERVED: return "reserved";
        case proto::PREPARING: return "preparing";
        case proto::RUNNING: return "running";
        case proto::RECOVERING: return "recovering";
        case proto::STOPPING: return "stopping";
        case proto::COMPLETED: return "completed";
        case proto::FAILED: return "failed";
        case proto::CANCELLED: return "cancelled";
        case proto::TIMED_OUT: return "timed out";
        case proto::JobState_INT_MIN_SENTINEL_DO_NOT_USE_:
        case proto::JobState_INT_MAX_SENTINEL_DO_NOT_USE_: break;
    }
    return "unknown";
}

Tone state_tone(proto::JobState state) {
    if (state == proto::RUNNING || state == proto::COMPLETED) return Tone::Good;
    if (state == proto::FAILED || state == proto::TIMED_OUT) return Tone::Bad;
    if (state == proto::CANCELLED || state == proto::QUEUED) return Tone::Faint;
    return Tone::Busy;
}

std::string span_between(std::int64_t from_ms, std::int64_t to_ms) {
    if (from_ms == 0) return "-";
    return human_duration(static_cast<double>(std::max<std::int64_t>(0, to_ms - from_ms)) / 1000.0);
}

std::string nodes_of(const google::protobuf::RepeatedPtrField<proto::Placement>& gang) {
    std::vector<std::string> names;
    for (const proto::Placement& part : gang) names.push_back(part.node());
    return names.empty() ? "-" : compress_node_list(names);
}

bool has_ended(proto::JobState state) { return state >= proto::COMPLETED && state <= proto::TIMED_OUT; }

std::string progress_words(const proto::JobView& job) {
    const proto::Progress& progress = job.progress();
    if (!job.has_progress() || (progress.step() == 0 && progress.total_steps() == 0)) return {};
    std::string text = fmt::format("step {}", progress.step());
    if (progress.total_steps() > 0) text += fmt::format("/{}", progress.total_steps());
    if (progress.loss() != 0) text += fmt::format(" loss {:.4g}", progress.loss());
    if (job.steps_per_s() > 0) text += fmt::format(" {:.1f} steps/s", job.steps_per_s());
    if (job.eta_s() >= 0 && !has_ended(job.state()) && job.steps_per_s() > 0) {
        text += fmt::format(" eta {}", job.eta_s() < 60 ? fmt::format("{:.0f}s", job.eta_s())
                                                        : human_duration(job.eta_s()));
    }
    return text;
}

int exit_code_of(const proto::JobView& job) {
    if (job.state() == proto::COMPLETED) return job.exit_code();
    return job.exit_code() == 0 ? 1 : job.exit_code();
}

std::string job_text(const proto::JobView& job, const Terminal& terminal, std::int64_t now_ms) {
    std::string text = fmt::format("Job {} \"{}\" of {}: {}, {}{}\n", name_of(job), one_line(job.name()), job.user(),
                                   toned(terminal, state_tone(job.state()), state_word(job.state())),
                                   how_long(job, now_ms),
                                   job.restarts() == 0 ? "" : ", " + plural(job.restarts(), "restart"));
    const proto::JobSpec& spec = job.spec();
    fact(text, "reason", one_line(job.reason()));
    if (job.position() > 0) fact(text, "position", fmt::format("{} in the queue", job.position()));
    std::string size = plural(job.ranks(), "rank");
    if (job.gang_size() > 0) size += " on " + nodes_of(job.gang());
    if (spec.cards_given() || spec.cards_per_rank() > 0) size += ", " + cards_of(spec) + " each";
    fact(text, "gang", size + elastic_words(spec));
    fact(text, "spares", job.spares().empty() ? "" : compress_node_list({job.spares().begin(), job.spares().end()}));
    fact(text, "array", array_words(job));
    fact(text, "asks for", one_line(wishes_of(spec)));
    fact(text, "progress", progress_words(job));
    if (has_ended(job.state())) fact(text, "exit code", std::to_string(job.exit_code()));
    fact(text, "submitted", iso_time(job.submitted_unix_ms()));
    if (job.started_unix_ms() > 0) fact(text, "started", iso_time(job.started_unix_ms()));
    if (job.ended_unix_ms() > 0) fact(text, "ended", iso_time(job.ended_unix_ms()));
    if (spec.time_limit_s() > 0) fact(text, "time limit", human_duration(static_cast<double>(spec.time_limit_s())));
    fact(text, "command", fitted(command_of(job), 400));
    fact(text, "folder", one_line(spec.cwd()));
    fact(text, "output", one_line(file_of(spec.output(), job)));
    fact(text, "error", one_line(file_of(spec.error(), job)));
    fact(text, "checkpoints", one_line(job.checkpoint_folder()));
    fact(text, "comment", one_line(spec.comment()));
    if (spec.unsupported_size() > 0) {
        std::string all;
        for (const std::string& option : spec.unsupported()) all += (all.empty() ? "" : " ") + option;
        fact(text, "no effect", one_line(all));
    }
    add_attempts(text, job, terminal, now_ms);
    add_ranks(text, job, terminal);
    add_checkpoints(text, job, terminal, now_ms);
    text += passed_over_text(job.passed_over());
    if (job.faults_size() > 0) text += "Faults\n";
    for (const std::string& fault : job.faults()) text += fmt::format("  - {}\n", one_line(fault));
    return text;
}

std::string nodes_text(const NodeViews& nodes, const Terminal& terminal, std::int64_t now_ms) {
    Table table({{"NODE", Align::Left, 6}, {"STATE", Align::Left, 0}, {"CARDS", Align::Right, 0},
                 {"FREE", Align::Right, 0}, {"CPUS", Align::Right, 0}, {"MEMORY", Align::Right, 0},
                 {"JOBS", Align::Left, 8}, {"HEARD", Align::Right, 0}, {"CARD", Align::Left, 8}, {"NOTE", Align::Left, 10}});
    for (const proto::NodeView& node : nodes) {
        const proto::NodeInfo& info = node.node();
        std::string jobs;
        for (const proto::AttemptId& id : node.attempts()) jobs += fmt::format("{}{}", jobs.empty() ? "" : ",", id.job());
        const bool good = node.state() == "idle" || node.state() == "mixed" || node.state() == "allocated";
        const bool bad = node.state() == "lost" || node.state() == "suspect";
        std::string model = info.cards_size() == 0 ? "-" : info.cards(0).is_virtual() ? "virtual" : info.cards(0).model();
        table.add({info.name(), Cell(node.state(), good ? Tone::Good : bad ? Tone::Bad : Tone::Busy),
                   std::to_string(info.cards_size()), std::to_string(node.cards_free()), std::to_string(info.cpus()),
                   human_bytes(static_cast<double>(info.memory_mib()) * 1048576.0), jobs.empty() ? "-" : jobs,
                   span_between(node.heard_unix_ms(), now_ms), model,
                   note_of(node)});
    }
    return table.text(terminal);
}

}  // namespace gangline::runner
