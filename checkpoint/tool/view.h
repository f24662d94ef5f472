#pragma once
// view.h5: one HDF5 file in which each tensor has its global shape, while its bytes stay in the shards.
//
//   NAME                      virtual dataset of a replicated or sliced tensor
//   rank_state/RANK/NAME      of a per-rank one
//
// Shards are named relative to the view's folder, so a checkpoint that is moved as a whole keeps its view. HDF5 gives
// the fill value where a shard is missing: NaN for floats, 0 else. A scalar or a tensor without elements cannot be virtual
// in HDF5 1.10: the view holds its value. A view is for people; no restore reads it.

#include <string>

#include "base/result.h"
#include "checkpoint/tool/new_file.h"
#include "checkpoint/tool/place.h"

namespace gangline::checkpoint::tool {

struct Viewed {
    std::string path;
    std::size_t tensors = 0;  // each rank's own counts
};

// `output` empty: view.h5 beside the shards. Errors: as NewFile; Damaged: a shard is missing; Internal with HDF5's words.
Result<Viewed> write_view(Opened& opened, const std::string& output, Existing existing);

}  // namespace gangline::checkpoint::tool
