#pragma once
// How many spare nodes a cluster keeps: so many that, 99 times of 100, no more nodes are away at once.
//
//   nodes out of service ~ Poisson(nodes x faults a node-day x days of repair)
//
// Source: ByteRobust (P99 of simultaneous failures) and reliability of Meta's RSC; 2,048 nodes at 3.79e-3 faults a node-day and 5.5 days
// of repair: 43 on average, 59 at P99. Pure.

#include <cstdint>

namespace gangline::coordinator {

// The `quantile` of a Poisson distribution. `mean` >= 0.
std::uint32_t poisson_quantile(double mean, double quantile);

// What a cluster has seen of its nodes' failures. With few failures the rate is not known well: half a failure is added to what was
// seen, so that a young cluster is not thought free of faults.
struct FaultsSeen {
    double nodes = 0;
    double days = 0;
    double faults = 0;
    double repaired = 0;          // of them
    double repair_days = 0;       // of those together
};
std::uint32_t spares_for(const FaultsSeen& seen, double quantile = 0.99);

}  // namespace gangline::coordinator
