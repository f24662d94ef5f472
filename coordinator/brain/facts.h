#pragma once
// What the journal says: jobs, attempts, who holds which card, checkpoints. Changed only by apply(record).
//
//   Node.holds   (job, attempt) -> cards, CPUs, memory. A hold is made whole by GangReserved and ends only when the
//                node's part is proved gone and the job no longer keeps it.
//   queue        by priority, then age; what is asked for is kept once for all jobs that ask for the same (needs).
//
// Not here: progress, suspicion, connections, deadlines (core.h); they are learned again after a restart.

#include <array>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/protocol/journal.pb.h"
#include "coordinator/brain/accounts.h"
#include "coordinator/brain/dependency.h"
#include "coordinator/brain/job.h"
#include "coordinator/brain/ledger.h"
#include "coordinator/brain/placement.h"

namespace gangline::coordinator {

inline constexpr std::size_t kKeepEnded = 10'000;  // ended jobs that can still be shown
inline constexpr int kMostFaults = 50;             // a job
inline constexpr double kUseHalfLifeS = 7 * 86400;  // after which a card-second counts half in fair share
inline constexpr std::int64_t kMoveMs = 180'000;   // a moved gang's places are kept so long
inline constexpr double kSignalBlame = 0.3;  // a rank's death by a signal says less of its node than the node's own failure
inline constexpr double kLemonHalfLifeS = 14 * 86400;  // after which a node's failure counts half
inline constexpr std::size_t kKeepLastLines = 20;  // newest attempts of a job whose output excerpt is kept

struct AttemptKey {
    std::uint64_t job = 0;
    std::uint32_t attempt = 0;
    auto operator<=>(const AttemptKey&) const = default;
};
inline AttemptKey key_of(const proto::AttemptId& id) { return {id.job(), id.attempt()}; }

enum class PartState { Held, Presumed, Gone };  // Presumed: given up, but not proved empty

// One node's part of an attempt.
struct Part {
    proto::Placement place;
    PartState state = PartState::Held;
    std::optional<std::uint64_t> snapshot;  // step; of one that is Gone, or, in its replicas, Presumed
};

struct Attempt {
    std::uint32_t number = 0;
    std::vector<Part> parts;
    std::string reason;
    std::optional<proto::RestorePoint> restore;
    std::int64_t reserved_ms = 0;
    std::int64_t launched_ms = 0;
    std::int64_t joined_ms = 0;
    std::int64_t gone_ms = 0;
    std::int64_t ended_ms = 0;
    std::int64_t let_go_ms = 0;       // its job gave its cards up; 0 = it holds them
    proto::AttemptEnding end;         // meaningful when ended_ms != 0
    std::vector<std::string> spares;  // whole nodes held beside the gang
    std::uint64_t idle_cards = 0;     // on them, and on the rest of its own whole nodes
    std::int64_t idle_since_ms = 0;
    double idle_card_s = 0;           // until then
    std::vector<std::string> passed_over;

    bool all_gone() const;
    double idle_card_s_at(std::int64_t unix_ms) const;
    Part* part_on(const std::string& node);
    const Part* part_on(const std::string& node) const;
    std::uint32_t ranks() const;
    std::uint64_t cards() const;
};

struct Checkpoint {
    proto::RestorePoint point;
    std::int64_t unix_ms = 0;
    std::uint64_t bytes = 0;
    bool damaged = false;
    std::string note;
    std::optional<double> metric;
    bool pinned = false;
    bool verified = false;
};

// Higher priority first, then age: ids rise with age and survive a requeue.
struct QueueKey {
    std::int64_t behind = 0;  // minus priority
    std::uint64_t job = 0;
    auto operator<=>(const QueueKey&) const = default;
};

// Jobs that one user submits from one place carry equal environments: they share one.
using Environment = google::protobuf::RepeatedPtrField<proto::Variable>;

struct Account {
    std::vector<std::uint32_t> groups;
    std::string home;
    bool operator==(const Account&) const = default;
};

// Places that a waiting job keeps since others were told to leave them for it.
struct Claim {
    std::vector<std::pair<std::string, std::uint32_t>> places;  // node, ranks
    std::vector<std::uint64_t> victims;
    std::string reason;
    std::int64_t until_ms = 0;  // it lapses then; 0 = never
};

struct Job {
    std::uint64_t id = 0;
    std::string user;
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::shared_ptr<const Account> account;           // shared by a user's jobs
    proto::JobSpec spec;                              // without its environment
    std::shared_ptr<const Environment> environment;   // nothing once the job has ended
    std::uint32_t need = 0;                           // index into Facts::needs
    std::unique_ptr<const Dependency> dependency;     // nothing = none
    std::uint64_t granted_limit_s = 0;                // of the newest attempt, where less than the spec's
    proto::JobState state = proto::QUEUED;
    bool held = false;
    std::unique_ptr<const std::string> held_by;       // nothing: nobody
    std::string reason;
    std::int64_t submitted_ms = 0;
    std::int64_t ended_ms = 0;
    std::int32_t exit_code = 0;
    std::vector<Attempt> attempts;
    std::vector<Checkpoint> checkpoints;
    std::optional<proto::RestorePoint> snapshot;  // newer than any committed one: whole in memory when its gang ended
    std::vector<std::string> faults;
    std::vector<std::pair<std::string, std::uint32_t>> blamed;  // node, how often
    std::uint32_t user_failures = 0;
    std::uint32_t without_progress = 0;           // restarts in a row
    std::uint64_t best_step = 0;                  // over ended attempts
    std::unique_ptr<const proto::Progress> last_progress;
    std::unique_ptr<const Claim> claim;
    bool has_evicted = false;                     // once is all
    std::uint32_t preemptions = 0;                // how often others took its place

    proto::JobSpec full_spec() const;
    bool is_script() const { return !spec.script().empty(); }
    Attempt& attempt() { return attempts.back(); }
    const Attempt& attempt() const { return attempts.back(); }
    bool has_failed_on(const std::string& node) const;
    // The wall seconds that it may still run in all, at `now_ms`; nothing: no limit.
    std::optional<std::int64_t> time_left_ms(std::int64_t now_ms) const;
    AttemptKey key() const { return {id, attempts.empty() ? 0 : attempts.back().number}; }
    // Of the gang that it has, or the most that it asks for.
    std::uint32_t ranks() const { return spec.elastic() && !attempts.empty() && state != proto::QUEUED ? attempt().ranks() : spec.ranks(); }
    // "7", or of an array "7_3".
    std::string name() const { return spec.has_array() ? std::to_string(spec.array().job()) + "_" + std::to_string(spec.array().task()) : std::to_string(id); }
    // Its id is its array's, too.
    bool is_array() const { return spec.has_array() && spec.array().job() == id; }
    QueueKey queue_key() const { return {-std::int64_t{spec.priority()}, id}; }
    // The newest committed checkpoint that is not damaged.
    const Checkpoint* newest_good() const;
    // What the next attempt starts from; nothing: afresh.
    std::optional<proto::RestorePoint> restore_point() const;
    // Some were committed, and each was found damaged, and nothing is in memory: it must not start afresh in silence.
    bool has_lost_its_checkpoints() const { return !checkpoints.empty() && !restore_point(); }
    // Whether the attempt got further than every one before it. `last` is what its ranks last said.
    bool made_progress(const Attempt& of, const proto::Progress& last, std::int64_t ended_ms) const;
};

// What a user's jobs have used: for fair share and for guesses of run times.
struct History {
    double used_card_s = 0;         // decayed to `at_ms`
    std::int64_t at_ms = 0;
    double run_s = 0;               // of an ended job, newer ones weigh more
    double of_limit = 0;            // run time / time limit, the same
    std::uint32_t jobs = 0;
    std::uint32_t with_limit = 0;
    std::array<double, kCauses> card_s{};  // of its ended jobs
};

// How far an array is: enough for what depends on it, however many elements it has.
struct ArrayTally {
    std::uint32_t count = 0;
    std::uint32_t started = 0;      // or cancelled before
    std::uint32_t ended = 0;
    std::uint32_t completed = 0;
    std::int64_t last_start_ms = 0;
};

struct Hold {
    std::uint32_t ranks = 0;
    std::vector<std::uint32_t> cards;
    std::uint32_t cpus = 0;
    std::uint64_t memory_mib = 0;
    bool exclusive = false;
    bool cleaning = false;  // given up by its job, not proved empty
    bool let_go = false;    // and its job does not hold it any more
    bool spare = false;     // held beside the gang: nothing of it runs here
};

struct Node {
    proto::NodeInfo info;
    bool drained = false;
    std::string drained_by;
    std::string drain_note;
    bool lost = false;
    std::string lost_reason;
    std::map<AttemptKey, Hold> holds;
    std::map<std::uint32_t, AttemptKey> busy;  // card -> its holder
    std::int64_t lost_ms = 0;
    double lemon = 0;                          // failures of it, decayed to `lemon_ms`
    std::int64_t lemon_ms = 0;
    CardCounts counted{};                      // as Facts::accounts has it

    // What nobody holds, with the cards of `kept` (a recovering job's) counted as free.
    Offer offer(std::optional<AttemptKey> kept = std::nullopt) const;
    std::uint32_t cards_free() const;
    double lemon_at(std::int64_t unix_ms) const;
    // Two failures lately make a lemon, four a bad one: NodeSeed::penalty.
    std::uint32_t penalty_at(std::int64_t unix_ms) const;
    CardCounts count() const;
};

// What the ledger needs to know of a job until `until_ms`; `live`: what its running attempt's ranks last said.
JobStory story_of(const Job& job, std::int64_t until_ms, const proto::Progress& live);

class Facts {
  public:
    void apply(const proto::Record& record);
    void apply(proto::Record&& record);  // takes what is large out of it
    std::string dump() const;

    Job* find(std::uint64_t id);
    const Job* find(std::uint64_t id) const;
    // The job whose newest, not yet ended, attempt this is.
    Job* current(const proto::AttemptId& id);
    Node* node(const std::string& name);
    const Node* node(const std::string& name) const;
    std::optional<std::uint64_t> submitted_with(const std::string& user, const std::string& idempotency_key) const;

    std::map<std::uint64_t, Job> jobs;
    std::map<std::string, Node> nodes;
    std::set<std::uint64_t> active;                            // jobs neither queued nor ended
    std::map<QueueKey, Job*> queue;                            // queued and not held
    std::vector<Need> needs;
    std::map<std::string, History> users;
    std::map<std::uint64_t, ArrayTally> arrays;                // by their first element's id
    std::map<std::string, proto::Reservation> reservations;    // by name; those that are over go when another is set
    Accounts accounts;
    std::map<std::string, std::uint64_t> waiting_of_user;      // queued jobs, held ones too
    std::uint64_t waiting_for_cards = 0;                       // queued jobs that wait for nothing else
    std::uint64_t last_job = 0;
    std::uint64_t version = 0;                                 // rises with each record
    std::uint64_t nodes_known = 0;                             // rises with each description of a node
    std::uint64_t epoch = 0;

  private:
    void move(Job& job, JobSignal signal);
    void enqueue(Job& job);
    void dequeue(const Job& job);
    void apply_submitted(const proto::JobSubmitted& body, proto::JobSpec spec, std::int64_t unix_ms);
    void add_job(std::uint64_t id, const proto::JobSubmitted& body, proto::JobSpec spec, std::int64_t unix_ms);
    void share_environment(Job& job);
    void remember(const Job& job, std::int64_t unix_ms);
    void apply_held(const proto::JobHeld& body);
    void apply_reserved(const proto::GangReserved& body, std::int64_t unix_ms);
    void apply_ending(const proto::AttemptEnding& body, std::int64_t unix_ms);
    void apply_gone(const proto::NodePartGone& body, std::int64_t unix_ms);
    void apply_planned(const proto::PreemptionPlanned& body, std::int64_t unix_ms);
    void apply_ended(const proto::JobEnded& body, std::int64_t unix_ms);
    void note_snapshot(Job& job);
    void apply_committed(const proto::CheckpointCommitted& body, std::int64_t unix_ms);
    void apply_damaged(const proto::CheckpointFoundDamaged& body);
    void apply_fault(const proto::JobFaultSeen& body);
    void apply_spares(const proto::SparesHeld& body, std::int64_t unix_ms);
    void apply_reservation(const proto::Record& record);
    void apply_node(const proto::Record& record);
    void blame(const std::string& node, double weight, std::int64_t unix_ms);
    void recount(Node& node);
    void set_idle(Attempt& attempt, std::uint64_t cards, std::int64_t unix_ms);
    void erase_hold(const std::string& node, const AttemptKey& key);
    void let_go(Job& job, std::int64_t unix_ms);
    void forget_oldest_ended();
    void name_dependencies(const Job& job, bool begins);
    bool is_pinned(const Job& job) const;
    void unpin(std::uint64_t first, std::uint64_t count);
    void tally_start(const Job& job, std::int64_t unix_ms);

    std::map<std::pair<std::string, std::string>, std::uint64_t> by_idempotency_key_;
    std::deque<std::uint64_t> ended_;
    std::set<std::uint64_t> pinned_;               // ended jobs that are kept: a queued job depends on them, or their array goes on
    std::map<std::uint64_t, std::uint32_t> named_;  // job -> by how many queued jobs' dependencies
    std::map<std::string, std::uint32_t> need_of_shape_;
    std::map<std::string, std::weak_ptr<const Account>> last_account_;  // of each user
    std::map<std::string, std::weak_ptr<const Environment>> last_environment_;  // of each user
};

}  // namespace gangline::coordinator
