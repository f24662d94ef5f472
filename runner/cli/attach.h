#pragma once
// Stays with a job until its end: its output, its progress, its restarts and faults in words; Ctrl-C cancels it.
//
// One loop over the coordinator's socket and a signalfd: ShowJob and ReadLogs are asked as they fall due (2 ms after a
// change, up to 100 ms when nothing happens), never one behind the other.
//
// The first SIGINT, SIGTERM or SIGHUP cancels the job with its grace, a second one calls `at_once` and returns.
//
// Thread rule: one thread; these signals must be blocked (SignalWatch) before it and before other threads start.

#include <functional>
#include <optional>
#include <string>

#include "base/handle.h"
#include "base/protocol/user.pb.h"
#include "base/result.h"
#include "runner/cli/client.h"
#include "runner/cli/output_printer.h"

namespace gangline::runner {

// Blocks SIGINT, SIGTERM and SIGHUP and reads them from a descriptor; or leaves them alone.
class SignalWatch {
  public:
    enum class Mode { Watch, LeaveAlone };
    explicit SignalWatch(Mode mode);
    int fd() const { return fd_.get(); }
    int next();                    // 0: none is waiting

  private:
    Fd fd_;
};

struct AttachOptions {
    bool logs = true;
    bool progress = true;          // and what it waits for; faults, restarts and a hold are told in any case
    std::string reach;             // what a `gangline release` needs to reach this cluster; empty: nothing
    std::function<std::optional<std::string>()> cluster_died;   // why nothing will answer any more; nothing: all is well
};

struct AttachEnd {
    proto::JobView job;            // as last seen; ended, unless `interrupted`
    int signal = 0;                // a second signal ended the watching
    bool cancelled_here = false;
};

Result<AttachEnd> attach(Client& client, std::uint64_t job, OutputPrinter& printer, SignalWatch& signals,
                         const AttachOptions& options);

// "job 7 failed: rank 2 on n1 exited with code 3" and its last lines; empty for a job that completed.
std::string failure_words(const proto::JobView& job);

}  // namespace gangline::runner
