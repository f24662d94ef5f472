#include "checkpoint/keeper/message.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace gangline::checkpoint {
namespace {

union FdSpace {  // aligned as the kernel wants it
    cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

int left_ms(TimePoint until) { return static_cast<int>(std::clamp<std::int64_t>(to_ms(until - now().steady) + 1, 0, 600'000)); }

std::string ranks_socket(const std::string& keeper_socket) { return keeper_socket + "-ranks"; }

Result<void> send_message(int socket, const KeeperMessage& message, std::string_view text, int fd, Duration limit) {
    KeeperMessage copy = message;
    text = text.substr(0, kMostKeeperText);
    std::array<iovec, 2> parts{iovec{&copy, sizeof copy}, iovec{const_cast<char*>(text.data()), text.size()}};
    msghdr packet{};
    packet.msg_iov = parts.data();
    packet.msg_iovlen = text.empty() ? 1 : 2;
    FdSpace space{};
    if (fd >= 0) {
        packet.msg_control = space.bytes;
        packet.msg_controllen = sizeof space.bytes;
        cmsghdr* const control = CMSG_FIRSTHDR(&packet);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(sizeof fd);
        std::memcpy(CMSG_DATA(control), &fd, sizeof fd);
    }
    const TimePoint until = now().steady + limit;
    for (;;) {
        if (::sendmsg(socket, &packet, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return {};
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return errno_error("the keeper's line is broken", Code::Unavailable);
        pollfd wait{socket, POLLOUT, 0};
        if (::poll(&wait, 1, left_ms(until)) == 0) return Error{Code::Deadline, "the keeper's line takes nothing"};
    }
}

Result<std::optional<KeeperPacket>> receive_message(int socket, Duration limit) {
    const TimePoint until = now().steady + limit;
    for (;;) {
        KeeperPacket packet;
        packet.text.resize(kMostKeeperText);
        std::array<iovec, 2> parts{iovec{&packet.message, sizeof packet.message}, iovec{packet.text.data(), packet.text.size()}};
        msghdr header{};
        header.msg_iov = parts.data();
        header.msg_iovlen = 2;
        FdSpace space{};
        header.msg_control = space.bytes;
        header.msg_controllen = sizeof space.bytes;
        const ssize_t n = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (now().steady >= until) return std::optional<KeeperPacket>();
            pollfd wait{socket, POLLIN, 0};
            (void)::poll(&wait, 1, left_ms(until));
            continue;
        }
        if (n <= 0) return Error{Code::Unavailable, "the keeper's line is closed"};
        for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr; control = CMSG_NXTHDR(&header, control)) {
            if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(control), sizeof fd);
            packet.fd = Fd(fd);
        }
        const KeeperMessage fresh;
        const auto size = static_cast<std::size_t>(n);
        if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || size < sizeof packet.message || packet.message.magic != fresh.magic ||
            packet.message.version != fresh.version) {
            return Error{Code::Unavailable, "the keeper's line brought a packet that is none"};
        }
        packet.text.resize(size - sizeof packet.message);
        return std::optional<KeeperPacket>(std::move(packet));
    }
}

}  // namespace gangline::checkpoint
