#include "checkpoint/shard.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <queue>
#include <utility>

#include <fmt/format.h>

#include "base/handle.h"

namespace gangline::checkpoint {
namespace {

struct ShardFile {
    Fd fd;
    bool is_direct = false;
    bool is_recycled = false;
};

// Space for the whole file, or NoSpace before a byte of it is written. A file system without the call gives none ahead.
Result<void> reserve(Disk& disk, int fd, std::uint64_t bytes, const std::string& name) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) {
        return Error{Code::NoSpace, fmt::format("{} needs {} bytes, files of this process may have {} (ulimit -f)", name, bytes, limit.rlim_cur)};
    }
    for (;;) {
        if (disk.reserve(fd, bytes) == 0) return {};
        if (errno == EINTR) continue;
        if (errno != EOPNOTSUPP && errno != ENOSYS) return errno_error(fmt::format("cannot reserve {} bytes for {}", bytes, name));
        if (disk.truncate(fd, bytes) == 0) return {};
        return errno_error(fmt::format("cannot make {} {} bytes long", name, bytes));
    }
}

// O_DIRECT where the file system has it.
Result<ShardFile> open_file(Disk& disk, int folder, const std::string& name, int flags) {
    for (const bool is_direct : {true, false}) {
        ShardFile file{Fd(disk.open_at(folder, name.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags | (is_direct ? O_DIRECT : 0), 0600)), is_direct, false};
        if (file.fd) return file;
        if (!is_direct || errno != EINVAL) break;
        if ((flags & O_EXCL) != 0) disk.unlink_at(folder, name.c_str(), 0);  // some make it before they refuse
    }
    return errno_error("cannot create " + name);
}

// A retired file counts only when nobody else could have it open under another name, and it is ours.
Result<ShardFile> open_recycled(Disk& disk, int folder, const std::string& name, std::uint64_t size) {
    auto file = open_file(disk, folder, name, 0);
    if (!file) return file;
    struct stat status {};
    if (::fstat(file->fd.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink != 1 || status.st_uid != ::geteuid()) {
        return Error{Code::Refused, name + " is not ours alone"};
    }
    alignas(kDiskAlignment) static constexpr std::array<char, kDiskAlignment> kNothing{};
    if (auto zeroed = write_all_at(disk, file->fd.get(), kNothing.data(), kNothing.size(), 0, name); !zeroed) return zeroed.error();
    if (static_cast<std::uint64_t>(status.st_size) > size && disk.truncate(file->fd.get(), size) != 0) return errno_error("cannot shorten " + name);
    if (disk.sync_data(file->fd.get()) != 0) return errno_error("cannot fsync " + name);
    file->is_recycled = true;
    return file;
}

Result<ShardFile> take_file(Disk& disk, int folder, const std::string& name, std::uint64_t size, const Recycle& recycle) {
    if (recycle && recycle(folder, name, size)) {
        auto file = open_recycled(disk, folder, name, size);
        if (file && reserve(disk, file->fd.get(), size, name)) return file;
        disk.unlink_at(folder, name.c_str(), 0);
    }
    auto file = open_file(disk, folder, name, O_CREAT | O_EXCL);
    if (!file) return file;
    if (auto reserved = reserve(disk, file->fd.get(), size, name); !reserved) return reserved.error();
    return file;
}

Result<void> write_runs(Disk& disk, const ShardFile& file, ShardImage& image) {
    const std::unique_ptr<BlockWriter> writer = disk.writer(file.fd.get(), file.is_direct);
    const auto write = [&](std::size_t index) { return writer->write(index * kRunBytes, image.run(index), image.run_size(index)); };
    bool first_waits = false;
    Result<void> written;
    while (const auto index = image.next_ready()) {
        if (!written) continue;
        if (*index == 0 && file.is_recycled) {
            first_waits = true;
        } else {
            written = write(*index);
        }
    }
    if (written && first_waits) {
        written = writer->finish();
        if (written) written = write(0);
    }
    const auto finished = writer->finish();
    return written ? finished : written;
}

Result<void> fill(Disk& disk, int folder, const std::string& name, ShardImage& image, const Recycle& recycle) {
    auto file = take_file(disk, folder, name, image.size(), recycle);
    if (!file) return file.error();
    if (auto written = write_runs(disk, *file, image); !written) return written;
    image.let_go();
    // Not tried again when it fails: the kernel has forgotten what it could not write.
    if (disk.sync_data(file->fd.get()) != 0) return errno_error("cannot fsync " + name);
    if (!file->is_direct) (void)::posix_fadvise(file->fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    return {};
}

// Under its own name when it is whole and durable; no file is left otherwise. Its rank and a keeper on another node may write the same shard at the same time
// (a node that only seemed to be lost): each has a temporary file of its own, and they put the same bytes under the name.
enum class Writer { Rank, Keeper };
Result<void> write_named(Disk& disk, int folder, const std::string& name, ShardImage& image, const Recycle& recycle, Writer writer) {
    const std::string temporary = "." + name + (writer == Writer::Rank ? ".part" : ".kept");
    if (!image.give_again()) return Error{Code::Internal, name + " cannot be written again: there is no copy, and the tensors may have changed"};
    disk.unlink_at(folder, temporary.c_str(), 0);
    auto filled = fill(disk, folder, temporary, image, recycle);
    image.wait_copied();
    if (filled && disk.rename_at(folder, temporary.c_str(), folder, name.c_str(), 0) != 0) filled = errno_error("cannot rename " + temporary);
    if (filled && disk.sync(folder) != 0) filled = errno_error("cannot fsync the folder of " + name);
    if (!filled) {
        disk.unlink_at(folder, temporary.c_str(), 0);
        if (writer == Writer::Rank) disk.unlink_at(folder, name.c_str(), 0);
    }
    return filled;
}

}  // namespace

Part part_of(const ShardPlan& plan, const ShardImage& image) {
    Part part{{}, image.tensors()};
    part.head.version = plan.metric ? kMeasuredVersion : image.version();
    part.head.metric = plan.metric;
    part.head.job = plan.job;
    part.head.step = plan.step;
    part.head.attempt = plan.attempt;
    part.head.world = plan.world;
    part.head.shards.push_back({plan.rank, shard_name(plan.rank, plan.world), image.size(), image.checksums()});
    return part;
}

Result<Part> write_image(Disk& disk, int folder, ShardImage& image, const ShardPlan& plan, const Recycle& recycle) {
    auto written = write_named(disk, folder, shard_name(plan.rank, plan.world), image, recycle, Writer::Rank);
    if (!written) return written.error();
    return part_of(plan, image);
}

Result<void> write_adopted(Disk& disk, int folder, ShardImage& image, const Manifest& part) {
    return write_named(disk, folder, part.shards.at(0).name, image, {}, Writer::Keeper);
}

Result<Part> write_shard(int folder, const ShardPlan& plan, Disk& disk) {
    for (const Tensor& tensor : plan.tensors) {
        if (auto checked = check_tensor(tensor); !checked) return checked.error();
    }
    ShardImage image;
    if (auto prepared = image.prepare(plan); !prepared) return prepared.error();
    if (auto begun = image.begin(plan.step, plan.tensors); !begun) return begun.error();
    return write_image(disk, folder, image, plan);
}

// Replicated tensors go to whoever has least, the largest first, so that shards are about equally long. Every rank reckons the same.
std::vector<Tensor> tensors_to_write(std::span<const Tensor> tracked, std::uint32_t rank, std::uint32_t world) {
    std::vector<std::size_t> replicated;
    for (std::size_t i = 0; i < tracked.size(); ++i) {
        if (tracked[i].policy == Policy::Replicated) replicated.push_back(i);
    }
    const auto bytes = [&](std::size_t i) { return *elements_of(tracked[i].global_shape) * bytes_of(tracked[i].dtype); };
    std::stable_sort(replicated.begin(), replicated.end(), [&](std::size_t a, std::size_t b) { return bytes(a) > bytes(b); });
    using Load = std::pair<std::uint64_t, std::uint32_t>;  // bytes, rank
    std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
    for (std::uint32_t one = 0; one < world; ++one) least.emplace(0, one);
    std::vector<bool> is_mine(tracked.size());
    for (const std::size_t i : replicated) {
        const auto [load, to] = least.top();
        least.pop();
        least.emplace(load + bytes(i), to);
        is_mine[i] = to == rank;
    }
    std::vector<Tensor> mine;
    for (std::size_t i = 0; i < tracked.size(); ++i) {
        if (tracked[i].policy != Policy::Replicated || is_mine[i]) mine.push_back(tracked[i]);
    }
    return mine;
}

}  // namespace gangline::checkpoint
