#pragma once
// Which memory a keeper gives to which snapshot, and what it must bring to disk. Without descriptors, clock or thread: numbers only.
//
//   Empty --want--> Filling --whole--> Whole --(want, when a newer one of its rank is whole)--> Filling ...
//                      '--its rank dies--> Empty            a Whole one whose rank dies and that is not on disk: to be persisted
//
// A replica is the same, of a rank of another node, and its line is that node's keeper's. It is brought to disk only when its node is lost.
//
// Two slots a rank: its newest whole snapshot is never given away. A slot that is pinned (somebody restores from it, or it is being written
// to disk) is not given away either; one that is being copied to another node, when there is no room for another. Thread rule: one thread.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gangline::checkpoint {

using SlotNumber = std::uint64_t;
using LineNumber = std::uint64_t;  // a rank's connection

struct SnapshotId {
    std::uint32_t rank = 0;
    std::uint32_t attempt = 0;
    std::uint64_t step = 0;
    bool operator==(const SnapshotId&) const = default;
};

class Arenas {
  public:
    enum class State { Empty, Filling, Whole };
    struct Slot {
        std::uint32_t rank = 0;
        std::uint64_t size = 0;       // of the memory
        State state = State::Empty;
        SnapshotId holds;             // when Filling (without its step) or Whole
        std::uint64_t image_size = 0;
        std::uint64_t part_size = 0;
        bool is_durable = false;
        LineNumber line = 0;          // whose it is, while that line is open
        std::vector<LineNumber> pins; // who restores from it
        bool is_persisting = false;
        bool is_sending = false;      // to another node
        bool is_replica = false;
        bool is_free() const { return pins.empty() && !is_persisting; }
    };
    struct Given {
        SlotNumber slot = 0;               // 0: none, for this reason
        std::string refused;
        bool is_new = false;               // its memory is to be made
        std::vector<SlotNumber> dropped;   // whose memory is to be given back, before that
    };
    // Memory for a snapshot of this rank; new memory only while all of it stays within `budget` bytes, and all replicas' within half of it.
    Given want(LineNumber line, std::uint32_t rank, std::uint32_t attempt, std::uint64_t size, std::uint64_t budget, bool is_replica = false);
    // It could not be made.
    void forget(SlotNumber slot) { slots_.erase(slot); }
    // False: the slot is not this line's, or the sizes are not its own.
    bool whole(LineNumber line, SlotNumber slot, std::uint64_t step, std::uint64_t image_size, std::uint64_t part_size);
    // Returns slots that nobody needs any more: of earlier attempts, of ranks that have no line.
    std::vector<SlotNumber> durable(LineNumber line, const SnapshotId& id);
    std::optional<SlotNumber> find(LineNumber line, const SnapshotId& id);  // and pins it
    void done(LineNumber line);
    // The rank is gone: what it had whole, but not on disk, newest first (the next gang most likely starts from that); each is persisting until persisted() is called.
    std::vector<SlotNumber> closed(LineNumber line);
    // A replica's line is over. `is_lost`: its node may be, and what is not on disk may have to be brought there from here; else that is not ours.
    void replicas_closed(LineNumber line, bool is_lost);
    // Whether it is now to be brought to disk: whole, not there yet, and nobody else's any more. Then it is persisting until persisted() is called.
    bool begin_persisting(SlotNumber slot);
    std::vector<SlotNumber> all() const;
    void sending(SlotNumber slot, bool is_sending);
    void persisted(SlotNumber slot, bool is_durable);

    const Slot* at(SlotNumber slot) const;
    bool is_persisting() const;
    std::uint64_t bytes() const;

  private:
    std::uint64_t replica_bytes() const;

    std::map<SlotNumber, Slot> slots_;
    SlotNumber next_ = 1;
};

}  // namespace gangline::checkpoint
