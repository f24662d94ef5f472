#include "checkpoint/reader.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "checkpoint/disk.h"

namespace gangline::checkpoint {
namespace {

constexpr std::uint64_t kReadBytes = 2u << 20;  // at once: one large page, which the disk takes with one descriptor
constexpr unsigned kReaders = 8;  // so that the disk has something to do while blocks are checked and copied

// Fresh from the kernel, so that it comes in large pages: what the allocator has used before lies in small ones.
class LargePages {
  public:
    static constexpr std::size_t kPage = 2u << 20;

    explicit LargePages(std::size_t size) : size_(size + kPage) {
        void* const taken = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memory_ = taken == MAP_FAILED ? nullptr : static_cast<char*>(taken);
        if (memory_ != nullptr) (void)::madvise(memory_, size_, MADV_HUGEPAGE);
    }
    ~LargePages() {
        if (memory_ != nullptr) ::munmap(memory_, size_);
    }
    LargePages(const LargePages&) = delete;
    LargePages& operator=(const LargePages&) = delete;
    char* begin() const { return memory_ == nullptr ? nullptr : memory_ + (kPage - reinterpret_cast<std::uintptr_t>(memory_) % kPage) % kPage; }

  private:
    char* memory_ = nullptr;
    std::size_t size_;
};

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
    if (!file.cached && (errno == EMFILE || errno == ENFILE)) {  // says nothing of the checkpoint
        return errno_error(fmt::format("cannot open {}/{}; raise the number of open files (ulimit -n)", place_, shard.name), Code::Unavailable);
    }
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
    if (auto mapped = ShardMemory::map(file.cached, shard.size)) file.mapped.emplace(std::move(*mapped));
    files_.emplace(shard.rank, std::move(file));
    return {};
}

// The mapping is asked, never read. (A read that may not wait would start to read ahead.)
bool Checkpoint::File::is_cached(std::uint64_t begin, std::uint64_t bytes) const {
    if (!mapped || begin % kDiskAlignment != 0) return false;
    std::vector<unsigned char> pages(static_cast<std::size_t>((bytes + kDiskAlignment - 1) / kDiskAlignment));
    if (::mincore(const_cast<char*>(mapped->data()) + begin, bytes, pages.data()) != 0) return false;
    return std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1u) != 0; });
}

// ---- blocks side by side

// So many are read at once.
std::uint64_t Checkpoint::most_blocks() const { return std::max<std::uint64_t>(1, kReadBytes / manifest_.block_bytes); }

Checkpoint::Range Checkpoint::range_of(const Work& work) const {
    const std::uint64_t begin = work.block * manifest_.block_bytes;
    return {begin, std::min(begin + work.blocks * manifest_.block_bytes, work.shard->size)};
}

const std::vector<Checkpoint::Piece>& Checkpoint::pieces_of(const ShardRecord& shard) const {
    static const std::vector<Piece> kNone;
    const auto found = pieces_.find(shard.rank);
    return found == pieces_.end() ? kNone : found->second;
}

// Joins the block to those before it where it can.
void Checkpoint::add_work(std::vector<Work>& work, const ShardRecord& shard, std::uint64_t block, const std::vector<std::uint32_t>& pieces) const {
    Work* const last = work.empty() ? nullptr : &work.back();
    if (last == nullptr || last->shard != &shard || last->block + last->blocks != block || last->blocks == most_blocks()) {
        work.push_back({&shard, block, 1, pieces});
        return;
    }
    ++last->blocks;
    if (last->pieces == pieces) return;
    std::vector<std::uint32_t> all;
    std::set_union(last->pieces.begin(), last->pieces.end(), pieces.begin(), pieces.end(), std::back_inserter(all));
    last->pieces = std::move(all);
}

// What O_DIRECT is refused comes the ordinary way.
Result<void> Checkpoint::read_range(const ShardRecord& shard, const Range& range, char* memory) const {
    const auto opened = files_.find(shard.rank);
    if (opened == files_.end()) return Error{Code::Damaged, fmt::format("{}/{} is not there", place_, shard.name)};
    const File& file = opened->second;
    const std::uint64_t size = range.end - range.begin;
    int fd = file.direct && !file.is_cached(range.begin, size) ? file.direct.get() : file.cached.get();
    for (std::uint64_t filled = 0; filled < size;) {
        const std::uint64_t wanted = fd == file.cached.get() ? size - filled : (size - filled + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
        const ssize_t n = ::pread(fd, memory + filled, wanted, static_cast<off_t>(range.begin + filled));
        if (n < 0 && errno == EINTR) continue;
        if (fd != file.cached.get() && (n < 0 || static_cast<std::uint64_t>(n) % kDiskAlignment != 0)) {
            fd = file.cached.get();  // refused, or at an odd end
            if (n < 0) continue;
        }
        if (n <= 0) {
            return Error{Code::Damaged, fmt::format("{}/{}: block {} cannot be read: {}", place_, shard.name, (range.begin + filled) / manifest_.block_bytes,
                                                    n == 0 ? "the file has become shorter" : std::strerror(errno))};
        }
        filled += static_cast<std::uint64_t>(n);
    }
    return {};
}

// Brings the block's rows to their tensors and returns the block's checksum: in one pass where the rows lie side by side and apart from each other.
std::uint32_t Checkpoint::take_block(const ShardRecord& shard, const std::vector<std::uint32_t>& pieces, const Range& range, const char* bytes) const {
    const std::vector<Piece>& all = pieces_of(shard);
    std::uint64_t at = range.begin;
    bool is_one_pass = true;
    const auto part_of = [&](const Piece& piece) { return Range{std::max(piece.file_offset, range.begin), std::min(piece.file_offset + piece.run, range.end)}; };
    for (const std::uint32_t index : pieces) {
        const Range part = part_of(all[index]);
        is_one_pass = is_one_pass && all[index].rows == 1 && (part.begin >= part.end || part.begin >= at);
        at = std::max(at, part.end);
    }
    if (!is_one_pass) {
        for (const std::uint32_t index : pieces) copy_rows(all[index], range, bytes);
        return crc32c(bytes, range.end - range.begin);
    }
    std::uint32_t crc = 0;
    at = range.begin;
    for (const std::uint32_t index : pieces) {
        const Range part = part_of(all[index]);
        if (part.begin >= part.end) continue;
        crc = crc32c(bytes + (at - range.begin), part.begin - at, crc);
        crc = copy_with_crc32c(all[index].data + (part.begin - all[index].file_offset), bytes + (part.begin - range.begin), part.end - part.begin, crc);
        at = part.end;
    }
    return crc32c(bytes + (at - range.begin), range.end - at, crc);
}

// The first block that is not what the manifest says; nothing: all are.
std::optional<Checkpoint::Range> Checkpoint::take_blocks(const Work& work, const char* bytes) const {
    const Range all = range_of(work);
    for (std::uint64_t i = 0; i < work.blocks; ++i) {
        const std::uint64_t begin = all.begin + i * manifest_.block_bytes;
        const Range block{begin, std::min(begin + manifest_.block_bytes, all.end)};
        if (take_block(*work.shard, work.pieces, block, bytes + (begin - all.begin)) != work.shard->block_crcs[static_cast<std::size_t>(work.block + i)]) return block;
    }
    return std::nullopt;
}

// In the order of the work: a shard's stream is opened when its first block is wanted. False: there is none, or it has broken off.
bool Checkpoint::take_from_stream(Feed& feed, const Work& work, char* buffer) const {
    if (!find_stream_ || memory_.contains(work.shard->rank)) return false;
    if (feed.shard != work.shard) {
        feed.stream.reset();
        feed.stream = find_stream_(*work.shard);
        feed.shard = work.shard;
    }
    const Range range = range_of(work);
    if (feed.stream == nullptr) return false;
    if (feed.stream->read(range.begin, buffer, range.end - range.begin)) return true;
    feed.stream.reset();
    return false;
}

// From the shard's memory or what has come of it into `buffer`; what is not right there comes from its file. `problem`: what was wrong.
Result<void> Checkpoint::perform(const Work& work, char* buffer, bool is_in_buffer, std::string& problem) const {
    const ShardRecord& shard = *work.shard;
    const Range range = range_of(work);
    const auto index_of = [&](const Range& block) { return block.begin / manifest_.block_bytes; };
    if (const auto memory = memory_.find(shard.rank); memory != memory_.end()) {
        std::optional<Range> wrong = range;
        if (memory->second.size() == shard.size) wrong = take_blocks(work, memory->second.data() + range.begin);
        if (!wrong) return {};
        problem = fmt::format("{}: block {} of {} in memory does not have its checksum", place_, index_of(*wrong), shard.name);
    } else if (is_in_buffer) {
        const auto wrong = take_blocks(work, buffer);
        if (!wrong) return {};
        problem = fmt::format("{}: block {} of {} came from another node without its checksum", place_, index_of(*wrong), shard.name);
    }
    if (auto read = read_range(shard, range, buffer); !read) return read;
    const auto wrong = take_blocks(work, buffer);
    if (!wrong) return {};
    return Error{Code::Damaged, fmt::format("{}/{}: block {} (bytes {} to {}) does not have its checksum", place_, shard.name, index_of(*wrong), wrong->begin, wrong->end)};
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

// The rows' bytes that lie in the range, which `bytes` holds.
void Checkpoint::copy_rows(const Piece& piece, const Range& range, const char* bytes) const {
    const auto place = [&](std::uint64_t row) {
        RowPlace found = place_of(row, piece.counts, piece.file_strides, piece.data_strides);
        found.file += piece.file_offset;
        return found;
    };
    for (std::uint64_t row = first_row_behind(piece, range.begin); row < piece.rows; ++row) {
        const RowPlace at = place(row);
        if (at.file >= range.end) return;
        const std::uint64_t from = std::max(at.file, range.begin);
        const std::uint64_t until = std::min(at.file + piece.run, range.end);
        std::memcpy(piece.data + at.data + (from - at.file), bytes + (from - range.begin), static_cast<std::size_t>(until - from));
    }
}

// ---- all blocks

Result<void> Checkpoint::run(const std::vector<Work>& work, const std::function<void(std::uint64_t)>& progress) {
    std::size_t next = 0;
    std::atomic<std::uint64_t> done{0};
    std::atomic<bool> is_over{false};
    std::mutex mutex;
    std::optional<Error> error;
    const auto fail = [&](Error what) {
        is_over = true;
        const std::lock_guard lock(mutex);
        if (!error) error = std::move(what);
    };
    const std::size_t readers = std::min<std::size_t>(kReaders, work.size());
    const auto bytes_each = static_cast<std::size_t>((most_blocks() * manifest_.block_bytes + kReadBytes - 1) / kReadBytes * kReadBytes);
    const LargePages memory(readers * bytes_each);
    if (memory.begin() == nullptr) return Error{Code::NoSpace, "no memory for a block"};
    Feed feed;
    std::mutex feeding;
    const auto read = [&](std::size_t reader) {
        char* const buffer = memory.begin() + reader * bytes_each;
        for (;;) {
            std::unique_lock taking(feeding);
            const std::size_t index = next++;
            if (is_over || index >= work.size()) return;
            const bool is_in_buffer = take_from_stream(feed, work[index], buffer);
            taking.unlock();
            std::string problem;
            const auto performed = perform(work[index], buffer, is_in_buffer, problem);
            if (!problem.empty()) {
                const std::lock_guard lock(mutex);
                if (memory_problems_.empty()) memory_problems_ = std::move(problem);
            }
            if (!performed) return fail(performed.error());
            const Range range = range_of(work[index]);
            if (progress) progress(done += range.end - range.begin);
            if (while_reading_) while_reading_();
        }
    };
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < readers; ++i) others.emplace_back(read, i);
    read(0);
    for (std::thread& other : others) other.join();
    if (error) return *error;
    return {};
}

Result<void> Checkpoint::run_pieces() {
    std::vector<Work> work;
    for (const ShardRecord& shard : manifest_.shards) {
        const auto found = pieces_.find(shard.rank);
        if (found == pieces_.end()) continue;
        if (auto opened = open_file(shard); !opened && !memory_.contains(shard.rank) && !find_stream_) return opened;
        std::sort(found->second.begin(), found->second.end(), [](const Piece& a, const Piece& b) { return a.file_offset < b.file_offset; });
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
        if (auto opened = open_file(shard); !opened && !memory_.contains(shard.rank)) return opened;
        for (std::uint64_t index = 0; index < shard.block_crcs.size(); ++index) add_work(work, shard, index, {});
    }
    return run(work, progress);
}

}  // namespace gangline::checkpoint
