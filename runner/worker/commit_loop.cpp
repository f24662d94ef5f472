#include "runner/worker/commit_loop.h"

#include <algorithm>

#include <fmt/format.h>

#include "runner/worker/quiet_thread.h"

namespace gangline {
namespace {

constexpr std::size_t kKeptAlone = 3;

}  // namespace

CommitLoop::CommitLoop(const Place& place, const checkpoint::Store& store, Outlets outlets)
    : place_(place), store_(store), outlets_(std::move(outlets)), committer_({.world = place.size, .attempt = place.attempt}) {
    thread_ = quiet_thread([this] { run(); });
}

CommitLoop::~CommitLoop() {
    {
        const std::lock_guard lock(mutex_);
        is_stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void CommitLoop::post(checkpoint::CommitterEvent event) {
    {
        const std::lock_guard lock(mutex_);
        events_.push_back(std::move(event));
        is_idle_ = false;
    }
    changed_.notify_all();
}

bool CommitLoop::wait_idle(TimePoint limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, limit, [&] { return is_idle_; });
}

void CommitLoop::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        const auto is_ready = [&] { return is_stopping_ || !events_.empty(); };
        const auto deadline = committer_.next_deadline();
        if (events_.empty() && committer_.is_idle()) {
            is_idle_ = true;
            changed_.notify_all();
        }
        if (deadline) {
            changed_.wait_until(lock, *deadline, is_ready);
        } else {
            changed_.wait(lock, is_ready);  // until post() or the end
        }
        if (is_stopping_) return;
        checkpoint::CommitterEvent event = checkpoint::Tick{};
        if (!events_.empty()) {
            event = std::move(events_.front());
            events_.pop_front();
        }
        lock.unlock();
        for (const checkpoint::CommitterAction& action : committer_.step(event, now().steady)) {
            std::visit([this](const auto& one) { perform_one(one); }, action);
        }
        lock.lock();
    }
}

void CommitLoop::perform_one(const checkpoint::WriteManifest& action) {
    const auto sealed = store_.write_manifest(id_of(action.step), action.parts, merger_);
    if (sealed) {
        post(checkpoint::ManifestWritten{action.step, *sealed});
    } else {
        post(checkpoint::ManifestFailed{action.step, sealed.error().message});
    }
}

void CommitLoop::perform_one(const checkpoint::AskCoordinator& action) {
    if (place_.is_alone) {
        post(decide_alone(action));
    } else {
        (void)outlets_.ask(action);
    }
}

// Without a coordinator the rename is the commit.
checkpoint::CommitReply CommitLoop::decide_alone(const checkpoint::AskCoordinator& action) {
    const auto published = store_.publish(id_of(action.step), action.manifest.digest);
    if (!published) return {action.step, false, published.error().message, {}};
    auto keep = store_.published();
    if (keep.size() > kKeptAlone) keep.erase(keep.begin(), keep.end() - kKeptAlone);
    return {action.step, true, "", std::move(keep)};
}

void CommitLoop::perform_one(const checkpoint::Publish& action) {
    if (place_.is_alone) return;
    const auto published = store_.publish(id_of(action.step), action.digest);
    unpublished_ = published ? std::nullopt : std::optional(action.step);
    if (!published) {
        outlets_.complain(fmt::format("the checkpoint of step {} is committed, but keeps its temporary name: {}", action.step,
                                      published.error().message));
    }
}

void CommitLoop::perform_one(const checkpoint::DropTemporary& action) {
    const auto dropped = store_.drop_temporary(id_of(action.step));
    if (!dropped) outlets_.complain(dropped.error().message);
}

// Not behind a publish that failed: the disk is not to be trusted with less.
void CommitLoop::perform_one(const checkpoint::DeleteOld& action) {
    if (unpublished_ == action.step) return;
    const std::string problems = store_.delete_old({place_.job, id_of(action.step), action.keep, place_.recycles});
    if (!problems.empty()) outlets_.complain(problems);
}

}  // namespace gangline
