#include "runner/worker/commit_loop.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/quiet_thread.h"
#include "checkpoint/view.h"

namespace gangline {

CommitLoop::CommitLoop(const Place& place, const checkpoint::Store& store, Outlets outlets)
    : place_(place), store_(store), outlets_(std::move(outlets)), committer_({.world = place.size, .attempt = place.attempt}) {
    if (place_.scrub_mib_s != 0) scrub_loop_ = std::make_unique<ScrubLoop>(place_, store_, outlets_.tainted);
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
        if (events_.empty() && committer_.is_idle() && !is_stopping_) {
            if (!views_.empty()) {
                const std::uint64_t step = views_.front();
                views_.pop_front();
                lock.unlock();
                write_view(step);
                lock.lock();
                continue;
            }
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
        const checkpoint::Sealed& manifest = action.manifest;
        (void)outlets_.ask(action.step, {std::string(manifest.digest.begin(), manifest.digest.end()), manifest.total_bytes, manifest.metric, marks()});
    }
}

// What the coordinator cannot see: pins, and the newest checkpoint that was read back.
std::vector<MarkedCheckpoint> CommitLoop::marks() const {
    std::vector<MarkedCheckpoint> all;
    bool has_verified = false;
    const auto there = store_.published();
    for (auto id = there.rbegin(); id != there.rend(); ++id) {
        const checkpoint::Marks marks = store_.marks(*id);
        const bool is_newest_verified = marks.verified_unix_s.has_value() && !has_verified;
        has_verified |= is_newest_verified;
        if (marks.is_pinned || is_newest_verified) all.push_back({id->step, id->attempt, marks.is_pinned, is_newest_verified});
    }
    std::reverse(all.begin(), all.end());
    return all;
}

// Without a coordinator the rename is the commit.
checkpoint::CommitReply CommitLoop::decide_alone(const checkpoint::AskCoordinator& action) {
    const auto published = store_.publish(id_of(action.step), action.manifest.digest);
    if (!published) return {action.step, false, published.error().message, {}, 0};
    return {action.step, true, "", kept_alone(), place_.rule.every};
}

std::vector<checkpoint::CheckpointId> CommitLoop::kept_alone() {
    const auto there = store_.published();
    std::vector<KeptCheckpoint> all;
    for (const checkpoint::CheckpointId& id : there) {
        if (!metrics_.contains(id)) {
            if (const auto found = store_.open_published(id)) metrics_[id] = found->manifest().metric;
        }
        const auto good = metrics_.find(id);
        const checkpoint::Marks marks = store_.marks(id);
        all.push_back({.step = id.step,
                       .metric = good != metrics_.end() ? good->second : std::nullopt,
                       .is_damaged = good == metrics_.end(),
                       .is_verified = marks.verified_unix_s.has_value(),
                       .is_pinned = marks.is_pinned});
    }
    std::erase_if(metrics_, [&](const auto& known) { return !std::binary_search(there.begin(), there.end(), known.first); });
    const std::vector<Needs> needs = needs_of(all, place_.rule);
    std::vector<checkpoint::CheckpointId> keep;
    for (std::size_t i = 0; i < there.size(); ++i) {
        if (needs[i].any()) keep.push_back(there[i]);
    }
    return keep;
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
    if (!std::exchange(has_written_rule_, true)) (void)store_.write_rule(place_.rule);
    const auto stays = [&](const checkpoint::CheckpointId& id) {
        const bool is_for_ever = action.keep_every != 0 && id.step % action.keep_every == 0;
        return id == id_of(action.step) || is_for_ever || std::find(action.keep.begin(), action.keep.end(), id) != action.keep.end() || store_.marks(id).is_pinned;
    };
    const auto nothing_is_read = scrub_loop_ != nullptr ? scrub_loop_->let_go(stays) : std::unique_lock<std::mutex>();
    const std::string problems = store_.delete_old({place_.job, id_of(action.step), action.keep, place_.recycles, action.keep_every});
    if (!problems.empty()) outlets_.complain(problems);
}

void CommitLoop::perform_one(const checkpoint::WriteView& action) {
    if (place_.writes_views && unpublished_ != action.step) views_.push_back(action.step);
}

// A checkpoint that is gone already needs none.
void CommitLoop::write_view(std::uint64_t step) {
    const auto written = checkpoint::write_view(store_, id_of(step));
    if (!written && written.error().code != Code::NotFound) outlets_.complain(fmt::format("view.h5 of step {} was not written: {}", step, written.error().message));
}

}  // namespace gangline
