#include "runner/worker/memory_tier.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace gangline {
namespace {

using checkpoint::Checkpoint;
using checkpoint::CheckpointId;
using checkpoint::Manifest;

constexpr Duration kAnswerLimit = seconds(1);   // a keeper starts in some milliseconds
constexpr Duration kFirstPause = seconds(10);
constexpr Duration kLongestPause = seconds(600);
constexpr Duration kGatherLimit = seconds(120);
constexpr Duration kLookAgain = milliseconds(20);

std::string absolute(const std::string& path) {
    std::error_code error;
    const auto whole = std::filesystem::absolute(path, error);
    return error ? path : whole.string();
}

}  // namespace

MemoryTier::MemoryTier(const Place& place, Ask ask) : place_(place), ask_(std::move(ask)) {}

void MemoryTier::answer(std::string keeper_socket) {
    {
        const std::lock_guard lock(mutex_);
        socket_ = std::move(keeper_socket);
    }
    answered_.notify_all();
}

void MemoryTier::call_keeper() {
    if (is_off()) return;
    {
        const std::lock_guard lock(mutex_);
        if (std::exchange(is_asked_, true)) return;
    }
    (void)ask_(true);
}

// Asks where it is, unless that is asked already, and connects. A late answer is good for the next time.
bool MemoryTier::find_keeper(bool start) {
    if (is_off()) return false;
    if (keeper_ != nullptr && keeper_->is_open()) return true;
    const TimePoint at = now().steady;
    std::unique_lock lock(mutex_);
    if (!socket_ && at < again_) return false;
    if (!socket_ && !std::exchange(is_asked_, true)) {
        lock.unlock();
        (void)ask_(start);
        lock.lock();
    }
    const bool is_answered = answered_.wait_for(lock, kAnswerLimit, [&] { return socket_.has_value(); });
    is_asked_ = false;
    const std::string name = is_answered ? *std::exchange(socket_, std::nullopt) : "";
    lock.unlock();
    if (!name.empty()) {
        const checkpoint::WhoKeeps who{place_.job, place_.attempt, place_.rank, place_.memory_mib.value_or(0) << 20, absolute(place_.checkpoint_folder)};
        auto keeper = checkpoint::KeeperClient::connect(name, who);
        if (keeper) {
            keeper_ = std::move(*keeper);
            pause_ = Duration{0};
            return true;
        }
    }
    if (!start) return false;
    pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
    again_ = at + pause_;
    return false;
}

checkpoint::ImageMemory* MemoryTier::memory_for(std::uint64_t image_size, std::uint64_t part_size) {
    slot_ = 0;
    memory_ = nullptr;
    if (!find_keeper(true)) return nullptr;
    auto place = keeper_->want(image_size + part_size);
    if (!place && !keeper_->is_open() && find_keeper(true)) place = keeper_->want(image_size + part_size);  // the one before has died
    if (!place) return nullptr;
    slot_ = place->slot;
    memory_ = place->memory;
    return memory_;
}

bool MemoryTier::hold(const checkpoint::ShardPlan& plan, const checkpoint::ShardImage& image) {
    if (slot_ == 0) return false;
    const std::string part = encode(part_of(plan, image));
    if (image.size() + part.size() > memory_->size) return false;
    std::memcpy(memory_->data + image.size(), part.data(), part.size());
    return keeper_->whole(slot_, plan.step, image.size(), part.size()).ok();
}

void MemoryTier::on_disk(std::uint64_t step) {
    if (slot_ != 0) (void)keeper_->durable(step);
}

std::optional<Manifest> MemoryTier::part_here(const CheckpointId& id, std::uint32_t rank) {
    if (keeper_ == nullptr) return std::nullopt;
    const auto found = keeper_->find(rank, id.attempt, id.step);
    if (!found) return std::nullopt;
    std::string file(found->part_size, '\0');
    if (::pread(found->memory.get(), file.data(), file.size(), static_cast<off_t>(found->image_size)) != static_cast<ssize_t>(file.size())) return std::nullopt;
    auto part = checkpoint::parse(file);
    if (!part || part->step != id.step || part->attempt != id.attempt || part->shards.size() != 1 || part->shards[0].rank != rank) return std::nullopt;
    return std::move(*part);
}

Result<Checkpoint> MemoryTier::gather(const checkpoint::Store& store, const CheckpointId& id, const std::function<void()>& waiting) {
    (void)find_keeper(false);
    const TimePoint until = now().steady + kGatherLimit;
    std::vector<Manifest> parts;
    std::size_t world = 1;
    while (parts.size() < world) {
        const auto rank = static_cast<std::uint32_t>(parts.size());
        auto part = part_here(id, rank);
        while (!part) {
            // Rank 0 of this gang makes a checkpoint of it meanwhile.
            if (auto published = store.open_published(id); published) return published;
            if (auto unnamed = store.open_temporary(id); unnamed) return unnamed;  // it came as far as its manifest
            if (auto there = store.read_part(id, rank); there) part = std::move(*there);
            if (part) break;
            if (now().steady > until) {
                return Error{Code::Damaged, fmt::format("rank {}'s snapshot of step {} is in no memory of this node and did not come to {} in {} s", rank, id.step,
                                                        store.root(), to_ms(kGatherLimit) / 1000)};
            }
            std::this_thread::sleep_for(kLookAgain);
            waiting();
        }
        world = part->world;
        if (world == 0 || world > checkpoint::kMostWorld) return Error{Code::Damaged, "a snapshot's part names no sane number of ranks"};
        parts.push_back(std::move(*part));
    }
    auto whole = merge(std::move(parts));
    if (!whole) return Error{Code::Damaged, whole.error().message};
    auto folder = store.temporary(id);
    if (!folder) return folder.error();
    return Checkpoint(std::move(*folder), std::move(*whole), fmt::format("{}, the snapshot of step {}", store.root(), id.step));
}

std::size_t MemoryTier::lend(Checkpoint& checkpoint) {
    if (!find_keeper(false)) return 0;
    std::size_t lent = 0;
    const Manifest& manifest = checkpoint.manifest();
    for (const checkpoint::ShardRecord& shard : manifest.shards) {
        const auto found = keeper_->find(shard.rank, manifest.attempt, manifest.step);
        if (!found || found->image_size != shard.size) continue;
        auto memory = checkpoint::ShardMemory::map(found->memory, shard.size);
        if (!memory) continue;
        checkpoint.use_memory(shard.rank, std::move(*memory));
        ++lent;
    }
    return lent;
}

void MemoryTier::give_back() {
    if (keeper_ != nullptr) keeper_->done();
}

}  // namespace gangline
