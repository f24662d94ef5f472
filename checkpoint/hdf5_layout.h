#pragma once
// The layout of a shard, made by the HDF5 library: groups, datasets, attributes, and where each dataset's bytes go.
// No bulk data passes through the library: it writes headers, and never a tensor's bytes. Thread rule: as shard.h.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor.h"

namespace gangline::checkpoint {

inline constexpr const char* kStepName = "gangline_step";  // no tensor's

// What one rank writes at one step.
struct ShardPlan {
    std::uint64_t job = 0;
    std::uint64_t step = 0;
    std::uint32_t attempt = 0;
    std::uint32_t rank = 0;
    std::uint32_t world = 1;
    std::span<const Tensor> tensors;
    std::optional<double> metric = {};  // of the checkpoint; rank 0's plan alone has it
};

struct ShardLayout {
    std::vector<std::uint64_t> places;  // the byte at which each tensor's data begins; 0 for an empty one
    std::uint64_t step_place = 0;       // of kStepName's eight bytes, which change with each save
};

// Fills the file at `path`, which the caller has open. Its name is gone as soon as the library has it open, too: whoever is killed leaves nothing.
// Errors: NoSpace; InvalidArgument for a name that clashes; Internal with HDF5's own words.
Result<ShardLayout> lay_out_shard(const std::string& path, const ShardPlan& plan);

}  // namespace gangline::checkpoint
