#pragma once
// The manifest: the one file that says what a checkpoint consists of, and whether its bytes are what was written.
//
//   body   := "GLCKPT\r\n" u32 version  u64 job  u64 step  u32 attempt  u32 world  u64 block_bytes  [version 3: f64 metric]
//             u32 n  n x shard    shard  := u32 rank  str name  u64 size  u32 n  n x u32 CRC32C of each block
//             u32 n  n x tensor   tensor := str name  u8 dtype  u8 policy  u8 d  d x u64 global_shape
//                                           u32 n  n x box
//                                 box    := u32 rank of the shard  u64 byte in its file  d x u64 offset  d x u64 extent
//   version := 3 where there is a metric, else 2 where a tensor is Splittable or Drop, else 1: programs that know version 1 alone read whatever they understand
//   file   := body, SHA-256 of body (32 bytes)          All little-endian; str := u32 length, bytes.
//
// A *part* is what one rank says of its own shard: the same file with one shard in it. The committer merges the parts. From save to save only the
// head changes, all before the tensors; those are encoded, and merged, once a layout.
// Parsing checks every length against the bytes that are there, and every box against its shape and its shard's size.
// Thread rule: pure functions.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/checksum.h"
#include "checkpoint/tensor.h"

namespace gangline::checkpoint {

inline constexpr std::uint32_t kManifestVersion = 3;  // the newest that is read
inline constexpr std::uint32_t kMeasuredVersion = 3;  // with a metric
inline constexpr std::uint64_t kBlockBytes = 256u << 10;  // small: another world size reads only what it needs
inline constexpr std::uint32_t kMostWorld = 1u << 20;

struct ShardRecord {
    std::uint32_t rank = 0;
    std::string name;
    std::uint64_t size = 0;
    std::vector<std::uint32_t> block_crcs;
};
struct Box {
    std::uint32_t shard_rank = 0;
    std::uint64_t file_offset = 0;
    Shape offset;
    Shape extent;
};
struct TensorRecord {
    std::string name;
    DType dtype = DType::F32;
    Policy policy = Policy::Replicated;
    Shape global_shape;  // of a per-rank tensor: of the lowest rank; each box carries its own
    std::vector<Box> boxes;
};
struct Manifest {
    std::uint32_t version = 1;          // of the file: version_for it
    std::uint64_t job = 0;
    std::uint64_t step = 0;
    std::uint32_t attempt = 0;
    std::uint32_t world = 1;
    std::uint64_t block_bytes = kBlockBytes;
    std::optional<double> metric = {};  // as the program gave it with its save; of parts only rank 0's has one
    std::vector<ShardRecord> shards;    // ascending ranks
    std::vector<TensorRecord> tensors;  // ascending names

    bool is_whole() const { return shards.size() == world; }
    std::uint64_t total_bytes() const;
    const ShardRecord* shard_of(std::uint32_t rank) const;
    const TensorRecord* tensor_of(std::string_view name) const;
};

// One rank's.
struct Part {
    Manifest head;                               // its tensors are not in it
    std::shared_ptr<const std::string> tensors;  // encoded
};

// What this rank holds of it; of all but a per-rank tensor, the global shape.
const Shape& shape_of(const TensorRecord& tensor, std::uint32_t rank);
std::string shard_name(std::uint32_t rank, std::uint32_t world);
// The file's bytes. The last 32 are the manifest's SHA-256, by which the coordinator knows it.
std::string encode(const Manifest& manifest);
std::string encode(const Part& part);
std::size_t encoded_size(const Part& part);
// The lowest that has words for it, or for them.
std::uint32_t version_for(const Manifest& manifest);
std::uint32_t version_for(const std::vector<TensorRecord>& tensors);
std::string encode_tensors(const std::vector<TensorRecord>& tensors);  // ascending names
Sha256 seal_of(std::string_view file);  // its last 32 bytes; zeros when it is shorter
bool is_sealed(std::string_view file);  // they are the SHA-256 of what comes before
std::string seal(std::string body);     // body with its SHA-256 behind it
// Errors: Damaged, with the byte at which reading stopped making sense; Refused: it is whole, but of another version. A whole manifest (every rank's shard is in it)
// is also checked for tensors that miss a part or overlap.
Result<Manifest> parse(std::string_view file);
// The other way round: what this rank's part was.
Manifest part_of(const Manifest& whole, std::uint32_t rank);
// One manifest of all ranks' parts, by rank. Errors: InvalidArgument that names the tensor and the ranks that disagree.
Result<Manifest> merge(std::vector<Manifest> parts);

// The same of the parts' files, again and again: while the ranks' tensors stay where they are they are merged once. Thread rule: one thread.
class Merger {
  public:
    struct Whole {
        Manifest head;
        std::string file;  // the manifest, encoded
    };
    // Errors: as merge; Damaged, as parse.
    Result<Whole> merge(const std::vector<std::string>& part_files);

  private:
    struct Known {  // of one rank's tensors
        std::uint64_t shard_size = 0;
        std::uint64_t block_bytes = 0;
        Sha256 digest{};
        bool operator==(const Known&) const = default;
    };
    std::vector<Known> known_;
    std::string tensors_;  // merged from these
};

}  // namespace gangline::checkpoint
