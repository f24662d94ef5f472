#include "checkpoint/keeper/peer.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "base/check.h"
#include "checkpoint/checksum.h"

namespace gangline::checkpoint {
namespace {

constexpr std::size_t kMostSent = 1u << 20;  // at once
constexpr int kBacklog = 64;

using Nonce = std::array<std::uint8_t, 32>;
using Proof = std::array<std::uint8_t, crypto_auth_BYTES>;
static_assert(crypto_auth_KEYBYTES == sizeof(Secret));

constexpr std::string_view kKeepersWord = "gangline keeper 1";
constexpr std::string_view kCallersWord = "gangline caller 1";

Proof proof_of(const Secret& secret, std::string_view word, const Nonce& callers, const Nonce& keepers) {
    std::string text(word);
    text.append(reinterpret_cast<const char*>(callers.data()), callers.size());
    text.append(reinterpret_cast<const char*>(keepers.data()), keepers.size());
    Proof proof{};
    crypto_auth(proof.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size(), secret.data());
    return proof;
}

bool is_proof(const Proof& proof, const Secret& secret, std::string_view word, const Nonce& callers, const Nonce& keepers) {
    const Proof right = proof_of(secret, word, callers, keepers);
    return sodium_memcmp(right.data(), proof.data(), proof.size()) == 0;
}

void need_sodium() { CHECK(sodium_init() >= 0, "libsodium starts on every Linux"); }

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const std::string& host, std::uint16_t port, int flags) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
    return {found, &::freeaddrinfo};
}

void set_up(int socket) {
    const int on = 1;
    const unsigned limit_ms = static_cast<unsigned>(to_ms(kPeerStall));
    (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
}

}  // namespace

Secret make_secret() {
    need_sodium();
    Secret secret{};
    randombytes_buf(secret.data(), secret.size());
    return secret;
}

std::string to_text(const KeeperAddress& address) { return fmt::format("{} {} {}", address.host, address.port, to_hex(address.secret)); }

std::optional<KeeperAddress> parse_keeper_address(std::string_view text) {
    const std::size_t first = text.find(' ');
    const std::size_t second = first == std::string_view::npos ? first : text.find(' ', first + 1);
    if (second == std::string_view::npos || first == 0 || first > 255) return std::nullopt;
    KeeperAddress address;
    address.host = text.substr(0, first);
    const std::string_view port = text.substr(first + 1, second - first - 1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
    if (error != std::errc() || end != port.data() + port.size() || address.port == 0) return std::nullopt;
    if (!from_hex(text.substr(second + 1), address.secret)) return std::nullopt;
    return address;
}

Result<Fd> listen_tcp(const std::string& host, std::uint16_t& port) {
    const Addresses addresses = resolve(host, 0, AI_PASSIVE);
    for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
        Fd socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        sockaddr_storage bound{};
        socklen_t size = sizeof bound;
        if (!socket || ::bind(socket.get(), one->ai_addr, one->ai_addrlen) != 0 || ::listen(socket.get(), kBacklog) != 0 ||
            ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
            continue;
        }
        port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port : reinterpret_cast<sockaddr_in&>(bound).sin_port);
        return socket;
    }
    return Error{Code::Unavailable, fmt::format("cannot listen on the address '{}' of this node", host)};
}

// ---- who is there

Result<PeerLine> PeerLine::connect(const KeeperAddress& address) {
    need_sodium();
    const TimePoint until = now().steady + kPeerConnectLimit;
    const Addresses addresses = resolve(address.host, address.port, 0);
    std::string why = "it has no such address";
    for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
        Fd socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!socket) continue;
        set_up(socket.get());
        if (::connect(socket.get(), one->ai_addr, one->ai_addrlen) != 0 && errno != EINPROGRESS) {
            why = std::strerror(errno);
            continue;
        }
        PeerLine line(std::move(socket));
        if (auto waited = line.wait(POLLOUT, until, "nobody answers there"); !waited) return waited.error();
        int error = 0;
        socklen_t size = sizeof error;
        (void)::getsockopt(line.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
        if (error != 0) {
            why = std::strerror(error);
            continue;
        }
        Nonce mine{};
        randombytes_buf(mine.data(), mine.size());
        if (auto sent = line.send_some(mine.data(), mine.size(), 0); !sent) return sent.error();
        struct {
            Nonce nonce;
            Proof proof;
        } answer{};
        if (auto came = line.receive_by(&answer, sizeof answer, until); !came) return came.error();
        if (!is_proof(answer.proof, address.secret, kKeepersWord, mine, answer.nonce)) return Error{Code::Refused, "who answers there is not the keeper"};
        const Proof proof = proof_of(address.secret, kCallersWord, mine, answer.nonce);
        if (auto sent = line.send_some(proof.data(), proof.size(), 0); !sent) return sent.error();
        return line;
    }
    return Error{Code::Unavailable, fmt::format("cannot reach the keeper at {} port {}: {}", address.host, address.port, why)};
}

Result<PeerLine> PeerLine::accept(Fd socket, const Secret& secret) {
    set_up(socket.get());
    PeerLine line(std::move(socket));
    const TimePoint until = now().steady + kPeerConnectLimit;
    Nonce callers{};
    if (auto came = line.receive_by(callers.data(), callers.size(), until); !came) return came.error();
    struct {
        Nonce nonce;
        Proof proof;
    } answer{};
    randombytes_buf(answer.nonce.data(), answer.nonce.size());
    answer.proof = proof_of(secret, kKeepersWord, callers, answer.nonce);
    if (auto sent = line.send_some(&answer, sizeof answer, 0); !sent) return sent.error();
    Proof proof{};
    if (auto came = line.receive_by(proof.data(), proof.size(), until); !came) return came.error();
    if (!is_proof(proof, secret, kCallersWord, callers, answer.nonce)) return Error{Code::Refused, "who called does not know this keeper's secret"};
    return line;
}

// ---- bytes

Result<void> PeerLine::wait(short events, TimePoint until, const char* what) {
    for (;;) {
        pollfd one{socket_.get(), events, 0};
        const int ready = ::poll(&one, 1, left_ms(until));
        if (ready > 0) return {};
        if (ready == 0 && now().steady >= until) return Error{Code::Unavailable, what};
        if (ready < 0 && errno != EINTR) return errno_error("cannot wait for a keeper's line", Code::Unavailable);
    }
}

// With kPeerStall for each piece that the other side takes.
Result<void> PeerLine::send_some(const void* data, std::size_t size, int flags) {
    for (std::size_t sent = 0; sent < size;) {
        const ssize_t n = ::send(socket_.get(), static_cast<const char*>(data) + sent, std::min(kMostSent, size - sent), flags | MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            sent += static_cast<std::size_t>(n);
            continue;
        }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return errno_error("the line to a keeper broke", Code::Unavailable);
        if (auto waited = wait(POLLOUT, now().steady + kPeerStall, "the other keeper takes nothing"); !waited) return waited;
    }
    return {};
}

Result<void> PeerLine::receive_by(void* to, std::size_t size, TimePoint until) {
    for (std::size_t come = 0; come < size;) {
        const ssize_t n = ::recv(socket_.get(), static_cast<char*>(to) + come, size - come, MSG_DONTWAIT);
        if (n == 0) return Error{Code::Unavailable, "the line to a keeper is closed"};
        if (n > 0) {
            come += static_cast<std::size_t>(n);
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return errno_error("the line to a keeper broke", Code::Unavailable);
        if (auto waited = wait(POLLIN, until, "the other keeper sends nothing"); !waited) return waited;
    }
    return {};
}

Result<void> PeerLine::send_bytes(std::string_view bytes) { return send_some(bytes.data(), bytes.size(), 0); }

Result<void> PeerLine::receive_bytes(char* to, std::uint64_t size) {
    for (std::uint64_t come = 0; come < size;) {
        const std::uint64_t piece = std::min<std::uint64_t>(kMostSent, size - come);
        if (auto got = receive_by(to + come, piece, now().steady + kPeerStall); !got) return got;
        come += piece;
    }
    return {};
}

Result<void> PeerLine::send_memory(const Fd& memory, std::uint64_t begin, std::uint64_t size) {
    auto place = static_cast<off_t>(begin);
    const auto end = static_cast<off_t>(begin + size);
    while (place < end) {
        const ssize_t n = ::sendfile(socket_.get(), memory.get(), &place, std::min<std::size_t>(kMostSent, static_cast<std::size_t>(end - place)));
        if (n > 0) continue;
        if (n == 0) return Error{Code::Unavailable, "a snapshot's memory is shorter than was said"};
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return errno_error("the line to a keeper broke", Code::Unavailable);
        if (auto waited = wait(POLLOUT, now().steady + kPeerStall, "the other keeper takes nothing"); !waited) return waited;
    }
    return {};
}

// ---- frames

Result<void> PeerLine::send(const KeeperMessage& message, std::string_view text) {
    text = text.substr(0, kMostKeeperText);
    const std::uint64_t size = text.size();
    std::string frame(reinterpret_cast<const char*>(&message), sizeof message);
    frame.append(reinterpret_cast<const char*>(&size), sizeof size);
    frame.append(text);
    return send_bytes(frame);
}

Result<std::optional<PeerFrame>> PeerLine::receive(Duration limit) {
    pollfd one{socket_.get(), POLLIN, 0};
    if (::poll(&one, 1, left_ms(now().steady + limit)) == 0) return std::optional<PeerFrame>();
    struct {
        KeeperMessage message;
        std::uint64_t text_size = 0;
    } head;
    static_assert(sizeof head == sizeof(KeeperMessage) + sizeof(std::uint64_t));
    const TimePoint until = now().steady + kPeerStall;
    if (auto came = receive_by(&head, sizeof head, until); !came) return came.error();
    const KeeperMessage fresh;
    if (head.message.magic != fresh.magic || head.message.version != fresh.version || head.text_size > kMostKeeperText) {
        return Error{Code::Unavailable, "a keeper's line brought a frame that is none"};
    }
    PeerFrame frame{head.message, std::string(static_cast<std::size_t>(head.text_size), '\0')};
    if (auto came = receive_by(frame.text.data(), frame.text.size(), until); !came) return came.error();
    return std::optional<PeerFrame>(std::move(frame));
}

}  // namespace gangline::checkpoint
