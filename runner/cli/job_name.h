#pragma once
// How people name a job: by its number, or an element of an array by the array's number and its task: 12_5.
//
// Thread rule: pure.

#include <cstdint>
#include <optional>
#include <string>

#include "base/protocol/user.pb.h"
#include "base/result.h"

namespace gangline::runner {

struct JobName {
    std::uint64_t job = 0;
    std::optional<std::uint32_t> task;       // absent: the job itself, or all of the array
};

// "12" or "12_5". Errors: InvalidArgument that says how jobs are named.
Result<JobName> parse_job_name(const std::string& word);
std::string to_string(const JobName& name);
// "12_5" for an element of an array, else the number.
std::string name_of(const proto::JobView& job);
// The request is about this task; its own body names the job.
void set_task(proto::Request& request, const JobName& name);

}  // namespace gangline::runner
