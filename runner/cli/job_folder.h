#pragma once
// Where a job's checkpoints lie, for tools that take a job in the place of a folder.

#include <cstdint>
#include <string>

#include "base/result.h"

namespace gangline::runner {

struct JobCheckpoints {
    std::string folder;
    std::uint64_t job = 0;
    std::uint32_t attempt = 0;
    std::uint32_t ranks = 0;
    std::uint64_t snapshot_step = 0;  // newest that every rank has in its node's memory, newer than each checkpoint; 0: none
    std::uint64_t replica_step = 0;   // in another node's
};

// `job` as people name it: 12, 12_5, @. The cluster is the configured one. Errors: Unavailable when none is, or none answers;
// the coordinator's own words otherwise.
Result<JobCheckpoints> find_checkpoints_of(const std::string& job);

}  // namespace gangline::runner
