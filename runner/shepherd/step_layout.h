#pragma once
// Where the ranks of a step go: the step's wishes against the job's own placement. Pure.
//
// Every rank of the job is a slot: its share of the node's CPUs and its cards. A step takes slots that no other running step
// holds while there are enough, else it shares. Ranks follow one another node by node, as srun's block distribution does.

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/protocol/shepherd.pb.h"
#include "base/result.h"

namespace gangline::runner {

// (placement of the job, slot on it)
using Slot = std::pair<std::uint32_t, std::uint32_t>;

struct StepLayout {
    std::vector<proto::Placement> gang;  // nodes with ranks only, in the job's node order; `cards` rank by rank
    std::vector<Slot> slots;             // what it takes
};

// Errors: InvalidArgument naming the option, what was asked and the most that this job has.
Result<StepLayout> lay_out_step(const std::vector<proto::Placement>& job, const proto::JobSpec& spec,
                                const proto::StepRequest& request, const std::set<Slot>& taken);

}  // namespace gangline::runner
