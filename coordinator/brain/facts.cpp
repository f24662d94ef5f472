#include "coordinator/brain/facts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace gangline::coordinator {
namespace {

// Whether it waits for cards alone, as far as the journal knows.
bool waits_for_cards(const Job& job) {
    return !job.held && !job.dependency && job.spec.begin_unix_ms() == 0 && job.spec.reservation().empty();
}

}  // namespace

bool Attempt::all_gone() const {
    return std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.state != PartState::Held; });
}

Part* Attempt::part_on(const std::string& node) {
    const auto found = std::find_if(parts.begin(), parts.end(), [&](const Part& part) { return part.place.node() == node; });
    return found == parts.end() ? nullptr : &*found;
}

const Part* Attempt::part_on(const std::string& node) const {
    return const_cast<Attempt*>(this)->part_on(node);
}

std::uint32_t Attempt::ranks() const {
    std::uint32_t sum = 0;
    for (const Part& part : parts) sum += part.place.rank_count();
    return sum;
}

std::uint64_t Attempt::cards() const {
    std::uint64_t sum = 0;
    for (const Part& part : parts) sum += static_cast<std::uint64_t>(part.place.cards_size());
    return sum;
}

bool Job::has_failed_on(const std::string& node) const {
    return std::any_of(blamed.begin(), blamed.end(), [&](const auto& one) { return one.first == node; });
}

proto::JobSpec Job::full_spec() const {
    proto::JobSpec full = spec;
    if (environment) *full.mutable_environment() = *environment;
    return full;
}

const Checkpoint* Job::newest_good() const {
    const Checkpoint* newest = nullptr;
    for (const Checkpoint& one : checkpoints) {
        if (one.damaged) continue;
        if (newest == nullptr || one.point.step() >= newest->point.step()) newest = &one;
    }
    return newest;
}

std::optional<proto::RestorePoint> Job::restore_point() const {
    const Checkpoint* newest = newest_good();
    if (snapshot && (newest == nullptr || newest->point.step() < snapshot->step())) return snapshot;
    if (newest == nullptr) return std::nullopt;
    return newest->point;
}

std::optional<std::int64_t> Job::time_left_ms(std::int64_t now_ms) const {
    const std::uint64_t limit_s = granted_limit_s != 0 ? granted_limit_s : spec.time_limit_s();
    if (limit_s == 0) return std::nullopt;
    std::int64_t left_ms = static_cast<std::int64_t>(limit_s) * 1000;
    for (const Attempt& one : attempts) {
        if (one.launched_ms == 0) continue;
        left_ms -= (&one == &attempt() && one.gone_ms == 0 ? now_ms : std::max(one.gone_ms, one.ended_ms)) - one.launched_ms;
    }
    return std::max<std::int64_t>(0, left_ms);
}

bool Job::made_progress(const Attempt& of, const proto::Progress& last, std::int64_t now_ms) const {
    if (last.step() > best_step) return true;
    for (const Checkpoint& one : checkpoints) {
        if (one.point.attempt() == of.number) return true;
    }
    // A program that reports no steps: a minute of life counts.
    const bool reports_steps = last.beat() != 0 || best_step != 0 || !checkpoints.empty();
    return !reports_steps && of.launched_ms != 0 && now_ms - of.launched_ms >= 60'000;
}

Job* Facts::find(std::uint64_t id) {
    const auto found = jobs.find(id);
    return found == jobs.end() ? nullptr : &found->second;
}
const Job* Facts::find(std::uint64_t id) const { return const_cast<Facts*>(this)->find(id); }

Job* Facts::current(const proto::AttemptId& id) {
    Job* job = find(id.job());
    if (job == nullptr || job->attempts.empty() || job->attempt().number != id.attempt()) return nullptr;
    return is_live(job->state) || is_ending(job->state) ? job : nullptr;
}

Node* Facts::node(const std::string& name) {
    const auto found = nodes.find(name);
    return found == nodes.end() ? nullptr : &found->second;
}
const Node* Facts::node(const std::string& name) const { return const_cast<Facts*>(this)->node(name); }

std::optional<std::uint64_t> Facts::submitted_with(const std::string& user, const std::string& idempotency_key) const {
    const auto found = by_idempotency_key_.find({user, idempotency_key});
    if (found == by_idempotency_key_.end()) return std::nullopt;
    return found->second;
}

void Facts::apply(proto::Record&& record) {
    if (!record.has_job_submitted()) return apply(std::as_const(record));
    epoch = std::max(epoch, record.epoch());
    ++version;
    accounts.advance(record.unix_ms(), waiting_for_cards != 0);
    proto::JobSpec spec = std::move(*record.mutable_job_submitted()->mutable_spec());
    apply_submitted(record.job_submitted(), std::move(spec), record.unix_ms());
}

void Facts::apply(const proto::Record& record) {
    epoch = std::max(epoch, record.epoch());
    ++version;
    accounts.advance(record.unix_ms(), waiting_for_cards != 0);
    switch (record.body_case()) {
        case proto::Record::kTookOffice: return;
        case proto::Record::kJobSubmitted: 
            return apply_submitted(record.job_submitted(), record.job_submitted().spec(), record.unix_ms());
        case proto::Record::kJobHeld: return apply_held(record.job_held());
        case proto::Record::kGangReserved: return apply_reserved(record.gang_reserved(), record.unix_ms());
        case proto::Record::kGangLaunched: {
            Job* job = current(record.gang_launched().id());
            CHECK(job != nullptr, "a gang that is launched was reserved");
            move(*job, JobSignal::Launched);
            job->attempt().launched_ms = record.unix_ms();
            return;
        }
        case proto::Record::kGangJoined: {
            Job* job = current(record.gang_joined().id());
            CHECK(job != nullptr, "a gang that has joined was reserved");
            move(*job, JobSignal::Joined);
            job->attempt().joined_ms = record.unix_ms();
            return;
        }
        case proto::Record::kAttemptEnding: return apply_ending(record.attempt_ending(), record.unix_ms());
        case proto::Record::kNodePartGone: return apply_gone(record.node_part_gone(), record.unix_ms());
        case proto::Record::kJobEnded: return apply_ended(record.job_ended(), record.unix_ms());
        case proto::Record::kJobRequeued: {
            Job* job = find(record.job_requeued().job());
            CHECK(job != nullptr, "a job that is requeued exists");
            move(*job, JobSignal::Requeued);
            job->reason = record.job_requeued().reason();
            job->granted_limit_s = 0;
            let_go(*job, record.unix_ms());
            return enqueue(*job);
        }
        case proto::Record::kPreemptionPlanned: return apply_planned(record.preemption_planned(), record.unix_ms());
        case proto::Record::kSparesHeld: return apply_spares(record.spares_held(), record.unix_ms());
        case proto::Record::kReservationSet:
        case proto::Record::kReservationEnded: return apply_reservation(record);
        case proto::Record::kCheckpointCommitted:
            return apply_committed(record.checkpoint_committed(), record.unix_ms());
        case proto::Record::kCheckpointFoundDamaged: return apply_damaged(record.checkpoint_found_damaged());
        case proto::Record::kJobFaultSeen: return apply_fault(record.job_fault_seen());
        case proto::Record::kNodeKnown:
        case proto::Record::kNodeDrained:
        case proto::Record::kNodeLost:
        case proto::Record::kNodeReturned: return apply_node(record);
        case proto::Record::BODY_NOT_SET: return;  // written by a later version: nothing that this one knows
    }
}

// The only place where a job's state changes, besides its birth.
void Facts::move(Job& job, JobSignal signal) {
    const auto next = next_state(job.state, signal);
    CHECK(next.has_value(), "job " + std::to_string(job.id) + ": signal " + std::to_string(static_cast<int>(signal)) +
                                " means nothing in " + proto::JobState_Name(job.state));
    const bool was_queued = job.state == proto::QUEUED;
    job.state = *next;
    if (was_queued && job.state != proto::QUEUED) dequeue(job);
    if (job.state == proto::QUEUED || is_ended(job.state)) {
        active.erase(job.id);
    } else {
        active.insert(job.id);
    }
}

void Facts::enqueue(Job& job) {
    ++waiting_of_user[job.user];
    if (!job.held) queue.emplace(job.queue_key(), &job);
    if (waits_for_cards(job)) ++waiting_for_cards;
}

void Facts::dequeue(const Job& job) {
    if (waits_for_cards(job)) --waiting_for_cards;
    const auto waiting = waiting_of_user.find(job.user);
    if (waiting != waiting_of_user.end() && --waiting->second == 0) waiting_of_user.erase(waiting);
    queue.erase(job.queue_key());
}

void Facts::share_environment(Job& job) {
    Environment given;
    given.Swap(job.spec.mutable_environment());
    std::weak_ptr<const Environment>& last = last_environment_[job.user];
    job.environment = last.lock();
    const auto same = [](const proto::Variable& a, const proto::Variable& b) { return a.name() == b.name() && a.value() == b.value(); };
    if (job.environment && std::equal(given.begin(), given.end(), job.environment->begin(), job.environment->end(), same)) return;
    job.environment = std::make_shared<const Environment>(std::move(given));
    last = job.environment;
}

// An array is as many jobs, with ids that follow each other.
void Facts::apply_submitted(const proto::JobSubmitted& body, proto::JobSpec spec, std::int64_t unix_ms) {
    if (spec.array_tasks_size() == 0) return add_job(body.job(), body, std::move(spec), unix_ms);
    const std::vector<std::uint32_t> tasks(spec.array_tasks().begin(), spec.array_tasks().end());
    spec.clear_array_tasks();
    arrays[body.job()].count = static_cast<std::uint32_t>(tasks.size());
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        proto::JobSpec one = spec;
        if (i != 0) one.clear_idempotency_key();
        one.mutable_array()->set_job(body.job());
        one.mutable_array()->set_task(tasks[i]);
        add_job(body.job() + i, body, std::move(one), unix_ms);
    }
}

void Facts::add_job(std::uint64_t id, const proto::JobSubmitted& body, proto::JobSpec spec, std::int64_t unix_ms) {
    Job& job = jobs[id];
    job.id = id;
    job.user = body.user();
    job.uid = body.uid();
    job.gid = body.gid();
    Account account{{body.groups().begin(), body.groups().end()}, body.home()};
    std::weak_ptr<const Account>& last = last_account_[job.user];
    job.account = last.lock();
    if (!job.account || *job.account != account) last = job.account = std::make_shared<const Account>(std::move(account));
    job.spec = std::move(spec);
    share_environment(job);
    const Need need = need_of(job.spec);
    const auto [place, is_new] = need_of_shape_.emplace(need.shape(), static_cast<std::uint32_t>(needs.size()));
    if (is_new) needs.push_back(need);
    job.need = place->second;
    if (const auto parsed = parse_dependency(job.spec.dependency()); parsed && !parsed->terms.empty()) {
        job.dependency = std::make_unique<const Dependency>(*parsed);
        name_dependencies(job, true);
    }
    job.held = job.spec.hold();
    if (job.held) job.held_by = std::make_unique<const std::string>(job.user);
    job.submitted_ms = unix_ms;
    last_job = std::max(last_job, job.id);
    if (!job.spec.idempotency_key().empty()) by_idempotency_key_[{job.user, job.spec.idempotency_key()}] = job.id;
    enqueue(job);
}

// An attempt's card-seconds, once, when the last of its nodes is empty.
void Facts::remember(const Job& job, std::int64_t unix_ms) {
    History& user = users[job.user];
    const double since_s = static_cast<double>(unix_ms - user.at_ms) / 1000;
    user.used_card_s *= std::exp2(-std::max(0.0, since_s) / kUseHalfLifeS);
    user.at_ms = std::max(user.at_ms, unix_ms);
    user.used_card_s += static_cast<double>(job.attempt().cards()) * static_cast<double>(unix_ms - job.attempt().reserved_ms) / 1000;
}

void Facts::apply_held(const proto::JobHeld& body) {
    Job* job = find(body.job());
    CHECK(job != nullptr && job->state == proto::QUEUED, "only a queued job is held or let go");
    dequeue(*job);
    job->held = body.hold();
    job->held_by = body.hold() ? std::make_unique<const std::string>(body.who()) : nullptr;
    if (body.hold()) job->claim.reset();
    enqueue(*job);
}

void Facts::apply_reserved(const proto::GangReserved& body, std::int64_t unix_ms) {
    Job* job = find(body.id().job());
    CHECK(job != nullptr, "a job that is placed exists");
    move(*job, JobSignal::Placed);
    let_go(*job, unix_ms);
    Attempt attempt;
    attempt.number = body.id().attempt();
    attempt.reason = body.reason();
    attempt.reserved_ms = attempt.idle_since_ms = unix_ms;
    attempt.passed_over.assign(body.passed_over().begin(), body.passed_over().end());
    if (body.has_restore()) attempt.restore = body.restore();
    job->granted_limit_s = body.time_limit_s();
    job->claim.reset();
    const Need need = need_of(job->spec);
    for (const proto::Placement& place : body.gang()) {
        Node* node = this->node(place.node());
        CHECK(node != nullptr, "a gang is placed on known nodes");
        Hold& hold = node->holds[key_of(body.id())];
        hold.ranks = place.rank_count();
        hold.cards.assign(place.cards().begin(), place.cards().end());
        hold.cpus = need.cpus_per_rank * place.rank_count();
        hold.memory_mib = need.memory_mib;
        hold.exclusive = need.exclusive;
        for (const std::uint32_t card : hold.cards) {
            CHECK(node->busy.emplace(card, key_of(body.id())).second, "no card is held by two");
        }
        if (need.exclusive) attempt.idle_cards += static_cast<std::uint64_t>(node->info.cards_size()) - hold.cards.size();
        recount(*node);
        attempt.parts.push_back({place, PartState::Held, {}});
    }
    job->reason = body.reason();
    if (job->attempts.empty()) tally_start(*job, unix_ms);
    job->attempts.push_back(std::move(attempt));
    if (job->attempts.size() > kKeepLastLines) {
        Attempt& old = job->attempts[job->attempts.size() - kKeepLastLines - 1];
        old.end.clear_last_lines();
        old.passed_over.clear();
    }
}

void Facts::apply_planned(const proto::PreemptionPlanned& body, std::int64_t unix_ms) {
    Job* job = find(body.job());
    CHECK(job != nullptr && job->state == proto::QUEUED, "a job that others make room for waits");
    Claim claim;
    for (const proto::Placement& one : body.gang()) claim.places.emplace_back(one.node(), one.rank_count());
    claim.victims.assign(body.victims().begin(), body.victims().end());
    claim.reason = body.reason();
    job->claim = std::make_unique<const Claim>(std::move(claim));
    job->has_evicted = true;
    for (const auto& move : body.moves()) {
        Claim next;
        for (const proto::Placement& one : move.gang()) next.places.emplace_back(one.node(), one.rank_count());
        next.reason = body.reason();
        next.until_ms = unix_ms + kMoveMs;
        if (Job* moved = find(move.job())) moved->claim = std::make_unique<const Claim>(std::move(next));
    }
}

void Facts::apply_ending(const proto::AttemptEnding& body, std::int64_t unix_ms) {
    Job* job = current(body.id());
    CHECK(job != nullptr, "an attempt that ends is its job's newest");
    Attempt& attempt = job->attempt();
    if (attempt.ended_ms == 0) {  // a restart that is then cancelled was counted already
        const bool progress = job->made_progress(attempt, body.progress(), unix_ms);
        if (body.kind() == proto::PREEMPTION) {
            ++job->preemptions;
        } else if (body.kind() != proto::RESIZE) {
            job->without_progress = progress ? 0 : job->without_progress + 1;
        }
        job->best_step = std::max(job->best_step, body.progress().step());
        if (body.kind() == proto::USER) ++job->user_failures;
        if (!body.blamed_node().empty()) {
            const auto found = std::find_if(job->blamed.begin(), job->blamed.end(), [&](const auto& one) { return one.first == body.blamed_node(); });
            found == job->blamed.end() ? static_cast<void>(job->blamed.emplace_back(body.blamed_node(), 1)) : static_cast<void>(++found->second);
        }
        if (body.kind() == proto::INFRASTRUCTURE && !body.node().empty()) blame(body.node(), body.signal() == 0 ? 1 : kSignalBlame, unix_ms);
        attempt.ended_ms = unix_ms;
        attempt.end = body;
    } else {
        attempt.end.set_next(body.next());
        attempt.end.set_outcome(body.outcome());
        attempt.end.set_cause(body.cause());
    }
    if (body.has_progress()) job->last_progress = std::make_unique<const proto::Progress>(body.progress());
    job->reason = body.cause();
    move(*job, body.next() == proto::RESTART ? JobSignal::Restart : JobSignal::End);
}

void Facts::apply_gone(const proto::NodePartGone& body, std::int64_t unix_ms) {
    const AttemptKey key = key_of(body.id());
    Node* node = this->node(body.node());
    if (node != nullptr) {
        const auto hold = node->holds.find(key);
        if (hold != node->holds.end()) hold->second.cleaning = body.presumed();
    }
    Job* job = current(body.id());
    Part* part = job == nullptr ? nullptr : job->attempt().part_on(body.node());
    if (part == nullptr) {  // a part that was given up long ago is proved empty at last
        if (!body.presumed()) erase_hold(body.node(), key);
        return;
    }
    part->state = body.presumed() ? PartState::Presumed : PartState::Gone;
    if (body.has_snapshot_step()) part->snapshot = body.snapshot_step();
    if (job->attempt().all_gone() && job->attempt().gone_ms == 0) {
        job->attempt().gone_ms = unix_ms;
        remember(*job, unix_ms);
        note_snapshot(*job);
    }
}

void Facts::apply_ended(const proto::JobEnded& body, std::int64_t unix_ms) {
    Job* job = find(body.job());
    CHECK(job != nullptr, "a job that ends exists");
    move(*job, ending_signal(body.outcome()));
    job->ended_ms = unix_ms;
    job->exit_code = body.exit_code();
    job->reason = body.reason();
    if (body.has_progress()) job->last_progress = std::make_unique<const proto::Progress>(body.progress());
    if (!job->attempts.empty() && job->attempt().ended_ms == 0) {
        job->attempt().ended_ms = unix_ms;
        job->attempt().end.set_cause(body.reason());
        job->attempt().end.set_rank(-1);
        job->attempt().end.set_next(proto::END);
        job->attempt().end.set_outcome(body.outcome());
        if (body.has_progress()) *job->attempt().end.mutable_progress() = body.progress();
    }
    let_go(*job, unix_ms);
    if (job->attempts.empty()) tally_start(*job, unix_ms);
    if (const auto array = job->spec.has_array() ? arrays.find(job->spec.array().job()) : arrays.end(); array != arrays.end()) {
        ++array->second.ended;
        if (body.outcome() == proto::COMPLETED) ++array->second.completed;
        if (array->second.ended == array->second.count) unpin(array->first, array->second.count);
    }
    if (!job->attempts.empty()) {
        History& user = users[job->user];
        const double weight = user.jobs == 0 ? 1 : 0.2;
        const double run_s = static_cast<double>(unix_ms - job->attempts.front().reserved_ms) / 1000;
        const Ledger ledger = make_ledger(story_of(*job, unix_ms, body.progress()));
        for (std::size_t cause = 0; cause < ledger.causes.size(); ++cause) user.card_s[cause] += ledger.causes[cause].card_s;
        const bool tells = body.outcome() != proto::CANCELLED;  // a job that was cancelled says nothing of how long others run
        if (tells) {
            user.run_s += weight * (run_s - user.run_s);
            ++user.jobs;
        }
        if (tells && job->spec.time_limit_s() != 0) {
            const double of_limit = std::min(1.0, run_s / static_cast<double>(job->spec.time_limit_s()));
            user.of_limit += (user.with_limit == 0 ? 1 : 0.2) * (of_limit - user.of_limit);
            ++user.with_limit;
        }
    }
    job->environment.reset();
    job->claim.reset();
    job->blamed.clear();
    ended_.push_back(job->id);
    forget_oldest_ended();
}

// The step that all of the attempt's ranks had whole. A node that was given up has lost its part, unless the node that had its replicas is there.
void Facts::note_snapshot(Job& job) {
    std::optional<std::uint64_t> step;
    const std::vector<Part>& parts = job.attempt().parts;
    for (const Part& part : parts) {
        if (!part.snapshot) return;
        const std::uint32_t peer = part.place.replica_peer();
        if (part.state == PartState::Presumed && (peer >= parts.size() || parts[peer].state == PartState::Presumed)) return;
        step = std::min(step.value_or(*part.snapshot), *part.snapshot);
    }
    const Checkpoint* newest = job.newest_good();
    if (!step || (newest != nullptr && newest->point.step() >= *step) || (job.snapshot && job.snapshot->step() >= *step)) return;
    job.snapshot.emplace();
    job.snapshot->set_step(*step);
    job.snapshot->set_attempt(job.attempt().number);
    job.snapshot->set_in_memory(true);
}

void Facts::apply_committed(const proto::CheckpointCommitted& body, std::int64_t unix_ms) {
    Job* job = find(body.id().job());
    if (job == nullptr) return;
    Checkpoint one;
    one.point.set_step(body.step());
    one.point.set_attempt(body.written_by() != 0 ? body.written_by() : body.id().attempt());
    one.point.set_manifest_sha256(body.manifest_sha256());
    one.unix_ms = unix_ms;
    one.bytes = body.bytes();
    if (body.has_metric()) one.metric = body.metric();
    for (Checkpoint& known : job->checkpoints) known.pinned = false;
    for (const proto::CheckpointMark& mark : body.marks()) {
        for (Checkpoint& known : job->checkpoints) {
            if (known.point.step() != mark.step() || known.point.attempt() != mark.attempt()) continue;
            known.pinned = mark.pinned();
            known.verified |= mark.verified();
        }
    }
    std::erase_if(job->checkpoints, [&](const Checkpoint& known) {
        return std::any_of(body.gone().begin(), body.gone().end(), [&](const auto& gone) { return gone.step() == known.point.step() && gone.attempt() == known.point.attempt(); });
    });
    job->checkpoints.push_back(std::move(one));
    if (job->snapshot && job->snapshot->step() <= body.step()) job->snapshot.reset();
    if (body.keep() == 0) return;
    std::size_t good = 0;
    for (std::size_t i = job->checkpoints.size(); i-- > 0;) {  // steps rise: the newest are last
        if (job->checkpoints[i].damaged || ++good <= body.keep()) continue;
        job->checkpoints.erase(job->checkpoints.begin() + static_cast<std::ptrdiff_t>(i));
    }
}

void Facts::apply_damaged(const proto::CheckpointFoundDamaged& body) {
    Job* job = find(body.id().job());
    if (job == nullptr) return;
    if (body.checkpoint().in_memory()) {
        if (job->snapshot && job->snapshot->step() == body.checkpoint().step() && job->snapshot->attempt() == body.checkpoint().attempt()) job->snapshot.reset();
        return;
    }
    for (Checkpoint& one : job->checkpoints) {
        if (one.point.step() != body.checkpoint().step() || one.point.attempt() != body.checkpoint().attempt()) continue;
        one.damaged = true;
        one.note = body.what();
    }
}

void Facts::apply_fault(const proto::JobFaultSeen& body) {
    Job* job = find(body.id().job());
    if (job != nullptr) job->faults.push_back(body.what());
}

// A dependency counts until its job has started once, or has ended.
void Facts::name_dependencies(const Job& job, bool begins) {
    if (!job.dependency) return;
    for (const DependencyTerm& term : job.dependency->terms) {
        if (term.after == After::Singleton) continue;
        if (begins) {
            ++named_[term.job];
            continue;
        }
        const auto named = named_.find(term.job);
        if (named == named_.end() || --named->second != 0) continue;
        named_.erase(named);
        const auto array = arrays.find(term.job);
        unpin(term.job, array == arrays.end() ? 1 : array->second.count);
    }
}

void Facts::tally_start(const Job& job, std::int64_t unix_ms) {
    name_dependencies(job, false);
    const auto array = job.spec.has_array() ? arrays.find(job.spec.array().job()) : arrays.end();
    if (array == arrays.end()) return;
    ++array->second.started;
    array->second.last_start_ms = std::max(array->second.last_start_ms, unix_ms);
}

bool Facts::is_pinned(const Job& job) const {
    if (named_.contains(job.id)) return true;
    if (!job.spec.has_array()) return false;
    const auto array = arrays.find(job.spec.array().job());
    return named_.contains(job.spec.array().job()) || (array != arrays.end() && array->second.ended < array->second.count);
}

void Facts::unpin(std::uint64_t first, std::uint64_t count) {
    for (auto at = pinned_.lower_bound(first); at != pinned_.end() && *at < first + count;) {
        const Job* job = find(*at);
        if (job != nullptr && is_pinned(*job)) {
            ++at;
            continue;
        }
        ended_.push_back(*at);
        at = pinned_.erase(at);
    }
}

void Facts::forget_oldest_ended() {
    while (ended_.size() > kKeepEnded) {
        const auto oldest = jobs.find(ended_.front());
        ended_.pop_front();
        if (oldest == jobs.end()) continue;
        if (is_pinned(oldest->second)) {
            pinned_.insert(oldest->first);
            continue;
        }
        by_idempotency_key_.erase({oldest->second.user, oldest->second.spec.idempotency_key()});
        if (oldest->second.spec.has_array()) {  // the last one takes the tally along
            const std::uint64_t array = oldest->second.spec.array().job();
            const auto next = std::next(oldest);
            const bool others = (oldest != jobs.begin() && std::prev(oldest)->second.spec.has_array() && std::prev(oldest)->second.spec.array().job() == array) ||
                                (next != jobs.end() && next->second.spec.has_array() && next->second.spec.array().job() == array);
            if (!others) arrays.erase(array);
        }
        jobs.erase(oldest);
    }
}

}  // namespace gangline::coordinator
