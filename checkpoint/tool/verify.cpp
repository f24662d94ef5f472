#include "checkpoint/tool/verify.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace gangline::checkpoint::tool {
namespace {

void note(Verdict& verdict, Damage damage) {
    ++verdict.damaged;
    if (verdict.damages.size() < kMostDamages) verdict.damages.push_back(std::move(damage));
}

// Empty when all of it was read.
std::string read_block(int fd, std::uint64_t begin, std::vector<char>& block) {
    for (std::size_t filled = 0; filled < block.size();) {
        const ssize_t n = ::pread(fd, block.data() + filled, block.size() - filled, static_cast<off_t>(begin + filled));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fmt::format("cannot be read: {}", std::strerror(errno));
        if (n == 0) return "cannot be read: the file has become shorter";
        filled += static_cast<std::size_t>(n);
    }
    return "";
}

void verify_shard(int fd, const ShardRecord& shard, std::uint64_t block_bytes, Verdict& verdict, Progress& progress) {
    std::vector<char> block;
    for (std::uint64_t index = 0; index < shard.block_crcs.size(); ++index) {
        const std::uint64_t begin = index * block_bytes;
        block.resize(static_cast<std::size_t>(std::min(block_bytes, shard.size - begin)));
        std::string wrong = read_block(fd, begin, block);
        if (wrong.empty() && crc32c(block.data(), block.size()) != shard.block_crcs[static_cast<std::size_t>(index)]) {
            wrong = "does not have its checksum";
        }
        if (!wrong.empty()) {
            note(verdict, {shard.name, index, fmt::format("block {} (bytes {} to {}) {}", index, begin, begin + block.size(), wrong)});
        }
        verdict.bytes += block.size();
        ++verdict.blocks;
        progress.add(block.size());
    }
}

}  // namespace

Verdict verify(const Opened& opened, Progress& progress) {
    Verdict verdict;
    const Manifest& manifest = opened.checkpoint.manifest();
    for (const ShardRecord& shard : manifest.shards) {
        const Fd fd(::openat(opened.folder.get(), shard.name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
        struct stat status {};
        if (!fd || ::fstat(fd.get(), &status) != 0) {
            note(verdict, {shard.name, {}, errno == ELOOP ? "is a symbolic link, these are not followed" : std::strerror(errno)});
        } else if (!S_ISREG(status.st_mode)) {
            note(verdict, {shard.name, {}, "is not a regular file"});
        } else if (static_cast<std::uint64_t>(status.st_size) != shard.size) {
            note(verdict, {shard.name, {}, fmt::format("has {} bytes, the manifest says {}", status.st_size, shard.size)});
        } else {
            verify_shard(fd.get(), shard, manifest.block_bytes, verdict, progress);
        }
    }
    return verdict;
}

}  // namespace gangline::checkpoint::tool
