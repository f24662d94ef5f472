#include "checkpoint/keeper/keeper.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/log.h"
#include "base/protocol/shepherd.pb.h"

namespace gangline::checkpoint {
namespace {

constexpr Duration kAnswerLimit = milliseconds(500);  // a rank that does not read loses its line
constexpr std::size_t kMostLines = 4096;

}  // namespace

Keeper::Keeper(KeeperOptions options)
    : options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), needed_(now().steady), snapshots_([this] { wake(); }) {
    auto door = PeerServer::listen(options_.address, snapshots_);
    if (door) {
        door_ = std::move(*door);
    } else {
        log_warn("no_replicas reason=\"{}\"", door.error().message);
    }
}

Result<std::unique_ptr<Keeper>> Keeper::make(KeeperOptions options) {
    auto ranks = listen_abstract(ranks_socket(options.name), SOCK_SEQPACKET);
    if (!ranks) return ranks.error();
    std::unique_ptr<Keeper> keeper(new Keeper(std::move(options)));
    keeper->ranks_ = std::move(*ranks);
    return keeper;
}

int Keeper::run() {
    while (!is_over(now().steady)) {
        std::vector<pollfd> list = {{ranks_.get(), POLLIN, 0}, {options_.agents.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
        std::vector<LineNumber> ranks;
        std::vector<std::uint64_t> agents;
        for (const auto& [number, rank] : lines_) {
            list.push_back({rank.socket.get(), POLLIN, 0});
            ranks.push_back(number);
        }
        for (const auto& [number, agent] : agents_lines_) {
            list.push_back({agent.socket.get(), static_cast<short>(agent.writer.empty() ? POLLIN : POLLIN | POLLOUT), 0});
            agents.push_back(number);
        }
        if (::poll(list.data(), list.size(), 1000) < 0 && errno != EINTR) return 1;
        if (list[2].revents != 0) collect();
        snapshots_.try_again(now().steady);
        for (std::size_t i = 0; i < ranks.size(); ++i) {
            const auto rank = lines_.find(ranks[i]);
            if (rank != lines_.end() && list[3 + i].revents != 0 && !serve(ranks[i], rank->second)) close(ranks[i]);
        }
        for (std::size_t i = 0; i < agents.size(); ++i) {
            if (list[3 + ranks.size() + i].revents != 0 && !serve(agents_lines_.at(agents[i]))) agents_lines_.erase(agents[i]);
        }
        if (list[0].revents != 0) accept_ranks();
        if (list[1].revents != 0) accept_agents();
    }
    replicator_.reset();
    door_.reset();
    return 0;
}

bool Keeper::is_over(TimePoint at) {
    if (snapshots_.is_persisting() && (!quit_by_ || at < *quit_by_)) {
        needed_ = at;
        return false;
    }
    if (quit_by_) return true;
    if (!lines_.empty() || !agents_lines_.empty()) needed_ = at;
    if (at - needed_ < options_.linger) return false;
    log_info("leaving reason=\"nobody came for {} s\"", to_ms(options_.linger) / 1000);
    return true;
}

void Keeper::wake() {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
}

void Keeper::collect() {
    std::uint64_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof count);
    std::vector<std::pair<LineNumber, std::uint64_t>> replicated;
    {
        const std::lock_guard lock(mutex_);
        replicated.swap(replicated_);
    }
    for (const auto& [line, step] : replicated) {
        const auto rank = lines_.find(line);
        if (rank == lines_.end()) continue;
        KeeperMessage held;
        held.kind = KeeperKind::Held;
        held.step = step;
        if (!send_message(rank->second.socket.get(), held, {}, -1, kAnswerLimit)) close(line);
    }
}

// ---- ranks

void Keeper::accept_ranks() {
    for (;;) {
        Fd socket(::accept4(ranks_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket && errno == EINTR) continue;
        if (!socket) return;
        const auto peer = peer_credentials(socket.get());
        if (!peer || peer->uid != ::geteuid() || lines_.size() >= kMostLines) {
            log_warn("rank_refused pid={} uid={}", peer ? peer->pid : 0, peer ? peer->uid : 0);
            continue;
        }
        lines_[snapshots_.open_line()].socket = std::move(socket);
    }
}

bool Keeper::serve(LineNumber line, Rank& rank) {
    for (;;) {
        const auto packet = receive_message(rank.socket.get(), Duration{0});
        if (!packet) return false;
        if (!packet->has_value()) return true;
        if (!on_message(line, rank, **packet)) return false;
    }
}

bool Keeper::on_message(LineNumber line, Rank& rank, const KeeperPacket& packet) {
    const KeeperMessage& message = packet.message;
    if (message.kind == KeeperKind::Join) return on_join(rank, packet);
    if (!rank.has_joined) return false;
    const SnapshotId id{rank.owner.rank, rank.owner.attempt, message.step};
    switch (message.kind) {
        case KeeperKind::Want: return on_want(line, rank, message.size);
        case KeeperKind::Whole:
            if (message.part_size > kMostPartBytes || !snapshots_.whole(line, message.slot, message.step, message.size, message.part_size)) return false;
            if (replicator_ != nullptr) replicator_->whole(id, message.slot);
            return true;
        case KeeperKind::Durable:
            snapshots_.durable(line, id);
            if (replicator_ != nullptr) replicator_->durable(id);
            return true;
        case KeeperKind::Find: return on_find(line, rank, message);
        case KeeperKind::Done: snapshots_.done(line); return true;
        case KeeperKind::Where: return on_where(rank);
        case KeeperKind::Peer: return on_peer(line, rank, packet.text);
        default: return false;
    }
}

bool Keeper::on_join(Rank& rank, const KeeperPacket& packet) {
    const KeeperMessage& message = packet.message;
    if (rank.has_joined || packet.text.empty() || (job_ != 0 && message.job != job_)) return false;
    rank.has_joined = true;
    rank.owner = {message.rank, message.attempt, message.size, packet.text, false};
    if (replicator_ != nullptr || quit_by_) return true;
    job_ = message.job;
    if (door_ != nullptr) door_->set_job(job_);
    replicator_ = std::make_unique<Replicator>(snapshots_, job_, [this](LineNumber line, std::uint64_t step) {
        {
            const std::lock_guard lock(mutex_);
            replicated_.emplace_back(line, step);
        }
        wake();
    });
    return true;
}

bool Keeper::on_want(LineNumber line, const Rank& rank, std::uint64_t size) {
    if (size == 0 || size > std::numeric_limits<std::uint64_t>::max() / 4) return false;
    const Snapshots::Given given = snapshots_.want(line, rank.owner, size);
    KeeperMessage answer;
    answer.kind = given.slot == 0 ? KeeperKind::Refused : KeeperKind::Slot;
    answer.slot = given.slot;
    answer.size = given.size;
    return send_message(rank.socket.get(), answer, given.refused, given.slot == 0 ? -1 : given.memory->fd().get(), kAnswerLimit).ok();
}

bool Keeper::on_find(LineNumber line, const Rank& rank, const KeeperMessage& message) {
    KeeperMessage answer;
    const auto held = snapshots_.find(line, {message.rank, message.attempt, message.step});
    if (!held) {
        answer.kind = KeeperKind::Refused;
        return send_message(rank.socket.get(), answer, "it is not here", -1, kAnswerLimit).ok();
    }
    answer.kind = KeeperKind::Found;
    answer.slot = held->slot;
    answer.size = held->image_size;
    answer.part_size = held->part_size;
    return send_message(rank.socket.get(), answer, {}, held->memory->fd().get(), kAnswerLimit).ok();
}

bool Keeper::on_where(const Rank& rank) {
    KeeperMessage answer;
    answer.kind = door_ == nullptr ? KeeperKind::Refused : KeeperKind::Here;
    return send_message(rank.socket.get(), answer, door_ == nullptr ? "other nodes cannot reach it" : to_text(door_->address()), -1, kAnswerLimit).ok();
}

bool Keeper::on_peer(LineNumber line, const Rank& rank, const std::string& text) {
    const auto peer = parse_keeper_address(text);
    if (!peer) return false;
    if (replicator_ == nullptr) return true;
    replicator_->set_peer(line, rank.owner, *peer);
    if (const auto newest = snapshots_.newest(line)) replicator_->whole(newest->first, newest->second);
    return true;
}

void Keeper::close(LineNumber line) {
    const auto rank = lines_.find(line);
    if (rank->second.has_joined) snapshots_.closed(line, rank->second.owner, false);
    lines_.erase(rank);
}

// ---- the agent

void Keeper::accept_agents() {
    for (;;) {
        Fd socket(::accept4(options_.agents.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket && errno == EINTR) continue;
        if (!socket) return;
        const auto peer = peer_credentials(socket.get());
        if (!peer || (peer->uid != options_.agent_uid && peer->uid != 0 && peer->uid != ::geteuid())) {
            log_warn("agent_refused uid={}", peer ? peer->uid : 0);
            continue;
        }
        agents_lines_[snapshots_.open_line()].socket = std::move(socket);
    }
}

bool Keeper::serve(Agent& agent) {
    const bool is_open = agent.reader.fill(agent.socket.get()).ok();
    while (auto frame = agent.reader.next()) {
        proto::ToShepherd message;
        if (!message.ParseFromString(*frame)) return false;
        if (message.has_quit() && !quit_by_) {
            quit_by_ = now().steady + options_.quit_limit;
            replicator_.reset();  // the others learn that what this node had comes to disk from here
            snapshots_.persist_rest();
            log_info("leaving reason=\"not needed any more\" persisting={}", snapshots_.is_persisting());
        }
        if (!message.has_ping()) continue;
        proto::FromShepherd pong;
        pong.mutable_pong();
        agent.writer.push(pong.SerializeAsString());
    }
    return is_open && agent.writer.flush(agent.socket.get()).ok();
}

}  // namespace gangline::checkpoint
