#pragma once
// `gangline ckpt`: look into checkpoints, prove them, compare them, hand them on, clear them away.
//
// Exit codes: 0 done (verify: good; diff: equal), 1 damaged or different, 2 wrong usage, 3 refused, 4 no coordinator.
// diff gives 3 for whatever keeps it from comparing, so that 1 always means different.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace gangline::checkpoint::tool {

// A step that all ranks of a running job have whole in their nodes' memory, and no folder shows.
struct InMemory {
    std::uint64_t job = 0;
    std::uint64_t step = 0;
    std::uint32_t attempt = 0;
    std::uint32_t ranks = 0;
    bool is_replicated = false;  // and in other nodes'
};
struct FoundJob {
    std::string folder;               // of its checkpoints
    std::vector<InMemory> in_memory;  // ascending steps
};
// A job that is named as people name jobs: 12, 12_5, @.
using FindJob = std::function<Result<FoundJob>(const std::string& job)>;

// argv[0] is the verb. `find` may be empty: then jobs cannot be named.
int ckpt_main(int argc, char** argv, const FindJob& find);

}  // namespace gangline::checkpoint::tool
