// Which checkpoints count. The journal is the commit point; a fenced attempt can neither commit nor condemn.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/brain/core.h"
#include "coordinator/brain/retention.h"

namespace gangline::coordinator {
namespace {

bool is_failure(proto::FaultKind kind) { return kind == proto::INFRASTRUCTURE || kind == proto::USER; }

// The snapshot that the attempt was started from: since then it has come to disk, and may count.
bool is_start_of(const Attempt& attempt, const proto::CommitRequest& request) {
    return attempt.restore && attempt.restore->in_memory() && attempt.restore->step() == request.step() && attempt.restore->attempt() == request.written_by();
}

std::string words_of(const proto::RestorePoint& point) {
    if (point.in_memory()) return fmt::format("the snapshot of step {} (attempt {})", point.step(), point.attempt());
    return fmt::format("the checkpoint of step {} (attempt {})", point.step(), point.attempt());
}

}  // namespace

void Brain::State::commit(const std::string& node, const proto::CommitRequest& request) {
    proto::Order out;
    proto::CommitReply& answer = *out.mutable_commit();
    *answer.mutable_id() = request.id();
    answer.set_step(request.step());
    Job* job = facts.current(request.id());
    std::string refused;
    bool known = false;
    if (job == nullptr) {
        refused = fmt::format("attempt {} of job {} is not the present one", request.id().attempt(), request.id().job());
    } else {
        for (const Checkpoint& one : job->checkpoints) {
            known = known || (!one.damaged && one.point.step() == request.step() &&
                              one.point.attempt() == (request.written_by() != 0 ? request.written_by() : request.id().attempt()) &&
                              one.point.manifest_sha256() == request.manifest_sha256());
        }
        const Checkpoint* newest = job->newest_good();
        if (known) {
            // A repeated request: its first answer was lost.
        } else if (is_ending(job->state) && is_failure(job->attempt().end.kind())) {
            // Ended by a failure: what its ranks still write is nobody's. A gang that was told to save and stop may commit in its grace.
            refused = fmt::format("attempt {} is being ended: {}", request.id().attempt(), job->reason);
        } else if (!is_launched(job->state) && !is_ending(job->state)) {
            refused = fmt::format("attempt {} is not launched", request.id().attempt());
        } else if (request.written_by() != 0 && !is_start_of(job->attempt(), request)) {
            refused = fmt::format("attempt {} did not start from the snapshot of step {} of attempt {}", request.id().attempt(), request.step(), request.written_by());
        } else if (newest != nullptr && newest->point.step() >= request.step()) {
            refused = fmt::format("step {} is not newer than the committed step {}", request.step(), newest->point.step());
        }
    }
    if (refused.empty() && !known) {
        proto::Record committed;
        proto::CheckpointCommitted& body = *committed.mutable_checkpoint_committed();
        *body.mutable_id() = request.id();
        body.set_step(request.step());
        body.set_manifest_sha256(request.manifest_sha256());
        body.set_bytes(request.bytes());
        body.set_written_by(request.written_by());
        if (request.has_metric()) body.set_metric(request.metric());
        decide_retention(*job, rule_of(job->spec, options.keep_checkpoints), request, body);
        record(std::move(committed));
    }
    answer.set_accepted(refused.empty());
    answer.set_reason(std::move(refused));
    if (job != nullptr) {
        answer.set_keep_every(job->spec.retention().every());
        for (const Checkpoint& one : job->checkpoints) {
            const bool is_named = answer.keep_every() == 0 || one.point.step() % answer.keep_every() != 0;
            if (!one.damaged && is_named) *answer.add_keep() = one.point;
        }
    }
    order(node, std::move(out));
}

// On the nodes that a job leaves: its keepers there bring to disk what is not there yet, and end.
void Brain::State::release_snapshots(const Job& job, const std::vector<proto::Placement>& gang) {
    if (job.attempts.empty() || (job.checkpoints.empty() && !job.snapshot)) return;
    proto::AttemptId id;
    id.set_job(job.id);
    id.set_attempt(job.attempt().number);
    for (const Part& part : job.attempt().parts) {
        const bool stays = std::any_of(gang.begin(), gang.end(), [&](const proto::Placement& place) { return place.node() == part.place.node(); });
        if (!stays && part.state == PartState::Gone) release(part.place.node(), id);
    }
}

// A checkpoint that cannot be read back is not tried again; the gang restarts from the one before. When none is left the
// job fails: it never starts afresh in silence. A snapshot that is lost before it was committed never counted: without it, and without a
// checkpoint, the job begins where it would have begun. A checkpoint that is found damaged at rest stops nothing: no rank's state comes from it.
void Brain::State::damaged(const proto::CheckpointDamaged& message) {
    Job* job = facts.current(message.id());
    if (job == nullptr) return;
    proto::RestorePoint point = message.checkpoint();
    const auto& start = job->attempt().restore;
    point.set_in_memory(!message.at_rest() && start && start->in_memory() && start->step() == point.step() && start->attempt() == point.attempt());
    bool is_news = point.in_memory() && is_live(job->state);
    for (const Checkpoint& one : job->checkpoints) {
        is_news = is_news || (!point.in_memory() && !one.damaged && one.point.step() == point.step() && one.point.attempt() == point.attempt());
    }
    if (!is_news) return;
    proto::Record found;
    proto::CheckpointFoundDamaged& body = *found.mutable_checkpoint_found_damaged();
    *body.mutable_id() = message.id();
    *body.mutable_checkpoint() = point;
    body.set_what(message.what());
    body.set_rank(message.rank());
    record(std::move(found));
    Fault fault;
    fault.kind = proto::INFRASTRUCTURE;
    fault.rank = static_cast<std::int32_t>(message.rank());
    fault.cause = fmt::format("{} is {}: {}", words_of(point), point.in_memory() ? "lost" : "damaged", message.what());
    hear_fault(*job, message.rank(), fault.cause);
    if (!is_live(job->state) || message.at_rest()) return;
    if (const auto older = job->restore_point()) {
        fault.cause += fmt::format("; the one of step {} serves", older->step());
    } else if (point.in_memory() && job->checkpoints.empty()) {
        fault.cause += "; no checkpoint was committed before it: the job starts afresh";
    } else {
        fault.final = true;
        fault.cause += "; no other checkpoint is left, and the job is not started afresh: submit it again to do that";
    }
    end_attempt(*job, std::move(fault));
}

}  // namespace gangline::coordinator
