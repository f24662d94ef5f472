#pragma once
// How often to save, and where: so often that lost work and the saves' own cost together are least, for each tier by the failures that need it.
//
//   T = sqrt(2 C M)      C: what such a save costs the training, measured    M: mean time between the failures that this tier is for
//
//   memory   the copy in the keeper's memory serves: 79 % of the failures; not when its node is gone or out of reach
//   disk     those that memory does not survive; all of them, where no keeper holds the snapshots
//
// within bounds: a save costs at most 1 % of the time, copies run for a tenth of it at most, the disk is busy half of it at most, and no more than half
// an hour is ever at stake.
// Source: Young (1974), first order, one level each. The rate is a Gamma prior (6.5 failures per 1,000 node-days: Meta RSC-1) updated with what the
// cluster has seen, which the coordinator tells. The split is that of Llama 3's 419 unexpected interruptions (arXiv 2407.21783, Table 5): 88 were of
// host, network, storage or maintenance, and may take a node's memory along; of the others (GPUs, software) it survives.
// Pure: the caller brings the clock.

#include <chrono>
#include <optional>
#include <string>

#include "base/time.h"
#include "runner/worker/gang.h"

namespace gangline {

class SaveInterval {
  public:
    struct Tiers {
        bool may_use_memory = false;  // keepers are not switched off
        bool has_replicas = false;    // each snapshot lies on another node, too
    };
    // `mean_between_failures`: of this gang.
    SaveInterval(Duration mean_between_failures, TimePoint now, Tiers tiers) : mean_(mean_between_failures), tiers_(tiers), last_(now), last_on_disk_(now) {}

    // The tier that a save is due for; the first one is always on disk.
    std::optional<SaveTier> due(TimePoint now) const;
    void begun(SaveTier tier, TimePoint now);
    // What the last save on disk cost: the training waited for `stall`, and it was durable `persist` after it began.
    void measured(Duration stall, Duration persist);
    // The last one in memory: its copy was whole `copy` after it began.
    void measured_in_memory(Duration stall, Duration copy);
    // Whether all ranks' keepers held the last save: else the next one is on disk, and as often as all failures ask for.
    void memory_holds(bool holds) { memory_holds_ = holds; }
    // Whether each of this rank's snapshots comes to lie on another node.
    void replicas_hold(bool hold) { tiers_.has_replicas = hold; }
    bool is_measured() const { return is_measured_; }
    bool uses_memory() const;  // where the disk is as quick, memory alone gains nothing
    Duration interval(SaveTier tier) const;
    // "every 363 s: a failure is expected each 38 d, a save stalls the training 20 ms and is on disk after 1.2 s", or
    // "in memory every 12 s: ...; on disk every 360 s: ..."
    std::string reason() const;

  private:
    struct Choice {
        double seconds = 0;
        const char* bound = "";  // what made it longer or shorter than Young's
    };
    Choice choose(SaveTier tier) const { return choose(tier, uses_memory()); }
    Choice choose(SaveTier tier, bool both) const;
    bool has_memory() const { return tiers_.may_use_memory && memory_holds_; }
    double mean_s(SaveTier tier, bool both) const;
    Duration memory_stall() const { return is_measured_in_memory_ ? memory_stall_ : stall_; }  // the copy is the same

    Duration mean_;
    Tiers tiers_;
    TimePoint last_;          // of either tier
    TimePoint last_on_disk_;
    bool has_begun_ = false;
    bool memory_holds_ = true;
    bool is_measured_ = false;
    bool is_measured_in_memory_ = false;
    Duration stall_ = milliseconds(10);    // until one is measured
    Duration persist_ = milliseconds(500);
    Duration memory_stall_{0};
    Duration copy_{0};
};

}  // namespace gangline
