// Who is still there. A node that is silent is suspect while a shepherd of it speaks, otherwise lost; a gang that neither
// steps nor beats hangs, and the rank that holds it up is named.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/brain/core.h"

namespace gangline::coordinator {

void Brain::State::heard(const std::string& node) {
    NodeNow& seen = nodes_now[node];
    seen.heard = now.steady;
    seen.heard_ms = now.unix_ms;
    if (seen.suspect) {
        seen.suspect = false;
        place_wanted = true;
    }
    watch_silence(node);
}

void Brain::State::watch_silence(const std::string& node) {
    const NodeNow& seen = nodes_now[node];
    const TimePoint deadline = seen.heard + options.node_timeout;
    const TimePoint grace = office_since + options.node_timeout + kReturnGrace;  // until it has come back to us
    timers.set({Wait::Silence, 0, node}, seen.connected ? deadline : std::max(deadline, grace));
}

// We were stopped, or the machine was: what nodes and ranks said meanwhile waits unread, or was lost with its connection. They get
// as long as after a start.
void Brain::State::forgive_our_sleep() {
    office_since = now.steady;
    for (auto& [name, seen] : nodes_now) {
        const Node* node = facts.node(name);
        if (node == nullptr || node->lost) continue;
        seen.heard = now.steady;
        timers.set({Wait::Silence, 0, name}, now.steady + options.node_timeout + kReturnGrace);
    }
    for (const std::uint64_t id : facts.active) {
        Job& job = *facts.find(id);
        if (!is_live(job.state)) continue;
        Run& run = run_of(job);
        if (run.moved) run.moved = now.steady;
        for (auto& [key, rank] : run.ranks) rank.moved = now.steady;
        watch_run(job);
        watch_progress(job);
    }
}

// ---- hello

void Brain::State::hello(const std::string& node, const proto::Hello& hello) {
    NodeNow& seen = nodes_now[node];
    seen.connected = true;
    seen.agent_id = hello.agent_id();
    proto::NodeInfo info = hello.node();
    info.set_name(node);
    const Node* known = facts.node(node);
    if (known == nullptr || known->info.SerializeAsString() != info.SerializeAsString()) {
        proto::Record record_known;
        *record_known.mutable_node_known()->mutable_node() = info;
        record(std::move(record_known));
    }
    if (facts.node(node)->lost) {
        proto::Record returned;
        returned.mutable_node_returned()->set_node(node);
        record(std::move(returned));
    }
    heard(node);
    proto::Order welcome;
    welcome.mutable_welcome()->set_heartbeat_ms(static_cast<std::uint64_t>(to_ms(options.heartbeat)));
    order(node, std::move(welcome));
    seen.unwanted.clear();
    std::set<AttemptKey> listed;
    for (const proto::AttemptReport& report : hello.attempts()) {
        listed.insert(key_of(report.id()));
        hear_report(node, report, false);
    }
    std::vector<AttemptKey> missing;
    for (const auto& [key, hold] : facts.node(node)->holds) {
        if (listed.count(key) == 0 && !hold.spare) missing.push_back(key);
    }
    for (const AttemptKey& key : missing) missing_from_hello(node, key);
    send_again(node, Duration{0});
    place_wanted = true;
}

// The node holds cards for an attempt that it does not know: it restarted, or the order never reached it.
void Brain::State::missing_from_hello(const std::string& node, const AttemptKey& key) {
    proto::AttemptId id;
    id.set_job(key.job);
    id.set_attempt(key.attempt);
    Job* job = facts.current(id);
    const Part* at = job == nullptr ? nullptr : job->attempt().part_on(node);
    if (at == nullptr) {  // given up long ago
        proto::AttemptReport gone;
        *gone.mutable_id() = id;
        gone.set_phase(proto::ATTEMPT_GONE);
        return hear_stale(node, gone);
    }
    const auto part = static_cast<std::size_t>(at - job->attempt().parts.data());
    if (at->state == PartState::Gone) return;  // the job keeps these cards
    if (at->state == PartState::Held && job->state == proto::RESERVED) {
        run_of(*job).parts[part] = {};  // send_again prepares it anew
        return;
    }
    if (at->state == PartState::Held && is_launched(job->state) && !part_succeeded(*job, part)) {
        Fault fault;
        fault.kind = proto::INFRASTRUCTURE;
        fault.node = node;
        fault.cause = fmt::format("node {} restarted and lost its part of the gang", node);
        end_attempt(*job, std::move(fault));
    }
    if (at->state != PartState::Gone) part_gone(*job, part, false, "its node does not know it any more");
    settle(*job);
}

// Orders whose answer has not come within `older_than`.
void Brain::State::send_again(const std::string& node, Duration older_than) {
    const Node* at = facts.node(node);
    if (at == nullptr) return;
    NodeNow& seen = nodes_now[node];
    for (auto& [key, sent] : seen.unwanted) {
        if (sent + std::max(older_than, kSendAgain) > now.steady) continue;
        proto::AttemptId id;
        id.set_job(key.job);
        id.set_attempt(key.attempt);
        unwanted(node, id);
        proto::Order welcome;  // what the node does not list any more is gone
        welcome.mutable_welcome()->set_send_hello(true);
        welcome.mutable_welcome()->set_heartbeat_ms(static_cast<std::uint64_t>(to_ms(options.heartbeat)));
        order(node, std::move(welcome));
    }
    for (const auto& [key, hold] : at->holds) {
        Job* job = facts.find(key.job);
        if (job == nullptr || job->key() != key) continue;
        const Part* held = job->attempt().part_on(node);
        if (held == nullptr || held->state != PartState::Held) continue;
        const auto part = static_cast<std::size_t>(held - job->attempt().parts.data());
        const Run& run = run_of(*job);
        if (run.parts[part].ordered + older_than > now.steady) continue;
        const bool prepared = run.parts[part].heard && run.parts[part].phase == proto::ATTEMPT_PREPARED;
        if (job->state == proto::RESERVED && !run.parts[part].heard) {
            order_prepare(*job, part);
        } else if (is_launched(job->state) && prepared) {
            bool keys_known = true;
            for (std::size_t i = 0; i < run.parts.size(); ++i) {
                keys_known = keys_known && (run.parts[i].heard || job->attempt().parts[i].state != PartState::Held);
            }
            if (keys_known) order_launch(*job, part);
        } else if (is_ending(job->state)) {
            const std::int64_t since_ms = now.unix_ms - job->attempt().ended_ms;
            const bool failed = job->state == proto::RECOVERING || job->attempt().end.outcome() == proto::FAILED;
            const Duration grace = failed ? Duration{0} : grace_of(*job) - milliseconds(std::max<std::int64_t>(0, since_ms));
            order_stop(*job, part, std::max(grace, Duration{0}), job->reason);
        }
    }
}

// ---- silence

void Brain::State::silence_expired(const std::string& node) {
    const Node* at = facts.node(node);
    if (at == nullptr || at->lost) return;
    std::optional<TimePoint> speaks_until;
    std::vector<std::pair<std::uint64_t, std::size_t>> silent;
    for (const auto& [key, hold] : at->holds) {
        Job* job = facts.find(key.job);
        if (job == nullptr || job->key() != key) continue;
        const Part* held = job->attempt().part_on(node);
        if (held == nullptr || held->state != PartState::Held) continue;
        const auto part = static_cast<std::size_t>(held - job->attempt().parts.data());
        const auto spoke = run_of(*job).parts[part].shepherd_spoke;
        if (spoke && *spoke + options.node_timeout > now.steady) {
            const TimePoint until = *spoke + options.node_timeout;
            speaks_until = speaks_until ? std::min(*speaks_until, until) : until;
        } else {
            silent.emplace_back(key.job, part);
        }
    }
    if (!speaks_until) {
        const auto silent_ms = to_ms(now.steady - nodes_now[node].heard);
        return lose_node(node, fmt::format("node {} is lost: nothing heard from it for {:.1f} s", node,
                                           static_cast<double>(silent_ms) / 1000));
    }
    nodes_now[node].suspect = true;
    nodes_now[node].connected = false;  // its next agent says Hello first
    timers.set({Wait::Silence, 0, node}, *speaks_until);
    for (const auto& [id, part] : silent) {
        lose_part(*facts.find(id), part, fmt::format("node {}: agent and shepherd of this gang are silent", node));
    }
}

void Brain::State::lose_node(const std::string& node, std::string reason) {
    proto::Record lost;
    lost.mutable_node_lost()->set_node(node);
    lost.mutable_node_lost()->set_reason(reason);
    record(std::move(lost));
    NodeNow& seen = nodes_now[node];
    seen.connected = false;
    seen.suspect = false;
    seen.unwanted.clear();
    timers.clear({Wait::Silence, 0, node});
    lose_parts_on(node, reason);
    place_wanted = true;  // it may have been somebody's spare
}

void Brain::State::lose_parts_on(const std::string& node, const std::string& reason) {
    std::vector<std::uint64_t> held;
    for (const auto& [key, hold] : facts.node(node)->holds) held.push_back(key.job);
    for (const std::uint64_t id : held) {
        Job* job = facts.find(id);
        if (job == nullptr || job->attempts.empty() || is_ended(job->state)) continue;
        const Part* part = job->attempt().part_on(node);
        if (part == nullptr || part->state != PartState::Held) continue;
        lose_part(*job, static_cast<std::size_t>(part - job->attempt().parts.data()), reason);
    }
}

// This part will not be heard of again soon: the gang goes on elsewhere, its cards here wait for a proof.
void Brain::State::lose_part(Job& job, std::size_t part, const std::string& reason) {
    if (is_live(job.state) && !(is_launched(job.state) && part_succeeded(job, part))) {
        Fault fault;
        fault.kind = proto::INFRASTRUCTURE;
        fault.node = job.attempt().parts[part].place.node();
        fault.blame = true;
        fault.cause = reason;
        fault.stalled = options.node_timeout;
        end_attempt(job, std::move(fault));
    }
    if (job.attempt().parts[part].state == PartState::Held) part_gone(job, part, true, reason);
    settle(job);
}

// ---- waits of one job

void Brain::State::prepare_expired(Job& job) {
    if (job.state != proto::RESERVED) return;
    const Run& run = run_of(job);
    for (std::size_t part = 0; part < run.parts.size(); ++part) {
        if (run.parts[part].heard && run.parts[part].phase >= proto::ATTEMPT_PREPARED) continue;
        Fault fault;
        fault.kind = proto::INFRASTRUCTURE;
        fault.node = job.attempt().parts[part].place.node();
        fault.blame = true;
        fault.stalled = options.prepare_timeout;
        fault.cause = fmt::format("node {} did not prepare its part within {} s", fault.node,
                                  to_ms(options.prepare_timeout) / 1000);
        return end_attempt(job, std::move(fault));
    }
}

// Some ranks have joined and wait for others that have not: the first of those is named. The same twice is no accident.
void Brain::State::join_expired(Job& job) {
    const Run& run = run_of(job);
    if (!is_launched(job.state) || job.is_script() || run.moved) return;
    bool any_joined = false;
    const RankNow* late = nullptr;
    for (const auto& [key, rank] : run.ranks) {
        any_joined = any_joined || rank.report.state() == proto::RANK_JOINED;
        if (late == nullptr && rank.report.state() == proto::RANK_STARTING) late = &rank;
    }
    if (!any_joined || late == nullptr) return;
    Fault fault;
    fault.kind = proto::INFRASTRUCTURE;
    fault.node = late->node;
    fault.rank = static_cast<std::int32_t>(late->report.rank());
    fault.stalled = options.join_timeout;
    fault.cause = fmt::format("rank {} on {} has not joined within {} s, others wait for it", fault.rank, fault.node,
                              to_ms(options.join_timeout) / 1000);
    fault.final = job.attempts.size() > 1 && job.attempts[job.attempts.size() - 2].end.cause() == fault.cause;
    if (fault.final) fault.cause += "; the same as before: not tried again";
    end_attempt(job, std::move(fault));
}

void Brain::State::watch_progress(Job& job) {
    const Run& run = run_of(job);
    if (!is_launched(job.state) || !run.moved) return;
    const Duration limit = job.spec.progress_timeout_ms() == 0 ? options.progress_timeout
                                                               : milliseconds(job.spec.progress_timeout_ms());
    TimePoint deadline = *run.moved + limit;
    for (const auto& [key, rank] : run.ranks) {
        const bool stopped = rank.report.process_state() == "T" && rank.report.progress().beat() != 0;
        if (stopped && rank.report.state() != proto::RANK_EXITED) deadline = std::min(deadline, rank.moved + limit);
    }
    timers.set({Wait::Progress, job.id, {}}, deadline);
}

void Brain::State::progress_expired(Job& job) {
    const Run& run = run_of(job);
    if (!is_launched(job.state) || !run.moved) return;
    const RankNow* held_up = nullptr;
    const auto rank_order = [](const RankNow& rank) {
        const std::string& state = rank.report.process_state();
        const int health = state == "T" ? 0 : state == "D" || state == "Z" ? 1 : 2;
        return std::tuple(health, rank.report.progress().step(), rank.report.progress().beat());
    };
    for (const auto& [key, rank] : run.ranks) {
        if (rank.report.state() == proto::RANK_EXITED || rank.report.progress().beat() == 0) continue;
        if (held_up == nullptr || rank_order(rank) < rank_order(*held_up)) held_up = &rank;
    }
    if (held_up == nullptr) return;  // all who report have exited: the others are not watched
    const std::string& state = held_up->report.process_state();
    Fault fault;
    fault.kind = proto::INFRASTRUCTURE;
    fault.node = held_up->node;
    fault.rank = static_cast<std::int32_t>(held_up->report.rank());
    fault.stalled = now.steady - std::min(*run.moved, held_up->moved);
    fault.cause = fmt::format("no progress for {:.1f} s: rank {} on {} {}at step {}", to_seconds(fault.stalled), fault.rank,
                              fault.node,
                              state == "T"   ? "is stopped (state T) "
                              : state == "D" ? "waits for the kernel (state D) "
                              : state == "Z" ? "is dead and not reaped (state Z) "
                                             : "is the furthest behind, ",
                              held_up->report.progress().step());
    end_attempt(job, std::move(fault));
}

}  // namespace gangline::coordinator
