#pragma once
// The shell round checkpoint::Scrubber, on rank 0: a thread that reads the job's checkpoints back when the machine has nothing better to do.
//
// Thread rule: the callback runs on the loop's thread.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "checkpoint/scrubber.h"
#include "runner/worker/place.h"

namespace gangline {

class ScrubLoop {
  public:
    // Told before the checkpoint is set aside.
    using Tell = std::function<void(const checkpoint::CheckpointId& id, const std::string& what)>;
    ScrubLoop(const Place& place, const checkpoint::Store& store, Tell tell);
    ~ScrubLoop();  // behind the block under way
    // While what it returns lives nothing is read, and nothing but what stays is held open; unless the disk is so busy that the read under way is
    // waited for no longer. From any thread.
    [[nodiscard]] std::unique_lock<std::mutex> let_go(const std::function<bool(const checkpoint::CheckpointId&)>& stays);

  private:
    void run();

    const checkpoint::Store& store_;
    Tell tell_;
    checkpoint::Scrubber scrubber_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_stepping_ = false;
    bool is_stopping_ = false;
    std::thread thread_;
};

}  // namespace gangline
