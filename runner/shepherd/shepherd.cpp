// The loop, the agent's line, the own line, and reports.
#include "runner/shepherd/shepherd.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>

#include <fmt/format.h>

#include "base/log.h"
#include "base/process.h"
#include "runner/shepherd/pmix_environment.h"

namespace gangline::runner {
namespace {

constexpr Duration kReportEvery = milliseconds(500);
constexpr Duration kSilentConnected = seconds(1);
constexpr Duration kSilentClosed = milliseconds(300);
constexpr Duration kSpareForgotten = seconds(3);
constexpr Duration kGoneForgotten = seconds(3600);
// The lead of several nodes may have passed the last fence on a moment before its own ranks ended.
constexpr Duration kLeadLingers = milliseconds(200);
constexpr Duration kOutputLingers = seconds(5);
constexpr int kProtectedOomScore = -500;

}  // namespace

LocalRank* RankGroup::find(std::uint32_t rank) {
    for (LocalRank& one : ranks) {
        if (one.report.rank() == rank) return &one;
    }
    return nullptr;
}

bool RankGroup::all_exited() const {
    return std::all_of(ranks.begin(), ranks.end(), [](const LocalRank& one) { return one.report.state() == proto::RANK_EXITED; });
}

Shepherd::Shepherd(const ShepherdStart& start) : start_(start) {
    id_.set_job(start.job);
    id_.set_attempt(start.attempt);
}

void Shepherd::start_log() {
    if (start_.keep_stderr) return;
    const std::string path = start_.spool_folder + "/shepherd.log";
    const Fd log(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!log || !null) return;
    ::dup2(null.get(), 0);
    ::dup2(log.get(), 1);
    ::dup2(log.get(), 2);
}

// Signals as descriptors, orphans as our children, and the last to be killed when memory runs out.
Result<void> Shepherd::protect_itself() {
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGXFSZ, SIG_IGN);  // A size limit is an error of write, to be shown.
    for (const int ignored : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) ::signal(ignored, SIG_IGN);  // Only orders end a gang.
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    standard.sa_flags = SA_NOCLDSTOP;
    ::sigaction(SIGCHLD, &standard, nullptr);
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGCHLD);
    if (::sigprocmask(SIG_SETMASK, &set, nullptr) != 0) return errno_error("cannot block SIGCHLD");
    signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) return errno_error("cannot make a signal descriptor");
    if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return errno_error("cannot become a child sub-reaper");
    ::prctl(PR_SET_NAME, "gl-shepherd");
    const auto before = read_file("/proc/self/oom_score_adj");
    const Fd score(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
    int value = 0;
    if (before && score && std::from_chars(before->data(), before->data() + before->size(), value).ec == std::errc() &&
        value > kProtectedOomScore && write_all(score.get(), std::to_string(kProtectedOomScore))) {
        oom_score_adj_ = value;
    }
    return {};
}

Result<void> Shepherd::open() {
    start_log();
    clean_own_environment();
    if (auto protected_now = protect_itself(); !protected_now) return protected_now;
    auto loop = Loop::create();
    if (!loop) return loop.error();
    loop_ = std::move(*loop);
    cpu_set_t usable;
    CPU_ZERO(&usable);
    if (::sched_getaffinity(0, sizeof usable, &usable) == 0) cpus_ = static_cast<std::uint32_t>(std::max(1, CPU_COUNT(&usable)));
    auto watched = loop_->watch(signals_.get(), [this](Ready) {
        signalfd_siginfo info;
        while (::read(signals_.get(), &info, sizeof info) > 0) {
        }
        reap();
    });
    if (!watched) return watched;
    AgentEvents events;
    events.connected = [this] { changed_ = changed_ || prepare_.has_value(); };
    events.message = [this](const proto::ToShepherd& message) { on_agent(message); };
    auto agent = AgentLine::start(*loop_, Fd(start_.listen_fd), start_.agent_uid, std::move(events));
    if (!agent) return agent.error();
    agent_ = std::move(*agent);
    if (!start_.warm) return {};
    return start_pmix();
}

int Shepherd::run() {
    while (!quit_ && !may_exit(now().steady)) {
        loop_->turn(next_deadline());
        const TimePoint at = now().steady;
        tick(at);
        if (output_) output_->flush(at);
        if (changed_) report_now();
    }
    log_info("shepherd_ends job={} attempt={}", id_.job(), id_.attempt());
    for (const auto& [step_id, group] : groups_) {
        if (auto removed = remove_tree(fmt::format("{}/mpi-{}", start_.spool_folder, step_id)); !removed) log_warn("{}", removed.error().message);
    }
    if (!pmix_folder_.empty()) {
        if (auto removed = remove_tree(pmix_folder_); !removed) log_warn("{}", removed.error().message);
    }
    return 0;
}

// ---- The agent's orders.

bool Shepherd::is_ours(const proto::AttemptId& id) const {
    return id.job() == id_.job() && id.attempt() == id_.attempt() && id.job() != 0;
}

void Shepherd::on_agent(const proto::ToShepherd& message) {
    switch (message.body_case()) {
        case proto::ToShepherd::kPrepare: return on_prepare(message.prepare());
        case proto::ToShepherd::kLaunch: return on_launch(message.launch());
        case proto::ToShepherd::kStop: return on_stop(message.stop());
        case proto::ToShepherd::kRelease: return on_release(message.release().id());
        case proto::ToShepherd::kCommit: return on_commit_reply(message.commit());
        case proto::ToShepherd::kPing: {
            proto::FromShepherd answer;
            answer.mutable_pong();
            return agent_->send(answer);
        }
        case proto::ToShepherd::kIdentity: return on_identity(message.identity());
        case proto::ToShepherd::kKeeper: return on_keeper(message.keeper());
        case proto::ToShepherd::kQuit:
            if (!prepare_) quit_ = true;
            return;
        case proto::ToShepherd::BODY_NOT_SET: return;
    }
}

// A spare learns here whose spool it will fill.
void Shepherd::on_identity(const proto::ToShepherd::Identity& identity) {
    if (!prepare_) {
        if (!identity.node().empty() && !pmix_) start_.node = identity.node();
        if (!identity.cluster().empty()) start_.cluster = identity.cluster();
        if (!identity.address().empty()) start_.address = identity.address();
        const std::string root = start_.spool_folder.substr(0, start_.spool_folder.rfind('/') + 1);
        const bool relative = !identity.spool_folder().starts_with('/');  // Then it lies beside the one that we have.
        const std::string spool = (relative ? root : "") + identity.spool_folder();
        if (!identity.spool_folder().empty() && spool != start_.spool_folder) {
            start_.spool_folder = spool;
            if (auto made = make_folder(start_.spool_folder, 0700); !made) log_error("spool_not_made error={}", made.error().message);
            start_log();
        }
    }
    if (identity.cards() != 0) start_.cards = identity.cards();
    proto::FromShepherd ready;
    *ready.mutable_ready()->mutable_id() = id_;
    ready.mutable_ready()->set_pid(::getpid());
    agent_->send(ready);
    changed_ = changed_ || prepare_.has_value();
    for (const auto& [step_id, commit] : commits_) {
        proto::FromShepherd again;
        *again.mutable_commit() = commit;
        agent_->send(again);
    }
}

void Shepherd::on_release(const proto::AttemptId& id) {
    if (!is_ours(id)) return;
    if (phase_ != proto::ATTEMPT_GONE) {
        changed_ = true;  // Too early: whoever sent it hears what is so.
        return;
    }
    released_ = true;
}

// The coordinator's, over the own line.
void Shepherd::on_order(const proto::Order& order) {
    if (order.epoch() < epoch_) return;
    epoch_ = order.epoch();
    if (order.has_stop()) on_stop(order.stop());
    if (order.has_commit()) on_commit_reply(order.commit());
    if (order.has_release()) on_release(order.release().id());
}

// ---- Reports.

void Shepherd::add_ranks(proto::AttemptReport& report) const {
    for (const auto& [step_id, group] : groups_) {
        for (const LocalRank& rank : group->ranks) *report.add_ranks() = rank.report;
    }
    for (const proto::RankReport& rank : past_ranks_) *report.add_ranks() = rank;
    if (!groups_.empty() || !failure_ || failure_->exit_code == 0) return;
    for (std::uint32_t local = 0; local < here().rank_count(); ++local) {
        proto::RankReport& rank = *report.add_ranks();
        rank.set_rank(here().first_rank() + local);
        rank.set_state(proto::RANK_EXITED);
        rank.set_exit_code(failure_->exit_code);
    }
}

proto::AttemptReport Shepherd::make_report() {
    proto::AttemptReport report;
    *report.mutable_id() = id_;
    report.set_node(start_.node);
    report.set_phase(phase_);
    report.set_revision(++revision_);
    add_ranks(report);
    if (failure_) {
        report.set_failure(printable(failure_->why));
        report.set_failure_is_users(failure_->is_users);
    }
    report.set_gang_key(keys_.public_key);
    if (link_) report.set_gang_endpoint(link_->endpoint());
    for (const std::string& fault : faults_) report.add_faults(printable(fault));
    if (output_) {
        for (const std::string& fault : output_->faults()) report.add_faults(printable(fault));
    }
    report.set_shepherd_pid(::getpid());
    report.set_master_port(master_port_);
    report.set_script_ended(script_ended_);
    if (launched_at_) report.set_running_ms(static_cast<std::uint64_t>(std::max<std::int64_t>(1, to_ms(now().steady - *launched_at_))));
    return report;
}

void Shepherd::report_now() {
    changed_ = false;
    if (!prepare_) return;
    if (damaged_) tell_coordinator(*damaged_);  // before what came of it; one of them arrives
    for (const proto::FromShepherd& one : damaged_at_rest_) tell_coordinator(one);
    proto::FromShepherd message;
    *message.mutable_report() = make_report();
    agent_->send(message);
    if (!own_line_) return;
    proto::NodeMessage own;
    *own.mutable_report() = message.report();
    own_line_->send(std::move(own));
}

// ---- Time.

void Shepherd::read_progress() {
    for (const auto& [step_id, group] : groups_) {
        for (LocalRank& rank : group->ranks) {
            if (rank.report.state() == proto::RANK_EXITED) continue;
            if (const auto progress = rank.page ? rank.page->read() : std::nullopt) *rank.report.mutable_progress() = *progress;
            const auto stat = process_stat(rank.report.pid());
            rank.report.set_process_state(stat ? std::string(1, stat->state) : "");
        }
    }
    changed_ = true;
}

void Shepherd::tick(TimePoint now) {
    if (now >= progress_at_) {
        read_progress();
        progress_at_ = now + kReportEvery;
    }
    if (now >= stop_at_) start_killing();
    if (killing_ && now >= kill_at_) kill_round(now);
    if (link_ && now >= link_->next_deadline()) link_->tick(now);
    if (steps_ && now >= steps_->next_deadline()) steps_->tick(now);
    watch_agent(now);
}

// While the agent says nothing, the coordinator hears us directly.
void Shepherd::watch_agent(TimePoint now) {
    if (!prepare_ || prepare_->coordinator_endpoint().empty() || phase_ < proto::ATTEMPT_PREPARED) return;
    const Duration silent = now - agent_->last_heard();
    if (silent < (agent_->is_connected() ? kSilentConnected : kSilentClosed)) {
        if (own_line_) log_info("own_line_closed");
        own_line_.reset();
        return;
    }
    if (now < own_line_at_) return;
    own_line_at_ = now + kReportEvery;
    if (!own_line_) {
        log_info("own_line_opened endpoint={} agent_silent_ms={}", prepare_->coordinator_endpoint(), to_ms(silent));
        auto line = OwnLine::open(*loop_, keys_, *prepare_, [this](const proto::Order& order) { on_order(order); });
        if (!line) {
            log_warn("own_line_failed error={}", line.error().message);
            return;
        }
        own_line_ = std::move(*line);
    }
    changed_ = true;
    for (const auto& [step_id, commit] : commits_) {
        proto::NodeMessage again;
        *again.mutable_commit() = commit;
        own_line_->send(std::move(again));
    }
}

TimePoint Shepherd::next_deadline() const {
    TimePoint next = std::min({progress_at_, stop_at_, killing_ ? kill_at_ : TimePoint::max()});
    if (link_) next = std::min(next, link_->next_deadline());
    if (steps_) next = std::min(next, steps_->next_deadline());
    if (output_) next = std::min(next, output_->next_deadline());
    const TimePoint heard = agent_->last_heard();
    if (!prepare_) return agent_->is_connected() ? next : std::min(next, heard + kSpareForgotten);
    if (!prepare_->coordinator_endpoint().empty() && phase_ >= proto::ATTEMPT_PREPARED) {
        const TimePoint silent_at = heard + (agent_->is_connected() ? kSilentConnected : kSilentClosed);
        next = std::min(next, std::max(silent_at, own_line_at_));
    }
    if (phase_ != proto::ATTEMPT_GONE) return next;
    return std::min(next, released_ ? gone_at_ + kLeadLingers : gone_at_ + kGoneForgotten);
}

bool Shepherd::may_exit(TimePoint now) const {
    if (!prepare_) return !agent_->is_connected() && now >= agent_->last_heard() + kSpareForgotten;
    if (phase_ != proto::ATTEMPT_GONE) return false;
    if (!released_) return now >= gone_at_ + kGoneForgotten;
    if (output_ && output_->is_waiting() && now < gone_at_ + kOutputLingers) return false;
    const bool others_may_wait = is_lead() && prepare_->gang_size() > 1 && !stopped_ && !failure_;
    return !others_may_wait || now >= gone_at_ + kLeadLingers;
}

int shepherd_serve(const ShepherdStart& start) {
    if (start.listen_fd > 3) ::syscall(SYS_close_range, 3u, static_cast<unsigned>(start.listen_fd - 1), 0u);
    ::syscall(SYS_close_range, static_cast<unsigned>(std::max(start.listen_fd, 2) + 1), ~0u, 0u);
    init_log("shepherd");
    ::fcntl(start.listen_fd, F_SETFD, FD_CLOEXEC);
    Shepherd shepherd(start);
    if (auto opened = shepherd.open(); !opened) {
        log_error("shepherd_not_started error={}", opened.error().message);
        ::_exit(1);
    }
    ::_exit(shepherd.run());
}

}  // namespace gangline::runner
