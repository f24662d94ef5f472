#pragma once
// The environment of a rank: built, never inherited. What the job's spec carries, cleaned of other launchers' variables,
// then the runner's own, which win. The list is in docs/protocol.md, "Environment of a rank".
//
// Pure. Source: sbatch(1) and srun(1), output environment variables; torchrun's variables.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/protocol/node.pb.h"
#include "base/result.h"

namespace gangline::runner {

inline constexpr std::size_t kMostVariableBytes = 64u << 10;
inline constexpr std::size_t kMostEnvironmentBytes = 1u << 20;

// Names [A-Za-z_][A-Za-z0-9_]*, 64 KiB a variable, 1 MiB in all. Errors: InvalidArgument that names the variable.
Result<void> check_environment(const google::protobuf::RepeatedPtrField<proto::Variable>& environment);

// What is the same for all ranks of this node.
struct EnvironmentOfNode {
    const proto::Prepare* prepare = nullptr;
    const proto::Launch* launch = nullptr;
    std::vector<proto::Placement> gang;  // the command's, or the step's
    std::uint32_t node_index = 0;        // in `gang`
    std::uint32_t step_id = 0;
    std::string cluster;
    std::uint32_t cpus_on_node = 1;
    std::string worker_socket;
    std::string progress_folder;         // GANGLINE_PROGRESS = progress_path(folder, step_id, rank)
    std::string step_socket;             // in a script; else empty
    std::string tools_folder;            // first in PATH: `srun` and `gangline`; empty = PATH as it is
};

std::string progress_path(const std::string& folder, std::uint32_t step_id, std::uint32_t rank);
std::uint32_t world_size(const std::vector<proto::Placement>& gang);
// The cards of local rank `local` of a placement, which lists them rank by rank.
std::vector<std::uint32_t> cards_of(const proto::Placement& place, std::uint32_t local);
std::string mark_of(const std::string& cluster, const std::string& node, const proto::AttemptId& id);

// `given`: the variables of the spec, or those of the step's client. NAME=value, each name once.
std::vector<std::string> rank_environment(const EnvironmentOfNode& node,
                                          const google::protobuf::RepeatedPtrField<proto::Variable>& given, std::uint32_t local);
// A script is no rank: it gets the job's variables, without RANK and its like, and all the node's cards.
std::vector<std::string> script_environment(const EnvironmentOfNode& node);

// The value of NAME in NAME=value entries; empty when it is not there.
std::string value_in(const std::vector<std::string>& environment, const std::string& name);

}  // namespace gangline::runner
