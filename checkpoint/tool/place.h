#pragma once
// Which checkpoints a person means, and in which state they are: a tool's view of the folder that Store (store.h) owns.
//
//   FOLDER            all of its checkpoints; where one is needed, the newest durable one
//   FOLDER/step-...   that one              FOLDER STEP   the newest attempt's of that step
//
// Reads only, makes nothing, and follows no link in the place of a checkpoint's folder or files. Order is (job, attempt,
// step): a higher step of an earlier attempt is older. An opened checkpoint is locked against `prune` (flock, shared).
// Thread rule: one thread an object.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/handle.h"
#include "base/result.h"
#include "base/time.h"
#include "checkpoint/checksum.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"

namespace gangline::checkpoint::tool {

enum class State {
    Durable,     // MANIFEST verifies, every shard is there with its size
    Damaged,     // published, but not that
    Unfinished,  // a temporary folder: being saved, or left behind
    Deleting,    // has lost its name already
    Tainted,     // set aside: found damaged when it was read back
};
std::string_view name_of(State state);

struct Entry {
    std::string name;
    CheckpointId id;
    State state = State::Damaged;
    std::string why;  // Damaged: what is wrong
    std::uint64_t job = 0;  // 0: unknown
    std::uint64_t shards = 0;
    std::uint64_t tensors = 0;
    std::uint64_t bytes = 0;  // of the folder's files as they are
    std::int64_t changed_unix_s = 0;  // the newest change of the folder or a file in it
    std::int64_t written_unix_s = 0;  // of its MANIFEST; 0: there is none
    bool has_manifest = false;
    Marks marks;
    std::optional<double> metric;
    std::uint64_t device = 0;  // the folder's
    std::uint64_t inode = 0;
};

struct Place {
    std::string root;
    std::optional<CheckpointId> only;
};

struct Opened {
    CheckpointId id;
    std::string path;
    Fd folder;  // holds the lock
    Checkpoint checkpoint;
    Sha256 digest{};
};

// One or two words. Errors: InvalidArgument, naming the word; NotFound: no such folder, or no such step in it.
Result<Place> place_of(std::span<const std::string> words);
Result<Fd> open_root(const Place& place);
// All that the root holds under Store's names, newest last; behind them the unfinished and those being deleted.
Result<std::vector<Entry>> entries_of(const Place& place);
// Errors: NotFound; Damaged; Refused: it is being deleted.
Result<Opened> open_checkpoint(const Place& place, const CheckpointId& id);
// The one that is meant, or the newest durable one. Errors: as above; NotFound when none is durable.
Result<Opened> open_one(const Place& place);
// Errors: Damaged: a shard that is missing, is no regular file or has another size.
Result<void> check_shards(const Opened& opened);

// "; it has folders of jobs: give .../job-12" where the root is one level too high; else empty.
std::string job_folders_hint(const Place& place);

}  // namespace gangline::checkpoint::tool
