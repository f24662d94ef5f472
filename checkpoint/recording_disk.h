#pragma once
// A disk that remembers every change, and can say what a machine that lost its power in between may have kept of them. For tests.
//
//   kept for certain   what an fsync (or fdatasync) of the same file or folder followed, before the power went
//   kept or not        everything else: each write whole, missing, or in part, by sectors; lengths too
//   in order           the names of one folder: what is kept is a first part of its changes. A rename between two folders is in both or in
//                      neither. A file's fsync does not keep its name, a folder's does not keep its own.
//
// More is allowed here than any one file system does, and less is promised: what holds here holds on all of them.
// Thread rule: one thread.

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/disk.h"

namespace gangline::checkpoint {

class RecordingDisk : public Disk {
  public:
    // The folder is there and empty, and durable. What lies outside of it is not recorded.
    explicit RecordingDisk(const std::string& base);

    std::size_t changes() const { return changes_.size(); }
    // Builds in the (empty) folder what may be left when the power went after the first `cut` changes: one of many, by the seed.
    void rebuild(std::size_t cut, std::uint64_t seed, const std::string& into) const;
    std::string describe(std::size_t change) const;
    // A sync that the disk did not do, though it said so.
    bool is_sync(std::size_t change) const { return changes_[change].kind == Kind::Sync; }
    void forget(std::size_t change) { forgotten_.insert(change); }
    void remember(std::size_t change) { forgotten_.erase(change); }

    int open_at(int folder, const char* name, int flags, unsigned mode) override;
    int reserve(int fd, std::uint64_t size) override;
    int truncate(int fd, std::uint64_t size) override;
    ssize_t write_at(int fd, const void* bytes, std::size_t size, std::uint64_t place) override;
    int sync_data(int fd) override;
    int sync(int fd) override;
    int rename_at(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) override;
    int unlink_at(int folder, const char* name, int flags) override;
    int make_folder_at(int folder, const char* name, unsigned mode) override;
    std::unique_ptr<BlockWriter> writer(int fd, bool is_direct) override;

  private:
    using Node = std::size_t;  // a file or a folder, for all its life; 0: not ours
    enum class Kind { Create, MakeFolder, Rename, Unlink, Write, Truncate, Reserve, Sync };
    struct Change {
        Kind kind = Kind::Sync;
        Node node = 0;      // what is made, written or synced
        Node folder = 0;    // whose names change
        std::string name{};
        Node to_folder = 0;  // of a rename
        std::string to_name{};
        bool is_exchange = false;
        std::uint64_t place = 0;  // or the size
        std::string bytes{};
    };
    struct Place {
        Node folder = 0;
        std::string name{};
    };
    using Key = std::pair<std::uint64_t, std::uint64_t>;
    using Random = std::mt19937_64;
    struct Chances {  // of 100
        unsigned names = 0;
        unsigned bytes = 0;
    };

    static bool is_of_names(Kind kind) { return kind == Kind::Create || kind == Kind::MakeFolder || kind == Kind::Rename || kind == Kind::Unlink; }
    Node node_of(int fd) const;
    Node node_at(int folder, const char* name) const;
    Place locate(int folder, const char* name) const;
    Node add_node(int folder, const char* name);
    std::vector<bool> kept_names(std::size_t cut, const Chances& chances, Random& random) const;
    using Folders = std::map<Node, std::map<std::string, Node>>;
    Folders folders_of(const std::vector<bool>& kept) const;
    std::map<Node, std::string> kept_bytes(std::size_t cut, const Chances& chances, Random& random) const;

    std::map<Key, Node> nodes_;
    Node last_node_ = 1;  // 1 is the base
    std::vector<Change> changes_;
    std::set<std::size_t> forgotten_;
};

}  // namespace gangline::checkpoint
