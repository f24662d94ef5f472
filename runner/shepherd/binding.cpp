#include "runner/shepherd/binding.h"

#include <hwloc.h>

#include "base/handle.h"

namespace gangline::runner {
namespace {

struct TopologyTraits {
    using Value = hwloc_topology_t;
    static Value none() { return nullptr; }
    static void close(Value topology) { hwloc_topology_destroy(topology); }
};
using Topology = Handle<TopologyTraits>;

}  // namespace

std::vector<unsigned> units_in_order() {
    hwloc_topology_t raw = nullptr;
    if (hwloc_topology_init(&raw) != 0) return {};
    const Topology topology(raw);
    if (hwloc_topology_load(raw) != 0) return {};
    std::vector<unsigned> units;
    hwloc_const_cpuset_t allowed = hwloc_topology_get_allowed_cpuset(raw);
    hwloc_obj_t unit = nullptr;
    while ((unit = hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_PU, unit)) != nullptr) {
        if (hwloc_bitmap_isset(allowed, unit->os_index) != 0) units.push_back(unit->os_index);
    }
    return units;
}

std::optional<cpu_set_t> share_of(const std::vector<unsigned>& units, std::uint32_t cards_on_node,
                                  const std::vector<std::uint32_t>& cards) {
    if (cards.empty() || cards_on_node == 0) return std::nullopt;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const std::uint32_t card : cards) {
        if (card >= cards_on_node) return std::nullopt;
        const std::size_t first = units.size() * card / cards_on_node;
        const std::size_t end = units.size() * (std::size_t{card} + 1) / cards_on_node;
        if (first == end) return std::nullopt;
        for (std::size_t i = first; i < end; ++i) CPU_SET(units[i], &set);
    }
    return set;
}

bool is_loopback(const std::string& address) {
    return address.empty() || address.starts_with("127.") || address == "::1" || address == "localhost";
}

}  // namespace gangline::runner
