#include "checkpoint/slow_disk.h"

#include <algorithm>
#include <utility>

#include "base/process.h"
#include "checkpoint/manifest.h"

namespace gangline::checkpoint {

class SlowDisk::Writer : public BlockWriter {
  public:
    Writer(SlowDisk& disk, std::unique_ptr<BlockWriter> below) : disk_(disk), below_(std::move(below)) {}
    Result<void> write(std::uint64_t place, const char* bytes, std::size_t size) override {
        disk_.wait_for(size);
        return below_->write(place, bytes, size);
    }
    Result<void> finish() override { return below_->finish(); }

  private:
    SlowDisk& disk_;
    std::unique_ptr<BlockWriter> below_;
};

SlowDisk::SlowDisk(std::uint64_t bytes_per_s) : bucket_(bytes_per_s, std::max(kBlockBytes, bytes_per_s / 16)) {}

std::unique_ptr<BlockWriter> SlowDisk::writer(int fd, bool is_direct) { return std::make_unique<Writer>(*this, Disk::writer(fd, is_direct)); }

void SlowDisk::lift() {
    {
        const std::lock_guard lock(mutex_);
        is_lifted_ = true;
    }
    changed_.notify_all();
}

void SlowDisk::wait_for(std::uint64_t bytes) {
    std::unique_lock lock(mutex_);
    if (is_lifted_) return;
    const TimePoint at = now().steady;
    const Duration wait = bucket_.take(bytes, at);
    changed_.wait_until(lock, at + wait, [&] { return is_lifted_; });
}

}  // namespace gangline::checkpoint
