#pragma once
// Reading a checkpoint back, at the same or another world size.
//
// Bytes are found by the manifest alone; the HDF5 library does not parse them. Every block is verified before a byte of
// it reaches a tensor. A wanted box is put together from all boxes that it intersects, whoever wrote them.
// Thread rule: one thread an object.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/handle.h"
#include "base/result.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor.h"

namespace gangline::checkpoint {

class Checkpoint {
  public:
    // `folder` holds the shards; `place` is its path in messages.
    Checkpoint(Fd folder, Manifest manifest, std::string place);

    const Manifest& manifest() const { return manifest_; }
    const std::string& place() const { return place_; }

    // Fills all tensors of one rank. Strict: the checkpoint has exactly these names, with these types and shapes.
    // Errors: Refused with a remedy (other tensors, or another world and per-rank state): nothing has been written.
    //         Damaged, naming file and block: tensors may hold part of the checkpoint; do not train on.
    Result<void> restore(std::span<const Tensor> wanted, std::uint32_t rank, std::uint32_t world);
    // Fills only these tensors, each a box of what is stored under its name; the kinds need not agree. A per-rank tensor is
    // this rank's. Errors: InvalidArgument (no such name, another dtype, a box outside the shape): nothing has been written.
    //                      Damaged, naming file and block: tensors may hold part of the checkpoint.
    Result<void> fill(std::span<const Tensor> wanted, std::uint32_t rank);
    // Reads and checks every block of every shard. Errors: Damaged.
    Result<void> verify();

  private:
    Result<void> check(std::span<const Tensor> wanted, std::uint32_t world) const;
    Result<void> read(const Tensor& wanted, const TensorRecord& stored, std::uint32_t rank);
    Result<void> copy_box(const Tensor& wanted, const Box& box);
    Result<void> read_bytes(const ShardRecord& shard, std::uint64_t at, std::uint64_t size, char* to);
    Result<void> load_block(const ShardRecord& shard, std::uint64_t index);
    Result<int> file_of(const ShardRecord& shard);

    Fd folder_;
    Manifest manifest_;
    std::string place_;
    std::map<std::uint32_t, Fd> files_;  // by rank
    const ShardRecord* block_shard_ = nullptr;
    std::uint64_t block_index_ = 0;
    std::vector<char> block_;  // the block that was verified last
};

}  // namespace gangline::checkpoint
