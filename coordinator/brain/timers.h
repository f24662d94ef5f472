#pragma once
// Every wait of the brain, with its owner: at most one deadline a key, the earliest first. Pure.

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/time.h"

namespace gangline::coordinator {

enum class Wait {
    Silence,    // node: it has not spoken
    Prepare,    // job: a node has not answered Prepare
    Forked,     // job: every rank is forked, none has joined anything
    Join,       // job: some ranks have joined, some have not
    Verdict,    // job: a user's failure waits a moment for an earlier cause on another node
    Stop,       // job: a node has not proved its part gone
    Finish,     // job: every rank has exited, a node has not said GONE
    Progress,   // job: no step and no beat
    TimeLimit,  // job
    BackOff,    // job: before the next placement
    Reserved,   // job: recovering, its freed cards are kept for it
    Plan,       // nobody: a queue whose plan gets old, or a begin time that comes
};
inline constexpr Wait kLastWait = Wait::Plan;

struct WaitKey {
    Wait what = Wait::Silence;
    std::uint64_t job = 0;
    std::string node;
    auto operator<=>(const WaitKey&) const = default;
};

class Timers {
  public:
    void set(const WaitKey& key, TimePoint when) {
        clear(key);
        when_[key] = when;
        order_.insert({when, key});
    }
    bool is_set(const WaitKey& key) const { return when_.count(key) != 0; }
    TimePoint when(const WaitKey& key) const { return when_.at(key); }
    void clear(const WaitKey& key) {
        const auto found = when_.find(key);
        if (found == when_.end()) return;
        order_.erase({found->second, key});
        when_.erase(found);
    }
    void clear_job(std::uint64_t job) {
        for (int what = 0; what <= static_cast<int>(kLastWait); ++what) clear({static_cast<Wait>(what), job, {}});
    }
    std::optional<TimePoint> next() const {
        if (order_.empty()) return std::nullopt;
        return order_.begin()->first;
    }
    // Removes and returns one wait whose deadline has come.
    std::optional<WaitKey> take_due(TimePoint now) {
        if (order_.empty() || order_.begin()->first > now) return std::nullopt;
        WaitKey key = order_.begin()->second;
        clear(key);
        return key;
    }

  private:
    std::map<WaitKey, TimePoint> when_;
    std::set<std::pair<TimePoint, WaitKey>> order_;
};

}  // namespace gangline::coordinator
