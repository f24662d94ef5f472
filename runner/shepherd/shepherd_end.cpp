// Deaths of ranks, and the end of the attempt: everything killed, and proved gone.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <fmt/format.h>

#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "runner/shepherd/shepherd.h"

namespace gangline::runner {
namespace {

constexpr Duration kFirstKillAgain = milliseconds(1);
constexpr Duration kLongestKillAgain = milliseconds(500);
constexpr Duration kSlowDeath = seconds(5);
constexpr std::size_t kMostPastRanks = 512;

bool has_children() {
    siginfo_t info{};
    return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

bool has_failed(const proto::RankReport& report) { return report.exit_code() != 0 || report.signal() != 0; }

}  // namespace

// PMIx first: what a rank told it before its death was queued before the death was.
void Shepherd::reap() {
    if (pmix_) pmix_->handle();
    bool rank_ended = false;
    for (;;) {
        int status = 0;
        const pid_t pid = ::waitpid(-1, &status, WNOHANG);
        if (pid < 0 && errno == EINTR) continue;
        if (pid <= 0) break;
        rank_ended = rank_ended || processes_.count(pid) != 0;
        on_exit(pid, status);
    }
    if (rank_ended && !killing_) report_now();
    forget_finished_steps();
    check_end();
}

void Shepherd::on_exit(pid_t pid, int status) {
    const auto found = processes_.find(pid);
    if (found == processes_.end()) return;  // An orphan that came to us.
    const auto [step_id, number] = found->second;
    processes_.erase(found);
    RankGroup* group = group_of(step_id);
    LocalRank* rank = group == nullptr ? nullptr : group->find(number);
    if (rank == nullptr) return;
    read_status(*group);
    output_->drain({step_id, number});
    judge_exit(*group, *rank, status);
    if (has_failed(rank->report)) rank->report.set_last_lines(output_->last_lines({step_id, number}));
    if (const auto progress = rank->page ? rank->page->read() : std::nullopt) *rank->report.mutable_progress() = *progress;
    rank->report.clear_process_state();
    changed_ = true;
    log_info("rank_ended step={} rank={} exit_code={} signal={}", step_id, number, rank->report.exit_code(), rank->report.signal());
    if (group->is_script) {
        script_ended_ = true;
        steps_->close();
    }
    if (step_id != 0 && !group->abandoned) steps_->local_exit(step_id, rank->report);
}

void Shepherd::judge_exit(RankGroup& group, LocalRank& rank, int status) {
    proto::RankReport& report = rank.report;
    report.set_state(proto::RANK_EXITED);
    if (WIFSIGNALED(status)) report.set_signal(WTERMSIG(status));
    if (WIFEXITED(status)) report.set_exit_code(WEXITSTATUS(status));
    if (report.signal() == SIGKILL && cgroup_ && cgroup_->killed_for_memory() != 0 && !failure_ && !stopped_) {
        failure_ = Failure{fmt::format("rank {} was killed: the job reached its memory limit of {} MiB (--mem) on node {}", report.rank(),
                                       prepare_->spec().memory_mib_per_node(), start_.node),
                           true, 0};
    }
    if (has_failed(report) || group.name_space.empty()) return;
    // Exit code 0 from inside MPI: its peers would wait for it for ever.
    const bool inside = pmix_->is_inside_mpi(group.name_space, report.rank());
    if (!inside && !rank.aborted) return;
    report.set_exit_code(1);
    const std::string why = rank.aborted ? fmt::format("rank {} called MPI_Abort({})", report.rank(), rank.abort_code)
                                         : fmt::format("rank {} left without MPI_Finalize", report.rank());
    if (group.step_id != 0) {
        steps_->local_output(group.step_id, report.rank(), true, fmt::format("gangline: {}\n", why));
    } else {
        output_->note({0, report.rank()}, why);
        if (!failure_) failure_ = Failure{fmt::format("{} (on node {})", why, start_.node), true, 0};
    }
}

void Shepherd::forget_finished_steps() {
    for (auto it = groups_.begin(); it != groups_.end();) {
        RankGroup& group = *it->second;
        if (it->first == 0 || !group.all_exited()) {
            ++it;
            continue;
        }
        for (const LocalRank& rank : group.ranks) {
            past_ranks_.push_back(rank.report);
            output_->forget({it->first, rank.report.rank()});
        }
        if (group.status) loop_->forget(group.status.get());
        std::erase_if(commits_, [&](const auto& one) { return one.first.first == it->first; });
        it = groups_.erase(it);
    }
    if (past_ranks_.size() > kMostPastRanks) {
        past_ranks_.erase(past_ranks_.begin(), past_ranks_.end() - static_cast<std::ptrdiff_t>(kMostPastRanks));
    }
}

// ---- The end.

void Shepherd::on_stop(const proto::Stop& stop) {
    if (!is_ours(stop.id())) return;
    if (!prepare_) {
        quit_ = true;  // It never began: the closed line says so.
        return;
    }
    if (phase_ == proto::ATTEMPT_GONE) {
        changed_ = true;
        return;
    }
    log_info("stop job={} attempt={} grace_ms={} reason={}", id_.job(), id_.attempt(), stop.grace_ms(), stop.reason());
    const bool is_first = phase_ != proto::ATTEMPT_STOPPING;
    // A gang's last words, once: its lead tells them.
    if (is_first && !killing_ && is_lead() && output_ && phase_ == proto::ATTEMPT_RUNNING && !stop.reason().empty()) {
        output_->tell(here().first_rank(), "ended: " + printable(stop.reason()));
    }
    const TimePoint until = now().steady + milliseconds(std::min<std::uint64_t>(stop.grace_ms(), 24 * 3600 * 1000));
    stopped_ = true;
    phase_ = proto::ATTEMPT_STOPPING;
    if (killing_) return;
    if (stop.grace_ms() == 0 || processes_.empty()) return start_killing();
    stop_at_ = std::min(stop_at_, until);
    if (!is_first) return;
    changed_ = true;
    if (steps_) steps_->close();
    WorkerHeader header;
    header.kind = static_cast<std::uint16_t>(WorkerKind::StopSoon);
    header.attempt = id_.attempt();
    const auto left = static_cast<std::uint32_t>(std::min<std::uint64_t>(stop.grace_ms(), UINT32_MAX));
    const std::string payload(reinterpret_cast<const char*>(&left), sizeof left);
    for (const auto& [step_id, group] : groups_) {
        if (group->workers) group->workers->send_all(header, payload);
    }
    for (const auto& [step_id, group] : groups_) {
        signal_group(*group, SIGTERM);
        signal_group(*group, SIGCONT);
    }
}

// This node's part cannot go on: whatever runs of it ends at once.
void Shepherd::fail(Failure failure) {
    if (!failure_) failure_ = std::move(failure);
    stopped_ = true;
    start_killing();
}

void Shepherd::check_end() {
    if (killing_) {
        kill_round(now().steady);
        return;
    }
    const RankGroup* first = group_of(0);
    const bool ended = phase_ == proto::ATTEMPT_RUNNING && first != nullptr && first->all_exited();
    if (ended || (phase_ == proto::ATTEMPT_STOPPING && processes_.empty())) start_killing();
}

void Shepherd::start_killing() {
    if (phase_ == proto::ATTEMPT_GONE || killing_) return;
    phase_ = proto::ATTEMPT_STOPPING;
    changed_ = true;
    stop_at_ = TimePoint::max();
    killing_ = true;
    killing_since_ = now().steady;
    kill_again_ = kFirstKillAgain;
    if (steps_) steps_->close();
    kill_round(killing_since_);
}

// Runs again at each death, and, for what was born meanwhile or is nobody's child, after a short time.
void Shepherd::kill_round(TimePoint now) {
    if (!has_children()) return prove_gone(now);
    if (cgroup_) cgroup_->kill();
    const std::size_t left = kill_children();
    kill_at_ = now + kill_again_;
    kill_again_ = std::min(kill_again_ * 2, kLongestKillAgain);
    if (now - killing_since_ < kSlowDeath || slow_death_said_) return;
    slow_death_said_ = true;
    add_fault(fmt::format("{} processes on node {} do not die from SIGKILL (they may hang in a file system or a driver)", left, start_.node));
}

void Shepherd::prove_gone(TimePoint now) {
    const std::vector<pid_t> marked = marked_processes(mark_of(start_.cluster, start_.node, id_));
    for (const pid_t pid : marked) ::kill(pid, SIGKILL);
    const bool populated = cgroup_ && !cgroup_->is_empty();
    if (populated) cgroup_->kill();
    if (marked.empty() && !populated) return gone();
    kill_at_ = now + kill_again_;
    kill_again_ = std::min(kill_again_ * 2, kLongestKillAgain);
    if (now - killing_since_ < kSlowDeath || slow_death_said_) return;
    slow_death_said_ = true;
    add_fault(fmt::format("{} processes on node {} carry this attempt's mark and do not die from SIGKILL", marked.size(), start_.node));
}

void Shepherd::gone() {
    killing_ = false;
    kill_at_ = progress_at_ = TimePoint::max();
    gone_at_ = now().steady;
    if (output_) {
        output_->close_all();
        output_->flush(gone_at_);
    }
    if (!shared_folder_.empty()) {
        if (auto removed = remove_tree(shared_folder_); !removed) log_warn("{}", removed.error().message);
    }
    if (cgroup_) cgroup_->remove();
    phase_ = proto::ATTEMPT_GONE;
    log_info("gone job={} attempt={} after_ms={}", id_.job(), id_.attempt(), to_ms(gone_at_ - killing_since_));
    report_now();
}

}  // namespace gangline::runner
