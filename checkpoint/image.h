#pragma once
// A shard in memory, laid out exactly as its file: one copy of the tensors, checksummed in the same pass, and what the disk is written from.
//
//   |superblock, headers|step|small tensors ...|gap|tensor A ......|gap|tensor B ...|
//    \---- the template: made once by the HDF5 library, and again only when the tensors change ----/ (all but the tensors' bytes)
//
// Runs of kRunBytes, a few blocks each, are copied by as many threads as ask for one (copy_one), in the order of the file but for those that somebody
// waits for (wait_copied), and can be written as soon as they are there (next_ready): no wait between copying and writing. The memory is the
// image's own, taken once, touched at once, and kept; or somebody else's, another one at each save if need be (ImageMemory): a keeper's outlives the process.
//
// Or nothing is copied (begin_straight): a run that lies within one tensor, whose memory is as O_DIRECT wants it, is written from there and only
// read for its checksums; the others (headers, small tensors, edges) are put together in memory beside. The tensors must then stay as they are
// until the disk has taken them (let_go).
//
// Thread rule: prepare, begin and adopt by one thread while nobody copies; copy_one and wait_... by any; next_ready and let_go by one other.

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/hdf5_layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor.h"

namespace gangline::checkpoint {

// Memory for an image, mapped for writing; it keeps the template from one save to the next.
struct ImageMemory {
    char* data = nullptr;
    std::uint64_t size = 0;
    std::uint64_t laid_out = 0;  // the image's business: which template lies there
};

inline constexpr std::uint64_t kRunBytes = 1u << 20;  // copied by one thread, written at once
static_assert(kRunBytes % kBlockBytes == 0);

class ShardImage {
  public:
    ShardImage() = default;
    ~ShardImage();
    ShardImage(const ShardImage&) = delete;
    ShardImage& operator=(const ShardImage&) = delete;

    // Lays the shard out, where it is not laid out so already. Errors: InvalidArgument (two tensors of one name, ...); NoSpace.
    Result<void> prepare(const ShardPlan& plan);
    // The next save: its tensors are those of prepare, wherever their memory is now. Copied into `memory` of at least size() bytes, which stays
    // until the next begin; without it into the image's own. Errors: NoSpace (memory).
    Result<void> begin(std::uint64_t step, std::span<const Tensor> tensors, ImageMemory* memory = nullptr);
    // The same without a copy. Errors: NoSpace (memory for what is put together beside).
    Result<void> begin_straight(std::uint64_t step, std::span<const Tensor> tensors);
    // How many of the size() bytes would then be written from the tensors' own memory.
    std::uint64_t straight_bytes(std::span<const Tensor> tensors) const;
    // Instead of prepare and begin: what another process has copied into this memory, whole, with its part of the manifest; only to be written.
    void adopt(const Manifest& part, char* memory);
    // Called by the thread that copies the last block of a save, at once: it must not wait. Before begin.
    void when_copied(std::function<void()> call) { when_copied_ = std::move(call); }

    // Copies (or reads) the next run that nobody has taken; false: there is none.
    bool copy_one();
    // Until every run is copied; helps.
    void wait_copied();
    // Until the blocks of this tensor (of prepare, in their order) are; copies those that nobody has taken ahead of all others.
    void wait_copied(std::size_t tensor);

    // Until the tensors may be changed: they are copied, or let go. Helps with the copy.
    void wait_free();
    void wait_free(std::size_t tensor);
    bool is_free();
    // The disk has all runs, or never will: of the tensors nothing is read any more.
    void let_go();

    // Gives all runs again: they are written a second time. False: tensors of which there is no copy have been let go.
    bool give_again();
    // The next run that is copied, in any order; nothing: all have been given. While there is none it copies one itself, or waits for one
    // that another thread copies (which ends: it is a copy in memory).
    std::optional<std::size_t> next_ready();

    std::uint64_t size() const { return size_; }  // of the file: a multiple of kDiskAlignment
    std::size_t runs() const { return static_cast<std::size_t>((size_ + kRunBytes - 1) / kRunBytes); }
    const char* run(std::size_t index) const { return run_places_[index]; }
    std::size_t run_size(std::size_t index) const { return static_cast<std::size_t>(std::min<std::uint64_t>(kRunBytes, size_ - index * kRunBytes)); }
    const std::vector<std::uint32_t>& checksums() const { return crcs_; }  // of all blocks, once it is copied
    // Where the tensors of prepare lie, as a part of the manifest has it.
    const std::shared_ptr<const std::string>& tensors() const { return tensors_; }
    std::uint32_t version() const { return version_; }  // of that part

  private:
    struct Piece {  // of a tensor, in the file
        std::uint64_t place = 0;
        std::uint64_t size = 0;
        std::size_t tensor = 0;
    };
    bool is_laid_out_for(const ShardPlan& plan) const;
    static Result<void> take_memory(ImageMemory& memory, std::uint64_t size);
    Result<void> load_template(int file);
    void keep_shapes(const ShardPlan& plan, const std::vector<std::uint64_t>& places);
    const char* straight_place(std::size_t run, std::span<const Tensor> tensors) const;
    void begin_runs(std::uint64_t step, std::span<const Tensor> tensors);
    void put_template(std::uint64_t from, std::uint64_t until, char* memory) const;
    std::vector<Piece>::const_iterator first_piece_behind(std::uint64_t at) const;
    void copy_run(std::size_t index);
    std::uint32_t copy_block(std::uint64_t at, std::uint64_t end, char* to);
    bool take(std::size_t index);  // it was free; under the mutex
    bool is_free_now() const { return copied_ == states_.size() && is_let_go_; }  // under the mutex
    void copy_taken(std::size_t index);

    std::string shapes_;  // what the layout depends on, of all tensors side by side, so that one look tells whether they are as before
    std::uint64_t job_ = 0;
    std::uint32_t attempt_ = 0;
    std::uint32_t rank_ = 0;
    std::uint32_t world_ = 0;
    std::shared_ptr<const std::string> tensors_;
    std::uint32_t version_ = 1;
    std::vector<Piece> pieces_;  // in the order of the file, without empty ones
    std::uint64_t step_place_ = 0;
    std::uint64_t size_ = 0;
    struct Extent {  // bytes that are no tensor's
        std::uint64_t place = 0;
        std::string bytes;
    };
    std::vector<Extent> template_;
    std::uint64_t template_number_ = 0;
    ImageMemory own_;
    ImageMemory beside_;                // for begin_straight
    std::vector<char*> run_places_;     // of this save
    std::vector<bool> is_straight_;     // runs that lie in a tensor's memory; empty: none does
    std::function<void()> when_copied_;
    std::vector<const char*> sources_;  // of this save, by tensor
    std::vector<std::uint32_t> crcs_;

    std::mutex mutex_;
    std::condition_variable changed_;
    enum class Run : std::uint8_t { Free, Taken, Copied };
    std::vector<Run> states_;  // of the save that begin() began; empty: none
    std::size_t next_ = 0;    // no run before it is free
    std::size_t taken_ = 0;   // runs that somebody copies or has copied
    std::size_t copied_ = 0;
    std::vector<std::size_t> ready_;
    std::size_t given_ = 0;   // of ready_
    bool is_let_go_ = true;
};

}  // namespace gangline::checkpoint
