#pragma once
// Ends what a dead shepherd left behind: every member of the attempt's cgroup, every bearer of its mark, and every orphan that came
// to this sub-reaper; proved gone. Also here: cgroups and shared memory of attempts. Names are our own and integers only; no link is
// followed (R11, R12, R17).
//
// Nothing here waits: Reaping::look is called again when a killed process has ended, or with the time.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/handle.h"
#include "base/process.h"
#include "base/result.h"
#include "base/time.h"

namespace gangline::runner {

struct ReapScope {
    std::string cgroup;                // absolute; empty = none
    std::string mark;                  // GANGLINE_MARK=<this>
    bool orphans = false;              // our own children too, except those that we started as shepherds and keepers
};

// Living processes of the scope (zombies do not count; this process never does). `ours`: children that are no orphans.
std::vector<ProcessId> members_of(const ReapScope& scope, const std::vector<ProcessId>& ours = {});

class Reaping {
  public:
    Reaping(ReapScope scope, TimePoint until) : scope_(std::move(scope)), until_(until) {}
    // SIGKILL to everybody in the scope. How many are there still, once that is known: 0 after two looks that found nobody (one that
    // forks and ends can slip through one), more at the limit. Nothing: not yet. `ours`: those of this moment, since some may have
    // been forked after the reaping began.
    std::optional<std::size_t> look(TimePoint now, const std::vector<ProcessId>& ours = {});
    bool is_due(TimePoint now) const;  // its time has come, or a killed process has ended
    const std::vector<Fd>& deaths() const { return deaths_; }  // readable: worth a look
    TimePoint next_look() const { return next_look_; }
    const ReapScope& scope() const { return scope_; }

  private:
    ReapScope scope_;
    TimePoint until_;
    TimePoint next_look_{};
    std::vector<Fd> deaths_;
    int empty_looks_ = 0;
};

// The cgroup's folders and /dev/shm/<shm_name>.
void remove_leftovers(const ReapScope& scope, const std::string& shm_name);

// Root of the cgroup v2 hierarchy, also where it is the `unified` folder of a hybrid one; empty: none.
std::string cgroup_root();
// Makes <root>/<name>/{shepherd,ranks} and hands them to the user, who may then move his own processes between them; enters
// `shepherd`. Returns <root>/<name>. Errors: Unavailable (no cgroup v2 here), Internal.
Result<std::string> enter_new_cgroup(const std::string& name, uid_t uid, gid_t gid);

}  // namespace gangline::runner
