#include "runner/worker/interval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"

namespace gangline {
namespace {

constexpr double kMostOfTime = 0.01;     // that saves may cost
constexpr double kMostOfDisk = 0.5;
constexpr double kMostOfCopying = 0.1;   // copies that nobody waits for take memory's speed and processors all the same
constexpr double kMostAtStakeS = 1800;
constexpr double kLeastInMemoryS = 1;    // a rank whose keeper is gone is heard of before the next
constexpr double kFirstS = 10;           // then each tier's cost is known, and there is something on disk
constexpr double kOldWeight = 0.7;       // of what was measured before

// Of Llama 3's interruptions, by cause: GPU 268, software 63; switch or cable 35, host maintenance 32, NIC 7, SSD 3, power 3, chassis 2, IO board 2,
// CPU 2, system memory 2.
constexpr double kAll = 419;
constexpr double kTakesTheMemory = 88 / kAll;
// With a copy on another node it takes more than one node at once, of which no table is public: half of "switch or cable" is assumed to.
constexpr double kTakesSeveralNodes = 17.5 / kAll;

Duration blend(Duration old, Duration now, bool first) {
    return first ? now : Duration(static_cast<Duration::rep>(kOldWeight * static_cast<double>(old.count()) + (1 - kOldWeight) * static_cast<double>(now.count())));
}

Duration of_seconds(double seconds) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)); }

constexpr Duration kLeastStall = milliseconds(1) / 10;

}  // namespace

void SaveInterval::measured(Duration stall, Duration persist) {
    const bool first = !std::exchange(is_measured_, true);
    stall_ = blend(stall_, std::max(stall, kLeastStall), first);
    persist_ = blend(persist_, persist, first);
}

void SaveInterval::measured_in_memory(Duration stall, Duration copy) {
    const bool first = !std::exchange(is_measured_in_memory_, true);
    memory_stall_ = blend(memory_stall_, std::max(stall, kLeastStall), first);
    copy_ = blend(copy_, copy, first);
}

void SaveInterval::begun(SaveTier tier, TimePoint now) {
    last_ = now;
    has_begun_ = true;
    if (tier == SaveTier::Disk) last_on_disk_ = now;
}

std::optional<SaveTier> SaveInterval::due(TimePoint now) const {
    if (now - last_on_disk_ >= interval(SaveTier::Disk)) return SaveTier::Disk;
    if (!has_memory()) return std::nullopt;
    if (!has_begun_) return now - last_ >= std::min(interval(SaveTier::Memory), of_seconds(kFirstS)) ? std::optional(SaveTier::Disk) : std::nullopt;
    return uses_memory() && now - last_ >= interval(SaveTier::Memory) ? std::optional(SaveTier::Memory) : std::nullopt;
}

bool SaveInterval::uses_memory() const { return has_memory() && choose(SaveTier::Memory, true).seconds < choose(SaveTier::Disk, true).seconds; }

Duration SaveInterval::interval(SaveTier tier) const { return of_seconds(choose(tier).seconds); }

double SaveInterval::mean_s(SaveTier tier, bool both) const {
    if (!both) return to_seconds(mean_);
    const double needs_disk = tiers_.has_replicas ? kTakesSeveralNodes : kTakesTheMemory;
    return to_seconds(mean_) / (tier == SaveTier::Disk ? needs_disk : 1 - needs_disk);
}

SaveInterval::Choice SaveInterval::choose(SaveTier tier, bool both) const {
    const bool is_disk = tier == SaveTier::Disk;
    const double stall_s = to_seconds(is_disk ? stall_ : memory_stall());
    Choice choice{std::sqrt(2 * stall_s * mean_s(tier, both)), ""};
    if (choice.seconds > kMostAtStakeS) choice = {kMostAtStakeS, "no more than half an hour is at stake"};
    const auto at_least = [&](double least_s, const char* bound) {
        if (choice.seconds < least_s) choice = {least_s, bound};
    };
    at_least(stall_s / kMostOfTime, "saves cost 1 % of the time at most");
    if (is_disk) at_least(to_seconds(persist_) / kMostOfDisk, "the disk is busy half of the time at most");
    if (!is_disk) at_least(to_seconds(copy_) / kMostOfCopying, "copies take a tenth of the time at most");
    if (!is_disk) at_least(kLeastInMemoryS, "a second at least");
    return choice;
}

std::string SaveInterval::reason() const {
    const auto every = [&](SaveTier tier) { return human_duration(choose(tier).seconds); };
    const auto expected = [&](SaveTier tier) { return human_duration(mean_s(tier, uses_memory())); };
    const auto because = [&](SaveTier tier) {
        const std::string bound = choose(tier).bound;
        return bound.empty() ? bound : " (" + bound + ")";
    };
    const std::string on_disk = fmt::format("a save stalls the training {:.1f} ms and is on disk after {}{}", to_seconds(stall_) * 1000, human_duration(to_seconds(persist_)), because(SaveTier::Disk));
    if (!uses_memory()) return fmt::format("every {}: a failure is expected each {}, {}", every(SaveTier::Disk), expected(SaveTier::Disk), on_disk);
    return fmt::format("in memory every {}: a failure that memory survives is expected each {}, a copy stalls the training {:.1f} ms{}; on disk every {}: one that it does not survive each {}, {}",
                       every(SaveTier::Memory), expected(SaveTier::Memory), to_seconds(memory_stall()) * 1000, because(SaveTier::Memory), every(SaveTier::Disk), expected(SaveTier::Disk), on_disk);
}

}  // namespace gangline
