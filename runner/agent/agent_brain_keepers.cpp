// The node's brain, third part: keepers. One for each job whose ranks asked for one.
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "runner/agent/agent_brain.h"

namespace gangline::runner {
namespace {

constexpr std::string_view kKeeperPrefix = "keeper-";
constexpr Duration kKeeperSilent = seconds(20);  // it answers a ping each heartbeat

}  // namespace

bool AgentBrain::reattach_keeper(const AttemptNote& note) {
    if (!note.spool_folder.starts_with(kKeeperPrefix)) return false;
    keepers_[std::strtoull(note.spool_folder.c_str() + kKeeperPrefix.size(), nullptr, 10)] = {note, 0, false, now_.steady, {}};
    actions_.push_back(Connect{note.socket_name, note.shepherd});
    return true;
}

AgentBrain::Keeper* AgentBrain::keeper_by_socket(const std::string& name, std::uint64_t& job) {
    for (auto& [number, keeper] : keepers_) {
        if (keeper.note.socket_name != name) continue;
        job = number;
        return &keeper;
    }
    return nullptr;
}

void AgentBrain::keeper_wanted(Key key, const std::string& asker, bool start) {
    auto found = keepers_.find(key.job);
    if (found == keepers_.end() && (!start || abandoned_)) {
        proto::ToShepherd none;
        none.mutable_keeper();
        actions_.push_back(TellShepherd{asker, std::move(none)});
        return;
    }
    if (found == keepers_.end()) {
        found = keepers_.emplace(key.job, Keeper{}).first;
        Keeper& keeper = found->second;
        keeper.note.socket_name = fmt::format("gangline-{}-{}", options_.socket_seed, next_socket_++);
        keeper.note.spool_folder = fmt::format("{}{}", kKeeperPrefix, key.job);
        keeper.request = next_request_++;
        keeper.since = now_.steady;
        proto::SpawnRequest request;
        request.set_request(keeper.request);
        request.set_keeper(true);
        request.mutable_id()->set_job(key.job);
        request.mutable_id()->set_attempt(key.attempt);
        request.set_socket_name(keeper.note.socket_name);
        request.set_spool_folder(keeper.note.spool_folder);
        request.set_node(options_.node.name());
        request.set_address(options_.node.address());
        request.set_cluster(options_.cluster);
        actions_.push_back(Spawn{std::move(request)});
    }
    found->second.askers.push_back(asker);
    if (found->second.connected) answer_askers(found->second);
}

void AgentBrain::answer_askers(Keeper& keeper) {
    proto::ToShepherd answer;
    answer.mutable_keeper()->set_socket(keeper.connected ? keeper.note.socket_name : "");
    for (const std::string& asker : std::exchange(keeper.askers, {})) actions_.push_back(TellShepherd{asker, answer});
}

// It is dead, or was never there: the next rank that asks gets a new one.
void AgentBrain::lose_keeper(std::uint64_t job) {
    Keeper& keeper = keepers_.at(job);
    keeper.connected = false;
    answer_askers(keeper);
    if (keeper.note.shepherd.pid != 0) actions_.push_back(KillShepherd{keeper.note.shepherd});
    actions_.push_back(DropNote{keeper.note.spool_folder});
    actions_.push_back(RemoveSpool{keeper.note.spool_folder});
    keepers_.erase(job);
}

// It first brings to disk what is not there yet.
void AgentBrain::let_keeper_go(std::uint64_t job) {
    const auto found = keepers_.find(job);
    if (found == keepers_.end()) return;
    if (!found->second.connected) return lose_keeper(job);
    actions_.push_back(DropNote{found->second.note.spool_folder});
    let_go(found->second.note, true);
    keepers_.erase(found);
}

void AgentBrain::watch_keepers(bool overslept) {
    std::vector<std::uint64_t> silent;
    for (auto& [job, keeper] : keepers_) {
        if (overslept) keeper.since = now_.steady;
        if (now_.steady - keeper.since >= kKeeperSilent) silent.push_back(job);
    }
    for (const std::uint64_t job : silent) {
        say(fmt::format("keeper_silent job={} pid={}", job, keepers_.at(job).note.shepherd.pid));
        lose_keeper(job);
    }
}

}  // namespace gangline::runner
