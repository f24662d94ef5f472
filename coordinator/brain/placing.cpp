// Who starts where. Recovering gangs first, on what they keep; then the queue, in its order, by one plan (schedule/plan.h).
//
// A recovering gang goes, cheapest first: onto the very same cards; with a spare node for each lost one; anywhere it fits.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <list>

#include "base/check.h"
#include "base/text.h"
#include "coordinator/brain/core.h"

namespace gangline::coordinator {
namespace {

constexpr std::size_t kFewJobs = 200;              // with so few, each plan has estimates
// An estimate looks at so many events x nodes; who starts later than that has none. It bounds the longest pass.
constexpr std::size_t kEstimateWork = 25'000'000;
constexpr std::size_t kFewNodes = 2000;
constexpr std::int64_t kEstimateEveryMs = 10'000;
constexpr std::int64_t kUnknownRunMs = 3'600'000;  // of a user who has run nothing
constexpr std::int64_t kShortestGuessMs = 60'000;  // more for a job that has outrun its guess

std::string names_of(const std::vector<proto::Placement>& gang) {
    std::string names;
    for (const proto::Placement& one : gang) names += (names.empty() ? "" : ", ") + one.node();
    return names;
}

Room room_of(const proto::NodeInfo& info) {
    return {static_cast<std::uint32_t>(info.cards_size()), cpus_of(info), info.memory_mib()};
}

}  // namespace

bool Brain::State::is_offerable(const std::string& name) const {
    const Node* node = facts.node(name);
    const auto seen = nodes_now.find(name);
    return node != nullptr && !node->lost && !node->drained && seen != nodes_now.end() && seen->second.connected &&
           !seen->second.suspect && seen->second.unwanted.empty();
}

// ---- the cluster in numbers

const Roster& Brain::State::nodes_in_order() const {
    if (roster.version == facts.nodes_known && roster.empty) return roster;
    struct Place {
        std::string block;
        std::string rack;
        const Node* node;
    };
    std::vector<Place> places;
    for (const auto& [name, node] : facts.nodes) {
        const auto described = options.fleet.nodes.find(name);
        const bool is_described = described != options.fleet.nodes.end();
        places.push_back({is_described ? described->second.block : "", is_described ? described->second.rack : node.info.rack(), &node});
    }
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
        if (a.block != b.block) return natural_less(a.block, b.block);
        if (a.rack != b.rack) return natural_less(a.rack, b.rack);
        return natural_less(a.node->info.name(), b.node->info.name());
    });
    roster = {};
    std::vector<NodeSeed> seeds;
    std::uint32_t block = 0;
    std::uint32_t rack = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
        const bool new_block = i != 0 && places[i].block != places[i - 1].block;
        block += new_block ? 1u : 0u;
        rack += new_block || (i != 0 && places[i].rack != places[i - 1].rack) ? 1u : 0u;
        roster.numbers[places[i].node->info.name()] = static_cast<std::uint32_t>(i);
        roster.names.push_back(places[i].node->info.name());
        roster.nodes.push_back(places[i].node);
        roster.blocks.push_back(block);
        roster.racks.push_back(rack);
        seeds.push_back({.all = room_of(places[i].node->info), .block = block, .rack = rack});
    }
    roster.empty.emplace(seeds);
    roster.version = facts.nodes_known;
    return roster;
}

// What open nodes have free, in the order of the roster.
std::vector<Offer> Brain::State::offers() const {
    const Roster& order = nodes_in_order();
    std::vector<Offer> list;
    for (std::size_t i = 0; i < order.names.size(); ++i) {
        if (!is_offerable(order.names[i])) continue;
        list.push_back(order.nodes[i]->offer());
        list.back().block = order.blocks[i];
        list.back().rack = order.racks[i];
    }
    return list;
}

// `without`: its own holds count as free.
Cluster Brain::State::cluster_now(const Job* without, std::vector<Ending>* running) const {
    const Roster& order = nodes_in_order();
    std::vector<NodeSeed> seeds(order.names.size());
    for (std::size_t i = 0; i < seeds.size(); ++i) {
        seeds[i] = {.all = room_of(order.nodes[i]->info), .block = order.blocks[i], .rack = order.racks[i], .open = is_offerable(order.names[i])};
    }
    Cluster cluster(seeds);
    std::map<std::uint64_t, Shares> gangs;
    for (std::uint32_t i = 0; i < seeds.size(); ++i) {
        for (const auto& [key, hold] : order.nodes[i]->holds) {
            const Job* job = hold.cleaning ? nullptr : facts.find(key.job);
            if (without != nullptr && job == without && key == without->key()) continue;
            if (job != nullptr && key == job->key() && !is_ended(job->state)) {
                gangs[key.job].push_back({i, hold.ranks});
            } else {
                cluster.take(i, {static_cast<std::uint32_t>(hold.cards.size()), hold.cpus, hold.memory_mib}, hold.exclusive);
            }
        }
    }
    for (const auto& [id, shares] : gangs) {
        const Job& job = *facts.find(id);
        Shape shape = shape_of(facts.needs[job.need], order.names);
        const auto left_ms = job.time_left_ms(now.unix_ms);
        const Ms end = left_ms ? now.unix_ms + *left_ms + to_ms(grace_of(job)) : kNever;
        const std::uint32_t gang = cluster.add(shape, shares, end);
        if (running == nullptr) continue;
        const std::int64_t ran_ms = now.unix_ms - job.attempts.front().reserved_ms;
        const std::int64_t more_ms = std::max(expected_run_ms(job) - ran_ms, std::max(kShortestGuessMs, ran_ms / 4));
        running->push_back({id, gang, std::min(end, now.unix_ms + more_ms)});
    }
    return cluster;
}

// From its user's history; never more than its limit.
std::int64_t Brain::State::expected_run_ms(const Job& job) const {
    const auto found = facts.users.find(job.user);
    const History none;
    const History& user = found == facts.users.end() ? none : found->second;
    const auto limit_ms = static_cast<std::int64_t>(job.spec.time_limit_s()) * 1000;
    if (limit_ms != 0) return user.with_limit == 0 ? limit_ms : std::llround(static_cast<double>(limit_ms) * user.of_limit);
    return user.jobs == 0 ? kUnknownRunMs : std::llround(user.run_s * 1000);
}

// ---- the order of the queue

std::vector<Job*> Brain::State::queue_in_order() const {
    std::vector<Job*> order;
    order.reserve(facts.queue.size());
    for (const auto& [key, job] : facts.queue) order.push_back(job);
    std::map<std::string, double> use;  // of who waits, running jobs included
    double all = 0;
    for (const auto& [name, user] : facts.users) {
        const double since_s = static_cast<double>(now.unix_ms - user.at_ms) / 1000;
        all += use[name] = user.used_card_s * std::exp2(-std::max(0.0, since_s) / kUseHalfLifeS);
    }
    for (const std::uint64_t id : facts.active) {
        const Job& job = *facts.find(id);
        const double used = static_cast<double>(job.attempt().cards()) * static_cast<double>(now.unix_ms - job.attempt().reserved_ms) / 1000;
        use[job.user] += used;
        all += used;
    }
    const double share_weight = facts.waiting_of_user.size() > 1 ? options.share_weight : 0;
    const double share = 1.0 / static_cast<double>(std::max<std::size_t>(1, use.size()));
    std::uint64_t cards = 0;
    for (const Node* node : nodes_in_order().nodes) cards += static_cast<std::uint64_t>(node->info.cards_size());
    std::vector<std::pair<double, Job*>> scored;
    scored.reserve(order.size());
    for (Job* job : order) {
        const double part = all > 0 ? use[job->user] / all : 0;
        const double days = static_cast<double>(now.unix_ms - job->submitted_ms) / 86'400'000;
        const double size = cards == 0 ? 0 : static_cast<double>(facts.needs[job->need].cards()) / static_cast<double>(cards);
        const double brief = job->spec.time_limit_s() == 0 ? 0 : short_bonus(facts.needs[job->need].cards(), static_cast<double>(job->spec.time_limit_s()));
        scored.emplace_back(share_weight * std::exp2(-part / share) + options.age_weight_per_day * days + options.size_weight * size + options.short_weight * brief, job);
    }
    std::stable_sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) {
        const auto class_a = a.second->spec.priority();
        const auto class_b = b.second->spec.priority();
        return class_a != class_b ? class_a > class_b : a.first > b.first;
    });
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = scored[i].second;
    return order;
}

namespace {

// Empty: met. `never`: it cannot be met any more.
std::string unmet(const DependencyTerm& term, const Job* other, std::int64_t at_ms, bool& never, std::int64_t& wake_ms) {
    if (other == nullptr) return {};  // ended so long ago that it is forgotten
    const bool ended = is_ended(other->state);
    const bool ok = other->state == proto::COMPLETED;
    switch (term.after) {
        case After::Start: {
            const std::int64_t started_ms = !other->attempts.empty() ? other->attempts.front().reserved_ms : ended ? other->ended_ms : 0;
            if (started_ms == 0) return fmt::format("job {} has not started", term.job);
            const std::int64_t due_ms = started_ms + std::int64_t{term.minutes} * 60'000;
            if (at_ms >= due_ms) return {};
            wake_ms = std::min(wake_ms, due_ms);
            return fmt::format("job {} started less than {} minutes ago", term.job, term.minutes);
        }
        case After::Any: return ended ? "" : fmt::format("job {} has not ended", term.job);
        case After::Ok:
            never = never || (ended && !ok);
            return ok ? "" : ended ? fmt::format("job {} has not completed but is {}", term.job, proto::JobState_Name(other->state))
                                   : fmt::format("job {} has not ended", term.job);
        case After::NotOk:
            never = never || ok;
            return ended && !ok ? "" : ended ? fmt::format("job {} has completed", term.job) : fmt::format("job {} has not ended", term.job);
        case After::Singleton: return {};
    }
    return {};
}

}  // namespace

std::string Brain::State::what_it_awaits(const Job& job, std::int64_t at_ms, std::int64_t& wake_ms) const {
    if (job.spec.begin_unix_ms() > at_ms) {
        wake_ms = std::min(wake_ms, job.spec.begin_unix_ms());
        return fmt::format("its begin time (--begin) is in {}", human_duration(static_cast<double>(job.spec.begin_unix_ms() - at_ms) / 1000));
    }
    if (!job.dependency) return {};
    std::string open;
    bool all_never = true;
    bool one_never = false;
    for (const DependencyTerm& term : job.dependency->terms) {
        bool never = false;
        std::string why;
        if (term.after == After::Singleton) {
            for (const auto& [id, other] : facts.jobs) {
                if (id >= job.id) break;
                if (other.user == job.user && other.spec.name() == job.spec.name() && !is_ended(other.state)) why = fmt::format("job {} of the same name has not ended", id);
            }
        } else {
            why = unmet(term, facts.find(term.job), at_ms, never, wake_ms);
        }
        if (why.empty() && job.dependency->any) return {};
        all_never = all_never && never;
        one_never = one_never || never;
        if (!why.empty()) open += fmt::format("{}{} ({})", open.empty() ? "" : job.dependency->any ? " or " : ", ", text_of(term), why);
    }
    if (open.empty()) return {};
    const bool lost = job.dependency->any ? all_never : one_never;
    return fmt::format("its dependency {}{}", open, lost ? ": that can never be met now; cancel it, or submit it again without" : "");
}

// --switches=1@WAIT: whether the wait is over.
bool Brain::State::has_waited_for_domain(const Job& job, std::int64_t at_ms, std::int64_t& wake_ms) const {
    if (job.spec.within_wait_s() == 0 || facts.needs[job.need].within == Level::Cluster) return false;
    const std::int64_t until_ms = job.submitted_ms + static_cast<std::int64_t>(job.spec.within_wait_s()) * 1000;
    if (at_ms >= until_ms) return true;
    wake_ms = std::min(wake_ms, until_ms);
    return false;
}

// A job that could not end by its deadline any more is ended unstarted.
bool Brain::State::misses_deadline(Job& job, std::int64_t& wake_ms) {
    if (job.spec.deadline_unix_ms() == 0) return false;
    const std::uint64_t least_s = job.spec.time_min_s() != 0 ? job.spec.time_min_s() : job.spec.time_limit_s();
    const std::int64_t latest_ms = job.spec.deadline_unix_ms() - static_cast<std::int64_t>(least_s) * 1000;
    if (now.unix_ms <= latest_ms) {
        wake_ms = std::min(wake_ms, latest_ms + 1);
        return false;
    }
    finish_job(job, proto::CANCELLED, fmt::format("its deadline ({}) can be met no more", iso_time(job.spec.deadline_unix_ms())));
    return true;
}

// Nothing: no claim, or one whose nodes are not all there any more.
std::optional<Shares> Brain::State::claimed_by(const Job& job) const {
    if (!job.claim) return std::nullopt;
    Shares shares;
    for (const auto& [node, ranks] : job.claim->places) {
        const auto number = nodes_in_order().numbers.find(node);
        if (number == nodes_in_order().numbers.end() || !is_offerable(node)) return std::nullopt;
        shares.push_back({number->second, ranks});
    }
    return shares;
}

std::vector<std::uint32_t> Brain::State::avoided_by(const Job& job) const {
    std::vector<std::uint32_t> avoid;
    const Roster& order = nodes_in_order();
    for (const auto& [name, times] : job.blamed) {
        const auto number = order.numbers.find(name);
        if (number != order.numbers.end()) avoid.push_back(number->second);
    }
    for (const auto& [key, other] : facts.queue) {
        if (!other->claim || other == &job) continue;
        for (const auto& [name, ranks] : other->claim->places) avoid.push_back(order.numbers.at(name));
    }
    std::sort(avoid.begin(), avoid.end());
    avoid.erase(std::unique(avoid.begin(), avoid.end()), avoid.end());
    return avoid;
}

// ---- recovering gangs

// The very cards of the last attempt, when every node of it is fit and none of them is to blame.
bool Brain::State::same_cards(const Job& job, std::vector<proto::Placement>& gang) const {
    for (const Part& part : job.attempt().parts) {
        const std::string& name = part.place.node();
        if (part.state != PartState::Gone || !is_offerable(name) || job.attempt().end.blamed_node() == name) return false;
        gang.push_back(part.place);
        gang.back().set_address(facts.node(name)->info.address());
    }
    return true;
}

// The same nodes but for those that are unfit or to blame: for each of these another one.
bool Brain::State::swap_nodes(const Job& job, std::vector<proto::Placement>& gang) const {
    const Roster& order = nodes_in_order();
    const Need& need = facts.needs[job.need];
    Cluster cluster = cluster_now(&job, nullptr);
    Shape shape = shape_of(need, order.names);
    std::vector<std::uint32_t> avoid = avoided_by(job);
    std::vector<const Part*> lost;
    for (const Part& part : job.attempt().parts) {
        const std::string& name = part.place.node();
        const std::uint32_t number = order.numbers.at(name);
        if (part.state != PartState::Gone || !is_offerable(name) || job.blamed.contains(name)) {
            lost.push_back(&part);
            continue;
        }
        avoid.insert(std::upper_bound(avoid.begin(), avoid.end(), number), number);
        cluster.add(shape, {{number, part.place.rank_count()}}, kNever);
    }
    if (lost.size() == job.attempt().parts.size() || need.within != Level::Cluster) return false;
    shape.nodes_min = shape.nodes_max = 1;
    shape.ranks_per_node = 0;
    for (const Part& part : job.attempt().parts) {
        proto::Placement place = part.place;
        if (std::find(lost.begin(), lost.end(), &part) != lost.end()) {
            shape.ranks = part.place.rank_count();
            const auto spare = cluster.place(shape, now.unix_ms, kNever, avoid);
            if (!spare || std::binary_search(avoid.begin(), avoid.end(), spare->front().node)) return false;
            const std::uint32_t number = spare->front().node;
            cluster.add(shape, *spare, kNever);
            avoid.insert(std::upper_bound(avoid.begin(), avoid.end(), number), number);
            place = placement(need, order.nodes[number]->offer(), part.place.first_rank(), shape.ranks);
        } else {
            place.set_address(facts.node(place.node())->info.address());
        }
        gang.push_back(std::move(place));
    }
    return true;
}

void Brain::State::place_recovering(Job& job) {
    std::vector<proto::Placement> gang;
    if (same_cards(job, gang)) return reserve(job, gang, "on the same cards again: " + job.attempt().end.cause(), job.granted_limit_s);
    gang.clear();
    if (swap_nodes(job, gang)) {
        std::string swapped;
        for (std::size_t i = 0; i < gang.size(); ++i) {
            const std::string& before = job.attempt().parts[i].place.node();
            if (before != gang[i].node()) swapped += fmt::format("{}{} for {}", swapped.empty() ? "" : ", ", gang[i].node(), before);
        }
        return reserve(job, gang, fmt::format("moved to {} ({}): {}", names_of(gang), swapped, job.attempt().end.cause()), job.granted_limit_s);
    }
    const auto shares = cluster_now(&job, nullptr).place(shape_of(facts.needs[job.need], nodes_in_order().names), now.unix_ms, kNever, avoided_by(job));
    if (!shares) {
        const WaitKey kept{Wait::Reserved, job.id, {}};
        if (!timers.is_set(kept)) timers.set(kept, now.steady + options.keep_reserved);
        return;
    }
    gang = to_gang(job, *shares);
    reserve(job, gang, fmt::format("moved to {}: {}", names_of(gang), job.attempt().end.cause()), job.granted_limit_s);
}

// ---- the queue

std::vector<proto::Placement> Brain::State::to_gang(const Job& job, const Shares& shares) const {
    const Roster& order = nodes_in_order();
    std::vector<proto::Placement> gang;
    std::uint32_t first = 0;
    for (const Share& share : shares) {
        const bool recovers = job.state == proto::RECOVERING;
        const Offer offer = order.nodes[share.node]->offer(recovers ? std::optional(job.key()) : std::nullopt);
        gang.push_back(placement(facts.needs[job.need], offer, first, share.ranks));
        gang.back().set_address(order.nodes[share.node]->info.address());
        first += share.ranks;
    }
    return gang;
}

// The teams of the cluster file, with what their users' gangs hold now. Returns each team's index.
std::map<std::string, std::int32_t> Brain::State::card_limits(std::vector<CardLimit>& limits) const {
    std::map<std::string, std::int32_t> index;
    for (const auto& [name, team] : options.fleet.teams) {
        index[name] = static_cast<std::int32_t>(limits.size());
        limits.push_back({0, team.most_cards.value_or(~0ull), -1});
    }
    for (const auto& [name, team] : options.fleet.teams) {
        if (!team.parent.empty()) limits[static_cast<std::size_t>(index[name])].parent = index.at(team.parent);
    }
    if (limits.empty()) return index;
    for (const std::uint64_t id : facts.active) {
        const Job& job = *facts.find(id);
        const Team* team = options.fleet.team_of(job.user);
        for (std::int32_t at = team == nullptr ? -1 : index.at(team->name); at >= 0; at = limits[static_cast<std::size_t>(at)].parent) {
            limits[static_cast<std::size_t>(at)].held += facts.needs[job.need].cards();
        }
    }
    return index;
}

void Brain::State::place_waiting() {
    place_wanted = false;
    const std::vector<std::uint64_t> active(facts.active.begin(), facts.active.end());
    for (const std::uint64_t id : active) {
        Job& job = *facts.find(id);
        if (job.state != proto::RECOVERING || !job.attempt().all_gone()) continue;
        const Run& run = run_of(job);
        if (!run.back_off_until || *run.back_off_until <= now.steady) place_recovering(job);
    }
    timers.clear({Wait::Plan, 0, {}});
    if (facts.queue.empty()) {
        outlook = {};
        return;
    }
    PlanInput input;
    Cluster cluster = cluster_now(nullptr, &input.running);
    std::map<std::pair<std::uint32_t, bool>, std::uint32_t> shapes;  // need, domain given up -> shape
    const std::map<std::string, std::int32_t> limit_of_team = card_limits(input.limits);
    std::vector<Job*> order;
    std::list<Shares> claims;
    std::int64_t wake_ms = now.unix_ms + kEstimateEveryMs;
    for (Job* job : queue_in_order()) {
        if (misses_deadline(*job, wake_ms)) continue;
        if (!what_it_awaits(*job, now.unix_ms, wake_ms).empty()) continue;
        const bool roams = has_waited_for_domain(*job, now.unix_ms, wake_ms);
        const auto [shape, is_new] = shapes.emplace(std::pair(job->need, roams), static_cast<std::uint32_t>(input.shapes.size()));
        if (is_new) {
            input.shapes.push_back(shape_of(facts.needs[job->need], nodes_in_order().names));
            if (roams) input.shapes.back().within = Level::Cluster;
        }
        Waiting& one = input.waiting.emplace_back();
        one.job = job->id;
        one.shape = shape->second;
        const auto left_ms = job->time_left_ms(now.unix_ms);
        one.limit = left_ms ? *left_ms + to_ms(grace_of(*job)) : kNever;
        one.expected = std::min<Ms>(one.limit, std::max(kShortestGuessMs, expected_run_ms(*job)));
        one.least = static_cast<Ms>(job->spec.time_min_s()) * 1000;
        one.overdue = now.unix_ms - job->submitted_ms >= kPatienceMs;
        if (!job->blamed.empty()) {
            one.avoid = static_cast<std::uint32_t>(input.avoid.size());
            input.avoid.push_back(avoided_by(*job));
        }
        if (const Team* team = options.fleet.team_of(job->user)) one.limit_of = limit_of_team.at(team->name);
        if (auto claimed = claimed_by(*job)) one.claim = &claims.emplace_back(std::move(*claimed));
        order.push_back(job);
    }
    const bool estimates = order.size() <= kFewJobs || now.unix_ms - outlook.estimated_ms >= kEstimateEveryMs;
    const std::size_t most_events = kEstimateWork / std::max<std::size_t>(kFewNodes, nodes_in_order().names.size());
    const Plan plan = make_plan(cluster, input, now.unix_ms,
                                {.promises = options.promises, .in_order = options.in_order, .estimates = estimates, .most_events = most_events});
    if (estimates) outlook.estimated_ms = now.unix_ms;
    outlook.made_ms = now.unix_ms;
    outlook.survey.reset();
    start_planned(plan, order);
    std::vector<Job*> blocked;
    for (Job* job : order) {
        if (job->state == proto::QUEUED) blocked.push_back(job);
    }
    plan_preemptions(cluster, blocked, input.running);
    outlook.cluster.emplace(std::move(cluster));
    if (!facts.queue.empty()) timers.set({Wait::Plan, 0, {}}, now.steady + milliseconds(std::max<std::int64_t>(1, wake_ms - now.unix_ms)));
}

void Brain::State::start_planned(const Plan& plan, const std::vector<Job*>& order) {
    std::unordered_map<std::uint64_t, Outlook::Entry> jobs;
    jobs.reserve(order.size());
    std::size_t waiting = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
        Job& job = *order[i];
        const Planned& planned = plan.jobs[i];
        if (planned.standing == Standing::Starts) {
            const std::vector<proto::Placement> gang = to_gang(job, planned.shares);
            const std::uint32_t ranks = facts.needs[job.need].ranks;
            std::string reason = fmt::format("first that fits: {} {} on {} {}", ranks, ranks == 1 ? "rank" : "ranks", gang.size(), gang.size() == 1 ? "node" : "nodes");
            if (waiting != 0) reason += fmt::format("; {} {} before it {} for more, and {} not delayed", waiting, waiting == 1 ? "job" : "jobs", waiting == 1 ? "waits" : "wait", waiting == 1 ? "is" : "are");
            const Ms asked = job.time_left_ms(now.unix_ms).value_or(0) + to_ms(grace_of(job));
            const bool cut = job.spec.time_min_s() != 0 && planned.limit < asked;
            reserve(job, gang, std::move(reason), cut ? static_cast<std::uint64_t>((planned.limit - to_ms(grace_of(job))) / 1000) : 0);
            continue;
        }
        ++waiting;
        Outlook::Entry& entry = jobs[job.id];
        entry.standing = planned.standing;
        entry.behind = planned.behind;
        entry.place = static_cast<std::uint32_t>(waiting);
        if (planned.standing == Standing::Promised) entry.promised_ms = planned.start;
        if (planned.expected < kNever) entry.expected_ms = planned.expected;
        if (outlook.estimated_ms == now.unix_ms) continue;
        const auto before = outlook.jobs.find(job.id);
        if (before != outlook.jobs.end()) entry.expected_ms = before->second.expected_ms;
    }
    outlook.jobs = std::move(jobs);
}

void Brain::State::reserve(Job& job, const std::vector<proto::Placement>& gang, std::string reason, std::uint64_t time_limit_s) {
    proto::Record reserved;
    proto::GangReserved& body = *reserved.mutable_gang_reserved();
    body.mutable_id()->set_job(job.id);
    body.mutable_id()->set_attempt(job.key().attempt + 1);
    for (const proto::Placement& place : gang) *body.add_gang() = place;
    body.set_reason(std::move(reason));
    body.set_time_limit_s(time_limit_s);
    if (const Checkpoint* newest = job.newest_good()) *body.mutable_restore() = newest->point;
    record(std::move(reserved));
    runs.erase(job.id);
    timers.clear_job(job.id);
    for (std::size_t part = 0; part < gang.size(); ++part) order_prepare(job, part);
    watch_run(job);
}

}  // namespace gangline::coordinator
