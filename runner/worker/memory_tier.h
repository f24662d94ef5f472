#pragma once
// Snapshots in memory that outlives this process: what the job's keeper on this node holds (checkpoint/keeper).
//
//   save      memory_for() -> the image is copied there -> hold() -> on_disk()
//   restore   gather(), for a step that was never committed; lend(), for any: shards that are here are read from here, others from other nodes' keepers
//
// Copies on another node: each rank asks a rank of the node that is to have them (or that has them, at a restore) where its keeper is, by letter, and the
// keepers and those who restore speak to each other over TCP (checkpoint/keeper/peer.h).
//
// Where there is no keeper (outside Gangline, switched off, its node's memory spent, its agent silent) everything goes on without one; it is looked for
// again after a while. Thread rule: answer() and receive() from the line's thread, hold() from any; the others from the training thread or the writer's.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/time.h"
#include "checkpoint/keeper/client.h"
#include "checkpoint/keeper/peer.h"
#include "checkpoint/shard.h"
#include "checkpoint/store.h"
#include "runner/worker/place.h"

namespace gangline {

class MemoryTier {
  public:
    using Ask = std::function<Result<void>(bool start)>;   // where the keeper is; answer() follows
    // Letters of this class between ranks: `is_question` where is your keeper? Else: `text` says it.
    using Mail = std::function<void(std::uint32_t to_rank, bool is_question, const std::string& text)>;
    using Held = std::function<void(std::uint64_t step)>;  // another node's keeper has a copy of it; from a thread of its own
    MemoryTier(const Place& place, Ask ask, Mail mail, Held held);

    void receive(std::uint32_t from_rank, bool is_question, const std::string& text);
    void answer(std::string keeper_socket);  // empty: there is none

    // A keeper will be wanted: it is started meanwhile.
    void call_keeper();
    // Memory for an image of this size and what hold() puts behind it; nothing: the image's own.
    checkpoint::ImageMemory* memory_for(std::uint64_t image_size, std::uint64_t part_size);
    // The image in the memory that was given last is copied. False: nobody keeps it.
    bool hold(const checkpoint::ShardPlan& plan, const checkpoint::ShardImage& image);
    void on_disk(std::uint64_t step);
    void give_up(std::uint64_t step);  // nobody will start from it
    bool has_keeper() const { return keeper_ != nullptr && keeper_->is_open(); }

    // The parts of a step that was never committed, from here or, once other nodes' keepers have brought them there, from the folder.
    // Errors: Damaged: a rank's part does not come, or they do not go together.
    // `waiting` is called now and then.
    Result<checkpoint::Checkpoint> gather(const checkpoint::Store& store, const checkpoint::CheckpointId& id, const std::function<void()>& waiting);
    // Lends the shards that are held here. Returns how many.
    std::size_t lend(checkpoint::Checkpoint& checkpoint);
    void close();      // no letter or call comes from here any more
    void give_back();  // what gather() and lend() took; the checkpoint is gone

  private:
    bool is_off() const { return place_.is_alone || place_.memory_mib == 0; }
    bool find_keeper(bool start);
    void connected();
    void send_peer();
    checkpoint::WhoKeeps who() const;
    std::optional<checkpoint::Manifest> part_here(const checkpoint::CheckpointId& id, std::uint32_t rank);
    std::optional<checkpoint::Manifest> part_elsewhere(const checkpoint::CheckpointId& id, std::uint32_t rank);
    std::unique_ptr<checkpoint::ShardStream> shard_elsewhere(const checkpoint::Manifest& manifest, const checkpoint::ShardRecord& shard);
    void is_nowhere();
    std::vector<checkpoint::KeeperAddress> keepers_with(std::uint32_t old_rank);
    bool has_keepers_with(std::uint32_t old_rank) const;

    const Place& place_;
    const Ask ask_;
    const Mail mail_;
    const Held held_;
    std::mutex mutex_;
    std::condition_variable answered_;
    bool is_asked_ = false;
    std::optional<std::string> socket_;  // the answer, until it is used
    std::shared_ptr<checkpoint::KeeperClient> keeper_;  // set with the lock held
    std::optional<std::string> where_;               // our keeper, as other nodes reach it; empty: they cannot; nothing: not known yet
    std::optional<TimePoint> letters_until_;         // answers are waited for, all together
    std::set<std::uint32_t> askers_;                 // ranks that want to know it, and again when it is another
    std::map<std::uint32_t, std::string> keepers_;   // of ranks that were asked; empty: they have none
    std::set<std::uint32_t> asked_;
    std::string peer_told_;                          // what our keeper was told last
    TimePoint again_{};        // not looked for before
    Duration pause_{};
    std::uint64_t slot_ = 0;   // given last; 0 = none
    checkpoint::ImageMemory* memory_ = nullptr;
};

}  // namespace gangline
