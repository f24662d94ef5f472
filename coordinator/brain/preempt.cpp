// A job of higher priority takes the place of others: planned whole, tried on a copy of the cluster first, journalled as one record.
//
//   victims   cheapest first: cards x (seconds since the last checkpoint + a restart); none that has not run for the time that each
//             gang is guaranteed; then any whose place is not needed after all is let off
//   reclaim   at any priority, a team that holds less than its quota may take back what another team holds beyond its own
//   claim     the waiting job keeps its planned places from now on; it never evicts twice, and a victim evicts nobody
//   move      defragmentation: a large job waits although enough cards are free. Small gangs that have saved lately go elsewhere, if it is proved
//             that all of them fit there beside the large one. Off by default; then `why` says what it would gain
//   end       the victim is told to save and stop; after the grace it is ended; it goes back to the queue with its age, and none
//             of its budgets is charged
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/brain/core.h"

namespace gangline::coordinator {
namespace {

constexpr double kRestartS = 60;               // what a restart costs, beside the work since the last checkpoint
constexpr std::int64_t kSavedLatelyMs = 600'000;  // only such gangs are moved
constexpr std::uint64_t kSmallPart = 4;           // ... and only of at most 1/4 of the waiting job's cards
constexpr std::int64_t kWorthMovingMs = 60'000;   // no move for a job that starts so soon by itself
constexpr std::int64_t kUnknownWaitMs = 3'600'000;
constexpr double kGain = 2;                       // what it wins must be so many times what it costs
constexpr std::size_t kMostMoved = 16;
constexpr int kMostTries = 4;

double cost_of(const Job& job, std::int64_t now_ms) {
    const Checkpoint* newest = job.newest_good();
    const std::int64_t started_ms = job.attempt().launched_ms != 0 ? job.attempt().launched_ms : job.attempt().reserved_ms;
    const std::int64_t since_ms = std::max(started_ms, newest == nullptr ? 0 : newest->unix_ms);
    return static_cast<double>(job.attempt().cards()) * (static_cast<double>(now_ms - since_ms) / 1000 + kRestartS);
}

}  // namespace

bool Brain::State::may_evict(const Job& job) const {
    if (job.claim || job.has_evicted) return false;
    return job.attempts.empty() || job.attempt().end.kind() != proto::PREEMPTION;
}

// Running gangs that `job` may take the place of, the cheapest first.
std::vector<Brain::State::Victim> Brain::State::victims_for(const Job& job, const std::vector<Ending>& running) const {
    std::vector<Victim> victims;
    for (const Ending& one : running) {
        const Job& other = *facts.find(one.job);
        const bool outranked = options.preemption && other.spec.priority() < job.spec.priority();
        if (!is_launched(other.state) || !(outranked || may_reclaim(job, other))) continue;
        if (now.unix_ms - other.attempt().reserved_ms < to_ms(options.guaranteed_run)) continue;
        victims.push_back({one.job, one.gang, cost_of(other, now.unix_ms)});
    }
    std::sort(victims.begin(), victims.end(), [](const Victim& a, const Victim& b) { return std::pair(a.cost, a.job) < std::pair(b.cost, b.job); });
    return victims;
}

// What the gangs of a team's users hold when every claim has been met.
std::uint64_t Brain::State::cards_of_team(const Team& team) const {
    std::uint64_t cards = 0;
    const auto add = [&](const Job& job) {
        if (options.fleet.team_of(job.user) == &team) cards += std::uint64_t{job.ranks()} * facts.needs[job.need].cards_per_rank;
    };
    for (const std::uint64_t id : facts.active) {
        const Job& job = *facts.find(id);
        if (!is_ending(job.state) || job.attempt().end.kind() != proto::PREEMPTION) add(job);
    }
    for (const auto& [key, job] : facts.queue) {
        if (job->claim) add(*job);
    }
    return cards;
}

// The job's team stays within its own quota with it, the other's holds more than its own without that gang too, or just as much.
bool Brain::State::may_reclaim(const Job& job, const Job& other) const {
    const Team* ours = options.fleet.team_of(job.user);
    const Team* theirs = options.fleet.team_of(other.user);
    if (ours == nullptr || theirs == nullptr || ours == theirs || !ours->quota_cards || !theirs->quota_cards) return false;
    if (cards_of_team(*ours) + facts.needs[job.need].cards() > *ours->quota_cards) return false;
    return cards_of_team(*theirs) >= *theirs->quota_cards + other.attempt().cards();
}

// The blocked jobs of the plan, in order: each that may evict and for which a set of victims is proved to make room.
void Brain::State::plan_preemptions(const Cluster& now_taken, const std::vector<Job*>& blocked, const std::vector<Ending>& running) {
    std::optional<Cluster> trial;
    std::size_t tried = 0;
    const std::int32_t lowest = lowest_running_priority();
    for (Job* job : blocked) {  // by priority, the highest first
        const bool outranks = options.preemption && job->spec.priority() > lowest;
        if (!outranks && options.fleet.teams.empty()) return;
        if (!may_evict(*job) || !(outranks || options.fleet.team_of(job->user) != nullptr)) continue;
        if (++tried > options.promises) return;
        const std::vector<Victim> victims = victims_for(*job, running);
        if (victims.empty()) continue;
        if (!trial) trial = with_claims_met(now_taken, blocked, running);
        const Shape shape = shape_for(facts.needs[job->need]);
        const Ms end = end_if_started(*job);
        if (trial->place_ignoring_promises(shape, now.unix_ms, end)) continue;  // a promise is in its way, or it is about to start
        Cluster freed = *trial;
        std::vector<Victim> chosen;
        std::optional<Shares> place;
        for (const Victim& victim : victims) {
            if (is_taken(victim.job)) continue;
            remove_all(freed, victim);
            chosen.push_back(victim);
            if ((place = freed.place_ignoring_promises(shape, now.unix_ms, end))) break;
        }
        if (!place) continue;
        spare_the_unneeded(chosen, *place);
        evict(*job, chosen, *place);
        for (const Victim& victim : chosen) remove_all(*trial, victim);
        trial->add(shape, *place, kNever);
    }
}

// Its gang, and the nodes that it holds beside it.
void Brain::State::remove_all(Cluster& cluster, const Victim& victim) const {
    cluster.remove(victim.gang);
    const auto [first, last] = spare_gangs.equal_range(victim.job);
    for (auto one = first; one != last; ++one) cluster.remove(one->second);
}

// What will be taken when every claim that was made before has been met.
Cluster Brain::State::with_claims_met(const Cluster& now_taken, const std::vector<Job*>& blocked, const std::vector<Ending>& running) const {
    Cluster met = now_taken;
    met.forget_promises();
    for (const Ending& one : running) {
        const Job* job = facts.find(one.job);
        if (job != nullptr && is_ending(job->state) && job->attempt().end.kind() == proto::PREEMPTION) remove_all(met, {one.job, one.gang, 0});
    }
    for (const Job* job : blocked) {
        if (const auto places = claimed_by(*job)) met.add(shape_for(facts.needs[job->need]), *places, kNever);
    }
    return met;
}

// Small gangs that may be moved for `job`, the cheapest first.
std::vector<Brain::State::Victim> Brain::State::movable_for(const Job& job, const std::vector<Ending>& running) const {
    std::vector<Victim> movable;
    for (const Ending& one : running) {
        const Job& other = *facts.find(one.job);
        if (other.state != proto::RUNNING || other.claim || other.attempt().cards() * kSmallPart > facts.needs[job.need].cards()) continue;
        if (now.unix_ms - other.attempt().reserved_ms < to_ms(options.guaranteed_run)) continue;
        const Checkpoint* newest = other.newest_good();
        if (newest == nullptr || now.unix_ms - newest->unix_ms > kSavedLatelyMs) continue;
        movable.push_back({one.job, one.gang, cost_of(other, now.unix_ms)});
    }
    std::sort(movable.begin(), movable.end(), [](const Victim& a, const Victim& b) { return std::pair(a.cost, a.job) < std::pair(b.cost, b.job); });
    return movable;
}

// Where `job` goes when some of `movable` go elsewhere; nothing: nowhere, or one of them finds no place beside it. Then `stuck` is that one.
std::optional<Brain::State::MovePlan> Brain::State::try_moving(const Job& job, Cluster freed, const std::vector<Victim>& movable, std::uint64_t& stuck) const {
    const Shape shape = shape_for(facts.needs[job.need]);
    const Ms end = end_if_started(job);
    MovePlan plan;
    std::optional<Shares> place;
    for (const Victim& one : movable) {
        if (is_taken(one.job) || plan.moved.size() == kMostMoved) continue;
        remove_all(freed, one);
        plan.moved.push_back(one);
        if ((place = freed.place_ignoring_promises(shape, now.unix_ms, end))) break;
    }
    if (!place) return std::nullopt;
    plan.place = *place;
    const std::vector<Victim> all = plan.moved;
    spare_the_unneeded(plan.moved, plan.place);
    for (const Victim& one : all) {  // who was let off stays where it is
        if (std::any_of(plan.moved.begin(), plan.moved.end(), [&](const Victim& other) { return other.job == one.job; })) continue;
        Shares where;
        for (const Part& part : facts.find(one.job)->attempt().parts) where.push_back({nodes_in_order().numbers.at(part.place.node()), part.place.rank_count()});
        freed.add(shape_for(facts.needs[facts.find(one.job)->need]), where, kNever);
    }
    freed.add(shape, plan.place, end);
    for (const Victim& one : plan.moved) {
        const Job& other = *facts.find(one.job);
        const Shape its = shape_for(facts.needs[other.need].smallest());
        const auto there = freed.place_ignoring_promises(its, now.unix_ms, end_if_started(other));
        if (!there) {
            stuck = one.job;
            return std::nullopt;
        }
        freed.add(its, *there, kNever);
        plan.moves[one.job] = *there;
        plan.cost += one.cost;
    }
    return plan;
}

// For the first job of the queue that fragments keep waiting.
void Brain::State::plan_defragmentation(const Cluster& now_taken, const std::vector<Job*>& blocked, const std::vector<Ending>& running) {
    outlook.by_moving.clear();
    const auto first = std::find_if(blocked.begin(), blocked.end(), [&](const Job* job) { return job->state == proto::QUEUED && may_evict(*job); });
    if (first == blocked.end()) return;
    Job& job = **first;
    const auto entry = outlook.jobs.find(job.id);
    const std::int64_t promised_ms = entry == outlook.jobs.end() ? 0 : entry->second.promised_ms;
    const std::int64_t wait_ms = promised_ms == 0 ? kUnknownWaitMs : promised_ms - now.unix_ms;
    if (wait_ms < kWorthMovingMs) return;
    const Cluster met = with_claims_met(now_taken, blocked, running);
    const Shape shape = shape_for(facts.needs[job.need]);
    if (shape.least_cards() > met.free_cards() || met.place_ignoring_promises(shape, now.unix_ms, end_if_started(job))) return;
    std::vector<Victim> movable = movable_for(job, running);
    for (int tries = 0; tries < kMostTries && !movable.empty(); ++tries) {
        std::uint64_t stuck = 0;
        const auto plan = try_moving(job, met, movable, stuck);
        if (!plan && stuck == 0) return;
        if (!plan) {
            std::erase_if(movable, [&](const Victim& one) { return one.job == stuck; });
            continue;
        }
        if (static_cast<double>(shape.least_cards()) * static_cast<double>(wait_ms) / 1000 < kGain * plan->cost) return;
        if (options.defragment) return evict(job, plan->moved, plan->place, plan->moves);
        std::string names;
        for (const Victim& one : plan->moved) names += fmt::format("{}{}", names.empty() ? "" : ", ", one.job);
        outlook.by_moving[job.id] = fmt::format("moving {} {} elsewhere, at a cost of {:.0f} card-seconds, would start it now; this coordinator moves no gangs (--defragment)",
                                                plan->moved.size() == 1 ? "job" : "jobs", names, plan->cost);
        return;
    }
}

// What moved gangs will take when they have stopped.
void Brain::State::promise_moves(Cluster& cluster) const {
    for (const std::uint64_t id : facts.active) {
        const Job& job = *facts.find(id);
        if (!is_ending(job.state)) continue;
        if (const auto places = claimed_by(job)) cluster.promise(shape_for(facts.needs[job.need]), *places, now.unix_ms, kNever);
    }
}

// A victim none of whose nodes is used is let off.
void Brain::State::spare_the_unneeded(std::vector<Victim>& victims, const Shares& place) const {
    std::erase_if(victims, [&](const Victim& victim) {
        const Job& job = *facts.find(victim.job);
        return std::none_of(place.begin(), place.end(), [&](const Share& share) {
            const std::string& name = nodes_in_order().names[share.node];
            const auto& spares = job.attempt().spares;
            return job.attempt().part_on(name) != nullptr || std::find(spares.begin(), spares.end(), name) != spares.end();
        });
    });
}

bool Brain::State::is_taken(std::uint64_t job) const {
    const Job* found = facts.find(job);
    return found == nullptr || !is_launched(found->state);
}

std::int32_t Brain::State::lowest_running_priority() const {
    std::int32_t lowest = std::numeric_limits<std::int32_t>::max();
    for (const std::uint64_t id : facts.active) lowest = std::min(lowest, facts.find(id)->spec.priority());
    return lowest;
}

void Brain::State::put_places(google::protobuf::RepeatedPtrField<proto::Placement>& out, const Shares& places) const {
    for (const Share& share : places) {
        proto::Placement& one = *out.Add();
        one.set_node(nodes_in_order().names[share.node]);
        one.set_rank_count(share.ranks);
    }
}

void Brain::State::evict(Job& job, const std::vector<Victim>& victims, const Shares& place, const Moves& moves) {
    proto::Record planned;
    proto::PreemptionPlanned& body = *planned.mutable_preemption_planned();
    body.set_job(job.id);
    double cost = 0;
    std::string names;
    for (const Victim& victim : victims) {
        body.add_victims(victim.job);
        cost += victim.cost;
        names += (names.empty() ? "" : ", ") + std::to_string(victim.job);
    }
    put_places(*body.mutable_gang(), place);
    for (const auto& [id, where] : moves) {
        auto& move = *body.add_moves();
        move.set_job(id);
        put_places(*move.mutable_gang(), where);
    }
    body.set_reason(fmt::format("{} {} make room, at a cost of {:.0f} card-seconds", victims.size() == 1 ? "job" : "jobs", names, cost));
    record(std::move(planned));
    for (const Victim& victim : victims) {
        Job& other = *facts.find(victim.job);
        proto::Record ending;
        proto::AttemptEnding& end = *ending.mutable_attempt_ending();
        *end.mutable_id() = id_of(other);
        end.set_cause(moves.count(other.id) != 0 ? fmt::format("moved out of the way of job {}, which needs more than any hole between gangs", job.id)
                      : other.spec.priority() < job.spec.priority()
                          ? fmt::format("preempted by job {} of priority {} (its own is {})", job.id, job.spec.priority(), other.spec.priority())
                          : fmt::format("preempted by job {}, whose team takes back its quota", job.id));
        end.set_kind(proto::PREEMPTION);
        end.set_rank(-1);
        end.set_next(proto::RESTART);
        *end.mutable_progress() = progress_of(other);
        const std::string reason = end.cause();
        record(std::move(ending));
        stop_parts(other, options.preemption_grace, reason);
    }
}

}  // namespace gangline::coordinator
