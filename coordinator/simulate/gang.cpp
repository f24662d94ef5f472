// Programs: a gang steps together, or not at all.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "coordinator/simulate/world.h"

namespace gangline::simulate {

std::uint64_t World::option_of(const proto::JobSpec& spec, const std::string& name, std::uint64_t otherwise) const {
    for (const std::string& word : spec.argv()) {
        if (word.rfind(name + "=", 0) == 0) return std::stoull(word.substr(name.size() + 1));
    }
    return otherwise;
}

std::vector<std::pair<SimNode*, SimShepherd*>> World::parts_of(AttemptOf attempt) {
    std::vector<std::pair<SimNode*, SimShepherd*>> parts;
    for (auto& [name, node] : nodes_) {
        const auto found = node.shepherds.find(attempt);
        if (node.up && found != node.shepherds.end()) parts.emplace_back(&node, &found->second);
    }
    return parts;
}

// This node's ranks have come up: what they do depends on the program.
void World::join(const std::string& name, AttemptOf attempt, const proto::Launch& launch) {
    SimNode& node = nodes_.at(name);
    const auto found = node.shepherds.find(attempt);
    if (!node.up || found == node.shepherds.end() || found->second.phase != proto::ATTEMPT_RUNNING) return;
    SimShepherd& shepherd = found->second;
    const proto::JobSpec& spec = shepherd.prepare.spec();
    if (spec.argv(0) != "train") {
        const Duration life = spec.argv(0) == "true" ? milliseconds(1) : milliseconds(option_of(spec, "ms", 1000));
        for (const auto& [rank, process] : shepherd.ranks) {
            after(life + random_.between(Duration{0}, milliseconds(3)), [this, name, attempt, r = rank] { exit_rank(name, attempt, r, 0, 0); });
        }
        return;
    }
    SimGang& gang = gangs_[attempt];
    gang.first_step = launch.restore().step();
    gang.step = std::max(gang.step, gang.first_step);
    const bool is_lost = launch.restore().in_memory() && random_.chance(options_.snapshot_is_lost);
    if (is_lost || (launch.has_restore() && rotten_.count({attempt.first, launch.restore().step()}) != 0)) {
        shepherd.damaged.emplace();
        *shepherd.damaged->mutable_id() = launch.id();
        *shepherd.damaged->mutable_checkpoint() = launch.restore();
        shepherd.damaged->set_what("checksum differs");
        report(node, attempt);
        if (random_.chance(0.5)) return;  // its program waits for its end, or ends itself
        after(random_.between(milliseconds(1), milliseconds(100)), [this, name, attempt, first = shepherd.place.first_rank()] { exit_rank(name, attempt, first, 1, 0); });
        return;
    }
    for (auto& [rank, process] : shepherd.ranks) {
        if (process.exited) continue;
        process.joined = true;
        process.beat = 1;
        process.step = gang.step;
    }
    ++shepherd.revision;
    report(node, attempt);
    if (launch.restore().in_memory() && shepherd.place.first_rank() == 0) {  // brought to disk meanwhile
        after(milliseconds(5), [this, attempt, restore = launch.restore()] { commit(attempt, restore.step(), restore.attempt()); });
    }
    if (gang.ticking) return;
    gang.ticking = true;
    after(milliseconds(option_of(spec, "step_ms", 10)), [this, attempt] { tick(attempt); });
}

// One step, if every rank of every node takes part.
void World::tick(AttemptOf attempt) {
    SimGang& gang = gangs_[attempt];
    auto parts = parts_of(attempt);
    if (parts.empty() || gang.done) return;
    const proto::JobSpec spec = parts.front().second->prepare.spec();
    after(milliseconds(option_of(spec, "step_ms", 10)), [this, attempt] { tick(attempt); });
    std::uint32_t ready = 0;
    for (const auto& [node, shepherd] : parts) {
        for (const auto& [rank, process] : shepherd->ranks) ready += process.joined && !process.exited && !process.stopped;
    }
    if (ready != spec.ranks()) return;
    ++gang.step;
    for (const auto& [node, shepherd] : parts) {
        for (auto& [rank, process] : shepherd->ranks) {
            process.step = gang.step;
            ++process.beat;
        }
    }
    const std::uint64_t fail_step = option_of(spec, "fail_step", 0);
    if (fail_step != 0 && gang.step == fail_step) {
        const auto rank = static_cast<std::uint32_t>(option_of(spec, "fail_rank", 0));
        for (const auto& [node, shepherd] : parts) {
            if (shepherd->ranks.count(rank) == 0) continue;
            return exit_rank(node->name, attempt, rank, static_cast<std::int32_t>(option_of(spec, "fail_code", 1)), 0);
        }
    }
    const std::uint64_t snapshot = option_of(spec, "snapshot", 0);  // every so many steps; these never come to disk by themselves
    if (snapshot != 0 && gang.step % snapshot == 0) {
        for (const auto& [node, shepherd] : parts) {
            for (auto& [rank, process] : shepherd->ranks) {
                process.snapshot = gang.step;
                if (option_of(spec, "replicas", 0) != 0) process.replica = gang.step;
                snapshots_[attempt.first][gang.step].insert(rank);
            }
        }
    }
    const std::uint64_t every = option_of(spec, "every", 0);
    if (every != 0 && gang.step % every == 0) commit(attempt, gang.step);
    if (gang.step < option_of(spec, "steps", 100)) return;
    gang.done = true;
    for (const auto& [node, shepherd] : parts) {
        for (const auto& [rank, process] : shepherd->ranks) {
            after(random_.between(Duration{0}, milliseconds(5)),
                  [this, name = node->name, attempt, r = rank] { exit_rank(name, attempt, r, 0, 0); });
        }
    }
}

void World::commit(AttemptOf attempt, std::uint64_t step, std::uint32_t written_by) {
    for (const auto& [node, shepherd] : parts_of(attempt)) {
        if (shepherd->place.first_rank() != 0) continue;
        if (random_.chance(options_.checkpoint_rots)) rotten_.insert({attempt.first, step});
        proto::NodeMessage message;
        message.mutable_commit()->mutable_id()->set_job(attempt.first);
        message.mutable_commit()->mutable_id()->set_attempt(attempt.second);
        message.mutable_commit()->set_step(step);
        message.mutable_commit()->set_manifest_sha256(fmt::format("sha-{}-{}", attempt.second, step));
        message.mutable_commit()->set_bytes(1000);
        message.mutable_commit()->set_written_by(written_by);
        add_marks(attempt.first, *message.mutable_commit());
        to_coordinator(node->name, std::move(message), !node->agent_up);
        if (options_.found_at_rest > 0) {
            after(random_.between(milliseconds(5), milliseconds(200)), [this, name = node->name, attempt] { find_at_rest(name, attempt); });
        }
    }
}

// Metric, pins and proofs follow from the step alone, so that other draws stay as they are.
void World::add_marks(std::uint64_t job, proto::CommitRequest& commit) const {
    Random own(commit.step() * 7919 + job);
    if (own.chance(0.5)) commit.set_metric(static_cast<double>(own.below(1000)));
    const auto known = committed_.find(job);
    if (known == committed_.end()) return;
    for (const auto& [step, one] : known->second) {
        if (!own.chance(0.2)) continue;
        proto::CheckpointMark& mark = *commit.add_marks();
        mark.set_step(step);
        mark.set_attempt(one.attempt);
        mark.set_pinned(own.chance(0.3));
        mark.set_verified(own.chance(0.5));
    }
}

// Rank 0 reads old checkpoints back while it trains.
void World::find_at_rest(const std::string& name, AttemptOf attempt) {
    const SimNode& node = nodes_.at(name);
    if (!node.up || node.shepherds.count(attempt) == 0) return;
    for (const auto& [job, step] : rotten_) {
        if (job != attempt.first || !random_.chance(options_.found_at_rest)) continue;
        const auto known = committed_[job].find(step);
        if (known == committed_[job].end() || !known->second.good) continue;
        proto::NodeMessage message;
        proto::CheckpointDamaged& damaged = *message.mutable_damaged();
        damaged.mutable_id()->set_job(job);
        damaged.mutable_id()->set_attempt(attempt.second);
        damaged.mutable_checkpoint()->set_step(step);
        damaged.mutable_checkpoint()->set_attempt(known->second.attempt);
        damaged.set_what("checksum differs at rest");
        damaged.set_at_rest(true);
        to_coordinator(node.name, std::move(message), !node.agent_up);
    }
}

void World::exit_rank(const std::string& name, AttemptOf attempt, std::uint32_t rank, std::int32_t code, std::int32_t signal) {
    SimNode& node = nodes_.at(name);
    const auto found = node.shepherds.find(attempt);
    if (!node.up || found == node.shepherds.end()) return;
    SimShepherd& shepherd = found->second;
    const auto process = shepherd.ranks.find(rank);
    if (process == shepherd.ranks.end() || process->second.exited) return;
    process->second.exited = true;
    process->second.stopped = false;
    process->second.exit_code = code;
    process->second.signal = signal;
    ++shepherd.revision;
    if (code == 0 && signal == 0) ++ranks_exited_well_[attempt];
    if (code != 0 || signal != 0) say(fmt::format("{}: rank {} of {}.{} ends: code {} signal {}", name, rank, attempt.first, attempt.second, code, signal));
    if (shepherd.phase == proto::ATTEMPT_RUNNING || shepherd.phase == proto::ATTEMPT_STOPPING) report(node, attempt);
    if (code != 0 || signal != 0) echo(attempt);
    finish_part(name, attempt);
}

// Peers of a dead rank find their connection broken: they exit with a code of their own.
void World::echo(AttemptOf attempt) {
    for (const auto& [node, shepherd] : parts_of(attempt)) {
        if (shepherd->prepare.spec().argv(0) != "train") continue;
        for (const auto& [rank, process] : shepherd->ranks) {
            if (process.exited || process.stopped || !process.joined || !random_.chance(options_.echo)) continue;
            after(random_.between(Duration{0}, milliseconds(30)),
                  [this, name = node->name, attempt, r = rank] { exit_rank(name, attempt, r, 1, 0); });
        }
    }
}

// Every rank of a node has exited by itself: nothing is left behind, and it says GONE.
void World::finish_part(const std::string& name, AttemptOf attempt) {
    SimShepherd& shepherd = nodes_.at(name).shepherds.at(attempt);
    const bool all = std::all_of(shepherd.ranks.begin(), shepherd.ranks.end(), [](const auto& one) { return one.second.exited; });
    if (!all || shepherd.stopping || shepherd.phase == proto::ATTEMPT_GONE) return;
    after(random_.between(Duration{0}, milliseconds(3)), [this, name, attempt] { empty_part(name, attempt); });
}

// ---- faults by hand

bool World::kill_rank(std::uint64_t job, std::uint32_t rank, std::int32_t signal) {
    for (auto& [name, node] : nodes_) {
        for (auto& [attempt, shepherd] : node.shepherds) {
            if (attempt.first != job) continue;
            const auto process = shepherd.ranks.find(rank);
            if (process == shepherd.ranks.end() || process->second.exited) continue;
            exit_rank(name, attempt, rank, 0, signal);
            return true;
        }
    }
    return false;
}

bool World::stop_rank(std::uint64_t job, std::uint32_t rank) {
    for (auto& [name, node] : nodes_) {
        for (auto& [attempt, shepherd] : node.shepherds) {
            if (attempt.first != job) continue;
            const auto process = shepherd.ranks.find(rank);
            if (process == shepherd.ranks.end() || process->second.exited) continue;
            say(fmt::format("{}: rank {} of {}.{} is stopped", name, rank, attempt.first, attempt.second));
            process->second.stopped = true;
            return true;
        }
    }
    return false;
}

std::uint32_t World::live_ranks(std::uint64_t job) const {
    std::uint32_t live = 0;
    for (const auto& [name, node] : nodes_) {
        for (const auto& [attempt, shepherd] : node.shepherds) {
            if (attempt.first != job) continue;
            for (const auto& [rank, process] : shepherd.ranks) live += !process.exited;
        }
    }
    return live;
}

std::uint64_t World::step_of(std::uint64_t job) const {
    std::uint64_t step = 0;
    for (const auto& [attempt, gang] : gangs_) {
        if (attempt.first == job) step = gang.step;
    }
    return step;
}

}  // namespace gangline::simulate
