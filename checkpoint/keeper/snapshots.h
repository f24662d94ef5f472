#pragma once
// What a keeper holds: the numbers of arenas.h with their memory, and the thread that brings to disk what nobody else can. Any thread may call.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/handle.h"
#include "base/time.h"
#include "checkpoint/keeper/arenas.h"
#include "checkpoint/keeper/persister.h"

namespace gangline::checkpoint {

// Shared memory of one slot. Whoever holds the pointer may use it, also when the slot is given up.
class SlotMemory {
  public:
    static Result<std::shared_ptr<SlotMemory>> make(std::uint64_t size);
    ~SlotMemory();
    const Fd& fd() const { return fd_; }
    char* mapped();  // null: it cannot be; one thread at a time

  private:
    SlotMemory(Fd fd, std::uint64_t size) : fd_(std::move(fd)), size_(size) {}
    Fd fd_;
    std::uint64_t size_;
    char* mapped_ = nullptr;
};

struct SnapshotOwner {
    std::uint32_t rank = 0;
    std::uint32_t attempt = 0;
    std::uint64_t most_bytes = 0;  // of snapshots on this node; 0: as many as it bears
    std::string folder;            // of the job's checkpoints
    bool is_elsewhere = false;     // a rank of another node
};

class Snapshots {
  public:
    explicit Snapshots(std::function<void()> wake);  // after something was brought to disk, or not

    LineNumber open_line();
    struct Given {
        SlotNumber slot = 0;  // 0: none, for this reason
        std::string refused;
        std::uint64_t size = 0;
        std::shared_ptr<SlotMemory> memory;
    };
    Given want(LineNumber line, const SnapshotOwner& owner, std::uint64_t size);
    bool whole(LineNumber line, SlotNumber slot, std::uint64_t step, std::uint64_t image_size, std::uint64_t part_size);
    void durable(LineNumber line, const SnapshotId& id);
    struct Held {
        SlotNumber slot = 0;
        std::uint64_t image_size = 0;
        std::uint64_t part_size = 0;
        std::shared_ptr<SlotMemory> memory;
    };
    // Stays until done(). A replica whose node is lost is brought to disk from now on: who asks for it belongs to the gang that comes after.
    std::optional<Held> find(LineNumber line, const SnapshotId& id);
    void done(LineNumber line);
    // The newest whole snapshot of that line.
    std::optional<std::pair<SnapshotId, SlotNumber>> newest(LineNumber line) const;
    // To be copied to another node; nothing: it is not whole any more.
    std::optional<Held> send(SlotNumber slot, const SnapshotId& id);
    void sent(SlotNumber slot);
    // The line is over. A rank of this node: what it left is brought to disk. Another node's keeper: see Arenas::replicas_closed.
    void closed(LineNumber line, const SnapshotOwner& owner, bool is_lost);

    bool is_persisting() const;
    // What could not be written is tried again after a while. Call it now and then.
    void try_again(TimePoint at);
    // The keeper leaves: what only it has is brought to disk.
    void persist_rest();

  private:
    void persist(SlotNumber slot);
    void persisted(SlotNumber slot, const Result<void>& result);
    std::uint64_t budget_for(const SnapshotOwner& owner) const;

    const std::function<void()> wake_;
    mutable std::mutex mutex_;
    Arenas arenas_;
    std::map<SlotNumber, std::shared_ptr<SlotMemory>> memory_;
    std::map<SlotNumber, std::string> folders_;
    std::map<SlotNumber, TimePoint> again_;  // could not be written: when to try it
    LineNumber next_line_ = 1;
    std::unique_ptr<Persister> persister_;   // last: its thread calls persisted()
};

}  // namespace gangline::checkpoint
