#include "runner/cli/remove_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/handle.h"

namespace gangline::runner {
namespace {

constexpr std::size_t kMostThreads = 7;   // of one folder

struct FolderTraits {
    using Value = DIR*;
    static Value none() { return nullptr; }
    static void close(Value folder) { ::closedir(folder); }
};

// Empties the folder `name` in `parent` and removes it.
void remove_at(int parent, const std::string& name) {
    const Handle<FolderTraits> folder(
        ::fdopendir(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)));
    if (!folder) return;
    const int fd = ::dirfd(folder.get());
    std::vector<std::string> folders;
    while (const dirent* const entry = ::readdir(folder.get())) {
        if (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0) continue;
        if (::unlinkat(fd, entry->d_name, 0) != 0 && (errno == EISDIR || errno == EPERM)) folders.emplace_back(entry->d_name);
    }
    while (!folders.empty()) {
        std::vector<std::thread> others;
        while (folders.size() > 1 && others.size() < kMostThreads) {
            others.emplace_back(remove_at, fd, folders.back());
            folders.pop_back();
        }
        remove_at(fd, folders.back());
        folders.pop_back();
        for (std::thread& other : others) other.join();
    }
    ::unlinkat(parent, name.c_str(), AT_REMOVEDIR);
}

}  // namespace

Result<void> remove_folder(const std::string& path) {
    remove_at(AT_FDCWD, path);
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 && errno == ENOENT) return {};
    return Error{Code::Internal, fmt::format("cannot remove all of {}", path)};
}

}  // namespace gangline::runner
