#pragma once
// The command line of `gangline launch`, with srun's names for what srun has too. Options end at the first plain word, which is
// the program, or at `--`.
//
// Thread rule: pure.

#include <string>
#include <vector>

#include "base/protocol/shepherd.pb.h"
#include "base/result.h"

namespace gangline::runner {

struct LaunchOptions {
    bool help = false;
    proto::StepRequest request;          // complete, but for what --help leaves out
    std::vector<std::string> warnings;   // options of srun that change nothing here, by name
};

// `words`: what follows the verb. `environment`: "NAME=value" of the caller, filtered by --export. `cwd`: absolute.
// Errors: InvalidArgument naming the option and its range.
Result<LaunchOptions> parse_launch(const std::vector<std::string>& words, const std::vector<std::string>& environment,
                                   const std::string& cwd);
std::string launch_help(const std::string& program);

}  // namespace gangline::runner
