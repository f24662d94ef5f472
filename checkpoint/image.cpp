#include "checkpoint/image.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/handle.h"
#include "checkpoint/checksum.h"
#include "checkpoint/disk.h"
#include "checkpoint/hdf5_layout.h"

namespace gangline::checkpoint {
namespace {

constexpr std::uint64_t kLargePage = 2u << 20;
constexpr std::uint64_t kLargestHeader = 256 * 1024;  // of a few hundred tensors; a closer look comes with the file

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

std::uint64_t bytes_in(const Tensor& tensor) { return *elements_of(tensor.extent) * bytes_of(tensor.dtype); }

struct Scratch {
    Fd file;  // sparse
    std::string path;
};

// The HDF5 library wants a path, and follows no link of /proc to a file without a name.
Result<Scratch> make_scratch() {
    const char* const chosen = std::getenv("TMPDIR");
    for (const std::string& parent : {std::string("/dev/shm"), std::string(chosen == nullptr ? "/tmp" : chosen)}) {
        std::string path = fmt::format("{}/gangline-layout-{}-XXXXXX", parent, ::getpid());
        if (Fd file(::mkostemp(path.data(), O_CLOEXEC)); file) return Scratch{std::move(file), std::move(path)};
    }
    return errno_error("cannot make a file in /dev/shm or the temporary folder");
}

// Everything of a tensor that its place depends on, until `visit` says false.
template <class Visit>
bool each_word_of(const Tensor& tensor, const Visit& visit) {
    const std::array<std::uint64_t, 4> sizes{tensor.name.size(), tensor.extent.size(), static_cast<std::uint64_t>(tensor.dtype), static_cast<std::uint64_t>(tensor.policy)};
    if (!visit(sizes.data(), sizeof sizes) || !visit(tensor.name.data(), tensor.name.size())) return false;
    for (const Shape* shape : {&tensor.global_shape, &tensor.offset, &tensor.extent}) {
        if (!visit(shape->data(), shape->size() * sizeof(std::uint64_t))) return false;
    }
    return true;
}

}  // namespace

ShardImage::~ShardImage() {
    for (const ImageMemory& memory : {own_, beside_}) {
        if (memory.data != nullptr) ::munmap(memory.data, memory.size);
    }
}

bool ShardImage::is_laid_out_for(const ShardPlan& plan) const {
    if (size_ == 0 || plan.job != job_ || plan.attempt != attempt_ || plan.rank != rank_ || plan.world != world_) return false;
    constexpr std::size_t kAhead = 8;  // of many small tensors each shape is a wait for memory
    std::string_view rest = shapes_;
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
        if (i + kAhead < plan.tensors.size()) {
            const Tensor& later = plan.tensors[i + kAhead];
            for (const Shape* shape : {&later.global_shape, &later.offset, &later.extent}) __builtin_prefetch(shape->data());
        }
        if (!each_word_of(plan.tensors[i], [&](const void* data, std::size_t size) {
                if (rest.size() < size || std::memcmp(rest.data(), data, size) != 0) return false;
                rest.remove_prefix(size);
                return true;
            })) {
            return false;
        }
    }
    return rest.empty();
}

Result<void> ShardImage::prepare(const ShardPlan& plan) {
    if (is_laid_out_for(plan)) return {};
    size_ = 0;
    {
        const std::lock_guard lock(mutex_);  // nothing is to be copied, also when this fails
        next_ = taken_ = copied_ = given_ = 0;
        states_.clear();
        ready_.clear();
    }
    std::uint64_t least = 0;
    for (const Tensor& tensor : plan.tensors) least += bytes_in(tensor);
    rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && least + kLargestHeader > limit.rlim_cur) {  // a signal would come
        return Error{Code::NoSpace, fmt::format("a shard needs {} bytes and its headers, files of this process may have {} (ulimit -f)", least, limit.rlim_cur)};
    }
    const auto scratch = make_scratch();
    if (!scratch) return scratch.error();
    const auto layout = lay_out_shard(scratch->path, plan);
    if (!layout) {
        ::unlink(scratch->path.c_str());  // it may not have come to that
        return layout.error();
    }
    const Fd& file = scratch->file;
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) return errno_error("cannot examine the layout");
    const std::uint64_t size = round_up(static_cast<std::uint64_t>(status.st_size), kDiskAlignment);
    step_place_ = layout->step_place;
    pieces_.clear();
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
        if (const std::uint64_t bytes = bytes_in(plan.tensors[i]); bytes != 0) pieces_.push_back({layout->places[i], bytes, i});
    }
    std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.place < b.place; });
    size_ = size;
    if (auto loaded = load_template(file.get()); !loaded) {
        size_ = 0;
        return loaded;
    }
    keep_shapes(plan, layout->places);
    crcs_.assign(static_cast<std::size_t>((size_ + kBlockBytes - 1) / kBlockBytes), 0);
    return {};
}

void ShardImage::keep_shapes(const ShardPlan& plan, const std::vector<std::uint64_t>& places) {
    job_ = plan.job;
    attempt_ = plan.attempt;
    rank_ = plan.rank;
    world_ = plan.world;
    shapes_.clear();
    std::vector<TensorRecord> records;
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
        const Tensor& tensor = plan.tensors[i];
        (void)each_word_of(tensor, [&](const void* data, std::size_t size) {
            shapes_.append(static_cast<const char*>(data), size);
            return true;
        });
        records.push_back({tensor.name, tensor.dtype, tensor.policy, tensor.global_shape, {Box{plan.rank, places[i], tensor.offset, tensor.extent}}});
    }
    std::sort(records.begin(), records.end(), [](const TensorRecord& a, const TensorRecord& b) { return a.name < b.name; });
    tensors_ = std::make_shared<const std::string>(encode_tensors(records));
    version_ = version_for(records);
}

// Touched here, so that no later save pays for fresh pages.
Result<void> ShardImage::take_memory(ImageMemory& memory, std::uint64_t size) {
    if (size <= memory.size) return {};
    if (memory.data != nullptr) ::munmap(memory.data, memory.size);
    memory = {};
    const std::uint64_t wanted = round_up(size, kLargePage);
    void* const taken = ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (taken == MAP_FAILED) return Error{Code::NoSpace, fmt::format("no memory for a copy of {} bytes", size)};
    (void)::madvise(taken, wanted, MADV_HUGEPAGE);
    if (::madvise(taken, wanted, MADV_POPULATE_WRITE) != 0 && errno == ENOMEM) {
        ::munmap(taken, wanted);
        return Error{Code::NoSpace, fmt::format("no memory for a copy of {} bytes", size)};
    }
    memory = {static_cast<char*>(taken), wanted, 0};
    return {};
}

// All bytes of the laid-out file that are no tensor's.
Result<void> ShardImage::load_template(int file) {
    template_.clear();
    std::uint64_t at = 0;
    const auto load_until = [&](std::uint64_t end) -> Result<void> {
        if (at >= end) return {};
        Extent extent{at, std::string(static_cast<std::size_t>(end - at), '\0')};  // behind the file's end: zeros
        for (std::uint64_t filled = 0; at + filled < end;) {
            const ssize_t got = ::pread(file, extent.bytes.data() + filled, static_cast<std::size_t>(end - at - filled), static_cast<off_t>(at + filled));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return errno_error("cannot read the layout");
            if (got == 0) break;
            filled += static_cast<std::uint64_t>(got);
        }
        template_.push_back(std::move(extent));
        return {};
    };
    for (const Piece& piece : pieces_) {
        if (auto loaded = load_until(piece.place); !loaded) return loaded;
        at = piece.place + piece.size;
    }
    static std::atomic<std::uint64_t> templates{0};
    template_number_ = ++templates;
    return load_until(size_);
}

// ---- a save begins

void ShardImage::put_template(std::uint64_t from, std::uint64_t until, char* memory) const {
    auto extent = std::upper_bound(template_.begin(), template_.end(), from, [](std::uint64_t at, const Extent& one) { return at < one.place + one.bytes.size(); });
    for (; extent != template_.end() && extent->place < until; ++extent) {
        const std::uint64_t begin = std::max(from, extent->place);
        const std::uint64_t end = std::min<std::uint64_t>(until, extent->place + extent->bytes.size());
        std::memcpy(memory + (begin - from), extent->bytes.data() + (begin - extent->place), static_cast<std::size_t>(end - begin));
    }
}

void ShardImage::begin_runs(std::uint64_t step, std::span<const Tensor> tensors) {
    sources_.clear();
    for (const Tensor& tensor : tensors) sources_.push_back(static_cast<const char*>(tensor.data));
    std::memcpy(run_places_[static_cast<std::size_t>(step_place_ / kRunBytes)] + step_place_ % kRunBytes, &step, sizeof step);
    const std::lock_guard lock(mutex_);
    next_ = taken_ = copied_ = given_ = 0;
    states_.assign(runs(), Run::Free);
    ready_.clear();
    is_let_go_ = is_straight_.empty();
}

Result<void> ShardImage::begin(std::uint64_t step, std::span<const Tensor> tensors, ImageMemory* memory) {
    if (memory == nullptr) {
        if (auto taken = take_memory(own_, size_); !taken) return taken;
        memory = &own_;
    }
    if (memory->laid_out != template_number_) {
        put_template(0, size_, memory->data);
        memory->laid_out = template_number_;
    }
    run_places_.clear();
    for (std::size_t index = 0; index < runs(); ++index) run_places_.push_back(memory->data + index * kRunBytes);
    is_straight_.clear();
    begin_runs(step, tensors);
    return {};
}

// Where the tensor's memory has the whole run; null: no tensor has, or not as O_DIRECT wants it.
const char* ShardImage::straight_place(std::size_t run, std::span<const Tensor> tensors) const {
    const std::uint64_t begin = run * kRunBytes;
    const std::uint64_t end = begin + run_size(run);
    const auto piece = first_piece_behind(begin);
    if (piece == pieces_.end() || piece->place > begin || piece->place + piece->size < end) return nullptr;
    const char* const place = static_cast<const char*>(tensors[piece->tensor].data) + (begin - piece->place);
    return reinterpret_cast<std::uintptr_t>(place) % kDiskAlignment == 0 ? place : nullptr;
}

std::uint64_t ShardImage::straight_bytes(std::span<const Tensor> tensors) const {
    std::uint64_t bytes = 0;
    for (std::size_t index = 0; index < runs(); ++index) {
        if (straight_place(index, tensors) != nullptr) bytes += run_size(index);
    }
    return bytes;
}

Result<void> ShardImage::begin_straight(std::uint64_t step, std::span<const Tensor> tensors) {
    std::vector<char*> places;
    std::uint64_t beside = 0;
    for (std::size_t index = 0; index < runs(); ++index) {
        places.push_back(const_cast<char*>(straight_place(index, tensors)));  // it is only read
        if (places.back() == nullptr) ++beside;
    }
    if (auto taken = take_memory(beside_, beside * kRunBytes); !taken) return taken;
    run_places_ = std::move(places);
    is_straight_.assign(runs(), true);
    char* free = beside_.data;
    for (std::size_t index = 0; index < runs(); ++index) {
        if (run_places_[index] != nullptr) continue;
        is_straight_[index] = false;
        put_template(index * kRunBytes, index * kRunBytes + run_size(index), free);
        run_places_[index] = free;
        free += kRunBytes;
    }
    begin_runs(step, tensors);
    return {};
}

void ShardImage::adopt(const Manifest& part, char* memory) {
    const ShardRecord& shard = part.shards.at(0);
    size_ = shard.size;
    run_places_.clear();
    for (std::size_t index = 0; index < runs(); ++index) run_places_.push_back(memory + index * kRunBytes);
    is_straight_.clear();
    is_let_go_ = true;
    crcs_ = shard.block_crcs;
    shapes_.clear();
    job_ = 0;  // laid out for nobody
    const std::lock_guard lock(mutex_);
    given_ = 0;
    next_ = taken_ = copied_ = runs();
    states_.assign(runs(), Run::Copied);
    ready_.resize(runs());
    std::iota(ready_.begin(), ready_.end(), std::size_t{0});
}

// ---- its runs

std::vector<ShardImage::Piece>::const_iterator ShardImage::first_piece_behind(std::uint64_t at) const {
    return std::upper_bound(pieces_.begin(), pieces_.end(), at, [](std::uint64_t place, const Piece& one) { return place < one.place + one.size; });
}

void ShardImage::copy_run(std::size_t index) {
    const std::uint64_t begin = index * kRunBytes;
    const std::uint64_t end = begin + run_size(index);
    const bool is_straight = !is_straight_.empty() && is_straight_[index];
    for (std::uint64_t at = begin; at < end; at += kBlockBytes) {
        const std::uint64_t until = std::min(end, at + kBlockBytes);
        char* const place = run_places_[index] + (at - begin);
        crcs_[static_cast<std::size_t>(at / kBlockBytes)] = is_straight ? crc32c(place, static_cast<std::size_t>(until - at)) : copy_block(at, until, place);
    }
}

std::uint32_t ShardImage::copy_block(std::uint64_t at, std::uint64_t end, char* to) {
    std::uint32_t crc = 0;
    for (auto piece = first_piece_behind(at); at < end; ++piece) {
        const std::uint64_t begin = piece == pieces_.end() ? end : std::clamp(piece->place, at, end);
        crc = crc32c(to, static_cast<std::size_t>(begin - at), crc);  // the template's
        to += begin - at;
        at = begin;
        if (piece == pieces_.end() || at >= end) break;
        const std::uint64_t until = std::min(end, piece->place + piece->size);
        crc = copy_with_crc32c(to, sources_[piece->tensor] + (at - piece->place), static_cast<std::size_t>(until - at), crc);
        to += until - at;
        at = until;
    }
    return crc;
}

bool ShardImage::take(std::size_t index) {
    if (states_[index] != Run::Free) return false;
    states_[index] = Run::Taken;
    ++taken_;
    return true;
}

void ShardImage::copy_taken(std::size_t index) {
    copy_run(index);
    bool is_last = false;
    {
        const std::lock_guard lock(mutex_);
        is_last = ++copied_ == states_.size();
        states_[index] = Run::Copied;
        ready_.push_back(index);
    }
    changed_.notify_all();
    if (is_last && when_copied_) when_copied_();
}

bool ShardImage::copy_one() {
    std::size_t index = 0;
    {
        const std::lock_guard lock(mutex_);
        if (taken_ == states_.size()) return false;
        while (!take(next_)) ++next_;
        index = next_++;
    }
    copy_taken(index);
    return true;
}

void ShardImage::wait_copied(std::size_t tensor) {
    {
        const std::lock_guard lock(mutex_);
        if (states_.empty() || tensor >= sources_.size()) return;
    }
    const auto piece = std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& one) { return one.tensor == tensor; });
    if (piece == pieces_.end()) return;  // it has no bytes
    const auto first = static_cast<std::size_t>(piece->place / kRunBytes);
    const auto last = static_cast<std::size_t>((piece->place + piece->size - 1) / kRunBytes);
    for (std::size_t index = first; index <= last; ++index) {
        bool is_ours = false;
        {
            const std::lock_guard lock(mutex_);
            is_ours = take(index);
        }
        if (is_ours) copy_taken(index);
    }
    std::unique_lock lock(mutex_);
    const auto is_copied = [](Run state) { return state == Run::Copied; };
    changed_.wait(lock, [&] { return std::all_of(states_.begin() + static_cast<std::ptrdiff_t>(first), states_.begin() + static_cast<std::ptrdiff_t>(last) + 1, is_copied); });
}

void ShardImage::wait_copied() {
    while (copy_one()) {}
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return copied_ == states_.size(); });
}

bool ShardImage::is_free() {
    const std::lock_guard lock(mutex_);
    return is_free_now();
}

void ShardImage::wait_free() {
    while (copy_one()) {}
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_free_now(); });
}

void ShardImage::wait_free(std::size_t tensor) {
    wait_copied(tensor);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_let_go_; });
}

void ShardImage::let_go() {
    {
        const std::lock_guard lock(mutex_);
        is_let_go_ = true;
    }
    changed_.notify_all();
}

bool ShardImage::give_again() {
    const std::lock_guard lock(mutex_);
    if (!is_straight_.empty() && is_let_go_) return false;
    given_ = 0;
    return true;
}

std::optional<std::size_t> ShardImage::next_ready() {
    for (;;) {
        {
            std::unique_lock lock(mutex_);
            if (given_ == states_.size()) return std::nullopt;
            if (given_ == ready_.size() && taken_ == states_.size()) changed_.wait(lock, [&] { return given_ < ready_.size(); });
            if (given_ < ready_.size()) return ready_[given_++];
        }
        (void)copy_one();
    }
}

}  // namespace gangline::checkpoint
