#include "runner/worker/line.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/quiet_thread.h"
#include "base/time.h"

namespace gangline {
namespace {

constexpr int kSendLimitMs = 5000;
constexpr seconds kAppearLimit{30};

Result<void> send_packet(int fd, const WorkerHeader& header, std::string_view payload) {
    std::array<iovec, 2> parts{iovec{const_cast<WorkerHeader*>(&header), sizeof header},
                               iovec{const_cast<char*>(payload.data()), payload.size()}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = payload.empty() ? 1 : 2;
    for (;;) {
        if (::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return {};
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return errno_error("the line of this rank is broken", Code::Unavailable);
        pollfd wait{fd, POLLOUT, 0};
        if (::poll(&wait, 1, kSendLimitMs) == 0) {
            return Error{Code::Unavailable, fmt::format("the line of this rank took nothing for {} s", kSendLimitMs / 1000)};
        }
    }
}

// One packet, if there is a sane one. Unavailable: the connection is over.
struct Packet {
    WorkerHeader header;
    std::string payload;
};
Result<std::optional<Packet>> receive_packet(int fd) {
    thread_local std::vector<char> buffer(sizeof(WorkerHeader) + kMostWorkerPayload);
    const ssize_t n = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return std::optional<Packet>();
    if (n <= 0) return Error{Code::Unavailable, "the peer has closed the line"};
    Packet packet;
    const auto size = static_cast<std::size_t>(n);
    if (size >= sizeof packet.header) std::memcpy(&packet.header, buffer.data(), sizeof packet.header);
    if (size < sizeof packet.header || packet.header.magic != kWorkerMagic || packet.header.version != kWorkerVersion ||
        packet.header.size > kMostWorkerPayload || size != sizeof packet.header + packet.header.size) {
        return Error{Code::Unavailable, "the peer sent a frame that is none"};
    }
    packet.payload.assign(buffer.data() + sizeof packet.header, packet.header.size);
    return std::optional<Packet>(std::move(packet));
}

Result<WorkerHeader> header_of(const Letter& letter, std::uint32_t rank) {
    if (letter.payload.size() > kMostWorkerPayload) {
        return Error{Code::InvalidArgument, fmt::format("a letter of {} bytes, at most {} are possible", letter.payload.size(), kMostWorkerPayload)};
    }
    WorkerHeader header;
    header.magic = kWorkerMagic;
    header.version = kWorkerVersion;
    header.kind = static_cast<std::uint16_t>(letter.kind);
    header.rank = rank;
    header.to_rank = letter.to_rank;
    header.step = letter.step;
    header.attempt = letter.attempt;
    header.size = static_cast<std::uint32_t>(letter.payload.size());
    return header;
}

// One socket and the thread that reads it.
class Connection : public Line {
  public:
    Connection(Fd fd, std::uint32_t rank, Receive receive)
        : fd_(std::move(fd)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), rank_(rank), receive_(std::move(receive)) {
        thread_ = quiet_thread([this] { run(); });
    }
    ~Connection() override {
        const std::uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof one);
        thread_.join();
    }
    Result<void> send(const Letter& letter) override {
        const auto header = header_of(letter, rank_);
        if (!header) return header.error();
        const std::lock_guard lock(mutex_);
        return send_packet(fd_.get(), *header, letter.payload);
    }

  private:
    void run() {
        for (;;) {
            std::array<pollfd, 2> wait{pollfd{fd_.get(), POLLIN, 0}, pollfd{wake_.get(), POLLIN, 0}};
            if (::poll(wait.data(), wait.size(), -1) < 0) continue;  // woken by the destructor
            if (wait[1].revents != 0) return;
            const auto packet = receive_packet(fd_.get());
            if (!packet) return;
            if (packet->has_value()) receive_((*packet)->header, (*packet)->payload);
        }
    }

    Fd fd_;
    Fd wake_;
    std::uint32_t rank_;
    Receive receive_;
    std::mutex mutex_;
    std::thread thread_;
};

Result<std::unique_ptr<Line>> connect(const std::string& name, std::uint32_t rank, std::uint32_t attempt, Line::Receive receive) {
    auto fd = connect_abstract(name, SOCK_SEQPACKET);
    if (!fd) return fd.error();
    const auto peer = peer_credentials(fd->get());
    if (!peer || (peer->uid != ::geteuid() && peer->uid != 0)) {
        return Error{Code::Unavailable, fmt::format("the socket {} belongs to another user", name)};
    }
    auto line = std::make_unique<Connection>(std::move(*fd), rank, std::move(receive));
    auto joined = line->send({WorkerKind::Join, 0, static_cast<std::uint64_t>(::getpid()), attempt, {}});
    if (!joined) return joined.error();
    return std::unique_ptr<Line>(std::move(line));
}

// Alone, rank > 0: connects when there is something to say, because rank 0 may come later.
class Spoke : public Line {
  public:
    Spoke(std::string name, std::uint32_t rank, Receive receive) : name_(std::move(name)), rank_(rank), receive_(std::move(receive)) {}
    Result<void> send(const Letter& letter) override {
        const std::lock_guard lock(mutex_);
        const TimePoint limit = now().steady + kAppearLimit;
        while (line_ == nullptr) {
            auto line = connect(name_, rank_, letter.attempt, receive_);
            if (line) line_ = std::move(*line);
            if (line_ != nullptr) break;
            if (now().steady > limit) {
                return Error{Code::Unavailable, fmt::format("rank 0 cannot be reached from here ({}); outside Gangline all ranks that save "
                                                            "must be on one host: use `gangline run`",
                                                            line.error().message)};
            }
            std::this_thread::sleep_for(milliseconds(10));
        }
        return line_->send(letter);
    }

  private:
    std::string name_;
    std::uint32_t rank_;
    Receive receive_;
    std::mutex mutex_;
    std::unique_ptr<Line> line_;
};

// Alone, rank 0: takes the letters of all others.
class Hub : public Line {
  public:
    Hub(Fd listener, const Place& place, Receive receive)
        : listener_(std::move(listener)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), size_(place.size), receive_(std::move(receive)) {
        thread_ = quiet_thread([this] { run(); });
    }
    ~Hub() override {
        const std::uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof one);
        thread_.join();
    }
    Result<void> send(const Letter& letter) override {
        const auto header = header_of(letter, 0);
        if (!header) return header.error();
        const std::lock_guard lock(mutex_);
        const auto peer = peers_.find(letter.to_rank);
        if (peer == peers_.end()) return Error{Code::Unavailable, fmt::format("rank {} is not connected", letter.to_rank)};
        return send_packet(peer->second, *header, letter.payload);
    }

  private:
    void run() {
        std::vector<Fd> clients;
        std::map<int, std::uint32_t> ranks;
        for (;;) {
            std::vector<pollfd> wait{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
            for (const Fd& client : clients) wait.push_back({client.get(), POLLIN, 0});
            if (::poll(wait.data(), wait.size(), -1) < 0) continue;
            if (wait[0].revents != 0) return;
            for (std::size_t i = clients.size(); i-- > 0;) {
                if (wait[i + 2].revents != 0 && !serve(clients[i].get(), ranks)) {
                    forget(clients[i].get(), ranks);
                    clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(i));
                }
            }
            if (wait[1].revents == 0) continue;
            Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
            const auto peer = client ? peer_credentials(client.get()) : Result<PeerCredentials>(Error{});
            if (peer && peer->uid == ::geteuid() && clients.size() < size_) clients.push_back(std::move(client));
        }
    }
    bool serve(int fd, std::map<int, std::uint32_t>& ranks) {
        const auto packet = receive_packet(fd);
        if (!packet) return false;
        if (!packet->has_value()) return true;
        const WorkerHeader& header = (*packet)->header;
        const auto known = ranks.find(fd);
        if (known == ranks.end()) {
            if (header.kind != static_cast<std::uint16_t>(WorkerKind::Join) || header.rank == 0 || header.rank >= size_) return false;
            const std::lock_guard lock(mutex_);
            if (!peers_.emplace(header.rank, fd).second) return false;
            ranks[fd] = header.rank;
            return true;
        }
        if (header.rank != known->second) return false;
        receive_(header, (*packet)->payload);
        return true;
    }
    void forget(int fd, std::map<int, std::uint32_t>& ranks) {
        const std::lock_guard lock(mutex_);
        if (const auto known = ranks.find(fd); known != ranks.end()) {
            peers_.erase(known->second);
            ranks.erase(known);
        }
    }

    Fd listener_;
    Fd wake_;
    std::uint32_t size_;
    Receive receive_;
    std::mutex mutex_;
    std::map<std::uint32_t, int> peers_;  // rank -> its socket, open while it is listed
    std::thread thread_;
};

class Nobody : public Line {  // alone, a gang of one
  public:
    Result<void> send(const Letter&) override { return Error{Code::Unavailable, "nobody else is here"}; }
};

}  // namespace

Result<std::unique_ptr<Line>> Line::open(const Place& place, Receive receive) {
    if (!place.is_alone) return connect(place.worker_socket, place.rank, place.attempt, std::move(receive));
    if (place.size == 1) return std::unique_ptr<Line>(std::make_unique<Nobody>());
    if (place.rank > 0) return std::unique_ptr<Line>(std::make_unique<Spoke>(place.worker_socket, place.rank, std::move(receive)));
    auto listener = listen_abstract(place.worker_socket, SOCK_SEQPACKET);
    if (!listener) return listener.error();
    return std::unique_ptr<Line>(std::make_unique<Hub>(std::move(*listener), place, std::move(receive)));
}

}  // namespace gangline
