#include "runner/worker/memory_tier.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/keeper/fetch.h"

namespace gangline {
namespace {

using checkpoint::Checkpoint;
using checkpoint::CheckpointId;
using checkpoint::Manifest;

constexpr Duration kAnswerLimit = seconds(1);   // a keeper starts in some milliseconds
constexpr Duration kConnectAgain = milliseconds(2);
constexpr Duration kFirstPause = seconds(10);
constexpr Duration kLongestPause = seconds(600);
constexpr Duration kGatherLimit = seconds(120);
constexpr Duration kGatherHere = seconds(15);   // every keeper that could have it was asked, and has not: it may still come to the folder
constexpr Duration kLookAgain = milliseconds(20);
constexpr Duration kLetterLimit = seconds(10);  // the other rank may have to start first

std::string absolute(const std::string& path) {
    std::error_code error;
    const auto whole = std::filesystem::absolute(path, error);
    return error ? path : whole.string();
}

}  // namespace

MemoryTier::MemoryTier(const Place& place, Ask ask, Mail mail, Held held) : place_(place), ask_(std::move(ask)), mail_(std::move(mail)), held_(std::move(held)) {}

// ---- keepers of other nodes

void MemoryTier::receive(std::uint32_t from_rank, bool is_question, const std::string& text) {
    std::optional<std::string> mine;
    {
        const std::lock_guard lock(mutex_);
        if (is_question) {
            mine = is_off() ? std::string() : where_;
            askers_.insert(from_rank);
        } else {
            keepers_[from_rank] = text;
        }
    }
    if (mine) mail_(from_rank, false, *mine);
    answered_.notify_all();
    if (!is_question) send_peer();
}

// Tells those who wait where our keeper is, and asks where the one is that shall have our copies.
void MemoryTier::connected() {
    const std::string where = keeper_->where().value_or("");
    std::set<std::uint32_t> askers;
    bool is_first = false;
    {
        const std::lock_guard lock(mutex_);
        where_ = where;
        askers = askers_;
        peer_told_.clear();
        is_first = place_.replica_rank && asked_.insert(*place_.replica_rank).second;
    }
    for (const std::uint32_t rank : askers) mail_(rank, false, where);
    if (is_first) mail_(*place_.replica_rank, true, {});
}

// There is no keeper here: nobody is to wait for one.
void MemoryTier::is_nowhere() {
    std::set<std::uint32_t> askers;
    {
        const std::lock_guard lock(mutex_);
        where_ = "";
        askers = askers_;
    }
    for (const std::uint32_t rank : askers) mail_(rank, false, {});
}

void MemoryTier::send_peer() {
    if (!place_.replica_rank) return;
    std::string peer;
    std::shared_ptr<checkpoint::KeeperClient> keeper;
    {
        const std::lock_guard lock(mutex_);
        const auto found = keepers_.find(*place_.replica_rank);
        if (keeper_ == nullptr || found == keepers_.end() || found->second.empty() || found->second == peer_told_) return;
        peer = peer_told_ = found->second;
        keeper = keeper_;
    }
    (void)keeper->set_peer(peer);
}

checkpoint::WhoKeeps MemoryTier::who() const {
    return {place_.job, place_.attempt, place_.rank, place_.memory_mib.value_or(0) << 20, absolute(place_.checkpoint_folder)};
}

bool MemoryTier::has_keepers_with(std::uint32_t old_rank) const {
    return std::any_of(place_.snapshots_from.begin(), place_.snapshots_from.end(), [&](const SnapshotsFrom& one) { return one.first <= old_rank && old_rank <= one.last; });
}

// Asks the ranks beside them once, and waits for the answers.
std::vector<checkpoint::KeeperAddress> MemoryTier::keepers_with(std::uint32_t old_rank) {
    std::vector<std::uint32_t> ranks;
    for (const SnapshotsFrom& one : place_.snapshots_from) {
        if (one.first <= old_rank && old_rank <= one.last) ranks.insert(ranks.end(), one.ranks.begin(), one.ranks.end());
    }
    std::erase(ranks, place_.rank);
    std::vector<std::uint32_t> to_ask;
    std::unique_lock lock(mutex_);
    for (const std::uint32_t rank : ranks) {
        if (asked_.insert(rank).second) to_ask.push_back(rank);
    }
    lock.unlock();
    for (const std::uint32_t rank : to_ask) mail_(rank, true, {});
    lock.lock();
    const auto all_known = [&] { return std::all_of(ranks.begin(), ranks.end(), [&](std::uint32_t rank) { return keepers_.contains(rank); }); };
    if (!letters_until_) letters_until_ = now().steady + kLetterLimit;
    answered_.wait_until(lock, *letters_until_, all_known);
    std::vector<checkpoint::KeeperAddress> keepers;
    for (const std::uint32_t rank : ranks) {
        const std::string& text = keepers_[rank];
        if (text == where_) continue;  // on our own node
        if (const auto address = checkpoint::parse_keeper_address(text)) keepers.push_back(*address);
    }
    return keepers;
}

std::optional<Manifest> MemoryTier::part_elsewhere(const CheckpointId& id, std::uint32_t rank) {
    for (const checkpoint::KeeperAddress& keeper : keepers_with(rank)) {
        const auto file = checkpoint::fetch_part(keeper, who(), {rank, id.attempt, id.step});
        if (!file || !file->has_value()) continue;
        auto part = checkpoint::parse(**file);
        if (part && part->step == id.step && part->attempt == id.attempt && part->shards.size() == 1 && part->shards[0].rank == rank) return std::move(*part);
    }
    return std::nullopt;
}

std::unique_ptr<checkpoint::ShardStream> MemoryTier::shard_elsewhere(const Manifest& manifest, const checkpoint::ShardRecord& shard) {
    for (const checkpoint::KeeperAddress& keeper : keepers_with(shard.rank)) {
        auto stream = checkpoint::fetch_shard(keeper, who(), {shard.rank, manifest.attempt, manifest.step}, shard.size);
        if (stream && *stream != nullptr) return std::move(*stream);
    }
    return nullptr;
}

// ---- our own keeper

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
        auto keeper = checkpoint::KeeperClient::connect(name, who(), held_);
        while (!keeper && now().steady - at < kAnswerLimit) {  // it has only been started: it hears its agent before it hears ranks
            std::this_thread::sleep_for(kConnectAgain);
            keeper = checkpoint::KeeperClient::connect(name, who(), held_);
        }
        if (keeper) {
            lock.lock();
            keeper_ = std::move(*keeper);
            lock.unlock();
            pause_ = Duration{0};
            connected();
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
    send_peer();
    return memory_;
}

bool MemoryTier::hold(const checkpoint::ShardPlan& plan, const checkpoint::ShardImage& image) {
    if (slot_ == 0) return false;
    const std::string part = encode(part_of(plan, image));
    if (image.size() + part.size() > memory_->size) return false;
    std::memcpy(memory_->data + image.size(), part.data(), part.size());
    send_peer();
    return keeper_->whole(slot_, plan.step, image.size(), part.size()).ok();
}

void MemoryTier::on_disk(std::uint64_t step) {
    if (slot_ == 0) return;
    (void)keeper_->durable(step);
    send_peer();
}

void MemoryTier::give_up(std::uint64_t step) {
    if (has_keeper()) (void)keeper_->durable(step);  // nothing is left to be written
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
    if (!find_keeper(false)) is_nowhere();
    const TimePoint begun = now().steady;
    std::vector<Manifest> parts;
    std::size_t world = 1;
    while (parts.size() < world) {
        const auto rank = static_cast<std::uint32_t>(parts.size());
        auto part = part_here(id, rank);
        if (!part) part = part_elsewhere(id, rank);
        const Duration limit = has_keepers_with(rank) ? kGatherHere : kGatherLimit;
        while (!part) {
            // Rank 0 of this gang makes a checkpoint of it meanwhile.
            if (auto published = store.open_published(id); published) return published;
            if (auto unnamed = store.open_temporary(id); unnamed) return unnamed;  // it came as far as its manifest
            if (auto there = store.read_part(id, rank); there) part = std::move(*there);
            if (part) break;
            if (now().steady > begun + limit) {
                return Error{Code::Damaged, fmt::format("rank {}'s snapshot of step {} is in no keeper's memory that could be asked and did not come to {} in {} s", rank, id.step,
                                                        store.root(), to_ms(limit) / 1000)};
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
    if (is_off()) return 0;
    const bool has_keeper = find_keeper(false);
    if (!has_keeper) is_nowhere();
    std::size_t lent = 0;
    const Manifest& manifest = checkpoint.manifest();
    for (const checkpoint::ShardRecord& shard : manifest.shards) {
        const auto found = has_keeper ? keeper_->find(shard.rank, manifest.attempt, manifest.step) : std::nullopt;
        if (!found || found->image_size != shard.size) continue;
        auto memory = checkpoint::ShardMemory::map(found->memory, shard.size);
        if (!memory) continue;
        checkpoint.use_memory(shard.rank, std::move(*memory));
        ++lent;
    }
    checkpoint.find_stream([this, &checkpoint](const checkpoint::ShardRecord& shard) { return shard_elsewhere(checkpoint.manifest(), shard); });
    return lent;
}

void MemoryTier::close() {
    std::shared_ptr<checkpoint::KeeperClient> last;
    const std::lock_guard lock(mutex_);
    last.swap(keeper_);
}

void MemoryTier::give_back() {
    if (keeper_ != nullptr) keeper_->done();
}

}  // namespace gangline
