#include "checkpoint/scrubber.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "checkpoint/token_bucket.h"

namespace gangline::checkpoint {
namespace {

struct FreeMemory {
    void operator()(char* memory) const { std::free(memory); }
};

constexpr int kLooks = 3;  // at what is not as it was written
constexpr std::uint64_t kReadBytes = 1u << 20;  // at once, of whole blocks

struct ReadBack {
    std::string wrong;     // empty: it is there
    bool is_ours = false;  // no memory, too many files, no O_DIRECT: that says nothing of the disk
};

// All of [begin, begin + size), from the disk rather than from the page cache.
ReadBack read_back(int folder, const std::string& name, std::uint64_t begin, char* memory, std::size_t size, bool direct) {
    const Fd fd(::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (direct ? O_DIRECT : 0)));
    if (!fd) return {std::strerror(errno), errno != ENOENT && errno != ELOOP};
    const auto forget = [&] {
        if (!direct) (void)::posix_fadvise(fd.get(), static_cast<off_t>(begin), static_cast<off_t>(size), POSIX_FADV_DONTNEED);
    };
    forget();
    for (std::size_t filled = 0; filled < size;) {
        const ssize_t n = ::pread(fd.get(), memory + filled, size - filled, static_cast<off_t>(begin + filled));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return {std::strerror(errno), errno != EIO && errno != EBADMSG};
        if (n == 0) return {"the file is shorter than it was", false};
        filled += static_cast<std::size_t>(n);
    }
    forget();
    return {};
}

std::uint64_t blocks_at_once(const Manifest& manifest) { return std::max<std::uint64_t>(1, kReadBytes / manifest.block_bytes); }

// Of these bytes, from block `first` on; empty: each block has its checksum.
std::string first_wrong(const Manifest& manifest, const ShardRecord& shard, std::uint64_t first, const char* bytes, std::size_t size) {
    for (std::size_t at = 0; at < size; at += manifest.block_bytes, ++first) {
        const std::size_t length = std::min<std::size_t>(manifest.block_bytes, size - at);
        if (crc32c(bytes + at, length) == shard.block_crcs[static_cast<std::size_t>(first)]) continue;
        const std::uint64_t begin = first * manifest.block_bytes;
        return fmt::format("block {} (bytes {} to {}) does not have its checksum", first, begin, begin + length);
    }
    return "";
}

}  // namespace

struct Scrubber::Reading {
    Reading(Checkpoint opened, const CheckpointId& which, const ScrubOptions& options)
        : checkpoint(std::move(opened)), id(which), bucket(options.bytes_per_s, blocks_at_once(checkpoint.manifest()) * checkpoint.manifest().block_bytes),
          memory(static_cast<char*>(std::aligned_alloc(kDiskAlignment, (blocks_at_once(checkpoint.manifest()) * checkpoint.manifest().block_bytes + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment))) {}

    Checkpoint checkpoint;
    CheckpointId id;
    TokenBucket bucket;
    std::unique_ptr<char, FreeMemory> memory;
    std::size_t shard = 0;
    std::uint64_t block = 0;
    bool direct = true;
};

Scrubber::Scrubber(const Store& store, const ScrubOptions& options) : store_(store), options_(options) {}
Scrubber::~Scrubber() = default;

Scrubber::Outcome Scrubber::step(const Now& now) {
    Outcome outcome;
    outcome.next = now.steady;
    if (reading_ == nullptr) begin(outcome, now.unix_ms / 1000);
    if (reading_ != nullptr) {
        read_on(outcome, now);
    } else if (!outcome.tainted) {
        outcome.next = now.steady + options_.rest;
    }
    return outcome;
}

void Scrubber::leave_unless(const std::function<bool(const CheckpointId&)>& stays) {
    if (reading_ != nullptr && !stays(reading_->id)) reading_.reset();
}

std::optional<CheckpointId> Scrubber::choose(std::int64_t unix_s) {
    std::vector<CheckpointId> unread;  // ascending
    std::optional<CheckpointId> stale;
    std::int64_t proved = unix_s - to_ms(options_.again) / 1000;
    for (const CheckpointId& id : store_.published()) {
        if (passed_over_.contains(id)) continue;
        const auto verified = store_.marks(id).verified_unix_s;
        if (!verified) {
            unread.push_back(id);
        } else if (*verified <= proved) {
            proved = *verified;
            stale = id;
        }
    }
    if (unread.empty()) return stale;
    is_oldests_turn_ = !is_oldests_turn_;
    return is_oldests_turn_ ? unread.back() : unread.front();
}

void Scrubber::begin(Outcome& outcome, std::int64_t unix_s) {
    const auto id = choose(unix_s);
    if (!id) return;
    auto checkpoint = store_.open_published(*id);
    if (checkpoint && checkpoint->manifest().job == options_.job) {
        reading_ = std::make_unique<Reading>(std::move(*checkpoint), *id, options_);
        if (reading_->memory != nullptr) return;
        reading_.reset();
        return;
    }
    const bool is_gone = !checkpoint && checkpoint.error().code == Code::NotFound;
    if (!is_gone) passed_over_.insert(*id);
    if (!checkpoint && checkpoint.error().code == Code::Damaged) outcome.tainted = Tainted{*id, checkpoint.error().message};
}

void Scrubber::read_on(Outcome& outcome, const Now& now) {
    Reading& reading = *reading_;
    const Manifest& manifest = reading.checkpoint.manifest();
    while (reading.shard < manifest.shards.size() && reading.block >= manifest.shards[reading.shard].block_crcs.size()) {
        ++reading.shard;
        reading.block = 0;
    }
    if (reading.shard == manifest.shards.size()) {
        if (store_.has_name(reading.id, reading.checkpoint.folder())) {
            if (!mark_verified(store_.disk(), reading.checkpoint.folder(), now.unix_ms / 1000)) passed_over_.insert(reading.id);
            outcome.verified = reading.id;
        }
        reading_.reset();
        return;
    }
    const ShardRecord& shard = manifest.shards[reading.shard];
    const std::uint64_t blocks = std::min(blocks_at_once(manifest), shard.block_crcs.size() - reading.block);
    const std::uint64_t begin = reading.block * manifest.block_bytes;
    const auto size = static_cast<std::size_t>(std::min(blocks * manifest.block_bytes, shard.size - begin));
    ReadBack back;
    for (int look = 0; look < kLooks; ++look) {
        back = read_back(reading.checkpoint.folder(), shard.name, begin, reading.memory.get(), size, reading.direct);
        if (back.wrong.empty()) back.wrong = first_wrong(manifest, shard, reading.block, reading.memory.get(), size);
        if (back.wrong.empty() || (back.is_ours && !reading.direct)) break;
        if (back.is_ours) reading.direct = false;  // a file system, or a block, that O_DIRECT does not suit
    }
    outcome.bytes = size;
    outcome.next = now.steady + reading.bucket.take(size, now.steady);
    if (back.wrong.empty()) {
        reading.block += blocks;
    } else if (back.is_ours) {
        outcome.next = std::max(outcome.next, now.steady + options_.rest);
    } else {
        found(outcome, fmt::format("{}/{}: {}", reading.checkpoint.place(), shard.name, back.wrong));
    }
}

// One that is being deleted loses its name before its bytes.
void Scrubber::found(Outcome& outcome, std::string what) {
    const CheckpointId id = reading_->id;
    const bool is_there = store_.has_name(id, reading_->checkpoint.folder());
    reading_.reset();
    if (!is_there) return;
    passed_over_.insert(id);
    outcome.tainted = Tainted{id, std::move(what)};
}

}  // namespace gangline::checkpoint
