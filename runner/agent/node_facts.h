#pragma once
// What this node is: cards, processors, memory; and its topology as a file, so that each shepherd and rank need not discover
// it again (hwloc reads it back when HWLOC_XMLFILE and HWLOC_THISSYSTEM are set).

#include <cstdint>
#include <string>

#include "base/protocol/node.pb.h"
#include "base/result.h"

namespace gangline::runner {

struct NodeWish {
    std::string name;
    std::string address;
    std::string rack;
    std::uint32_t virtual_cards = 0;   // 0: real ones, else as many as processors
    bool multi_user = false;
    bool cgroups = false;
};

proto::NodeInfo describe_node(const NodeWish& wish);

// Makes sure that `path` holds this machine's topology as it is since its boot. Errors: Internal; the caller goes on without.
Result<void> keep_topology(const std::string& path);

// Root of the cgroup v2 hierarchy, also where it is the `unified` folder of a hybrid one; empty: none.
std::string machine_cgroup_root();
// Can an attempt be given a cgroup v2 group of its own here? Tries it.
bool can_make_cgroups(const std::string& cluster, const std::string& node);
// The node's own folders there, where nothing is below them any more.
void remove_empty_cgroups(const std::string& cluster, const std::string& node);

}  // namespace gangline::runner
