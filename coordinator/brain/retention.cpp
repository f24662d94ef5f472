#include "coordinator/brain/retention.h"

#include <algorithm>

namespace gangline::coordinator {
namespace {

bool is_same(const proto::RestorePoint& point, const proto::CheckpointMark& mark) { return point.step() == mark.step() && point.attempt() == mark.attempt(); }

KeptCheckpoint described(const Checkpoint& one) {
    return {.step = one.point.step(), .metric = one.metric, .is_damaged = one.damaged, .is_verified = one.verified, .is_pinned = one.pinned};
}

// The attempt that runs may still be reading what it started from, until it has saved itself.
bool is_being_restored(const Job& job, const proto::RestorePoint& point) {
    if (job.attempts.empty() || is_ended(job.state) || !job.attempt().restore) return false;
    const proto::RestorePoint& restore = *job.attempt().restore;
    return restore.step() == point.step() && restore.attempt() == point.attempt();
}

}  // namespace

RetentionRule rule_of(const proto::JobSpec& spec, std::uint32_t last) {
    const proto::Retention& asked = spec.retention();
    return {.last = asked.last() == 0 ? last : asked.last(), .every = asked.every(), .best = asked.best(), .higher_is_better = asked.higher_is_better()};
}

std::vector<Needs> needs_of(const Job& job, const RetentionRule& rule) {
    const bool has_saved = std::any_of(job.checkpoints.begin(), job.checkpoints.end(), [&](const Checkpoint& one) {
        return !job.attempts.empty() && one.point.attempt() == job.attempt().number;
    });
    std::vector<KeptCheckpoint> all;
    for (const Checkpoint& one : job.checkpoints) {
        all.push_back(described(one));
        all.back().is_restored = !has_saved && is_being_restored(job, one.point);
    }
    return gangline::needs_of(all, rule);
}

void decide_retention(const Job& job, const RetentionRule& rule, const proto::CommitRequest& request, proto::CheckpointCommitted& body) {
    std::vector<KeptCheckpoint> all;
    for (const Checkpoint& one : job.checkpoints) {
        KeptCheckpoint kept = described(one);
        const auto mark = std::find_if(request.marks().begin(), request.marks().end(), [&](const auto& each) { return is_same(one.point, each); });
        kept.is_pinned = mark != request.marks().end() && mark->pinned();
        kept.is_verified |= mark != request.marks().end() && mark->verified();
        if (mark != request.marks().end()) *body.add_marks() = *mark;
        all.push_back(kept);
    }
    all.push_back({.step = request.step(), .metric = request.has_metric() ? std::optional(request.metric()) : std::nullopt});
    const std::vector<Needs> needs = gangline::needs_of(all, rule);
    for (std::size_t i = 0; i < job.checkpoints.size(); ++i) {
        const Checkpoint& one = job.checkpoints[i];
        if (one.damaged || needs[i].any()) continue;
        proto::RestorePoint& gone = *body.add_gone();
        gone.set_step(one.point.step());
        gone.set_attempt(one.point.attempt());
    }
}

}  // namespace gangline::coordinator
