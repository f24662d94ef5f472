#include "checkpoint/keeper/persister.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "checkpoint/shard.h"
#include "checkpoint/store.h"

namespace gangline::checkpoint {
namespace {

constexpr int kNice = 5;

// Behind whatever trains on this node by now.
void lower_priority() {
    constexpr int kIoprioWhoProcess = 1;
    constexpr int kBestEffortLowest = (2 << 13) | 7;  // ioprio_set(2)
    (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNice);
    (void)::syscall(SYS_ioprio_set, kIoprioWhoProcess, 0, kBestEffortLowest);
}

// A later save counts by now: nobody starts from this one any more.
bool is_outdated(const Store& store, const CheckpointId& id) {
    const auto there = store.published();
    return std::any_of(there.begin(), there.end(), [&](const CheckpointId& one) { return one.attempt >= id.attempt && one.step > id.step; });
}

}  // namespace

Persister::Persister(Done done) : done_(std::move(done)) {
    thread_ = std::thread([this] { run(); });
}

Persister::~Persister() {
    {
        const std::lock_guard lock(mutex_);
        is_stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void Persister::post(ToPersist work) {
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(work));
    }
    changed_.notify_all();
}

void Persister::run() {
    lower_priority();
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return is_stopping_ || !queue_.empty(); });  // until post() or the end
        if (is_stopping_) return;
        const ToPersist work = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        const Result<void> result = persist(work);
        done_(work.slot, result);
        lock.lock();
    }
}

Result<void> Persister::persist(const ToPersist& work) {
    auto mapped = ShardMemory::map(work.memory, work.image_size + work.part_size);
    if (!mapped) return mapped.error();
    const std::string_view file(mapped->data() + work.image_size, work.part_size);
    const auto part = parse(file);
    if (!part) return part.error();
    if (part->shards.size() != 1 || part->shards[0].size != work.image_size || part->block_bytes != kBlockBytes) {
        return Error{Code::Damaged, "the snapshot and its part of the manifest do not go together"};
    }
    const CheckpointId id{part->step, part->attempt};
    const std::uint32_t rank = part->shards[0].rank;
    auto store = Store::open(work.folder);
    if (!store) return store.error();
    const auto there = store->published();
    if (std::find(there.begin(), there.end(), id) != there.end() || is_outdated(*store, id)) return {};
    const auto written_before = store->read_part(id, rank);
    if (written_before && encode(*written_before) == file) return {};  // the rank itself came so far
    auto folder = store->temporary(id);
    if (!folder) return folder.error();
    ShardImage image;
    image.adopt(*part, const_cast<char*>(mapped->data()));
    auto written = write_adopted(store->disk(), folder->get(), image, *part);
    if (!written && written.error().code == Code::NoSpace) {
        store->empty_pool();
        written = write_adopted(store->disk(), folder->get(), image, *part);
    }
    if (!written) return written;
    const auto sealed = store->write_part(id, *part);
    if (!sealed) return sealed.error();
    if (is_outdated(*store, id)) return store->drop_temporary(id);  // whoever has saved meanwhile has already cleared away
    return {};
}

}  // namespace gangline::checkpoint
