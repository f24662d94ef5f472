#pragma once
// Snapshots in memory that outlives this process: what the job's keeper on this node holds (checkpoint/keeper).
//
//   save      memory_for() -> the image is copied there -> hold() -> on_disk()
//   restore   gather(), for a step that was never committed; lend(), for any: shards that are here are read from here
//
// Where there is no keeper (outside Gangline, switched off, its node's memory spent, its agent silent) everything goes on without one; it is looked for
// again after a while. Thread rule: answer() from the line's thread, hold() from any; the others from the training thread or the writer's.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/time.h"
#include "checkpoint/keeper/client.h"
#include "checkpoint/shard.h"
#include "checkpoint/store.h"
#include "runner/worker/place.h"

namespace gangline {

class MemoryTier {
  public:
    using Ask = std::function<Result<void>(bool start)>;   // where the keeper is; answer() follows
    MemoryTier(const Place& place, Ask ask);

    void answer(std::string keeper_socket);  // empty: there is none

    // A keeper will be wanted: it is started meanwhile.
    void call_keeper();
    // Memory for an image of this size and what hold() puts behind it; nothing: the image's own.
    checkpoint::ImageMemory* memory_for(std::uint64_t image_size, std::uint64_t part_size);
    // The image in the memory that was given last is copied. False: nobody keeps it.
    bool hold(const checkpoint::ShardPlan& plan, const checkpoint::ShardImage& image);
    void on_disk(std::uint64_t step);

    // The parts of a step that was never committed, from here or, once other nodes' keepers have brought them there, from the folder.
    // Errors: Damaged: a rank's part does not come, or they do not go together.
    // `waiting` is called now and then.
    Result<checkpoint::Checkpoint> gather(const checkpoint::Store& store, const checkpoint::CheckpointId& id, const std::function<void()>& waiting);
    // Lends the shards that are held here. Returns how many.
    std::size_t lend(checkpoint::Checkpoint& checkpoint);
    void give_back();  // what gather() and lend() took; the checkpoint is gone

  private:
    bool is_off() const { return place_.is_alone || place_.memory_mib == 0; }
    bool find_keeper(bool start);
    std::optional<checkpoint::Manifest> part_here(const checkpoint::CheckpointId& id, std::uint32_t rank);

    const Place& place_;
    const Ask ask_;
    std::mutex mutex_;
    std::condition_variable answered_;
    bool is_asked_ = false;
    std::optional<std::string> socket_;  // the answer, until it is used
    std::unique_ptr<checkpoint::KeeperClient> keeper_;
    TimePoint again_{};        // not looked for before
    Duration pause_{};
    std::uint64_t slot_ = 0;   // given last; 0 = none
    checkpoint::ImageMemory* memory_ = nullptr;
};

}  // namespace gangline
