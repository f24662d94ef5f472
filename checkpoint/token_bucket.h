#pragma once
// At most so many bytes a second, behind a burst. Pure: the caller brings the clock and does the waiting.
//
//   level <- min(burst, level + rate x time) - bytes        below zero: wait until it would be zero again

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/time.h"

namespace gangline::checkpoint {

class TokenBucket {
  public:
    // Starts full. Units: bytes_per_s at least 1.
    TokenBucket(std::uint64_t bytes_per_s, std::uint64_t burst) : rate_(static_cast<double>(bytes_per_s)), burst_(static_cast<double>(burst)), level_(burst_) {}

    // Takes the bytes, and says how long to wait until they are earned.
    Duration take(std::uint64_t bytes, TimePoint now) {
        if (now > last_ && last_ != TimePoint()) level_ = std::min(burst_, level_ + rate_ * to_seconds(now - last_));
        last_ = std::max(last_, now);
        level_ -= static_cast<double>(bytes);
        if (level_ >= 0) return Duration{0};
        return std::chrono::ceil<Duration>(std::chrono::duration<double>(-level_ / rate_));
    }

  private:
    double rate_;
    double burst_;
    double level_;
    TimePoint last_{};
};

}  // namespace gangline::checkpoint
