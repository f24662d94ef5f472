#pragma once
// Kills everything of an attempt on this node, and proves it.
//
// The shepherd is a child sub-reaper: whatever a rank leaves behind (a background child, a double fork, its own session)
// becomes the shepherd's child when its parent dies. So: kill the process groups, the cgroup, and every child, again
// after each death, until waitpid says that there is no child. Then look for the mark in /proc, for what a nested sub-reaper
// or another parent may hold, and for what the cgroup still counts.
//
// Thread rule: the loop's thread; nothing here waits.
// Source: prctl(2) PR_SET_CHILD_SUBREAPER, proc(5) task/TID/children, cgroups(7) cgroup.kill.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/handle.h"
#include "base/result.h"

namespace gangline::runner {

// A cgroup v2 folder for the ranks: <attempt's folder>/ranks.
class RankCgroup {
  public:
    // Makes it (and its parents, where they are missing). Errors: Unavailable where there is no cgroup v2 to write.
    static Result<RankCgroup> create(const std::string& attempt_folder);
    int fd() const { return folder_.get(); }
    void kill() const;              // cgroup.kill, or each process of cgroup.procs before Linux 5.14
    bool is_empty() const;
    // memory.max in bytes. Errors: Unavailable where the memory controller is not delegated.
    Result<void> limit_memory(std::uint64_t bytes) const;
    // How many processes of it the kernel has killed for want of memory (memory.events, oom_kill).
    std::uint64_t killed_for_memory() const;
    void remove() const;            // the folder, and its parents as far as they are empty and ours

  private:
    std::string path_;
    Fd folder_;
};

// The machine's cgroup v2 root that this process may write below; empty: none.
std::string writable_cgroup_root();

// SIGKILL to every child of this process (all its threads'), and to the group of each that leads one. Returns how many.
std::size_t kill_children();
// Processes other than this one that carry GANGLINE_MARK=`mark` in the environment they were started with, and that we may
// read. Zombies do not count.
std::vector<pid_t> marked_processes(const std::string& mark);

}  // namespace gangline::runner
