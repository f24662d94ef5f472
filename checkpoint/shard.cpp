#include "checkpoint/shard.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include <fmt/format.h>

#include "base/handle.h"
#include "checkpoint/hdf5_layout.h"

namespace gangline::checkpoint {
namespace {

// Space for the whole file, or NoSpace before a byte of it is written. A file system without the call gives none ahead.
Result<void> reserve(int fd, std::uint64_t bytes, const std::string& name) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) {
        return Error{Code::NoSpace, fmt::format("{} needs {} bytes, files of this process may have {} (ulimit -f)", name, bytes,
                                                limit.rlim_cur)};
    }
    for (;;) {
        if (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) return {};
        if (errno == EINTR) continue;
        if (errno == EOPNOTSUPP || errno == ENOSYS) return {};
        return errno_error(fmt::format("cannot reserve {} bytes for {}", bytes, name));
    }
}

Result<void> write_at(int fd, const void* data, std::uint64_t size, std::uint64_t place, const std::string& name) {
    const char* bytes = static_cast<const char*>(data);
    while (size > 0) {
        const ssize_t n = ::pwrite(fd, bytes, static_cast<std::size_t>(std::min<std::uint64_t>(size, kBlockBytes)),
                                   static_cast<off_t>(place));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno_error(fmt::format("cannot write tensor '{}'", name));
        bytes += n;
        size -= static_cast<std::uint64_t>(n);
        place += static_cast<std::uint64_t>(n);
    }
    return {};
}

// The checksums are of what the file holds now, header included.
Result<std::vector<std::uint32_t>> checksums_of(int fd, std::uint64_t size, const std::string& name) {
    std::vector<std::uint32_t> crcs;
    std::vector<char> block(static_cast<std::size_t>(std::min<std::uint64_t>(size, kBlockBytes)));
    for (std::uint64_t at = 0; at < size;) {
        const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(kBlockBytes, size - at));
        std::size_t filled = 0;
        while (filled < wanted) {
            const ssize_t n = ::pread(fd, block.data() + filled, wanted - filled, static_cast<off_t>(at + filled));
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) return errno_error("cannot read back " + name);
            filled += static_cast<std::size_t>(n);
        }
        crcs.push_back(crc32c(block.data(), wanted));
        at += wanted;
    }
    return crcs;
}

Manifest part_of(const ShardPlan& plan, const std::vector<std::uint64_t>& places) {
    Manifest part;
    part.job = plan.job;
    part.step = plan.step;
    part.attempt = plan.attempt;
    part.world = plan.world;
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
        const Tensor& tensor = plan.tensors[i];
        part.tensors.push_back({tensor.name, tensor.dtype, tensor.policy, tensor.global_shape,
                                {Box{plan.rank, places[i], tensor.offset, tensor.extent}}});
    }
    std::sort(part.tensors.begin(), part.tensors.end(),
              [](const TensorRecord& a, const TensorRecord& b) { return a.name < b.name; });
    return part;
}

Result<Manifest> fill(int folder, const std::string& name, const ShardPlan& plan) {
    {
        const Fd fd(::openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (!fd) return errno_error("cannot create " + name);
        if (auto reserved = reserve(fd.get(), estimated_bytes(plan), name); !reserved) return reserved.error();
    }
    const auto places = lay_out_shard(fmt::format("/proc/self/fd/{}/{}", folder, name), plan);
    if (!places) return places.error();
    const Fd fd(::openat(folder, name.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0) return errno_error("cannot open " + name);
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (auto reserved = reserve(fd.get(), size, name); !reserved) return reserved.error();
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
        const Tensor& tensor = plan.tensors[i];
        const std::uint64_t bytes = *elements_of(tensor.extent) * bytes_of(tensor.dtype);
        if (auto written = write_at(fd.get(), tensor.data, bytes, (*places)[i], tensor.name); !written) return written.error();
    }
    if (::fsync(fd.get()) != 0) return errno_error("cannot fsync " + name);
    auto crcs = checksums_of(fd.get(), size, name);
    if (!crcs) return crcs.error();
    Manifest part = part_of(plan, *places);
    part.shards.push_back({plan.rank, shard_name(plan.rank, plan.world), size, std::move(*crcs)});
    return part;
}

}  // namespace

Result<Manifest> write_shard(int folder, const ShardPlan& plan) {
    for (const Tensor& tensor : plan.tensors) {
        if (auto checked = check_tensor(tensor); !checked) return checked.error();
    }
    const std::string name = shard_name(plan.rank, plan.world);
    const std::string temporary = "." + name + ".part";
    ::unlinkat(folder, temporary.c_str(), 0);
    auto part = fill(folder, temporary, plan);
    if (part && ::renameat(folder, temporary.c_str(), folder, name.c_str()) != 0) part = errno_error("cannot rename " + temporary);
    if (part && ::fsync(folder) != 0) part = errno_error("cannot fsync the folder of " + name);
    if (!part) {
        ::unlinkat(folder, temporary.c_str(), 0);
        ::unlinkat(folder, name.c_str(), 0);
    }
    return part;
}

std::vector<Tensor> tensors_to_write(std::span<const Tensor> tracked, std::uint32_t rank, std::uint32_t world) {
    std::vector<Tensor> mine;
    std::uint32_t replicated = 0;
    for (const Tensor& tensor : tracked) {
        if (tensor.policy != Policy::Replicated || replicated++ % world == rank) mine.push_back(tensor);
    }
    return mine;
}

}  // namespace gangline::checkpoint
