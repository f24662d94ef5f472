#include "runner/worker/interval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"

namespace gangline {
namespace {

constexpr double kMostOfTime = 0.01;     // that saves may cost
constexpr double kMostOfDisk = 0.5;
constexpr double kMostAtStakeS = 1800;
constexpr double kOldWeight = 0.7;       // of what was measured before

Duration blend(Duration old, Duration now, bool first) {
    return first ? now : Duration(static_cast<Duration::rep>(kOldWeight * static_cast<double>(old.count()) + (1 - kOldWeight) * static_cast<double>(now.count())));
}

}  // namespace

void SaveInterval::measured(Duration stall, Duration persist) {
    const bool first = !std::exchange(is_measured_, true);
    stall_ = blend(stall_, std::max(stall, Duration(milliseconds(1)) / 10), first);
    persist_ = blend(persist_, persist, first);
}

Duration SaveInterval::interval() const {
    const double stall_s = to_seconds(stall_);
    const double best_s = std::sqrt(2 * stall_s * to_seconds(mean_));
    const double least_s = std::max(stall_s / kMostOfTime, to_seconds(persist_) / kMostOfDisk);
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::max(least_s, std::min(best_s, kMostAtStakeS))));
}

std::string SaveInterval::reason() const {
    return fmt::format("every {}: a failure is expected each {}, a save stalls the training {:.1f} ms and is on disk after {}", human_duration(to_seconds(interval())),
                       human_duration(to_seconds(mean_)), to_seconds(stall_) * 1000, human_duration(to_seconds(persist_)));
}

}  // namespace gangline
