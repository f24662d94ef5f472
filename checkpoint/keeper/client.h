#pragma once
// A rank's side of its keeper (message.h). When the keeper dies the line is over: what is mapped stays mapped and usable, and a new keeper can be
// connected to.
//
// Thread rule: any thread; each call waits for the keeper's answer, kKeeperLimit at most. A thread of its own reads what comes.

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/handle.h"
#include "base/result.h"
#include "checkpoint/image.h"
#include "checkpoint/keeper/message.h"

namespace gangline::checkpoint {

inline constexpr Duration kKeeperLimit = seconds(5);

struct WhoKeeps {
    std::uint64_t job = 0;
    std::uint32_t attempt = 0;
    std::uint32_t rank = 0;
    std::uint64_t most_bytes = 0;  // of snapshots on this node; 0 = as many as it bears
    std::string folder;            // of the job's checkpoints, absolute
};

class KeeperClient {
  public:
    using Held = std::function<void(std::uint64_t step)>;
    // `held`, on the reading thread: another node's keeper has a copy of this step; it must not call back. Errors: Unavailable: nobody of that name, or another user's.
    static Result<std::unique_ptr<KeeperClient>> connect(const std::string& keeper_socket, const WhoKeeps& who, Held held = {});
    ~KeeperClient();

    bool is_open() const;
    // Memory for the next snapshot, mapped and touched; it stays mapped while this object lives. What it held does not count any more.
    // Errors: NoSpace (the budget, memory); Unavailable.
    struct Place {
        std::uint64_t slot = 0;
        ImageMemory* memory = nullptr;
    };
    Result<Place> want(std::uint64_t size);
    // The slot holds this step: the image, and the part behind it.
    Result<void> whole(std::uint64_t slot, std::uint64_t step, std::uint64_t image_size, std::uint64_t part_size);
    Result<void> durable(std::uint64_t step);
    // A snapshot of any rank that this keeper holds. Nothing: not here.
    struct Snapshot {
        Fd memory;
        std::uint64_t image_size = 0;
        std::uint64_t part_size = 0;
    };
    std::optional<Snapshot> find(std::uint32_t rank, std::uint32_t attempt, std::uint64_t step);
    void done();  // with all that was found
    // Where other nodes reach this keeper, as peer.h writes it. Nothing: they cannot.
    std::optional<std::string> where();
    // The keeper on another node (what its where() said) that is to have copies of this rank's snapshots, also of the one that is whole now.
    Result<void> set_peer(const std::string& where);

  private:
    KeeperClient(Fd socket, const WhoKeeps& who, Held held);
    Result<KeeperPacket> ask(const KeeperMessage& message);
    Result<void> tell(const KeeperMessage& message, std::string_view text = {});
    void read();
    void close();

    mutable std::mutex mutex_;                     // one question at a time
    const Fd socket_;
    const WhoKeeps who_;
    const Held held_;
    std::map<std::uint64_t, ImageMemory> mapped_;  // by slot
    mutable std::mutex answer_mutex_;
    std::condition_variable answered_;
    std::optional<KeeperPacket> answer_;
    bool is_open_ = true;
    bool is_stopping_ = false;
    std::thread reader_;
};

}  // namespace gangline::checkpoint
