#pragma once
// Which CPUs a rank runs on: its cards' share of the node's, by hwloc's order (cores of one NUMA node lie together).
//
//   node of C cards and P processing units: card c owns units [c P / C, (c + 1) P / C); a rank gets those of all its cards
//
// Not bound: a rank without cards; a node whose number of cards is unknown; a share of no unit (more cards than units);
// virtual nodes on one machine (a loopback address), whose equal card numbers would overlap.
//
// Source: hwloc 2 manual; the units are those that this process may use.

#include <sched.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gangline::runner {

// Operating-system numbers of the usable processing units in hwloc's logical order. Takes some ms: only where it is used.
std::vector<unsigned> units_in_order();

// The part of it that can be tested: nothing when the rank is not bound.
std::optional<cpu_set_t> share_of(const std::vector<unsigned>& units, std::uint32_t cards_on_node,
                                  const std::vector<std::uint32_t>& cards);

bool is_loopback(const std::string& address);

}  // namespace gangline::runner
