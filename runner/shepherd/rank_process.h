#pragma once
// Starts one process of the user: fork, make it what a rank is, exec.
//
// Everything that allocates is done before the fork (libpmix has threads); between fork and exec there are plain system
// calls only, for the child shares our memory until it execs (as with vfork; a copy of it costs a millisecond a rank). The child: own process group, SIGKILL when its parent dies, the attempt's cgroup, CPUs, folder, /dev/null as
// input, pipes as output, default signals. What fails there is written to a close-on-exec pipe shared by all children of a
// group: its end-of-file means that all of them have exec'ed or said why not.
//
// Thread rule: only a thread that lives as long as the process may call it (PDEATHSIG is the creating thread's).
// Source: prctl(2), clone(2), cgroups(7).

#include <sched.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/handle.h"
#include "base/result.h"

namespace gangline::runner {

struct SpawnPlan {
    std::string program;                   // with a slash
    std::vector<std::string> argv;
    std::vector<std::string> environment;  // NAME=value
    std::string cwd;
    int cgroup = -1;                       // its folder's descriptor; -1 = none
    std::optional<cpu_set_t> cpus;
    std::optional<int> oom_score_adj;      // given back what the shepherd took for itself
    int status = -1;                       // write end of the group's status pipe
    std::uint32_t number = 0;              // names this child in the status pipe
};

struct Spawned {
    pid_t pid = 0;
    Fd out;  // read ends, non-blocking
    Fd err;
};

// Errors: Unavailable (no more processes, no memory, no descriptors). The child itself reports later, by the status pipe.
Result<Spawned> spawn(const SpawnPlan& plan);

enum class SpawnStage : std::uint32_t { Cgroup = 1, Folder = 2, Descriptors = 3, Exec = 4 };

// One message in the status pipe (written whole).
struct SpawnFailure {
    std::uint32_t number = 0;
    SpawnStage stage = SpawnStage::Exec;
    std::int32_t error = 0;  // errno
};

// What failed, for the user.
std::string describe(const SpawnFailure& failure, const SpawnPlan& plan);

// Where `name` is found: as it is when it has a slash (relative to cwd), else along `path`.
// Errors: NotFound (no such program), Refused (found, but not executable); the text names what was looked at.
Result<std::string> find_program(const std::string& name, const std::string& path, const std::string& cwd);

}  // namespace gangline::runner
