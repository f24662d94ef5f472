// The node's brain, second part: what shepherds and execd say, the start, the end, and the time.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runner/agent/agent_brain.h"

namespace gangline::runner {
namespace {

constexpr Duration kAbandonLimit = seconds(8);
constexpr Duration kLeavingLimit = seconds(8);
constexpr Duration kShepherdSilent = seconds(20);  // less than the progress timeout, so that the right one is blamed; it answers a ping each heartbeat, whatever its ranks do
constexpr Duration kOverslept = seconds(5);        // we did not run ourselves: nobody was silent

}  // namespace

// ---- shepherds and execd

void AgentBrain::handle(const FromShepherdEvent& event) {
    Key key;
    if (Spare* spare = spare_by_socket(event.socket_name)) spare->ready = spare->ready || event.message.has_ready();
    std::uint64_t job = 0;
    if (Keeper* keeper = keeper_by_socket(event.socket_name, job)) keeper->since = now_.steady;
    Attempt* attempt = by_socket(event.socket_name, key);
    if (attempt == nullptr) return;
    attempt->heard = now_.steady;
    proto::NodeMessage message;
    switch (event.message.body_case()) {
        case proto::FromShepherd::kReport: {
            const proto::AttemptReport& report = event.message.report();
            if (Key{report.id().job(), report.id().attempt()} != key || attempt->state != State::Live) return;
            attempt->report = report;
            attempt->report.set_node(options_.node.name());
            if (report.phase() == proto::ATTEMPT_GONE) return gone(key, *attempt);
            return tell_report(*attempt, false);
        }
        case proto::FromShepherd::kCommit: *message.mutable_commit() = event.message.commit(); break;
        case proto::FromShepherd::kDamaged: *message.mutable_damaged() = event.message.damaged(); break;
        case proto::FromShepherd::kFault: *message.mutable_fault() = event.message.fault(); break;
        case proto::FromShepherd::kKeeper: return keeper_wanted(key, event.socket_name, event.message.keeper().start());
        case proto::FromShepherd::kPong:
        case proto::FromShepherd::kReady:
        case proto::FromShepherd::BODY_NOT_SET: return;
    }
    tell(std::move(message));
}

void AgentBrain::handle(const ShepherdUp& event) {
    Key key;
    if (Attempt* attempt = by_socket(event.socket_name, key)) {
        attempt->connected = true;
        attempt->heard = now_.steady;
        attempt->deadline.reset();
        if (attempt->stop) attempt->deadline = now_.steady + milliseconds(attempt->stop->grace_ms()) + options_.stop_slack;
        attempt->state = State::Live;
        return send_prepared_state(key, *attempt);
    }
    if (Spare* spare = spare_by_socket(event.socket_name)) {
        spare->connected = true;
        actions_.push_back(TellShepherd{spare->socket_name, identity(spare->spool_folder)});
    }
    std::uint64_t job = 0;
    if (Keeper* keeper = keeper_by_socket(event.socket_name, job)) {
        keeper->connected = true;
        keeper->since = now_.steady;
        answer_askers(*keeper);
    }
}

void AgentBrain::handle(const ShepherdDown& event) {
    Key key;
    if (const auto leaving = leaving_.find(event.socket_name); leaving != leaving_.end()) {
        has_left(leaving->second.note);
        leaving_.erase(leaving);
        return exit_when_empty();
    }
    if (Attempt* attempt = by_socket(event.socket_name, key)) {
        const bool was_connected = std::exchange(attempt->connected, false);
        if (attempt->state != State::Live && attempt->state != State::Spawning) return;
        // A lost connection is no death yet: a dead one's socket cannot be connected to.
        if (was_connected) actions_.push_back(Connect{event.socket_name, attempt->note.shepherd});
        else reap(key, *attempt, "the shepherd of this attempt died");
        return;
    }
    std::uint64_t job = 0;
    if (keeper_by_socket(event.socket_name, job) != nullptr) return lose_keeper(job);
    const auto found = std::find_if(spares_.begin(), spares_.end(), [&](const Spare& spare) { return spare.socket_name == event.socket_name; });
    if (found == spares_.end()) return;
    actions_.push_back(KillShepherd{found->shepherd});
    actions_.push_back(DropNote{found->spool_folder});
    actions_.push_back(RemoveSpool{found->spool_folder});
    spares_.erase(found);
    refill_at_ = now_.steady + seconds(5);  // a spare that dies at once must not be made again in a circle
}

void AgentBrain::handle(const Spawned& event) {
    for (auto& [key, attempt] : attempts_) {
        if (attempt.state != State::Spawning || attempt.request != event.reply.request()) continue;
        if (!event.reply.error().empty()) {
            attempt.failure = event.reply.error();
            return gone(key, attempt);
        }
        attempt.note.shepherd = {event.reply.pid(), event.reply.start_ticks()};
        actions_.push_back(KeepNote{attempt.note});
        actions_.push_back(Connect{attempt.note.socket_name, attempt.note.shepherd});
        return;
    }
    for (auto& [job, keeper] : keepers_) {
        if (keeper.request == 0 || keeper.request != event.reply.request()) continue;
        if (!event.reply.error().empty()) {
            say(fmt::format("keeper_failed job={} reason=\"{}\"", job, event.reply.error()));
            return lose_keeper(job);
        }
        keeper.request = 0;
        keeper.note.shepherd = {event.reply.pid(), event.reply.start_ticks()};
        actions_.push_back(KeepNote{keeper.note});
        actions_.push_back(Connect{keeper.note.socket_name, keeper.note.shepherd});
        return;
    }
    const auto found = std::find_if(spares_.begin(), spares_.end(), [&](const Spare& spare) { return spare.request == event.reply.request(); });
    if (found == spares_.end()) {  // given up before it was there
        if (event.reply.pid() != 0) actions_.push_back(KillShepherd{{event.reply.pid(), event.reply.start_ticks()}});
        return;
    }
    if (!event.reply.error().empty()) {
        say(fmt::format("spare_failed reason=\"{}\"", event.reply.error()));
        spares_.erase(found);
        refill_at_ = now_.steady + seconds(5);
        return;
    }
    found->request = 0;
    found->shepherd = {event.reply.pid(), event.reply.start_ticks()};
    AttemptNote note;
    note.socket_name = found->socket_name;
    note.spool_folder = found->spool_folder;
    note.shepherd = found->shepherd;
    actions_.push_back(KeepNote{note});
    actions_.push_back(Connect{found->socket_name, found->shepherd});
}

void AgentBrain::handle(const Reaped& event) {
    for (auto& [key, attempt] : attempts_) {
        if (attempt.state != State::Reaping || attempt.request != event.reply.request()) continue;
        if (event.reply.still_there() > 0) {
            // Not proved empty: the cards stay held, and it is tried again with the next beat.
            say(fmt::format("not_empty job={} attempt={} processes={}", key.job, key.attempt, event.reply.still_there()));
            attempt.request = 0;
            attempt.deadline = now_.steady + seconds(1);
            return;
        }
        return gone(key, attempt);
    }
}

void AgentBrain::reattach(const AttemptNote& note) {
    Attempt& attempt = attempts_[{note.prepare.id().job(), note.prepare.id().attempt()}];
    attempt.note = note;
    *attempt.report.mutable_id() = note.prepare.id();
    attempt.report.set_node(options_.node.name());
    attempt.report.set_phase(proto::ATTEMPT_PREPARING);
    attempt.state = State::Spawning;  // until it answers
    attempt.deadline = now_.steady + options_.spawn_limit;
    actions_.push_back(Connect{note.socket_name, note.shepherd});
}

void AgentBrain::reap_leftover(const proto::AttemptId& id) {
    const Key key{id.job(), id.attempt()};
    if (key.job == 0 || attempts_.contains(key)) return;
    Attempt& attempt = attempts_[key];
    *attempt.note.prepare.mutable_id() = id;
    attempt.note.spool_folder = spool_name(id);
    *attempt.report.mutable_id() = id;
    attempt.report.set_node(options_.node.name());
    attempt.report.set_phase(proto::ATTEMPT_STOPPING);
    reap(key, attempt, "an earlier agent of this node left it without a shepherd");
}

void AgentBrain::handle(const Started& event) {
    started_ms_ = now_.unix_ms;
    std::set<std::string> taken;
    for (const AttemptNote& note : event.notes) {
        if (note.prepare.id().job() == 0) continue;
        taken.insert(note.socket_name);
        reattach(note);
    }
    for (const AttemptNote& note : event.notes) {
        if (note.prepare.id().job() != 0) continue;
        if (reattach_keeper(note)) continue;
        actions_.push_back(DropNote{note.spool_folder});
        if (taken.contains(note.socket_name)) continue;  // the last agent died while it took this spare
        actions_.push_back(KillShepherd{note.shepherd});  // nobody knows how warm it is
        actions_.push_back(RemoveSpool{note.spool_folder});
    }
    for (const proto::AttemptId& id : event.leftovers) reap_leftover(id);
    next_beat_ = now_.steady + options_.heartbeat;
    refill_spares();
    hello_by_ = now_.steady + seconds(1);
}

void AgentBrain::exit_when_empty() {
    if (!abandoned_) return;
    for (const auto& [key, attempt] : attempts_) {
        if (attempt.state != State::Gone) return;
    }
    for (auto& [key, attempt] : attempts_) {
        actions_.push_back(DropNote{attempt.note.spool_folder});
        if (std::exchange(attempt.connected, false)) let_go(attempt.note, true);
    }
    while (!keepers_.empty()) let_keeper_go(keepers_.begin()->first);
    if (leaving_.empty()) actions_.push_back(Exit{0, "everything here has ended"});
}

void AgentBrain::handle(const Abandon&) {
    abandoned_ = true;
    abandon_by_ = now_.steady + kAbandonLimit;
    handle(Leave{});
    std::vector<proto::AttemptId> living;
    for (const auto& [key, attempt] : attempts_) {
        if (attempt.state != State::Gone) living.push_back(attempt.report.id());
    }
    for (const proto::AttemptId& id : living) {
        proto::Stop order;
        *order.mutable_id() = id;
        order.set_reason("the agent was told to end everything");
        stop(order);
    }
    exit_when_empty();
}

void AgentBrain::handle(const Leave&) {
    for (const Spare& spare : spares_) {
        AttemptNote note;
        note.socket_name = spare.socket_name;
        note.spool_folder = spare.spool_folder;
        note.shepherd = spare.shepherd;
        if (!spare.connected && spare.shepherd.pid != 0) actions_.push_back(KillShepherd{spare.shepherd});
        actions_.push_back(DropNote{spare.spool_folder});
        let_go(note, spare.connected);
        left_spares_.push_back(spare.socket_name);
    }
    spares_.clear();
    refill_at_.reset();
    options_.spares_allowed = false;
}

void AgentBrain::end_late_ones() {
    std::vector<Key> late;
    for (const auto& [key, attempt] : attempts_) {
        if (attempt.deadline && *attempt.deadline <= now_.steady) late.push_back(key);
    }
    for (const Key key : late) {
        Attempt& attempt = attempts_.at(key);
        const bool starting = attempt.state == State::Spawning;
        const std::string earlier = attempt.failure;
        reap(key, attempt, starting ? "its shepherd did not start in time" : earlier.empty() ? "its shepherd did not end it in time" : earlier);
    }
    for (auto& [name, leaving] : leaving_) {
        if (leaving.deadline > now_.steady) continue;
        leaving.deadline = now_.steady + kLeavingLimit;
        actions_.push_back(KillShepherd{leaving.note.shepherd});
    }
}

// A shepherd that is stopped or hangs cannot end its part, nor tell of its end: it is killed, and what it left is reaped.
void AgentBrain::end_silent_ones(bool overslept) {
    for (auto& [key, attempt] : attempts_) {
        if (!attempt.connected || attempt.state != State::Live) continue;
        if (overslept || attempt.heard == TimePoint{}) attempt.heard = now_.steady;
        if (now_.steady - attempt.heard < kShepherdSilent) continue;
        attempt.heard = now_.steady;
        say(fmt::format("shepherd_silent job={} attempt={} pid={}", key.job, key.attempt, attempt.note.shepherd.pid));
        actions_.push_back(KillShepherd{attempt.note.shepherd});
    }
}

void AgentBrain::handle(const AgentTick&) {
    if (refill_at_ && *refill_at_ <= now_.steady) refill_spares();
    if (abandon_by_ && *abandon_by_ <= now_.steady) {
        abandon_by_.reset();
        actions_.push_back(Exit{1, "some processes could not be ended in time"});
    }
    end_late_ones();
    if (next_beat_ > now_.steady) return;
    const bool overslept = now_.steady - next_beat_ > kOverslept;
    end_silent_ones(overslept);
    watch_keepers(overslept);
    next_beat_ = now_.steady + options_.heartbeat;
    if (!hello_by_) beat();
    proto::ToShepherd ping;
    ping.mutable_ping();
    for (const auto& [key, attempt] : attempts_) {
        if (attempt.connected) actions_.push_back(TellShepherd{attempt.note.socket_name, ping});
    }
    for (const auto& [job, keeper] : keepers_) {
        if (keeper.connected) actions_.push_back(TellShepherd{keeper.note.socket_name, ping});
    }
}

}  // namespace gangline::runner
