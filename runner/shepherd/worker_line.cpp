#include "runner/shepherd/worker_line.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/framing.h"
#include "base/log.h"

namespace gangline::runner {
namespace {

constexpr std::size_t kMostMailBytes = 16u << 20;
constexpr std::size_t kMostConnections = 4096;

}  // namespace

std::string encode(const WorkerHeader& header, std::string_view payload) {
    WorkerHeader copy = header;
    copy.magic = kWorkerMagic;
    copy.version = kWorkerVersion;
    copy.size = static_cast<std::uint32_t>(payload.size());
    std::string packet(reinterpret_cast<const char*>(&copy), sizeof copy);
    packet.append(payload);
    return packet;
}

bool decode(std::string_view packet, WorkerFrame& frame) {
    if (packet.size() < sizeof(WorkerHeader)) return false;
    std::memcpy(&frame.header, packet.data(), sizeof(WorkerHeader));
    const WorkerHeader& header = frame.header;
    if (header.magic != kWorkerMagic || header.version != kWorkerVersion || header.size > kMostWorkerPayload) return false;
    if (header.size != packet.size() - sizeof(WorkerHeader)) return false;
    if (header.kind < static_cast<std::uint16_t>(WorkerKind::Join) || header.kind > static_cast<std::uint16_t>(kLastWorkerKind)) return false;
    frame.payload.assign(packet.substr(sizeof(WorkerHeader)));
    return true;
}

Result<std::unique_ptr<WorkerLine>> WorkerLine::start(Loop& loop, const std::string& name, std::uint32_t attempt,
                                                      std::uint32_t first, std::uint32_t count, WorkerEvents events) {
    auto listener = listen_abstract(name, SOCK_SEQPACKET);
    if (!listener) return listener.error();
    auto line = std::make_unique<WorkerLine>(loop, std::move(*listener), attempt, first, count, std::move(events));
    auto watched = loop.watch(line->listener_.get(), [self = line.get()](Ready) { self->accept_ranks(); });
    if (!watched) return watched.error();
    return line;
}

WorkerLine::WorkerLine(Loop& loop, Fd listener, std::uint32_t attempt, std::uint32_t first, std::uint32_t count,
                       WorkerEvents events)
    : loop_(loop), listener_(std::move(listener)), attempt_(attempt), first_(first), count_(count), events_(std::move(events)),
      buffer_(sizeof(WorkerHeader) + kMostWorkerPayload + 1, '\0') {}

WorkerLine::~WorkerLine() {
    for (const auto& [fd, connection] : connections_) loop_.forget(fd);
    loop_.forget(listener_.get());
}

void WorkerLine::accept_ranks() {
    for (;;) {
        Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!fd && errno == EINTR) continue;
        if (!fd) return;
        const auto peer = peer_credentials(fd.get());
        if (!peer || peer->uid != ::geteuid() || connections_.size() >= kMostConnections) {
            log_warn("worker_refused pid={} uid={}", peer ? peer->pid : 0, peer ? peer->uid : 0);
            continue;
        }
        const int number = fd.get();
        if (!loop_.watch(number, [this, number](Ready ready) { on_ready(number, ready); })) continue;
        auto connection = std::make_unique<Connection>();
        connection->fd = std::move(fd);
        connections_[number] = std::move(connection);
    }
}

void WorkerLine::on_ready(int fd, Ready ready) {
    const auto found = connections_.find(fd);
    if (found == connections_.end()) return;
    Connection& connection = *found->second;
    if (ready.writable) flush(connection);
    if (!ready.readable) return;
    for (;;) {
        const ssize_t n = ::recv(fd, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0 || !on_packet(connection, {buffer_.data(), static_cast<std::size_t>(n)})) return close(fd);
    }
}

bool WorkerLine::on_packet(Connection& connection, std::string_view packet) {
    WorkerFrame frame;
    if (!decode(packet, frame)) {
        log_warn("worker_packet_damaged rank={} bytes={}", connection.joined ? static_cast<int>(connection.rank) : -1, packet.size());
        return false;
    }
    const WorkerHeader& header = frame.header;
    if (header.kind == static_cast<std::uint16_t>(WorkerKind::Join)) {
        if (connection.joined) return header.rank == connection.rank;
        if (!holds(header.rank) || header.attempt != attempt_ || of_rank_.count(header.rank) != 0) {
            log_warn("worker_join_refused rank={} attempt={}", header.rank, header.attempt);
            return false;
        }
        connection.joined = true;
        connection.rank = header.rank;
        of_rank_[header.rank] = connection.fd.get();
        events_.joined(header.rank);
        flush(connection);
        return true;
    }
    if (!connection.joined || header.rank != connection.rank) {
        log_warn("worker_packet_refused rank={}", header.rank);
        return false;
    }
    events_.frame(frame);
    return true;
}

bool WorkerLine::send(std::uint32_t rank, std::string packet) {
    if (!holds(rank)) return false;
    Mail& mail = mail_[rank];
    if (mail.bytes + packet.size() > kMostMailBytes) {
        log_warn("worker_mail_full rank={} bytes={}", rank, mail.bytes);
        return false;
    }
    mail.bytes += packet.size();
    mail.packets.push_back(std::move(packet));
    const auto fd = of_rank_.find(rank);
    if (fd != of_rank_.end()) flush(*connections_[fd->second]);
    return true;
}

void WorkerLine::send_all(const WorkerHeader& header, std::string_view payload) {
    for (const auto& [rank, fd] : of_rank_) {
        WorkerHeader to = header;
        to.to_rank = rank;
        send(rank, encode(to, payload));
    }
}

// A broken connection is closed when it is read.
void WorkerLine::flush(Connection& connection) {
    Mail& mail = mail_[connection.rank];
    while (!mail.packets.empty()) {
        const std::string& packet = mail.packets.front();
        const ssize_t n = ::send(connection.fd.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        mail.bytes -= packet.size();
        mail.packets.pop_front();
    }
    const bool waiting = !mail.packets.empty();
    if (waiting != connection.wants_write) loop_.want(connection.fd.get(), true, waiting);
    connection.wants_write = waiting;
}

void WorkerLine::close(int fd) {
    const auto found = connections_.find(fd);
    if (found == connections_.end()) return;
    if (found->second->joined) of_rank_.erase(found->second->rank);
    loop_.forget(fd);
    connections_.erase(found);
}

}  // namespace gangline::runner
