#include "base/framing.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include <fmt/format.h>

namespace gangline {
namespace {

Result<sockaddr_un> abstract_address(const std::string& name, socklen_t& length) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (name.empty() || name.size() + 1 > sizeof address.sun_path) {
        return Error{Code::InvalidArgument,
                     fmt::format("socket name '{}' must have 1 to {} bytes", name, sizeof address.sun_path - 1)};
    }
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    return address;
}

}  // namespace

Result<void> FrameReader::fill(int fd) {
    char chunk[65536];
    for (;;) {
        const ssize_t n = ::recv(fd, chunk, sizeof chunk, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (n <= 0) return Error{Code::Unavailable, "the peer has closed the connection"};
        buffer_.append(chunk, static_cast<std::size_t>(n));
        if (static_cast<std::size_t>(n) < sizeof chunk) break;
    }
    if (buffer_.size() >= 4) {
        std::uint32_t length = 0;
        std::memcpy(&length, buffer_.data(), 4);
        if (length > kMostFrame) {
            return Error{Code::InvalidArgument, fmt::format("a frame of {} bytes is over the limit", length)};
        }
    }
    return {};
}

std::optional<std::string> FrameReader::next() {
    std::uint32_t length = 0;
    if (buffer_.size() < 4) return std::nullopt;
    std::memcpy(&length, buffer_.data(), 4);
    if (length > kMostFrame || buffer_.size() < 4 + std::size_t{length}) return std::nullopt;
    std::string frame = buffer_.substr(4, length);
    buffer_.erase(0, 4 + std::size_t{length});
    return frame;
}

void FrameWriter::push(std::string_view frame) {
    CHECK(frame.size() <= kMostFrame, "a frame fits its length limit");
    const auto length = static_cast<std::uint32_t>(frame.size());
    buffer_.append(reinterpret_cast<const char*>(&length), 4);
    buffer_.append(frame);
}

Result<void> FrameWriter::flush(int fd) {
    while (!buffer_.empty()) {
        const ssize_t n = ::send(fd, buffer_.data(), buffer_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
        if (n < 0) return errno_error("cannot send", Code::Unavailable);
        buffer_.erase(0, static_cast<std::size_t>(n));
    }
    return {};
}

Result<Fd> listen_abstract(const std::string& name, int type) {
    socklen_t length = 0;
    auto address = abstract_address(name, length);
    if (!address) return address.error();
    Fd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return errno_error("cannot make a unix socket");
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), length) != 0) {
        return errno_error("cannot bind the abstract socket " + name);
    }
    if (::listen(fd.get(), 128) != 0) return errno_error("cannot listen on the abstract socket " + name);
    return fd;
}

Result<Fd> connect_abstract(const std::string& name, int type) {
    socklen_t length = 0;
    auto address = abstract_address(name, length);
    if (!address) return address.error();
    Fd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return errno_error("cannot make a unix socket");
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), length) != 0) {
        return errno_error("cannot connect to the abstract socket " + name, Code::Unavailable);
    }
    return fd;
}

Result<PeerCredentials> peer_credentials(int fd) {
    ucred credentials{};
    socklen_t size = sizeof credentials;
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
        return errno_error("cannot read the peer's identity");
    }
    return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

}  // namespace gangline
