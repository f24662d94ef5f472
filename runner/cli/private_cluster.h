#pragma once
// A cluster for one `run`, alive exactly as long as this process.
//
//   <state>/run-<pid>-<random>/            agents' folders (the output is here) and checkpoints
//   /dev/shm/gangline-run-<pid>-<random>/  coordinator, keys, sockets: small, and not worth a disk's flushes;
//                                          in the folder above where there is no such memory
//
// Every part holds the reading end of one pipe; the writing end is here. However this process ends, the pipe closes,
// the agents kill their gangs and all parts exit. A janitor, forked before anything else runs here, then removes both
// folders if this process could not; should it be killed too, the next start sweeps.
//
// Thread rule: one thread.

#include <memory>
#include <optional>
#include <string>

#include "runner/cli/config.h"
#include "runner/cli/parts.h"

namespace gangline::runner {

class PrivateCluster {
  public:
    // Starts all parts and returns at once. No thread may run in this process before. Errors: those of the files and of
    // starting processes.
    static Result<std::unique_ptr<PrivateCluster>> start(const std::string& state, std::uint32_t nodes,
                                                         std::uint32_t cards_per_node);
    ~PrivateCluster();                   // take_down()
    PrivateCluster(const PrivateCluster&) = delete;
    PrivateCluster& operator=(const PrivateCluster&) = delete;

    Result<ClusterAddress> address() const;
    // " --coordinator ... --coordinator-key ... --key ...": for another command that is to reach it.
    std::string options_to_reach() const;
    Result<void> wait_ready(const std::function<bool()>& interrupted);
    // Why nothing will answer any more: the coordinator has died.
    std::optional<std::string> died() const;
    // Ends everything and removes the folders. A sentence about what could not be ended, or nothing.
    std::optional<std::string> take_down();

  private:
    PrivateCluster() = default;
    Result<void> start_janitor();
    void dismiss_janitor();

    LocalClusterPlan plan_;
    std::string disk_folder_;
    Fd lifeline_;                        // the writing ends
    Fd janitor_line_;
    pid_t janitor_ = 0;
    std::vector<StartedPart> parts_;
    bool is_down_ = false;
};

// Removes what killed runs left in `state` and in shared memory: folders whose run and parts are all dead.
void sweep_dead_runs(const std::string& state);

}  // namespace gangline::runner
