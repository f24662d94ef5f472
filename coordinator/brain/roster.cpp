// The cluster in numbers: the nodes in their order, what each has free, who holds what until when, what is reserved for whom.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "coordinator/brain/core.h"
#include "coordinator/schedule/spares.h"

namespace gangline::coordinator {
namespace {

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

const Roster& Brain::State::nodes_in_order() const {
    if (roster.version == facts.nodes_known && roster.empty) return roster;
    struct Place {
        std::string block;
        std::string rack;
        const Node* node;
        NodeTraits traits;
    };
    std::vector<Place> places;
    for (const auto& [name, node] : facts.nodes) {
        const auto described = options.fleet.nodes.find(name);
        const bool is_described = described != options.fleet.nodes.end();
        NodeTraits traits{name, node.info.cards().empty() ? "" : node.info.cards(0).model(), {}};
        if (is_described) {
            if (!described->second.card_model.empty()) traits.card_model = described->second.card_model;
            traits.features = described->second.features;
        }
        places.push_back({is_described ? described->second.block : "", is_described ? described->second.rack : node.info.rack(), &node, std::move(traits)});
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
        roster.rack_names.push_back(places[i].rack);
        roster.traits.push_back(std::move(places[i].traits));
        seeds.push_back({.all = room_of(places[i].node->info), .block = block, .rack = rack});
    }
    roster.empty.emplace(seeds);
    roster.version = facts.nodes_known;
    return roster;
}

void Brain::State::describe(Offer& offer, std::size_t node) const {
    offer.block = nodes_in_order().blocks[node];
    offer.rack = nodes_in_order().racks[node];
    offer.card_model = nodes_in_order().traits[node].card_model;
    offer.features = nodes_in_order().traits[node].features;
}

// What open nodes have free, in the order of the roster.
std::vector<Offer> Brain::State::offers() const {
    const Roster& order = nodes_in_order();
    std::vector<Offer> list;
    for (std::size_t i = 0; i < order.names.size(); ++i) {
        if (!is_offerable(order.names[i])) continue;
        list.push_back(order.nodes[i]->offer());
        describe(list.back(), i);
    }
    return list;
}

Shape Brain::State::shape_for(const Need& need) const {
    Shape shape = shape_of(need, nodes_in_order().traits);
    shape.spread = shape.spread || options.spread;
    shape.reservation = need.reservation.empty() ? 0 : number_of_reservation(need.reservation);
    if (shape.reservation == 0) return shape;
    const proto::Reservation& its_own = facts.reservations.at(need.reservation);
    std::vector<bool> allowed(nodes_in_order().names.size());
    for (const std::string& name : its_own.nodes()) {
        const auto number = nodes_in_order().numbers.find(name);
        if (number == nodes_in_order().numbers.end()) continue;
        allowed[number->second] = !shape.allowed || (*shape.allowed)[number->second];
    }
    shape.allowed = std::make_shared<const std::vector<bool>>(std::move(allowed));
    return shape;
}

// From 1; 0: there is none of this name.
std::uint32_t Brain::State::number_of_reservation(const std::string& name) const {
    const auto found = facts.reservations.find(name);
    return found == facts.reservations.end() ? 0 : static_cast<std::uint32_t>(std::distance(facts.reservations.begin(), found)) + 1;
}

Ms Brain::State::end_if_started(const Job& job) const {
    const auto left_ms = job.time_left_ms(now.unix_ms);
    return left_ms ? now.unix_ms + *left_ms + to_ms(grace_of(job)) : kNever;
}

bool Brain::State::is_reserved_from(const Job& job, const std::string& node) const { return is_reserved_from(job, node, end_if_started(job)); }

bool Brain::State::is_reserved_from(const Job& job, const std::string& node, Ms end) const {
    return std::any_of(facts.reservations.begin(), facts.reservations.end(), [&](const auto& entry) {
        const proto::Reservation& one = entry.second;
        const bool its_own = entry.first == job.spec.reservation() && may_use(one, job.user);
        return !its_own && one.start_unix_ms() < end && one.end_unix_ms() > now.unix_ms && std::find(one.nodes().begin(), one.nodes().end(), node) != one.nodes().end();
    });
}

// How many nodes the cluster keeps free for gangs that lose one.
std::uint32_t Brain::State::spares_wanted() const {
    const auto nodes = static_cast<double>(facts.nodes.size());
    const Accounts& seen = facts.accounts;
    switch (options.spares.how) {
        case SparePolicy::How::Number: return static_cast<std::uint32_t>(options.spares.amount);
        case SparePolicy::How::Percent: return static_cast<std::uint32_t>(std::ceil(nodes * options.spares.amount / 100));
        case SparePolicy::How::Observed:
            return spares_for({.nodes = nodes,
                               .days = seen.nodes() == 0 ? 0 : seen.node_days() / seen.nodes(),
                               .faults = static_cast<double>(seen.faults()),
                               .repaired = static_cast<double>(seen.repaired()),
                               .repair_days = seen.repair_days()});
    }
    return 0;
}

// Of the queued jobs: nodes that one of them needs at least.
std::uint32_t Brain::State::most_nodes_needed() const {
    std::set<std::uint32_t> needs;
    for (const auto& [key, job] : facts.queue) needs.insert(job->need);
    std::uint32_t most = 0;
    for (const std::uint32_t index : needs) {
        const Need need = facts.needs[index].smallest();
        const std::uint64_t on_each = need.ranks_per_node != 0 ? need.ranks_per_node : std::max<std::uint64_t>(1, nodes_in_order().empty->most_cards() / std::max(1u, need.cards_per_rank));
        most = std::max({most, need.nodes_min, static_cast<std::uint32_t>((need.ranks + on_each - 1) / on_each)});
    }
    return most;
}

// Closes empty nodes to the queue: as many as are wanted, less those that are away already; each from another rack where it can be.
std::vector<std::string> Brain::State::hold_spares_back(Cluster& cluster) const {
    const std::uint32_t needed = spares_wanted() == 0 ? 0 : most_nodes_needed();
    std::uint32_t wanted = std::min(spares_wanted(), cluster.nodes() > needed ? cluster.nodes() - needed : 0);  // they yield to a job that needs them all
    if (wanted == 0) return {};
    std::set<std::string> claimed;
    const auto add = [&](const Job& job) {
        if (!job.claim) return;
        for (const auto& [name, ranks] : job.claim->places) claimed.insert(name);
    };
    for (const auto& [key, job] : facts.queue) add(*job);
    for (const std::uint64_t id : facts.active) add(*facts.find(id));
    std::map<std::uint32_t, std::vector<std::uint32_t>> empty;  // by rack
    for (std::uint32_t node = 0; node < cluster.nodes(); ++node) {
        if (nodes_in_order().nodes[node]->lost && wanted != 0) --wanted;
        if (cluster.is_open(node) && cluster.is_empty(node) && !claimed.contains(nodes_in_order().names[node])) empty[cluster.rack_of(node)].push_back(node);
    }
    std::vector<std::string> names;
    while (names.size() < wanted && !empty.empty()) {
        for (auto rack = empty.begin(); rack != empty.end() && names.size() < wanted;) {
            names.push_back(nodes_in_order().names[rack->second.back()]);
            cluster.set_open(rack->second.back(), false);
            rack->second.pop_back();
            rack = rack->second.empty() ? empty.erase(rack) : std::next(rack);
        }
    }
    return names;
}

// `without`: its own holds count as free.
Cluster Brain::State::cluster_now(const Job* without, std::vector<Ending>* running) const {
    const Roster& order = nodes_in_order();
    std::vector<NodeSeed> seeds(order.names.size());
    for (std::size_t i = 0; i < seeds.size(); ++i) {
        seeds[i] = {.all = room_of(order.nodes[i]->info), .block = order.blocks[i], .rack = order.racks[i], .open = is_offerable(order.names[i]),
                    .penalty = order.nodes[i]->penalty_at(now.unix_ms)};
    }
    Cluster cluster(seeds);
    for (const auto& [name, one] : facts.reservations) {
        if (one.end_unix_ms() <= now.unix_ms) continue;
        for (const std::string& node : one.nodes()) {
            const auto number = order.numbers.find(node);
            if (number == order.numbers.end()) continue;
            cluster.keep_for(number->second, one.maintenance() ? 0 : number_of_reservation(name), one.start_unix_ms(), one.end_unix_ms());
        }
    }
    std::map<std::uint64_t, Shares> gangs;
    std::map<std::uint64_t, Shares> spares;
    for (std::uint32_t i = 0; i < seeds.size(); ++i) {
        for (const auto& [key, hold] : order.nodes[i]->holds) {
            const Job* job = hold.cleaning ? nullptr : facts.find(key.job);
            if (without != nullptr && job == without && key == without->key()) continue;
            if (job != nullptr && key == job->key() && hold.spare) {
                spares[key.job].push_back({i, 1});
            } else if (job != nullptr && key == job->key() && !is_ended(job->state)) {
                gangs[key.job].push_back({i, hold.ranks});
            } else {
                cluster.take(i, {static_cast<std::uint32_t>(hold.cards.size()), hold.cpus, hold.memory_mib}, hold.exclusive);
            }
        }
    }
    for (const auto& [id, shares] : gangs) {
        const Job& job = *facts.find(id);
        const Shape shape = shape_for(facts.needs[job.need]);
        const Ms end = end_if_started(job);
        const std::uint32_t gang = cluster.add(shape, shares, end);
        if (running == nullptr) continue;
        const std::int64_t ran_ms = now.unix_ms - job.attempts.front().reserved_ms;
        const std::int64_t more_ms = std::max(expected_run_ms(job) - ran_ms, std::max(kShortestGuessMs, ran_ms / 4));
        running->push_back({id, gang, std::min(end, now.unix_ms + more_ms)});
    }
    if (running != nullptr) spare_gangs.clear();
    for (const auto& [id, shares] : spares) {
        for (const Share& share : shares) {
            const std::uint32_t gang = cluster.add({.exclusive = true}, {share}, end_if_started(*facts.find(id)));
            if (running != nullptr) spare_gangs.emplace(id, gang);
        }
    }
    return cluster;
}

}  // namespace gangline::coordinator
