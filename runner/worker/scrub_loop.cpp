#include "runner/worker/scrub_loop.h"

#include <utility>

#include "base/quiet_thread.h"
#include "runner/worker/priority.h"

namespace gangline {
namespace {

constexpr seconds kLetGoLimit{1};

}  // namespace

ScrubLoop::ScrubLoop(const Place& place, const checkpoint::Store& store, Tell tell)
    : store_(store), tell_(std::move(tell)), scrubber_(store, {.job = place.job, .bytes_per_s = std::uint64_t{place.scrub_mib_s} << 20}) {
    thread_ = quiet_thread([this] { run(); });
}

ScrubLoop::~ScrubLoop() {
    {
        const std::lock_guard lock(mutex_);
        is_stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

std::unique_lock<std::mutex> ScrubLoop::let_go(const std::function<bool(const checkpoint::CheckpointId&)>& stays) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kLetGoLimit, [&] { return !is_stepping_; })) scrubber_.leave_unless(stays);
    return lock;
}

void ScrubLoop::run() {
    only_when_idle();
    std::unique_lock lock(mutex_);
    while (!is_stopping_) {
        is_stepping_ = true;
        lock.unlock();
        const checkpoint::Scrubber::Outcome outcome = scrubber_.step(now());
        if (outcome.tainted) {
            tell_(outcome.tainted->id, outcome.tainted->what);
            if (auto aside = store_.set_aside(outcome.tainted->id); !aside) tell_(outcome.tainted->id, aside.error().message);
        }
        lock.lock();
        is_stepping_ = false;
        changed_.notify_all();
        changed_.wait_until(lock, outcome.next, [&] { return is_stopping_; });
    }
}

}  // namespace gangline
