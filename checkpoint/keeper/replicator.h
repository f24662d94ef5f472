#pragma once
// Brings copies of this node's snapshots to keepers on other nodes: of each rank the newest whole one, as soon as it is whole. One thread a rank; it waits for
// the other side, never the rank.
//
// What is written over while it is copied arrives without its checksums and is refused there: the one before it stays. Thread rule: all calls from one thread.

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "checkpoint/keeper/peer.h"
#include "checkpoint/keeper/snapshots.h"

namespace gangline::checkpoint {

class Replicator {
  public:
    // On a thread of the replicator's: the other keeper holds a copy of this step of the rank of that line.
    using Held = std::function<void(LineNumber line, std::uint64_t step)>;
    Replicator(Snapshots& snapshots, std::uint64_t job, Held held);
    ~Replicator();  // says to all that this node leaves

    // From now on copies of the rank's snapshots go there. Replaces what was said before for this rank.
    void set_peer(LineNumber line, const SnapshotOwner& owner, const KeeperAddress& peer);
    void whole(const SnapshotId& id, SlotNumber slot);
    void durable(const SnapshotId& id);

  private:
    class Push;
    Snapshots& snapshots_;
    const std::uint64_t job_;
    const Held held_;
    std::map<std::uint32_t, std::unique_ptr<Push>> pushes_;  // by rank
    std::vector<std::unique_ptr<Push>> retired_;             // told to stop; nobody waits for what they are sending
};

}  // namespace gangline::checkpoint
