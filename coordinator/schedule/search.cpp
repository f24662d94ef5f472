// Where a gang goes: Cluster::place and its kin.
#include <algorithm>
#include <functional>

#include "coordinator/schedule/cluster.h"

namespace gangline::coordinator {

// One look for one gang.
class Cluster::Search {
  public:
    Search(const Cluster& cluster, const Look& look)
        : cluster_(cluster), look_(look), shape_(look.shape), table_(cluster.avoids_promised(look) ? cluster.unpromised_ : cluster.at_least_) {
        if (!look.later) return;
        fits_.resize(cluster.nodes_.size());  // the counts of the domains hold for now only
        for (std::uint32_t node = 0; node < fits_.size(); ++node) fits_[node] = cluster.fits(look, node);
    }

    std::optional<Shares> run() {
        for_layouts([this](const Layout& layout) {
            found_ = layout.size() == 1 && layout[0].nodes == 1 ? one_node(layout[0].ranks) : search(layout);
            return found_.has_value();
        });
        if (!found_ && shape_.ranks_per_node == 0 && shape_.segment == 0 && !look_.quickly) found_ = search_ragged();
        if (found_ && !look_.quickly) std::sort(found_->begin(), found_->end(), [](const Share& a, const Share& b) { return a.node < b.node; });
        return found_;
    }

  private:
    std::uint32_t fits(std::uint32_t node) const { return look_.later ? fits_[node] : cluster_.fits(look_, node); }
    bool is_used(std::uint32_t node) const { return !used_.empty() && used_[node - used_from_] != 0; }

    // Open nodes of the domain with at least so many cards free now.
    std::uint32_t at_least(std::uint32_t domain, std::uint32_t cards) const {
        return cards >= cluster_.stride_ ? 0 : table_[domain * cluster_.stride_ + cards];
    }

    std::uint32_t free_cards(std::uint32_t node) const {
        if (!look_.later) return cluster_.nodes_[node].free.cards;
        bool whole = false;
        return free_at(cluster_.nodes_[node], look_.from, whole).cards;
    }

    // Each way to share the ranks out evenly, the preferred first, until `try_it` is content.
    template <class Try>
    void for_layouts(Try try_it) const {
        const auto two = [](Part big, Part small) {
            Layout layout;
            if (big.nodes != 0 && big.ranks != 0) layout.push_back(big);
            if (small.nodes != 0 && small.ranks != 0) layout.push_back(small);
            return layout;
        };
        if (shape_.elastic) {
            for (std::uint32_t nodes = shape_.nodes_max;; nodes -= shape_.nodes_step) {
                if (try_it(two({nodes, shape_.ranks_per_node}, {})) || nodes < shape_.nodes_min + shape_.nodes_step) return;
            }
        }
        if (shape_.ranks_per_node != 0) {
            const std::uint32_t a_node = shape_.ranks_per_node;
            try_it(two({shape_.ranks / a_node, a_node}, {1, shape_.ranks % a_node}));
            return;
        }
        if (shape_.nodes_min == 0) {
            const std::uint32_t most = std::min(shape_.ranks, ranks_of_largest());
            if (most == 0) return;
            const Layout layout = two({shape_.ranks / most, most}, {1, shape_.ranks % most});
            const std::uint32_t nodes = (shape_.ranks + most - 1) / most;
            if (shape_.nodes_max == 0 || nodes <= shape_.nodes_max) try_it(layout);
            return;
        }
        std::uint32_t last = std::min(shape_.ranks, static_cast<std::uint32_t>(cluster_.nodes_.size()));
        if (shape_.nodes_max != 0) last = std::min(last, shape_.nodes_max);
        for (std::uint32_t nodes = shape_.nodes_min; nodes <= last; nodes += std::max(1u, shape_.segment)) {
            const std::uint32_t each = shape_.ranks / nodes;
            const std::uint32_t more = shape_.ranks % nodes;
            if (try_it(two({more, each + 1}, {nodes - more, each}))) return;
        }
    }

    std::uint32_t ranks_of_largest() const {
        std::uint32_t most = shape_.ranks;
        if (shape_.cards_per_rank != 0) most = std::min(most, (cluster_.stride_ - 1) / shape_.cards_per_rank);
        if (shape_.cpus_per_rank != 0) most = std::min(most, cluster_.most_cpus_ / shape_.cpus_per_rank);
        return most;
    }

    // The fullest node that takes them, in the rack with the fewest empty nodes; spread: the other way round.
    std::optional<Shares> one_node(std::uint32_t ranks) const {
        if (look_.later) return one_node_later(ranks);
        std::vector<std::pair<std::uint32_t, std::uint32_t>> racks;
        const std::uint32_t least = ranks * shape_.cards_per_rank;
        for (std::uint32_t step = 0; least + step < cluster_.stride_; ++step) {
            const std::uint32_t cards = shape_.spread ? cluster_.stride_ - 1 - step : least + step;
            if (exactly(0, cards) == 0) continue;
            racks.clear();
            for (std::uint32_t rack = cluster_.blocks_ + 1; rack < cluster_.domains_.size(); ++rack) {
                if (exactly(rack, cards) != 0) racks.emplace_back(at_least(rack, cluster_.stride_ - 1), rack);
            }
            shape_.spread ? std::sort(racks.begin(), racks.end(), std::greater<>()) : std::sort(racks.begin(), racks.end());
            for (const auto& [empty, rack] : racks) {
                for (std::uint32_t node = cluster_.domains_[rack].begin; node < cluster_.domains_[rack].end; ++node) {
                    if (cluster_.nodes_[node].free.cards == cards && fits(node) >= ranks) return Shares{{node, ranks}};
                }
            }
        }
        return std::nullopt;
    }

    std::uint32_t exactly(std::uint32_t domain, std::uint32_t cards) const {
        return at_least(domain, cards) - at_least(domain, cards + 1);
    }

    std::optional<Shares> one_node_later(std::uint32_t ranks) const {
        std::optional<std::pair<std::uint32_t, std::uint32_t>> best;
        for (std::uint32_t node = 0; node < fits_.size(); ++node) {
            if (fits_[node] < ranks) continue;
            const std::pair<std::uint32_t, std::uint32_t> here{fullness(node), node};
            if (!best || here < *best) best = here;
        }
        if (!best) return std::nullopt;
        return Shares{{best->second, ranks}};
    }

    // The lower the sooner it is taken.
    std::uint32_t fullness(std::uint32_t node) const { return shape_.spread ? cluster_.stride_ - free_cards(node) : free_cards(node); }

    // Nodes of the domain that take so many ranks. For now it is at most that many: CPUs and memory are not looked at.
    std::uint32_t count(std::uint32_t domain, std::uint32_t ranks) const {
        if (!look_.later) return at_least(domain, ranks * shape_.cards_per_rank);
        const Domain& here = cluster_.domains_[domain];
        std::uint32_t found = 0;
        for (std::uint32_t node = here.begin; node < here.end; ++node) found += fits_[node] >= ranks ? 1u : 0u;
        return found;
    }

    bool may_hold(std::uint32_t domain, const Layout& layout, std::uint32_t& room) const {
        std::uint32_t nodes = 0;
        bool enough = true;
        for (const Part& part : layout) {
            nodes += part.nodes;
            room = count(domain, part.ranks);
            enough = enough && room >= nodes;
        }
        return enough;
    }

    // The smallest domain; among equals the one with least to spare.
    std::optional<Shares> search(const Layout& layout) {
        std::uint32_t room = 0;
        if (layout.empty() || !may_hold(0, layout, room)) return std::nullopt;
        std::vector<std::pair<std::uint32_t, std::uint32_t>> candidates;
        for (const Level level : {Level::Rack, Level::Block, Level::Cluster}) {
            if (level < shape_.within) return std::nullopt;
            candidates.clear();
            if (largest_at(level) < nodes_of(layout)) continue;
            const auto [first, end] = domains_at(level);
            for (std::uint32_t domain = first; domain < end; ++domain) {
                if (may_hold(domain, layout, room)) candidates.emplace_back(room, domain);
            }
            shape_.spread ? std::sort(candidates.begin(), candidates.end(), std::greater<>()) : std::sort(candidates.begin(), candidates.end());
            for (const auto& [spare, domain] : candidates) {
                if (auto shares = fill(layout, domain)) return shares;
            }
        }
        return std::nullopt;
    }

    static std::uint32_t nodes_of(const Layout& layout) {
        std::uint32_t nodes = 0;
        for (const Part& part : layout) nodes += part.nodes;
        return nodes;
    }
    // Nodes of the largest domain.
    std::uint32_t largest_at(Level level) const { return cluster_.largest_[static_cast<std::size_t>(level)]; }

    std::pair<std::uint32_t, std::uint32_t> domains_at(Level level) const {
        if (level == Level::Cluster) return {0, 1};
        if (level == Level::Block) return {1, cluster_.blocks_ + 1};
        return {cluster_.blocks_ + 1, static_cast<std::uint32_t>(cluster_.domains_.size())};
    }

    std::optional<Shares> fill(const Layout& layout, std::uint32_t domain) {
        used_from_ = cluster_.domains_[domain].begin;
        used_.assign(cluster_.domains_[domain].end - used_from_, 0);
        Shares shares;
        bool all = true;
        for (const Part& part : layout) all = all && take(domain, part.ranks, part.nodes, shares) == part.nodes;
        used_.clear();
        if (!all) return std::nullopt;
        return shares;
    }

    // At most so many nodes of the domain, from as few racks as possible, the last rack the tightest. Returns how many.
    std::uint32_t take(std::uint32_t domain, std::uint32_t ranks, std::uint32_t nodes, Shares& out) {
        const Domain& here = cluster_.domains_[domain];
        if (here.level == Level::Rack) return take_in_rack(here, ranks, nodes, out);
        std::vector<std::pair<std::uint32_t, std::uint32_t>> children;
        for (const std::uint32_t child : here.children) {
            if (const std::uint32_t room = count(child, ranks)) children.emplace_back(room, child);
        }
        std::sort(children.begin(), children.end());
        std::uint32_t taken = 0;
        while (taken != nodes && !children.empty()) {
            const std::uint32_t left = nodes - taken;
            auto child = std::lower_bound(children.begin(), children.end(), std::pair(left, 0u));
            if (child == children.end()) --child;  // none holds the rest: the one with most
            taken += take(child->second, ranks, left, out);
            children.erase(child);
        }
        return taken;
    }

    // The fullest that fit; of segments only whole ones.
    std::uint32_t take_in_rack(const Domain& rack, std::uint32_t ranks, std::uint32_t nodes, Shares& out) {
        std::vector<std::pair<std::uint32_t, std::uint32_t>>& rooms = rooms_;
        rooms.clear();
        for (std::uint32_t node = rack.begin; node < rack.end; ++node) {
            if (!is_used(node) && fits(node) >= ranks) rooms.emplace_back(fullness(node), node);
        }
        std::size_t most = std::min<std::size_t>(rooms.size(), nodes);
        if (shape_.segment > 1) most -= most % shape_.segment;
        if (rooms.size() > most) {
            std::nth_element(rooms.begin(), rooms.begin() + static_cast<std::ptrdiff_t>(most), rooms.end());
            rooms.resize(most);
        }
        for (const auto& [free, node] : rooms) {
            out.push_back({node, ranks});
            used_[node - used_from_] = 1;
        }
        return static_cast<std::uint32_t>(rooms.size());
    }

    // ---- uneven shares: what is left between others

    std::optional<Shares> search_ragged() const {
        for (const Level level : {Level::Rack, Level::Block, Level::Cluster}) {
            if (level < shape_.within) return std::nullopt;
            std::optional<std::pair<std::uint64_t, Shares>> best;
            const auto [first, end] = domains_at(level);
            for (std::uint32_t domain = first; domain < end; ++domain) {
                std::vector<Share> rooms;
                std::uint64_t sum = 0;
                for (std::uint32_t node = cluster_.domains_[domain].begin; node < cluster_.domains_[domain].end; ++node) {
                    const std::uint32_t ranks = fits(node);
                    if (ranks != 0) rooms.push_back({node, ranks});
                    sum += ranks;
                }
                if (sum < shape_.ranks || (best && sum >= best->first)) continue;
                std::stable_sort(rooms.begin(), rooms.end(), [](const Share& a, const Share& b) { return a.ranks > b.ranks; });
                auto shares = shape_.nodes_min == 0 ? packed(rooms) : levelled(rooms);
                if (shares) best.emplace(sum, std::move(*shares));
            }
            if (best) return std::move(best->second);
        }
        return std::nullopt;
    }

    // The fewest nodes; the last one is the tightest.
    std::optional<Shares> packed(std::vector<Share> rooms) const {
        Shares shares;
        for (std::uint32_t left = shape_.ranks; left != 0;) {
            auto room = std::find_if(rooms.rbegin(), rooms.rend(), [&](const Share& one) { return one.ranks >= left; });
            const auto chosen = room == rooms.rend() ? rooms.begin() : room.base() - 1;
            shares.push_back({chosen->node, std::min(left, chosen->ranks)});
            left -= shares.back().ranks;
            rooms.erase(chosen);
        }
        if (shape_.nodes_max != 0 && shares.size() > shape_.nodes_max) return std::nullopt;
        return shares;
    }

    // Over nodes_min nodes or as few more as needed, as level as they allow.
    std::optional<Shares> levelled(std::vector<Share> rooms) const {
        const std::size_t most = shape_.nodes_max == 0 ? rooms.size() : std::min<std::size_t>(rooms.size(), shape_.nodes_max);
        std::uint64_t sum = 0;
        std::size_t nodes = 0;
        while (nodes < most && (nodes < shape_.nodes_min || sum < shape_.ranks)) sum += rooms[nodes++].ranks;
        if (nodes < shape_.nodes_min || sum < shape_.ranks || nodes > shape_.ranks) return std::nullopt;
        rooms.resize(nodes);
        Shares shares;
        std::uint32_t left = shape_.ranks;
        for (std::size_t i = nodes; i-- > 0;) {  // smallest room first: the level of the rest rises
            const auto here = std::min(rooms[i].ranks, left / static_cast<std::uint32_t>(i + 1));
            if (here != 0) shares.push_back({rooms[i].node, here});
            left -= here;
        }
        return shares;
    }

    const Cluster& cluster_;
    const Look& look_;
    const Shape& shape_;
    const std::vector<std::uint32_t>& table_;
    std::vector<std::uint32_t> fits_;
    std::vector<std::uint8_t> used_;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> rooms_;
    std::uint32_t used_from_ = 0;
    std::optional<Shares> found_;
};

std::optional<Shares> Cluster::look_for(const Shape& shape, Look look, const std::vector<std::uint32_t>& avoid) const {
    if (!look.later && !may_fit(shape)) return std::nullopt;
    look.avoid = avoid.empty() ? nullptr : &avoid;
    for (std::uint32_t worst = 0; worst <= (is_large(shape) ? 0 : most_penalty_); ++worst) {
        look.most_penalty = worst;
        if (auto shares = Search(*this, look).run()) return shares;
    }
    if (look.avoid == nullptr) return std::nullopt;
    look.avoid = nullptr;
    return Search(*this, look).run();
}

std::optional<Shares> Cluster::place(const Shape& shape, Ms now, Ms end, const std::vector<std::uint32_t>& avoid) const {
    return look_for(shape, {.shape = shape, .from = now, .end = end}, avoid);
}

std::optional<Shares> Cluster::place_quickly(const Shape& shape, Ms now, Ms end, bool ignore_promises) const {
    return look_for(shape, {.shape = shape, .from = now, .end = end, .ignore_promises = ignore_promises, .quickly = true}, {});
}

std::optional<Shares> Cluster::place_ignoring_promises(const Shape& shape, Ms now, Ms end) const {
    return look_for(shape, {.shape = shape, .from = now, .end = end, .ignore_promises = true}, {});
}

}  // namespace gangline::coordinator
