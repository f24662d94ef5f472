#include "coordinator/brain/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace gangline::coordinator {
namespace {

bool contains(const std::vector<std::string>& list, const std::string& word) {
    return std::find(list.begin(), list.end(), word) != list.end();
}

std::string lower(std::string text) {
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
}

bool is_word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

NodeTraits traits_of(const Offer& offer) { return {offer.node, offer.card_model, offer.features}; }

}  // namespace

std::string Need::shape() const {
    return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", ranks, nodes_min, nodes_max, ranks_per_node, cards_per_rank,
                       cpus_per_rank, memory_mib, exclusive, elastic, nodes_step, segment, spread, static_cast<int>(within), fmt::join(only, ","),
                       fmt::join(exclude, ","), card_model, constraint, reservation);
}

Need Need::smallest() const {
    Need fixed = *this;
    if (!elastic) return fixed;
    fixed.elastic = false;
    fixed.nodes_max = nodes_min;
    fixed.ranks = nodes_min * ranks_per_node;
    return fixed;
}

bool is_model(const std::string& wanted, const std::string& model) {
    const std::string want = lower(wanted);
    const std::string have = lower(model);
    if (want == have) return true;
    for (std::size_t at = have.find(want); at != std::string::npos; at = have.find(want, at + 1)) {
        const bool begins = at == 0 || !is_word_character(have[at - 1]);
        const std::size_t end = at + want.size();
        if (begins && (end == have.size() || !is_word_character(have[end]))) return true;
    }
    return false;
}

Result<std::vector<std::vector<std::string>>> parse_constraint(std::string_view text) {
    std::vector<std::vector<std::string>> alternatives;
    const auto wrong = [&](std::string_view why) {
        return Error{Code::InvalidArgument, fmt::format("--constraint '{}': {}; write features joined by & (all) and | (any): nvme&ib|a100", text, why)};
    };
    for (std::size_t at = 0; at <= text.size() && !text.empty();) {
        const std::size_t end = std::min(text.find('|', at), text.size());
        std::vector<std::string>& all = alternatives.emplace_back();
        for (std::size_t from = at; from <= end;) {
            const std::size_t to = std::min(text.find('&', from), end);
            const std::string_view word = text.substr(from, to - from);
            from = to + 1;
            if (word.empty()) return wrong("a feature is missing");
            const bool good = std::all_of(word.begin(), word.end(), [](char c) { return is_word_character(c) || c == '_' || c == '-' || c == '.'; });
            if (!good) return wrong(fmt::format("'{}' is no feature", word));
            all.emplace_back(word);
        }
        at = end + 1;
    }
    return alternatives;
}

bool meets(const std::string& constraint, const std::vector<std::string>& features) {
    const auto alternatives = parse_constraint(constraint);
    if (!alternatives) return false;
    const auto has_all = [&](const std::vector<std::string>& all) {
        return std::all_of(all.begin(), all.end(), [&](const std::string& one) { return contains(features, one); });
    };
    return alternatives->empty() || std::any_of(alternatives->begin(), alternatives->end(), has_all);
}

bool allows(const Need& need, const NodeTraits& node) {
    return (need.only.empty() || contains(need.only, node.name)) && !contains(need.exclude, node.name) &&
           (need.card_model.empty() || is_model(need.card_model, node.card_model)) &&
           (need.constraint.empty() || meets(need.constraint, node.features));
}

Need need_of(const proto::JobSpec& spec) {
    Need need;
    need.ranks = spec.ranks();
    need.nodes_min = spec.nodes_min();
    need.nodes_max = spec.nodes_max();
    need.ranks_per_node = spec.ranks_per_node();
    need.cards_per_rank = spec.cards_given() ? spec.cards_per_rank() : 1;
    need.cpus_per_rank = spec.cpus_per_rank();
    if (need.cards_per_rank == 0) need.cpus_per_rank = std::max(need.cpus_per_rank, 1u);
    need.memory_mib = spec.memory_mib_per_node();
    need.exclusive = spec.exclusive();
    need.elastic = spec.elastic();
    need.nodes_step = std::max(1u, spec.nodes_step());
    need.segment = spec.segment();
    need.spread = spec.spread();
    need.card_model = spec.card_model();
    need.constraint = spec.constraint();
    need.reservation = spec.reservation();
    need.within = spec.within() == "rack" ? Level::Rack : spec.within() == "block" ? Level::Block : Level::Cluster;
    need.only.assign(spec.only_nodes().begin(), spec.only_nodes().end());
    need.exclude.assign(spec.exclude_nodes().begin(), spec.exclude_nodes().end());
    return need;
}

std::uint32_t cpus_of(const proto::NodeInfo& node) {
    const auto shares = std::count_if(node.cards().begin(), node.cards().end(),
                                      [](const proto::Card& card) { return card.is_virtual(); });
    return std::max(node.cpus(), static_cast<std::uint32_t>(shares));
}

Offer whole_offer(const proto::NodeInfo& node) {
    Offer offer;
    offer.node = node.name();
    offer.address = node.address();
    for (const proto::Card& card : node.cards()) offer.cards.push_back(card.index());
    std::sort(offer.cards.begin(), offer.cards.end());
    offer.cards_total = static_cast<std::uint32_t>(offer.cards.size());
    offer.cpus = cpus_of(node);
    offer.memory_mib = node.memory_mib();
    return offer;
}

Shape shape_of(const Need& need, const std::vector<NodeTraits>& nodes) {
    Shape shape;
    shape.ranks = need.ranks;
    shape.nodes_min = need.nodes_min;
    shape.nodes_max = need.nodes_max;
    shape.ranks_per_node = need.ranks_per_node;
    shape.cards_per_rank = need.cards_per_rank;
    shape.cpus_per_rank = need.cpus_per_rank;
    shape.memory_mib = need.memory_mib;
    shape.exclusive = need.exclusive;
    shape.elastic = need.elastic;
    shape.nodes_step = need.nodes_step;
    shape.segment = need.segment;
    shape.spread = need.spread;
    shape.within = need.within;
    if (need.only.empty() && need.exclude.empty() && need.card_model.empty() && need.constraint.empty()) return shape;
    std::vector<bool> allowed(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) allowed[i] = allows(need, nodes[i]);
    shape.allowed = std::make_shared<const std::vector<bool>>(std::move(allowed));
    return shape;
}

std::optional<std::vector<proto::Placement>> place(const Need& need, const std::vector<Offer>& offers) {
    std::vector<NodeTraits> traits;
    std::vector<NodeSeed> seeds;
    for (const Offer& offer : offers) {
        traits.push_back(traits_of(offer));
        seeds.push_back({.all = {static_cast<std::uint32_t>(offer.cards.size()), offer.cpus, offer.memory_mib}, .block = offer.block, .rack = offer.rack});
    }
    Cluster cluster(seeds);
    for (std::uint32_t i = 0; i < offers.size(); ++i) {
        if (!offers[i].whole) cluster.take(i, {}, false);
    }
    const auto shares = cluster.place(shape_of(need, traits), 0, kNever);
    if (!shares) return std::nullopt;
    std::vector<proto::Placement> gang;
    std::uint32_t first = 0;
    for (const Share& share : *shares) {
        const Offer& offer = offers[share.node];
        gang.push_back(placement(need, offer, first, share.ranks));
        first += share.ranks;
    }
    return gang;
}

proto::Placement placement(const Need& need, const Offer& offer, std::uint32_t first_rank, std::uint32_t ranks) {
    proto::Placement place;
    place.set_node(offer.node);
    place.set_address(offer.address);
    place.set_first_rank(first_rank);
    place.set_rank_count(ranks);
    for (std::uint32_t i = 0; i < ranks * need.cards_per_rank; ++i) place.add_cards(offer.cards.at(i));
    return place;
}

std::uint32_t largest_that_fits(const Need& need, const std::vector<Offer>& offers) {
    std::uint32_t fits = 0;
    std::uint32_t too_many = need.ranks + 1;
    while (fits + 1 < too_many) {  // fewer ranks of the same shape fit wherever more do
        Need smaller = need;
        smaller.ranks = fits + (too_many - fits) / 2;
        smaller.nodes_min = std::min(need.nodes_min, smaller.ranks);
        (place(smaller, offers) ? fits : too_many) = smaller.ranks;
    }
    return fits;
}

namespace {

std::string count(std::uint64_t number, const char* word) {
    return fmt::format("{} {}{}", number, word, number == 1 ? "" : "s");
}

// "4 GiB", "97.7 GiB (100000 MiB)", "512 MiB"
std::string memory_words(std::uint64_t mib) {
    if (mib < 1024) return fmt::format("{} MiB", mib);
    if (mib % 1024 == 0) return fmt::format("{} GiB", mib / 1024);
    return fmt::format("{:.1f} GiB ({} MiB)", static_cast<double>(mib) / 1024, mib);
}

// The one demand of a single rank (or node) that no node meets.
std::string misfit_of_one(const Need& need, const std::vector<const Offer*>& allowed) {
    std::uint32_t cards = 0;
    std::uint32_t cpus = 0;
    std::uint64_t memory = 0;
    const Offer* richest = nullptr;
    for (const Offer* offer : allowed) {
        if (richest == nullptr || offer->cards.size() > cards) richest = offer;
        cards = std::max(cards, static_cast<std::uint32_t>(offer->cards.size()));
        cpus = std::max(cpus, offer->cpus);
        memory = std::max(memory, offer->memory_mib);
    }
    const std::uint32_t together = std::max(1u, need.ranks_per_node == 0 ? 1 : std::min(need.ranks, need.ranks_per_node));
    if (need.memory_mib > memory) {
        return fmt::format("--mem asks for {} a node; the largest node has {}", memory_words(need.memory_mib),
                           memory_words(memory));
    }
    if (std::uint64_t{together} * need.cards_per_rank > cards) {
        return fmt::format("{} of {}{} {} on one node; the largest node ({}) has {}", count(together, "rank"),
                           count(need.cards_per_rank, "card"), together == 1 ? " needs" : " each need",
                           count(std::uint64_t{together} * need.cards_per_rank, "card"), richest->node, cards);
    }
    if (std::uint64_t{together} * need.cpus_per_rank > cpus) {
        return fmt::format("--cpus-per-task: {} of {}{} {} on one node; the largest node has {}", count(together, "rank"),
                           count(need.cpus_per_rank, "CPU"), together == 1 ? " needs" : " each need",
                           count(std::uint64_t{together} * need.cpus_per_rank, "CPU"), cpus);
    }
    return {};
}

std::string misfit_of_gang(const Need& need, const std::vector<const Offer*>& allowed) {
    std::uint64_t cards = 0;
    std::uint64_t cpus = 0;
    for (const Offer* offer : allowed) {
        cards += offer->cards.size();
        cpus += offer->cpus;
    }
    if (need.nodes_min > allowed.size()) {
        return fmt::format("{} are asked for; {} may be used", count(need.nodes_min, "node"), allowed.size());
    }
    if (need.cards() > cards) {
        return fmt::format("{} of {} {} {}; {} {} {}", count(need.ranks, "rank"), count(need.cards_per_rank, "card"),
                           need.ranks == 1 ? "needs" : "need", count(need.cards(), "card"), count(allowed.size(), "node"),
                           allowed.size() == 1 ? "has" : "have", cards);
    }
    if (std::uint64_t{need.ranks} * need.cpus_per_rank > cpus) {
        return fmt::format("--cpus-per-task: {} of {} {} {}; {} {} {}", count(need.ranks, "rank"),
                           count(need.cpus_per_rank, "CPU"), need.ranks == 1 ? "needs" : "need",
                           count(std::uint64_t{need.ranks} * need.cpus_per_rank, "CPU"), count(allowed.size(), "node"),
                           allowed.size() == 1 ? "has" : "have", cpus);
    }
    const std::uint32_t implied_cpus = need.cards_per_rank == 0 ? 1 : 0;
    const bool demands_more = need.memory_mib != 0 || need.exclusive || need.segment > 1 || need.within != Level::Cluster || need.cpus_per_rank > implied_cpus ||
                              !need.only.empty() || !need.exclude.empty();
    const bool is_bounded = need.nodes_max != 0 && need.nodes_max < allowed.size();
    const std::string nodes = count(allowed.size(), "node");
    return fmt::format("{}{} {} not fit on {}{}", count(need.ranks, "rank"),
                       need.ranks_per_node == 0 ? "" : fmt::format(", {} a node,", need.ranks_per_node),
                       need.ranks == 1 ? "does" : "do", is_bounded ? fmt::format("any {} of {}", need.nodes_max, nodes) : nodes,
                       demands_more ? " together with their other demands" : "");
}

// The option to lower, and how far: the nodes where they are what rules it out, else the ranks. Empty: nothing fits.
std::string largest_words(const Need& need, const std::vector<Offer>& offers, std::size_t allowed) {
    if (need.nodes_min > allowed) {
        Need smaller = need;
        const std::uint32_t on_each = std::max(1u, need.ranks_per_node);
        const auto nodes = static_cast<std::uint32_t>(allowed);
        smaller.nodes_min = nodes;
        smaller.nodes_max = need.nodes_max == 0 ? 0 : std::min(need.nodes_max, nodes);
        const bool follows = need.ranks == need.nodes_min * on_each;   // so many ranks because of the nodes
        if (follows) smaller.ranks = nodes * on_each;
        if (place(smaller, offers)) return fmt::format("--nodes {}", nodes);
        if (need.ranks_per_node != 0) smaller.ranks = std::min(need.ranks, nodes * on_each);
        const std::uint32_t ranks = largest_that_fits(smaller, offers);
        if (!follows && ranks >= nodes) return fmt::format("--nodes {} --ranks {}", nodes, ranks);
    }
    const std::uint32_t ranks = largest_that_fits(need, offers);
    return ranks == 0 ? "" : fmt::format("--ranks {}", ranks);
}

}  // namespace

namespace {

// What the words of --gpus and --constraint rule out. Empty: something is left.
std::string ruled_out_by_words(const Need& need, const std::vector<Offer>& offers) {
    std::vector<std::string> models;
    std::vector<std::string> features;
    const auto add = [](std::vector<std::string>& list, const std::string& word) {
        if (!word.empty() && !contains(list, word)) list.push_back(word);
    };
    bool model_there = need.card_model.empty();
    bool features_there = need.constraint.empty();
    for (const Offer& offer : offers) {
        model_there = model_there || is_model(need.card_model, offer.card_model);
        features_there = features_there || meets(need.constraint, offer.features);
        add(models, offer.card_model);
        for (const std::string& feature : offer.features) add(features, feature);
    }
    const auto known = [](const std::vector<std::string>& list) { return list.empty() ? std::string("none are known") : fmt::format("there are: {}", fmt::join(list, ", ")); };
    if (!model_there) return fmt::format("no node has cards of the model {}; {}", need.card_model, known(models));
    if (!features_there) return fmt::format("no node has the features {} (--constraint); {}", need.constraint, known(features));
    return {};
}

}  // namespace

std::string misfit(const Need& asked, const std::vector<Offer>& offers) {
    const Need need = asked.smallest();
    if (place(need, offers)) return {};
    std::vector<const Offer*> allowed;
    for (const Offer& offer : offers) {
        if (allows(need, traits_of(offer))) allowed.push_back(&offer);
    }
    if (allowed.empty()) {
        const std::string words = ruled_out_by_words(need, offers);
        return words.empty() ? "no node is left: every one is excluded or not in the list that was given" : words;
    }
    std::string clause = misfit_of_one(need, allowed);
    if (clause.empty()) clause = misfit_of_gang(need, allowed);
    const std::string largest = largest_words(need, offers, allowed.size());
    return largest.empty() ? clause : clause + ". The largest that fits: " + largest;
}

}  // namespace gangline::coordinator
