#include "coordinator/brain/accounts.h"

#include <algorithm>

namespace gangline::coordinator {

void Accounts::advance(std::int64_t unix_ms, bool somebody_waits) {
    if (since_ms_ == 0) since_ms_ = at_ms_ = unix_ms;
    const double passed_s = static_cast<double>(unix_ms - at_ms_) / 1000;
    if (passed_s <= 0) return;  // a wall clock that was put back counts no second twice
    at_ms_ = unix_ms;
    std::uint64_t owned = 0;
    for (std::size_t use = 0; use < kCardUses; ++use) {
        seconds_[use] += static_cast<double>(counts_[use]) * passed_s;
        owned += counts_[use];
    }
    owned_s_ += static_cast<double>(owned) * passed_s;
    if (somebody_waits) fragmented_s_ += static_cast<double>(counts_[Free]) * passed_s;
    node_days_ += nodes_ * passed_s / 86'400;
}

void Accounts::change(const CardCounts& before, const CardCounts& after) {
    for (std::size_t use = 0; use < kCardUses; ++use) counts_[use] += after[use] - before[use];
}

void Accounts::node_back(std::int64_t away_ms) {
    ++repaired_;
    repair_days_ += static_cast<double>(std::max<std::int64_t>(0, away_ms)) / 86'400'000;
}

}  // namespace gangline::coordinator
