#pragma once
// What a job asks for and what nodes offer, in the words of messages; where a gang goes is schedule/cluster.h's. And why it
// goes nowhere.
//
// A node of virtual cards counts as having at least one CPU a card: a virtual card is a CPU share.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/protocol/job.pb.h"
#include "base/protocol/node.pb.h"
#include "base/result.h"
#include "coordinator/schedule/cluster.h"

namespace gangline::coordinator {

// A JobSpec's demand with its defaults resolved.
struct Need {
    std::uint32_t ranks = 1;
    std::uint32_t nodes_min = 0;
    std::uint32_t nodes_max = 0;
    std::uint32_t ranks_per_node = 0;
    std::uint32_t cards_per_rank = 1;
    std::uint32_t cpus_per_rank = 0;  // one, where a rank has no card
    std::uint64_t memory_mib = 0;     // a node
    bool exclusive = false;
    bool elastic = false;             // nodes_min to nodes_max nodes of ranks_per_node; `ranks` is the most
    std::uint32_t nodes_step = 1;
    std::uint32_t segment = 0;
    bool spread = false;
    Level within = Level::Cluster;
    std::vector<std::string> only = {};
    std::vector<std::string> exclude = {};
    std::string card_model = {};
    std::string constraint = {};
    std::string reservation = {};

    std::uint64_t cards() const { return std::uint64_t{ranks} * cards_per_rank; }
    // An elastic need on its fewest nodes; any other as it is.
    Need smallest() const;
    // Equal for needs that fit in the same places.
    std::string shape() const;
};
Need need_of(const proto::JobSpec& spec);

// What a node is, besides what it has free.
struct NodeTraits {
    std::string name = {};
    std::string card_model = {};       // as cluster.toml names it, else as the node reports it
    std::vector<std::string> features = {};
};

struct Offer {
    std::string node = {};
    std::string address = {};
    std::vector<std::uint32_t> cards = {};  // free ones
    std::uint32_t cards_total = 0;
    std::uint32_t cpus = 0;            // free
    std::uint64_t memory_mib = 0;      // free
    bool whole = true;                 // nobody holds anything here
    std::uint32_t block = 0;           // numbers as NodeSeed's: offers stand in their order
    std::uint32_t rack = 0;
    std::string card_model = {};
    std::vector<std::string> features = {};
};
// All of a node, as if nobody held anything.
Offer whole_offer(const proto::NodeInfo& node);
std::uint32_t cpus_of(const proto::NodeInfo& node);

// "h100" is the model "H100" and "NVIDIA H100 80GB HBM3": letter case aside the whole name or a word of it.
bool is_model(const std::string& wanted, const std::string& model);
// "nvme&ib", "a|b": & binds more tightly. Errors: InvalidArgument, naming what is wrong.
Result<std::vector<std::vector<std::string>>> parse_constraint(std::string_view text);
bool meets(const std::string& constraint, const std::vector<std::string>& features);
// Whether --nodelist, --exclude, the card model and the constraint let the need onto the node.
bool allows(const Need& need, const NodeTraits& node);

// The same for the scheduler; `nodes` are those behind its numbers. The reservation is the caller's to number.
Shape shape_of(const Need& need, const std::vector<NodeTraits>& nodes);

// The gang in the order of `offers`; nothing when it does not fit whole.
std::optional<std::vector<proto::Placement>> place(const Need& need, const std::vector<Offer>& offers);
// Ranks on one node, with the first free cards of the offer.
proto::Placement placement(const Need& need, const Offer& offer, std::uint32_t first_rank, std::uint32_t ranks);

// The most ranks (at most need.ranks) of this shape that fit; 0 = none.
std::uint32_t largest_that_fits(const Need& need, const std::vector<Offer>& offers);

// Why the gang does not fit into these offers, in one clause with numbers, and the largest that does. Empty: it fits.
std::string misfit(const Need& need, const std::vector<Offer>& offers);

}  // namespace gangline::coordinator
