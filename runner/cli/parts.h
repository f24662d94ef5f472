#pragma once
// Starts and stops the processes of a cluster on this machine: a coordinator and agents, each /proc/self/exe again.
//
// All are started at once: endpoints and keys are known beforehand, so an agent connects while its coordinator starts.
// A part says "ready\n" on its --ready-fd. Descriptors 3 (lifeline) and 4 (ready) are all that a part inherits;
// its output goes to <folder>/log/PART.log.
//
// Thread rule: one thread.

#include <functional>
#include <string>
#include <vector>

#include "base/handle.h"
#include "base/result.h"
#include "base/time.h"
#include "runner/cli/local_files.h"

namespace gangline::runner {

struct Part {
    std::string name;                    // "coordinator", or the node's name
    std::vector<std::string> argv;       // without the program
};

// The coordinator first. `lifeline`: with --lifeline-fd.
std::vector<Part> parts_of(const LocalClusterPlan& plan, bool lifeline);
Part clean_part(const LocalClusterPlan& plan, const LocalNode& node);   // `agent --clean`

struct StartedPart {
    std::string name;
    ProcessId id;
    Fd ready;                            // closed once it was read to its end
    bool is_ready = false;
};

// `lifeline_fd` -1: none. Own session, signals at their defaults.
Result<StartedPart> start_part(const Part& part, const std::string& folder, int lifeline_fd);
// Waits until all say that they are ready. Errors: Internal that names the part and ends with its last log lines;
// Deadline; Refused "interrupted" when `interrupted` says so.
Result<void> wait_ready(std::vector<StartedPart>& parts, const std::string& folder, Duration deadline,
                        const std::function<bool()>& interrupted);
// Waits for the processes to end; those that have not at the deadline are returned. Children are reaped.
std::vector<ProcessId> wait_gone(std::vector<ProcessId> processes, Duration deadline);
// Starts `part`, waits for its exit. True: exit code 0.
bool run_part(const Part& part, const std::string& folder, Duration deadline);
// Processes of this program whose command line names something below `folder`; a person's editor there is not one.
std::vector<ProcessId> parts_naming(const std::string& folder);
// The last lines of a part's log.
std::string log_tail(const std::string& folder, const std::string& part);

}  // namespace gangline::runner
