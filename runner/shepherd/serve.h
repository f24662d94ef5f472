#pragma once
// The shepherd of one gang attempt on one node: forks the ranks, is their PMIx server and sub-reaper, keeps their output,
// reports to the agent, and proves everything gone at the end. It outlives its agent, and lives for one attempt only.
//
//   spare --Prepare--> PREPARED --Launch--> RUNNING --Stop / all ranks exited--> STOPPING --> GONE --Release--> exit
//
// Everything is on one thread and one epoll; libpmix and ZeroMQ have threads of their own.
// Source: docs/protocol.md.

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace gangline::runner {

struct ShepherdStart {
    int listen_fd = -1;          // a listening abstract SOCK_STREAM socket; the agent connects here
    std::string spool_folder;    // absolute; exists, 0700, ours: output.log, shepherd.log, script, libpmix's files
    std::string node;
    std::string address;         // of the node, for gang traffic
    std::string cluster;
    std::uint64_t job = 0;       // 0/0 = a spare: Identity and Prepare say whose it will be
    std::uint32_t attempt = 0;
    bool warm = false;           // start the PMIx server at once, before a job is known
    std::string cgroup;          // absolute folder of the attempt's cgroup v2 group, writable by us; empty: made below
                                 // the machine's root as docs/protocol.md names it, where that may be written
    uid_t agent_uid = 0;         // who may connect, besides root and our own uid
    std::uint32_t cards = 0;     // of the whole node: a rank is bound to its cards' share of the CPUs; 0 = not bound
    bool keep_stderr = false;    // else standard error becomes <spool>/shepherd.log
};

// Serves until Release, Quit, or until nobody has asked for a long time. Takes over the process: closes every descriptor
// but 0, 1, 2 and listen_fd, and leaves by _exit without running destructors (libpmix can hang in its own clean-up).
// Call it in a process with one thread, right after fork or exec.
int shepherd_serve(const ShepherdStart& start);

}  // namespace gangline::runner
