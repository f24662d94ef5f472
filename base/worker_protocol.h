#pragma once
// A rank's line to its shepherd: a SOCK_SEQPACKET unix socket (abstract name in GANGLINE_WORKER_SOCKET), one frame a
// packet, little-endian, a fixed header and then `size` bytes of payload. No protobuf: this side is linked into
// programs that bring their own.
//
// kind          direction          payload
// Join          rank -> shepherd   none (header: rank, pid in `step`)
// Relay         both               opaque bytes for the worker library of `to_rank` (the committer's mail)
// Commit        rank 0 -> coord.   may the checkpoint of `step` count (`attempt`: whose shards they are)? base/commit_letter.h
// CommitResult  coord. -> rank 0   the answer, and which checkpoints stay: base/commit_letter.h
// Damaged       rank -> coord.     text: what is damaged in checkpoint (`step`, `attempt`)
// Fault         rank -> coord.     text to show in `gangline show`; stops nothing
// StopSoon      shepherd -> rank   u32 milliseconds left
// Keeper        rank -> shepherd   u8: 1 = start one, 0 = only if it is there; the answer's payload is its socket's name, empty = there is none
// Snapshot      rank -> shepherd   none: the keeper holds `step` whole; 0: it holds nothing of this rank any more
// Replica       rank -> shepherd   none: another node's keeper holds a whole copy of `step`
// DamagedAtRest rank -> coord.     as Damaged, found by reading what no rank's state comes from; stops nothing
// Finished      rank -> shepherd   none: the library's clean end; exit code 0 without it is fine too
//
// Errors: a frame with a wrong magic, version or size is dropped and its connection closed.

#include <cstdint>

namespace gangline {

enum class WorkerKind : std::uint16_t {
    Join = 1, Relay = 2, Commit = 3, CommitResult = 4, Damaged = 5, Fault = 6, StopSoon = 7, Finished = 8, Keeper = 9, Snapshot = 10,
    DamagedAtRest = 11, Replica = 12,
};
inline constexpr WorkerKind kLastWorkerKind = WorkerKind::Replica;

struct WorkerHeader {
    std::uint32_t magic = 0;
    std::uint16_t version = 0;
    std::uint16_t kind = 0;
    std::uint32_t rank = 0;      // sender's rank (checked by the shepherd against the connection)
    std::uint32_t to_rank = 0;   // Relay only
    std::uint64_t step = 0;
    std::uint32_t attempt = 0;
    std::uint32_t size = 0;      // payload bytes that follow
};
static_assert(sizeof(WorkerHeader) == 32);

inline constexpr std::uint32_t kWorkerMagic = 0x4c474e47;  // "GNGL"
inline constexpr std::uint16_t kWorkerVersion = 1;
inline constexpr std::uint32_t kMostWorkerPayload = 64 * 1024;

}  // namespace gangline
