#pragma once
// From options to the JobSpec that is sent: sizes made consistent, the environment packed, every refusal in words.
//
//   ranks = --ntasks, or nodes x --ntasks-per-node, or --gpus / --gpus-per-task, or one per node
//   elastic: --nodes MIN-MAX[:STEP] where nothing else gives the ranks: MIN to MAX nodes with --ntasks-per-node ranks each
//   cards per rank = --cards-per-rank, --gpus-per-task, --gpus / ranks, or (--gpus-per-node, --gres) / ranks per node
//
// A card is never shared, so a total that does not divide is refused, with the numbers that would fit.
// Environment (R20): names [A-Za-z_][A-Za-z0-9_]*, 64 KiB a variable, 1 MiB together.
//
// Thread rule: pure.

#include <string>
#include <vector>

#include "base/protocol/job.pb.h"
#include "base/result.h"
#include "runner/cli/job_options.h"

namespace gangline::runner {

// What the job runs: exactly one of argv and script.
struct Program {
    std::vector<std::string> argv;
    std::string script;                  // its text
    std::vector<std::string> script_args;
    std::string name;                    // the job's name where none is given
};

struct Surroundings {
    std::string cwd;                     // absolute
    std::string home, user, shell;
    Environment environment;
    std::int64_t now_unix_s = 0;         // for --begin and --deadline
};

struct BuiltSpec {
    proto::JobSpec spec;
    std::vector<std::string> warnings;   // one line each
};

// Errors: InvalidArgument that names option, value, allowed form, and where it was written.
Result<BuiltSpec> build_job_spec(const JobOptions& options, const Program& program, const Surroundings& here);

// --export's meaning: which variables the job gets. `warnings` names what could not be taken.
Result<Environment> exported_environment(const std::string& rule, const Surroundings& here,
                                         std::vector<std::string>& warnings);

}  // namespace gangline::runner
