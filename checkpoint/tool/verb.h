#pragma once
// `gangline ckpt`: look into checkpoints, prove them, compare them, hand them on, clear them away.
//
// Exit codes: 0 done (verify: good; diff: equal), 1 damaged or different, 2 wrong usage, 3 refused, 4 no coordinator.
// diff gives 3 for whatever keeps it from comparing, so that 1 always means different.

#include <functional>
#include <string>

#include "base/result.h"

namespace gangline::checkpoint::tool {

// The checkpoint folder of a job that is named as people name jobs: 12, 12_5, @.
using FindJobFolder = std::function<Result<std::string>(const std::string& job)>;

// argv[0] is the verb. `find` may be empty: then jobs cannot be named.
int ckpt_main(int argc, char** argv, const FindJobFolder& find);

}  // namespace gangline::checkpoint::tool
