#pragma once
// Brings snapshots of dead ranks to disk, one after the other, on a thread of low priority: the shard's file and its part of the manifest, in the
// temporary folder of their own attempt. Nobody trusts them there until the coordinator commits their step.
//
// Thread rule: all calls from one thread.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "base/handle.h"
#include "base/result.h"
#include "checkpoint/keeper/arenas.h"

namespace gangline::checkpoint {

struct ToPersist {
    SlotNumber slot = 0;
    Fd memory;                    // the image, and behind it the part
    std::uint64_t image_size = 0;
    std::uint64_t part_size = 0;
    std::string folder;           // of the job's checkpoints
};

class Persister {
  public:
    using Done = std::function<void(SlotNumber slot, const Result<void>& result)>;  // on the thread
    explicit Persister(Done done);
    ~Persister();  // what is queued is not begun any more
    void post(ToPersist work);

  private:
    void run();
    static Result<void> persist(const ToPersist& work);

    Done done_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<ToPersist> queue_;
    bool is_stopping_ = false;
    std::thread thread_;
};

}  // namespace gangline::checkpoint
