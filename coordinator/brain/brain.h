#pragma once
// The cluster's brain: who runs where, and what happens when something dies. Pure: no clock, socket, file or thread.
//
//   step(event, now) -> actions, performed in order; a Persist is durable before the next action starts.
//   State changes only in replay(record); step decides, makes records, replays them, and emits.
//
//   Queued -> Reserved -> Preparing -> Running -> {Completed, Failed, Cancelled, TimedOut}
//                ^            |           |             ^
//                |            v           v             |
//                +------- Recovering <----+--> Stopping-+
//
// Whole or nothing: a gang's cards are held in one record and given back only when every node of it is proved empty
// (NodePartGone). Attempt numbers fence: news of another attempt changes nothing but is answered with Stop.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/protocol/journal.pb.h"
#include "base/protocol/node.pb.h"
#include "base/protocol/user.pb.h"
#include "base/time.h"
#include "coordinator/schedule/fleet.h"

namespace gangline::coordinator {

// How many whole nodes are kept free for gangs that lose one.
struct SparePolicy {
    enum class How { Number, Percent, Observed };  // Observed: schedule/spares.h, from the failures that were seen
    How how = How::Number;
    double amount = 0;
};

struct BrainOptions {
    std::string cluster = "local";
    std::string version;
    Duration heartbeat = milliseconds(500);
    Duration node_timeout = milliseconds(2500);       // silence after which a node is suspect, or lost
    Duration prepare_timeout = seconds(15);
    Duration join_timeout = seconds(120);
    Duration stop_timeout = seconds(20);              // beyond the grace; then the node is blamed
    Duration progress_timeout = seconds(30);
    Duration grace = seconds(5);
    Duration keep_reserved = seconds(30);             // a recovering job that fits nowhere keeps its cards so long
    std::string checkpoint_root;                      // absolute; empty: HOME/.gangline/checkpoints of the job's user
    std::uint32_t keep_checkpoints = 3;
    std::uint64_t most_queued_per_user = 100'000;     // R21
    std::uint64_t first_job = 1;                      // the least number that a job gets
    Fleet fleet;                                      // cluster.toml
    // Order of the queue: priority first; then the score below, higher first; then age. A job without a time limit has no bonus for
    // being short, so without limits, and with one user, the order is age.
    double short_weight = 1;                          // x short_bonus(cards, time limit) of schedule/plan.h
    double share_weight = 1;                          // x 2^(-use/share): 1 for who used nothing, 0.5 for who used their share
    double age_weight_per_day = 0.5;                  // x days in the queue
    double size_weight = 0;                           // x cards / cards of the cluster
    std::uint32_t promises = 8;                       // to how many blocked jobs places are promised (conservative backfill)
    bool in_order = false;                            // no backfill at all
    bool preemption = true;                           // by higher priority
    Duration guaranteed_run = seconds(600);           // before a gang can be preempted
    Duration preemption_grace = seconds(30);          // to save and stop
    SparePolicy spares;
    bool spread = false;                              // all gangs onto the emptiest nodes
    bool defragment = false;                          // move small gangs, lately saved, out of a large one's way
};

// A user as the coordinator's own table and NSS know them; never from a message body.
struct Caller {
    std::string user;
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::vector<std::uint32_t> groups;
    std::string home;
    bool is_operator = false;   // operator or admin
};

using Tag = std::uint64_t;      // the shell's own mark of who asked

struct FromUser { Tag tag = 0; Caller who; proto::Request request; };
// `node` is the verified principal's name. `by_shepherd`: over the shepherd's own line, its agent being silent.
struct FromNode { std::string node; proto::NodeMessage message; bool by_shepherd = false; };
struct TookOffice { std::uint64_t epoch = 0; std::string coordinator_id; };   // first event after replay
struct Tick {};                                        // next_deadline() has come
using Event = std::variant<FromUser, FromNode, TookOffice, Tick>;

struct Persist { proto::Record record; };
struct Reply { Tag tag = 0; proto::Response response; };
struct SendOrder { std::string node; proto::Order order; };   // the shell fills in coordinator_id, epoch, ticket, endpoints
using Action = std::variant<Persist, Reply, SendOrder>;

class Brain {
  public:
    explicit Brain(BrainOptions options);
    ~Brain();
    Brain(Brain&&) noexcept;
    Brain& operator=(Brain&&) noexcept;

    std::vector<Action> step(const Event& event, const Now& now);
    // Several events that arrived together: one pass of placement at the end.
    std::vector<Action> step(const std::vector<Event>& events, const Now& now);
    void replay(const proto::Record& record);
    void replay(proto::Record&& record);  // cheaper: takes the job's description out of the record
    std::optional<TimePoint> next_deadline() const;

    // Read-only verbs (list, show, nodes, report, why, ping). The shell has checked that `who` may ask.
    proto::Response answer(const Caller& who, const proto::Request& request, const Now& now) const;
    // For the authorisation table: the user a job belongs to; nothing when there is no such job.
    std::optional<std::string> owner(std::uint64_t job) const;
    // A request about one element of an array (has_task): its job becomes that element. Returns why there is none; empty: done.
    std::string resolve_task(proto::Request& request) const;
    // Where a job's attempt ran (attempt 0: the newest), for `logs`.
    std::vector<proto::Placement> gang_of(std::uint64_t job, std::uint32_t& attempt) const;
    // Lines about the whole state, equal for equal states: tests compare a replayed brain with the one that wrote.
    std::string dump() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace gangline::coordinator
