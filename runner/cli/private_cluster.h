#pragma once
// A cluster for one `run`: in <state>/run-<pid>-<random>, alive exactly as long as this process.
//
// Every part holds the reading end of one pipe; the writing end is here. However this process ends, the pipe closes,
// the agents kill their gangs and all parts exit. What is left on disk by a killed run is swept by the next start.
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
    // Starts all parts and returns at once. Errors: those of the files and of starting processes.
    static Result<std::unique_ptr<PrivateCluster>> start(const std::string& state, std::uint32_t nodes,
                                                         std::uint32_t cards_per_node);
    ~PrivateCluster();                   // take_down()
    PrivateCluster(const PrivateCluster&) = delete;
    PrivateCluster& operator=(const PrivateCluster&) = delete;

    Result<ClusterAddress> address() const;
    Result<void> wait_ready(const std::function<bool()>& interrupted);
    // Why nothing will answer any more: the coordinator has died.
    std::optional<std::string> died() const;
    // Ends everything and removes the folder. A sentence about what could not be ended, or nothing.
    std::optional<std::string> take_down();

  private:
    PrivateCluster() = default;
    LocalClusterPlan plan_;
    Fd lifeline_;                        // the writing end
    std::vector<StartedPart> parts_;
    bool is_down_ = false;
};

// Removes what killed runs left in `state`: folders whose run and parts are all dead.
void sweep_dead_runs(const std::string& state);

}  // namespace gangline::runner
