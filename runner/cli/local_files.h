#pragma once
// The folder of a cluster that this machine's CLI keeps: its keys, its list of nodes, its processes.
//
//   <folder>/cluster.json            what it is: name, endpoints, nodes; written last, so its presence means "up"
//   <folder>/client.key              the user's key
//   <folder>/coordinator/            the coordinator's --state (keys/coordinator.key, authorised, endpoints.json, journal.db)
//   <folder>/keys/NAME.key           a node's key
//   <folder>/log/PART.log
//   <folder>/pids.json               {part: {pid, start_ticks}}
//   <node_root>/NAME/                an agent's --state: for `up` <folder>/nodes
//
// `up` keeps it in <state>/local; a private `run` as private_cluster.h says.
//
// Thread rule: reads and writes files; one process a folder (held by a lock for `up` and `down`).

#include <map>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/result.h"

namespace gangline::runner {

struct LocalNode {
    std::string name;
    std::uint32_t cards = 1;
};

struct LocalClusterPlan {
    std::string folder;
    std::string node_root;                   // agents' own folders are below it
    std::string topology;                    // what hwloc found, kept for all agents
    std::string cluster;                     // unique on this machine: it marks processes and shared memory
    std::string users_endpoint;
    std::string nodes_endpoint;
    std::string coordinator_key;             // public, Z85
    std::string checkpoint_root;
    std::string description;                 // a cluster.toml for the coordinator, absolute; empty: none
    std::uint64_t first_job = 1;             // numbers go on from the cluster before, so that no output file is written twice
    std::vector<LocalNode> nodes;
};

struct LocalAddress {
    std::string endpoint;
    std::string server_key;
    std::string key_file;
};

// Errors: NotFound when no local cluster is up in <state>/local; Unavailable when its coordinator has died; Damaged when
// its cluster.json cannot be read.
Result<LocalAddress> read_local_address(const std::string& state);

std::string cluster_file(const std::string& folder);
Result<void> write_plan(const LocalClusterPlan& plan);
Result<LocalClusterPlan> read_plan(const std::string& folder);

// Folders, keys and the allow-list; whatever is there already is kept. Fills plan.coordinator_key.
Result<void> make_cluster_files(LocalClusterPlan& plan);

using Pids = std::map<std::string, ProcessId>;
Result<void> write_pids(const std::string& folder, const Pids& pids);
Pids read_pids(const std::string& folder);   // empty when there is none
bool is_alive(const ProcessId& id);          // and not a zombie

}  // namespace gangline::runner
