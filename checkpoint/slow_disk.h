#pragma once
// The disk, with at most so many bytes of shards a second: for disks that others need meanwhile.
//
// Thread rule: as Disk; lift() from any thread.

#include <condition_variable>
#include <mutex>

#include "checkpoint/disk.h"
#include "checkpoint/token_bucket.h"

namespace gangline::checkpoint {

class SlowDisk : public Disk {
  public:
    explicit SlowDisk(std::uint64_t bytes_per_s);
    std::unique_ptr<BlockWriter> writer(int fd, bool is_direct) override;
    // No limit from now on: somebody waits for the writing to end. Whoever sleeps goes on at once.
    void lift();

  private:
    class Writer;
    void wait_for(std::uint64_t bytes);

    std::mutex mutex_;
    std::condition_variable changed_;
    TokenBucket bucket_;
    bool is_lifted_ = false;
};

}  // namespace gangline::checkpoint
