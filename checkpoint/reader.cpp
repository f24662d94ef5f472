#include "checkpoint/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace gangline::checkpoint {
namespace {

// Row-major distance of `point` in a box of `extent` that begins at `offset`.
std::uint64_t index_in(const Shape& point, const Shape& offset, const Shape& extent) {
    std::uint64_t index = 0;
    for (std::size_t i = 0; i < point.size(); ++i) index = index * extent[i] + (point[i] - offset[i]);
    return index;
}

}  // namespace

Checkpoint::Checkpoint(Fd folder, Manifest manifest, std::string place)
    : folder_(std::move(folder)), manifest_(std::move(manifest)), place_(std::move(place)) {}

Result<int> Checkpoint::file_of(const ShardRecord& shard) {
    const auto known = files_.find(shard.rank);
    if (known != files_.end()) return known->second.get();
    Fd fd(::openat(folder_.get(), shard.name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (!fd) return errno_error(fmt::format("cannot open {}/{}", place_, shard.name), Code::Damaged);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
        return Error{Code::Damaged, fmt::format("{}/{} is not a regular file", place_, shard.name)};
    }
    if (static_cast<std::uint64_t>(status.st_size) != shard.size) {
        return Error{Code::Damaged, fmt::format("{}/{} has {} bytes, the manifest says {}", place_, shard.name, status.st_size,
                                                shard.size)};
    }
    const int number = fd.get();
    files_.emplace(shard.rank, std::move(fd));
    return number;
}

Result<void> Checkpoint::load_block(const ShardRecord& shard, std::uint64_t index) {
    if (block_shard_ == &shard && block_index_ == index) return {};
    const auto file = file_of(shard);
    if (!file) return file.error();
    block_shard_ = nullptr;
    const std::uint64_t begin = index * manifest_.block_bytes;
    block_.resize(static_cast<std::size_t>(std::min(manifest_.block_bytes, shard.size - begin)));
    for (std::size_t filled = 0; filled < block_.size();) {
        const ssize_t n = ::pread(*file, block_.data() + filled, block_.size() - filled, static_cast<off_t>(begin + filled));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            return Error{Code::Damaged, fmt::format("{}/{}: block {} cannot be read: {}", place_, shard.name, index,
                                                    n == 0 ? "the file has become shorter" : std::strerror(errno))};
        }
        filled += static_cast<std::size_t>(n);
    }
    if (crc32c(block_.data(), block_.size()) != shard.block_crcs[static_cast<std::size_t>(index)]) {
        return Error{Code::Damaged, fmt::format("{}/{}: block {} (bytes {} to {}) does not have its checksum", place_, shard.name,
                                                index, begin, begin + block_.size())};
    }
    block_shard_ = &shard;
    block_index_ = index;
    return {};
}

Result<void> Checkpoint::read_bytes(const ShardRecord& shard, std::uint64_t at, std::uint64_t size, char* to) {
    while (size > 0) {
        const std::uint64_t index = at / manifest_.block_bytes;
        if (auto loaded = load_block(shard, index); !loaded) return loaded;
        const std::uint64_t begin = at - index * manifest_.block_bytes;
        const std::uint64_t count = std::min<std::uint64_t>(size, block_.size() - begin);
        std::memcpy(to, block_.data() + begin, static_cast<std::size_t>(count));
        at += count;
        to += count;
        size -= count;
    }
    return {};
}

// Copies what the box and the wanted tensor share, run by run: a run is contiguous in both.
Result<void> Checkpoint::copy_box(const Tensor& wanted, const Box& box) {
    const std::size_t dimensions = wanted.extent.size();
    const ShardRecord& shard = *manifest_.shard_of(box.shard_rank);
    const std::size_t width = bytes_of(wanted.dtype);
    Shape begin(dimensions);
    Shape count(dimensions);
    for (std::size_t i = 0; i < dimensions; ++i) {
        begin[i] = std::max(wanted.offset[i], box.offset[i]);
        const std::uint64_t end = std::min(wanted.offset[i] + wanted.extent[i], box.offset[i] + box.extent[i]);
        if (end <= begin[i]) return {};
        count[i] = end - begin[i];
    }
    std::size_t outer = dimensions;  // dimensions [outer, end) form one run
    std::uint64_t run = 1;
    while (outer > 0) {
        --outer;
        run *= count[outer];
        if (count[outer] != wanted.extent[outer] || count[outer] != box.extent[outer]) break;
    }
    Shape point = begin;
    for (;;) {
        const std::uint64_t from = box.file_offset + index_in(point, box.offset, box.extent) * width;
        char* to = static_cast<char*>(wanted.data) + index_in(point, wanted.offset, wanted.extent) * width;
        if (auto copied = read_bytes(shard, from, run * width, to); !copied) return copied;
        std::size_t i = outer;
        while (i > 0 && ++point[i - 1] == begin[i - 1] + count[i - 1]) {
            point[i - 1] = begin[i - 1];
            --i;
        }
        if (i == 0) return {};
    }
}

Result<void> Checkpoint::read(const Tensor& wanted, const TensorRecord& stored, std::uint32_t rank) {
    if (*elements_of(wanted.extent) == 0) return {};
    if (stored.policy == Policy::PerRank) return copy_box(wanted, stored.boxes[rank]);
    if (stored.policy == Policy::Replicated) return copy_box(wanted, stored.boxes.front());
    for (const Box& box : stored.boxes) {
        if (auto copied = copy_box(wanted, box); !copied) return copied;
    }
    return {};
}

Result<void> Checkpoint::check(std::span<const Tensor> wanted, std::uint32_t world) const {
    auto refuse = [&](std::string why) { return Error{Code::Refused, fmt::format("checkpoint {}: {}", place_, why)}; };
    for (const Tensor& tensor : wanted) {
        const TensorRecord* stored = manifest_.tensor_of(tensor.name);
        if (stored == nullptr) {
            return refuse(fmt::format("it has no tensor '{}', which this program tracks; track what was saved", tensor.name));
        }
        if ((stored->policy == Policy::PerRank) != (tensor.policy == Policy::PerRank)) {
            return refuse(fmt::format("tensor '{}' was saved as {} and is tracked as {}", tensor.name, name_of(stored->policy),
                                      name_of(tensor.policy)));
        }
        if (stored->policy == Policy::PerRank && world != manifest_.world) {
            return refuse(fmt::format("tensor '{}' belongs to each of the {} ranks that saved it, this gang has {}; run with {} ranks, "
                                      "or do not keep per-rank state in a job that changes its size",
                                      tensor.name, manifest_.world, world, manifest_.world));
        }
        if (stored->dtype != tensor.dtype || (tensor.policy != Policy::PerRank && stored->global_shape != tensor.global_shape)) {
            return refuse(fmt::format("tensor '{}' was saved as {} {} and is tracked as {} {}", tensor.name, name_of(stored->dtype),
                                      to_text(stored->global_shape), name_of(tensor.dtype), to_text(tensor.global_shape)));
        }
    }
    for (const TensorRecord& stored : manifest_.tensors) {
        const auto same = [&](const Tensor& tensor) { return tensor.name == stored.name; };
        if (std::none_of(wanted.begin(), wanted.end(), same)) {
            return refuse(fmt::format("its tensor '{}' is not tracked by this program; track what was saved", stored.name));
        }
    }
    return {};
}

Result<void> Checkpoint::restore(std::span<const Tensor> wanted, std::uint32_t rank, std::uint32_t world) {
    for (const Tensor& tensor : wanted) {
        if (auto checked = check_tensor(tensor); !checked) return checked;
    }
    if (auto checked = check(wanted, world); !checked) return checked;
    for (const Tensor& tensor : wanted) {
        const TensorRecord* stored = manifest_.tensor_of(tensor.name);
        if (stored->policy == Policy::PerRank && stored->boxes[rank].extent != tensor.extent) {
            return Error{Code::Refused, fmt::format("checkpoint {}: rank {} saved tensor '{}' with shape {} and tracks it with {}",
                                                    place_, rank, tensor.name, to_text(stored->boxes[rank].extent),
                                                    to_text(tensor.extent))};
        }
    }
    for (const Tensor& tensor : wanted) {
        if (auto filled = read(tensor, *manifest_.tensor_of(tensor.name), rank); !filled) return filled;
    }
    return {};
}

Result<void> Checkpoint::fill(std::span<const Tensor> wanted, std::uint32_t rank) {
    for (const Tensor& tensor : wanted) {
        auto refuse = [&](const std::string& why) {
            return Error{Code::InvalidArgument, fmt::format("checkpoint {}: tensor '{}' {}", place_, tensor.name, why)};
        };
        const TensorRecord* stored = manifest_.tensor_of(tensor.name);
        if (stored == nullptr) return refuse("is not in it");
        if (stored->dtype != tensor.dtype) return refuse(fmt::format("is {}, not {}", name_of(stored->dtype), name_of(tensor.dtype)));
        const bool is_own = stored->policy == Policy::PerRank;
        if (is_own && rank >= stored->boxes.size()) return refuse(fmt::format("has no rank {}", rank));
        const Shape& shape = is_own ? stored->boxes[rank].extent : stored->global_shape;
        if (!is_inside(tensor.offset, tensor.extent, shape) || !elements_of(tensor.extent)) {
            return refuse(fmt::format("has the shape {}, no box of {} at {}", to_text(shape), to_text(tensor.extent), to_text(tensor.offset)));
        }
        if (tensor.data == nullptr && *elements_of(tensor.extent) > 0) return refuse("is to be read to a null pointer");
    }
    for (const Tensor& tensor : wanted) {
        if (auto filled = read(tensor, *manifest_.tensor_of(tensor.name), rank); !filled) return filled;
    }
    return {};
}

Result<void> Checkpoint::verify() {
    for (const ShardRecord& shard : manifest_.shards) {
        for (std::uint64_t index = 0; index < shard.block_crcs.size(); ++index) {
            if (auto loaded = load_block(shard, index); !loaded) return loaded;
        }
    }
    return {};
}

}  // namespace gangline::checkpoint
