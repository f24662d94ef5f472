#pragma once
// The keeper: one process for each job and node, run as the job's user. It owns the memory in which the ranks' snapshots lie, so that a snapshot
// outlives its rank: a restarted rank reads it back from there, and what a dead rank had not yet brought to disk the keeper brings.
//
//   rank --copies--> memfd <--maps-- keeper --(the rank died)--> shard and part on disk
//                      |               '--copies--> the keeper of another node (replicator.h, peer_server.h)
//                      '------------reads-- the rank of the next attempt
//
// While its rank lives the rank itself writes to disk, block by block as it copies: the keeper's own death costs the memory tier until the
// next one is started, and no durable state. Replicas of a node that is lost serve those who restore, and are then brought to disk.
// Thread rule: run() on one thread; it starts one that writes, and those of the two doors to other nodes.

#include <map>
#include <memory>
#include <string>

#include "base/framing.h"
#include "base/handle.h"
#include "base/result.h"
#include "base/time.h"
#include "checkpoint/keeper/message.h"
#include "checkpoint/keeper/peer_server.h"
#include "checkpoint/keeper/replicator.h"
#include "checkpoint/keeper/snapshots.h"

namespace gangline::checkpoint {

struct KeeperOptions {
    Fd agents;                       // a listening stream socket: the agent says there when the keeper is not needed any more
    std::string address = "127.0.0.1";  // of this node, where other nodes' keepers reach this one
    std::string name;                // of that socket; ranks connect to ranks_socket(name)
    std::uint32_t agent_uid = 0;     // who may connect there, besides root and our own user
    Duration linger = seconds(900);  // without rank and agent: then it ends by itself
    Duration quit_limit = seconds(300);  // for what is still to be brought to disk
};

class Keeper {
  public:
    // Errors: Unavailable: the name is taken.
    static Result<std::unique_ptr<Keeper>> make(KeeperOptions options);
    // Serves until the agent says Quit, or nobody has come for `linger`; then brings the rest to disk. Returns the exit status.
    int run();

  private:
    explicit Keeper(KeeperOptions options);
    struct Rank {
        Fd socket;
        bool has_joined = false;
        SnapshotOwner owner;
    };
    struct Agent {
        Fd socket;
        FrameReader reader;
        FrameWriter writer;
    };
    void accept_ranks();
    void accept_agents();
    bool serve(LineNumber line, Rank& rank);       // false: the line is over
    bool on_message(LineNumber line, Rank& rank, const KeeperPacket& packet);
    bool on_join(Rank& rank, const KeeperPacket& packet);
    bool on_want(LineNumber line, const Rank& rank, std::uint64_t size);
    bool on_where(const Rank& rank);
    bool on_peer(LineNumber line, const Rank& rank, const std::string& text);
    bool on_find(LineNumber line, const Rank& rank, const KeeperMessage& message);
    bool serve(Agent& agent);
    void close(LineNumber line);
    void wake();
    void collect();                                // what other threads have done
    bool is_over(TimePoint at);

    KeeperOptions options_;
    Fd ranks_;
    Fd wake_;
    std::uint64_t job_ = 0;
    std::map<LineNumber, Rank> lines_;
    std::map<std::uint64_t, Agent> agents_lines_;
    std::uint64_t next_agent_ = 1;
    std::optional<TimePoint> quit_by_;
    TimePoint needed_;                             // last
    std::mutex mutex_;
    std::vector<std::pair<LineNumber, std::uint64_t>> replicated_;  // whose copies another keeper holds now, and the step
    Snapshots snapshots_;
    std::unique_ptr<PeerServer> door_;             // none: nobody reaches this node
    std::unique_ptr<Replicator> replicator_;       // once the job is known
};

int keeper_main(int argc, char** argv);

}  // namespace gangline::checkpoint
