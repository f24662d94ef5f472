// A failure: its cause, who pays for it, and what comes next.
//
//   infrastructure   restart, as often as it takes; a restart without progress since the last one waits 0, 0.5, 1, 2 ... 60 s.
//                    But when the same rank dies by the same signal without progress, its node is avoided the second time,
//                    and the third time it is the program: a crash loop
//   user             restart while retries are left, and never twice for the same failure without progress
//
// One lost rank stops the whole gang: its peers would hang in their next collective.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "coordinator/brain/core.h"

namespace gangline::coordinator {
namespace {

std::int32_t exit_code_of(const Job& job, proto::JobState outcome) {
    if (outcome == proto::COMPLETED) return 0;
    if (outcome == proto::CANCELLED) return 128 + 15;
    if (outcome == proto::TIMED_OUT) return 124;  // as timeout(1)
    if (job.attempts.empty()) return 1;
    const proto::AttemptEnding& end = job.attempt().end;
    if (end.signal() != 0) return 128 + end.signal();
    return end.exit_code() != 0 ? end.exit_code() : 1;
}

// "n1: the shepherd of this attempt died", whichever node it was.
bool is_same_failure(std::string_view a, std::string_view b) {
    const auto what = [](std::string_view cause) { return cause.substr(std::min(cause.find(": "), cause.size())); };
    const std::string_view first = what(a);
    return !first.empty() && first.starts_with(what(b));
}

// How many attempts in a row, the one that `fault` ends included, have ended like it with no progress in between.
std::uint32_t same_in_a_row(const Job& job, const Fault& fault, bool advanced) {
    std::uint32_t count = 1;
    if (advanced) return count;
    const std::size_t most = std::size_t{job.without_progress} + 1;  // the first of them may have got somewhere
    for (std::size_t back = 2; back <= job.attempts.size() && back <= most + 1; ++back) {
        const proto::AttemptEnding& end = job.attempts[job.attempts.size() - back].end;
        if (end.kind() != fault.kind || end.exit_code() != fault.exit_code || end.signal() != fault.signal) break;
        if (fault.kind == proto::INFRASTRUCTURE && end.rank() != fault.rank) break;
        if (fault.of_part && !is_same_failure(end.cause(), fault.cause)) break;
        ++count;
    }
    return count;
}

std::string clip(std::string text, std::size_t most) {
    if (text.size() > most) text.erase(0, text.size() - most);  // the last lines say most
    return text;
}

}  // namespace

// A gang's first failure to arrive is its cause. But a user's failure (an exit code) on one of several nodes may be the
// echo of a rank, or a whole node, that died elsewhere and whose news is still on its way, or never comes: it counts
// when, kVerdictDelay later, every other node of the gang has been asked and had nothing worse to say.
void Brain::State::fail(Job& job, Fault fault) {
    if (!is_live(job.state)) return;
    Run& run = run_of(job);
    if (fault.kind != proto::USER || run.parts.size() == 1) return end_attempt(job, std::move(fault));
    if (run.verdict) return;
    run.verdict = std::move(fault);
    run.verdict_asked.reset();
    verdicts.insert(job.id);
    timers.set({Wait::Verdict, job.id, {}}, now.steady + kVerdictDelay);
}

void Brain::State::ask_for_verdict(Job& job) {
    Run& run = run_of(job);
    if (!run.verdict || !is_live(job.state)) return;
    run.verdict_asked = now.steady;
    for (const Part& part : job.attempt().parts) {
        if (part.place.node() == run.verdict->node || part.state != PartState::Held) continue;
        proto::Order ask;
        ask.mutable_welcome()->set_send_hello(true);
        ask.mutable_welcome()->set_heartbeat_ms(static_cast<std::uint64_t>(to_ms(options.heartbeat)));
        order(part.place.node(), std::move(ask));
    }
}

// At the end of each step, for each job with a verdict.
void Brain::State::check_verdict(Job& job) {
    const auto found = runs.find(job.id);
    if (found == runs.end() || !found->second.verdict || !is_live(job.state)) {
        verdicts.erase(job.id);
        return;
    }
    Run& run = found->second;
    if (!run.verdict_asked) return;
    for (std::size_t i = 0; i < run.parts.size(); ++i) {
        const Part& part = job.attempt().parts[i];
        if (part.state != PartState::Held || part.place.node() == run.verdict->node) continue;
        const auto& spoke = run.parts[i].shepherd_spoke;
        if (nodes_now[part.place.node()].heard <= *run.verdict_asked && (!spoke || *spoke <= *run.verdict_asked)) return;
    }
    end_attempt(job, *std::exchange(run.verdict, std::nullopt));
}

Duration Brain::State::back_off(const Job& job, bool progress) const {
    if (progress || job.without_progress == 0) return Duration{0};
    const std::uint32_t doubled = std::min(job.without_progress - 1, 10u);
    return std::min<Duration>(milliseconds(500) * (1u << doubled), seconds(60));
}

// The slowest rank's page, with samples and FLOPs summed over the gang.
proto::Progress Brain::State::progress_of(const Job& job) const {
    proto::Progress slowest;
    const auto run = runs.find(job.id);
    if (run == runs.end()) return slowest;
    bool first = true;
    double samples = 0;
    double flops = 0;
    for (const auto& [key, rank] : run->second.ranks) {
        if (!rank.report.has_progress() || rank.report.progress().beat() == 0) continue;
        const proto::Progress& progress = rank.report.progress();
        samples += progress.samples();
        flops += progress.flops();
        if (first || std::pair(progress.step(), progress.beat()) < std::pair(slowest.step(), slowest.beat())) slowest = progress;
        first = false;
    }
    slowest.set_samples(samples);
    slowest.set_flops(flops);
    return slowest;
}

void Brain::State::end_attempt(Job& job, Fault fault) {
    if (!is_live(job.state)) return;
    const proto::Progress progress = progress_of(job);
    const bool advanced = job.made_progress(job.attempt(), progress, now.unix_ms);
    const std::uint32_t same = same_in_a_row(job, fault, advanced);
    proto::Record ending;
    proto::AttemptEnding& body = *ending.mutable_attempt_ending();
    bool restart = !fault.final;
    if (restart && fault.kind == proto::USER) {
        if (job.user_failures >= job.spec.user_retries()) {
            restart = false;
            if (job.spec.user_retries() != 0) fault.cause += fmt::format("; its {} retries are used up", job.spec.user_retries());
        } else if (same >= kCrashLoop) {
            restart = false;
            fault.cause += "; the same failure as before and no progress in between: a crash loop, not tried again";
        }
    } else if (restart && fault.kind == proto::INFRASTRUCTURE && same >= 2 &&
               ((fault.rank >= 0 && fault.signal != 0) || fault.of_part)) {
        fault.blame = true;
        if (same >= kSignalCrashLoop) {
            restart = false;
            fault.cause += fmt::format("; {} {} times, elsewhere too where there is another node, and no progress in between: a crash loop, "
                                       "not tried again{}",
                                       fault.of_part ? "the same" : "the same rank by the same signal", same,
                                       fault.of_part ? "" : " (is it out of memory?)");
        }
    }
    if (restart && fault.kind == proto::INFRASTRUCTURE && job.spec.no_requeue()) {
        restart = false;
        fault.cause += "; not started again (--no-requeue)";
    }
    *body.mutable_id() = id_of(job);
    body.set_cause(fault.cause);
    body.set_kind(fault.kind);
    body.set_rank(fault.rank);
    body.set_exit_code(fault.exit_code);
    body.set_signal(fault.signal);
    body.set_last_lines(clip(std::move(fault.last_lines), 4096));
    if (fault.blame) body.set_blamed_node(fault.node);
    body.set_node(fault.node);
    body.set_next(restart ? proto::RESTART : proto::END);
    if (!restart) body.set_outcome(proto::FAILED);
    *body.mutable_progress() = progress;
    if (restart) body.set_back_off_ms(static_cast<std::uint64_t>(to_ms(back_off(job, advanced))));
    body.set_stalled_ms(static_cast<std::uint64_t>(to_ms(fault.stalled)));
    record(std::move(ending));
    stop_parts(job, Duration{0}, fault.cause);
}

// A decision rather than a failure: cancelled, out of time, or a script that is through.
void Brain::State::end_job(Job& job, std::string cause, proto::JobState outcome, Duration grace) {
    proto::Record ending;
    proto::AttemptEnding& body = *ending.mutable_attempt_ending();
    *body.mutable_id() = id_of(job);
    body.set_cause(cause);
    body.set_rank(-1);
    body.set_next(proto::END);
    body.set_outcome(outcome);
    *body.mutable_progress() = progress_of(job);
    record(std::move(ending));
    stop_parts(job, grace, cause);
}

void Brain::State::stop_parts(Job& job, Duration grace, const std::string& reason) {
    timers.clear_job(job.id);
    run_of(job).verdict.reset();
    verdicts.erase(job.id);
    absorb_gone(job);
    const Run& run = run_of(job);
    for (std::size_t part = 0; part < run.parts.size(); ++part) {
        if (job.attempt().parts[part].state == PartState::Held) order_stop(job, part, grace, reason);
    }
    watch_run(job);
    timers.clear({Wait::Stop, job.id, {}});
    if (!job.attempt().all_gone()) timers.set({Wait::Stop, job.id, {}}, now.steady + grace + options.stop_timeout);
    settle(job);
}

void Brain::State::finish_job(Job& job, proto::JobState outcome, std::string reason) {
    proto::Record ended;
    proto::JobEnded& body = *ended.mutable_job_ended();
    body.set_job(job.id);
    body.set_outcome(outcome);
    body.set_exit_code(exit_code_of(job, outcome));
    body.set_reason(std::move(reason));
    const proto::Progress progress = progress_of(job);
    if (progress.beat() != 0) *body.mutable_progress() = progress;
    timers.clear_job(job.id);
    runs.erase(job.id);
    record(std::move(ended));
    release_snapshots(job, {});
    place_wanted = true;
}

// A node that cannot prove its part gone keeps its cards to itself; the job goes on without it.
void Brain::State::stop_expired(Job& job) {
    if (!is_ending(job.state)) return;
    for (std::size_t part = 0; part < job.attempt().parts.size(); ++part) {
        if (job.attempt().parts[part].state != PartState::Held) continue;
        part_gone(job, part, true, fmt::format("not proved empty {} s after Stop", to_ms(options.stop_timeout) / 1000));
    }
    settle(job);
}

// Every rank has exited 0, yet a node does not say GONE: it is told to stop, then given up.
void Brain::State::finish_expired(Job& job) {
    if (!is_launched(job.state) || !all_ranks_done(job)) return;
    Run& run = run_of(job);
    for (std::size_t part = 0; part < run.parts.size(); ++part) {
        if (job.attempt().parts[part].state != PartState::Held) continue;
        if (run.finish_ordered) {
            part_gone(job, part, true, "its ranks have exited, but it is not proved empty");
        } else {
            order_stop(job, part, Duration{0}, "every rank has exited");
        }
    }
    if (!run.finish_ordered) timers.set({Wait::Finish, job.id, {}}, now.steady + options.stop_timeout);
    run.finish_ordered = true;
    settle(job);
}

}  // namespace gangline::coordinator
