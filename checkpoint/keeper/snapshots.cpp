#include "checkpoint/keeper/snapshots.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include <fmt/format.h>

#include "base/log.h"

namespace gangline::checkpoint {
namespace {

constexpr double kMostShare = 0.4;          // of the memory that the node has to give
constexpr Duration kTryAgain = seconds(30);

// Bytes that the node has to give, as the kernel reckons; 0 when it does not say.
std::uint64_t available_memory() {
    std::ifstream file("/proc/meminfo");
    std::string name;
    std::uint64_t kib = 0;
    for (std::string unit; file >> name >> kib; std::getline(file, unit)) {
        if (name == "MemAvailable:") return kib << 10;
    }
    return 0;
}

}  // namespace

Result<std::shared_ptr<SlotMemory>> SlotMemory::make(std::uint64_t size) {
    Fd memory(::memfd_create("gangline-snapshot", MFD_CLOEXEC));
    if (!memory) return errno_error("cannot make shared memory");
    if (::ftruncate(memory.get(), static_cast<off_t>(size)) != 0) return errno_error(fmt::format("cannot make {} bytes of shared memory", size));
    return std::shared_ptr<SlotMemory>(new SlotMemory(std::move(memory), size));
}

SlotMemory::~SlotMemory() {
    if (mapped_ != nullptr) ::munmap(mapped_, size_);
}

char* SlotMemory::mapped() {
    if (mapped_ != nullptr) return mapped_;
    void* const mapped = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    if (mapped == MAP_FAILED) return nullptr;
    (void)::madvise(mapped, size_, MADV_HUGEPAGE);
    return mapped_ = static_cast<char*>(mapped);
}

Snapshots::Snapshots(std::function<void()> wake) : wake_(std::move(wake)) {
    persister_ = std::make_unique<Persister>([this](SlotNumber slot, const Result<void>& result) { persisted(slot, result); });
}

LineNumber Snapshots::open_line() {
    const std::lock_guard lock(mutex_);
    return next_line_++;
}

// Of what the node has to give and what is taken here already, so much; or what the job asks for, if that is less.
std::uint64_t Snapshots::budget_for(const SnapshotOwner& owner) const {
    const std::uint64_t available = available_memory();
    if (available == 0) return owner.most_bytes;
    const auto share = static_cast<std::uint64_t>(kMostShare * static_cast<double>(available + arenas_.bytes()));
    return owner.most_bytes == 0 ? share : std::min(owner.most_bytes, share);
}

Snapshots::Given Snapshots::want(LineNumber line, const SnapshotOwner& owner, std::uint64_t size) {
    const std::lock_guard lock(mutex_);
    Arenas::Given given = arenas_.want(line, owner.rank, owner.attempt, size, budget_for(owner), owner.is_elsewhere);
    for (const SlotNumber slot : given.dropped) memory_.erase(slot);
    if (given.is_new) {
        auto memory = SlotMemory::make(size);
        if (!memory) {
            arenas_.forget(given.slot);
            return {0, memory.error().message, 0, nullptr};
        }
        memory_[given.slot] = std::move(*memory);
    }
    if (given.slot == 0) return {0, given.refused, 0, nullptr};
    folders_[given.slot] = owner.folder;
    again_.erase(given.slot);
    return {given.slot, {}, arenas_.at(given.slot)->size, memory_.at(given.slot)};
}

bool Snapshots::whole(LineNumber line, SlotNumber slot, std::uint64_t step, std::uint64_t image_size, std::uint64_t part_size) {
    const std::lock_guard lock(mutex_);
    return arenas_.whole(line, slot, step, image_size, part_size);
}

void Snapshots::durable(LineNumber line, const SnapshotId& id) {
    const std::lock_guard lock(mutex_);
    for (const SlotNumber slot : arenas_.durable(line, id)) memory_.erase(slot);
}

std::optional<Snapshots::Held> Snapshots::find(LineNumber line, const SnapshotId& id) {
    const std::lock_guard lock(mutex_);
    const auto slot = arenas_.find(line, id);
    if (!slot) return std::nullopt;
    const Arenas::Slot& held = *arenas_.at(*slot);
    if (held.is_replica && arenas_.begin_persisting(*slot)) persist(*slot);
    return Held{*slot, held.image_size, held.part_size, memory_.at(*slot)};
}

void Snapshots::done(LineNumber line) {
    const std::lock_guard lock(mutex_);
    arenas_.done(line);
}

std::optional<std::pair<SnapshotId, SlotNumber>> Snapshots::newest(LineNumber line) const {
    const std::lock_guard lock(mutex_);
    std::optional<std::pair<SnapshotId, SlotNumber>> newest;
    for (const SlotNumber number : arenas_.all()) {
        const Arenas::Slot& slot = *arenas_.at(number);
        if (slot.line == line && slot.state == Arenas::State::Whole && (!newest || slot.holds.step > newest->first.step)) newest = {slot.holds, number};
    }
    return newest;
}

std::optional<Snapshots::Held> Snapshots::send(SlotNumber slot, const SnapshotId& id) {
    const std::lock_guard lock(mutex_);
    const Arenas::Slot* const held = arenas_.at(slot);
    if (held == nullptr || held->state != Arenas::State::Whole || !(held->holds == id)) return std::nullopt;
    arenas_.sending(slot, true);
    return Held{slot, held->image_size, held->part_size, memory_.at(slot)};
}

void Snapshots::sent(SlotNumber slot) {
    const std::lock_guard lock(mutex_);
    arenas_.sending(slot, false);
}

void Snapshots::closed(LineNumber line, const SnapshotOwner& owner, bool is_lost) {
    const std::lock_guard lock(mutex_);
    if (owner.is_elsewhere) return arenas_.replicas_closed(line, is_lost);
    for (const SlotNumber slot : arenas_.closed(line)) persist(slot);
}

// With the lock held, and the slot marked.
void Snapshots::persist(SlotNumber slot) {
    const Arenas::Slot& held = *arenas_.at(slot);
    log_info("persisting rank={} attempt={} step={} replica={}", held.holds.rank, held.holds.attempt, held.holds.step, held.is_replica);
    persister_->post({slot, Fd(::dup(memory_.at(slot)->fd().get())), held.image_size, held.part_size, folders_.at(slot)});
}

void Snapshots::persisted(SlotNumber slot, const Result<void>& result) {
    if (!result) log_error("not_persisted slot={} reason=\"{}\"", slot, result.error().message);
    {
        const std::lock_guard lock(mutex_);
        arenas_.persisted(slot, result.ok());
        if (!result) again_[slot] = now().steady + kTryAgain;
    }
    wake_();
}

bool Snapshots::is_persisting() const {
    const std::lock_guard lock(mutex_);
    return arenas_.is_persisting();
}

void Snapshots::try_again(TimePoint at) {
    const std::lock_guard lock(mutex_);
    for (auto one = again_.begin(); one != again_.end();) {
        if (at < one->second) {
            ++one;
            continue;
        }
        if (arenas_.begin_persisting(one->first)) persist(one->first);
        one = again_.erase(one);
    }
}

void Snapshots::persist_rest() {
    const std::lock_guard lock(mutex_);
    for (const SlotNumber slot : arenas_.all()) {
        if (arenas_.begin_persisting(slot)) persist(slot);
    }
}

}  // namespace gangline::checkpoint
