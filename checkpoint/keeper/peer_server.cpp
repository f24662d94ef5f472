#include "checkpoint/keeper/peer_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "base/log.h"
#include "checkpoint/checksum.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard.h"

namespace gangline::checkpoint {
namespace {

constexpr std::size_t kMostLines = 1024;
constexpr int kLookMs = 200;  // for the end

// Of one rank's shard, as the snapshot's header says it.
bool fits(const Manifest& part, const SnapshotOwner& owner, const KeeperMessage& message) {
    return part.shards.size() == 1 && part.shards[0].size == message.size && part.shards[0].rank == owner.rank && part.block_bytes == kBlockBytes &&
           part.step == message.step && part.attempt == owner.attempt;
}

}  // namespace

Result<std::unique_ptr<PeerServer>> PeerServer::listen(const std::string& host, Snapshots& snapshots) {
    KeeperAddress address{host, 0, make_secret()};
    auto listener = listen_tcp(host, address.port);
    if (!listener) return listener.error();
    return std::unique_ptr<PeerServer>(new PeerServer(std::move(*listener), std::move(address), snapshots));
}

PeerServer::PeerServer(Fd listener, KeeperAddress address, Snapshots& snapshots)
    : listener_(std::move(listener)), address_(std::move(address)), snapshots_(snapshots) {
    thread_ = std::thread([this] { run(); });
}

PeerServer::~PeerServer() {
    is_stopping_ = true;
    thread_.join();
    for (Served& one : served_) {
        if (const int fd = one.fd; fd >= 0 && !one.is_over) ::shutdown(fd, SHUT_RDWR);
    }
    for (Served& one : served_) one.thread.join();
}

void PeerServer::run() {
    while (!is_stopping_) {
        pollfd list{listener_.get(), POLLIN, 0};
        const bool has_caller = ::poll(&list, 1, kLookMs) > 0;
        for (auto one = served_.begin(); one != served_.end();) {
            if (!one->is_over) {
                ++one;
                continue;
            }
            one->thread.join();
            one = served_.erase(one);
        }
        if (!has_caller) continue;
        Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket || served_.size() >= kMostLines) continue;
        Served& served = served_.emplace_back();
        served.fd = socket.get();
        try {
            served.thread = std::thread([this, &served, taken = std::make_shared<Fd>(std::move(socket))] { serve(served, std::move(*taken)); });
        } catch (const std::system_error& error) {  // the user's limit of processes: the caller does without
            log_warn("peer_refused reason=\"{}\"", error.what());
            served_.pop_back();
        }
    }
}

void PeerServer::serve(Served& served, Fd socket) {
    {
        auto line = PeerLine::accept(std::move(socket), address_.secret);
        if (line) {
            const LineNumber number = snapshots_.open_line();
            SnapshotOwner owner;
            owner.is_elsewhere = true;
            bool is_lost = true;
            const auto served_well = serve_line(*line, number, owner, is_lost);
            if (!served_well) log_info("peer_line_over rank={} attempt={} reason=\"{}\"", owner.rank, owner.attempt, served_well.error().message);
            snapshots_.done(number);
            snapshots_.closed(number, owner, is_lost);
        } else {
            log_warn("peer_refused reason=\"{}\"", line.error().message);
        }
        served.fd = -1;  // before it is closed
    }
    served.is_over = true;
}

Result<void> PeerServer::serve_line(PeerLine& line, LineNumber number, SnapshotOwner& owner, bool& is_lost) {
    bool has_joined = false;
    while (!is_stopping_) {
        auto received = line.receive(kPeerSilent);
        if (!received) return received.error();
        if (!received->has_value()) return Error{Code::Unavailable, fmt::format("silent for {} s", to_ms(kPeerSilent) / 1000)};
        const KeeperMessage& message = (*received)->message;
        if (message.kind == KeeperKind::Join) {
            if (has_joined || (*received)->text.empty() || (job_ != 0 && message.job != job_)) return Error{Code::Refused, "it is of another job"};
            has_joined = true;
            owner = {message.rank, message.attempt, message.size, (*received)->text, true};
            continue;
        }
        if (!has_joined) return Error{Code::Refused, "it did not say whose it is"};
        Result<void> done;
        switch (message.kind) {
            case KeeperKind::Whole: done = take(line, number, owner, message); break;
            case KeeperKind::Durable: snapshots_.durable(number, {owner.rank, owner.attempt, message.step}); break;
            case KeeperKind::Find: done = give(line, number, message); break;
            case KeeperKind::Alive: break;
            case KeeperKind::Done: is_lost = false; return {};
            default: return Error{Code::Refused, "it said what no keeper says"};
        }
        if (!done) return done;
    }
    return {};
}

// Each block is checked as it comes: nothing counts as held that would not restore.
Result<void> PeerServer::take(PeerLine& line, LineNumber number, const SnapshotOwner& owner, const KeeperMessage& message) {
    KeeperMessage answer;
    answer.kind = KeeperKind::Refused;
    answer.step = message.step;
    constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 60;
    if (message.size == 0 || message.size > kMostBytes || message.part_size == 0 || message.part_size > kMostPartBytes) return Error{Code::Refused, "a snapshot of no sane size"};
    const Snapshots::Given given = snapshots_.want(number, owner, message.size + message.part_size);
    char* const memory = given.slot == 0 ? nullptr : given.memory->mapped();
    if (memory == nullptr) return line.send(answer, given.slot == 0 ? given.refused : "its memory cannot be mapped");
    answer.kind = KeeperKind::Slot;
    if (auto sent = line.send(answer); !sent) return sent;
    if (auto came = line.receive_bytes(memory + message.size, message.part_size); !came) return came;
    const auto part = parse(std::string_view(memory + message.size, message.part_size));
    std::string wrong;
    if (!part || !fits(*part, owner, message)) wrong = "its part of the manifest is none, or another's";
    for (std::uint64_t begin = 0; begin < message.size; begin += kBlockBytes) {
        const std::uint64_t size = std::min<std::uint64_t>(kBlockBytes, message.size - begin);
        if (auto came = line.receive_bytes(memory + begin, size); !came) return came;
        const auto block = static_cast<std::size_t>(begin / kBlockBytes);
        if (wrong.empty() && crc32c(memory + begin, size) != part->shards[0].block_crcs[block]) wrong = fmt::format("block {} came without its checksum", block);
    }
    answer.kind = wrong.empty() && snapshots_.whole(number, given.slot, message.step, message.size, message.part_size) ? KeeperKind::Held : KeeperKind::Refused;
    return line.send(answer, wrong);
}

Result<void> PeerServer::give(PeerLine& line, LineNumber number, const KeeperMessage& message) {
    KeeperMessage answer;
    answer.kind = KeeperKind::Refused;
    answer.step = message.step;
    const auto held = snapshots_.find(number, {message.rank, message.attempt, message.step});
    if (!held) return line.send(answer, "it is not here");
    answer.kind = KeeperKind::Found;
    answer.size = held->image_size;
    answer.part_size = held->part_size;
    auto sent = line.send(answer);
    if (sent) sent = line.send_memory(held->memory->fd(), held->image_size, held->part_size);
    if (sent && message.slot == 0) sent = line.send_memory(held->memory->fd(), 0, held->image_size);
    snapshots_.done(number);
    return sent;
}

}  // namespace gangline::checkpoint
