#pragma once
// The layout of a shard, made by the HDF5 library: groups, datasets, attributes, and where each dataset's bytes go.
// No bulk data passes through the library. Thread rule: as shard.h.

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/shard.h"

namespace gangline::checkpoint {

// At least as many bytes as the laid-out file will have.
std::uint64_t estimated_bytes(const ShardPlan& plan);
// Creates (or truncates) the file at `path` and closes it. Returns the byte at which each tensor's data begins (0 for an
// empty one). Errors: NoSpace; InvalidArgument for a name that clashes; Internal with HDF5's own words.
Result<std::vector<std::uint64_t>> lay_out_shard(const std::string& path, const ShardPlan& plan);

}  // namespace gangline::checkpoint
