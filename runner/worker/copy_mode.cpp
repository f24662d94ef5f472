#include "runner/worker/copy_mode.h"

#include <algorithm>

#include <fmt/format.h>

namespace gangline {
namespace {

constexpr double kLeastStraight = 0.9;  // of the bytes; below, most of the copy is made all the same
constexpr double kMargin = 1.25;        // a disk is not always equally fast
constexpr double kClearly = 0.9;        // a change is for a clear gain

double cost(const SaveCost& save, double seconds_to_fence) { return save.cpu_seconds + std::max(0.0, save.seconds - seconds_to_fence); }

constexpr double kOldWeight = 0.7;  // of what was measured before

void blend(std::optional<double>& known, double now) { known = known ? kOldWeight * *known + (1 - kOldWeight) * now : now; }

void blend(std::optional<SaveCost>& known, const SaveCost& now) {
    if (known) {
        known->seconds = kOldWeight * known->seconds + (1 - kOldWeight) * now.seconds;
        known->cpu_seconds = kOldWeight * known->cpu_seconds + (1 - kOldWeight) * now.cpu_seconds;
    } else {
        known = now;
    }
}

std::string milliseconds_of(double seconds) { return fmt::format("{:.1f} ms", seconds * 1000); }

CopyChoice choose_by_cost(const CopyMeasurements& measured) {
    const double to_fence = *measured.seconds_to_fence;
    const double lazy = cost(*measured.lazy, to_fence);
    const double straight = cost(*measured.zero_copy, to_fence);
    const bool was_straight = measured.before == CopyMode::ZeroCopy;
    const bool is_straight = was_straight ? straight * kClearly <= lazy : straight <= lazy * kClearly;
    if (is_straight) {
        return {CopyMode::ZeroCopy, fmt::format("written from where it lies: that costs the training {}, a copy {}", milliseconds_of(straight), milliseconds_of(lazy)), true};
    }
    return {CopyMode::Lazy, fmt::format("copied beside the training: that costs it {}, writing from where the state lies {}", milliseconds_of(lazy), milliseconds_of(straight)), true};
}

}  // namespace

CopyChoice choose_mode(const CopyMeasurements& measured) {
    if (!measured.is_fenced) return {CopyMode::Blocking, "copied at once: the state may change as soon as save() returns (no fence)", false};
    const double share = measured.bytes == 0 ? 0 : static_cast<double>(measured.straight_bytes) / static_cast<double>(measured.bytes);
    if (measured.outlives) return {CopyMode::Lazy, "copied beside the training: the copy is kept in memory for the next attempt", true};
    if (measured.wish == CopyWish::Copy) return {CopyMode::Lazy, "copied beside the training, as GANGLINE_CHECKPOINT_COPY says", true};
    if (measured.wish == CopyWish::Straight) return {CopyMode::ZeroCopy, fmt::format("written from where it lies, as GANGLINE_CHECKPOINT_COPY says ({:.0f} % of the bytes)", share * 100), true};
    if (share < kLeastStraight) {
        return {CopyMode::Lazy, fmt::format("copied beside the training: only {:.0f} % of the bytes lie as the disk can take them (large tensors at multiples of 4096)", share * 100), true};
    }
    if (!measured.lazy || !measured.write_seconds || !measured.seconds_to_fence) return {CopyMode::Lazy, "copied beside the training: nothing is measured yet", false};
    const double least = kMargin * *measured.write_seconds;
    if (least > *measured.seconds_to_fence) {
        return {CopyMode::Lazy, fmt::format("copied beside the training: the disk needs {}, the fence comes after {}", milliseconds_of(*measured.write_seconds), milliseconds_of(*measured.seconds_to_fence)), true};
    }
    if (!measured.zero_copy) return {CopyMode::ZeroCopy, "written from where it lies: to be measured", false};
    return choose_by_cost(measured);
}

void SaveMeter::begun(CopyMode mode, TimePoint at) {
    const std::lock_guard lock(mutex_);
    mode_ = mode;
    begun_ = at;
    copied_.reset();
    written_.reset();
    fenced_.reset();
    cpu_ = Duration{0};
}

void SaveMeter::copied(TimePoint at) {
    const std::lock_guard lock(mutex_);
    copied_ = at;
}

void SaveMeter::written(TimePoint at) {
    const std::lock_guard lock(mutex_);
    written_ = at;
}

void SaveMeter::fenced(TimePoint at) {
    const std::lock_guard lock(mutex_);
    if (!fenced_) fenced_ = at;
}

void SaveMeter::took(Duration cpu) {
    const std::lock_guard lock(mutex_);
    cpu_ += cpu;
}

// A save that failed says nothing.
CopyMeasurements SaveMeter::ended() {
    const std::lock_guard lock(mutex_);
    if (mode_ == CopyMode::Blocking || !copied_ || !written_) return known_;
    if (fenced_) blend(known_.seconds_to_fence, to_seconds(*fenced_ - begun_));
    blend(known_.write_seconds, to_seconds(*written_ - begun_));
    const TimePoint free = mode_ == CopyMode::ZeroCopy ? *written_ : *copied_;
    blend(mode_ == CopyMode::ZeroCopy ? known_.zero_copy : known_.lazy, SaveCost{to_seconds(free - begun_), to_seconds(cpu_)});
    known_.before = mode_;
    copied_.reset();  // once
    return known_;
}

}  // namespace gangline
