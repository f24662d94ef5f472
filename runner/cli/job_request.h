#pragma once
// From the command line of `run` or `submit` to the JobSpec: the script is read, the four sources of options are merged,
// what cannot work on this machine is refused.

#include <string>
#include <vector>

#include "base/protocol/job.pb.h"
#include "base/result.h"
#include "runner/cli/verbs.h"

namespace gangline::runner {

struct JobRequest {
    proto::JobSpec spec;
    JobOptions options;
    std::vector<std::string> warnings;
};

enum class Where { ThisMachine, Elsewhere };   // elsewhere a program may exist that does not exist here

// Errors: InvalidArgument, naming option or file.
Result<JobRequest> read_job_request(const Line& line, Where where);

// The folder of an output pattern, as far as no %letter stands in it, where this machine has none; else empty.
std::string missing_folder(const std::string& pattern, const std::string& cwd);

// --test-only: asks whether the cluster would take the job, says so; nothing is submitted. Returns the exit code.
int check_only(const Line& line, Client& client, const JobRequest& request);

// The options of the command line, the environment and gangline.conf, before a script is read.
bool flag_of(const JobRequest& request, const char* name);

}  // namespace gangline::runner
