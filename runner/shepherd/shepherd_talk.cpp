// What PMIx, the ranks' worker library and the other shepherds say, and who is told.
#include <cstring>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/commit_letter.h"
#include "base/log.h"
#include "runner/shepherd/shepherd.h"

namespace gangline::runner {
namespace {

constexpr std::size_t kMostFaults = 16;
constexpr std::size_t kMostFaultText = 1024;
constexpr std::size_t kMostEarlyRelays = 4096;
constexpr std::size_t kMostDamagedAtRest = 64;

std::string commit_result(const proto::CommitReply& reply) {
    CommitAnswer answer{reply.accepted(), {}, reply.keep_every(), reply.reason()};
    for (const proto::RestorePoint& point : reply.keep()) answer.keep.push_back({point.step(), point.attempt()});
    return encode(answer);
}

}  // namespace

RankGroup* Shepherd::group_of(std::uint32_t step_id) {
    const auto found = groups_.find(step_id);
    return found == groups_.end() ? nullptr : found->second.get();
}

RankGroup* Shepherd::group_of(const std::string& name_space) {
    for (const auto& [step_id, group] : groups_) {
        if (!group->name_space.empty() && group->name_space == name_space) return group.get();
    }
    return nullptr;
}

void Shepherd::add_fault(std::string text) {
    if (text.size() > kMostFaultText) text.resize(kMostFaultText);
    if (faults_.size() >= kMostFaults || std::find(faults_.begin(), faults_.end(), text) != faults_.end()) return;
    faults_.push_back(std::move(text));
    changed_ = true;
}

// ---- PMIx.

PmixEvents Shepherd::pmix_events() {
    PmixEvents events;
    events.connected = [this](const std::string& name_space, std::uint32_t rank) {
        RankGroup* group = group_of(name_space);
        if (group == nullptr) return;
        on_joined(*group, rank);
        if (group->step_id != 0) steps_->local_joined(group->step_id, rank);
    };
    events.aborted = [this](const std::string& name_space, std::uint32_t number, int code, const std::string& text) {
        RankGroup* group = group_of(name_space);
        LocalRank* rank = group == nullptr ? nullptr : group->find(number);
        if (rank == nullptr) return;
        rank->aborted = true;
        rank->abort_code = code;
        if (group->step_id == 0) output_->note({0, number}, fmt::format("rank {} called MPI_Abort({}) {}", number, code, text));
    };
    events.fence = [this](const std::string& key, std::string blob, bool partial) {
        // A rank of the command is dead: its report is out, and the order to stop is on its way. An answer would only
        // make the survivors fail with misleading words of their own.
        const std::string command = pmix_name_space(start_.cluster, id_, 0) + ":";
        if (partial && key.starts_with(command)) {
            log_info("fence_withheld key={}", key);
            return;
        }
        if (link_) return link_->fence(key, blob, partial);
        pmix_->answer_fence(key, blob, partial);
    };
    events.modex = [this](std::uint64_t request, const std::string& name_space, std::uint32_t rank) {
        if (link_) return link_->ask_modex(request, name_space, rank);
        pmix_->lookup_modex(request, name_space, rank);
    };
    events.modex_found = [this](std::uint64_t request, int status, const std::string& blob) {
        if (link_) return link_->answer_modex(request, status, blob);
        pmix_->answer_modex(request, status, blob);
    };
    events.help_text = [this](const std::string& text) {
        log_info("mpi_says {}", text);
        if (output_) output_->note({}, text);
    };
    return events;
}

void Shepherd::on_joined(RankGroup& group, std::uint32_t number) {
    LocalRank* rank = group.find(number);
    if (rank == nullptr || rank->report.state() != proto::RANK_STARTING) return;
    rank->report.set_state(proto::RANK_JOINED);
    changed_ = true;
}

// ---- The other shepherds.

GangEvents Shepherd::gang_events() {
    GangEvents events;
    events.fence_done = [this](const proto::FenceDone& done) {
        if (pmix_) pmix_->answer_fence(done.key(), done.blob(), done.failed());
    };
    events.modex_request = [this](std::uint64_t request, const std::string& name_space, std::uint32_t rank) {
        if (pmix_) pmix_->lookup_modex(request, name_space, rank);
    };
    events.modex_reply = [this](std::uint64_t request, int status, const std::string& blob) {
        if (pmix_) pmix_->answer_modex(request, status, blob);
    };
    events.relay = [this](const proto::WorkerRelay& relay) { on_relay(relay); };
    events.start_step = [this](const proto::StartStep& step) {
        if (steps_) steps_->on_start_step(step);
    };
    events.stop_step = [this](const proto::StopStep& step) {
        if (steps_) steps_->on_stop_step(step);
    };
    events.step_exit = [this](std::uint32_t node_index, const proto::StepExit& exit) {
        if (steps_) steps_->on_step_exit(node_index, exit);
    };
    events.step_output = [this](std::uint32_t node_index, const proto::StepOutput& output) {
        if (steps_) steps_->on_step_output(node_index, output);
    };
    return events;
}

// From another node's rank. It may come before our own ranks are started.
void Shepherd::on_relay(const proto::WorkerRelay& relay) {
    WorkerFrame frame;
    if (!decode(relay.frame(), frame) || frame.header.kind != static_cast<std::uint16_t>(WorkerKind::Relay)) return;
    RankGroup* group = group_of(relay.step_id());
    if (group != nullptr && group->workers != nullptr) {
        group->workers->send(relay.to_rank(), relay.frame());
    } else if (phase_ < proto::ATTEMPT_STOPPING && early_relays_.size() < kMostEarlyRelays) {
        early_relays_.push_back(relay);
    }
}

void Shepherd::deliver_early(RankGroup& group) {
    std::erase_if(early_relays_, [&](const proto::WorkerRelay& relay) {
        if (relay.step_id() != group.step_id) return false;
        group.workers->send(relay.to_rank(), relay.frame());
        return true;
    });
}

// ---- The ranks' worker library.

WorkerEvents Shepherd::worker_events(std::uint32_t step_id) {
    WorkerEvents events;
    events.joined = [this, step_id](std::uint32_t rank) {
        if (RankGroup* group = group_of(step_id)) on_joined(*group, rank);
    };
    events.frame = [this, step_id](const WorkerFrame& frame) { on_worker_frame(step_id, frame); };
    return events;
}

void Shepherd::on_worker_frame(std::uint32_t step_id, const WorkerFrame& frame) {
    RankGroup* group = group_of(step_id);
    if (group == nullptr) return;
    const WorkerHeader& header = frame.header;
    proto::FromShepherd message;
    switch (static_cast<WorkerKind>(header.kind)) {
        case WorkerKind::Relay:
            if (group->workers->holds(header.to_rank)) {
                group->workers->send(header.to_rank, encode(header, frame.payload));
            } else if (link_) {
                proto::WorkerRelay relay;
                relay.set_to_rank(header.to_rank);
                relay.set_frame(encode(header, frame.payload));
                relay.set_step_id(step_id);
                link_->send_relay(pmix_name_space(start_.cluster, id_, step_id), std::move(relay));
            }
            return;
        case WorkerKind::Commit: return on_commit(step_id, frame);
        case WorkerKind::Damaged:
        case WorkerKind::DamagedAtRest: {
            const bool at_rest = static_cast<WorkerKind>(header.kind) == WorkerKind::DamagedAtRest;
            proto::CheckpointDamaged& damaged = *message.mutable_damaged();
            *damaged.mutable_id() = id_;
            damaged.mutable_checkpoint()->set_step(header.step);
            damaged.mutable_checkpoint()->set_attempt(header.attempt);
            damaged.set_what(printable(frame.payload.substr(0, kMostFaultText)));
            damaged.set_rank(header.rank);
            damaged.set_at_rest(at_rest);
            if (!at_rest) damaged_ = message;  // told again with each report: this one may be lost
            if (at_rest && damaged_at_rest_.size() < kMostDamagedAtRest) damaged_at_rest_.push_back(message);
            return tell_coordinator(message);
        }
        case WorkerKind::Fault: {
            proto::JobFault& fault = *message.mutable_fault();
            *fault.mutable_id() = id_;
            fault.set_rank(header.rank);
            fault.set_what(printable(frame.payload.substr(0, kMostFaultText)));
            add_fault(fault.what());  // Also in each report from now on: this message may be lost.
            return tell_coordinator(message);
        }
        case WorkerKind::Keeper: return on_keeper_wanted(step_id, frame);
        case WorkerKind::Snapshot:
        case WorkerKind::Replica:
            if (LocalRank* rank = group->find(header.rank); rank != nullptr && header.attempt == id_.attempt()) {
                if (static_cast<WorkerKind>(header.kind) == WorkerKind::Replica) {
                    rank->report.set_replica_step(header.step);
                } else if (header.step == 0) {
                    rank->report.clear_snapshot_step();
                } else {
                    rank->report.set_snapshot_step(header.step);
                }
                changed_ = true;
            }
            return;
        case WorkerKind::Join:
        case WorkerKind::CommitResult:
        case WorkerKind::StopSoon:
        case WorkerKind::Finished: return;
    }
}

// The agent knows, and starts one; while it is silent the rank does without.
void Shepherd::on_keeper_wanted(std::uint32_t step_id, const WorkerFrame& frame) {
    if (frame.payload.size() != 1) return;
    keeper_askers_.emplace_back(step_id, frame.header.rank);
    proto::FromShepherd message;
    message.mutable_keeper()->set_start(frame.payload[0] != 0);
    agent_->send(message);
}

void Shepherd::on_keeper(const proto::ToShepherd::KeeperIs& keeper) {
    WorkerHeader header;
    header.kind = static_cast<std::uint16_t>(WorkerKind::Keeper);
    header.attempt = id_.attempt();
    for (const auto& [step_id, rank] : std::exchange(keeper_askers_, {})) {
        RankGroup* group = group_of(step_id);
        if (group != nullptr && group->workers != nullptr) group->workers->send(rank, encode(header, keeper.socket()));
    }
}

void Shepherd::on_commit(std::uint32_t step_id, const WorkerFrame& frame) {
    const auto letter = decode_commit(frame.payload);
    if (frame.header.rank != 0 || !letter) {
        log_warn("commit_refused rank={} bytes={}", frame.header.rank, frame.payload.size());
        return;
    }
    proto::CommitRequest& commit = commits_[{step_id, frame.header.step}];
    commit.Clear();
    *commit.mutable_id() = id_;
    commit.set_step(frame.header.step);
    commit.set_manifest_sha256(letter->manifest_sha256);
    commit.set_bytes(letter->bytes);
    if (frame.header.attempt != id_.attempt()) commit.set_written_by(frame.header.attempt);
    if (letter->metric) commit.set_metric(*letter->metric);
    for (const MarkedCheckpoint& one : letter->marks) {
        proto::CheckpointMark& mark = *commit.add_marks();
        mark.set_step(one.step);
        mark.set_attempt(one.attempt);
        mark.set_pinned(one.is_pinned);
        mark.set_verified(one.is_verified);
    }
    proto::FromShepherd message;
    *message.mutable_commit() = commit;
    tell_coordinator(message);
}

void Shepherd::on_commit_reply(const proto::CommitReply& reply) {
    if (!is_ours(reply.id())) return;
    const auto found = std::find_if(commits_.begin(), commits_.end(), [&](const auto& one) { return one.second.step() == reply.step(); });
    if (found == commits_.end()) return;
    RankGroup* group = group_of(found->first.first);
    commits_.erase(found);
    if (group == nullptr || group->workers == nullptr) return;
    WorkerHeader header;
    header.kind = static_cast<std::uint16_t>(WorkerKind::CommitResult);
    header.step = reply.step();
    header.attempt = id_.attempt();
    group->workers->send(0, encode(header, commit_result(reply)));
}

void Shepherd::tell_coordinator(const proto::FromShepherd& message) {
    agent_->send(message);
    if (!own_line_) return;
    proto::NodeMessage own;
    if (message.has_commit()) *own.mutable_commit() = message.commit();
    if (message.has_damaged()) *own.mutable_damaged() = message.damaged();
    if (message.has_fault()) *own.mutable_fault() = message.fault();
    own_line_->send(std::move(own));
}

}  // namespace gangline::runner
