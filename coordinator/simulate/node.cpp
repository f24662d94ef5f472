// Agents and shepherds: they do as docs/protocol.md says.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "coordinator/simulate/world.h"

namespace gangline::simulate {
namespace {

AttemptOf of(const proto::AttemptId& id) { return {id.job(), id.attempt()}; }

bool has_live_rank(const SimShepherd& shepherd) {
    return std::any_of(shepherd.ranks.begin(), shepherd.ranks.end(), [](const auto& rank) { return !rank.second.exited; });
}

}  // namespace

// ---- lives

void World::start_agent(const std::string& name) {
    SimNode& node = nodes_.at(name);
    if (!node.up || node.agent_up) return;
    node.agent_up = true;
    node.heard_coordinator.clear();
    ++node.agent_starts;
    say(fmt::format("{}: agent {} starts", name, node.agent_starts));
    after(random_.between(milliseconds(1), milliseconds(50)), [this, name] { link(name); });
    after(milliseconds(500), [this, name, start = node.agent_starts] {
        if (nodes_.at(name).agent_starts == start) beat(name);
    });
    for (auto& [attempt, shepherd] : node.shepherds) {  // what was being prepared is taken up again
        if (shepherd.phase == proto::ATTEMPT_PREPARING) try_prepare(name, attempt, node.agent_starts);
    }
}

void World::kill_agent(const std::string& name) {
    SimNode& node = nodes_.at(name);
    if (!node.agent_up) return;
    say(name + ": agent dies");
    node.agent_up = false;
    node.linked = false;
    node.agent_died = now_;
    ++node.connection;
}

void World::kill_node(const std::string& name) {
    SimNode& node = nodes_.at(name);
    if (!node.up) return;
    kill_agent(name);
    say(name + ": machine dies");
    node.up = false;
    std::vector<AttemptOf> attempts;
    for (const auto& [attempt, shepherd] : node.shepherds) attempts.push_back(attempt);
    node.shepherds.clear();
    for (const AttemptOf& attempt : attempts) echo(attempt);
}

void World::start_node(const std::string& name) {
    SimNode& node = nodes_.at(name);
    if (node.up) return;
    say(name + ": machine starts");
    node.up = true;
    node.highest_epoch = 0;
    start_agent(name);
}

void World::kill_shepherd(const std::string& name, AttemptOf attempt) {
    SimNode& node = nodes_.at(name);
    const auto found = node.shepherds.find(attempt);
    if (found == node.shepherds.end() || found->second.phase == proto::ATTEMPT_GONE) return;
    say(fmt::format("{}: shepherd of {}.{} dies", name, attempt.first, attempt.second));
    SimShepherd& shepherd = found->second;  // its agent reaps what it leaves and says so
    for (auto& [rank, process] : shepherd.ranks) {
        if (process.exited) continue;
        process.exited = true;
        process.signal = SIGKILL;
    }
    shepherd.failure = "its shepherd died";
    shepherd.phase = proto::ATTEMPT_GONE;
    ++shepherd.revision;
    if (node.agent_up) report(node, attempt);
    echo(attempt);
}

bool World::speaks(const SimNode& node) const { return node.up && node.agent_up && node.linked; }

// ---- orders

void World::hear_order(const std::string& name, const proto::Order& order) {
    SimNode& node = nodes_.at(name);
    if (order.epoch() < node.highest_epoch) return;  // a deposed coordinator
    node.highest_epoch = order.epoch();
    const bool is_new = node.heard_coordinator != order.coordinator_id();
    node.heard_coordinator = order.coordinator_id();
    if (order.has_welcome()) {
        if (order.welcome().send_hello()) say_hello(node);
        return;
    }
    if (is_new) say_hello(node);
    if (order.has_prepare()) hear_prepare(node, order.prepare());
    if (order.has_launch()) hear_launch(node, order.launch());
    if (order.has_stop()) hear_stop(node, order.stop());
    if (order.has_release()) {
        const auto found = node.shepherds.find(of(order.release().id()));
        if (found != node.shepherds.end() && found->second.phase == proto::ATTEMPT_GONE) {
            if (options_.bug == PlantedBug::None || !has_live_rank(found->second)) node.shepherds.erase(found);
        }
    }
}

void World::hear_prepare(SimNode& node, const proto::Prepare& prepare) {
    const AttemptOf attempt = of(prepare.id());
    if (node.mute_prepare) return;
    if (node.shepherds.count(attempt) != 0) return report(node, attempt);
    SimShepherd& shepherd = node.shepherds[attempt];
    shepherd.prepare = prepare;
    shepherd.place = prepare.gang(static_cast<int>(prepare.node_index()));
    after(random_.between(milliseconds(2), milliseconds(20)),
          [this, name = node.name, attempt, start = node.agent_starts] { try_prepare(name, attempt, start); });
}

// Its cards must be empty; until they are, it waits. The planted bug does not look.
void World::try_prepare(const std::string& name, AttemptOf attempt, std::uint64_t agent_start) {
    SimNode& node = nodes_.at(name);
    const auto found = node.shepherds.find(attempt);
    if (!node.agent_up || node.agent_starts != agent_start || found == node.shepherds.end()) return;
    SimShepherd& shepherd = found->second;
    if (shepherd.phase != proto::ATTEMPT_PREPARING || shepherd.stopping) return;
    for (const auto& [other, holder] : node.shepherds) {
        if (options_.bug != PlantedBug::None || other == attempt || !has_live_rank(holder)) continue;
        for (const std::uint32_t card : shepherd.place.cards()) {
            if (std::find(holder.place.cards().begin(), holder.place.cards().end(), card) == holder.place.cards().end()) continue;
            after(milliseconds(50), [this, name, attempt, agent_start] { try_prepare(name, attempt, agent_start); });
            return;
        }
    }
    shepherd.phase = proto::ATTEMPT_PREPARED;
    ++shepherd.revision;
    report(node, attempt);
}

void World::hear_launch(SimNode& node, const proto::Launch& launch) {
    const AttemptOf attempt = of(launch.id());
    const auto found = node.shepherds.find(attempt);
    if (found == node.shepherds.end() || found->second.phase != proto::ATTEMPT_PREPARED) return;
    SimShepherd& shepherd = found->second;
    for (std::uint32_t i = 0; i < shepherd.place.rank_count(); ++i) {
        shepherd.ranks[shepherd.place.first_rank() + i].pid = next_pid_++;
    }
    shepherd.phase = proto::ATTEMPT_RUNNING;
    ++shepherd.revision;
    say(fmt::format("{}: {}.{} forks {} ranks from step {}", node.name, attempt.first, attempt.second,
                    shepherd.place.rank_count(), launch.restore().step()));
    check_world();
    report(node, attempt);
    after(random_.between(milliseconds(1), milliseconds(30)), [this, name = node.name, attempt, launch] { join(name, attempt, launch); });
}

void World::hear_stop(SimNode& node, const proto::Stop& stop) {
    const AttemptOf attempt = of(stop.id());
    const auto found = node.shepherds.find(attempt);
    if (found == node.shepherds.end()) {  // never heard of it: nothing of it is here
        if (!speaks(node)) return;
        proto::NodeMessage message;
        *message.mutable_report()->mutable_id() = stop.id();
        message.mutable_report()->set_node(node.name);
        message.mutable_report()->set_phase(proto::ATTEMPT_GONE);
        message.mutable_report()->set_revision(1);
        return to_coordinator(node.name, std::move(message), false);
    }
    SimShepherd& shepherd = found->second;
    if (shepherd.phase == proto::ATTEMPT_GONE) return report(node, attempt);
    if (shepherd.stopping && stop.grace_ms() != 0) return;
    shepherd.stopping = true;
    shepherd.phase = proto::ATTEMPT_STOPPING;
    ++shepherd.revision;
    report(node, attempt);
    if (node.immortal) return;
    const Duration grace = milliseconds(stop.grace_ms());
    const Duration dies = random_.between(milliseconds(1), std::max<Duration>(milliseconds(5), grace + milliseconds(5)));
    if (options_.bug == PlantedBug::CardsFreedEarly) {
        shepherd.phase = proto::ATTEMPT_GONE;
        ++shepherd.revision;
        report(node, attempt);
        after(seconds(1), [this, name = node.name, attempt] { empty_part(name, attempt); });
        return;
    }
    after(dies, [this, name = node.name, attempt] { empty_part(name, attempt); });
}

// The last process of it here is dead and reaped.
void World::empty_part(const std::string& name, AttemptOf attempt) {
    SimNode& node = nodes_.at(name);
    const auto found = node.shepherds.find(attempt);
    if (found == node.shepherds.end()) return;
    SimShepherd& shepherd = found->second;
    for (auto& [rank, process] : shepherd.ranks) {
        if (process.exited) continue;
        process.exited = true;
        process.signal = SIGKILL;
    }
    if (shepherd.phase == proto::ATTEMPT_GONE) return;
    shepherd.phase = proto::ATTEMPT_GONE;
    ++shepherd.revision;
    report(node, attempt);
}

// ---- reports

proto::AttemptReport World::report_of(const SimNode& node, AttemptOf attempt) const {
    const SimShepherd& shepherd = node.shepherds.at(attempt);
    proto::AttemptReport report;
    report.mutable_id()->set_job(attempt.first);
    report.mutable_id()->set_attempt(attempt.second);
    report.set_node(node.name);
    report.set_phase(shepherd.phase);
    report.set_revision(shepherd.revision);
    report.set_failure(shepherd.failure);
    if (shepherd.phase >= proto::ATTEMPT_PREPARED) report.set_gang_key("key-" + node.name);
    const bool trains = shepherd.prepare.spec().argv(0) == "train";
    for (const auto& [number, rank] : shepherd.ranks) {
        proto::RankReport& one = *report.add_ranks();
        one.set_rank(number);
        one.set_pid(rank.pid);
        one.set_state(rank.exited ? proto::RANK_EXITED : rank.joined ? proto::RANK_JOINED : proto::RANK_STARTING);
        one.set_exit_code(rank.exit_code);
        one.set_signal(rank.signal);
        if (rank.exited && rank.exit_code != 0) one.set_last_lines("Traceback: it broke");
        one.set_process_state(rank.stopped ? "T" : "S");
        if (!trains || rank.beat == 0) continue;
        one.mutable_progress()->set_beat(rank.beat);
        one.mutable_progress()->set_step(rank.step);
        if (rank.snapshot != 0) one.set_snapshot_step(rank.snapshot);
        if (rank.replica != 0) one.set_replica_step(rank.replica);
        const auto gang = gangs_.find(attempt);
        if (gang == gangs_.end()) continue;
        one.mutable_progress()->set_first_step(gang->second.first_step);
        const double step_s = static_cast<double>(option_of(shepherd.prepare.spec(), "step_ms", 10)) / 1000;
        one.mutable_progress()->set_step_s(static_cast<double>(rank.step - std::min(rank.step, gang->second.first_step)) * step_s);
    }
    return report;
}

// At each change; over the shepherd's own line while the agent is dead.
void World::report(SimNode& node, AttemptOf attempt) {
    if (!node.up) return;
    const bool by_shepherd = !node.agent_up;
    if (by_shepherd && now_ - node.agent_died < milliseconds(200)) return;
    if (by_shepherd && node.shepherds.at(attempt).phase < proto::ATTEMPT_PREPARED) return;
    tell_damage(node, attempt, by_shepherd);
    proto::NodeMessage message;
    *message.mutable_report() = report_of(node, attempt);
    to_coordinator(node.name, std::move(message), by_shepherd);
}

void World::tell_damage(SimNode& node, AttemptOf attempt, bool by_shepherd) {
    const auto& damaged = node.shepherds.at(attempt).damaged;
    if (!damaged) return;
    proto::NodeMessage message;
    *message.mutable_damaged() = *damaged;
    to_coordinator(node.name, std::move(message), by_shepherd);
}

void World::say_hello(SimNode& node) {
    if (!speaks(node)) return;
    proto::NodeMessage message;
    proto::Hello& hello = *message.mutable_hello();
    proto::NodeInfo& info = *hello.mutable_node();
    info.set_name(node.name);
    info.set_address("10.0.0.1");
    info.set_cpus(4);
    info.set_memory_mib(8192);
    info.set_boot_id("boot");
    for (std::uint32_t i = 0; i < options_.cards; ++i) {
        info.add_cards()->set_index(i);
        info.mutable_cards(static_cast<int>(i))->set_is_virtual(true);
    }
    hello.set_agent_id(fmt::format("{}-{}", node.name, node.agent_starts));
    for (const auto& [attempt, shepherd] : node.shepherds) {
        if (options_.bug != PlantedBug::None && shepherd.phase == proto::ATTEMPT_GONE) continue;
        *hello.add_attempts() = report_of(node, attempt);
    }
    to_coordinator(node.name, std::move(message), false);
}

// Each 500 ms: the agent's heartbeat, or its orphaned shepherds' own words.
void World::beat(const std::string& name) {
    SimNode& node = nodes_.at(name);
    after(milliseconds(500), [this, name, start = node.agent_starts] {
        if (nodes_.at(name).agent_starts == start) beat(name);
    });
    if (!node.up) return;
    if (node.agent_up) {
        if (!node.linked) return;
        proto::NodeMessage message;
        message.mutable_heartbeat()->set_coordinator_id(node.heard_coordinator);
        for (const auto& [attempt, shepherd] : node.shepherds) {
            if (shepherd.phase == proto::ATTEMPT_RUNNING) *message.mutable_heartbeat()->add_progress() = report_of(node, attempt);
            tell_damage(node, attempt, false);
        }
        return to_coordinator(name, std::move(message), false);
    }
    for (const auto& [attempt, shepherd] : node.shepherds) report(node, attempt);
}

}  // namespace gangline::simulate
