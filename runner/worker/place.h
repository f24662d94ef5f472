#pragma once
// Where this process stands: which rank of which gang, read from the environment (docs/protocol.md). Pure.

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/retention.h"
#include "checkpoint/checksum.h"
#include "checkpoint/store.h"
#include "runner/worker/copy_mode.h"

namespace gangline {

struct RestorePoint {
    checkpoint::CheckpointId id;
    checkpoint::Sha256 digest{};
    bool in_memory = false;  // never committed, so there is no digest
};

// Who may have snapshots of these ranks of an earlier attempt: the ranks of this gang whose keepers are to be asked, the likeliest first.
struct SnapshotsFrom {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    std::vector<std::uint32_t> ranks;
};

struct Place {
    std::uint32_t rank = 0;
    std::uint32_t size = 1;
    std::uint64_t job = 0;
    std::uint32_t attempt = 0;
    std::uint32_t restarts = 0;
    bool is_alone = true;             // not started by Gangline
    std::string worker_socket;        // alone: the name under which the ranks of one run find each other
    std::string progress_path;        // empty when alone
    std::string checkpoint_folder;
    std::optional<RestorePoint> restore;
    std::vector<SnapshotsFrom> snapshots_from;  // GANGLINE_RESTORE_FROM
    std::optional<std::uint32_t> replica_rank;  // a rank of the node whose keeper has copies of our snapshots; GANGLINE_CHECKPOINT_REPLICAS=0: none
    bool recycles = true;             // deleted checkpoints' files are written over; GANGLINE_CHECKPOINT_RECYCLE=0: never
    std::optional<std::uint64_t> memory_mib;  // of snapshots on this node; 0: none; not set: as many as the node bears. GANGLINE_CHECKPOINT_MEMORY_MIB
    std::set<std::string, std::less<>> reseed;  // GANGLINE_RESEED: tensors of each rank's own that a gang of another size gives up
    bool saves_in_memory = true;      // should_save() may decide on memory alone: GANGLINE_CHECKPOINT_TIERS=auto; =disk: each save goes to disk
    CopyWish copies = CopyWish::Auto; // fenced saves copy the state, or not: GANGLINE_CHECKPOINT_COPY=auto, copy, straight
    bool writes_views = true;         // view.h5 beside each checkpoint's shards; GANGLINE_CHECKPOINT_VIEW=0: only by `gangline ckpt view`
    std::uint32_t scrub_mib_s = 32;   // checkpoints are read back at this rate; GANGLINE_CHECKPOINT_SCRUB, 0: not at all
    std::uint32_t write_mib_s = 0;    // most of this rank's shard; GANGLINE_CHECKPOINT_WRITE_MIB_S, 0: as fast as the disk
    RetentionRule rule;               // by which checkpoints stay: decided here when alone, else by the coordinator
    double mean_between_failures_s = 86'400 / 6.5e-3;  // of this gang; one node's at Meta's RSC-1, where nobody knows better
};

using Getenv = std::function<const char*(const char* name)>;
// `run_key` names this run among others of the same user on this host when no launcher's variable does.
// Errors: InvalidArgument that names the variable and its value.
Result<Place> read_place(const Getenv& get, const std::string& run_key);

}  // namespace gangline
