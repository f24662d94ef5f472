#pragma once
// Who keeps whose replicas: for each node of a gang the node that holds the copies of its snapshots. In another rack where
// there is one, so that a rack's failure never takes a snapshot together with its replica; and each node keeps as few as it can.
//
// Pure. Racks are numbers in the order of the gang's nodes.

#include <cstdint>
#include <vector>

namespace gangline::coordinator {

// Returns for each node the index of its keeper; a gang of one node has none: its own index.
// The keepers are a permutation (each keeps one) unless one rack holds more than half of the gang: then its nodes beyond that
// are kept within it.
std::vector<std::uint32_t> replica_peers(const std::vector<std::uint32_t>& racks);

}  // namespace gangline::coordinator
