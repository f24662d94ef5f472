#pragma once
// Steps inside a script job: `gangline launch prog` (or srun) asks the lead's shepherd, which starts ranks on all nodes.
//
//   launch client --GANGLINE_STEP_SOCKET--> StepServer of the lead --GangLink--> StepServer of each other node
//                                               |  hooks.start_ranks                |  hooks.start_ranks
//
// Every node of a script job has one; only the lead's listens. Step ids count from 1 (0 is the script itself). Several
// steps may run at once. A step ends when every rank of it has; it is killed when its client goes away.
//
// When a rank of a step dies from a signal, or fails with --kill-on-bad-exit, or fails while inside MPI (its peers would
// hang), the others get SIGTERM and, 2 s later, SIGKILL. Any other exit code leaves them running, as srun does.
//
// Thread rule: the loop's thread only; hooks are called from handle(), tick() and the on_* and local_* calls.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/protocol/shepherd.pb.h"
#include "base/result.h"
#include "base/time.h"
#include "runner/shepherd/gang_link.h"

namespace gangline::runner {

struct StepOptions {
    std::string socket_name;             // abstract; empty where this node is not the lead
    std::vector<proto::Placement> gang;  // the job's
    std::uint32_t node_index = 0;
    proto::JobSpec spec;                 // defaults: ranks, ranks_per_node, cpus_per_rank
};

// What the shepherd does for a step on its own node.
struct StepHooks {
    // Registers the step's gang (PMIx namespace of step_id) and forks this node's ranks of `step.gang()`. An error is the
    // step's: every rank of this node then counts as failed with exit code 127, and the text goes to the client.
    std::function<Result<void>(const proto::StartStep& step)> start_ranks;
    std::function<void(std::uint32_t step_id, int signal)> signal_ranks;  // to every living rank's process group
    // The client does not keep up: stop (or go on) reading the ranks' pipes, so that they block as on a full pipe.
    std::function<void(std::uint32_t step_id, bool paused)> pause_output;
};

class StepServer {
  public:
    // Errors: Internal when the socket cannot be made.
    static Result<std::unique_ptr<StepServer>> start(const StepOptions& options, StepHooks hooks, GangLink& link);
    virtual ~StepServer() = default;

    virtual int fd() const = 0;  // an epoll descriptor of its own; readable: call handle()
    virtual void handle() = 0;
    virtual TimePoint next_deadline() const = 0;  // TimePoint::max(): none
    virtual void tick(TimePoint now) = 0;

    // The shepherd reports what its own ranks of a step do; output before the exit.
    virtual void local_output(std::uint32_t step_id, std::uint32_t rank, bool is_error, std::string data) = 0;
    virtual void local_joined(std::uint32_t step_id, std::uint32_t rank) = 0;   // connected to PMIx
    // `report`: exit_code or signal set. A rank that left MPI without MPI_Finalize is given as exit_code != 0.
    virtual void local_exit(std::uint32_t step_id, const proto::RankReport& report) = 0;

    // Wire these to GangEvents.
    virtual void on_start_step(const proto::StartStep& step) = 0;
    virtual void on_stop_step(const proto::StopStep& step) = 0;
    virtual void on_step_exit(std::uint32_t node_index, const proto::StepExit& exit) = 0;
    virtual void on_step_output(std::uint32_t node_index, const proto::StepOutput& output) = 0;

    // The attempt ends: refuse new steps; running ones are stopped by the shepherd with everything else.
    virtual void close() = 0;
    virtual std::size_t running() const = 0;
};

}  // namespace gangline::runner
