#pragma once
// Where a gang goes: whole or nothing. A pure function of what it needs and what each node offers.
//
// Fewest nodes first; among equals the tightest fit, so that large holes stay whole. Where the user names a number of
// nodes the ranks are spread evenly over them, otherwise a node is filled before the next is opened. Ranks are
// contiguous by node. A node that a job has reason to avoid (penalty) is taken only when nothing fits without it.
// A node of virtual cards counts as having at least one CPU a card: a virtual card is a CPU share.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/protocol/job.pb.h"
#include "base/protocol/node.pb.h"

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
    std::vector<std::string> only = {};
    std::vector<std::string> exclude = {};

    std::uint64_t cards() const { return std::uint64_t{ranks} * cards_per_rank; }
    // Equal for needs that fit in the same places.
    std::string shape() const;
};
Need need_of(const proto::JobSpec& spec);

struct Offer {
    std::string node = {};
    std::string address = {};
    std::vector<std::uint32_t> cards = {};  // free ones
    std::uint32_t cards_total = 0;
    std::uint32_t cpus = 0;            // free
    std::uint64_t memory_mib = 0;      // free
    bool whole = true;                 // nobody holds anything here
    std::uint32_t penalty = 0;         // how often the job has blamed it
    bool was_here = false;             // the job's last attempt ran here
};
// All of a node, as if nobody held anything.
Offer whole_offer(const proto::NodeInfo& node);
std::uint32_t cpus_of(const proto::NodeInfo& node);

// How many ranks of the gang this offer takes.
std::uint32_t capacity(const Need& need, const Offer& offer);

// The gang in node order of `offers`; nothing when it does not fit whole.
std::optional<std::vector<proto::Placement>> place(const Need& need, const std::vector<Offer>& offers);

// Takes the gang's cards, CPUs and memory out of the offers.
void take(const Need& need, const std::vector<proto::Placement>& gang, std::vector<Offer>& offers);

// The most ranks (at most need.ranks) of this shape that fit; 0 = none.
std::uint32_t largest_that_fits(const Need& need, const std::vector<Offer>& offers);

// Why the gang does not fit into these offers, in one clause with numbers, and the largest that does. Empty: it fits.
std::string misfit(const Need& need, const std::vector<Offer>& offers);

}  // namespace gangline::coordinator
