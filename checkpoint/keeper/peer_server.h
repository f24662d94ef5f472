#pragma once
// A keeper's door for other nodes (peer.h): it takes copies of their ranks' snapshots, and gives what it has to ranks that restore.
//
// Thread rule: one thread listens, and one serves each line; all end with this object.

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "base/handle.h"
#include "base/result.h"
#include "checkpoint/keeper/peer.h"
#include "checkpoint/keeper/snapshots.h"

namespace gangline::checkpoint {

class PeerServer {
  public:
    // Errors: Unavailable: this node has no such address.
    static Result<std::unique_ptr<PeerServer>> listen(const std::string& host, Snapshots& snapshots);
    ~PeerServer();
    const KeeperAddress& address() const { return address_; }
    // Of this keeper's job; lines of others are refused. 0: not known yet.
    void set_job(std::uint64_t job) { job_ = job; }

  private:
    PeerServer(Fd listener, KeeperAddress address, Snapshots& snapshots);
    struct Served {
        std::thread thread;
        std::atomic<int> fd{-1};
        std::atomic<bool> is_over{false};
    };
    void run();
    void serve(Served& served, Fd socket);
    Result<void> serve_line(PeerLine& line, LineNumber number, SnapshotOwner& owner, bool& is_lost);
    Result<void> take(PeerLine& line, LineNumber number, const SnapshotOwner& owner, const KeeperMessage& message);
    Result<void> give(PeerLine& line, LineNumber number, const KeeperMessage& message);

    Fd listener_;
    const KeeperAddress address_;
    Snapshots& snapshots_;
    std::atomic<std::uint64_t> job_{0};
    std::atomic<bool> is_stopping_{false};
    std::list<Served> served_;  // the listening thread's
    std::thread thread_;
};

}  // namespace gangline::checkpoint
