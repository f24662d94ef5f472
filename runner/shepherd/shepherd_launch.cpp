// Launch: the ranks of the command, the script, and the ranks of a script's steps.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <fmt/format.h>

#include "base/log.h"
#include "base/process.h"
#include "runner/shepherd/binding.h"
#include "runner/shepherd/shepherd.h"

namespace gangline::runner {
namespace {

constexpr Duration kReportEvery = milliseconds(500);

std::vector<proto::Placement> with_ranks(const google::protobuf::RepeatedPtrField<proto::Placement>& gang) {
    std::vector<proto::Placement> result;
    std::copy_if(gang.begin(), gang.end(), std::back_inserter(result), [](const proto::Placement& place) { return place.rank_count() != 0; });
    return result;
}

}  // namespace

void Shepherd::on_launch(const proto::Launch& launch) {
    if (!is_ours(launch.id()) || phase_ != proto::ATTEMPT_PREPARED) {
        changed_ = prepare_.has_value();
        return;
    }
    launch_ = launch;
    launched_at_ = now().steady;
    log_info("launch job={} attempt={} ranks={}", id_.job(), id_.attempt(), here().rank_count());
    if (link_) {
        if (auto connected = link_->connect(launch); !connected) return fail({connected.error().message, false, 0});
    }
    std::optional<Failure> failure;
    if (!is_script()) {
        failure = start_command();
    } else if (is_lead()) {
        failure = start_script();
    }
    if (failure) return fail(std::move(*failure));
    phase_ = proto::ATTEMPT_RUNNING;
    progress_at_ = now().steady + kReportEvery;
    report_now();
}

std::optional<Failure> Shepherd::start_command() {
    auto group = make_group(0, with_ranks(prepare_->gang()));
    if (!group) return Failure{group.error().message, false, 0};
    const EnvironmentOfNode node = environment_for(**group);
    for (std::uint32_t local = 0; local < (*group)->here().rank_count(); ++local) {
        auto environment = environment_of(**group, node, prepare_->spec().environment(), local);
        if (!environment) return Failure{environment.error().message, false, 0};
        SpawnPlan plan;
        plan.program = program_;
        plan.argv.assign(prepare_->spec().argv().begin(), prepare_->spec().argv().end());
        plan.environment = std::move(*environment);
        plan.cwd = prepare_->spec().cwd();
        plan.cpus = share_of(units_, start_.cards, cards_of((*group)->here(), local));
        (*group)->plans.push_back(std::move(plan));
    }
    if (auto spawned = spawn_group(**group); !spawned) return Failure{spawned.error().message, false, 0};
    return std::nullopt;
}

// One process, reported as rank 0 of step 0.
std::optional<Failure> Shepherd::start_script() {
    auto& slot = groups_[0];
    slot = std::make_unique<RankGroup>();
    RankGroup& group = *slot;
    group.is_script = true;
    group.gang.assign(prepare_->gang().begin(), prepare_->gang().end());
    group.node_index = prepare_->node_index();
    group.ranks.resize(1);
    SpawnPlan plan;
    plan.program = program_;
    plan.argv.push_back(program_);
    for (const std::string& argument : prepare_->spec().script_args()) plan.argv.push_back(argument);
    plan.environment = script_environment(environment_for(group));
    plan.cwd = prepare_->spec().cwd();
    group.plans.push_back(std::move(plan));
    if (auto spawned = spawn_group(group); !spawned) return Failure{spawned.error().message, false, 0};
    return std::nullopt;
}

Result<void> Shepherd::start_step(const proto::StartStep& step) {
    if (phase_ != proto::ATTEMPT_RUNNING) return Error{Code::Refused, "the job is ending"};
    if (step.argv().empty()) return Error{Code::InvalidArgument, "the command is empty: name a program"};
    if (auto checked = check_environment(step.environment()); !checked) return checked;
    auto group = make_group(step.step_id(), with_ranks(step.gang()));
    if (!group) return group.error();
    const auto start = [&]() -> Result<void> {
        const EnvironmentOfNode node = environment_for(**group);
        for (std::uint32_t local = 0; local < (*group)->here().rank_count(); ++local) {
            auto environment = environment_of(**group, node, step.environment(), local);
            if (!environment) return environment.error();
            auto program = find_program(step.argv(0), value_in(*environment, "PATH"), step.cwd());
            if (!program) return program.error();
            SpawnPlan plan;
            plan.program = std::move(*program);
            plan.argv.assign(step.argv().begin(), step.argv().end());
            plan.environment = std::move(*environment);
            plan.cwd = step.cwd();
            plan.cpus = share_of(units_, start_.cards, cards_of((*group)->here(), local));
            (*group)->plans.push_back(std::move(plan));
        }
        return spawn_group(**group);
    };
    auto started = start();
    changed_ = true;
    if (started) return started;
    // What did start of it ends unreported.
    (*group)->abandoned = true;
    signal_group(**group, SIGKILL);
    for (LocalRank& rank : (*group)->ranks) {
        if (rank.report.pid() == 0) rank.report.set_state(proto::RANK_EXITED);
    }
    forget_finished_steps();
    return started;
}

// The group's pages, its worker socket, its place in PMIx. Nothing runs yet.
Result<RankGroup*> Shepherd::make_group(std::uint32_t step_id, const std::vector<proto::Placement>& gang) {
    const auto place = std::find_if(gang.begin(), gang.end(), [&](const proto::Placement& one) { return one.node() == start_.node; });
    if (place == gang.end()) return Error{Code::InvalidArgument, fmt::format("node {} has no rank of this gang", start_.node)};
    auto made = std::make_unique<RankGroup>();
    RankGroup& group = *made;
    group.step_id = step_id;
    group.gang = gang;
    group.node_index = static_cast<std::uint32_t>(place - gang.begin());
    group.ranks.resize(place->rank_count());
    for (std::uint32_t local = 0; local < place->rank_count(); ++local) {
        LocalRank& rank = group.ranks[local];
        rank.report.set_rank(place->first_rank() + local);
        rank.report.set_step_id(step_id);
        auto page = RankPage::create(progress_path(shared_folder_, step_id, rank.report.rank()));
        if (!page) return page.error();
        rank.page = std::move(*page);
    }
    group.worker_socket = "gangline-ranks-" + random_hex(8);
    auto workers = WorkerLine::start(*loop_, group.worker_socket, id_.attempt(), place->first_rank(), place->rank_count(), worker_events(step_id));
    if (!workers) return workers.error();
    group.workers = std::move(*workers);
    if (auto registered = register_pmix(group); !registered) return registered.error();
    groups_[step_id] = std::move(made);
    deliver_early(*groups_[step_id]);
    return groups_[step_id].get();
}

// A gang of one rank has no PMIx server: an Open MPI program is right as a singleton.
Result<void> Shepherd::register_pmix(RankGroup& group) {
    const std::string name_space = pmix_name_space(start_.cluster, id_, group.step_id);
    if (link_) link_->add_gang(name_space, group.gang);
    if (world_size(group.gang) < 2) return {};
    if (auto started = start_pmix(); !started) return started;
    PmixGang gang;
    gang.name_space = name_space;
    gang.gang = group.gang;
    gang.node = start_.node;
    gang.session_folder = fmt::format("{}/mpi-{}", start_.spool_folder, group.step_id);
    gang.uid = ::geteuid();
    gang.gid = ::getegid();
    if (auto registered = pmix_->register_gang(gang); !registered) return registered;
    group.name_space = name_space;
    return {};
}

EnvironmentOfNode Shepherd::environment_for(const RankGroup& group) const {
    EnvironmentOfNode node;
    node.prepare = &*prepare_;
    node.launch = &*launch_;
    node.gang = group.gang;
    node.node_index = group.node_index;
    node.step_id = group.step_id;
    node.cluster = start_.cluster;
    node.cpus_on_node = cpus_;
    node.worker_socket = group.worker_socket;
    node.progress_folder = shared_folder_;
    if (group.is_script) {
        node.step_socket = step_socket_;
        node.tools_folder = tools_folder_;
    }
    return node;
}

Result<std::vector<std::string>> Shepherd::environment_of(const RankGroup& group, const EnvironmentOfNode& node,
                                                          const google::protobuf::RepeatedPtrField<proto::Variable>& given,
                                                          std::uint32_t local) {
    std::vector<std::string> environment = rank_environment(node, given, local);
    if (group.name_space.empty()) return environment;
    MpiSettings settings;
    settings.backing_folder = shared_folder_;
    settings.address = node_address();
    // Virtual nodes share their machine with who knows what; on a real one the shepherd and the agent run too.
    settings.yield_when_idle = is_loopback(settings.address) || group.here().rank_count() >= cpus_;
    return pmix_->environment_of(group.name_space, group.here().first_rank() + local, environment, settings);
}

Result<void> Shepherd::spawn_group(RankGroup& group) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return errno_error("cannot make a pipe", Code::Unavailable);
    group.status.reset(ends[0]);
    const Fd write_end(ends[1]);
    const std::uint32_t step_id = group.step_id;
    auto watched = loop_->watch(group.status.get(), [this, step_id](Ready) {
        if (RankGroup* ready = group_of(step_id)) read_status(*ready);
    });
    if (!watched) return watched;
    for (std::size_t local = 0; local < group.ranks.size(); ++local) {
        LocalRank& rank = group.ranks[local];
        SpawnPlan& plan = group.plans[local];
        plan.status = write_end.get();
        plan.number = static_cast<std::uint32_t>(local);
        plan.cgroup = cgroup_ ? cgroup_->fd() : -1;
        plan.oom_score_adj = oom_score_adj_;
        auto spawned = spawn(plan);
        if (!spawned) return Error{spawned.error().code, fmt::format("rank {}: {}", rank.report.rank(), spawned.error().message)};
        rank.report.set_pid(spawned->pid);
        processes_[spawned->pid] = {step_id, rank.report.rank()};
        Output::Sink sink;
        if (step_id != 0) {
            sink = [this, step_id, number = rank.report.rank()](bool is_error, std::string data) {
                steps_->local_output(step_id, number, is_error, std::move(data));
            };
        }
        output_->add_rank({step_id, rank.report.rank()}, std::move(spawned->out), std::move(spawned->err), std::move(sink));
    }
    return {};
}

// Children write here what kept them from exec; end of file: all have exec'ed or ended.
void Shepherd::read_status(RankGroup& group) {
    if (!group.status) return;
    for (;;) {
        SpawnFailure failed;
        const ssize_t n = ::read(group.status.get(), &failed, sizeof failed);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n != static_cast<ssize_t>(sizeof failed)) break;
        if (failed.number >= group.plans.size()) continue;
        const std::string why = describe(failed, group.plans[failed.number]);
        const std::uint32_t rank = group.ranks[failed.number].report.rank();
        log_warn("rank_not_started step={} rank={} why={}", group.step_id, rank, why);
        if (group.step_id != 0) {
            steps_->local_output(group.step_id, rank, true, fmt::format("gangline: {}\n", why));
        } else {
            output_->note({0, rank}, why);
            const bool is_users = failed.stage == SpawnStage::Exec || failed.stage == SpawnStage::Folder;
            if (!failure_) failure_ = Failure{fmt::format("{} (on node {})", why, start_.node), is_users, 0};
        }
        changed_ = true;
    }
    loop_->forget(group.status.get());
    group.status.reset();
    group.plans.clear();
}

void Shepherd::signal_group(RankGroup& group, int signal) {
    for (const LocalRank& rank : group.ranks) {
        if (rank.report.pid() > 0 && rank.report.state() != proto::RANK_EXITED) ::kill(-rank.report.pid(), signal);
    }
}

}  // namespace gangline::runner
