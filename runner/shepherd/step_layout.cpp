#include "runner/shepherd/step_layout.h"

#include <algorithm>

#include <fmt/format.h>

namespace gangline::runner {
namespace {

struct Node {
    std::uint32_t index = 0;     // in the job's gang
    std::uint32_t capacity = 0;  // ranks of this step that fit
    std::uint32_t ranks = 0;     // that it gets
};

std::uint32_t capacity_of(const proto::Placement& placement, const proto::JobSpec& spec, std::uint32_t cpus_per_rank) {
    const std::uint64_t job_cpus = std::max(spec.cpus_per_rank(), 1u);
    const std::uint64_t step_cpus = cpus_per_rank == 0 ? job_cpus : cpus_per_rank;
    return static_cast<std::uint32_t>(placement.rank_count() * job_cpus / step_cpus);
}

std::uint32_t total(const std::vector<Node>& nodes) {
    std::uint32_t sum = 0;
    for (const Node& node : nodes) sum += node.capacity;
    return sum;
}

Error too_many(const char* option, std::uint32_t asked, std::uint32_t most, const char* what) {
    return {Code::InvalidArgument, fmt::format("{}={}: this job has room for {} {} in a step; ask for at most {}", option, asked,
                                               most, what, most)};
}

// One rank to each node in turn, as long as it has room: even, and no node without a rank.
void hand_out(std::vector<Node>& nodes, std::uint32_t ranks) {
    while (ranks > 0) {
        for (Node& node : nodes) {
            if (ranks == 0 || node.ranks == node.capacity) continue;
            ++node.ranks;
            --ranks;
        }
    }
}

Result<std::vector<Node>> choose(const std::vector<proto::Placement>& job, const proto::JobSpec& spec,
                                 const proto::StepRequest& request) {
    std::vector<Node> nodes;
    for (std::uint32_t i = 0; i < job.size(); ++i) {
        const std::uint32_t capacity = capacity_of(job[i], spec, request.cpus_per_rank());
        if (capacity > 0) nodes.push_back({i, capacity, 0});
    }
    if (nodes.empty()) {
        return Error{Code::InvalidArgument, fmt::format("--cpus-per-task={}: no node of this job has that many CPUs for one rank; "
                                                        "leave the option out", request.cpus_per_rank())};
    }
    if (request.nodes() > nodes.size()) {
        return too_many("--nodes", request.nodes(), static_cast<std::uint32_t>(nodes.size()), "nodes");
    }
    const std::uint32_t per_node = request.ranks_per_node();
    if (per_node > 0) {
        std::uint32_t most = 0;
        for (const Node& node : nodes) most = std::max(most, node.capacity);
        if (per_node > most) return too_many("--ntasks-per-node", per_node, most, "ranks a node");
        for (Node& node : nodes) node.capacity = std::min(node.capacity, per_node);
    }
    std::size_t count = request.nodes() > 0 ? request.nodes() : nodes.size();
    if (request.ranks() > 0) {
        if (request.nodes() > request.ranks()) {
            return Error{Code::InvalidArgument, fmt::format("--nodes={} with --ntasks={}: every node needs a rank; ask for at most {} nodes",
                                                            request.nodes(), request.ranks(), request.ranks())};
        }
        count = std::min<std::size_t>(count, request.ranks());
        // Ranks a node given, nodes not: as few nodes as hold them.
        if (per_node > 0 && request.nodes() == 0) count = std::min<std::size_t>(count, (request.ranks() + per_node - 1) / per_node);
    }
    nodes.resize(count);
    const std::uint32_t most = total(nodes);
    const std::uint32_t ranks = request.ranks() > 0 ? request.ranks() : most;
    if (ranks > most) return too_many("--ntasks", ranks, most, "ranks");
    hand_out(nodes, ranks);
    return nodes;
}

// Free slots of a node first; when they do not suffice, all from the first on.
std::vector<std::uint32_t> slots_for(const Node& node, std::uint32_t slots, const std::set<Slot>& taken) {
    std::vector<std::uint32_t> free;
    for (std::uint32_t i = 0; i < slots; ++i) {
        if (taken.count({node.index, i}) == 0) free.push_back(i);
    }
    std::vector<std::uint32_t> chosen;
    const bool enough = free.size() >= std::min(node.ranks, slots);
    for (std::uint32_t i = 0; i < node.ranks; ++i) chosen.push_back(enough && i < free.size() ? free[i] : i % slots);
    return chosen;
}

void give_cards(const proto::Placement& job, const std::vector<std::uint32_t>& slots, bool evenly, proto::Placement& step) {
    const auto cards = static_cast<std::uint32_t>(job.cards_size());
    if (cards == 0) return;
    const auto ranks = static_cast<std::uint32_t>(slots.size());
    const std::uint32_t per_rank = evenly ? std::max(cards / ranks, 1u) : cards / job.rank_count();
    for (std::uint32_t i = 0; i < ranks; ++i) {
        const std::uint32_t from = (evenly ? i : slots[i]) * per_rank;
        for (std::uint32_t k = 0; k < per_rank; ++k) step.add_cards(job.cards(static_cast<int>((from + k) % cards)));
    }
}

}  // namespace

Result<StepLayout> lay_out_step(const std::vector<proto::Placement>& job, const proto::JobSpec& spec,
                                const proto::StepRequest& request, const std::set<Slot>& taken) {
    auto nodes = choose(job, spec, request);
    if (!nodes) return nodes.error();
    StepLayout layout;
    std::uint32_t next = 0;
    for (const Node& node : *nodes) {
        const proto::Placement& from = job[node.index];
        proto::Placement to;
        to.set_node(from.node());
        to.set_address(from.address());
        to.set_first_rank(next);
        to.set_rank_count(node.ranks);
        next += node.ranks;
        const auto slots = slots_for(node, from.rank_count(), taken);
        for (const std::uint32_t slot : slots) layout.slots.emplace_back(node.index, slot);
        // One rank that stands for its node (as torchrun wants it) gets all of the node's cards.
        give_cards(from, slots, request.ranks_per_node() > 0 && request.ranks_per_node() < from.rank_count(), to);
        layout.gang.push_back(std::move(to));
    }
    return layout;
}

}  // namespace gangline::runner
