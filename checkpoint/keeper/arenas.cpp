#include "checkpoint/keeper/arenas.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

namespace gangline::checkpoint {
namespace {

constexpr std::size_t kSlotsOfARank = 2;

bool is_newer(const SnapshotId& a, const SnapshotId& b) { return std::tie(a.attempt, a.step) > std::tie(b.attempt, b.step); }

}  // namespace

Arenas::Given Arenas::want(LineNumber line, std::uint32_t rank, std::uint32_t attempt, std::uint64_t size, std::uint64_t budget, bool is_replica) {
    Given given;
    std::optional<SnapshotId> newest;
    for (const auto& [number, slot] : slots_) {
        if (slot.rank == rank && slot.state == State::Whole && (!newest || is_newer(slot.holds, *newest))) newest = slot.holds;
    }
    // What may be written over, the emptiest and oldest first; what is too small for this rank now is given back.
    std::vector<SlotNumber> usable;
    std::optional<SlotNumber> being_sent;
    std::size_t of_rank = 0;
    for (const auto& [number, slot] : slots_) {
        if (slot.rank != rank) continue;
        ++of_rank;
        const bool is_anothers = slot.state == State::Filling && slot.line != 0 && slot.line != line;
        if (!slot.is_free() || is_anothers || (slot.state == State::Whole && slot.holds == *newest)) continue;
        if (slot.size < size) {
            given.dropped.push_back(number);
            --of_rank;
        } else if (slot.is_sending) {
            being_sent = number;
        } else {
            usable.push_back(number);
        }
    }
    for (const SlotNumber number : given.dropped) slots_.erase(number);
    const bool is_full = bytes() + size > budget || (is_replica && replica_bytes() + size > budget / 2);
    if (usable.empty() && being_sent && (is_full || of_rank > kSlotsOfARank)) usable.push_back(*being_sent);  // its copy will not have its checksums
    const auto best = std::min_element(usable.begin(), usable.end(), [&](SlotNumber a, SlotNumber b) {
        const Slot& one = slots_.at(a);
        const Slot& other = slots_.at(b);
        if ((one.state == State::Whole) != (other.state == State::Whole)) return other.state == State::Whole;
        return is_newer(other.holds, one.holds);
    });
    if (best != usable.end()) {
        given.slot = *best;
    } else if (of_rank > kSlotsOfARank) {  // one more than usual while an earlier attempt's is still being read or written
        given.refused = fmt::format("rank {}'s snapshots are still being read or written", rank);
        return given;
    } else if (is_full) {
        given.refused = is_replica ? fmt::format("replicas would need {} MiB here, the budget is {} MiB", (replica_bytes() + size) >> 20, budget >> 21)
                                   : fmt::format("snapshots would need {} MiB here, the budget is {} MiB", (bytes() + size) >> 20, budget >> 20);
        return given;
    } else {
        given.slot = next_++;
        given.is_new = true;
        slots_[given.slot].size = size;
    }
    Slot& slot = slots_.at(given.slot);
    slot.rank = rank;
    slot.state = State::Filling;
    slot.holds = {rank, attempt, 0};
    slot.is_durable = false;
    slot.is_replica = is_replica;
    slot.is_sending = false;
    slot.line = line;
    return given;
}

bool Arenas::whole(LineNumber line, SlotNumber number, std::uint64_t step, std::uint64_t image_size, std::uint64_t part_size) {
    const auto found = slots_.find(number);
    if (found == slots_.end()) return false;
    Slot& slot = found->second;
    if (slot.line != line || slot.state != State::Filling || image_size > slot.size || part_size > slot.size - image_size) return false;
    slot.state = State::Whole;
    slot.holds.step = step;
    slot.image_size = image_size;
    slot.part_size = part_size;
    return true;
}

std::vector<SlotNumber> Arenas::durable(LineNumber line, const SnapshotId& id) {
    for (auto& [number, slot] : slots_) {
        if (slot.line == line && slot.state == State::Whole && slot.holds == id) slot.is_durable = true;
    }
    std::vector<SlotNumber> dropped;
    for (const auto& [number, slot] : slots_) {
        if (slot.line == 0 && slot.holds.attempt < id.attempt && slot.is_free()) {
            const bool has_come_back = std::any_of(slots_.begin(), slots_.end(), [&](const auto& one) { return one.second.rank == slot.rank && one.second.line != 0; });
            if (!has_come_back) dropped.push_back(number);
        }
    }
    for (const SlotNumber number : dropped) slots_.erase(number);
    return dropped;
}

std::optional<SlotNumber> Arenas::find(LineNumber line, const SnapshotId& id) {
    for (auto& [number, slot] : slots_) {
        if (slot.state != State::Whole || !(slot.holds == id)) continue;
        slot.pins.push_back(line);
        return number;
    }
    return std::nullopt;
}

void Arenas::done(LineNumber line) {
    for (auto& [number, slot] : slots_) std::erase(slot.pins, line);
}

std::vector<SlotNumber> Arenas::closed(LineNumber line) {
    done(line);
    std::vector<SlotNumber> left;
    for (auto& [number, slot] : slots_) {
        if (slot.line != line) continue;
        slot.line = 0;
        if (slot.state == State::Filling) slot.state = State::Empty;
        if (slot.state != State::Whole || slot.is_durable || slot.is_persisting) continue;
        slot.is_persisting = true;
        left.push_back(number);
    }
    std::sort(left.begin(), left.end(), [&](SlotNumber a, SlotNumber b) { return is_newer(slots_.at(a).holds, slots_.at(b).holds); });
    return left;
}

void Arenas::replicas_closed(LineNumber line, bool is_lost) {
    done(line);
    for (auto& [number, slot] : slots_) {
        if (slot.line != line) continue;
        slot.line = 0;
        if (slot.state == State::Filling) slot.state = State::Empty;
        if (!is_lost) slot.is_durable = true;
    }
}

bool Arenas::begin_persisting(SlotNumber number) {
    const auto found = slots_.find(number);
    if (found == slots_.end()) return false;
    Slot& slot = found->second;
    if (slot.line != 0 || slot.state != State::Whole || slot.is_durable || slot.is_persisting) return false;
    slot.is_persisting = true;
    return true;
}

std::vector<SlotNumber> Arenas::all() const {
    std::vector<SlotNumber> numbers;
    for (const auto& [number, slot] : slots_) numbers.push_back(number);
    return numbers;
}

void Arenas::sending(SlotNumber number, bool is_sending) {
    if (const auto found = slots_.find(number); found != slots_.end()) found->second.is_sending = is_sending;
}

void Arenas::persisted(SlotNumber number, bool is_durable) {
    const auto found = slots_.find(number);
    if (found == slots_.end()) return;
    found->second.is_persisting = false;
    found->second.is_durable = is_durable;
}

const Arenas::Slot* Arenas::at(SlotNumber number) const {
    const auto found = slots_.find(number);
    return found == slots_.end() ? nullptr : &found->second;
}

bool Arenas::is_persisting() const {
    return std::any_of(slots_.begin(), slots_.end(), [](const auto& one) { return one.second.is_persisting; });
}

std::uint64_t Arenas::bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [number, slot] : slots_) sum += slot.size;
    return sum;
}

std::uint64_t Arenas::replica_bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [number, slot] : slots_) sum += slot.is_replica ? slot.size : 0;
    return sum;
}

}  // namespace gangline::checkpoint
