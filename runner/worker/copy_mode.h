#pragma once
// What becomes of the state while it is saved: copied at once, copied beside the training, or written straight from where it lies.
//
//   cost of a save = processor time that its threads take from the training + what the training waits at the fence
//
//   Blocking   save() returns when all is copied: the state may change at once
//   Lazy       threads copy while the program computes; fence() waits for the rest
//   ZeroCopy   the disk takes the tensors' own memory; fence() waits for the disk
//
// Which of the last two costs less depends on the machine: whether processors are idle, how fast the disk is, and what pages the tensors lie in
// (a disk takes small pages with more ado than a copy costs). So both are measured. Pure: the caller measures.

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "base/time.h"

namespace gangline {

enum class CopyMode : std::uint8_t { Blocking, Lazy, ZeroCopy };

// What the program asks for (GANGLINE_CHECKPOINT_COPY).
enum class CopyWish : std::uint8_t { Auto, Copy, Straight };

struct SaveCost {
    double seconds = 0;      // from the save's beginning until the state may be changed, if nobody helps
    double cpu_seconds = 0;  // of the threads that save
};

struct CopyMeasurements {
    CopyWish wish = CopyWish::Auto;
    bool is_fenced = false;       // the program will call fence() before it changes the state
    bool outlives = false;        // the copy is kept for the next attempt (by a keeper): it is needed
    std::uint64_t bytes = 0;      // of the shard
    std::uint64_t straight_bytes = 0;          // that the disk can take from where they lie
    std::optional<double> seconds_to_fence;    // from save() to fence(), lately
    std::optional<double> write_seconds;       // until the disk had all of it, lately
    std::optional<SaveCost> lazy;
    std::optional<SaveCost> zero_copy;
    CopyMode before = CopyMode::Lazy;          // of the last fenced save
};

struct CopyChoice {
    CopyMode mode = CopyMode::Blocking;
    std::string reason;
    bool is_measured = false;  // by what was measured, not for want of it
};

CopyChoice choose_mode(const CopyMeasurements& measured);

// What saves take, as they go. Thread rule: any thread; the caller brings the clocks.
class SaveMeter {
  public:
    void begun(CopyMode mode, TimePoint at);
    void copied(TimePoint at);   // or read, without a copy
    void written(TimePoint at);  // the disk has it
    void fenced(TimePoint at);   // the program came to its fence; the first time counts
    void took(Duration cpu);     // of one of the save's threads
    // All its threads have ended. What is known then, and of the saves before.
    CopyMeasurements ended();

  private:
    std::mutex mutex_;
    CopyMode mode_ = CopyMode::Blocking;
    TimePoint begun_;
    std::optional<TimePoint> copied_;
    std::optional<TimePoint> written_;
    std::optional<TimePoint> fenced_;
    Duration cpu_{0};
    CopyMeasurements known_;
};

}  // namespace gangline
