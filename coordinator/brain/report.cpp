// What nodes say of their attempts. A report is the whole truth of one attempt on one node: a lower revision is old news,
// an attempt that is not its job's newest is stale and answered with Stop, then Release.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "base/text.h"
#include "coordinator/brain/core.h"

namespace gangline::coordinator {
namespace {

// Signals that come from outside the program: the out-of-memory killer, an operator, a dying session.
bool is_from_outside(int signal) {
    return signal == SIGKILL || signal == SIGTERM || signal == SIGHUP || signal == SIGINT || signal == SIGPWR;
}

bool has_failed(const proto::RankReport& rank) {
    return rank.state() == proto::RANK_EXITED && (rank.exit_code() != 0 || rank.signal() != 0);
}

Fault fault_of_rank(const proto::RankReport& rank, const std::string& node) {
    Fault fault;
    fault.rank = static_cast<std::int32_t>(rank.rank());
    fault.exit_code = rank.exit_code();
    fault.signal = rank.signal();
    fault.last_lines = rank.last_lines();
    fault.node = node;
    fault.kind = rank.signal() != 0 && is_from_outside(rank.signal()) ? proto::INFRASTRUCTURE : proto::USER;
    fault.cause = rank.signal() != 0
                      ? fmt::format("rank {} on {} was killed by {}", rank.rank(), node, signal_name(rank.signal()))
                      : fmt::format("rank {} on {} exited with code {}", rank.rank(), node, rank.exit_code());
    return fault;
}

}  // namespace

void Brain::State::release(const std::string& node, const proto::AttemptId& id, bool keep_snapshots) {
    proto::Order out;
    *out.mutable_release()->mutable_id() = id;
    out.mutable_release()->set_keep_snapshots(keep_snapshots);
    order(node, std::move(out));
}

// The node is told to end it, and offers nothing until it is gone.
void Brain::State::unwanted(const std::string& node, const proto::AttemptId& id) {
    nodes_now[node].unwanted[key_of(id)] = now.steady;
    proto::Order out;
    *out.mutable_stop()->mutable_id() = id;
    out.mutable_stop()->set_reason("this attempt has ended");
    order(node, std::move(out));
}

void Brain::State::hear_stale(const std::string& node, const proto::AttemptReport& report) {
    if (report.phase() != proto::ATTEMPT_GONE) return unwanted(node, report.id());
    const Node* at = facts.node(node);
    if (at != nullptr && at->holds.count(key_of(report.id())) != 0) {
        proto::Record gone;
        *gone.mutable_node_part_gone()->mutable_id() = report.id();
        gone.mutable_node_part_gone()->set_node(node);
        record(std::move(gone));
    }
    nodes_now[node].unwanted.erase(key_of(report.id()));
    place_wanted = true;
    release(node, report.id());
}

void Brain::State::hear_report(const std::string& node, const proto::AttemptReport& report, bool by_shepherd) {
    Job* job = facts.current(report.id());
    const Part* at = job == nullptr ? nullptr : job->attempt().part_on(node);
    if (at == nullptr) return hear_stale(node, report);
    const auto part = static_cast<std::size_t>(at - job->attempt().parts.data());
    if (at->state == PartState::Presumed) {
        if (report.phase() != proto::ATTEMPT_GONE) return unwanted(node, report.id());
        return part_gone(*job, part, false, "proved empty after all");
    }
    if (at->state == PartState::Gone) {
        if (report.phase() == proto::ATTEMPT_GONE) release(node, report.id());
        return;
    }
    PartNow& seen = run_of(*job).parts[part];
    if (by_shepherd) seen.shepherd_spoke = now.steady;
    if (seen.heard && report.revision() < seen.revision) return;
    seen.heard = true;
    seen.revision = report.revision();
    seen.phase = report.phase();
    seen.script_ended = report.script_ended();
    if (!report.gang_key().empty()) seen.gang_key = report.gang_key();
    if (!report.gang_endpoint().empty()) seen.gang_endpoint = report.gang_endpoint();
    if (report.master_port() != 0) seen.master_port = report.master_port();
    correct_time_limit(*job, report);
    hear_ranks(*job, node, report);
    for (const std::string& what : report.faults()) hear_fault(*job, job->attempt().parts[part].place.first_rank(), what);
    if (is_ending(job->state)) {
        absorb_gone(*job);
        settle(*job);
        return;
    }
    hear_live(*job, part, report);
}

// The wall clock may have been put forward or back while we were away: the gang's own time counts.
void Brain::State::correct_time_limit(const Job& job, const proto::AttemptReport& report) {
    if (report.running_ms() == 0 || !is_launched(job.state) || job.attempt().launched_ms == 0) return;
    const auto left_ms = job.time_left_ms(job.attempt().launched_ms);  // when it was launched
    if (!left_ms) return;
    const TimePoint due = now.steady + milliseconds(std::max<std::int64_t>(0, *left_ms - static_cast<std::int64_t>(report.running_ms())));
    timers.set({Wait::TimeLimit, job.id, {}}, due);
}

// In a heartbeat. Without a revision it carries nothing but progress and process states.
void Brain::State::hear_progress(const std::string& node, const proto::AttemptReport& report, bool by_shepherd) {
    if (report.revision() != 0) return hear_report(node, report, by_shepherd);
    Job* job = facts.current(report.id());
    const Part* at = job == nullptr ? nullptr : job->attempt().part_on(node);
    if (at == nullptr || at->state != PartState::Held || !is_launched(job->state)) return;
    Run& run = run_of(*job);
    const auto part = static_cast<std::size_t>(at - job->attempt().parts.data());
    if (by_shepherd) run.parts[part].shepherd_spoke = now.steady;
    proto::AttemptReport merged;
    for (const proto::RankReport& said : report.ranks()) {
        const auto known = run.ranks.find(RankKey{said.step_id(), said.rank()});
        if (known == run.ranks.end()) continue;
        proto::RankReport& rank = *merged.add_ranks();
        rank = known->second.report;
        if (said.has_progress()) *rank.mutable_progress() = said.progress();
        if (!said.process_state().empty()) rank.set_process_state(said.process_state());
    }
    hear_ranks(*job, node, merged);
    watch_progress(*job);
}

void Brain::State::hear_ranks(Job& job, const std::string& node, const proto::AttemptReport& report) {
    Run& run = run_of(job);
    for (const proto::RankReport& said : report.ranks()) {
        const auto [place, is_new] = run.ranks.try_emplace(RankKey{said.step_id(), said.rank()});
        RankNow& rank = place->second;
        const proto::Progress& before = rank.report.progress();
        const bool moved = is_new || said.progress().beat() != before.beat() || said.progress().step() != before.step();
        if (moved) rank.moved = now.steady;
        if (moved && said.progress().beat() != 0) run.moved = now.steady;
        if (has_failed(said) && said.step_id() != 0 && rank.report.state() != proto::RANK_EXITED) {
            run.step_faults.try_emplace(said.step_id(), fault_of_rank(said, node));
        }
        rank.node = node;
        rank.report = said;
    }
}

void Brain::State::hear_fault(Job& job, std::uint32_t rank, const std::string& what) {
    if (job.faults.size() >= static_cast<std::size_t>(kMostFaults)) return;
    if (std::find(job.faults.begin(), job.faults.end(), what) != job.faults.end()) return;
    proto::Record seen;
    *seen.mutable_job_fault_seen()->mutable_id() = id_of(job);
    seen.mutable_job_fault_seen()->set_rank(rank);
    seen.mutable_job_fault_seen()->set_what(what);
    record(std::move(seen));
}

// A script's own end. Its code is its own, unless a step of it was killed from outside: then that is the cause.
std::optional<Fault> Brain::State::script_fault(Job& job, const proto::AttemptReport& report) {
    for (const proto::RankReport& rank : report.ranks()) {
        if (rank.step_id() != 0 || !has_failed(rank)) continue;
        Fault fault = fault_of_rank(rank, report.node());
        const Run& run = run_of(job);
        if (!run.step_faults.empty() && run.step_faults.rbegin()->second.kind == proto::INFRASTRUCTURE) {
            fault = run.step_faults.rbegin()->second;
            fault.cause += fmt::format(", and the script ended with code {}", rank.exit_code());
        } else {
            fault.cause = rank.signal() != 0 ? fmt::format("the script was killed by {}", signal_name(rank.signal()))
                                             : fmt::format("the script exited with code {}", rank.exit_code());
        }
        return fault;
    }
    return std::nullopt;
}

std::optional<Fault> Brain::State::fault_in(Job& job, std::size_t part, const proto::AttemptReport& report) {
    const std::string& node = job.attempt().parts[part].place.node();
    if (!report.failure().empty()) {
        Fault fault;
        fault.cause = fmt::format("{}: {}", node, report.failure());
        fault.kind = report.failure_is_users() ? proto::USER : proto::INFRASTRUCTURE;
        fault.exit_code = report.failure_is_users() ? 1 : 0;
        fault.node = node;
        fault.of_part = !report.failure_is_users();
        fault.blame = job.state == proto::RESERVED && !report.failure_is_users();
        return fault;
    }
    if (job.is_script()) {
        if (part == 0 && report.script_ended()) return script_fault(job, report);
    } else {
        const proto::RankReport* worst = nullptr;  // of several in one report a signal is likelier the cause than a code
        for (const proto::RankReport& rank : report.ranks()) {
            if (rank.step_id() != 0 || !has_failed(rank)) continue;
            if (worst == nullptr || (worst->signal() == 0 && rank.signal() != 0)) worst = &rank;
        }
        if (worst != nullptr) return fault_of_rank(*worst, node);
    }
    if (report.phase() == proto::ATTEMPT_GONE && (job.state == proto::RESERVED || !part_succeeded(job, part))) {
        Fault fault;
        fault.cause = fmt::format("{} ended its part before its ranks had exited", node);
        fault.kind = proto::INFRASTRUCTURE;
        fault.node = node;
        fault.blame = job.state == proto::RESERVED;
        return fault;
    }
    return std::nullopt;
}

// A report of an attempt that nobody has ended.
void Brain::State::hear_live(Job& job, std::size_t part, const proto::AttemptReport& report) {
    if (job.state == proto::RESERVED && report.phase() == proto::ATTEMPT_RUNNING) {
        // Launched by a coordinator that died before it could say so.
        proto::Record launched;
        *launched.mutable_gang_launched()->mutable_id() = id_of(job);
        record(std::move(launched));
        watch_run(job);
    }
    if (auto fault = fault_in(job, part, report)) {
        fail(job, std::move(*fault));
        return;
    }
    if (job.state == proto::RESERVED) return try_launch(job);
    check_joined(job);
    watch_progress(job);
    absorb_gone(job);
    if (!job.attempt().all_gone() && all_ranks_done(job)) {
        if (job.is_script() && job.attempt().parts.size() > 1) {
            return end_job(job, "its script exited 0", proto::COMPLETED, grace_of(job));
        }
        const WaitKey finish{Wait::Finish, job.id, {}};
        if (!timers.is_set(finish)) timers.set(finish, now.steady + options.stop_timeout);
    }
    settle(job);
}

}  // namespace gangline::coordinator
