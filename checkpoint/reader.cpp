#include "checkpoint/reader.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "checkpoint/disk.h"

namespace gangline::checkpoint {
namespace {

constexpr std::uint64_t kReadBytes = 8u << 20;  // at once
constexpr unsigned kReaders = 4;  // so that the disk has something to do while blocks are checked and copied

struct FreeMemory {
    void operator()(char* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<char, FreeMemory>;

AlignedMemory aligned_memory(std::size_t size) {
    constexpr std::size_t kLargePage = 2u << 20;  // the disk takes its pieces with far fewer descriptors
    void* memory = nullptr;
    if (::posix_memalign(&memory, std::max(kDiskAlignment, kLargePage), size) != 0) return nullptr;
    (void)::madvise(memory, size, MADV_HUGEPAGE);
    return AlignedMemory(static_cast<char*>(memory));
}

// Row-major strides, in bytes, of a box of this extent.
Shape strides_of(const Shape& extent, std::size_t width) {
    Shape strides(extent.size());
    std::uint64_t stride = width;
    for (std::size_t i = extent.size(); i-- > 0;) {
        strides[i] = stride;
        stride *= extent[i];
    }
    return strides;
}

}  // namespace

Result<ShardMemory> ShardMemory::map(const Fd& memory, std::uint64_t size) {
    struct stat status {};
    if (::fstat(memory.get(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) < size || size == 0) {
        return Error{Code::Damaged, fmt::format("a shard of {} bytes is not in this memory", size)};
    }
    void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, memory.get(), 0);
    if (mapped == MAP_FAILED) return errno_error("cannot map a shard's memory");
    return ShardMemory(static_cast<const char*>(mapped), size);
}

ShardMemory::~ShardMemory() {
    if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

Checkpoint::Checkpoint(Fd folder, Manifest manifest, std::string place)
    : folder_(std::move(folder)), manifest_(std::move(manifest)), place_(std::move(place)) {
    if (folder_) (void)::flock(folder_.get(), LOCK_SH | LOCK_NB);  // see Store::delete_old; where there are no locks nothing is recycled
}

Result<void> Checkpoint::open_file(const ShardRecord& shard) {
    if (files_.contains(shard.rank)) return {};
    File file;
    file.cached = Fd(::openat(folder_.get(), shard.name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (!file.cached) return errno_error(fmt::format("cannot open {}/{}", place_, shard.name), Code::Damaged);
    struct stat status {};
    if (::fstat(file.cached.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
        return Error{Code::Damaged, fmt::format("{}/{} is not a regular file", place_, shard.name)};
    }
    if (static_cast<std::uint64_t>(status.st_size) != shard.size) {
        return Error{Code::Damaged, fmt::format("{}/{} has {} bytes, the manifest says {}", place_, shard.name, status.st_size, shard.size)};
    }
    if (manifest_.block_bytes % kDiskAlignment == 0) {
        file.direct = Fd(::openat(folder_.get(), shard.name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_DIRECT));
    }
    files_.emplace(shard.rank, std::move(file));
    return {};
}

// ---- one block

namespace {

// Whether the page cache has all of it. (A read that may not wait would start to read ahead.)
bool is_cached(int fd, std::size_t size, std::uint64_t begin) {
    void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(begin));
    if (mapped == MAP_FAILED) return false;
    std::vector<unsigned char> pages((size + kDiskAlignment - 1) / kDiskAlignment);
    const bool known = ::mincore(mapped, size, pages.data()) == 0;
    ::munmap(mapped, size);
    return known && std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1u) != 0; });
}

}  // namespace

// So many are read at once.
std::uint64_t Checkpoint::most_blocks() const { return std::max<std::uint64_t>(1, kReadBytes / manifest_.block_bytes); }

// Joins the block to those before it where it can.
void Checkpoint::add_work(std::vector<Work>& work, const ShardRecord& shard, std::uint64_t block, const std::vector<std::uint32_t>& pieces) const {
    if (work.empty() || work.back().shard != &shard || work.back().block + work.back().blocks != block || work.back().blocks == most_blocks()) {
        work.push_back({&shard, block, 1, pieces});
        return;
    }
    Work& last = work.back();
    ++last.blocks;
    std::vector<std::uint32_t> all;
    std::set_union(last.pieces.begin(), last.pieces.end(), pieces.begin(), pieces.end(), std::back_inserter(all));
    last.pieces = std::move(all);
}

// Nothing: not there, or not what the manifest says.
const char* Checkpoint::find_in_memory(const Work& work, std::uint64_t& size) const {
    const auto found = memory_.find(work.shard->rank);
    if (found == memory_.end() || found->second.size() != work.shard->size) return nullptr;
    const std::uint64_t begin = work.block * manifest_.block_bytes;
    size = std::min(work.blocks * manifest_.block_bytes, work.shard->size - begin);
    const char* const bytes = found->second.data() + begin;
    for (std::uint64_t i = 0; i < work.blocks; ++i) {
        const std::uint64_t at = i * manifest_.block_bytes;
        if (crc32c(bytes + at, std::min(manifest_.block_bytes, size - at)) != work.shard->block_crcs[static_cast<std::size_t>(work.block + i)]) return nullptr;
    }
    return bytes;
}

Result<void> Checkpoint::read_blocks(const Work& work, char* memory, std::uint64_t& size) const {
    const ShardRecord& shard = *work.shard;
    if (!files_.contains(shard.rank)) return Error{Code::Damaged, fmt::format("{}/{} is not there", place_, shard.name)};
    const File& file = files_.at(shard.rank);
    const std::uint64_t begin = work.block * manifest_.block_bytes;
    size = std::min(work.blocks * manifest_.block_bytes, shard.size - begin);
    std::uint64_t filled = 0;
    int fd = file.direct && !is_cached(file.cached.get(), size, begin) ? file.direct.get() : file.cached.get();
    while (filled < size) {
        const std::uint64_t wanted = fd == file.cached.get() ? size - filled : (size - filled + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
        const ssize_t n = ::pread(fd, memory + filled, wanted, static_cast<off_t>(begin + filled));
        if (n < 0 && errno == EINTR) continue;
        if (fd != file.cached.get() && (n < 0 || static_cast<std::uint64_t>(n) % kDiskAlignment != 0)) {
            fd = file.cached.get();  // refused, or at an odd end: the ordinary way
            if (n < 0) continue;
        }
        if (n <= 0) {
            return Error{Code::Damaged, fmt::format("{}/{}: block {} cannot be read: {}", place_, shard.name, (begin + filled) / manifest_.block_bytes,
                                                    n == 0 ? "the file has become shorter" : std::strerror(errno))};
        }
        filled += static_cast<std::uint64_t>(n);
    }
    for (std::uint64_t i = 0; i < work.blocks; ++i) {
        const std::uint64_t at = i * manifest_.block_bytes;
        const std::uint64_t bytes = std::min(manifest_.block_bytes, size - at);
        if (crc32c(memory + at, bytes) == shard.block_crcs[static_cast<std::size_t>(work.block + i)]) continue;
        return Error{Code::Damaged, fmt::format("{}/{}: block {} (bytes {} to {}) does not have its checksum", place_, shard.name, work.block + i, begin + at,
                                                begin + at + bytes)};
    }
    return {};
}

// ---- pieces

void Checkpoint::add_piece(const Tensor& wanted, const Box& box) {
    const std::size_t dimensions = wanted.extent.size();
    const std::size_t width = bytes_of(wanted.dtype);
    Shape begin(dimensions);
    Shape count(dimensions);
    for (std::size_t i = 0; i < dimensions; ++i) {
        begin[i] = std::max(wanted.offset[i], box.offset[i]);
        const std::uint64_t end = std::min(wanted.offset[i] + wanted.extent[i], box.offset[i] + box.extent[i]);
        if (end <= begin[i]) return;
        count[i] = end - begin[i];
    }
    const Shape in_file = strides_of(box.extent, width);
    const Shape in_data = strides_of(wanted.extent, width);
    Piece piece;
    piece.file_offset = box.file_offset;
    piece.data = static_cast<char*>(wanted.data);
    for (std::size_t i = 0; i < dimensions; ++i) {
        piece.file_offset += (begin[i] - box.offset[i]) * in_file[i];
        piece.data += (begin[i] - wanted.offset[i]) * in_data[i];
    }
    std::size_t outer = dimensions;  // dimensions [outer, end) form one row
    piece.run = width;
    while (outer > 0) {
        --outer;
        piece.run *= count[outer];
        if (count[outer] != wanted.extent[outer] || count[outer] != box.extent[outer]) break;
    }
    for (std::size_t i = 0; i < outer; ++i) {
        if (count[i] == 1) continue;
        piece.counts.push_back(count[i]);
        piece.file_strides.push_back(in_file[i]);
        piece.data_strides.push_back(in_data[i]);
        piece.rows *= count[i];
    }
    pieces_[box.shard_rank].push_back(std::move(piece));
}

void Checkpoint::add_pieces(const Tensor& wanted, const TensorRecord& stored, std::uint32_t rank) {
    if (*elements_of(wanted.extent) == 0) return;
    if (is_per_rank(stored.policy)) return add_piece(wanted, stored.boxes[rank]);
    if (stored.policy == Policy::Replicated) return add_piece(wanted, stored.boxes.front());
    for (const Box& box : stored.boxes) add_piece(wanted, box);
}

namespace {

// Byte and memory of row `row`: both grow with it.
struct RowPlace {
    std::uint64_t file = 0;
    std::uint64_t data = 0;
};

RowPlace place_of(std::uint64_t row, const Shape& counts, const Shape& file_strides, const Shape& data_strides) {
    RowPlace place;
    for (std::size_t i = counts.size(); i-- > 0;) {
        const std::uint64_t at = row % counts[i];
        row /= counts[i];
        place.file += at * file_strides[i];
        place.data += at * data_strides[i];
    }
    return place;
}

}  // namespace

// The first row that ends behind byte `begin` of the shard.
std::uint64_t Checkpoint::first_row_behind(const Piece& piece, std::uint64_t begin) {
    std::uint64_t low = 0;
    for (std::uint64_t high = piece.rows; low < high;) {
        const std::uint64_t middle = low + (high - low) / 2;
        const std::uint64_t at = piece.file_offset + place_of(middle, piece.counts, piece.file_strides, piece.data_strides).file;
        if (at + piece.run > begin) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

// Rows far apart leave blocks between them alone.
bool Checkpoint::has_bytes_in(const Piece& piece, std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t row = first_row_behind(piece, begin);
    return row < piece.rows && piece.file_offset + place_of(row, piece.counts, piece.file_strides, piece.data_strides).file < end;
}

// The rows' bytes that lie in [begin, end) of the shard, which `block` holds.
void Checkpoint::copy_rows(const Piece& piece, std::uint64_t begin, std::uint64_t end, const char* block) const {
    const auto place = [&](std::uint64_t row) {
        RowPlace found = place_of(row, piece.counts, piece.file_strides, piece.data_strides);
        found.file += piece.file_offset;
        return found;
    };
    for (std::uint64_t row = first_row_behind(piece, begin); row < piece.rows; ++row) {
        const RowPlace at = place(row);
        if (at.file >= end) return;
        const std::uint64_t from = std::max(at.file, begin);
        const std::uint64_t until = std::min(at.file + piece.run, end);
        std::memcpy(piece.data + at.data + (from - at.file), block + (from - begin), static_cast<std::size_t>(until - from));
    }
}

// ---- all blocks

Result<void> Checkpoint::run(const std::vector<Work>& work, const std::function<void(std::uint64_t)>& progress) {
    for (const Work& one : work) {
        const bool is_in_memory = memory_.contains(one.shard->rank);
        if (auto opened = open_file(*one.shard); !opened && !is_in_memory) return opened;
    }
    std::atomic<std::size_t> next{0};
    std::atomic<std::uint64_t> done{0};
    std::atomic<bool> is_over{false};
    std::mutex mutex;
    std::optional<Error> error;
    const auto fail = [&](Error what) {
        is_over = true;
        const std::lock_guard lock(mutex);
        if (!error) error = std::move(what);
    };
    const auto complain = [&](const Work& one) {
        const std::lock_guard lock(mutex);
        if (memory_problems_.empty()) memory_problems_ = fmt::format("{}: block {} of {} in memory does not have its checksum", place_, one.block, one.shard->name);
    };
    const auto read = [&] {
        const AlignedMemory memory = aligned_memory(static_cast<std::size_t>((most_blocks() * manifest_.block_bytes + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment));
        if (memory == nullptr) return fail({Code::NoSpace, "no memory for a block"});
        for (std::size_t index = 0; !is_over && (index = next++) < work.size();) {
            const Work& one = work[index];
            std::uint64_t size = 0;
            const char* bytes = find_in_memory(one, size);
            if (bytes == nullptr && memory_.contains(one.shard->rank)) complain(one);
            if (bytes == nullptr) {
                if (auto loaded = read_blocks(one, memory.get(), size); !loaded) return fail(loaded.error());
                bytes = memory.get();
            }
            const std::uint64_t begin = one.block * manifest_.block_bytes;
            for (const std::uint32_t piece : one.pieces) copy_rows(pieces_.at(one.shard->rank)[piece], begin, begin + size, bytes);
            if (progress) progress(done += size);
        }
    };
    std::vector<std::thread> others;
    for (unsigned i = 1; i < std::min<std::size_t>(kReaders, work.size()); ++i) others.emplace_back(read);
    read();
    for (std::thread& other : others) other.join();
    if (error) return *error;
    return {};
}

Result<void> Checkpoint::run_pieces() {
    std::vector<Work> work;
    for (const ShardRecord& shard : manifest_.shards) {
        const auto found = pieces_.find(shard.rank);
        if (found == pieces_.end()) continue;
        std::map<std::uint64_t, std::vector<std::uint32_t>> blocks;
        for (std::uint32_t i = 0; i < found->second.size(); ++i) {
            const Piece& piece = found->second[i];
            const std::uint64_t last = piece.file_offset + place_of(piece.rows - 1, piece.counts, piece.file_strides, piece.data_strides).file + piece.run - 1;
            for (std::uint64_t block = piece.file_offset / manifest_.block_bytes; block <= last / manifest_.block_bytes; ++block) {
                if (has_bytes_in(piece, block * manifest_.block_bytes, (block + 1) * manifest_.block_bytes)) blocks[block].push_back(i);
            }
        }
        for (const auto& [block, pieces] : blocks) add_work(work, shard, block, pieces);
    }
    auto done = run(work, {});
    pieces_.clear();
    return done;
}

// Errors: Refused, when what is stored under the name is not what is wanted.
Result<void> Checkpoint::check_one(const Tensor& tensor, const TensorRecord* stored) const {
    auto refuse = [&](std::string why) { return Error{Code::Refused, fmt::format("checkpoint {}: {}", place_, why)}; };
    if (stored == nullptr) {
        return refuse(fmt::format("it has no tensor '{}', which this program tracks; track what was saved", tensor.name));
    }
    if (is_per_rank(stored->policy) != is_per_rank(tensor.policy)) {
        return refuse(fmt::format("tensor '{}' was saved as {} and is tracked as {}", tensor.name, name_of(stored->policy),
                                  name_of(tensor.policy)));
    }
    if (stored->dtype != tensor.dtype || (!is_per_rank(tensor.policy) && stored->global_shape != tensor.global_shape)) {
        return refuse(fmt::format("tensor '{}' was saved as {} {} and is tracked as {} {}", tensor.name, name_of(stored->dtype),
                                  to_text(stored->global_shape), name_of(tensor.dtype), to_text(tensor.global_shape)));
    }
    return {};
}

Result<void> Checkpoint::fill(std::span<const Tensor> wanted, std::uint32_t rank) {
    for (const Tensor& tensor : wanted) {
        const TensorRecord* stored = manifest_.tensor_of(tensor.name);
        if (auto checked = check_one(tensor, stored); !checked) return checked;
        if (is_per_rank(stored->policy) && rank >= stored->boxes.size()) {
            return Error{Code::Refused, fmt::format("checkpoint {}: tensor '{}' is of {} ranks, there is no rank {}", place_, tensor.name, stored->boxes.size(), rank)};
        }
        const Shape& shape = is_per_rank(stored->policy) ? stored->boxes[rank].extent : stored->global_shape;
        if (shape != tensor.global_shape || !is_inside(tensor.offset, tensor.extent, shape)) {
            return Error{Code::Refused, fmt::format("checkpoint {}: tensor '{}' has the shape {}, no box of {} at {} of {}", place_, tensor.name,
                                                    to_text(shape), to_text(tensor.extent), to_text(tensor.offset), to_text(tensor.global_shape))};
        }
    }
    pieces_.clear();
    for (const Tensor& tensor : wanted) add_pieces(tensor, *manifest_.tensor_of(tensor.name), rank);
    return run_pieces();
}

Result<void> Checkpoint::verify(const std::function<void(std::uint64_t done)>& progress) {
    std::vector<Work> work;
    for (const ShardRecord& shard : manifest_.shards) {
        for (std::uint64_t index = 0; index < shard.block_crcs.size(); ++index) add_work(work, shard, index, {});
    }
    return run(work, progress);
}

}  // namespace gangline::checkpoint
