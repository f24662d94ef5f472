#include "coordinator/schedule/cluster.h"

#include <algorithm>

#include "base/check.h"

namespace gangline::coordinator {
namespace {

constexpr std::size_t kMostTries = 24;  // of a search for the earliest time

void subtract(Room& from, const Room& room) {
    from.cards -= std::min(from.cards, room.cards);
    from.cpus -= std::min(from.cpus, room.cpus);
    from.memory_mib -= std::min(from.memory_mib, room.memory_mib);
}

void add_to(Room& to, const Room& room) {
    to.cards += room.cards;
    to.cpus += room.cpus;
    to.memory_mib += room.memory_mib;
}

bool has(const Room& room, const Room& wanted) {
    return room.cards >= wanted.cards && room.cpus >= wanted.cpus && room.memory_mib >= wanted.memory_mib;
}

}  // namespace

std::uint32_t ranks_of(const Shares& shares) {
    std::uint32_t ranks = 0;
    for (const Share& share : shares) ranks += share.ranks;
    return ranks;
}

Cluster::Cluster(const std::vector<NodeSeed>& seeds) {
    const auto count = static_cast<std::uint32_t>(seeds.size());
    nodes_.resize(count);
    domains_.push_back({Level::Cluster, 0, count, {}});
    for (std::uint32_t i = 0; i < count; ++i) {
        CHECK(i == 0 || seeds[i].block >= seeds[i - 1].block, "nodes stand in the order of their blocks");
        if (i != 0 && seeds[i].block == seeds[i - 1].block) continue;
        std::uint32_t end = i;
        while (end < count && seeds[end].block == seeds[i].block) ++end;
        domains_[0].children.push_back(static_cast<std::uint32_t>(domains_.size()));
        domains_.push_back({Level::Block, i, end, {}});
    }
    blocks_ = static_cast<std::uint32_t>(domains_.size()) - 1;
    for (std::uint32_t block = 1; block <= blocks_; ++block) {
        for (std::uint32_t i = domains_[block].begin; i < domains_[block].end;) {
            std::uint32_t end = i;
            while (end < domains_[block].end && seeds[end].rack == seeds[i].rack) ++end;
            const auto rack = static_cast<std::uint32_t>(domains_.size());
            domains_[block].children.push_back(rack);
            domains_.push_back({Level::Rack, i, end, {}});
            for (; i < end; ++i) {
                nodes_[i].block = block;
                nodes_[i].rack = rack;
            }
        }
    }
    for (const Domain& domain : domains_) {
        std::uint32_t& largest = largest_[static_cast<std::size_t>(domain.level)];
        largest = std::max(largest, domain.end - domain.begin);
    }
    for (std::uint32_t i = 0; i < count; ++i) {
        NodeState& node = nodes_[i];
        node.all = seeds[i].all;
        node.open = seeds[i].open;
        node.penalty = seeds[i].penalty;
        stride_ = std::max(stride_, node.all.cards + 1);
        most_cpus_ = std::max(most_cpus_, node.all.cpus);
        most_penalty_ = std::max(most_penalty_, node.penalty);
    }
    at_least_.assign(domains_.size() * stride_, 0);
    for (NodeState& node : nodes_) {
        node.free = node.all;
        if (!node.open) continue;
        free_cards_ += node.all.cards;
        tally(at_least_, node, 0, node.all.cards + 1, true);
    }
}

// The node counts (or counts no more) as one with at least `from` ... `to` - 1 cards free.
void Cluster::tally(std::vector<std::uint32_t>& table, const NodeState& node, std::uint32_t from, std::uint32_t to, bool more) const {
    for (const std::uint32_t domain : {0u, node.block, node.rack}) {
        std::uint32_t* counts = &table[domain * stride_];
        for (std::uint32_t cards = from; cards < to; ++cards) more ? ++counts[cards] : --counts[cards];
    }
}

Room Cluster::room_of(const Shape& shape, const NodeState& node, std::uint32_t ranks) {
    if (shape.exclusive) return node.all;
    return {ranks * shape.cards_per_rank, ranks * shape.cpus_per_rank, shape.memory_mib};
}

void Cluster::give(std::uint32_t index, const Room& room, bool back) {
    NodeState& node = nodes_[index];
    const std::uint32_t before = node.free.cards;
    back ? add_to(node.free, room) : subtract(node.free, room);
    const std::uint32_t after = node.free.cards;
    if (!node.open || before == after) return;
    free_cards_ += after;
    free_cards_ -= before;
    const bool more = after > before;
    tally(at_least_, node, std::min(before, after) + 1, std::max(before, after) + 1, more);
    if (!promised_.empty() && node.promises.empty()) tally(unpromised_, node, std::min(before, after) + 1, std::max(before, after) + 1, more);
}

std::uint32_t Cluster::add(const Shape& shape, Shares shares, Ms end) {
    std::uint32_t number = 0;
    if (unused_.empty()) {
        number = static_cast<std::uint32_t>(gangs_.size());
        gangs_.emplace_back();
    } else {
        number = unused_.back();
        unused_.pop_back();
    }
    gangs_[number] = {std::move(shares), end};
    for (const Share& share : gangs_[number].shares) {
        NodeState& node = nodes_[share.node];
        Room room = room_of(shape, node, share.ranks);
        room = {std::min(room.cards, node.free.cards), std::min(room.cpus, node.free.cpus),
                std::min(room.memory_mib, node.free.memory_mib)};
        node.holds.insert(place_of(node, end), {number, room, end});
        give(share.node, room, false);
    }
    if (!ends_.empty()) ends_.insert(std::upper_bound(ends_.begin(), ends_.end(), end), end);
    return number;
}

void Cluster::remove(std::uint32_t gang) {
    for (const Share& share : gangs_[gang].shares) {
        NodeState& node = nodes_[share.node];
        const auto hold = std::find_if(node.holds.begin(), node.holds.end(), [&](const NodeHold& one) { return one.gang == gang; });
        if (hold == node.holds.end()) continue;
        give(share.node, hold->room, true);
        node.holds.erase(hold);
    }
    gangs_[gang] = {};
    unused_.push_back(gang);
    ends_.clear();
}

std::vector<Cluster::NodeHold>::iterator Cluster::place_of(NodeState& node, Ms end) {
    return std::find_if(node.holds.begin(), node.holds.end(), [&](const NodeHold& one) { return one.end > end; });
}

void Cluster::set_end(std::uint32_t gang, Ms end) {
    gangs_[gang].end = end;
    for (const Share& share : gangs_[gang].shares) {
        NodeState& node = nodes_[share.node];
        const auto hold = std::find_if(node.holds.begin(), node.holds.end(), [&](const NodeHold& one) { return one.gang == gang; });
        if (hold == node.holds.end()) continue;
        NodeHold moved = *hold;
        moved.end = end;
        node.holds.erase(hold);
        node.holds.insert(place_of(node, end), moved);
    }
    ends_.clear();
}

void Cluster::set_open(std::uint32_t index, bool open) {
    NodeState& node = nodes_[index];
    if (node.open == open) return;
    node.open = open;
    if (open) free_cards_ += node.free.cards;
    if (!open) free_cards_ -= node.free.cards;
    tally(at_least_, node, 0, node.free.cards + 1, open);
    if (!promised_.empty() && node.promises.empty()) tally(unpromised_, node, 0, node.free.cards + 1, open);
}

void Cluster::take(std::uint32_t index, const Room& room, bool whole) {
    nodes_[index].taken = true;
    give(index, whole ? nodes_[index].free : room, false);
}

void Cluster::promise(const Shape& shape, const Shares& shares, Ms from, Ms until) {
    for (const Share& share : shares) {
        NodeState& node = nodes_[share.node];
        if (node.promises.empty()) {
            if (promised_.empty()) unpromised_ = at_least_;
            promised_.push_back(share.node);
            if (node.open) tally(unpromised_, node, 0, node.free.cards + 1, false);
        }
        node.promises.push_back({room_of(shape, node, share.ranks), shape.exclusive, from, until});
    }
    first_promise_ = std::min(first_promise_, from);
    if (!ends_.empty()) ends_.insert(std::upper_bound(ends_.begin(), ends_.end(), until), until);
}

void Cluster::forget_promises() {
    for (const std::uint32_t node : promised_) nodes_[node].promises.clear();
    promised_.clear();
    first_promise_ = kNever;
    ends_.clear();
}

void Cluster::keep_for(std::uint32_t node, std::uint32_t reservation, Ms from, Ms until) {
    if (windows_.empty()) windows_.resize(nodes_.size());
    windows_[node].push_back({reservation, from, until});
    ends_.clear();
}

bool Cluster::is_kept_from(const Shape& shape, std::uint32_t node, Ms from, Ms end) const {
    if (windows_.empty()) return false;
    return std::any_of(windows_[node].begin(), windows_[node].end(), [&](const Window& one) {
        return (one.reservation == 0 || one.reservation != shape.reservation) && one.from < end && one.until > from;
    });
}

Ms Cluster::longest(const Shape& shape, const Shares& shares, Ms now) const {
    Ms until = kNever;
    for (const Share& share : shares) {
        const NodeState& node = nodes_[share.node];
        const Room room = room_of(shape, node, share.ranks);
        std::vector<Ms> starts;
        for (const Promise& one : node.promises) starts.push_back(one.from);
        if (!windows_.empty()) {
            for (const Window& one : windows_[share.node]) starts.push_back(one.from);
        }
        for (const Ms start : starts) {  // it may end there for sure, and perhaps later
            const Ms beyond = start + 1;
            if (start < now || start >= until) continue;
            if (is_kept_from(shape, share.node, now, beyond) || !keeps_promises(node, room, now, beyond)) until = start;
        }
    }
    return until;
}

bool Cluster::is_large(const Shape& shape) const {
    const std::uint32_t of_node = shape.ranks_per_node * shape.cards_per_rank == 0 ? stride_ - 1 : shape.ranks_per_node * shape.cards_per_rank;
    return std::max<std::uint64_t>(shape.nodes_min, shape.least_cards() / std::max(1u, of_node)) >= kLargeGangNodes;
}

std::uint32_t Cluster::whole_free_nodes() const {
    return static_cast<std::uint32_t>(std::count_if(nodes_.begin(), nodes_.end(), [](const NodeState& node) {
        return node.open && !node.taken && node.holds.empty();
    }));
}

bool Cluster::may_fit(const Shape& shape) const {
    if (shape.least_cards() > free_cards_) return false;
    const auto nodes_with = [&](std::uint32_t ranks) {
        const std::uint32_t cards = ranks * shape.cards_per_rank;
        return cards >= stride_ ? 0 : at_least_[cards];
    };
    if (shape.ranks_per_node != 0) return nodes_with(shape.ranks_per_node) >= shape.least_ranks() / shape.ranks_per_node;
    if (shape.nodes_max == 0) return nodes_with(1) >= std::max(1u, shape.nodes_min);
    const std::uint32_t fullest = (shape.ranks + shape.nodes_max - 1) / shape.nodes_max;  // over the most nodes that may be used
    return nodes_with(std::min(fullest, shape.ranks)) >= 1;
}

// ---- one node

Room Cluster::free_at(const NodeState& node, Ms at, bool& whole) {
    Room room = node.free;
    whole = !node.taken;
    for (const NodeHold& hold : node.holds) {
        if (hold.end <= at) {
            add_to(room, hold.room);
        } else {
            whole = false;
        }
    }
    return room;
}

// Whether `room` can be used from `from` to `end` so that each promise still finds its own room when its time comes.
bool Cluster::keeps_promises(const NodeState& node, const Room& room, Ms from, Ms end) const {
    for (const Promise& one : node.promises) {
        if (one.from >= end || one.until <= from) continue;
        if (one.whole) return false;
        bool whole = false;
        const Ms at = std::max(one.from, from);
        Room left = free_at(node, at, whole);
        if (!has(left, room)) return false;
        subtract(left, room);
        for (const Promise& other : node.promises) {
            if (other.from > at || other.until <= at) continue;
            if (!has(left, other.room)) return false;
            subtract(left, other.room);
        }
    }
    return true;
}

std::uint32_t Cluster::ranks_in(const Look& look, const NodeState& node, const Room& room, bool whole) const {
    const Shape& shape = look.shape;
    if (shape.memory_mib > room.memory_mib || (shape.exclusive && !whole)) return 0;
    std::uint32_t most = shape.ranks;
    if (shape.cards_per_rank != 0) most = std::min(most, room.cards / shape.cards_per_rank);
    if (shape.cpus_per_rank != 0) most = std::min(most, room.cpus / shape.cpus_per_rank);
    if (shape.ranks_per_node != 0) most = std::min(most, shape.ranks_per_node);
    if (look.ignore_promises || node.promises.empty()) return most;
    if (!look.later && look.end <= first_promise_) return most;
    if (look.quickly) return 0;
    while (most != 0 && !keeps_promises(node, room_of(shape, node, most), look.from, look.end)) --most;
    return most;
}

// How many ranks the node takes.
std::uint32_t Cluster::fits(const Look& look, std::uint32_t index) const {
    const NodeState& node = nodes_[index];
    if (!node.open || node.penalty > look.most_penalty) return 0;
    if (look.shape.allowed && !(*look.shape.allowed)[index]) return 0;
    if (look.avoid != nullptr && std::binary_search(look.avoid->begin(), look.avoid->end(), index)) return 0;
    if (is_kept_from(look.shape, index, look.from, look.end)) return 0;
    if (!look.later) return ranks_in(look, node, node.free, !node.taken && node.holds.empty());
    bool whole = false;
    const Room room = free_at(node, look.from, whole);
    return ranks_in(look, node, room, whole);
}

Cluster::Lack Cluster::lack(const Shape& shape, std::uint32_t index, std::uint32_t ranks, Ms now, Ms end) const {
    const NodeState& node = nodes_[index];
    if (!node.open) return Lack::Closed;
    if (shape.allowed && !(*shape.allowed)[index]) return Lack::NotAllowed;
    if (is_kept_from(shape, index, now, end)) return Lack::Reserved;
    if (node.penalty != 0 && is_large(shape)) return Lack::Penalty;
    if (node.free.memory_mib < shape.memory_mib) return Lack::Memory;
    if (shape.exclusive && (node.taken || !node.holds.empty())) return Lack::Whole;
    if (node.free.cards < ranks * shape.cards_per_rank) return Lack::Cards;
    if (node.free.cpus < ranks * shape.cpus_per_rank) return Lack::Cpus;
    return Lack::Nothing;
}

// ---- the earliest time

const std::vector<Ms>& Cluster::ends() const {
    if (!ends_.empty()) return ends_;
    for (const NodeState& node : nodes_) {
        for (const Promise& one : node.promises) ends_.push_back(one.until);
    }
    for (const Gang& gang : gangs_) {
        if (!gang.shares.empty()) ends_.push_back(gang.end);
    }
    for (const std::vector<Window>& of_node : windows_) {
        for (const Window& one : of_node) ends_.push_back(one.until);
    }
    std::sort(ends_.begin(), ends_.end());
    ends_.erase(std::unique(ends_.begin(), ends_.end()), ends_.end());
    return ends_;
}

// When the node takes so many ranks, if nobody new comes.
Ms Cluster::fits_from(const Shape& shape, std::uint32_t index, std::uint32_t ranks, Ms now) const {
    const NodeState& node = nodes_[index];
    if (!node.open || (shape.allowed && !(*shape.allowed)[index])) return kNever;
    const Room wanted = room_of(shape, node, ranks);
    Room room = node.free;
    if (shape.exclusive && node.taken) return kNever;
    if (has(room, wanted) && (!shape.exclusive || node.holds.empty())) return now;
    for (const NodeHold& hold : node.holds) {
        add_to(room, hold.room);
        if (has(room, wanted) && (!shape.exclusive || &hold == &node.holds.back())) return std::max(now, hold.end);
    }
    return kNever;
}

std::optional<Shares> Cluster::soonest_of_any(const Shape& shape, Ms now) const {
    Cluster all_end = *this;
    for (NodeState& node : all_end.nodes_) {
        for (NodeHold& hold : node.holds) hold.end = std::min(hold.end, kNever - 1);
    }
    auto opening = all_end.soonest(shape, now);
    if (!opening) return std::nullopt;
    return std::move(opening->shares);
}

std::optional<Cluster::Opening> Cluster::soonest(const Shape& shape, Ms now) const {
    const std::uint32_t most = stride_ <= 1 || shape.cards_per_rank == 0 ? 1 : std::max(1u, (stride_ - 1) / shape.cards_per_rank);
    std::uint32_t each = shape.ranks_per_node != 0 ? shape.ranks_per_node : std::min(shape.ranks, most);
    if (shape.nodes_min != 0) each = (shape.ranks + shape.nodes_min - 1) / shape.nodes_min;
    const std::uint32_t ranks = shape.least_ranks();
    each = std::min(each, ranks);
    const std::size_t wanted = (ranks + each - 1) / each;
    std::vector<std::pair<Ms, std::uint32_t>> times;
    times.reserve(nodes_.size());
    for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
        const Ms from = fits_from(shape, node, each, now);
        if (from < kNever) times.emplace_back(from, node);
    }
    if (times.size() < wanted) return std::nullopt;
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(wanted - 1), times.end());
    Opening opening{times[wanted - 1].first, {}};
    std::uint32_t left = ranks;
    for (std::size_t i = 0; i < wanted; ++i) {
        opening.shares.push_back({times[i].second, std::min(each, left)});
        left -= opening.shares.back().ranks;
    }
    return opening;
}

// What is free only grows with time but for promises: halve the list of ends. Each answer is proved by a placement; beside
// promises an earlier hole may be missed.
std::optional<Cluster::Opening> Cluster::earliest(const Shape& shape, Ms now, Ms duration) const {
    const auto try_at = [&](Ms at) -> std::optional<Opening> {
        const Ms end = duration >= kNever ? kNever : at + duration;
        auto shares = look_for(shape, {.shape = shape, .from = at, .end = end, .later = true}, {});
        if (!shares) return std::nullopt;
        return Opening{at, std::move(*shares)};
    };
    if (auto at_once = try_at(now)) return at_once;
    const std::vector<Ms>& all = ends();
    auto low = std::upper_bound(all.begin(), all.end(), now);
    if (const auto guess = soonest(shape, now); guess && shape.nodes_min + shape.ranks_per_node != 0) {
        if (auto found = try_at(guess->from)) return found;
        low = std::upper_bound(low, all.end(), guess->from);
    }
    auto high = std::lower_bound(all.begin(), all.end(), kNever);
    if (low == high) return std::nullopt;
    std::optional<Opening> best = try_at(*(high - 1));
    if (!best) return std::nullopt;
    --high;
    for (std::size_t tries = 0; low < high && tries < kMostTries; ++tries) {
        const auto middle = low + (high - low) / 2;
        if (auto found = try_at(*middle)) {
            best = std::move(found);
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return best;
}

}  // namespace gangline::coordinator
