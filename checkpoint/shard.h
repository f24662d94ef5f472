#pragma once
// One rank's shard on disk: a plain HDF5 file (contiguous datasets) that h5py, h5dump and every other HDF5 tool reads.
//
//   image (image.h)  ->  space reserved, so that a full disk is met before a byte is written  ->  blocks as they are copied, O_DIRECT
//                    ->  fdatasync  ->  renamed to its name  ->  folder fsynced
//
//   dataset attributes  global_shape, global_offset, dtype (HDF5 1.10 knows no bfloat16 or float8), kind (the policy)
//   root attributes     format_version, job, attempt, rank, world; the step is the dataset gangline_step
//
// A retired shard's file may be taken for the new one: writing over blocks that the disk has is faster than into fresh ones (docs/benchmarks.md, B1r). Its first
// page is zeroed, and that made durable, before anything else; the true first block comes last.
// Thread rule: one thread at a time (the HDF5 library may be used by others: Debian's build locks itself).

#include <functional>
#include <span>
#include <string>

#include "base/result.h"
#include "checkpoint/disk.h"
#include "checkpoint/image.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor.h"

namespace gangline::checkpoint {

// Puts a retired file, of this size if there is one, under this name into the folder. False: there is none.
using Recycle = std::function<bool(int folder, const std::string& name, std::uint64_t size)>;

// Writes the image, whose save has begun, as shard_name(rank, world) into the folder: blocks are written as others copy them, and copied
// here when nobody does. Returns the shard's part of the manifest. A file of that name is replaced.
// What is not copied (ShardImage::begin_straight) is let go as soon as the disk has it; on an error it is not: it may be written again.
// Errors: NoSpace; Internal. No file is left then, and the image is copied all the same.
Result<Part> write_image(Disk& disk, int folder, ShardImage& image, const ShardPlan& plan, const Recycle& recycle = {});

// The same of an image that another process has made (ShardImage::adopt): its part is known already.
Result<void> write_adopted(Disk& disk, int folder, ShardImage& image, const Manifest& part);
// This rank's part of the manifest, once the image is copied.
Part part_of(const ShardPlan& plan, const ShardImage& image);

// Both in one: lays out, copies, writes. Errors: as write_image, and InvalidArgument (a tensor that cannot be stored, two of one name).
Result<Part> write_shard(int folder, const ShardPlan& plan, Disk& disk = real_disk());

// Which of the tensors this rank writes: its slices, its own, and of the replicated ones its part by bytes.
std::vector<Tensor> tensors_to_write(std::span<const Tensor> tracked, std::uint32_t rank, std::uint32_t world);

}  // namespace gangline::checkpoint
