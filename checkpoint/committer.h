#pragma once
// The committer: when do the shards of a step become a checkpoint? A brain without clock, file or socket.
//
//   Gathering --all ranks' shards--> Gathered --its turn--> Writing --manifest durable--> Asked --yes--> published
//       |                               |                      |                            |
//       +- a rank failed, or too late   +- a newer step is     +- it cannot be              +- no
//                                          gathered too           written
//
// One step at a time is between Writing and the answer, so a silent coordinator delays saves but never piles them up: a
// gathered step that waits gives way to a newer one. The request is repeated until it is answered. Until then nobody
// knows whether the checkpoint counts, so its folder is not touched. Steps must rise; a step that has ended stays ended.
// Thread rule: one thread.

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/time.h"
#include "checkpoint/checksum.h"
#include "checkpoint/store.h"

namespace gangline::checkpoint {

struct ShardDurable { std::uint32_t rank = 0; std::uint32_t attempt = 0; std::uint64_t step = 0; Sha256 part{}; };
struct ShardFailed { std::uint32_t rank = 0; std::uint32_t attempt = 0; std::uint64_t step = 0; std::string reason; };
struct ManifestWritten { std::uint64_t step = 0; Sealed manifest; };
struct ManifestFailed { std::uint64_t step = 0; std::string reason; };
struct CommitReply {
    std::uint64_t step = 0;
    bool accepted = false;
    std::string reason;
    std::vector<CheckpointId> keep;
    std::uint64_t keep_every = 0;  // besides, each whose step is a multiple of it; 0: none
};
struct Tick {};
using CommitterEvent = std::variant<ShardDurable, ShardFailed, ManifestWritten, ManifestFailed, CommitReply, Tick>;

struct WriteManifest { std::uint64_t step = 0; std::vector<Sha256> parts; };  // answer: ManifestWritten or ManifestFailed
struct AskCoordinator { std::uint64_t step = 0; Sealed manifest; };           // answer: CommitReply
struct Publish { std::uint64_t step = 0; Sha256 digest{}; };
struct DropTemporary { std::uint64_t step = 0; };
struct DeleteOld { std::uint64_t step = 0; std::vector<CheckpointId> keep; std::uint64_t keep_every = 0; };
struct WriteView { std::uint64_t step = 0; };  // for people; when there is time
struct Tell { std::uint64_t step = 0; bool committed = false; std::string reason; };  // every rank
struct Complain { std::string what; };                                                // shown to the user
using CommitterAction = std::variant<WriteManifest, AskCoordinator, Publish, DropTemporary, DeleteOld, WriteView, Tell, Complain>;

// How long the shards of a step may take, from the first to the last: 4 x the 99th percentile of what was seen, within bounds. A step that came
// too late counts with the time that it was given, so that a disk that has become slow fails a save or two and not all.
class GatherHistory {
  public:
    static constexpr Duration kFirst = seconds(600);  // nothing was seen yet
    static constexpr Duration kLeast = seconds(60);
    static constexpr Duration kMost = seconds(3600);
    void took(Duration time);
    Duration limit() const;

  private:
    static constexpr std::size_t kRemembered = 256;
    std::deque<Duration> times_;  // the newest
};

struct CommitterOptions {
    std::uint32_t world = 1;
    std::uint32_t attempt = 0;
    Duration ask_again = milliseconds(1000);
    Duration complain_after = seconds(10);  // an unanswered request is shown once
};

class Committer {
  public:
    explicit Committer(const CommitterOptions& options) : options_(options) {}
    // Actions are performed in order; each is safe to repeat.
    std::vector<CommitterAction> step(const CommitterEvent& event, TimePoint now);
    std::optional<TimePoint> next_deadline() const;
    bool is_idle() const { return saves_.empty(); }

  private:
    enum class State { Gathering, Gathered, Writing, Asked };
    struct Save {
        State state = State::Gathering;
        std::vector<std::optional<Sha256>> parts;
        std::uint32_t durable = 0;
        TimePoint begun;
        Duration limit{0};  // for its shards
        TimePoint asked;
        TimePoint ask_next;
        bool has_complained = false;
        Sealed manifest;
    };
    using Saves = std::map<std::uint64_t, Save>;

    void on(const ShardDurable& event, TimePoint now);
    void on(const ShardFailed& event, TimePoint now);
    void on(const ManifestWritten& event, TimePoint now);
    void on(const ManifestFailed& event, TimePoint now);
    void on(const CommitReply& event, TimePoint now);
    void on(const Tick& event, TimePoint now);
    Save* save_of(std::uint64_t step, TimePoint now);
    void fail(std::uint64_t step, const std::string& reason);
    void end(Saves::iterator at);
    void advance();
    std::string stale(std::uint32_t rank, std::uint32_t attempt) const;

    CommitterOptions options_;
    Saves saves_;
    GatherHistory gathers_;
    std::uint64_t ended_ = 0;  // the highest step that has ended, plus one
    std::vector<CommitterAction> actions_;
};

}  // namespace gangline::checkpoint
