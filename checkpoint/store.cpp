#include "checkpoint/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>

#include <fmt/format.h>

#include "base/process.h"

namespace gangline::checkpoint {
namespace {

constexpr const char* kManifestName = "MANIFEST";
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kDeleting = ".del-";
constexpr std::string_view kAside = ".bad-";
constexpr const char* kPool = ".pool";
constexpr const char* kRule = ".retention";
constexpr std::uint64_t kSlice = 256u << 20;
constexpr std::size_t kMostManifestBytes = 1u << 30;

std::string pool_name(std::uint64_t size) { return fmt::format("{}-{}", size, random_hex(8)); }

std::string part_name(std::uint32_t rank) { return fmt::format(".part-{:05}", rank); }

Result<Fd> open_folder_at(int parent, const std::string& name) {
    Fd fd(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd && (errno == ELOOP || errno == ENOTDIR)) {
        return Error{Code::Damaged, fmt::format("{} is not a folder (symbolic links are refused)", name)};
    }
    if (!fd) return errno_error("cannot open the folder " + name);
    return fd;
}

Result<std::string> read_file_at(int folder, const std::string& name) {
    const Fd fd(::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0) return errno_error("cannot open " + name);
    if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) > kMostManifestBytes) {
        return Error{Code::Damaged, name + " is not a regular file of a sane size"};
    }
    std::string content(static_cast<std::size_t>(status.st_size), '\0');
    for (std::size_t filled = 0; filled < content.size();) {
        const ssize_t n = ::read(fd.get(), content.data() + filled, content.size() - filled);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return Error{Code::Damaged, name + " cannot be read to its end"};
        filled += static_cast<std::size_t>(n);
    }
    return content;
}

std::string temporary_name(const CheckpointId& id) { return std::string(kTemporary) + folder_name(id); }

bool is_kept(const Store::Kept& kept, const CheckpointId& id) {
    return id == kept.newest || std::find(kept.keep.begin(), kept.keep.end(), id) != kept.keep.end();
}

}  // namespace

std::vector<std::string> names_in(int folder) {
    std::vector<std::string> names;
    const int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* stream = copy < 0 ? nullptr : ::fdopendir(copy);
    if (stream == nullptr) {
        if (copy >= 0) ::close(copy);
        return names;
    }
    while (const dirent* entry = ::readdir(stream)) {
        const std::string name = entry->d_name;
        if (name != "." && name != "..") names.push_back(name);
    }
    ::closedir(stream);
    std::sort(names.begin(), names.end());
    return names;
}

std::string folder_name(const CheckpointId& id) { return fmt::format("step-{:012}-e{:06}", id.step, id.attempt); }

std::optional<CheckpointId> parse_folder_name(std::string_view name) {
    CheckpointId id;
    unsigned long long step = 0;
    if (name.size() > 64 || std::sscanf(std::string(name).c_str(), "step-%20llu-e%9u", &step, &id.attempt) != 2) return std::nullopt;
    id.step = step;
    if (folder_name(id) != name) return std::nullopt;
    return id;
}

namespace {

// As make_folders, and their names are durable before anything is written into them. Who finds a folder made leaves that to its maker,
// another rank of the same gang: no checkpoint is committed before every rank has come past here.
Result<void> make_durable_folders(Disk& disk, const std::filesystem::path& path, unsigned mode) {
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) return {};
    const std::filesystem::path parent = path.parent_path();
    if (!path.has_filename()) return make_durable_folders(disk, parent, mode);  // a slash at the end
    if (!parent.empty()) {
        if (auto made = make_durable_folders(disk, parent, 0755); !made) return made;
    }
    if (disk.make_folder_at(AT_FDCWD, path.c_str(), mode) != 0) {
        if (errno == EEXIST) return {};
        return errno_error("cannot make the folder " + path.string());
    }
    const Fd folder(::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder || disk.sync(folder.get()) == 0) return {};
    const Error error = errno_error("cannot fsync the folder of " + path.string());
    disk.unlink_at(AT_FDCWD, path.c_str(), AT_REMOVEDIR);  // whoever tries again is not to take it for durable
    return error;
}

}  // namespace

Result<Store> Store::open(const std::string& root, Disk& disk) {
    auto refuse = [&](const std::string& why) {
        return Error{Code::InvalidArgument, fmt::format("checkpoint folder {}: {}; choose another with --checkpoint-dir", root, why)};
    };
    if (auto made = make_durable_folders(disk, root, 0700); !made) return refuse(made.error().message);
    Fd folder(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder) return refuse(std::strerror(errno));
    if (::faccessat(folder.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) return refuse("it cannot be written");
    return Store(root, std::move(folder), disk);
}

Result<Fd> Store::temporary(const CheckpointId& id) const {
    const std::string name = temporary_name(id);
    if (disk_->make_folder_at(folder_.get(), name.c_str(), 0700) != 0 && errno != EEXIST) {
        return errno_error(fmt::format("cannot make the folder {}/{}", root_, name));
    }
    return open_folder_at(folder_.get(), name);
}

Result<Sealed> Store::write_part(const CheckpointId& id, const Part& part) const { return write_part(id, part.head, encode(part)); }
Result<Sealed> Store::write_part(const CheckpointId& id, const Manifest& part) const { return write_part(id, part, encode(part)); }

Result<Sealed> Store::write_part(const CheckpointId& id, const Manifest& head, const std::string& file) const {
    auto folder = temporary(id);
    if (!folder) return folder.error();
    if (auto written = write_file(folder->get(), part_name(head.shards.at(0).rank), file, false); !written) return written.error();
    return Sealed{seal_of(file), head.total_bytes()};
}

Result<Manifest> Store::read_part(const CheckpointId& id, std::uint32_t rank) const {
    auto folder = open_folder_at(folder_.get(), temporary_name(id));
    if (!folder) return folder.error();
    const auto file = read_file_at(folder->get(), part_name(rank));
    if (!file) return file.error();
    auto part = parse(*file);
    if (!part) return part.error();
    if (part->step != id.step || part->attempt != id.attempt || part->shards.size() != 1 || part->shards[0].rank != rank) {
        return Error{Code::Damaged, fmt::format("{}/{}: {} is another rank's or another save's", root_, temporary_name(id), part_name(rank))};
    }
    return part;
}

Result<Sealed> Store::write_manifest(const CheckpointId& id, std::span<const Sha256> parts) const {
    Merger merger;
    return write_manifest(id, parts, merger);
}

Result<Sealed> Store::write_manifest(const CheckpointId& id, std::span<const Sha256> parts, Merger& merger) const {
    auto folder = open_folder_at(folder_.get(), temporary_name(id));
    if (!folder) return folder.error();
    std::vector<std::string> files;
    for (std::uint32_t rank = 0; rank < parts.size(); ++rank) {
        auto file = read_file_at(folder->get(), part_name(rank));
        if (!file) return file.error();
        if (seal_of(*file) != parts[rank]) {
            return Error{Code::Damaged, fmt::format("rank {}'s part is not the one that it announced", rank)};
        }
        files.push_back(std::move(*file));
    }
    const auto whole = merger.merge(files);
    if (!whole) return whole.error();
    std::set<std::string> listed{kManifestName};
    for (const ShardRecord& shard : whole->head.shards) {
        struct stat status {};
        if (::fstatat(folder->get(), shard.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode) ||
            static_cast<std::uint64_t>(status.st_size) != shard.size) {
            return Error{Code::Damaged, fmt::format("{} is not there with {} bytes", shard.name, shard.size)};
        }
        listed.insert(shard.name);
    }
    // The names change first and the syncs come last, side by side: the file system's journal then carries all of it at once. Half a manifest
    // under its name does no harm here: in a temporary folder it counts by its digest alone.
    for (const std::string& name : names_in(folder->get())) {
        if (!listed.contains(name)) disk_->unlink_at(folder->get(), name.c_str(), 0);  // parts, and shards of a dead run
    }
    if (auto written = write_file(folder->get(), kManifestName, whole->file, true); !written) return written.error();
    if (disk_->sync(folder->get()) != 0) return errno_error("cannot fsync the folder of the manifest");
    if (auto synced = sync_root(); !synced) return synced.error();  // the temporary folder's own name: it may be committed under it
    return Sealed{seal_of(whole->file), whole->head.total_bytes(), whole->head.metric};
}

Result<void> Store::rename_into_place(const CheckpointId& id, IfThere if_there) const {
    const std::string from = temporary_name(id);
    const std::string to = folder_name(id);
    if (auto is_folder = open_folder_at(folder_.get(), from); !is_folder) return is_folder.error();
    int failed = disk_->rename_at(folder_.get(), from.c_str(), folder_.get(), to.c_str(), RENAME_NOREPLACE);
    if (failed != 0 && errno == EINVAL) {  // a file system without the flag; a folder never replaces one that is not empty
        failed = disk_->rename_at(folder_.get(), from.c_str(), folder_.get(), to.c_str(), 0);
    }
    if (failed != 0 && errno == EEXIST && if_there == IfThere::Exchange) {
        failed = disk_->rename_at(folder_.get(), from.c_str(), folder_.get(), to.c_str(), RENAME_EXCHANGE);
    }
    if (failed != 0) return errno_error(fmt::format("cannot publish {}/{}", root_, to));
    return {};
}

Result<void> Store::sync_root() const {
    if (disk_->sync(folder_.get()) != 0) return errno_error("cannot fsync " + root_);
    return {};
}

Result<void> Store::publish(const CheckpointId& id, const Sha256& digest, IfThere if_there) const {
    Result<void> renamed = Error{Code::Damaged, fmt::format("{}/{} does not have the manifest {}", root_, temporary_name(id), to_hex(digest))};
    if (has_manifest(temporary_name(id), digest)) renamed = rename_into_place(id, if_there);
    // Another process may have been first, and not have come to its fsync.
    if (!renamed && !has_manifest(folder_name(id), digest)) return renamed;
    if (auto synced = sync_root(); !synced) return synced;
    // What was exchanged for it goes only now: the other way round a loss of power could leave the old one, emptied, in its place.
    if (if_there == IfThere::Exchange) remove_folder(temporary_name(id));
    return {};
}

Result<void> Store::drop_temporary(const CheckpointId& id) const {
    const std::string problem = remove_folder(temporary_name(id));
    if (!problem.empty()) return Error{Code::Internal, problem};
    return {};
}

// Whether the folder has this very manifest, to the last bit.
bool Store::has_manifest(const std::string& name, const Sha256& digest) const {
    const auto folder = open_folder_at(folder_.get(), name);
    if (!folder) return false;
    const auto file = read_file_at(folder->get(), kManifestName);
    return file && seal_of(*file) == digest && is_sealed(*file);
}

Result<Store::Opened> Store::open_folder(const std::string& name) const {
    auto folder = open_folder_at(folder_.get(), name);
    if (!folder) return folder.error();
    const std::string place = root_ + "/" + name;
    const auto file = read_file_at(folder->get(), kManifestName);
    if (!file) return Error{file.error().code == Code::NotFound ? Code::NotFound : Code::Damaged, place + ": " + file.error().message};
    auto manifest = parse(*file);
    if (!manifest) return Error{manifest.error().code, fmt::format("{}: {}", place, manifest.error().message)};
    if (!manifest->is_whole()) return Error{Code::Damaged, place + ": the manifest does not list every rank's shard"};
    return Opened{Checkpoint(std::move(*folder), std::move(*manifest), place), seal_of(*file)};
}

Result<Checkpoint> Store::find(const CheckpointId& id, const Sha256& digest) const {
    // Several ranks look at once: one of them may publish between the two looks of another.
    for (int round = 0; round < 3; ++round) {
        auto published = open_folder(folder_name(id));
        if (published && published->digest == digest) return std::move(published->checkpoint);
        if (published) {
            return Error{Code::Damaged, fmt::format("{}: its manifest is not the committed one ({})", published->checkpoint.place(), to_hex(digest))};
        }
        if (published.error().code != Code::NotFound) return published.error();
        const auto waiting = open_folder(temporary_name(id));
        if (!waiting && waiting.error().code == Code::Damaged) return waiting.error();
        if (!waiting || waiting->digest != digest) continue;
        const auto renamed = rename_into_place(id, IfThere::Refuse);
        if (renamed) (void)sync_root();  // the next restore finds it under either name
        if (!renamed && renamed.error().code == Code::NoSpace) return renamed.error();
    }
    return Error{Code::Damaged, fmt::format("{}/{}: the checkpoint is missing (manifest {})", root_, folder_name(id), to_hex(digest))};
}

Result<Checkpoint> Store::open_published(const CheckpointId& id) const {
    auto found = open_folder(folder_name(id));
    if (found) return std::move(found->checkpoint);
    if (found.error().code == Code::NotFound && ::faccessat(folder_.get(), folder_name(id).c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        return Error{Code::Damaged, found.error().message};  // a published folder without its manifest
    }
    return found.error();
}

Result<Checkpoint> Store::open_temporary(const CheckpointId& id) const {
    auto found = open_folder(temporary_name(id));
    if (!found) return found.error();
    return std::move(found->checkpoint);
}

std::vector<CheckpointId> Store::published() const {
    std::vector<CheckpointId> ids;
    for (const std::string& name : names_in(folder_.get())) {
        if (const auto id = parse_folder_name(name)) ids.push_back(*id);
    }
    std::sort(ids.begin(), ids.end());
    return ids;
}

bool Store::has_name(const CheckpointId& id, int folder) const {
    struct stat here {};
    struct stat there {};
    return ::fstat(folder, &here) == 0 && ::fstatat(folder_.get(), folder_name(id).c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 && here.st_ino == there.st_ino &&
           here.st_dev == there.st_dev;
}

Result<void> Store::set_aside(const CheckpointId& id) const {
    const std::string name = folder_name(id);
    const std::string to = std::string(kAside) + name;
    remove_folder(to);  // an earlier one of that name
    if (disk_->rename_at(folder_.get(), name.c_str(), folder_.get(), to.c_str(), 0) != 0 && errno != ENOENT) return errno_error(fmt::format("cannot set {}/{} aside", root_, name));
    return sync_root();
}

std::vector<CheckpointId> Store::aside() const {
    std::vector<CheckpointId> ids;
    for (const std::string& name : names_in(folder_.get())) {
        const auto id = name.starts_with(kAside) ? parse_folder_name(std::string_view(name).substr(kAside.size())) : std::nullopt;
        if (id) ids.push_back(*id);
    }
    std::sort(ids.begin(), ids.end());
    return ids;
}

Marks Store::marks(const CheckpointId& id) const {
    const auto folder = open_folder_at(folder_.get(), folder_name(id));
    return folder ? marks_of(folder->get()) : Marks{};
}

Result<void> Store::write_rule(const RetentionRule& rule) const {
    const std::string fresh = std::string(kRule) + ".new";
    if (auto written = write_file(folder_.get(), fresh, to_text(rule) + "\n", false); !written) return written;
    if (disk_->rename_at(folder_.get(), fresh.c_str(), folder_.get(), kRule, 0) != 0) return errno_error("cannot rename " + fresh);
    return {};
}

Result<void> Store::add_file(const CheckpointId& id, const std::string& name, std::string_view content) const {
    const auto folder = open_folder_at(folder_.get(), folder_name(id));
    if (!folder) return folder.error();
    const std::string fresh = "." + name + ".new";
    if (auto written = write_file(folder->get(), fresh, content, true); !written) return written;
    if (disk_->rename_at(folder->get(), fresh.c_str(), folder->get(), name.c_str(), 0) != 0) {
        const Error error = errno_error("cannot rename " + fresh);
        disk_->unlink_at(folder->get(), fresh.c_str(), 0);
        return error;
    }
    return {};
}

// A folder under its own name is never half deleted: it loses the name first, and then its manifest.
std::string Store::remove_folder(const std::string& name, std::size_t most_retired) const {
    const bool is_aside = name.starts_with(kAside);
    const bool is_published = parse_folder_name(name).has_value() || is_aside;
    auto folder = open_folder_at(folder_.get(), name);
    if (!folder) return folder.error().code == Code::NotFound ? "" : fmt::format("cannot delete {}/{}: {}", root_, name, folder.error().message);
    if (is_published && is_pinned(folder->get())) return "";
    const bool is_locked = ::flock(folder->get(), LOCK_EX | LOCK_NB) == 0;
    if (is_published && !is_locked && errno == EWOULDBLOCK) return "";  // somebody reads it
    std::string doomed = name;
    if (!name.starts_with(kDeleting)) {
        doomed = std::string(kDeleting) + name.substr(name.starts_with(kTemporary) || is_aside ? kTemporary.size() : 0);
        if (disk_->rename_at(folder_.get(), name.c_str(), folder_.get(), doomed.c_str(), 0) != 0) {
            if (errno == ENOENT) return "";
            if (errno != EEXIST && errno != ENOTEMPTY) return fmt::format("cannot delete {}/{}: {}", root_, name, std::strerror(errno));
            remove_folder(doomed);  // the rest of an earlier deletion
            if (disk_->rename_at(folder_.get(), name.c_str(), folder_.get(), doomed.c_str(), 0) != 0 && errno != ENOENT) {
                return fmt::format("cannot delete {}/{}: {}", root_, name, std::strerror(errno));
            }
        }
    }
    // The name must be gone from the disk before what it held is; nobody trusts a temporary one.
    if (!name.starts_with(kTemporary) && disk_->sync(folder_.get()) != 0) {
        return fmt::format("cannot delete {}/{}: fsync: {}", root_, doomed, std::strerror(errno));
    }
    if (!is_aside && takes_name_back(folder->get(), doomed)) return "";
    delete_file(folder->get(), kManifestName);
    if (is_locked) retire_shards(folder->get(), most_retired);
    for (const std::string& file : names_in(folder->get())) delete_file(folder->get(), file);
    if (disk_->unlink_at(folder_.get(), doomed.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
        return fmt::format("cannot delete {}/{}: {}", root_, doomed, std::strerror(errno));
    }
    return "";
}

// Pinned just before it lost its name: whoever pins looks whether the name is still there behind the pin, whoever deletes whether a pin is there
// behind the name. Its manifest says that nothing of it is gone.
bool Store::takes_name_back(int folder, const std::string& doomed) const {
    const std::string name = doomed.substr(kDeleting.size());
    if (!is_pinned(folder) || ::faccessat(folder, kManifestName, F_OK, AT_SYMLINK_NOFOLLOW) != 0) return false;
    return disk_->rename_at(folder_.get(), doomed.c_str(), folder_.get(), name.c_str(), RENAME_NOREPLACE) == 0 && disk_->sync(folder_.get()) == 0;
}

// Of a folder that is being deleted and that nobody reads; never more in the pool than `most`.
void Store::retire_shards(int folder, std::size_t most) const {
    if (most == 0) return;
    if (disk_->make_folder_at(folder_.get(), kPool, 0700) != 0 && errno != EEXIST) return;
    auto pool = open_folder_at(folder_.get(), kPool);
    if (!pool) return;
    std::size_t there = names_in(pool->get()).size();
    for (const std::string& name : names_in(folder)) {
        struct stat status {};
        if (there >= most || !name.starts_with("shard-") || ::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (!S_ISREG(status.st_mode) || status.st_nlink != 1 || status.st_uid != ::geteuid()) continue;
        if (disk_->rename_at(folder, name.c_str(), pool->get(), pool_name(static_cast<std::uint64_t>(status.st_size)).c_str(), RENAME_NOREPLACE) == 0) ++there;
    }
}

Recycle Store::recycle() const {
    return [this](int folder, const std::string& name, std::uint64_t size) {
        const auto pool = open_folder_at(folder_.get(), kPool);
        if (!pool) return false;
        std::vector<std::string> names = names_in(pool->get());
        const std::string wanted = fmt::format("{}-", size);
        std::stable_partition(names.begin(), names.end(), [&](const std::string& one) { return one.starts_with(wanted); });
        return std::any_of(names.begin(), names.end(), [&](const std::string& one) {  // whoever renames it first has it
            return disk_->rename_at(pool->get(), one.c_str(), folder, name.c_str(), 0) == 0;
        });
    };
}

void Store::empty_pool() const {
    const auto pool = open_folder_at(folder_.get(), kPool);
    if (!pool) return;
    for (const std::string& name : names_in(pool->get())) delete_file(pool->get(), name);
    disk_->unlink_at(folder_.get(), kPool, AT_REMOVEDIR);
}

// In slices: a large file that is deleted at once stops others' writes.
void Store::delete_file(int folder, const std::string& name) const {
    struct stat status {};
    const Fd fd(disk_->open_at(folder, name.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0));
    if (fd && ::fstat(fd.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 1) {
        for (auto size = static_cast<std::uint64_t>(status.st_size); size > kSlice; size -= kSlice) {
            if (disk_->truncate(fd.get(), size - kSlice) != 0) break;
        }
    }
    disk_->unlink_at(folder, name.c_str(), 0);
}

Result<void> Store::write_file(int folder, const std::string& name, std::string_view content, bool durable) const {
    disk_->unlink_at(folder, name.c_str(), 0);
    const Fd fd(disk_->open_at(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd) return errno_error("cannot create " + name);
    auto written = write_all_at(*disk_, fd.get(), content.data(), content.size(), 0, name);
    if (written && durable && disk_->sync(fd.get()) != 0) written = errno_error("cannot fsync " + name);
    if (!written) disk_->unlink_at(folder, name.c_str(), 0);
    return written;
}

std::string Store::delete_old(const Kept& kept) const {
    std::string problems;
    auto remove = [&](const std::string& name, std::size_t most_retired = 0) {
        const std::string problem = remove_folder(name, most_retired);
        if (!problem.empty()) problems += (problems.empty() ? "" : "; ") + problem;
    };
    const auto set_aside = aside();
    for (std::size_t i = 0; i + 1 < set_aside.size(); ++i) {  // the newest is kept for diagnosis
        if (set_aside[i].attempt <= kept.newest.attempt) remove(std::string(kAside) + folder_name(set_aside[i]));
    }
    for (const std::string& name : names_in(folder_.get())) {
        if (const auto id = parse_folder_name(name)) {
            const bool is_for_ever = kept.every != 0 && id->step % kept.every == 0;
            if (is_kept(kept, *id) || is_for_ever || id->attempt > kept.newest.attempt) continue;
            std::size_t shards = 0;
            {
                const auto found = open_folder(name);
                if (found && found->checkpoint.manifest().job == kept.job) shards = found->checkpoint.manifest().shards.size();
            }
            if (shards != 0) remove(name, kept.recycles ? shards : 0);
        } else if (name.starts_with(kTemporary)) {
            const auto left = parse_folder_name(std::string_view(name).substr(kTemporary.size()));
            const bool is_dead = left && (left->attempt < kept.newest.attempt ||
                                          (left->attempt == kept.newest.attempt && left->step < kept.newest.step));
            if (is_dead && !is_kept(kept, *left)) remove(name);
        } else if (name.starts_with(kDeleting) && parse_folder_name(std::string_view(name).substr(kDeleting.size()))) {
            remove(name);
        }
    }
    return problems;
}

}  // namespace gangline::checkpoint
