#pragma once
// A gang in one process that saves as the runner's does: for tests.
//
//   each rank: image -> shard (recycled) -> part;   then manifest (the commit point) -> publish -> delete_old
//
// What a step holds follows from its number, so that any checkpoint can be told right from wrong by its name.
// Thread rule: one thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "checkpoint/store.h"

namespace gangline::checkpoint {

// Memory as O_DIRECT wants it.
template <class T>
struct PageAllocator {
    using value_type = T;
    PageAllocator() = default;
    template <class Other>
    explicit PageAllocator(const PageAllocator<Other>&) {}
    T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{kDiskAlignment})); }
    void deallocate(T* place, std::size_t) { ::operator delete(place, std::align_val_t{kDiskAlignment}); }
    friend bool operator==(const PageAllocator&, const PageAllocator&) { return true; }
};

class SavingGang {
  public:
    static constexpr std::uint64_t kJob = 7;

    struct Size {
        std::uint32_t world = 2;
        std::uint64_t elements = 5000;  // of each rank's slice, eight bytes each
        bool is_straight = false;       // nothing is copied that need not be
    };
    enum class Done { Manifest, Publish, DeleteBegins };
    using Watch = std::function<void(Done)>;
    struct Outcome {
        std::optional<Error> failed;     // before the commit point
        std::optional<Sealed> manifest;  // committed
        std::optional<Error> not_published;
        std::string problems;            // of delete_old
        bool is_published() const { return manifest && !not_published; }
    };

    SavingGang(std::uint32_t attempt, const Size& size);
    CheckpointId id(std::uint64_t step) const { return {step, attempt_}; }

    // Saves the step, with the values of step `values`, and deletes what is not kept. A save that fails drops its folder.
    Outcome save(const Store& store, std::uint64_t step, const std::vector<CheckpointId>& keep, const Watch& watch = {});
    // The parts alone.
    Result<std::vector<Sha256>> write_parts(const Store& store, std::uint64_t step, std::uint64_t values);
    // The parts of the first ranks, and then nothing more: a gang that died.
    void die_after_ranks(const Store& store, std::uint64_t step, std::uint32_t ranks);

    // Verifies and restores on every rank: Damaged as reader.h says; Internal when it accepts bytes that step `values` does not hold.
    Result<void> check(Checkpoint& checkpoint, std::uint64_t values);

  private:
    struct Rank {
        std::vector<std::uint64_t, PageAllocator<std::uint64_t>> slice;
        std::vector<double> vector;
        std::vector<std::uint8_t> own;
        std::vector<Tensor> tensors;
        ShardImage image;
    };
    static void fill(Rank& rank, std::uint32_t number, std::uint64_t values);
    std::unique_ptr<Rank> make_rank(std::uint32_t number) const;
    Result<Sha256> write_rank(const Store& store, std::uint64_t step, std::uint64_t values, std::uint32_t number);

    std::uint32_t attempt_;
    Size size_;
    std::vector<std::unique_ptr<Rank>> ranks_;
    std::vector<std::unique_ptr<Rank>> readers_;
    Merger merger_;
};

// A fresh folder: in memory where there is room, else in the temporary folder. Deleted with all in it.
class ScratchFolder {
  public:
    ScratchFolder();
    ~ScratchFolder();
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

}  // namespace gangline::checkpoint
