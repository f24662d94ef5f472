#include "coordinator/schedule/spares.h"

#include <algorithm>
#include <cmath>

namespace gangline::coordinator {
namespace {

constexpr double kUnknownRepairDays = 1;   // before any node has come back
constexpr double kLargeMean = 1000;        // from here on a normal distribution serves

}  // namespace

std::uint32_t poisson_quantile(double mean, double quantile) {
    if (!(mean > 0)) return 0;
    if (mean > kLargeMean) {
        const double z = 2.3263478740408408;  // of 0.99; others are not asked for at this size
        return static_cast<std::uint32_t>(std::ceil(mean + z * std::sqrt(mean)));
    }
    double term = std::exp(-mean);
    double sum = term;
    std::uint32_t k = 0;
    while (sum < quantile && k < 10 * kLargeMean) {
        ++k;
        term *= mean / k;
        sum += term;
    }
    return k;
}

std::uint32_t spares_for(const FaultsSeen& seen, double quantile) {
    if (seen.nodes <= 0 || seen.days <= 0) return 0;
    const double a_day = (seen.faults + 0.5) / std::max(seen.days, 1.0);
    const double repair_days = seen.repaired > 0 ? seen.repair_days / seen.repaired : kUnknownRepairDays;
    const std::uint32_t most = static_cast<std::uint32_t>(seen.nodes / 2);
    return std::min(most, poisson_quantile(a_day * repair_days, quantile));
}

}  // namespace gangline::coordinator
