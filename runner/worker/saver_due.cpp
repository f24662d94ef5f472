// When to save and where to: the saver's second part. Rank 0 decides for all.
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "runner/worker/mail.h"
#include "runner/worker/saver.h"

namespace gangline {
namespace {

constexpr double kLetterS = 0.5;  // a letter from rank 0 has reached every rank by then
constexpr Duration kReplicaLimit = seconds(30);

}  // namespace

// So many steps that a letter reaches every rank before the first of them is over.
std::uint64_t Saver::steps_ahead(std::uint64_t step, TimePoint at) {
    if (asked_ && step > asked_->first) {
        const double one_s = to_seconds(at - asked_->second) / static_cast<double>(step - asked_->first);
        step_s_ = step_s_ == 0 ? one_s : 0.8 * step_s_ + 0.2 * one_s;
    }
    asked_ = {step, at};
    if (place_.size == 1) return 0;
    return static_cast<std::uint64_t>(std::clamp(std::ceil(kLetterS / std::max(step_s_, 1e-6)), 2.0, 10'000.0));
}

// Some rank may still be writing. Under the mutex.
bool Saver::is_writing() const { return job_ || (!begun_.empty() && (!written_ || begun_.rbegin()->first > *written_)); }

// The last snapshot's copy is on its way to another node: a newer one would take its place before it is whole there. Under the mutex.
bool Saver::is_replica_due(TimePoint at) const {
    return replicated_ && told_ && *replicated_ < *told_ && in_memory_ && at - in_memory_->begun < kReplicaLimit;
}

// From now on this node may be lost without loss.
void Saver::replicated(std::uint64_t step) {
    {
        const std::lock_guard lock(mutex_);
        replicated_ = step;
    }
    (void)send_({WorkerKind::Replica, 0, step, place_.attempt, {}});
}

// Before a stop once more, on disk. Otherwise only when nothing is on its way to disk: the training would wait for that. Under the mutex.
std::optional<SaveTier> Saver::choose_tier(TimePoint at, bool is_stopping) {
    if (is_stopping && !std::exchange(has_announced_last_, true)) return SaveTier::Disk;
    interval_.replicas_hold(replicated_ && *replicated_ >= told_before_.value_or(0));
    if (is_writing()) return std::nullopt;
    const auto tier = interval_.due(at);
    if (tier == SaveTier::Memory && (is_stopping || is_replica_due(at))) return std::nullopt;
    return tier;
}

bool Saver::is_due(std::uint64_t step, bool is_stopping) {
    const TimePoint at = now().steady;
    std::optional<At> announced, missed;
    std::string why;
    if (place_.is_alone && place_.rank != 0 && !std::exchange(has_said_here_, true)) {
        (void)mail(0, step, std::string(1, static_cast<char>(Mail::Here)));  // rank 0 can write to whoever has written to it
    }
    {
        const std::lock_guard lock(mutex_);
        const std::uint64_t ahead = steps_ahead(step, at);
        if (announced_ && step >= announced_->step) {
            const At due = *std::exchange(announced_, std::nullopt);
            if (step == due.step) {
                interval_.begun(due.tier, at);
                due_ = due;
                return true;
            }
            missed = due;
        } else {
            if (place_.rank != 0 || announced_) return false;
            const auto tier = choose_tier(at, is_stopping);
            if (!tier) return false;
            if (interval_.is_measured() && !std::exchange(has_said_why_, true)) why = "saves are made " + interval_.reason();
            if (ahead == 0) {
                interval_.begun(*tier, at);
                due_ = At{step, *tier};
            } else {
                announced_ = announced = At{step + ahead, *tier};
            }
        }
    }
    if (missed) {
        tell_missed(*missed);
        return false;
    }
    if (!why.empty()) fmt::print(stderr, "gangline: {}\n", why);
    if (!announced) return true;
    const std::string letter{static_cast<char>(Mail::SaveAt), announced->tier == SaveTier::Memory ? 'M' : 'D'};
    for (std::uint32_t rank = 1; rank < place_.size; ++rank) (void)mail(rank, announced->step, letter);
    return false;
}

void Saver::hear_save_at(const At& at) {
    {
        const std::lock_guard lock(mutex_);
        if (!asked_ || asked_->first <= at.step) {
            announced_ = at;
            return;
        }
    }
    tell_missed(at);
}

// A letter that was held up for longer than the steps ahead: rank 0 would wait for a shard that never comes, and save nothing meanwhile.
void Saver::tell_missed(const At& at) {
    if (at.tier == SaveTier::Disk) report_failure(at.step, Error{Code::Unavailable, fmt::format("it heard too late that step {} was to be saved", at.step)});
}

void Saver::stalled(Duration time) {
    const std::lock_guard lock(mutex_);
    if (in_memory_) {
        in_memory_->stall += time;
    } else if (const auto last = begun_.rbegin(); last != begun_.rend() && last->first == last_step_) {
        last->second.stall += time;
    }
}

std::string Saver::interval_reason() {
    const std::lock_guard lock(mutex_);
    return interval_.reason();
}

// ---- saves in memory alone

// What the last one has cost is known when the next save begins.
void Saver::note_memory_cost() {
    const std::lock_guard lock(mutex_);
    if (in_memory_ && in_memory_->copy) interval_.measured_in_memory(in_memory_->stall, *in_memory_->copy);
    in_memory_.reset();
}

// A snapshot that not all ranks have is of no use: until the next save on disk there are no others. What a keeper that is gone has held is lost, and the
// runner is not to start from it.
void Saver::tell_not_held(std::uint64_t step) {
    if (!may_use_memory()) return;
    bool is_lost = false;
    if (!memory_.has_keeper()) {
        const std::lock_guard lock(mutex_);
        is_lost = std::exchange(told_, std::nullopt).has_value();
    }
    if (is_lost) (void)send_({WorkerKind::Snapshot, 0, 0, place_.attempt, {}});
    (void)mail(0, step, std::string(1, static_cast<char>(Mail::NotHeld)));
}

// Rank 0.
void Saver::hear_not_held(std::uint64_t step) {
    const std::lock_guard lock(mutex_);
    not_held_ = std::max(not_held_.value_or(step), step);
    if (!begun_on_disk_ || *not_held_ >= *begun_on_disk_) interval_.memory_holds(false);
}

void Saver::give_up_memory() {
    std::array<std::uint64_t, 2> kept{};
    {
        const std::lock_guard lock(mutex_);
        kept = std::exchange(kept_, kept);
        told_.reset();
    }
    if (kept.back() == 0) return;
    (void)send_({WorkerKind::Snapshot, 0, 0, place_.attempt, {}});
    for (const std::uint64_t step : kept) {
        if (step != 0) memory_.give_up(step);
    }
}

}  // namespace gangline
