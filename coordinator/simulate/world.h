#pragma once
// A cluster on virtual time round the real Brain: nodes, agents, shepherds, ranks, connections and a journal, each of
// which can die, be cut or be slow. One seed draws everything; two worlds of one seed tell the same story.
//
//   coordinator (Brain + journal) <-- FIFO connections, cut at any time --> agents --> shepherds --> ranks
//                                 <-- a shepherd's own line while its agent is dead ----'
//
// The coordinator may die between any two actions. The world is the truth: it knows which process uses which card, and
// check.cpp compares what the brain believes with it.
//
// Programs are argv: {"true"}; {"sleep", "ms=3000"}; {"train", "steps=200", "every=20", "step_ms=10"} with
// "fail_rank=1 fail_step=50 fail_code=3" for a user's error. A train program reports progress and commits checkpoints;
// "snapshot=20": it has every twentieth step whole in memory; "replicas=1": and in another node's.
// Thread rule: one thread.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/brain/brain.h"

namespace gangline::simulate {

// splitmix64: small, good enough, the same everywhere.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next();
    std::uint64_t below(std::uint64_t bound) { return bound == 0 ? 0 : next() % bound; }
    bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1p-53 < probability; }
    Duration between(Duration least, Duration most);

  private:
    std::uint64_t state_;
};

enum class PlantedBug { None, CardsFreedEarly };  // the canary: a node that says GONE while its ranks live

struct WorldOptions {
    std::uint32_t nodes = 2;
    std::uint32_t cards = 4;
    std::uint64_t seed = 1;
    coordinator::BrainOptions brain = {};
    double coordinator_dies = 0;       // at each action
    double checkpoint_rots = 0;        // at each commit
    double snapshot_is_lost = 0;       // at each start from one
    double found_at_rest = 0;          // of each rotten one, at each commit
    double echo = 0;                   // a rank whose peer has died exits with code 1
    Duration most_delay = milliseconds(2);
    double repeats = 0;                // each message comes again, up to 300 ms later, past others
    std::uint64_t check_replay_every = 1;  // steps of the brain; 0 = never
    PlantedBug bug = PlantedBug::None;
};

using AttemptOf = std::pair<std::uint64_t, std::uint32_t>;  // job, attempt

struct SimRank {
    std::int32_t pid = 0;
    bool joined = false;
    bool exited = false;
    bool stopped = false;              // SIGSTOP
    std::int32_t exit_code = 0;
    std::int32_t signal = 0;
    std::uint64_t beat = 0;
    std::uint64_t step = 0;
    std::uint64_t snapshot = 0;        // whole in its keeper's memory; 0 = none
    std::uint64_t replica = 0;         // and in another node's
};

struct SimShepherd {
    proto::Prepare prepare;
    proto::Placement place;
    proto::AttemptPhase phase = proto::ATTEMPT_PREPARING;
    std::uint64_t revision = 1;
    std::string failure;
    std::map<std::uint32_t, SimRank> ranks;   // live and exited, by rank
    bool stopping = false;
    std::optional<proto::CheckpointDamaged> damaged;  // told before each report: one of them arrives
};

struct SimNode {
    std::string name;
    bool up = true;                    // the machine
    bool agent_up = false;
    bool mute_prepare = false;         // never answers Prepare
    bool immortal = false;             // processes survive Stop
    std::uint64_t connection = 0;      // rises when it is cut
    bool linked = false;
    std::string heard_coordinator;
    std::uint64_t highest_epoch = 0;
    std::uint64_t agent_starts = 0;
    std::map<AttemptOf, SimShepherd> shepherds;
    TimePoint last_arrival_in;
    TimePoint last_arrival_out;
    TimePoint agent_died;
};

// One attempt's program over all its nodes.
struct SimGang {
    std::uint64_t step = 0;
    std::uint64_t first_step = 0;
    bool ticking = false;
    bool done = false;
};

class World {
  public:
    explicit World(WorldOptions options);

    // ---- what a test does
    std::uint64_t submit(proto::JobSpec spec);          // 0: refused or not answered; see last_response
    std::uint64_t submit_as(const std::string& user, proto::JobSpec spec);
    proto::Response ask(proto::Request request, const std::string& user = "alice");  // a changing verb; the coordinator must be up
    proto::Response answer(const proto::Request& request) const;
    proto::JobView view(std::uint64_t job) const;
    bool run_until(const std::function<bool()>& done, Duration limit = seconds(120));
    void run_for(Duration duration);
    void start_coordinator();
    void kill_coordinator();
    void sleep_coordinator(Duration duration);
    void start_agent(const std::string& node);
    void kill_agent(const std::string& node);
    void kill_node(const std::string& node);            // machine: agent, shepherds and ranks
    void start_node(const std::string& node);
    void cut(const std::string& node, Duration back_after);
    void kill_shepherd(const std::string& node, AttemptOf attempt);
    bool kill_rank(std::uint64_t job, std::uint32_t rank, std::int32_t signal);
    bool stop_rank(std::uint64_t job, std::uint32_t rank);   // SIGSTOP
    void kill_coordinator_at_action(std::uint64_t count);    // the count'th action from now is not done
    void later(Duration delay, std::function<void()> what) { after(delay, std::move(what)); }
    void stop_faults();

    // ---- what a test sees
    bool coordinator_up() const { return brain_ != nullptr; }
    TimePoint now() const { return now_; }
    std::int64_t unix_ms() const { return virtual_now().unix_ms; }
    const std::vector<proto::Record>& journal() const { return journal_; }
    const std::vector<std::string>& transcript() const { return transcript_; }
    const std::vector<std::string>& violations() const { return violations_; }
    const std::map<std::string, std::uint64_t>& reached() const { return reached_; }
    SimNode& node(const std::string& name) { return nodes_.at(name); }
    std::uint64_t actions_done() const { return actions_done_; }
    const std::set<std::uint64_t>& promised() const { return promised_; }   // jobs whose id a user was told
    Random& random() { return random_; }
    std::uint32_t live_ranks(std::uint64_t job) const;
    std::uint64_t step_of(std::uint64_t job) const;
    WorldOptions& options() { return options_; }
    // Lines about what is wrong at the end: jobs that have not ended, cards that are not free.
    std::vector<std::string> unfinished() const;
    void check_world();

  private:
    // ---- world.cpp: time, coordinator, connections
    void at(TimePoint when, std::function<void()> what);
    void after(Duration delay, std::function<void()> what) { at(now_ + delay, std::move(what)); }
    bool run_one();
    Now virtual_now() const;
    void say(std::string line);
    void to_coordinator(const std::string& node, proto::NodeMessage message, bool by_shepherd);
    void deliver(coordinator::Event event);
    void step_coordinator();
    void perform(std::vector<coordinator::Action> actions);
    void arm_deadline();
    void send_order(const std::string& node, proto::Order order);
    void link(const std::string& node);
    bool is_repeated();
    // ---- node.cpp: agents and shepherds
    void hear_order(const std::string& node, const proto::Order& order);
    void hear_prepare(SimNode& node, const proto::Prepare& prepare);
    void try_prepare(const std::string& node, AttemptOf attempt, std::uint64_t agent_start);
    void hear_launch(SimNode& node, const proto::Launch& launch);
    void hear_stop(SimNode& node, const proto::Stop& stop);
    void empty_part(const std::string& node, AttemptOf attempt);
    void say_hello(SimNode& node);
    void beat(const std::string& node);
    void report(SimNode& node, AttemptOf attempt);
    void tell_damage(SimNode& node, AttemptOf attempt, bool by_shepherd);
    proto::AttemptReport report_of(const SimNode& node, AttemptOf attempt) const;
    bool speaks(const SimNode& node) const;
    // ---- gang.cpp: programs
    void join(const std::string& node, AttemptOf attempt, const proto::Launch& launch);
    void tick(AttemptOf attempt);
    void commit(AttemptOf attempt, std::uint64_t step, std::uint32_t written_by = 0);
    void add_marks(std::uint64_t job, proto::CommitRequest& commit) const;
    void find_at_rest(const std::string& name, AttemptOf attempt);
    void exit_rank(const std::string& node, AttemptOf attempt, std::uint32_t rank, std::int32_t code, std::int32_t signal);
    void echo(AttemptOf attempt);
    void finish_part(const std::string& node, AttemptOf attempt);
    std::vector<std::pair<SimNode*, SimShepherd*>> parts_of(AttemptOf attempt);
    std::uint64_t option_of(const proto::JobSpec& spec, const std::string& name, std::uint64_t otherwise) const;
    // ---- check.cpp
    void check_record(const proto::Record& record);
    void check_replay();
    void violated(std::string what);

    struct Later {
        TimePoint when;
        std::uint64_t order = 0;
        bool operator<(const Later& other) const { return std::pair(when, order) < std::pair(other.when, other.order); }
    };

    WorldOptions options_;
    Random random_;
    TimePoint now_;
    std::uint64_t next_order_ = 0;
    std::map<Later, std::function<void()>> later_;
    std::unique_ptr<coordinator::Brain> brain_;
    std::uint64_t coordinator_starts_ = 0;
    std::vector<coordinator::Event> inbox_;
    bool inbox_scheduled_ = false;
    TimePoint asleep_until_;
    std::uint64_t deadline_generation_ = 0;
    std::uint64_t actions_done_ = 0;
    std::optional<std::uint64_t> dies_at_action_;
    std::vector<proto::Record> journal_;
    coordinator::Brain shadow_;                                  // the journal replayed, record by record
    std::size_t shadowed_ = 0;
    std::uint64_t steps_ = 0;
    std::map<std::string, SimNode> nodes_;
    std::map<AttemptOf, SimGang> gangs_;
    std::set<std::pair<std::uint64_t, std::uint64_t>> rotten_;   // job, step
    std::map<std::uint64_t, proto::Response> responses_;
    std::set<std::uint64_t> promised_;
    std::uint64_t next_tag_ = 1;
    std::int32_t next_pid_ = 1000;
    std::vector<std::string> transcript_;
    std::vector<std::string> violations_;
    std::map<std::string, std::uint64_t> reached_;
    bool faults_ = true;
    // What the journal has said so far, for check.cpp.
    std::map<std::uint64_t, std::uint32_t> newest_attempt_;
    std::set<std::uint64_t> ended_jobs_;
    std::set<std::uint64_t> evicted_for_;
    std::map<AttemptOf, std::uint64_t> ranks_exited_well_;
    struct SimCheckpoint { std::uint32_t attempt = 0; bool good = false; };
    std::map<std::uint64_t, std::map<std::uint64_t, SimCheckpoint>> committed_;   // job -> step, those that are known
    std::map<std::uint64_t, std::map<std::uint64_t, std::set<std::uint32_t>>> snapshots_;  // job -> step -> ranks that had it whole
};

}  // namespace gangline::simulate
