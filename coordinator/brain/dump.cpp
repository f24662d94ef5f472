// The whole journalled state as text: equal for equal states.
#include <fmt/format.h>

#include "coordinator/brain/facts.h"

namespace gangline::coordinator {
namespace {

std::string dump_node(const Node& node) {
    std::string text = fmt::format("node {} drained={} by={} note={} lost={} because={}\n", node.info.ShortDebugString(),
                                   node.drained, node.drained_by, node.drain_note, node.lost, node.lost_reason);
    for (const auto& [key, hold] : node.holds) {
        text += fmt::format("  hold {}.{} cards={} cpus={} memory={} exclusive={} cleaning={}\n", key.job, key.attempt,
                            fmt::join(hold.cards, ","), hold.cpus, hold.memory_mib, hold.exclusive, hold.cleaning);
    }
    text += fmt::format("  lemon {} at {} lost {} counted {}\n", node.lemon, node.lemon_ms, node.lost_ms, fmt::join(node.counted, " "));
    for (const auto& [key, hold] : node.holds) {
        if (hold.let_go || hold.spare) text += fmt::format("  hold {}.{} let_go={} spare={}\n", key.job, key.attempt, hold.let_go, hold.spare);
    }
    for (const auto& [card, key] : node.busy) text += fmt::format("  busy {} by {}.{}\n", card, key.job, key.attempt);
    return text;
}

std::string dump_attempt(const Attempt& attempt) {
    std::string text = fmt::format("  attempt {} reserved={} launched={} joined={} gone={} ended={} because={} restore={} end={}\n",
                                   attempt.number, attempt.reserved_ms, attempt.launched_ms, attempt.joined_ms,
                                   attempt.gone_ms, attempt.ended_ms, attempt.reason,
                                   attempt.restore ? attempt.restore->ShortDebugString() : "-", attempt.end.ShortDebugString());
    text += fmt::format("    let_go={} spares={} idle={} since {} for {} passed_over={}\n", attempt.let_go_ms, fmt::join(attempt.spares, ","), attempt.idle_cards,
                        attempt.idle_since_ms, attempt.idle_card_s, fmt::join(attempt.passed_over, "; "));
    for (const Part& part : attempt.parts) {
        text += fmt::format("    part {} state={}\n", part.place.ShortDebugString(), static_cast<int>(part.state));
    }
    return text;
}

std::string dump_job(const Job& job) {
    std::string text = fmt::format(
        "job {} user={} {}:{} groups={} home={} state={} held={} by={} reason={} submitted={} ended={} exit={} "
        "user_failures={} without_progress={} best_step={}\n  spec {}\n",
        job.id, job.user, job.uid, job.gid, fmt::join(job.account->groups, ","), job.account->home, proto::JobState_Name(job.state), job.held,
        job.held_by ? *job.held_by : "", job.reason, job.submitted_ms, job.ended_ms, job.exit_code, job.user_failures, job.without_progress,
        job.best_step, job.full_spec().ShortDebugString());
    for (const Attempt& attempt : job.attempts) text += dump_attempt(attempt);
    for (const Checkpoint& one : job.checkpoints) {
        text += fmt::format("  checkpoint {} at={} bytes={} damaged={} metric={} pinned={} verified={} {}\n", one.point.ShortDebugString(), one.unix_ms,
                            one.bytes, one.damaged, one.metric ? fmt::format("{}", *one.metric) : "-", one.pinned, one.verified, one.note);
    }
    for (const std::string& fault : job.faults) text += fmt::format("  fault {}\n", fault);
    for (const auto& [node, times] : job.blamed) text += fmt::format("  blamed {} {}\n", node, times);
    if (job.claim) text += fmt::format("  claims {} from {} {}\n", job.claim->places.size(), job.claim->victims.size(), job.claim->reason);
    if (job.has_evicted || job.preemptions != 0) text += fmt::format("  evicted={} preempted={}\n", job.has_evicted, job.preemptions);
    if (job.last_progress) text += fmt::format("  progress {}\n", job.last_progress->ShortDebugString());
    return text;
}

}  // namespace

std::string Facts::dump() const {
    std::string text = fmt::format("epoch {} last_job {}\n", epoch, last_job);
    for (const auto& [name, node] : nodes) text += dump_node(node);
    for (const auto& [id, job] : jobs) text += dump_job(job);
    for (const auto& [key, job] : queue) text += fmt::format("queued {} {} need {}\n", key.behind, key.job, job->need);
    for (const Need& need : needs) text += fmt::format("need {}\n", need.shape());
    for (const auto& [name, user] : users) {
        text += fmt::format("user {} used {} at {} run {} of_limit {} jobs {} {}\n", name, user.used_card_s, user.at_ms, user.run_s, user.of_limit,
                            user.jobs, user.with_limit);
        text += fmt::format("  causes {}\n", fmt::join(user.card_s, " "));
    }
    for (const auto& [name, one] : reservations) text += fmt::format("reservation {}\n", one.ShortDebugString());
    text += fmt::format("cards {} owned_s {} free_s {} fragmented_s {} until {} node_days {} faults {} waiting {}\n", fmt::join(accounts.counts(), " "), accounts.owned_s(),
                        accounts.seconds(Free), accounts.fragmented_s(), accounts.until_ms(), accounts.node_days(), accounts.faults(), waiting_for_cards);
    for (const std::uint64_t id : active) text += fmt::format("active {}\n", id);
    for (const auto& [user, jobs_waiting] : waiting_of_user) text += fmt::format("waiting {} {}\n", user, jobs_waiting);
    return text;
}

}  // namespace gangline::coordinator
