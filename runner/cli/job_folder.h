#pragma once
// Where a job's checkpoints lie, for tools that take a job in the place of a folder.

#include <string>

#include "base/result.h"

namespace gangline::runner {

// `job` as people name it: 12, 12_5, @. The cluster is the configured one. Errors: Unavailable when none is, or none answers;
// the coordinator's own words otherwise.
Result<std::string> checkpoint_folder_of(const std::string& job);

}  // namespace gangline::runner
