#pragma once
// One rank's shard: a plain HDF5 file (contiguous datasets) that h5py, h5dump and every other HDF5 tool reads.
//
// The library lays the file out and closes it; the bytes are then written straight to their places. Space is reserved
// before any of them, so a full disk is met before anything is copied. The file stands under its name only when it is
// whole and fsynced.
//   dataset attributes  global_shape, global_offset, dtype (HDF5 1.10 knows no bfloat16 or float8), kind (the policy)
//   root attributes     format_version, job, step, attempt, rank, world
// Thread rule: one thread at a time (the HDF5 library may be used by others: Debian's build locks itself).

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor.h"

namespace gangline::checkpoint {

struct ShardPlan {
    std::uint64_t job = 0;
    std::uint64_t step = 0;
    std::uint32_t attempt = 0;
    std::uint32_t rank = 0;
    std::uint32_t world = 1;
    std::span<const Tensor> tensors;
};

// Writes shard_name(rank, world) into the folder, fsynced, and returns its part of the manifest, checksums of the file's
// blocks included. A file of that name is replaced.
// Errors: NoSpace; InvalidArgument (a tensor that cannot be stored, two of one name); Internal. No file is left then.
Result<Manifest> write_shard(int folder, const ShardPlan& plan);

// Which of the tensors this rank writes: its slices, its own, and of the replicated ones every world-th.
std::vector<Tensor> tensors_to_write(std::span<const Tensor> tracked, std::uint32_t rank, std::uint32_t world);

}  // namespace gangline::checkpoint
