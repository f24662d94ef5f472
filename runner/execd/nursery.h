#pragma once
// Forks shepherds, and ends what a dead shepherd left behind. Single-threaded, no network.
//
//   agent --SpawnRequest--> execd --fork--> (become the user) --> shepherd_serve
//
// A fork of this small process costs a fraction of starting the executable again. In multi-user mode it is root and starts
// nothing without the coordinator's signed ticket for this node, attempt, user and job description (R4, R9); otherwise it runs
// as the agent's user and starts what that user asks for.
//
// Errors: every refusal is a reply with its reason; nothing was started then. Thread rule: one thread, one process.

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/handle.h"
#include "base/protocol/shepherd.pb.h"
#include "base/result.h"
#include "base/wire/ticket.h"

namespace gangline::runner {

struct NurseryOptions {
    std::string state;             // absolute; <state>/spool is made
    std::string cluster;
    std::string node;
    uid_t agent_uid = 0;
    gid_t agent_gid = 0;
    bool multi_user = false;
    std::string ticket_key;        // raw 32 bytes, multi-user
    uid_t min_uid = 1000;
    bool allow_root = false;
    bool no_new_privileges = false;
};

class Nursery {
  public:
    explicit Nursery(NurseryOptions options);
    Result<void> prepare();                              // folders, remembered nonces and epoch
    // `connection`: closed in the child. In the child it never returns.
    proto::ExecdReply handle(const proto::ExecdRequest& request, int connection);

  private:
    struct Identity {
        uid_t uid = 0;
        gid_t gid = 0;
        std::string user;
        std::vector<gid_t> groups;
        bool change = false;
    };
    proto::SpawnReply spawn(const proto::SpawnRequest& request, int connection);
    proto::ReapReply reap(const proto::ReapRequest& request);
    Result<Identity> identity_for(const proto::SpawnRequest& request);
    Result<std::string> make_spool(const std::string& name, const Identity& identity) const;
    [[noreturn]] void child(const proto::SpawnRequest& request, const Identity& identity, const std::string& spool, Fd socket, int report);

    NurseryOptions options_;
    TicketGuard guard_;
};

}  // namespace gangline::runner
