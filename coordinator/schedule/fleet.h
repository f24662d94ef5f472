#pragma once
// The cluster as its owner describes it (cluster.toml): where each node stands, what its cards can do and cost, who may use
// how much. Nodes that report without being described stand in the cluster itself, outside every rack.
//
//   cluster
//     block "b1"            levels from the outside in: Block, Rack; a rack is one switch and one NVLink neighbourhood
//       rack "r1"
//         nodes "n[001-016]"   a host list as Slurm's
//
// Pure: text in, value out.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gangline::coordinator {

enum class Billing { Card, Node };  // Node: a node of which one card is held is paid whole

struct CardModel {
    std::string name;                             // "H100"
    std::uint64_t memory_mib = 0;                 // 0 = not said
    std::map<std::string, double> peak_flops;     // by precision: "bf16" -> FLOP/s
    double price_per_hour = 0;                    // of one card, in `Fleet::currency`
    Billing billing = Billing::Card;
};

struct Team {
    std::string name;
    std::string parent;                           // empty = the cluster
    std::vector<std::string> users;
    std::optional<std::uint64_t> quota_cards;     // its own; nothing = no limit of its own
    std::optional<std::uint64_t> most_cards;      // with what it borrows; nothing = as much as is free
    double share = 1;                             // fair-share weight among its siblings
};

struct DescribedNode {
    std::string name;
    std::string block;                            // empty = none
    std::string rack;                             // empty = none
    std::string card_model;                       // empty = as the node reports
    std::vector<std::string> features;
};

struct Fleet {
    std::string currency = "EUR";
    std::map<std::string, DescribedNode> nodes;
    std::map<std::string, CardModel> models;
    std::map<std::string, Team> teams;

    // The user's team; nullptr: none. A user is in at most one.
    const Team* team_of(const std::string& user) const;
};

// Errors: InvalidArgument with the line, the key, its value, what is allowed, and what to write instead. Unknown keys are
//         errors: a misspelt quota must not be ignored.
Result<Fleet> parse_fleet(std::string_view toml);

}  // namespace gangline::coordinator
