#pragma once
// How often to save: so often that lost work and the saves' own cost together are least.
//
//   T = sqrt(2 C M)      C: what a save costs the training, measured    M: mean time between failures of this gang
//
// within bounds: a save costs at most 1 % of the time, the disk is busy half of it at most, and no more than half an hour is ever at stake.
// Source: Young (1974), first order; the rate is a Gamma prior (6.5 failures per 1,000 node-days: Meta RSC-1) updated with what the cluster has
// seen, which the coordinator tells. Pure: the caller brings the clock.

#include <chrono>
#include <optional>
#include <string>

#include "base/time.h"

namespace gangline {

class SaveInterval {
  public:
    // `mean_between_failures`: of this gang.
    SaveInterval(Duration mean_between_failures, TimePoint now) : mean_(mean_between_failures), last_(now) {}

    bool is_due(TimePoint now) const { return now - last_ >= interval(); }
    void begun(TimePoint now) { last_ = now; }
    // What the last save cost: the training waited for `stall`, and it was durable `persist` after it began.
    void measured(Duration stall, Duration persist);
    Duration interval() const;
    // "every 363 s: a failure is expected each 38 d, a save stalls the training 20 ms and is on disk after 1.2 s"
    std::string reason() const;

  private:
    Duration mean_;
    TimePoint last_;
    bool is_measured_ = false;
    Duration stall_ = milliseconds(10);    // until one is measured
    Duration persist_ = milliseconds(500);
};

}  // namespace gangline
