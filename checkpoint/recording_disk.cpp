#include "checkpoint/recording_disk.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace gangline::checkpoint {
namespace {

constexpr std::size_t kSector = 512;
constexpr std::size_t kPage = 4096;
constexpr std::array<unsigned, 5> kChances{0, 20, 50, 80, 100};

// Puts of the bytes what is kept: each page whole, missing, or its first sectors.
void write_in_part(std::string& content, std::uint64_t place, const std::string& bytes, unsigned chance, std::mt19937_64& random) {
    for (std::size_t at = 0; at < bytes.size(); at += kPage) {
        std::size_t size = std::min(kPage, bytes.size() - at);
        if (random() % 100 >= chance) {
            if (random() % 2 == 0) continue;
            size = std::min(size, random() % (kPage / kSector) * kSector);
        }
        const std::size_t end = static_cast<std::size_t>(place) + at + size;
        if (content.size() < end) content.resize(end);
        content.replace(static_cast<std::size_t>(place) + at, size, bytes, at, size);
    }
}

}  // namespace

RecordingDisk::RecordingDisk(const std::string& base) {
    struct stat status {};
    CHECK(::stat(base.c_str(), &status) == 0 && S_ISDIR(status.st_mode), "the recorded folder is there");
    nodes_[{status.st_dev, status.st_ino}] = last_node_;
}

// ---- which file or folder is meant

RecordingDisk::Node RecordingDisk::node_of(int fd) const {
    struct stat status {};
    if (::fstat(fd, &status) != 0) return 0;
    const auto known = nodes_.find({status.st_dev, status.st_ino});
    return known == nodes_.end() ? 0 : known->second;
}

RecordingDisk::Node RecordingDisk::node_at(int folder, const char* name) const {
    struct stat status {};
    if (::fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) != 0) return 0;
    const auto known = nodes_.find({status.st_dev, status.st_ino});
    return known == nodes_.end() ? 0 : known->second;
}

RecordingDisk::Place RecordingDisk::locate(int folder, const char* name) const {
    const std::filesystem::path path(name);
    if (!path.has_parent_path()) return {node_of(folder), name};
    return {node_at(folder, path.parent_path().c_str()), path.filename().string()};
}

// An inode's number comes again after its file is gone: what has just been made is new.
RecordingDisk::Node RecordingDisk::add_node(int folder, const char* name) {
    struct stat status {};
    CHECK(::fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) == 0, "what was just made is there");
    return nodes_[{status.st_dev, status.st_ino}] = ++last_node_;
}

// ---- recording

int RecordingDisk::open_at(int folder, const char* name, int flags, unsigned mode) {
    struct stat status {};
    const bool is_new = (flags & O_CREAT) != 0 && ::fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) != 0;
    CHECK((flags & O_TRUNC) == 0, "no checkpoint file is cut by open");
    const int fd = Disk::open_at(folder, name, flags, mode);
    if (const Place at = locate(folder, name); fd >= 0 && is_new && at.folder != 0) {
        changes_.push_back({.kind = Kind::Create, .node = add_node(folder, name), .folder = at.folder, .name = at.name});
    }
    return fd;
}

int RecordingDisk::make_folder_at(int folder, const char* name, unsigned mode) {
    const int made = Disk::make_folder_at(folder, name, mode);
    const int error = errno;
    if (const Place at = locate(folder, name); made == 0 && at.folder != 0) {
        changes_.push_back({.kind = Kind::MakeFolder, .node = add_node(folder, name), .folder = at.folder, .name = at.name});
    }
    errno = error;
    return made;
}

int RecordingDisk::reserve(int fd, std::uint64_t size) {
    const int reserved = Disk::reserve(fd, size);
    if (const Node node = node_of(fd); reserved == 0 && node != 0) changes_.push_back({.kind = Kind::Reserve, .node = node, .place = size});
    return reserved;
}

int RecordingDisk::truncate(int fd, std::uint64_t size) {
    const int cut = Disk::truncate(fd, size);
    if (const Node node = node_of(fd); cut == 0 && node != 0) changes_.push_back({.kind = Kind::Truncate, .node = node, .place = size});
    return cut;
}

ssize_t RecordingDisk::write_at(int fd, const void* bytes, std::size_t size, std::uint64_t place) {
    const ssize_t written = Disk::write_at(fd, bytes, size, place);
    if (const Node node = node_of(fd); written > 0 && node != 0) {
        changes_.push_back({.kind = Kind::Write, .node = node, .place = place,
                            .bytes = std::string(static_cast<const char*>(bytes), static_cast<std::size_t>(written))});
    }
    return written;
}

// Nothing recorded here needs the disk itself: what is durable is reckoned.
int RecordingDisk::sync_data(int fd) { return sync(fd); }

int RecordingDisk::sync(int fd) {
    if (const Node node = node_of(fd); node != 0) changes_.push_back({.kind = Kind::Sync, .node = node});
    return 0;
}

int RecordingDisk::rename_at(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
    const int renamed = Disk::rename_at(from_folder, from, to_folder, to, flags);
    const int error = errno;
    const Place out = locate(from_folder, from);
    const Place in = locate(to_folder, to);
    if (renamed == 0 && out.folder != 0 && in.folder != 0) {
        changes_.push_back({.kind = Kind::Rename, .folder = out.folder, .name = out.name, .to_folder = in.folder, .to_name = in.name,
                            .is_exchange = (flags & RENAME_EXCHANGE) != 0});
    }
    errno = error;
    return renamed;
}

int RecordingDisk::unlink_at(int folder, const char* name, int flags) {
    const int gone = Disk::unlink_at(folder, name, flags);
    const int error = errno;
    if (const Place at = locate(folder, name); gone == 0 && at.folder != 0) changes_.push_back({.kind = Kind::Unlink, .folder = at.folder, .name = at.name});
    errno = error;
    return gone;
}

std::unique_ptr<BlockWriter> RecordingDisk::writer(int fd, bool is_direct) { return plain_writer(*this, fd, is_direct); }

std::string RecordingDisk::describe(std::size_t change) const {
    if (change >= changes_.size()) return "the end";
    constexpr std::array kWords{"create", "make folder", "rename", "unlink", "write", "truncate", "reserve", "sync"};
    const Change& one = changes_[change];
    return fmt::format("{} {}/{} {}/{} node {} at {} of {}", kWords.at(static_cast<std::size_t>(one.kind)), one.folder, one.name, one.to_folder, one.to_name,
                       one.node, one.place, one.bytes.size());
}

// ---- losing power

// What a folder's sync keeps: its changes before, and what those stand on in other folders. Of the rest each folder keeps a first part.
std::vector<bool> RecordingDisk::kept_names(std::size_t cut, const Chances& chances, Random& random) const {
    std::vector<bool> kept(cut, false);
    std::vector<bool> is_synced(last_node_ + 1, false);  // by changes behind the one that is looked at
    for (std::size_t i = cut; i-- > 0;) {
        const Change& change = changes_[i];
        if (change.kind == Kind::Sync && !forgotten_.contains(i)) is_synced[change.node] = true;
        if (!is_of_names(change.kind) || (!is_synced[change.folder] && !is_synced[change.to_folder])) continue;
        kept[i] = true;
        is_synced[change.folder] = true;
        if (change.to_folder != 0) is_synced[change.to_folder] = true;
    }
    std::vector<bool> has_ended(last_node_ + 1, false);
    for (std::size_t i = 0; i < cut; ++i) {
        const Change& change = changes_[i];
        if (!is_of_names(change.kind) || kept[i]) continue;
        kept[i] = !has_ended[change.folder] && !has_ended[change.to_folder] && random() % 100 < chances.names;
        if (kept[i]) continue;
        has_ended[change.folder] = true;
        if (change.to_folder != 0) has_ended[change.to_folder] = true;
    }
    return kept;
}

std::map<RecordingDisk::Node, std::string> RecordingDisk::kept_bytes(std::size_t cut, const Chances& chances, Random& random) const {
    std::vector<std::size_t> synced(last_node_ + 1, 0);
    for (std::size_t i = 0; i < cut; ++i) {
        if (changes_[i].kind == Kind::Sync && !forgotten_.contains(i)) synced[changes_[i].node] = i;
    }
    std::map<Node, std::string> files;
    for (std::size_t i = 0; i < cut; ++i) {
        const Change& change = changes_[i];
        const bool is_certain = i < synced[change.node];
        const auto size = static_cast<std::size_t>(change.place);
        if (change.kind == Kind::Create) files[change.node];
        if (change.kind == Kind::Write) write_in_part(files[change.node], change.place, change.bytes, is_certain ? 100 : chances.bytes, random);
        if (change.kind != Kind::Truncate && change.kind != Kind::Reserve) continue;
        std::string& content = files[change.node];
        if (!is_certain && random() % 100 >= chances.bytes) continue;
        if (change.kind == Kind::Truncate || content.size() < size) content.resize(size);
    }
    return files;
}

RecordingDisk::Folders RecordingDisk::folders_of(const std::vector<bool>& kept) const {
    Folders folders{{1, {}}};
    for (std::size_t i = 0; i < kept.size(); ++i) {
        const Change& change = changes_[i];
        if (change.kind == Kind::MakeFolder) folders[change.node];
        if (!kept[i]) continue;
        auto& names = folders[change.folder];
        if (change.kind == Kind::Create || change.kind == Kind::MakeFolder) {
            names[change.name] = change.node;
            continue;
        }
        CHECK(names.contains(change.name), "what is renamed or deleted was there: " + describe(i));
        const Node moved = names[change.name];
        names.erase(change.name);
        if (change.kind == Kind::Unlink) continue;
        const Node other = std::exchange(folders[change.to_folder][change.to_name], moved);
        if (change.is_exchange) names[change.name] = other;
    }
    return folders;
}

void RecordingDisk::rebuild(std::size_t cut, std::uint64_t seed, const std::string& into) const {
    cut = std::min(cut, changes_.size());
    Random random(seed * 1'000'003 + cut);
    // The first two seeds are the extremes that find most: names without bytes, and bytes without names.
    Chances chances{kChances[random() % kChances.size()], kChances[random() % kChances.size()]};
    if (seed == 0) chances = {100, 0};
    if (seed == 1) chances = {0, 100};
    const Folders folders = folders_of(kept_names(cut, chances, random));
    const std::map<Node, std::string> files = kept_bytes(cut, chances, random);
    const std::function<void(Node, const std::string&)> put = [&](Node folder, const std::string& path) {
        for (const auto& [name, node] : folders.at(folder)) {
            const std::string here = fmt::format("{}/{}", path, name);
            if (folders.contains(node)) {
                std::filesystem::create_directory(here);
                put(node, here);
            } else {
                const std::string& content = files.at(node);
                std::ofstream(here, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
            }
        }
    };
    put(1, into);
}

}  // namespace gangline::checkpoint
