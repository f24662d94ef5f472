#include "checkpoint/marks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>

#include <fmt/format.h>

#include "base/handle.h"

namespace gangline::checkpoint {
namespace {

std::optional<std::int64_t> read_verified(int folder) {
    const Fd fd(::openat(folder, kVerifiedName, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    std::array<char, 64> text{};
    if (!fd || ::fstat(folder, &status) != 0 || ::read(fd.get(), text.data(), text.size() - 1) <= 0) return std::nullopt;
    std::int64_t unix_s = 0;
    std::uint64_t inode = 0;
    if (std::sscanf(text.data(), "%" SCNd64 " %" SCNu64 "\n", &unix_s, &inode) != 2 || inode != status.st_ino) return std::nullopt;
    return unix_s;
}

}  // namespace

bool is_pinned(int folder) { return ::faccessat(folder, kPinName, F_OK, AT_SYMLINK_NOFOLLOW) == 0; }

Marks marks_of(int folder) { return {is_pinned(folder), read_verified(folder)}; }

Result<void> pin(Disk& disk, int folder) {
    const Fd fd(disk.open_at(folder, kPinName, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd || disk.sync(folder) != 0) return errno_error("cannot pin it");
    return {};
}

Result<void> unpin(Disk& disk, int folder) {
    if (disk.unlink_at(folder, kPinName, 0) != 0 && errno != ENOENT) return errno_error("cannot take its pin away");
    if (disk.sync(folder) != 0) return errno_error("cannot take its pin away");
    return {};
}

Result<void> mark_verified(Disk& disk, int folder, std::int64_t unix_s) {
    struct stat status {};
    if (::fstat(folder, &status) != 0) return errno_error("cannot look at the folder");
    const std::string text = fmt::format("{} {}\n", unix_s, status.st_ino);
    const std::string fresh = std::string(kVerifiedName) + ".new";
    disk.unlink_at(folder, fresh.c_str(), 0);
    {
        const Fd fd(disk.open_at(folder, fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (!fd) return errno_error("cannot create " + fresh);
        if (auto written = write_all_at(disk, fd.get(), text.data(), text.size(), 0, fresh); !written) return written;
    }
    if (disk.rename_at(folder, fresh.c_str(), folder, kVerifiedName, 0) != 0) return errno_error("cannot rename " + fresh);
    return {};
}

}  // namespace gangline::checkpoint
