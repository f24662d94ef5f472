#pragma once
// The keeper: one process for each job and node, run as the job's user. It owns the memory in which the ranks' snapshots lie, so that a snapshot
// outlives its rank: a restarted rank reads it back from there, and what a dead rank had not yet brought to disk the keeper brings.
//
//   rank --copies--> memfd <--maps-- keeper --(the rank died)--> shard and part on disk
//                      '------------reads-- the rank of the next attempt
//
// While its rank lives the rank itself writes to disk, block by block as it copies: the keeper's own death costs the memory tier until the
// next one is started, and no durable state.
// Thread rule: run() on one thread; it starts one that writes.

#include <map>
#include <memory>
#include <string>

#include "base/framing.h"
#include "base/handle.h"
#include "base/result.h"
#include "base/time.h"
#include "checkpoint/keeper/arenas.h"
#include "checkpoint/keeper/message.h"
#include "checkpoint/keeper/persister.h"

namespace gangline::checkpoint {

struct KeeperOptions {
    Fd agents;                       // a listening stream socket: the agent says there when the keeper is not needed any more
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
        std::uint32_t rank = 0;
        std::uint32_t attempt = 0;
        std::uint64_t most_bytes = 0;
        std::string folder;
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
    bool on_want(LineNumber line, const Rank& rank, std::uint64_t size);
    bool on_find(LineNumber line, const Rank& rank, const KeeperMessage& message);
    bool serve(Agent& agent);
    void close(LineNumber line);
    void collect();                                // what the writing thread has done
    bool is_over(TimePoint at);
    std::uint64_t budget_for(const Rank& rank) const;

    KeeperOptions options_;
    Fd ranks_;
    Fd wake_;
    Arenas arenas_;
    std::map<SlotNumber, Fd> memory_;
    std::map<LineNumber, Rank> lines_;
    std::map<LineNumber, Agent> agents_lines_;
    LineNumber next_line_ = 1;
    std::uint64_t job_ = 0;
    std::optional<TimePoint> quit_by_;
    TimePoint needed_;                             // last
    std::mutex mutex_;
    std::vector<std::pair<SlotNumber, bool>> persisted_;
    std::unique_ptr<Persister> persister_;
};

int keeper_main(int argc, char** argv);

}  // namespace gangline::checkpoint
