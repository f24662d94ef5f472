// Who starts where. Recovering gangs first, on what they keep; then the queue, in its order, by one plan (schedule/plan.h).
//
// A recovering gang goes, cheapest first: onto the very same cards; with a spare node for each lost one; anywhere it fits.
#include <fmt/format.h>

#include <algorithm>
#include <list>

#include "base/check.h"
#include "base/text.h"
#include "coordinator/brain/core.h"
#include "coordinator/schedule/peers.h"

namespace gangline::coordinator {
namespace {

constexpr std::size_t kFewJobs = 200;              // with so few, each plan has estimates
// An estimate looks at so many events x nodes; who starts later than that has none. It bounds the longest pass.
constexpr std::size_t kEstimateWork = 25'000'000;
constexpr std::size_t kFewNodes = 2000;
constexpr std::int64_t kEstimateEveryMs = 10'000;

std::string names_of(const std::vector<proto::Placement>& gang) {
    std::string names;
    for (const proto::Placement& one : gang) names += (names.empty() ? "" : ", ") + one.node();
    return names;
}

}  // namespace

// Nothing: no claim, or one whose nodes are not all there for it any more.
std::optional<Shares> Brain::State::claimed_by(const Job& job) const {
    if (!job.claim || (job.claim->until_ms != 0 && job.claim->until_ms <= now.unix_ms)) return std::nullopt;
    Shares shares;
    for (const auto& [node, ranks] : job.claim->places) {
        const auto number = nodes_in_order().numbers.find(node);
        if (number == nodes_in_order().numbers.end() || !is_offerable(node) || is_reserved_from(job, node)) return std::nullopt;
        shares.push_back({number->second, ranks});
    }
    return shares;
}

// The nodes on which the job has failed so often, and those that others claim.
std::vector<std::uint32_t> Brain::State::avoided_by(const Job& job, std::uint32_t failures) const {
    std::vector<std::uint32_t> avoid;
    const Roster& order = nodes_in_order();
    for (const auto& [name, times] : job.blamed) {
        const auto number = order.numbers.find(name);
        if (number != order.numbers.end() && times >= failures) avoid.push_back(number->second);
    }
    for (const auto& [key, other] : facts.queue) {
        if (!other->claim || other == &job) continue;
        if (other->claim->until_ms != 0 && other->claim->until_ms <= now.unix_ms) continue;
        for (const auto& [name, ranks] : other->claim->places) avoid.push_back(order.numbers.at(name));
    }
    std::sort(avoid.begin(), avoid.end());
    avoid.erase(std::unique(avoid.begin(), avoid.end()), avoid.end());
    return avoid;
}

// ---- recovering gangs

// A card may have fallen off its bus while its node was away.
bool Brain::State::has_cards(const std::string& name, const proto::Placement& place) const {
    const auto& cards = facts.node(name)->info.cards();
    return std::all_of(place.cards().begin(), place.cards().end(), [&](std::uint32_t index) {
        return std::any_of(cards.begin(), cards.end(), [&](const proto::Card& card) { return card.index() == index; });
    });
}

// The very cards of the last attempt, when every node of it is fit and none of them is to blame.
bool Brain::State::same_cards(const Job& job, std::vector<proto::Placement>& gang) const {
    for (const Part& part : job.attempt().parts) {
        const std::string& name = part.place.node();
        if (part.state != PartState::Gone || !is_offerable(name) || job.attempt().end.blamed_node() == name || !has_cards(name, part.place)) return false;
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
    Shape shape = shape_for(need);
    std::vector<bool> own_spares(order.names.size());
    for (const std::string& name : spares_left(job)) own_spares[order.numbers.at(name)] = true;
    std::vector<std::uint32_t> avoid = avoided_by(job);
    std::vector<const Part*> lost;
    for (const Part& part : job.attempt().parts) {
        const std::string& name = part.place.node();
        const std::uint32_t number = order.numbers.at(name);
        if (part.state != PartState::Gone || !is_offerable(name) || job.has_failed_on(name) || !has_cards(name, part.place)) {
            lost.push_back(&part);
            continue;
        }
        avoid.insert(std::upper_bound(avoid.begin(), avoid.end(), number), number);
        cluster.add(shape, {{number, part.place.rank_count()}}, kNever);
    }
    if (lost.size() == job.attempt().parts.size() || need.within != Level::Cluster || need.segment > 1) return false;
    shape.nodes_min = shape.nodes_max = 1;
    shape.ranks_per_node = 0;
    shape.elastic = false;
    Shape on_own = shape;
    on_own.allowed = std::make_shared<const std::vector<bool>>(std::move(own_spares));
    for (const Part& part : job.attempt().parts) {
        proto::Placement place = part.place;
        if (std::find(lost.begin(), lost.end(), &part) != lost.end()) {
            shape.ranks = on_own.ranks = part.place.rank_count();
            auto spare = cluster.place(on_own, now.unix_ms, now.unix_ms + 1, avoid);
            if (!spare) spare = cluster.place(shape, now.unix_ms, now.unix_ms + 1, avoid);
            if (!spare || std::binary_search(avoid.begin(), avoid.end(), spare->front().node)) return false;
            const std::uint32_t number = spare->front().node;
            cluster.add(shape, *spare, kNever);
            avoid.insert(std::upper_bound(avoid.begin(), avoid.end(), number), number);
            place = placement(need, order.nodes[number]->offer(job.key()), part.place.first_rank(), shape.ranks);
        } else {
            place.set_address(facts.node(place.node())->info.address());
        }
        gang.push_back(std::move(place));
    }
    return true;
}

// It ran, and goes on: a reservation keeps it off only where that has begun already.
void Brain::State::place_recovering(Job& job) {
    std::vector<proto::Placement> gang;
    if (job.attempt().end.kind() == proto::RESIZE && facts.waiting_for_cards == 0) {  // as it was planned: beside all spares
        Cluster cluster = cluster_now(&job, nullptr);
        for (const std::string& name : job.attempt().spares) cluster.take(nodes_in_order().numbers.at(name), {}, true);
        hold_spares_back(cluster);
        const auto wider = cluster.place(shape_for(facts.needs[job.need]), now.unix_ms, end_if_started(job), avoided_by(job, 2));
        if (wider && ranks_of(*wider) > job.attempt().ranks()) {
            gang = to_gang(job, *wider);
            return reserve(job, gang, fmt::format("on {}: {}", names_of(gang), job.attempt().end.cause()), job.granted_limit_s);
        }
    }
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
    const auto shares = cluster_now(&job, nullptr).place(shape_for(facts.needs[job.need]), now.unix_ms, now.unix_ms + 1, avoided_by(job));
    if (!shares) {
        const WaitKey kept{Wait::Reserved, job.id, {}};
        if (!timers.is_set(kept)) timers.set(kept, now.steady + options.keep_reserved);
        return;
    }
    gang = to_gang(job, *shares);
    const bool narrower = ranks_of(*shares) < job.attempt().ranks();
    reserve(job, gang,
            fmt::format("{} {}: {}", narrower ? fmt::format("shrunk from {} to {} nodes,", job.attempt().parts.size(), gang.size()) : "moved to", names_of(gang),
                        job.attempt().end.cause()),
            job.granted_limit_s);
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
    const auto more_wanted = [&] { return std::any_of(facts.active.begin(), facts.active.end(), [&](std::uint64_t id) { return wants_more(*facts.find(id)); }); };
    if (facts.queue.empty() && !more_wanted()) {
        outlook = {};
        return;
    }
    drop_unfit_spares();
    PlanInput input;
    Cluster cluster = cluster_now(nullptr, &input.running);
    outlook.spares = hold_spares_back(cluster);
    promise_moves(cluster);
    std::map<std::pair<std::uint32_t, bool>, std::uint32_t> shapes;  // need, domain given up -> shape
    const std::map<std::string, std::int32_t> limit_of_team = team_limits(input.limits);
    std::map<std::uint64_t, std::int32_t> limit_of_array;
    std::vector<Job*> order;
    std::list<Shares> claims;
    std::int64_t wake_ms = now.unix_ms + kEstimateEveryMs;
    for (Job* job : queue_in_order()) {
        if (misses_deadline(*job, wake_ms)) continue;
        if (!what_it_awaits(*job, now.unix_ms, wake_ms).empty()) continue;
        const bool roams = has_waited_for_domain(*job, now.unix_ms, wake_ms);
        const auto [shape, is_new] = shapes.emplace(std::pair(job->need, roams), static_cast<std::uint32_t>(input.shapes.size()));
        if (is_new) {
            input.shapes.push_back(shape_for(facts.needs[job->need]));
            if (roams) input.shapes.back().within = Level::Cluster;
        }
        Waiting& one = input.waiting.emplace_back();
        one.job = job->id;
        one.shape = shape->second;
        const auto left_ms = job->time_left_ms(now.unix_ms);
        one.limit = left_ms ? *left_ms + to_ms(grace_of(*job)) : kNever;
        one.expected = std::min<Ms>(one.limit, std::max(kShortestGuessMs, expected_run_ms(*job)));
        one.least = job->spec.time_min_s() == 0 ? 0 : static_cast<Ms>(job->spec.time_min_s()) * 1000 + to_ms(grace_of(*job));
        one.overdue = now.unix_ms - job->submitted_ms >= kPatienceMs;
        if (!job->blamed.empty()) {
            one.avoid = static_cast<std::uint32_t>(input.avoid.size());
            input.avoid.push_back(avoided_by(*job));
        }
        const Team* team = options.fleet.team_of(job->user);
        one.limit_of = array_limit(*job, team == nullptr ? -1 : limit_of_team.at(team->name), input.limits, limit_of_array);
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
    start_planned(plan, input, order, cluster);
    std::vector<Job*> blocked;
    for (Job* job : order) {
        if (job->state == proto::QUEUED) blocked.push_back(job);
    }
    const bool freed = give_up_spares(cluster, blocked);
    if (!freed) plan_preemptions(cluster, blocked, input.running);
    if (!freed && (options.defragment || estimates)) plan_defragmentation(cluster, blocked, input.running);
    if (std::none_of(blocked.begin(), blocked.end(), [&](const Job* job) { return waits_for_room(*job); })) {
        top_up_spares(cluster);
        grow_gangs(cluster, input.running);
    }
    outlook.cluster.emplace(std::move(cluster));
    for (const auto& [name, one] : facts.reservations) {
        if (one.end_unix_ms() > now.unix_ms) wake_ms = std::min(wake_ms, one.end_unix_ms());
    }
    if (!facts.queue.empty() || more_wanted()) timers.set({Wait::Plan, 0, {}}, now.steady + milliseconds(std::max<std::int64_t>(1, wake_ms - now.unix_ms)));
}

void Brain::State::start_planned(const Plan& plan, const PlanInput& input, const std::vector<Job*>& order, const Cluster& cluster) {
    std::unordered_map<std::uint64_t, Outlook::Entry> jobs;
    jobs.reserve(order.size());
    std::size_t waiting = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
        Job& job = *order[i];
        const Planned& planned = plan.jobs[i];
        if (planned.standing == Standing::Starts) {
            const std::vector<proto::Placement> gang = to_gang(job, planned.shares);
            const std::uint32_t ranks = ranks_of(planned.shares);
            std::string reason = fmt::format("first that fits: {} {} on {} {}", ranks, ranks == 1 ? "rank" : "ranks", gang.size(), gang.size() == 1 ? "node" : "nodes");
            if (waiting != 0) reason += fmt::format("; {} {} before it {} for more, and {} not delayed", waiting, waiting == 1 ? "job" : "jobs", waiting == 1 ? "waits" : "wait", waiting == 1 ? "is" : "are");
            const Ms asked = job.time_left_ms(now.unix_ms).value_or(0) + to_ms(grace_of(job));
            const bool cut = job.spec.time_min_s() != 0 && planned.limit < asked;
            reserve(job, gang, std::move(reason), cut ? static_cast<std::uint64_t>((planned.limit - to_ms(grace_of(job))) / 1000) : 0,
                    passed_over(job, planned.shares, cluster));
            continue;
        }
        ++waiting;
        Outlook::Entry& entry = jobs[job.id];
        entry.standing = planned.standing;
        entry.behind = planned.behind;
        entry.over_array = planned.over >= 0 && input.limits[static_cast<std::size_t>(planned.over)].counts_jobs;
        entry.place = static_cast<std::uint32_t>(waiting);
        if (planned.standing == Standing::Promised) entry.promised_ms = planned.start;
        if (planned.expected < kNever) entry.expected_ms = planned.expected;
        if (outlook.estimated_ms == now.unix_ms) continue;
        const auto before = outlook.jobs.find(job.id);
        if (before != outlook.jobs.end()) entry.expected_ms = before->second.expected_ms;
    }
    outlook.jobs = std::move(jobs);
}

namespace {

std::string nodes_words(std::size_t count) { return count == 1 ? "1 node" : fmt::format("{} nodes", count); }

}  // namespace

// Where else it might have gone, and why it did not: by domain, then by node.
std::vector<std::string> Brain::State::passed_over(const Job& job, const Shares& taken, const Cluster& cluster) const {
    const Roster& order = nodes_in_order();
    const Shape shape = shape_for(facts.needs[job.need]);
    std::vector<std::string> words;
    std::set<std::uint32_t> racks;
    std::set<std::uint32_t> nodes;
    std::uint32_t on_each = ~0u;
    for (const Share& share : taken) {
        racks.insert(order.racks[share.node]);
        nodes.insert(share.node);
        on_each = std::min(on_each, share.ranks);
    }
    if (!order.racks.empty() && order.racks.back() != 0) {
        const std::string& name = order.rack_names[taken.front().node];
        words.push_back(racks.size() == 1 ? fmt::format("all of it in rack {}, the smallest domain that holds it", name.empty() ? "(none)" : name)
                                          : fmt::format("over {} racks: no single one held it", racks.size()));
    }
    std::map<Cluster::Lack, std::size_t> lacks;
    const std::vector<std::uint32_t> avoid = avoided_by(job);
    std::size_t avoided = 0;
    std::size_t unreliable = 0;
    for (std::uint32_t node = 0; node < cluster.nodes(); ++node) {
        if (nodes.contains(node)) continue;
        const Cluster::Lack lack = cluster.lack(shape, node, on_each, now.unix_ms, end_if_started(job));
        if (lack == Cluster::Lack::Nothing && std::binary_search(avoid.begin(), avoid.end(), node)) {
            ++avoided;
        } else if (lack == Cluster::Lack::Nothing && order.nodes[node]->penalty_at(now.unix_ms) != 0) {
            ++unreliable;
        } else {
            ++lacks[lack];
        }
    }
    const auto say = [&](std::size_t count, const char* why) {
        if (count != 0) words.push_back(fmt::format("{} {}", nodes_words(count), why));
    };
    say(lacks[Cluster::Lack::Nothing], shape.spread ? "with room too, but fuller (or in a larger domain)" : "with room too, but emptier, or in a larger domain");
    say(unreliable, "with room too, but unreliable lately");
    say(avoided, "with room, but this job has failed on them before, or they are kept for another");
    say(lacks[Cluster::Lack::Cards], "with too few free cards");
    say(lacks[Cluster::Lack::Cpus], "with too few free CPUs");
    say(lacks[Cluster::Lack::Memory], "with too little free memory");
    say(lacks[Cluster::Lack::Whole], "not empty, and whole nodes are asked for");
    say(lacks[Cluster::Lack::NotAllowed], "ruled out by what was asked for (--nodelist, --exclude, --constraint, card model, --reservation)");
    say(lacks[Cluster::Lack::Reserved], "reserved for others before it would end");
    say(lacks[Cluster::Lack::Penalty], "unreliable lately, and the gang is large");
    say(lacks[Cluster::Lack::Closed], "drained, lost, silent, being cleaned, or kept as spares");
    return words;
}

void Brain::State::reserve(Job& job, std::vector<proto::Placement> gang, std::string reason, std::uint64_t time_limit_s, std::vector<std::string> passed_over) {
    std::vector<std::uint32_t> racks;
    for (const proto::Placement& place : gang) racks.push_back(nodes_in_order().racks[nodes_in_order().numbers.at(place.node())]);
    const std::vector<std::uint32_t> peers = replica_peers(racks);
    for (std::size_t i = 0; i < gang.size(); ++i) gang[i].set_replica_peer(peers[i]);
    std::vector<std::string> spares = job.state == proto::RECOVERING ? spares_left(job) : std::vector<std::string>();
    std::erase_if(spares, [&](const std::string& name) { return std::any_of(gang.begin(), gang.end(), [&](const auto& place) { return place.node() == name; }); });
    proto::Record reserved;
    proto::GangReserved& body = *reserved.mutable_gang_reserved();
    body.mutable_id()->set_job(job.id);
    body.mutable_id()->set_attempt(job.key().attempt + 1);
    for (const proto::Placement& place : gang) *body.add_gang() = place;
    body.set_reason(std::move(reason));
    body.set_time_limit_s(time_limit_s);
    for (std::string& one : passed_over) body.add_passed_over(std::move(one));
    if (const auto point = job.restore_point()) *body.mutable_restore() = *point;
    release_snapshots(job, gang);
    record(std::move(reserved));
    if (!spares.empty()) hold_spares(job, spares);
    runs.erase(job.id);
    timers.clear_job(job.id);
    for (std::size_t part = 0; part < gang.size(); ++part) order_prepare(job, part);
    watch_run(job);
}

}  // namespace gangline::coordinator
