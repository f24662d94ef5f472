#pragma once
// When each waiting job may expect to start: the queue played forward with expected run times. Fills in Planned::expected.

#include "coordinator/schedule/plan.h"

namespace gangline::coordinator {

// `cluster` holds what runs before the plan's starts.
void estimate(Cluster& cluster, const PlanInput& input, Ms now, const PlanOptions& options, Plan& plan);

}  // namespace gangline::coordinator
