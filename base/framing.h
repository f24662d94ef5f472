#pragma once
// Frames on a local stream socket: u32 little-endian length, then that many bytes (one protobuf message).
//
// FrameReader is fed bytes and yields whole frames; a length over kMostFrame is an error and the connection must be
// closed. FrameWriter queues bytes for a non-blocking socket. Also here: abstract unix sockets and the peer's identity.
//
// Thread rule: one thread an object.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/handle.h"
#include "base/result.h"

namespace gangline {

inline constexpr std::uint32_t kMostFrame = 8u << 20;

class FrameReader {
  public:
    // Reads what is there. Errors: Unavailable when the peer has closed; InvalidArgument on a bad length.
    Result<void> fill(int fd);
    std::optional<std::string> next();

  private:
    std::string buffer_;
};

class FrameWriter {
  public:
    void push(std::string_view frame);
    // Writes what the socket takes now. Errors: Unavailable when the peer is gone.
    Result<void> flush(int fd);
    bool empty() const { return buffer_.empty(); }
    std::size_t waiting_bytes() const { return buffer_.size(); }

  private:
    std::string buffer_;
};

// Abstract unix sockets (Linux): no file, gone with the last descriptor. `type` is SOCK_STREAM or SOCK_SEQPACKET; the
// descriptors are close-on-exec and non-blocking.
Result<Fd> listen_abstract(const std::string& name, int type);
Result<Fd> connect_abstract(const std::string& name, int type);

struct PeerCredentials {
    pid_t pid = 0;
    uid_t uid = 0;
    gid_t gid = 0;
};
Result<PeerCredentials> peer_credentials(int fd);  // SO_PEERCRED

}  // namespace gangline
