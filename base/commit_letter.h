#pragma once
// What rank 0's committer asks over the line to its shepherd, and what comes back: payloads of Commit and CommitResult (worker_protocol.h).
//
//   Commit        32 bytes SHA-256 of the manifest, u64 total bytes; then, unless the letter ends here, u8 whether there is a metric,
//                 f64 metric, u32 n, n x {u64 step, u32 attempt, u8 marks: 1 pinned, 2 verified}
//   CommitResult  u8 accepted, u32 n, n x {u64 step, u32 attempt} that stay, u64 keep_every, the reason's text
//
// Little-endian. Decoding trusts no byte. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gangline {

struct MarkedCheckpoint {
    std::uint64_t step = 0;
    std::uint32_t attempt = 0;
    bool is_pinned = false;
    bool is_verified = false;
};
inline constexpr std::size_t kMostMarks = 2000;  // of a letter

struct CommitLetter {
    std::string manifest_sha256;  // 32 bytes
    std::uint64_t bytes = 0;
    std::optional<double> metric;
    std::vector<MarkedCheckpoint> marks;
};
std::string encode(const CommitLetter& letter);
std::optional<CommitLetter> decode_commit(std::string_view payload);

struct CommitAnswer {
    struct Stays { std::uint64_t step = 0; std::uint32_t attempt = 0; };
    bool accepted = false;
    std::vector<Stays> keep;
    std::uint64_t keep_every = 0;  // besides, each whose step is a multiple of it; 0: none
    std::string reason;
};
std::string encode(const CommitAnswer& answer);
std::optional<CommitAnswer> decode_commit_answer(std::string_view payload);

}  // namespace gangline
