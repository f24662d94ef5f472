#include "checkpoint/keeper/keeper.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include <fmt/format.h>

#include "base/log.h"
#include "base/protocol/shepherd.pb.h"

namespace gangline::checkpoint {
namespace {

constexpr Duration kAnswerLimit = milliseconds(500);  // a rank that does not read loses its line
constexpr std::size_t kMostLines = 4096;
constexpr double kMostShare = 0.4;                    // of the memory that the node has to give

// Bytes that the node has to give, as the kernel reckons; 0 when it does not say.
std::uint64_t available_memory() {
    std::ifstream file("/proc/meminfo");
    std::string name;
    std::uint64_t kib = 0;
    for (std::string unit; file >> name >> kib; std::getline(file, unit)) {
        if (name == "MemAvailable:") return kib << 10;
    }
    return 0;
}

Result<Fd> make_memory(std::uint64_t size) {
    Fd memory(::memfd_create("gangline-snapshot", MFD_CLOEXEC));
    if (!memory) return errno_error("cannot make shared memory");
    if (::ftruncate(memory.get(), static_cast<off_t>(size)) != 0) return errno_error(fmt::format("cannot make {} bytes of shared memory", size));
    return memory;
}

}  // namespace

Keeper::Keeper(KeeperOptions options) : options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), needed_(now().steady) {
    persister_ = std::make_unique<Persister>([this](SlotNumber slot, const Result<void>& result) {
        if (!result) log_error("not_persisted slot={} reason=\"{}\"", slot, result.error().message);
        {
            const std::lock_guard lock(mutex_);
            persisted_.emplace_back(slot, result.ok());
        }
        const std::uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof one);
    });
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
        std::vector<LineNumber> agents;
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
        for (std::size_t i = 0; i < ranks.size(); ++i) {
            if (list[3 + i].revents != 0 && !serve(ranks[i], lines_.at(ranks[i]))) close(ranks[i]);
        }
        for (std::size_t i = 0; i < agents.size(); ++i) {
            if (list[3 + ranks.size() + i].revents != 0 && !serve(agents_lines_.at(agents[i]))) agents_lines_.erase(agents[i]);
        }
        if (list[0].revents != 0) accept_ranks();
        if (list[1].revents != 0) accept_agents();
    }
    persister_.reset();
    return 0;
}

bool Keeper::is_over(TimePoint at) {
    if (arenas_.is_persisting() && (!quit_by_ || at < *quit_by_)) {
        needed_ = at;
        return false;
    }
    if (quit_by_) return true;
    if (!lines_.empty() || !agents_lines_.empty()) needed_ = at;
    if (at - needed_ < options_.linger) return false;
    log_info("leaving reason=\"nobody came for {} s\"", to_ms(options_.linger) / 1000);
    return true;
}

void Keeper::collect() {
    std::uint64_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof count);
    const std::lock_guard lock(mutex_);
    for (const auto& [slot, is_durable] : persisted_) arenas_.persisted(slot, is_durable);
    persisted_.clear();
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
        lines_[next_line_++].socket = std::move(socket);
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
    if (message.kind == KeeperKind::Join) {
        if (rank.has_joined || packet.text.empty() || (job_ != 0 && message.job != job_)) return false;
        job_ = message.job;
        rank.has_joined = true;
        rank.rank = message.rank;
        rank.attempt = message.attempt;
        rank.most_bytes = message.size;
        rank.folder = packet.text;
        return true;
    }
    if (!rank.has_joined) return false;
    switch (message.kind) {
        case KeeperKind::Want: return on_want(line, rank, message.size);
        case KeeperKind::Whole:
            return message.part_size <= kMostPartBytes && arenas_.whole(line, message.slot, message.step, message.size, message.part_size);
        case KeeperKind::Durable:
            for (const SlotNumber slot : arenas_.durable(line, {rank.rank, rank.attempt, message.step})) memory_.erase(slot);
            return true;
        case KeeperKind::Find: return on_find(line, rank, message);
        case KeeperKind::Done: arenas_.done(line); return true;
        case KeeperKind::Join:
        case KeeperKind::Slot:
        case KeeperKind::Found:
        case KeeperKind::Refused: return false;
    }
    return false;
}

// Of what the node has to give and what is taken here already, so much; or what the job asks for, if that is less.
std::uint64_t Keeper::budget_for(const Rank& rank) const {
    const std::uint64_t available = available_memory();
    if (available == 0) return rank.most_bytes;
    const auto share = static_cast<std::uint64_t>(kMostShare * static_cast<double>(available + arenas_.bytes()));
    return rank.most_bytes == 0 ? share : std::min(rank.most_bytes, share);
}

bool Keeper::on_want(LineNumber line, const Rank& rank, std::uint64_t size) {
    const std::uint64_t budget = budget_for(rank);
    KeeperMessage answer;
    answer.kind = KeeperKind::Slot;
    if (size == 0 || size > std::numeric_limits<std::uint64_t>::max() / 4) return false;
    Arenas::Given given = arenas_.want(line, rank.rank, rank.attempt, size, budget);
    for (const SlotNumber slot : given.dropped) memory_.erase(slot);
    if (given.is_new) {
        auto memory = make_memory(size);
        if (memory) {
            memory_[given.slot] = std::move(*memory);
        } else {
            arenas_.forget(given.slot);
            given.slot = 0;
            given.refused = memory.error().message;
        }
    }
    answer.slot = given.slot;
    if (given.slot == 0) {
        answer.kind = KeeperKind::Refused;
        return send_message(rank.socket.get(), answer, given.refused, -1, kAnswerLimit).ok();
    }
    answer.size = arenas_.at(given.slot)->size;
    return send_message(rank.socket.get(), answer, {}, memory_.at(given.slot).get(), kAnswerLimit).ok();
}

bool Keeper::on_find(LineNumber line, const Rank& rank, const KeeperMessage& message) {
    KeeperMessage answer;
    const auto slot = arenas_.find(line, {message.rank, message.attempt, message.step});
    if (!slot) {
        answer.kind = KeeperKind::Refused;
        return send_message(rank.socket.get(), answer, "it is not here", -1, kAnswerLimit).ok();
    }
    answer.kind = KeeperKind::Found;
    answer.slot = *slot;
    answer.size = arenas_.at(*slot)->image_size;
    answer.part_size = arenas_.at(*slot)->part_size;
    return send_message(rank.socket.get(), answer, {}, memory_.at(*slot).get(), kAnswerLimit).ok();
}

void Keeper::close(LineNumber line) {
    const std::string folder = lines_.at(line).folder;
    for (const SlotNumber slot : arenas_.closed(line)) {
        const Arenas::Slot& held = *arenas_.at(slot);
        log_info("persisting rank={} attempt={} step={}", held.holds.rank, held.holds.attempt, held.holds.step);
        persister_->post({slot, Fd(::dup(memory_.at(slot).get())), held.image_size, held.part_size, folder});
    }
    lines_.erase(line);
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
        agents_lines_[next_line_++].socket = std::move(socket);
    }
}

bool Keeper::serve(Agent& agent) {
    const bool is_open = agent.reader.fill(agent.socket.get()).ok();
    while (auto frame = agent.reader.next()) {
        proto::ToShepherd message;
        if (!message.ParseFromString(*frame)) return false;
        if (message.has_quit() && !quit_by_) {
            quit_by_ = now().steady + options_.quit_limit;
            log_info("leaving reason=\"not needed any more\" persisting={}", arenas_.is_persisting());
        }
        if (!message.has_ping()) continue;
        proto::FromShepherd pong;
        pong.mutable_pong();
        agent.writer.push(pong.SerializeAsString());
    }
    return is_open && agent.writer.flush(agent.socket.get()).ok();
}

}  // namespace gangline::checkpoint
