#include "coordinator/schedule/peers.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace gangline::coordinator {

// Nodes sorted by rack stand in runs; a turn by the longest run's length takes each node out of its own run, as no run is longer.
std::vector<std::uint32_t> replica_peers(const std::vector<std::uint32_t>& racks) {
    const std::size_t count = racks.size();
    std::vector<std::uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    if (count < 2) return order;
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return racks[a] < racks[b]; });
    std::map<std::uint32_t, std::size_t> sizes;
    std::size_t longest = 0;
    for (const std::uint32_t rack : racks) longest = std::max(longest, ++sizes[rack]);
    const std::size_t turn = longest == count ? 1 : std::min(longest, count - longest);
    std::vector<std::uint32_t> peers(count);
    for (std::size_t i = 0; i < count; ++i) peers[order[i]] = order[(i + turn) % count];
    return peers;
}

}  // namespace gangline::coordinator
