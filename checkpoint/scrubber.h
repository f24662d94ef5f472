#pragma once
// Reads published checkpoints back from the disk, a mebibyte at a time, so that one whose bytes have changed is known before it is needed.
//
//   nothing to do --one that was never read back, or was so longest ago--> Reading --its last block--> verified (marks.h)
//        ^                                                                    |--a block that is not what was written--> tainted
//        +---------------------- deleted meanwhile, or done ------------------+
//
// Of those that were never read back the newest and the oldest take turns: the one is what the next restore reads, and where saves come faster
// than they can be read back the others would never be.
// A step reads a mebibyte of blocks at most (one block where these are larger) and says when the next may come: at most so many bytes a second.
// What is wrong is looked at again before it counts. While one is read nobody deletes it (a shared flock). It names; telling and setting aside are its caller's.
// Thread rule: one thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/time.h"
#include "checkpoint/store.h"

namespace gangline::checkpoint {

struct ScrubOptions {
    std::uint64_t job = 0;  // others' checkpoints in the folder are left alone
    std::uint64_t bytes_per_s = 32u << 20;
    Duration rest = seconds(10);              // between two looks for something to do
    Duration again = seconds(7 * 86'400);     // after which what was read back is read once more
};

class Scrubber {
  public:
    struct Tainted {
        CheckpointId id;
        std::string what;
    };
    struct Outcome {
        std::uint64_t bytes = 0;  // that were read
        std::optional<CheckpointId> verified;
        std::optional<Tainted> tainted;
        TimePoint next;           // not before
    };
    Scrubber(const Store& store, const ScrubOptions& options);
    ~Scrubber();
    Outcome step(const Now& now);
    // Leaves the checkpoint that is being read, unless it stays: it is to be deleted.
    void leave_unless(const std::function<bool(const CheckpointId&)>& stays);

  private:
    struct Reading;
    std::optional<CheckpointId> choose(std::int64_t unix_s);
    void begin(Outcome& outcome, std::int64_t unix_s);
    void read_on(Outcome& outcome, const Now& now);
    void found(Outcome& outcome, std::string what);

    const Store& store_;
    ScrubOptions options_;
    std::set<CheckpointId> passed_over_;  // tainted, not readable by us, or of another job
    bool is_oldests_turn_ = false;
    std::unique_ptr<Reading> reading_;
};

}  // namespace gangline::checkpoint
