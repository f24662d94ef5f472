#pragma once
// view.h5: one HDF5 file in which each tensor has its global shape, while its bytes stay in the shards.
//
//   NAME                      virtual dataset of a replicated or sliced tensor
//   rank_state/RANK/NAME      of a per-rank one
//
// Shards are named relative to the view's folder, so a checkpoint that is moved as a whole keeps its view. HDF5 gives
// the fill value where a shard is missing: NaN for floats, 0 else. A scalar or a tensor without elements cannot be virtual
// in HDF5 1.10: the view holds its value. A view is for people; no restore reads it.
// Thread rule: one thread an object; others may use the HDF5 library meanwhile (Debian's build locks itself; with one that does not,
// write_view makes none).

#include <cstdint>
#include <string>

#include "base/result.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"

namespace gangline::checkpoint {

inline constexpr const char* kViewName = "view.h5";
// Above so many parts of shards a view is made only when somebody asks for it: a part costs some ten microseconds and 100 to 300 bytes.
inline constexpr std::uint64_t kMostMappings = 100'000;
std::uint64_t mappings_of(const Manifest& manifest);

struct View {
    std::string file;         // its bytes
    std::size_t tensors = 0;  // each rank's own counts
};
// `prefix`: from the view's folder to the shards. Errors: Damaged: a scalar cannot be read; Internal with HDF5's words.
Result<View> build_view(Checkpoint& checkpoint, const std::string& prefix);

// Beside a published checkpoint's shards, where it has not too many. Errors: as build_view; NotFound; NoSpace.
Result<void> write_view(const Store& store, const CheckpointId& id, std::uint64_t most_mappings = kMostMappings);

}  // namespace gangline::checkpoint
