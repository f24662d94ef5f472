#pragma once
// Ends what a dead shepherd left behind: every member of the attempt's cgroup and every bearer of its mark, proved gone.
// Also here: cgroups and shared memory of attempts. Integers and our own names only; no link is followed (R11, R12, R17).

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace gangline::runner {

struct ReapScope {
    std::string cgroup;  // absolute; empty = none
    std::string mark;    // GANGLINE_MARK=<this>
};

// Living processes of the scope (zombies do not count; this process never does).
std::vector<pid_t> members_of(const ReapScope& scope);
// SIGKILL until none is left; returns how many still are at the limit.
std::size_t kill_until_gone(const ReapScope& scope, Duration limit);
// The cgroup's folder and /dev/shm/<shm_name>.
void remove_leftovers(const ReapScope& scope, const std::string& shm_name);

// Root of the cgroup v2 hierarchy, also where it is the `unified` folder of a hybrid one; empty: none.
std::string cgroup_root();
// Makes <root>/<name>/{shepherd,ranks} and hands them to the user, who may then move his own processes between them; enters
// `shepherd`. Returns <root>/<name>. Errors: Unavailable (no cgroup v2 here), Internal.
Result<std::string> enter_new_cgroup(const std::string& name, uid_t uid, gid_t gid);

}  // namespace gangline::runner
