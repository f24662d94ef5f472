#include "checkpoint/tool/place.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <tuple>

#include <fmt/format.h>

namespace gangline::checkpoint::tool {
namespace {

constexpr const char* kManifestName = "MANIFEST";
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kDeleting = ".del-";
constexpr std::string_view kAside = ".bad-";
constexpr std::uint64_t kMostManifestBytes = 1u << 30;

Result<std::string> read_manifest(int folder, const std::string& place) {
    auto damaged = [&](const std::string& why) { return Error{Code::Damaged, fmt::format("{}/{}: {}", place, kManifestName, why)}; };
    const Fd fd(::openat(folder, kManifestName, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (!fd && errno == ELOOP) return damaged("it is a symbolic link, these are not followed");
    if (!fd || ::fstat(fd.get(), &status) != 0) return damaged(std::strerror(errno));
    if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) > kMostManifestBytes) {
        return damaged(fmt::format("it is not a regular file of at most {} bytes", kMostManifestBytes));
    }
    std::string content(static_cast<std::size_t>(status.st_size), '\0');
    for (std::size_t filled = 0; filled < content.size();) {
        const ssize_t n = ::read(fd.get(), content.data() + filled, content.size() - filled);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return damaged("it cannot be read to its end");
        filled += static_cast<std::size_t>(n);
    }
    return content;
}

// Sizes and the newest change of a folder's files, links counted as such.
void measure(int folder, Entry& entry) {
    struct stat status {};
    if (::fstat(folder, &status) == 0) {
        entry.changed_unix_s = status.st_mtime;
        entry.device = status.st_dev;
        entry.inode = status.st_ino;
    }
    entry.marks = marks_of(folder);
    for (const std::string& name : names_in(folder)) {
        if (::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
        entry.changed_unix_s = std::max<std::int64_t>(entry.changed_unix_s, status.st_mtime);
        if (S_ISREG(status.st_mode)) entry.bytes += static_cast<std::uint64_t>(status.st_size);
        if (name == kManifestName) {
            entry.has_manifest = true;
            entry.written_unix_s = status.st_mtime;
        }
    }
}

void judge(const Result<Opened>& opened, Entry& entry) {
    if (!opened) {
        entry.why = opened.error().message;
        if (opened.error().code == Code::Refused) entry.state = State::Deleting;
        return;
    }
    const Manifest& manifest = opened->checkpoint.manifest();
    entry.job = manifest.job;
    entry.shards = manifest.shards.size();
    entry.tensors = manifest.tensors.size();
    entry.metric = manifest.metric;
    const auto checked = check_shards(*opened);
    if (checked) entry.state = State::Durable;
    if (!checked) entry.why = checked.error().message;
}

std::optional<Entry> entry_of(const Place& place, int root, const std::string& name) {
    Entry entry;
    entry.name = name;
    std::string_view rest = name;
    if (name.starts_with(kTemporary)) entry.state = State::Unfinished;
    if (name.starts_with(kDeleting)) entry.state = State::Deleting;
    if (name.starts_with(kAside)) entry.state = State::Tainted;
    if (entry.state != State::Damaged) rest.remove_prefix(kTemporary.size());
    const auto id = parse_folder_name(rest);
    if (!id || (place.only && *place.only != *id)) return std::nullopt;
    entry.id = *id;
    {
        const Fd folder(::openat(root, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (folder) measure(folder.get(), entry);
    }
    if (entry.state == State::Tainted) entry.why = "found damaged when it was read back, and set aside";
    if (entry.state == State::Damaged) judge(open_checkpoint(place, *id), entry);
    return entry;
}

Error no_step(const Place& place, const std::string& step) {
    return {Code::NotFound, fmt::format("{}: no checkpoint of step {}; `gangline ckpt ls {}` shows what is there", place.root, step, place.root)};
}

Result<CheckpointId> id_of(const Place& place, const std::string& word) {
    if (const auto id = parse_folder_name(word)) return *id;
    std::uint64_t step = 0;
    const auto parsed = std::from_chars(word.data(), word.data() + word.size(), step);
    if (parsed.ec != std::errc() || parsed.ptr != word.data() + word.size()) {
        return Error{Code::InvalidArgument, fmt::format("'{}' is not a step: write its number, as `{} 1200`, or the folder's name", word, place.root)};
    }
    auto all = entries_of(place);
    if (!all) return all.error();
    std::optional<CheckpointId> best;
    for (const Entry& entry : *all) {
        if (entry.id.step == step && (entry.state == State::Durable || entry.state == State::Damaged)) best = entry.id;
    }
    if (!best) return no_step(place, word);
    return *best;
}

}  // namespace

std::string_view name_of(State state) {
    switch (state) {
        case State::Durable: return "durable";
        case State::Damaged: return "damaged";
        case State::Unfinished: return "unfinished";
        case State::Deleting: return "deleting";
        case State::Tainted: return "tainted";
    }
    return "?";
}

Result<Place> place_of(std::span<const std::string> words) {
    if (words.empty() || words.size() > 2 || words[0].empty()) {
        return Error{Code::InvalidArgument, "give a checkpoint folder, one of its step folders, or FOLDER STEP"};
    }
    std::error_code failed;
    std::filesystem::path path = std::filesystem::absolute(words[0], failed).lexically_normal();
    if (failed) return Error{Code::InvalidArgument, fmt::format("'{}': {}", words[0], failed.message())};
    if (!path.has_filename()) path = path.parent_path();  // written with a slash at its end
    Place place{path.string(), parse_folder_name(path.filename().string())};
    if (place.only) place.root = path.parent_path().string();
    if (auto root = open_root(place); !root) return root.error();
    if (words.size() == 1) return place;
    if (place.only) {
        return Error{Code::InvalidArgument, fmt::format("'{}' names one checkpoint already: leave out '{}'", words[0], words[1])};
    }
    auto id = id_of(place, words[1]);
    if (!id) return id.error();
    place.only = *id;
    return place;
}

Result<Fd> open_root(const Place& place) {
    Fd fd(::open(place.root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) {
        return Error{Code::NotFound, fmt::format("{}: {}; give the folder that holds step-...-e... folders, or a job's number", place.root,
                                                 std::strerror(errno))};
    }
    return fd;
}

Result<std::vector<Entry>> entries_of(const Place& place) {
    auto root = open_root(place);
    if (!root) return root.error();
    std::vector<Entry> entries;
    std::uint64_t last_job = 0;
    for (const std::string& name : names_in(root->get())) {
        if (auto entry = entry_of(place, root->get(), name)) entries.push_back(std::move(*entry));
        if (!entries.empty()) last_job = std::max(last_job, entries.back().job);
    }
    std::stable_sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
        auto key = [&](const Entry& entry) {
            const int group = entry.state == State::Tainted ? 1 : entry.state == State::Unfinished ? 2 : entry.state == State::Deleting ? 3 : 0;
            return std::tuple(group, entry.job == 0 ? last_job : entry.job, entry.id.attempt, entry.id.step);
        };
        return key(a) < key(b);
    });
    return entries;
}

Result<Opened> open_checkpoint(const Place& place, const CheckpointId& id) {
    auto root = open_root(place);
    if (!root) return root.error();
    const std::string path = place.root + "/" + folder_name(id);
    Fd folder(::openat(root->get(), folder_name(id).c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder && errno == ENOENT) return no_step(place, std::to_string(id.step));
    if (!folder && (errno == ELOOP || errno == ENOTDIR)) {
        return Error{Code::Damaged, path + ": it is not a folder; symbolic links are not followed"};
    }
    if (!folder) return errno_error("cannot open " + path);
    if (::flock(folder.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return Error{Code::Refused, path + " is being deleted"};
    }
    const auto file = read_manifest(folder.get(), path);
    if (!file) return file.error();
    auto manifest = parse(*file);
    if (!manifest) return Error{Code::Damaged, fmt::format("{}/MANIFEST: {}", path, manifest.error().message)};
    if (!manifest->is_whole() || manifest->step != id.step || manifest->attempt != id.attempt) {
        return Error{Code::Damaged, fmt::format("{}/MANIFEST: it is not the whole manifest of this step and attempt", path)};
    }
    Fd lock(::fcntl(folder.get(), F_DUPFD_CLOEXEC, 0));
    if (!lock) return errno_error("cannot open " + path);
    return Opened{id, path, std::move(lock), Checkpoint(std::move(folder), std::move(*manifest), path), seal_of(*file)};
}

Result<Opened> open_one(const Place& place) {
    if (place.only) return open_checkpoint(place, *place.only);
    const auto entries = entries_of(place);
    if (!entries) return entries.error();
    for (auto at = entries->rbegin(); at != entries->rend(); ++at) {
        if (at->state == State::Durable) return open_checkpoint(place, at->id);
    }
    const std::string hint = job_folders_hint(place);
    return Error{Code::NotFound, fmt::format("{}: no durable checkpoint in it{}", place.root,
                                             hint.empty() ? fmt::format("; `gangline ckpt ls {}` shows what is there", place.root) : hint)};
}

std::string job_folders_hint(const Place& place) {
    const auto root = open_root(place);
    if (!root) return "";
    for (const std::string& name : names_in(root->get())) {
        if (name.starts_with("job-")) return fmt::format("; it has folders of jobs: give {}/{}", place.root, name);
    }
    return "";
}

Result<void> check_shards(const Opened& opened) {
    for (const ShardRecord& shard : opened.checkpoint.manifest().shards) {
        auto damaged = [&](const std::string& why) { return Error{Code::Damaged, fmt::format("{}/{}: {}", opened.path, shard.name, why)}; };
        struct stat status {};
        if (::fstatat(opened.folder.get(), shard.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return damaged(std::strerror(errno));
        if (!S_ISREG(status.st_mode)) return damaged("it is not a regular file");
        if (static_cast<std::uint64_t>(status.st_size) != shard.size) {
            return damaged(fmt::format("it has {} bytes, the manifest says {}", status.st_size, shard.size));
        }
    }
    return {};
}

}  // namespace gangline::checkpoint::tool
