#pragma once
// The shepherd's state and what moves it: orders of the agent (or, when that is silent, of the coordinator), deaths of
// children, up-calls of PMIx, the ranks' own words. serve.h has the picture of its life.
//
// Reports are state: whatever changes marks `changed_`, and one report of everything goes out at the end of the turn; a
// rank's exit goes out at once. All orders are idempotent.
//
// Thread rule: one thread, one epoll. Nothing here waits or sleeps.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/protocol/shepherd.pb.h"
#include "base/wire/wire.h"
#include "runner/shepherd/agent_line.h"
#include "runner/shepherd/environment.h"
#include "runner/shepherd/gang_link.h"
#include "runner/shepherd/loop.h"
#include "runner/shepherd/output.h"
#include "runner/shepherd/own_line.h"
#include "runner/shepherd/pmix_server.h"
#include "runner/shepherd/progress_pages.h"
#include "runner/shepherd/rank_process.h"
#include "runner/shepherd/reaper.h"
#include "runner/shepherd/serve.h"
#include "runner/shepherd/step_server.h"
#include "runner/shepherd/worker_line.h"

namespace gangline::runner {

// Why this node's part of the attempt failed as a whole.
struct Failure {
    std::string why;
    bool is_users = false;
    int exit_code = 0;  // reported for each rank that could not start; 0 = no rank is reported
};

struct LocalRank {
    proto::RankReport report;
    std::optional<RankPage> page;
    int abort_code = 0;  // MPI_Abort's
    bool aborted = false;
};

// The ranks of this node of one gang: the command's (step 0), the script (step 0, one "rank"), or a step's.
struct RankGroup {
    std::uint32_t step_id = 0;
    bool is_script = false;
    std::string name_space;               // empty: no PMIx server serves it
    std::vector<proto::Placement> gang;   // nodes with ranks only
    std::uint32_t node_index = 0;         // in `gang`
    std::vector<LocalRank> ranks;
    std::vector<SpawnPlan> plans;         // of the ranks that are not known to have exec'ed
    std::string worker_socket;
    bool abandoned = false;               // a step of which a rank could not be started: the rest is killed, unreported
    Fd status;                            // until all have
    std::unique_ptr<WorkerLine> workers;

    const proto::Placement& here() const { return gang[node_index]; }
    LocalRank* find(std::uint32_t rank);
    bool all_exited() const;
};

class Shepherd {
  public:
    explicit Shepherd(const ShepherdStart& start);
    Result<void> open();
    int run();

  private:
    // ---- shepherd.cpp: the loop, the agent, reports
    Result<void> protect_itself();
    void start_log();
    void on_agent(const proto::ToShepherd& message);
    void on_identity(const proto::ToShepherd::Identity& identity);
    void on_release(const proto::AttemptId& id);
    void on_order(const proto::Order& order);
    bool is_ours(const proto::AttemptId& id) const;
    proto::AttemptReport make_report();
    void add_ranks(proto::AttemptReport& report) const;
    void report_now();
    void tick(TimePoint now);
    void watch_agent(TimePoint now);
    void read_progress();
    TimePoint next_deadline() const;
    bool may_exit(TimePoint now) const;

    // ---- shepherd_prepare.cpp
    void on_prepare(const proto::Prepare& prepare);
    std::optional<Failure> get_ready();
    std::optional<Failure> check_request();
    std::optional<Failure> check_program();
    std::optional<Failure> make_folders_of_attempt();
    std::optional<Failure> write_script();
    std::optional<Failure> open_gang_link();
    std::optional<Failure> start_steps();
    void make_cgroup();
    void plan_binding();
    Result<void> start_pmix();
    const proto::Placement& here() const;
    bool is_lead() const { return prepare_->node_index() == 0; }
    bool is_script() const { return !prepare_->spec().script().empty(); }
    std::string node_address() const;

    // ---- shepherd_launch.cpp
    void on_launch(const proto::Launch& launch);
    std::optional<Failure> start_command();
    std::optional<Failure> start_script();
    Result<void> start_step(const proto::StartStep& step);
    Result<RankGroup*> make_group(std::uint32_t step_id, const std::vector<proto::Placement>& gang);
    Result<void> register_pmix(RankGroup& group);
    EnvironmentOfNode environment_for(const RankGroup& group) const;
    Result<std::vector<std::string>> environment_of(const RankGroup& group, const EnvironmentOfNode& node,
                                                    const google::protobuf::RepeatedPtrField<proto::Variable>& given,
                                                    std::uint32_t local);
    Result<void> spawn_group(RankGroup& group);
    void read_status(RankGroup& group);
    void signal_group(RankGroup& group, int signal);

    // ---- shepherd_talk.cpp: what PMIx, the ranks and the other shepherds say
    PmixEvents pmix_events();
    GangEvents gang_events();
    WorkerEvents worker_events(std::uint32_t step_id);
    void on_joined(RankGroup& group, std::uint32_t rank);
    void on_worker_frame(std::uint32_t step_id, const WorkerFrame& frame);
    void on_relay(const proto::WorkerRelay& relay);
    void on_commit(std::uint32_t step_id, const WorkerFrame& frame);
    void on_keeper_wanted(std::uint32_t step_id, const WorkerFrame& frame);
    void on_keeper(const proto::ToShepherd::KeeperIs& keeper);
    void deliver_early(RankGroup& group);
    void add_fault(std::string text);
    void on_commit_reply(const proto::CommitReply& reply);
    void tell_coordinator(const proto::FromShepherd& message);
    RankGroup* group_of(std::uint32_t step_id);
    RankGroup* group_of(const std::string& name_space);

    // ---- shepherd_end.cpp: deaths and the end
    void reap();
    void on_exit(pid_t pid, int status);
    void judge_exit(RankGroup& group, LocalRank& rank, int status);
    void forget_finished_steps();
    void on_stop(const proto::Stop& stop);
    void fail(Failure failure);
    void check_end();
    void start_killing();
    void kill_round(TimePoint now);
    void prove_gone(TimePoint now);
    void gone();

    ShepherdStart start_;
    std::unique_ptr<Loop> loop_;
    Fd signals_;
    std::unique_ptr<AgentLine> agent_;
    std::unique_ptr<OwnLine> own_line_;
    std::unique_ptr<PmixServer> pmix_;
    std::unique_ptr<GangLink> link_;
    std::unique_ptr<StepServer> steps_;
    std::unique_ptr<Output> output_;
    std::optional<RankCgroup> cgroup_;
    std::optional<int> oom_score_adj_;  // the one to give back to the ranks

    proto::AttemptId id_;
    std::optional<proto::Prepare> prepare_;
    std::optional<proto::Launch> launch_;
    proto::AttemptPhase phase_ = proto::ATTEMPT_PREPARING;
    std::optional<Failure> failure_;
    std::vector<std::string> faults_;   // sticky ones; the output's come fresh into each report
    KeyPair keys_;
    std::uint32_t master_port_ = 0;
    std::string shared_folder_;
    std::string pmix_folder_;
    std::string step_socket_;
    std::string tools_folder_;
    std::string program_;               // of a command, as found
    std::uint32_t cpus_ = 1;
    std::vector<unsigned> units_;       // empty: ranks are not bound
    std::uint64_t revision_ = 0;
    bool changed_ = false;
    std::map<std::uint32_t, std::unique_ptr<RankGroup>> groups_;
    std::map<pid_t, std::pair<std::uint32_t, std::uint32_t>> processes_;  // living ranks: step, rank
    std::vector<proto::RankReport> past_ranks_;                          // of finished steps
    std::optional<proto::FromShepherd> damaged_;                         // a checkpoint that a rank could not read
    std::vector<proto::FromShepherd> damaged_at_rest_;                   // checkpoints that lie there damaged
    std::map<std::pair<std::uint32_t, std::uint64_t>, proto::CommitRequest> commits_;  // unanswered, by step of the job and of the training
    std::vector<std::pair<std::uint32_t, std::uint32_t>> keeper_askers_; // step id, rank
    std::vector<proto::WorkerRelay> early_relays_;                       // for ranks that are not started here yet
    bool script_ended_ = false;

    TimePoint progress_at_ = TimePoint::max();
    TimePoint stop_at_ = TimePoint::max();   // the end of the grace
    TimePoint kill_at_ = TimePoint::max();   // the next round, while killing
    Duration kill_again_{};
    TimePoint killing_since_{};
    bool killing_ = false;
    bool slow_death_said_ = false;
    std::optional<TimePoint> launched_at_;
    bool stopped_ = false;                   // by order, not by the ranks' own end
    TimePoint own_line_at_{};
    std::uint64_t epoch_ = 0;
    bool released_ = false;
    TimePoint gone_at_{};
    bool quit_ = false;
};

}  // namespace gangline::runner
