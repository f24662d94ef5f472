#pragma once
// The line to a keeper on another node: TCP, from the keeper that has snapshots to the one that keeps their copies, and from a rank that restores.
//
//   caller -> keeper   32 random bytes
//   keeper -> caller   32 random bytes, proof that it knows its secret
//   caller -> keeper   proof that it knows it, too
//   then frames: KeeperMessage (message.h), the length of its text (8 bytes, little-endian), the text
//
//   Join     caller -> keeper   as a rank's: whose snapshots come, or who asks; text: checkpoint folder
//   Whole    caller -> keeper   a snapshot: behind the frame its part of the manifest (`part_size`), then the shard's file (`size`)
//                               answer: Held, once every block has its checksum, or Refused (text: why); the line stays good
//   Durable  caller -> keeper   `step` is on disk
//   Find     caller -> keeper   as a rank's; `slot` 1: its part alone.  answer: Found, then the part and the file's bytes; or Refused
//   Alive    caller -> keeper   nothing to say for a while
//   Done     caller -> keeper   the caller leaves, and has brought to disk what it had
//
// The secret is the keeper's own, made at its start; ranks tell each other over their shepherds' line (CURVE), so only processes of this job
// know it. The proofs are HMAC-SHA-512-256 (libsodium's crypto_auth) over both sides' random bytes, with a word for each direction. The bytes that
// follow travel as those of the gang's own collectives do: not encrypted (docs/security.md). Thread rule: one thread a line; who wants to end it shuts its socket down (fd()).

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/handle.h"
#include "base/result.h"
#include "base/time.h"
#include "checkpoint/keeper/message.h"

namespace gangline::checkpoint {

using Secret = std::array<std::uint8_t, 32>;

struct KeeperAddress {
    std::string host;
    std::uint16_t port = 0;
    Secret secret{};
};
Secret make_secret();
// "host port secret in hexadecimal digits", as ranks mail it.
std::string to_text(const KeeperAddress& address);
std::optional<KeeperAddress> parse_keeper_address(std::string_view text);

// A listening TCP socket of this node, any port. Errors: Unavailable.
Result<Fd> listen_tcp(const std::string& host, std::uint16_t& port);

inline constexpr Duration kPeerConnectLimit = seconds(5);
inline constexpr Duration kPeerStall = seconds(10);   // without a byte in either direction while some are due
inline constexpr Duration kPeerAlive = seconds(3);
inline constexpr Duration kPeerSilent = seconds(30);  // a line on which not even Alive came

struct PeerFrame {
    KeeperMessage message;
    std::string text;
};

class PeerLine {
  public:
    // Errors: Unavailable; Refused: the other side does not know the secret.
    static Result<PeerLine> connect(const KeeperAddress& address);
    static Result<PeerLine> accept(Fd socket, const Secret& secret);

    Result<void> send(const KeeperMessage& message, std::string_view text = {});
    // Nothing: none came in time. Errors: Unavailable: the line is over, or was not to be trusted.
    Result<std::optional<PeerFrame>> receive(Duration limit);
    Result<void> send_bytes(std::string_view bytes);
    Result<void> send_memory(const Fd& memory, std::uint64_t begin, std::uint64_t size);
    Result<void> receive_bytes(char* to, std::uint64_t size);
    int fd() const { return socket_.get(); }

  private:
    explicit PeerLine(Fd socket) : socket_(std::move(socket)) {}
    Result<void> wait(short events, TimePoint until, const char* what);
    Result<void> send_some(const void* data, std::size_t size, int flags);
    Result<void> receive_by(void* to, std::size_t size, TimePoint until);
    Fd socket_;
};

}  // namespace gangline::checkpoint
