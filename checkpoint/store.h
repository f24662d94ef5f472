#pragma once
// The folder in which a job's checkpoints lie. One rename publishes a checkpoint.
//
//   <root>/step-000000001200-e000003/        published: MANIFEST and the shards that it lists
//   <root>/.tmp-step-000000001200-e000003/   being written (e = the attempt that writes it)
//   <root>/.del-step-.../                    being deleted
//   <root>/.bad-step-.../                    set aside: found damaged when it was read back; the newest one is kept for diagnosis
//   <root>/.retention                        the rule by which the job's checkpoints stay (base/retention.h), for `ckpt ls`
//   <root>/.pool/                            shards of deleted checkpoints, whose space the next save takes (shard.h)
//
// Only these exact names are ever touched. A temporary folder counts only when its MANIFEST has the SHA-256 that the
// caller names (the coordinator has committed it; the rename was lost with the committer), and is then published.
// Symbolic links in the place of a checkpoint's folder or files are refused.
// Thread rule: const calls from any thread; two callers may race for the same folder, also from other processes.

#include <compare>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/handle.h"
#include "base/result.h"
#include "base/retention.h"
#include "checkpoint/disk.h"
#include "checkpoint/manifest.h"
#include "checkpoint/marks.h"
#include "checkpoint/reader.h"
#include "checkpoint/shard.h"

namespace gangline::checkpoint {

struct CheckpointId {
    std::uint64_t step = 0;
    std::uint32_t attempt = 0;
    friend auto operator<=>(const CheckpointId&, const CheckpointId&) = default;
};
std::string folder_name(const CheckpointId& id);  // "step-000000001200-e000003"
std::optional<CheckpointId> parse_folder_name(std::string_view name);

// A part or a manifest that lies in a temporary folder: how others recognise it.
struct Sealed {
    Sha256 digest{};
    std::uint64_t total_bytes = 0;  // of the shards it lists
    std::optional<double> metric = {};
};

enum class IfThere { Refuse, Exchange };

class Store {
  public:
    // Makes the folder (0700) when it is missing. Errors: InvalidArgument with the path.
    static Result<Store> open(const std::string& root, Disk& disk = real_disk());
    const std::string& root() const { return root_; }
    Disk& disk() const { return *disk_; }

    // The temporary folder, made when missing.
    Result<Fd> temporary(const CheckpointId& id) const;
    // A rank's part of the manifest, beside its shard. It need not survive a crash: it serves its own attempt only.
    Result<Sealed> write_part(const CheckpointId& id, const Part& part) const;
    Result<Sealed> write_part(const CheckpointId& id, const Manifest& part) const;
    // A rank's part that lies there. Errors: NotFound, Damaged.
    Result<Manifest> read_part(const CheckpointId& id, std::uint32_t rank) const;
    // Reads the parts of all ranks (each must be the one that its rank announced), checks that the shards are there, and
    // writes MANIFEST, fsynced, and all names that lead to it. Errors: NoSpace; InvalidArgument when ranks disagree; Damaged; Internal.
    // Whoever writes many keeps the merger for the next one.
    Result<Sealed> write_manifest(const CheckpointId& id, std::span<const Sha256> parts, Merger& merger) const;
    Result<Sealed> write_manifest(const CheckpointId& id, std::span<const Sha256> parts) const;
    // Renames the temporary folder to its final name and fsyncs the root. Done already: fine. Errors: Damaged when
    // neither is there with this digest; Internal.
    Result<void> publish(const CheckpointId& id, const Sha256& digest, IfThere if_there = IfThere::Refuse) const;
    Result<void> drop_temporary(const CheckpointId& id) const;

    // The checkpoint that the coordinator names; published on the way when that was still to do.
    // Errors: Damaged: missing, or not what was committed.
    Result<Checkpoint> find(const CheckpointId& id, const Sha256& digest) const;
    // A published checkpoint by its own manifest (where no coordinator remembers the digest). Errors: NotFound, Damaged; Refused: of a newer program.
    Result<Checkpoint> open_published(const CheckpointId& id) const;
    // One that was never published: its manifest is whole, but nobody has said that it counts. Errors: NotFound, Damaged.
    Result<Checkpoint> open_temporary(const CheckpointId& id) const;
    std::vector<CheckpointId> published() const;  // ascending
    // Takes a retired shard's file out of the pool.
    Recycle recycle() const;
    // Whether the open folder is still the one that is published under this name.
    bool has_name(const CheckpointId& id, int folder) const;
    // Takes a damaged checkpoint out of the published ones. Not there: fine.
    Result<void> set_aside(const CheckpointId& id) const;
    std::vector<CheckpointId> aside() const;  // ascending
    // Of a published checkpoint; nothing of one that is not there.
    Marks marks(const CheckpointId& id) const;
    // For people and `ckpt ls`; may be lost with the machine's power.
    Result<void> write_rule(const RetentionRule& rule) const;
    // A file beside a published checkpoint's, in place of an older one of that name; durable. Errors: NotFound; NoSpace; Internal.
    Result<void> add_file(const CheckpointId& id, const std::string& name, std::string_view content) const;
    // Gives the pool's space back to the file system.
    void empty_pool() const;

    struct Kept {
        std::uint64_t job = 0;
        CheckpointId newest;             // just committed by the caller's attempt
        std::vector<CheckpointId> keep;  // besides
        bool recycles = true;            // shards go into the pool
        std::uint64_t every = 0;         // each whose step is a multiple of it stays, too; 0: none
    };
    // Deletes the job's published checkpoints of this and earlier attempts that are neither kept nor pinned, and what earlier attempts
    // and earlier saves of this one have left behind. One that somebody reads (a shared flock) waits for the next call.
    // Shards go into the pool, as many as one checkpoint has.
    // Returns what could not be deleted, in words; empty when all is well.
    std::string delete_old(const Kept& kept) const;

  private:
    Store(std::string root, Fd folder, Disk& disk) : root_(std::move(root)), folder_(std::move(folder)), disk_(&disk) {}
    struct Opened {
        Checkpoint checkpoint;
        Sha256 digest;  // of its manifest
    };
    Result<Opened> open_folder(const std::string& name) const;
    bool has_manifest(const std::string& name, const Sha256& digest) const;
    Result<void> rename_into_place(const CheckpointId& id, IfThere if_there) const;
    Result<void> sync_root() const;
    std::string remove_folder(const std::string& name, std::size_t most_retired = 0) const;
    bool takes_name_back(int folder, const std::string& doomed) const;
    void retire_shards(int folder, std::size_t most) const;
    void delete_file(int folder, const std::string& name) const;
    Result<Sealed> write_part(const CheckpointId& id, const Manifest& head, const std::string& file) const;
    Result<void> write_file(int folder, const std::string& name, std::string_view content, bool durable) const;

    std::string root_;
    Fd folder_;
    Disk* disk_;
};

// What the open folder holds, in order, without "." and ".."; empty when it cannot be read.
std::vector<std::string> names_in(int folder);

}  // namespace gangline::checkpoint
