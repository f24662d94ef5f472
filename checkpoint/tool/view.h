#pragma once
// `gangline ckpt view`: the view (checkpoint/view.h) where a person wants it.

#include <string>

#include "base/result.h"
#include "checkpoint/tool/new_file.h"
#include "checkpoint/tool/place.h"

namespace gangline::checkpoint::tool {

struct Viewed {
    std::string path;
    std::size_t tensors = 0;  // each rank's own counts
};

// `output` empty: view.h5 beside the shards, in place of the one that the save has made. Errors: as NewFile; Damaged: a shard is missing;
// Internal with HDF5's words.
Result<Viewed> write_view(Opened& opened, const std::string& output, Existing existing);

}  // namespace gangline::checkpoint::tool
