#pragma once
// The worker library: what a training program says to Gangline, and how its state survives.
//
//   auto joined = gangline::Gang::join();            // after MPI_Init, if the program uses MPI
//   gangline::Gang& gang = joined.value();
//   gang.track("model/weights", weights.data(), {784, 128});
//   const auto restored = gang.restore();            // the step to go on from, or nothing: a fresh start
//   for (std::uint64_t step = restored->value_or(0); step < 1000 && !gang.should_stop();) {
//       ... one training step ...
//       gang.progress(++step, {.samples = 64, .loss = loss});
//       if (step % 100 == 0) gang.save(step);        // asynchronous: copies, then a thread writes
//   }
//   gang.finish();
//
// restore() and save() are called by every rank, in the same order with the same steps. A checkpoint counts when every
// rank's shard is durable and the coordinator has written it down; until then the one before it serves.
//
// Outside Gangline the same program is a gang too: rank and size from OMPI_COMM_WORLD_RANK/SIZE or RANK/WORLD_SIZE, else a
// gang of one; checkpoints go to ./gangline-checkpoints (or GANGLINE_CHECKPOINT_DIR), all ranks on one host, and rank 0
// alone decides which count: the newest complete one is what restore() takes.
//
// Thread rule: one thread calls (the training loop's); should_stop() and Save are safe from any thread. join() starts a
// thread that receives, the first save() one that writes (and on rank 0 one that commits); all block every signal.
// Cost: progress(), the timers and should_stop() make no system call, well under a microsecond each.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/result.h"
#include "checkpoint/another_world.h"
#include "checkpoint/tensor.h"

namespace gangline {

using checkpoint::DType;
using checkpoint::Policy;
using checkpoint::Shape;
using checkpoint::Split;
using checkpoint::SplitCallback;
using checkpoint::Tensor;

template <class T>
constexpr DType dtype_for() {
    static_assert(std::is_arithmetic_v<T>, "name the DType of this type in a Tensor");
    if constexpr (std::is_same_v<T, bool>) return DType::Bool;
    else if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 8 ? DType::F64 : DType::F32;
    else if constexpr (std::is_signed_v<T>) return sizeof(T) == 8 ? DType::I64 : sizeof(T) == 4 ? DType::I32 : sizeof(T) == 2 ? DType::I16 : DType::I8;
    else return sizeof(T) == 8 ? DType::U64 : sizeof(T) == 4 ? DType::U32 : sizeof(T) == 2 ? DType::U16 : DType::U8;
}

// What one training step did, on this rank.
struct StepReport {
    double samples = 0;
    double flops = 0;
    double loss = 0;
};

// Where a save goes: into the keeper's memory alone, which outlives this process but not its node, or to disk as well.
enum class SaveTier : std::uint8_t { Memory, Disk };

// A save under way. Copies are handles of the same one.
class Save {
  public:
    struct State;
    explicit Save(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::uint64_t step() const;
    SaveTier tier() const;  // Memory only where should_save() has decided so
    bool is_done() const;
    // On disk: whether the checkpoint counts; in memory: whether this rank's snapshot is whole there.
    // Errors: why it does not or is not (NoSpace, Refused, Unavailable, ...), or Deadline: not known yet.
    Result<void> wait(std::chrono::milliseconds limit = std::chrono::minutes(10)) const;

  private:
    std::shared_ptr<State> state_;
};

// When the tracked state may be changed again: at once, or after fence().
enum class SaveMode { Now, Fenced };

struct SaveOptions {
    SaveMode mode = SaveMode::Now;
    // How good this state is (a validation loss), for --keep-best: rank 0's counts. One that is not finite is never the best.
    std::optional<double> metric = {};
};

class Gang {
    struct Impl;

  public:
    // Errors: InvalidArgument (a variable that makes no sense); Unavailable (the runner's socket or page is gone).
    static Result<Gang> join();
    Gang(Gang&&) noexcept;
    Gang& operator=(Gang&&) noexcept;
    ~Gang();  // waits for the disk operation under way, not for commits: call finish() for those

    int rank() const;
    int size() const;
    std::uint32_t attempt() const;   // rises with every restart of the job
    std::uint32_t restarts() const;
    bool is_alone() const;           // not started by Gangline

    // `step` steps are done. Sums samples and FLOPs; the time since the last call is a step's.
    void progress(std::uint64_t step, const StepReport& report = {});
    void total_steps(std::uint64_t count);

    // While the object lives, the gang's page shows this phase, or counts the time as waiting.
    class Scope {
      public:
        Scope(Scope&& other) noexcept;
        Scope& operator=(Scope&&) = delete;
        ~Scope();

      private:
        friend class Gang;
        enum class Kind { Phase, DataWait, Communication };
        Scope(Impl& impl, Kind kind, std::string_view phase);
        Impl* impl_;
        Kind kind_;
        std::chrono::steady_clock::time_point begun_;
        std::string before_;  // the phase to return to
    };
    [[nodiscard]] Scope phase(std::string_view name);
    [[nodiscard]] Scope data_wait();
    [[nodiscard]] Scope communication();

    // True once the runner has announced that it will stop this rank (preemption, cancel, drain). Ranks hear of it at
    // different times: agree (for example with an all-reduce) before the loop is left.
    bool should_stop() const;
    double seconds_left() const;  // until then; infinite while no stop is announced

    // State that save() writes and restore() fills; the memory must stay where it is. Errors: InvalidArgument.
    // State of each rank's own (PerRank, Splittable, Drop; docs/checkpoints.md) comes back exactly in a gang of the same size. In one of another size
    // `split` makes Splittable state out of what every rank had, Drop stays as it is and that is said, PerRank is refused.
    Result<void> track(const Tensor& tensor, SplitCallback split = {});
    template <class T>
    Result<void> track(std::string name, T* data, Shape shape, Policy policy = Policy::Replicated, SplitCallback split = {}) {
        return track(Tensor{std::move(name), dtype_for<T>(), policy, shape, Shape(shape.size(), 0), shape, data}, std::move(split));
    }
    template <class T>
    Result<void> track_slice(std::string name, T* data, Shape global_shape, Shape offset, Shape extent) {
        return track(Tensor{std::move(name), dtype_for<T>(), Policy::Sliced, std::move(global_shape), std::move(offset),
                            std::move(extent), data});
    }

    // Copies the tracked state and returns (with Fenced: before it is copied); threads write it. Waits only while the save before is still
    // being written. Steps must rise within an attempt. A failure stops nothing: the job's page tells it, and so does the Save.
    //   gang.save(step, {.metric = validation_loss});
    Save save(std::uint64_t step, const SaveOptions& options = {});
    Save save(std::uint64_t step, SaveMode mode) { return save(step, SaveOptions{mode, {}}); }
    // Before the tracked state is changed after a Fenced save: waits until it is copied or, where it is not copied (docs/checkpoints.md), on disk.
    // Usually it is already.
    //   gang.save(step, SaveMode::Fenced);  forward(); backward();  gang.fence();  optimizer_step();
    void fence();
    // The same for one tensor, which is copied ahead of the others (where nothing is copied: as fence()): for an optimizer that changes tensor after tensor. Errors: InvalidArgument (not tracked).
    Result<void> fence(std::string_view tensor);
    // Whether to save at this step: as often as lost work and the saves' own cost are least together (Young), and once more when the runner will
    // stop this gang. Every rank calls it at every step with the same numbers, and all get the same answer: rank 0 decides some steps ahead. It
    // decides the tier, too: most such saves go to memory alone where keepers hold the snapshots (docs/checkpoints.md). save() of any other step goes to disk.
    //   if (gang.should_save(step)) gang.save(step);
    bool should_save(std::uint64_t step);
    std::string save_interval() const;  // how often that is now, and why
    // Fills the tracked state. No value: a fresh start, nothing was changed. Errors: Refused (the checkpoint is of other
    // tensors or another world, in words); Damaged (the runner is told and takes an older one: end the program).
    // After an error the tracked memory is not to be used.
    Result<std::optional<std::uint64_t>> restore();
    // Waits until every save has its answer, then tells the runner that this rank has ended well.
    // Errors: Deadline. A save that failed is no error here.
    Result<void> finish(std::chrono::milliseconds limit = std::chrono::seconds(60));

  private:
    explicit Gang(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace gangline
