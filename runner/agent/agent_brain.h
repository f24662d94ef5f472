#pragma once
// The node's brain: which attempts live here, who may order what, what the coordinator must hear. Pure.
//
//   Prepare --(cards free here?)--> Spawning --> Live (its shepherd speaks) --> Gone --Release--> forgotten
//                  |                   |            | shepherd dies                ^
//                  '- Waiting          '------------'--> Reaping ------------------'
//
// A job's keeper is started when one of its ranks asks for it, and stays over attempts, until the coordinator says that the job's snapshots are
// not needed here any more.
//
// Orders are idempotent and fenced by epoch. An outcome (GONE) is kept and told again in every Hello until Release. A card is
// offered to a new attempt only when the attempt that held it before is Gone here.

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/process.h"
#include "base/protocol/node.pb.h"
#include "base/protocol/shepherd.pb.h"
#include "base/time.h"

namespace gangline::runner {

struct AgentOptions {
    std::string cluster;
    proto::NodeInfo node;
    std::string agent_id;            // random, of this process
    std::string socket_seed;         // random: sockets are named gangline-<seed>-<number>
    bool spares_allowed = true;      // all jobs run as our own user
    std::uint32_t most_spares = 4;
    bool cgroups = false;
    std::uint64_t highest_epoch = 0;
    Duration heartbeat = milliseconds(500);
    Duration stop_slack = seconds(5);        // beyond the grace, then the shepherd itself is killed
    Duration spawn_limit = seconds(10);
    Duration refill_delay = milliseconds(300);
    std::uint32_t uid = 0;                   // ours, and our name ("": it has none): without an execd all jobs are this user's
    std::string user;
};

// What outlives this process: enough to find the attempt again.
struct AttemptNote {
    proto::Prepare prepare;          // id 0/0: a spare, or a keeper (its spool folder says which)
    std::string socket_name;
    std::string spool_folder;
    std::string spare_folder;        // of a spare that was taken for this attempt: what its first life left
    ProcessId shepherd;
};

struct FromCoordinator { proto::Order order; };
struct FromShepherdEvent { std::string socket_name; proto::FromShepherd message; };
struct ShepherdUp { std::string socket_name; };
struct ShepherdDown { std::string socket_name; };  // the connection ended, or could not be made
struct Spawned { proto::SpawnReply reply; };
struct Reaped { proto::ReapReply reply; };
// First event. Leftovers: attempts that cgroups or shared memory are named after.
struct Started { std::vector<AttemptNote> notes; std::vector<proto::AttemptId> leftovers; };
struct Abandon {};                                 // whoever we work for has gone: end everything here
struct Leave {};                                   // we go, gangs stay: spares quit
struct AgentTick {};
using AgentEvent = std::variant<FromCoordinator, FromShepherdEvent, ShepherdUp, ShepherdDown, Spawned, Reaped, Started, Abandon, Leave, AgentTick>;

struct Tell { proto::NodeMessage message; };       // the coordinator
struct TellShepherd { std::string socket_name; proto::ToShepherd message; };
struct Connect { std::string socket_name; ProcessId shepherd; };
struct KillShepherd { ProcessId shepherd; };
struct Spawn { proto::SpawnRequest request; };
struct Reap { proto::ReapRequest request; };
struct KeepNote { AttemptNote note; };
struct DropNote { std::string spool_folder; };
struct KeepEpoch { std::uint64_t epoch = 0; };
struct RemoveSpool { std::string spool_folder; };
struct SpoolEnded { std::string spool_folder; };   // kept for its log, as long as there is room
struct ReadLog { proto::LogRequest request; std::string spool_folder; bool ended = false; };
struct Exit { int code = 0; std::string reason; };
struct Say { std::string line; };                  // the log
using AgentAction = std::variant<Tell, TellShepherd, Connect, KillShepherd, Spawn, Reap, KeepNote, DropNote, KeepEpoch, RemoveSpool, SpoolEnded, ReadLog,
                                 Exit, Say>;

class AgentBrain {
  public:
    explicit AgentBrain(AgentOptions options);
    std::vector<AgentAction> step(const AgentEvent& event, const Now& now);
    std::optional<TimePoint> next_deadline() const;
    bool is_welcome() const { return welcome_; }
    // Sockets of the spares, told to quit by Leave.
    const std::vector<std::string>& left_spares() const { return left_spares_; }

  private:
    enum class State { Waiting, Spawning, Live, Reaping, Gone };
    struct Key {
        std::uint64_t job = 0;
        std::uint32_t attempt = 0;
        auto operator<=>(const Key&) const = default;
    };
    struct Attempt {
        State state = State::Waiting;
        AttemptNote note;
        std::optional<proto::Launch> launch;
        std::optional<proto::Stop> stop;
        std::optional<TimePoint> deadline;     // of the spawn, or of the stop
        std::string failure;                   // told with GONE after Reaping
        proto::AttemptReport report;
        std::string told;                      // digest of what the coordinator has heard
        bool connected = false;
        TimePoint heard;                       // from its shepherd, while connected
        std::uint64_t request = 0;
    };
    struct Spare {
        std::string socket_name;
        std::string spool_folder;
        ProcessId shepherd;
        std::uint64_t request = 0;             // != 0: not spawned yet
        bool connected = false;
        bool ready = false;                    // it has answered, so its PMIx server is up
    };
    // Of one job.
    struct Keeper {
        AttemptNote note;
        std::uint64_t request = 0;             // != 0: not spawned yet
        bool connected = false;
        TimePoint since;                       // it was asked for, or has spoken
        std::vector<std::string> askers;       // sockets of shepherds
    };
    // A shepherd that was told to go: until it has gone.
    struct Leaving {
        AttemptNote note;
        TimePoint deadline;
    };

    static std::string spool_name(const proto::AttemptId& id);
    void handle(const FromCoordinator& event);
    void handle(const FromShepherdEvent& event);
    void handle(const ShepherdUp& event);
    void handle(const ShepherdDown& event);
    void handle(const Spawned& event);
    void handle(const Reaped& event);
    void handle(const Started& event);
    void handle(const Abandon& event);
    void handle(const Leave& event);
    void handle(const AgentTick& event);

    void hello();
    void first_hello();
    void beat();
    void prepare(const proto::Prepare& order);
    void launch(const proto::Launch& order);
    void stop(const proto::Stop& order);
    void release(const proto::Release& order);
    void begin(Key key, Attempt& attempt);
    bool cards_are_free(Key key, const proto::Prepare& prepare) const;
    void take_waiting();
    bool take_spare(Attempt& attempt);
    void refill_spares();
    void spawn_for(Key key, Attempt& attempt);
    void reap(Key key, Attempt& attempt, std::string why);
    void reap_leftover(const proto::AttemptId& id);
    void reattach(const AttemptNote& note);
    std::string why_not_ours(const proto::Prepare& order) const;
    bool reattach_keeper(const AttemptNote& note);  // false: the note is a spare's
    void keeper_wanted(Key key, const std::string& asker, bool start);
    void answer_askers(Keeper& keeper);
    void lose_keeper(std::uint64_t job);
    void let_keeper_go(std::uint64_t job);
    Keeper* keeper_by_socket(const std::string& name, std::uint64_t& job);
    void watch_keepers(bool overslept);
    void let_go(const AttemptNote& note, bool connected);
    void has_left(const AttemptNote& note);
    proto::ReapRequest reap_request(Key key) const;
    void end_late_ones();
    void end_silent_ones(bool overslept);
    void gone(Key key, Attempt& attempt);
    void send_prepared_state(Key key, Attempt& attempt);
    void tell_report(Attempt& attempt, bool always);
    void exit_when_empty();
    Attempt* by_socket(const std::string& name, Key& key);
    Spare* spare_by_socket(const std::string& name);
    proto::ToShepherd identity(const std::string& spool) const;
    std::string cgroup_of(Key key) const;
    void tell(proto::NodeMessage message);
    void say(std::string line) { actions_.push_back(Say{std::move(line)}); }

    AgentOptions options_;
    std::map<Key, Attempt> attempts_;
    std::vector<Spare> spares_;
    std::map<std::uint64_t, Keeper> keepers_;  // by job
    std::map<std::string, Leaving> leaving_;   // by socket
    std::string coordinator_id_;
    std::uint64_t sequence_ = 0;
    std::uint64_t next_request_ = 1;
    std::uint64_t next_spare_ = 1;
    std::int64_t started_ms_ = 0;              // names spares' folders, so that no earlier agent's is met
    std::uint64_t next_socket_ = 1;
    bool welcome_ = false;
    std::optional<TimePoint> hello_by_;        // the first Hello waits for re-attached shepherds, no longer than this
    bool abandoned_ = false;
    TimePoint next_beat_;
    std::uint32_t unanswered_beats_ = 0;
    std::optional<TimePoint> refill_at_;
    std::optional<TimePoint> abandon_by_;
    std::vector<std::string> left_spares_;
    std::vector<TimePoint> spares_taken_;      // lately
    Now now_;
    std::vector<AgentAction> actions_;
};

}  // namespace gangline::runner
