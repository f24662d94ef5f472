// A job of higher priority takes the place of others: planned whole, tried on a copy of the cluster first, journalled as one record.
//
//   victims   cheapest first: cards x (seconds since the last checkpoint + a restart); none that has not run for the time that each
//             gang is guaranteed; then any whose place is not needed after all is let off
//   reclaim   at any priority, a team that holds less than its quota may take back what another team holds beyond its own
//   claim     the waiting job keeps its planned places from now on; it never evicts twice, and a victim evicts nobody
//   end       the victim is told to save and stop; after the grace it is ended; it goes back to the queue with its age, and none
//             of its budgets is charged
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/brain/core.h"

namespace gangline::coordinator {
namespace {

constexpr double kRestartS = 60;  // what a restart costs, beside the work since the last checkpoint

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
        if (options.fleet.team_of(job.user) == &team) cards += facts.needs[job.need].cards();
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
    return cards_of_team(*theirs) >= *theirs->quota_cards + facts.needs[other.need].cards();
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
        const Shape shape = shape_of(facts.needs[job->need], nodes_in_order().names);
        if (trial->place_ignoring_promises(shape)) continue;  // a promise is in its way, or it is about to start
        Cluster freed = *trial;
        std::vector<Victim> chosen;
        std::optional<Shares> place;
        for (const Victim& victim : victims) {
            if (is_taken(victim.job)) continue;
            freed.remove(victim.gang);
            chosen.push_back(victim);
            if ((place = freed.place_ignoring_promises(shape))) break;
        }
        if (!place) continue;
        spare_the_unneeded(chosen, *place);
        evict(*job, chosen, *place);
        for (const Victim& victim : chosen) trial->remove(victim.gang);
        trial->add(shape, *place, kNever);
    }
}

// What will be taken when every claim that was made before has been met.
Cluster Brain::State::with_claims_met(const Cluster& now_taken, const std::vector<Job*>& blocked, const std::vector<Ending>& running) const {
    Cluster met = now_taken;
    met.forget_promises();
    for (const Ending& one : running) {
        const Job* job = facts.find(one.job);
        if (job != nullptr && is_ending(job->state) && job->attempt().end.kind() == proto::PREEMPTION) met.remove(one.gang);
    }
    for (const Job* job : blocked) {
        if (const auto places = claimed_by(*job)) met.add(shape_of(facts.needs[job->need], nodes_in_order().names), *places, kNever);
    }
    return met;
}

// A victim none of whose nodes is used is let off.
void Brain::State::spare_the_unneeded(std::vector<Victim>& victims, const Shares& place) const {
    std::erase_if(victims, [&](const Victim& victim) {
        const Job& job = *facts.find(victim.job);
        return std::none_of(place.begin(), place.end(), [&](const Share& share) {
            return job.attempt().part_on(nodes_in_order().names[share.node]) != nullptr;
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

void Brain::State::evict(Job& job, const std::vector<Victim>& victims, const Shares& place) {
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
    for (const Share& share : place) {
        proto::Placement& one = *body.add_gang();
        one.set_node(nodes_in_order().names[share.node]);
        one.set_rank_count(share.ranks);
    }
    body.set_reason(fmt::format("{} {} make room, at a cost of {:.0f} card-seconds", victims.size() == 1 ? "job" : "jobs", names, cost));
    record(std::move(planned));
    for (const Victim& victim : victims) {
        Job& other = *facts.find(victim.job);
        proto::Record ending;
        proto::AttemptEnding& end = *ending.mutable_attempt_ending();
        *end.mutable_id() = id_of(other);
        end.set_cause(other.spec.priority() < job.spec.priority()
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
