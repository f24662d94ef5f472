#include "checkpoint/committer.h"

#include <algorithm>

#include <fmt/format.h>

namespace gangline::checkpoint {

void GatherHistory::took(Duration time) {
    times_.push_back(time);
    if (times_.size() > kRemembered) times_.pop_front();
}

Duration GatherHistory::limit() const {
    if (times_.empty()) return kFirst;
    std::vector<Duration> sorted(times_.begin(), times_.end());
    std::sort(sorted.begin(), sorted.end());
    return std::clamp(4 * sorted[(sorted.size() * 99 + 99) / 100 - 1], kLeast, kMost);
}

std::vector<CommitterAction> Committer::step(const CommitterEvent& event, TimePoint now) {
    actions_.clear();
    std::visit([&](const auto& one) { on(one, now); }, event);
    advance();
    return std::move(actions_);
}

std::optional<TimePoint> Committer::next_deadline() const {
    std::optional<TimePoint> next;
    for (const auto& [step, save] : saves_) {
        std::optional<TimePoint> mine;
        if (save.state == State::Gathering) mine = save.begun + save.limit;
        if (save.state == State::Asked) mine = save.ask_next;
        if (mine && (!next || *mine < *next)) next = mine;
    }
    return next;
}

// Why what this rank says is not heard; empty when it is.
std::string Committer::stale(std::uint32_t rank, std::uint32_t attempt) const {
    if (attempt != options_.attempt) return fmt::format("rank {} speaks for attempt {}, this is attempt {}", rank, attempt, options_.attempt);
    if (rank >= options_.world) return fmt::format("rank {} is not one of {} ranks", rank, options_.world);
    return "";
}

// The save that this news is about; none when the step has ended.
Committer::Save* Committer::save_of(std::uint64_t step, TimePoint now) {
    if (step < ended_ && !saves_.contains(step)) return nullptr;
    Save& save = saves_[step];
    if (save.parts.empty()) {
        save.parts.resize(options_.world);
        save.begun = now;
        save.limit = gathers_.limit();
    }
    return save.state == State::Gathering ? &save : nullptr;
}

void Committer::on(const ShardDurable& event, TimePoint now) {
    if (std::string why = stale(event.rank, event.attempt); !why.empty()) {
        actions_.push_back(Complain{fmt::format("a shard of step {} is not used: {}", event.step, why)});
        return;
    }
    Save* save = save_of(event.step, now);
    if (save == nullptr || save->parts[event.rank]) return;  // the step has ended, or this is a repetition
    save->parts[event.rank] = event.part;
    if (++save->durable < options_.world) return;
    save->state = State::Gathered;
    gathers_.took(now - save->begun);
}

void Committer::on(const ShardFailed& event, TimePoint now) {
    if (!stale(event.rank, event.attempt).empty() || save_of(event.step, now) == nullptr) return;
    fail(event.step, fmt::format("rank {}: {}", event.rank, event.reason));
}

void Committer::on(const ManifestWritten& event, TimePoint now) {
    const auto at = saves_.find(event.step);
    if (at == saves_.end() || at->second.state != State::Writing) return;
    Save& save = at->second;
    save.state = State::Asked;
    save.manifest = event.manifest;
    save.asked = now;
    save.ask_next = now + options_.ask_again;
    actions_.push_back(AskCoordinator{event.step, event.manifest});
}

void Committer::on(const ManifestFailed& event, TimePoint) {
    const auto at = saves_.find(event.step);
    if (at != saves_.end() && at->second.state == State::Writing) fail(event.step, "the manifest: " + event.reason);
}

void Committer::on(const CommitReply& event, TimePoint) {
    const auto at = saves_.find(event.step);
    if (at == saves_.end() || at->second.state != State::Asked) return;  // an answer to a repeated request
    if (!event.accepted) {
        fail(event.step, "the coordinator refused it: " + event.reason);
        return;
    }
    actions_.push_back(Publish{event.step, at->second.manifest.digest});
    actions_.push_back(Tell{event.step, true, ""});
    actions_.push_back(DeleteOld{event.step, event.keep, event.keep_every});
    actions_.push_back(WriteView{event.step});
    end(at);
}

void Committer::on(const Tick&, TimePoint now) {
    std::vector<std::uint64_t> late;
    for (auto& [step, save] : saves_) {
        if (save.state == State::Gathering && now >= save.begun + save.limit) late.push_back(step);
        if (save.state != State::Asked || now < save.ask_next) continue;
        save.ask_next = now + options_.ask_again;
        actions_.push_back(AskCoordinator{step, save.manifest});
        if (!save.has_complained && now >= save.asked + options_.complain_after) {
            save.has_complained = true;
            actions_.push_back(Complain{fmt::format("the coordinator has not answered for {:.0f} s whether the checkpoint of step {} "
                                                    "counts; training goes on",
                                                    to_seconds(now - save.asked), step)});
        }
    }
    for (const std::uint64_t step : late) {
        const Save& save = saves_.at(step);
        gathers_.took(save.limit);
        const auto missing = std::find(save.parts.begin(), save.parts.end(), std::nullopt) - save.parts.begin();
        fail(step, fmt::format("rank {} has not written its shard within {:.0f} s ({} of {} ranks have)", missing,
                               to_seconds(save.limit), save.durable, options_.world));
    }
}

// A failed save is told to all ranks, and shown; training goes on with the checkpoint before it.
void Committer::fail(std::uint64_t step, const std::string& reason) {
    actions_.push_back(DropTemporary{step});
    actions_.push_back(Tell{step, false, reason});
    actions_.push_back(Complain{fmt::format("the checkpoint of step {} was not saved: {}", step, reason)});
    end(saves_.find(step));
}

void Committer::end(Saves::iterator at) {
    ended_ = std::max(ended_, at->first + 1);
    saves_.erase(at);
}

// Lets the newest gathered step take its turn when nothing is under way; older gathered ones give way to it.
void Committer::advance() {
    Saves::iterator newest = saves_.end();
    bool is_busy = false;
    for (auto at = saves_.begin(); at != saves_.end(); ++at) {
        is_busy = is_busy || at->second.state == State::Writing || at->second.state == State::Asked;
        if (at->second.state != State::Gathered) continue;
        if (newest != saves_.end()) {
            actions_.push_back(DropTemporary{newest->first});
            actions_.push_back(Tell{newest->first, false, fmt::format("step {} was ready before the coordinator had answered", at->first)});
            end(newest);
        }
        newest = at;
    }
    if (newest == saves_.end() || is_busy) return;
    Save& save = newest->second;
    save.state = State::Writing;
    WriteManifest write{newest->first, {}};
    for (const auto& part : save.parts) write.parts.push_back(*part);
    actions_.push_back(std::move(write));
}

}  // namespace gangline::checkpoint
