#pragma once
// Forks shepherds and keepers, and ends what a dead shepherd left behind. Single-threaded, no network.
//
//   agent --SpawnRequest--> execd --fork--> (become the user) --> shepherd_serve, or exec `gangline keeper`
//
// A fork of this small process costs a fraction of starting the executable again. In multi-user mode it is root and starts
// nothing without the coordinator's signed ticket for this node, attempt, user and job description (R4, R9), a keeper only beside a living
// shepherd of the same attempt and as its user; otherwise it runs
// as the agent's user and starts what that user asks for. The agent is not trusted: every path and mark is made here, from our
// own names and the request's integers. User tables (which may be slow) are asked in the child, so nothing here waits.
//
// Errors: every refusal is a reply with its reason; nothing was started then. Thread rule: one thread, one process.

#include <sys/types.h>

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/handle.h"
#include "base/protocol/shepherd.pb.h"
#include "base/result.h"
#include "base/wire/ticket.h"
#include "runner/execd/reap.h"

namespace gangline::runner {

struct NurseryOptions {
    std::string state;             // absolute; <state>/spool is made; an agent's own state is there already
    std::string cluster;
    std::string node;
    uid_t agent_uid = 0;
    gid_t agent_gid = 0;
    bool multi_user = false;
    std::string ticket_key;        // raw 32 bytes, multi-user
    uid_t min_uid = 1000;
    bool allow_root = false;
    bool no_new_privileges = false;
    Duration start_limit = seconds(20);   // of a child: user tables can be slow
    Duration reap_limit = seconds(5);
};

class Nursery {
  public:
    explicit Nursery(NurseryOptions options);
    // Folders, remembered nonces and epoch; orphans come to this process from here on. Errors: Refused when others may write there.
    Result<void> prepare();
    // Takes a request up. Its reply comes from settle(), at once when it is refused. In the child it never returns.
    void begin(const proto::ExecdRequest& request);
    // The replies that are due. Call it when a descriptor of waits() is readable, and at next_deadline().
    std::vector<proto::ExecdReply> settle(TimePoint now);
    std::vector<int> waits() const;
    std::optional<TimePoint> next_deadline() const;
    // Whoever asked has gone: shepherds that are only starting are killed, since nobody will know them, and no reply is due any more.
    // Returns the pidfds of the killed.
    std::vector<Fd> forget_asker();

  private:
    struct Identity {
        uid_t uid = 0;
        gid_t gid = 0;
        std::vector<gid_t> groups;
        bool change = false;
        proto::TicketClaims claims;
    };
    struct Starting {
        proto::SpawnReply reply;
        Fd report;
        std::string words;
        TimePoint until;
        std::string spool_name;
    };
    struct Ending {
        proto::ReapRequest request;
        Reaping reaping;
    };
    Result<void> spawn(const proto::SpawnRequest& request);
    Result<void> reap(const proto::ReapRequest& request);
    Result<void> is_for_us(const std::string& cluster, const std::string& node, const proto::AttemptId& id, const std::string& cgroup) const;
    Result<Identity> identity_for(const proto::SpawnRequest& request);
    Result<Identity> identity_of_keeper(const proto::SpawnRequest& request);
    [[noreturn]] void become_keeper(const proto::SpawnRequest& request) const;
    Result<void> remember(const proto::TicketClaims& claims) const;
    void recall();
    void recall_nonces();
    Result<std::string> make_spool(const std::string& name, const Identity& identity) const;
    std::optional<proto::SpawnReply> started(Starting& one, TimePoint now);
    Fd end_start(const Starting& one) const;
    proto::ReapReply ended(const Ending& one, std::size_t still_there);
    std::vector<ProcessId> started_processes() const;
    void forget_dead();
    [[noreturn]] void child(const proto::SpawnRequest& request, const Identity& identity, const std::string& spool, int socket, int report);

    NurseryOptions options_;
    TicketGuard guard_;
    std::uint64_t nonces_written_ = 0;
    std::list<Starting> starting_;
    std::list<Ending> ending_;
    std::vector<proto::ExecdReply> replies_;
    struct Started {
        ProcessId process;
        std::uint64_t job = 0;
        std::uint32_t attempt = 0;
        Identity identity;           // where it is changed: a keeper of this attempt becomes the same
        bool is_keeper = false;
    };
    std::vector<Started> started_;   // shepherds and keepers that may live
};

}  // namespace gangline::runner
