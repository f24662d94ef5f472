#pragma once
// What a rank says to its node's keeper, over a SOCK_SEQPACKET socket of this host (abstract, our own user only): one message a packet,
// little-endian, text behind it; a memfd travels beside it.
//
// kind      direction        meaning
// Join      rank -> keeper   who is here: rank, attempt, job; `size`: bytes that snapshots may take here, 0 = as many as the node bears; text: checkpoint folder
// Want      rank -> keeper   memory of `size` bytes for the next snapshot           answer: Slot (its fd) or Refused
// Whole     rank -> keeper   slot `slot` holds `step`: `size` bytes of the shard's file, then `part_size` bytes of its part of the manifest
// Durable   rank -> keeper   shard and part of `step` are on disk, or nobody will want them there
// Find      rank -> keeper   rank `rank`'s snapshot of `step`, `attempt`            answer: Found (its fd, sizes) or Refused; it stays until Done
// Done      rank -> keeper   what was found is not needed any more
// Where     rank -> keeper   where other nodes reach this keeper               answer: Here (text: keeper/peer.h) or Refused
// Peer      rank -> keeper   text: the keeper on another node that is to have copies of this rank's snapshots
// Held      keeper -> rank   that one holds a whole copy of `step`; comes unasked
// Refused   keeper -> rank   text: why
//
// Errors: a packet of another magic, version or size closes the connection.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/handle.h"
#include "base/result.h"
#include "base/time.h"

namespace gangline::checkpoint {

enum class KeeperKind : std::uint16_t { Join = 1, Want = 2, Slot = 3, Refused = 4, Whole = 5, Durable = 6, Find = 7, Found = 8, Done = 9,
                                        Where = 10, Here = 11, Peer = 12, Held = 13, Alive = 14 };

struct KeeperMessage {
    std::uint32_t magic = 0x4b474e47;  // "GNGK"
    std::uint16_t version = 1;
    KeeperKind kind = KeeperKind::Join;
    std::uint32_t rank = 0;
    std::uint32_t attempt = 0;
    std::uint64_t job = 0;
    std::uint64_t step = 0;
    std::uint64_t size = 0;
    std::uint64_t part_size = 0;
    std::uint64_t slot = 0;
};
static_assert(sizeof(KeeperMessage) == 56);

inline constexpr std::size_t kMostKeeperText = 8192;
inline constexpr std::uint64_t kMostPartBytes = 1u << 30;

struct KeeperPacket {
    KeeperMessage message;
    std::string text;
    Fd fd;
};

int left_ms(TimePoint until);  // for poll(2)
// Where ranks connect, beside the stream socket of this name on which the agent speaks to the keeper.
std::string ranks_socket(const std::string& keeper_socket);

// `fd`: -1 = none. Errors: Unavailable; Deadline: the peer takes nothing.
Result<void> send_message(int socket, const KeeperMessage& message, std::string_view text, int fd, Duration limit);
// Nothing: none came in time. Errors: Unavailable: the connection is over, or was not to be trusted.
Result<std::optional<KeeperPacket>> receive_message(int socket, Duration limit);

}  // namespace gangline::checkpoint
