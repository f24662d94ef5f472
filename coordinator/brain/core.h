#pragma once
// Inside the brain: the journalled facts, what was only heard (live), every deadline, and the actions of this step.
//
//   brain.cpp       events in, actions out; people's changing verbs     gang.cpp        prepare, launch, join, end
//   placing.cpp     who starts where, by the plan of coordinator/schedule
//   preempt.cpp     who makes room for a higher priority
//   roster.cpp      the cluster in numbers, spares                      queue.cpp       the order, what holds a job back, limits
//   elastic.cpp     gangs that grow, the nodes held beside them         reservations.cpp
//   submit.cpp      what is refused at submit                           recovery.cpp    a failure's cause, kind and next
//   report.cpp      what nodes say of their attempts                    liveness.cpp    hello, silence, hangs
//   checkpoints.cpp commit and damage                                   answer*.cpp     read-only verbs
//
// A step gathers its records and its other actions apart and puts all Persists first: one commit for all of it, and
// nothing leaves before it is durable. Live data belongs to one coordinator's life; Hello brings it back.

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/brain/brain.h"
#include "coordinator/brain/facts.h"
#include "coordinator/brain/timers.h"
#include "coordinator/schedule/plan.h"

namespace gangline::coordinator {

inline constexpr Duration kForkedIsJoined = seconds(1);      // programs that join nothing
inline constexpr Duration kVerdictDelay = milliseconds(100); // an echo may overtake its cause on another node
inline constexpr Duration kReturnGrace = milliseconds(2500); // after a new coordinator: agents come back within it
inline constexpr Duration kOverslept = seconds(1);          // a deadline found so late: we did not run, others may have
inline constexpr Duration kSendAgain = seconds(2);           // an order without its answer
inline constexpr int kMostPasses = 4;                // of a step: spares that are given up make another one
inline constexpr std::uint32_t kCrashLoop = 2;        // the same user's failures in a row, without progress
inline constexpr std::uint32_t kSignalCrashLoop = 3;  // the same rank by the same signal from outside, without progress
inline constexpr std::int64_t kPatienceMs = 300'000;         // a job passed over so long is passed no more
inline constexpr std::int64_t kShortestGuessMs = 60'000;     // more for a job that has outrun its guess

// What a node last said of its part of a job's newest attempt.
struct PartNow {
    bool heard = false;
    std::uint64_t revision = 0;
    proto::AttemptPhase phase = proto::ATTEMPT_PREPARING;
    std::string gang_key;
    std::string gang_endpoint;
    std::uint32_t master_port = 0;
    bool script_ended = false;
    TimePoint ordered;                         // the last order sent
    std::optional<TimePoint> shepherd_spoke;   // over its own line
};

struct RankNow {
    std::string node;
    proto::RankReport report;
    TimePoint moved;                           // its step or beat
};
using RankKey = std::pair<std::uint32_t, std::uint32_t>;  // step id (0: the command or script), rank

// Why an attempt ends.
struct Fault {
    std::string cause;
    proto::FaultKind kind = proto::NO_FAULT;
    std::int32_t rank = -1;
    std::int32_t exit_code = 0;
    std::int32_t signal = 0;
    std::string last_lines;
    std::string node;                          // where it happened
    bool blame = false;                        // avoid that node
    bool final = false;                        // no restart helps
    bool of_part = false;                      // a node's part failed as a whole (its shepherd died)
    Duration stalled{0};                       // nothing moved for this long before
};

// A job's newest attempt as heard.
struct Run {
    std::vector<PartNow> parts;                // as Attempt::parts
    std::map<RankKey, RankNow> ranks;
    std::map<std::uint32_t, Fault> step_faults;  // a script's steps: the first failure in each
    std::optional<Fault> verdict;              // a user's failure that may be an echo of another node's
    std::optional<TimePoint> verdict_asked;    // when its other nodes were asked
    std::optional<TimePoint> moved;            // any step or beat; nothing: no rank uses the worker library
    std::optional<TimePoint> forked;           // when every rank was forked
    std::optional<TimePoint> back_off_until;
    bool finish_ordered = false;
};

struct NodeNow {
    bool connected = false;                    // its agent has said Hello to this coordinator
    bool suspect = false;                      // its agent is silent, a shepherd of it speaks
    std::string agent_id;
    TimePoint heard;
    std::int64_t heard_ms = 0;
    std::map<AttemptKey, TimePoint> unwanted;  // must be gone from it, and when Stop was last sent
};

// The nodes as the scheduler numbers them: by block, rack and name.
struct Roster {
    std::vector<std::string> names;
    std::vector<const Node*> nodes;
    std::vector<std::uint32_t> blocks;
    std::vector<std::uint32_t> racks;
    std::vector<std::string> rack_names;       // of each node; empty = in none
    std::vector<NodeTraits> traits;
    std::map<std::string, std::uint32_t> numbers;
    std::optional<Cluster> empty;              // all nodes open and nobody on them
    std::uint64_t version = 0;                 // Facts::nodes_known that it was made from
};

// Who has what, and which nodes take nothing new: what `why` counts.
struct Survey {
    struct Holder {
        std::uint64_t cards = 0;
        std::size_t nodes = 0;
    };
    std::vector<std::string> drained;
    std::vector<std::string> lost;
    std::vector<std::string> silent;
    std::vector<std::string> unclean;
    std::map<std::uint64_t, Holder> holders;          // by job
    std::size_t open = 0;
    std::uint64_t free = 0;                           // cards on open nodes
    std::uint64_t all = 0;
};

// What the last plan said of the jobs that wait: what `why` and `queue` answer from.
struct Outlook {
    struct Entry {
        Standing standing = Standing::NoRoom;
        std::int64_t promised_ms = 0;   // 0 = none
        std::int64_t expected_ms = 0;   // 0 = cannot be told
        std::uint64_t behind = 0;
        std::uint32_t place = 0;        // in the order of the queue, from 1
        bool over_array = false;        // OverLimit: its array's, not its team's
    };
    std::unordered_map<std::uint64_t, Entry> jobs;
    std::optional<Cluster> cluster;     // after the plan's starts
    std::vector<std::string> spares;    // nodes that the queue leaves alone
    std::map<std::uint64_t, std::string> by_moving;  // jobs for which defragmentation would make room, and how
    std::shared_ptr<const Survey> survey;  // made at the first question after the plan
    std::int64_t made_ms = 0;
    std::int64_t estimated_ms = 0;
};

struct Brain::State {
    explicit State(BrainOptions given) : options(std::move(given)) {}

    BrainOptions options;
    Facts facts;
    Timers timers;
    std::map<std::uint64_t, Run> runs;         // active jobs
    std::map<std::string, NodeNow> nodes_now;
    std::uint64_t epoch = 0;
    std::string coordinator_id;
    TimePoint office_since;
    bool place_wanted = false;
    mutable Roster roster;                     // of facts.nodes; made anew when there is a new one
    mutable Outlook outlook;
    std::set<std::uint64_t> verdicts;          // jobs whose Run has a verdict
    struct Singletons {
        std::uint64_t version = ~0ull;         // Facts::version that it was made from
        std::map<std::pair<std::string, std::string>, std::uint64_t> first;  // user, name -> first job that has not ended
    };
    mutable Singletons singletons;
    mutable std::multimap<std::uint64_t, std::uint32_t> spare_gangs;  // job -> its spares in the cluster that was made last
    // Of the step that is being made:
    Now now;
    std::vector<proto::Record> records;
    std::vector<Action> others;

    // ---- brain.cpp
    void begin(const Now& at);
    std::vector<Action> finish();
    void handle(const Event& event);
    void handle(const FromUser& event);
    void handle(const FromNode& event);
    void handle(const TookOffice& event);
    void handle(const Tick& event);
    void expire(const WaitKey& wait);
    void record(proto::Record record);
    void order(const std::string& node, proto::Order order);
    void reply(const FromUser& to, proto::Outcome outcome, std::string message, std::uint64_t job = 0);
    std::vector<Job*> meant(std::uint64_t id, const proto::Request& request);
    std::string cancel_one(Job& job, const std::string& cause);
    void cancel(const FromUser& event);
    void set_hold(const FromUser& event);
    void set_node(const FromUser& event);
    // ---- submit.cpp
    void submit(const FromUser& event);
    std::string never_fits(const proto::JobSpec& spec) const;
    // ---- placing.cpp
    void place_waiting();
    void place_recovering(Job& job);
    void start_planned(const Plan& plan, const PlanInput& input, const std::vector<Job*>& order, const Cluster& cluster);
    std::vector<std::string> passed_over(const Job& job, const Shares& taken, const Cluster& cluster) const;
    // ---- elastic.cpp
    std::vector<std::string> spares_left(const Job& job) const;
    void hold_spares(Job& job, const std::vector<std::string>& nodes);
    void drop_unfit_spares();
    bool give_up_spares(const Cluster& now_taken, const std::vector<Job*>& blocked);
    void top_up_spares(Cluster& cluster);
    void grow_gangs(const Cluster& cluster, const std::vector<Ending>& running);
    bool wants_more(const Job& job) const;
    void promise_moves(Cluster& cluster) const;
    // ---- reservations.cpp
    void set_reservation(const FromUser& event);
    std::string wrong_with(const proto::Reservation& reservation) const;
    bool may_use(const proto::Reservation& reservation, const std::string& user) const;
    // ---- preempt.cpp
    struct Victim {
        std::uint64_t job = 0;
        std::uint32_t gang = 0;   // of the scheduler's cluster
        double cost = 0;          // card-seconds
    };
    bool may_evict(const Job& job) const;
    void remove_all(Cluster& cluster, const Victim& victim) const;
    std::uint64_t cards_of_team(const Team& team) const;
    bool may_reclaim(const Job& job, const Job& other) const;
    std::vector<Victim> victims_for(const Job& job, const std::vector<Ending>& running) const;
    void plan_preemptions(const Cluster& now_taken, const std::vector<Job*>& blocked, const std::vector<Ending>& running);
    Cluster with_claims_met(const Cluster& now_taken, const std::vector<Job*>& blocked, const std::vector<Ending>& running) const;
    using Moves = std::map<std::uint64_t, Shares>;  // job -> where it goes on
    struct MovePlan {
        Shares place;
        std::vector<Victim> moved;
        Moves moves;
        double cost = 0;
    };
    std::optional<MovePlan> try_moving(const Job& job, Cluster freed, const std::vector<Victim>& movable, std::uint64_t& stuck) const;
    void plan_defragmentation(const Cluster& now_taken, const std::vector<Job*>& blocked, const std::vector<Ending>& running);
    std::vector<Victim> movable_for(const Job& job, const std::vector<Ending>& running) const;
    void spare_the_unneeded(std::vector<Victim>& victims, const Shares& place) const;
    bool is_taken(std::uint64_t job) const;
    std::int32_t lowest_running_priority() const;
    void evict(Job& job, const std::vector<Victim>& victims, const Shares& place, const Moves& moves = {});
    void put_places(google::protobuf::RepeatedPtrField<proto::Placement>& out, const Shares& places) const;
    std::optional<Shares> claimed_by(const Job& job) const;
    bool is_offerable(const std::string& node) const;
    const Roster& nodes_in_order() const;
    std::vector<Offer> offers() const;
    void describe(Offer& offer, std::size_t node) const;
    Shape shape_for(const Need& need) const;
    std::uint32_t number_of_reservation(const std::string& name) const;
    Ms end_if_started(const Job& job) const;
    bool is_reserved_from(const Job& job, const std::string& node) const;
    bool is_reserved_from(const Job& job, const std::string& node, Ms end) const;
    std::uint32_t spares_wanted() const;
    std::uint32_t most_nodes_needed() const;
    std::vector<std::string> hold_spares_back(Cluster& cluster) const;
    Cluster cluster_now(const Job* without, std::vector<Ending>* running) const;
    std::vector<Job*> queue_in_order() const;
    std::map<std::string, double> fair_shares() const;
    std::map<std::string, std::int32_t> team_limits(std::vector<HeldLimit>& limits) const;
    std::int32_t array_limit(const Job& job, std::int32_t team, std::vector<HeldLimit>& limits, std::map<std::uint64_t, std::int32_t>& known) const;
    std::vector<const Job*> elements(std::uint64_t job) const;
    const Job* element(std::uint64_t array, std::uint32_t task) const;
    std::uint64_t first_of_name(const Job& job) const;
    std::string unmet(const DependencyTerm& term, const Job& job, std::int64_t at_ms, bool& never, std::int64_t& wake_ms) const;
    // What besides cards holds a queued job back; empty: nothing. `wake_ms`: when that may change by itself.
    std::string what_it_awaits(const Job& job, std::int64_t at_ms, std::int64_t& wake_ms) const;
    bool has_waited_for_domain(const Job& job, std::int64_t at_ms, std::int64_t& wake_ms) const;
    bool misses_deadline(Job& job, std::int64_t& wake_ms);
    std::int64_t expected_run_ms(const Job& job) const;
    std::vector<std::uint32_t> avoided_by(const Job& job, std::uint32_t failures = 1) const;
    bool has_cards(const std::string& node, const proto::Placement& place) const;
    bool same_cards(const Job& job, std::vector<proto::Placement>& gang) const;
    bool swap_nodes(const Job& job, std::vector<proto::Placement>& gang) const;
    std::vector<proto::Placement> to_gang(const Job& job, const Shares& shares) const;
    void reserve(Job& job, std::vector<proto::Placement> gang, std::string reason, std::uint64_t time_limit_s = 0, std::vector<std::string> passed_over = {});
    // ---- gang.cpp
    double mean_between_failures_s(std::size_t nodes) const;
    void order_prepare(Job& job, std::size_t part);
    void order_launch(Job& job, std::size_t part);
    void order_stop(Job& job, std::size_t part, Duration grace, const std::string& reason);
    void try_launch(Job& job);
    void check_joined(Job& job);
    void watch_run(Job& job);
    bool part_succeeded(const Job& job, std::size_t part) const;
    bool all_ranks_done(const Job& job) const;
    void part_gone(Job& job, std::size_t part, bool presumed, std::string note);
    void absorb_gone(Job& job);
    void settle(Job& job);
    Duration grace_of(const Job& job) const;
    Run& run_of(const Job& job);
    // ---- recovery.cpp
    void fail(Job& job, Fault fault);
    void ask_for_verdict(Job& job);
    void check_verdict(Job& job);
    void end_attempt(Job& job, Fault fault);
    void end_job(Job& job, std::string cause, proto::JobState outcome, Duration grace);
    void finish_job(Job& job, proto::JobState outcome, std::string reason);
    void stop_parts(Job& job, Duration grace, const std::string& reason);
    Duration back_off(const Job& job, bool progress) const;
    proto::Progress progress_of(const Job& job) const;
    void stop_expired(Job& job);
    void finish_expired(Job& job);
    // ---- report.cpp
    void hear_report(const std::string& node, const proto::AttemptReport& report, bool by_shepherd);
    void correct_time_limit(const Job& job, const proto::AttemptReport& report);
    void hear_progress(const std::string& node, const proto::AttemptReport& report, bool by_shepherd);
    void hear_stale(const std::string& node, const proto::AttemptReport& report);
    void hear_ranks(Job& job, const std::string& node, const proto::AttemptReport& report);
    void hear_live(Job& job, std::size_t part, const proto::AttemptReport& report);
    void hear_fault(Job& job, std::uint32_t rank, const std::string& what);
    std::optional<Fault> fault_in(Job& job, std::size_t part, const proto::AttemptReport& report);
    std::optional<Fault> script_fault(Job& job, const proto::AttemptReport& report);
    void release(const std::string& node, const proto::AttemptId& id, bool keep_snapshots = false);
    std::optional<std::uint64_t> snapshot_of(const Job& job, std::size_t part, bool is_lost) const;
    void add_snapshots(const Job& job, proto::Launch& launch) const;
    void release_snapshots(const Job& job, const std::vector<proto::Placement>& gang);
    void unwanted(const std::string& node, const proto::AttemptId& id);
    // ---- liveness.cpp
    void hello(const std::string& node, const proto::Hello& hello);
    void missing_from_hello(const std::string& node, const AttemptKey& key);
    void send_again(const std::string& node, Duration older_than);
    void heard(const std::string& node);
    void forgive_our_sleep();
    void watch_silence(const std::string& node);
    void silence_expired(const std::string& node);
    void lose_node(const std::string& node, std::string reason);
    void lose_part(Job& job, std::size_t part, const std::string& reason);
    void lose_parts_on(const std::string& node, const std::string& reason);
    void watch_progress(Job& job);
    void progress_expired(Job& job);
    void prepare_expired(Job& job);
    void join_expired(Job& job);
    // ---- checkpoints.cpp
    void commit(const std::string& node, const proto::CommitRequest& request);
    void damaged(const proto::CheckpointDamaged& message);
    // ---- answer.cpp, answer_why.cpp
    proto::JobView job_view(const Job& job, bool whole, bool with_environment) const;
    void list_jobs(const Caller& who, const proto::ListJobs& request, proto::Response& response) const;
    proto::NodeView node_view(const Node& node) const;
    bool waits_for_room(const Job& job) const;
    std::string queued_reason(const Job& job) const;
    std::uint32_t position(const Job& job) const;
    void report(const Job& job, const Now& at, proto::Report& out) const;
    double price_of(const Job& job, std::int64_t until_ms) const;
    void report_cluster(const Caller& who, const proto::ReportCluster& request, const Now& at, proto::ClusterReport& out) const;
    void why(const Job& job, const Now& at, proto::Why& out) const;
    Survey make_survey() const;
    const Survey& survey() const;
    void relax(const Job& job, const Cluster& cluster, const Survey& nodes, const Now& at, proto::Why& out) const;
    void count_lacks(const Job& job, const Cluster& cluster, proto::Why& out) const;
    bool concerns(std::uint64_t holder, const Need& need) const;
    void name_reservations(const Job& job, proto::Why& out) const;
    void why_room(const Job& job, const Cluster& cluster, const Now& at, proto::Why& out) const;
    void why_queued(const Job& job, const Now& at, proto::Why& out) const;
    std::string checkpoint_folder(const Job& job) const;
};

proto::AttemptId id_of(const Job& job);
// "n0, n1"
std::string node_names(const Attempt& attempt);

}  // namespace gangline::coordinator
