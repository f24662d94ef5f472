#pragma once
// Saves of one rank: copy, write on a thread, tell rank 0, learn the outcome.
//
//   save(step) --copy--> writer thread: shard, part --letter--> rank 0's commit loop --letter to all--> Save
//              '-------> the keeper holds it: a save in memory ends here; rank 0 has said with the step that it is one
//
// The copy is made by the caller, a few threads beside it and the writer, block by block; blocks are written as they are copied. A fenced save
// returns at once, and fence() is the wait for the copy; or, where none is made (copy_mode.h), for the disk.
// Thread rule: save(), fence() and drain() from the training thread; receive() from the line's thread.

#include <array>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "checkpoint/image.h"
#include "checkpoint/slow_disk.h"
#include "checkpoint/store.h"
#include "runner/worker/commit_loop.h"
#include "runner/worker/copy_mode.h"
#include "runner/worker/gang.h"
#include "runner/worker/interval.h"
#include "runner/worker/line.h"
#include "runner/worker/memory_tier.h"

namespace gangline {

struct Save::State {
    State(std::uint64_t number, SaveTier where) : step(number), tier(where) {}
    void finish(std::optional<Error> why);

    const std::uint64_t step;
    const SaveTier tier;
    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;
    std::optional<Error> error;
};

class Saver {
  public:
    using Send = std::function<Result<void>(const Letter&)>;
    // `waiting` is called now and then while the training thread waits for a disk or for an answer.
    Saver(Place place, Send send, std::function<void()> waiting = {});
    ~Saver();  // as stop()

    Save save(std::uint64_t step, std::span<const Tensor> tracked, const SaveOptions& options);
    // Whether every rank is to save this step. Rank 0 decides, and tells the others some steps ahead, so that all answer alike.
    bool is_due(std::uint64_t step, bool is_stopping);
    void stalled(Duration time);  // the training waited so long for the last save
    // Until the state of the last save may be changed: it is copied, or on disk.
    void fence();
    void fence(std::string_view tensor);  // until that one is
    void receive(const WorkerHeader& header, std::string_view payload);  // Relay and CommitResult
    // Waits for the outcome of every save. Errors: Deadline.
    Result<void> drain(TimePoint limit);
    // The program has come to its end: what is in memory alone is not brought to disk for a next attempt.
    void give_up_memory();
    std::string interval_reason();
    // Snapshots that outlive this process.
    MemoryTier& memory() { return memory_; }
    // Rank 0: this gang has started from an earlier attempt's snapshots of `world` ranks, which come to disk: they become a checkpoint as soon as
    // they are all there.
    void adopt(const checkpoint::CheckpointId& id, std::uint32_t world);
    // Writes on without a limit to its rate: somebody waits for it. From any thread.
    void hurry();
    // Ends the threads behind the disk operation under way. What is received later is dropped.
    void stop();

  private:
    using StatePointer = std::shared_ptr<Save::State>;
    struct Waiting {
        std::uint64_t step = 0;
        checkpoint::CommitterEvent event;
    };
    struct At {
        std::uint64_t step = 0;
        SaveTier tier = SaveTier::Disk;
    };
    struct UnderWay {
        TimePoint begun;
        Duration stall{0};  // that the training waited for it
    };
    struct InMemory {
        std::uint64_t step = 0;
        TimePoint begun;
        Duration stall{0};
        std::optional<Duration> copy;  // it is whole
    };
    Result<void> open(std::uint64_t step);
    void complain(const std::string& what);
    void tell_tainted(const checkpoint::CheckpointId& id, const std::string& what);
    Result<void> refuse_stale_folder(std::uint64_t step) const;
    Save save_in_memory(const StatePointer& state, std::span<const Tensor> tracked, const SaveOptions& options);
    Result<void> begin_copy(const At& at, std::span<const Tensor> tracked, const SaveOptions& options);
    Result<void> begin_image(const At& at, SaveMode mode);
    void run_writer();
    void run_copier();
    void write(std::uint64_t step);
    checkpoint::ShardPlan plan(std::uint64_t step) const;
    void report_failure(std::uint64_t step, const Error& error);
    Result<void> mail(std::uint32_t to_rank, std::uint64_t step, std::string payload);
    void deliver(std::uint32_t from_rank, std::uint64_t step, std::uint32_t attempt, std::string_view payload);
    void conclude(std::uint64_t step, std::optional<Error> error);
    void settle(std::uint64_t step, std::optional<Error> error);
    bool may_use_memory() const { return !place_.is_alone && place_.saves_in_memory && place_.memory_mib != 0; }
    void hear_save_at(const At& at);
    void tell_missed(const At& at);
    void tell_not_held(std::uint64_t step);
    void hear_not_held(std::uint64_t step);
    void replicated(std::uint64_t step);
    bool is_replica_due(TimePoint at) const;
    void note_memory_cost();
    bool is_writing() const;
    std::optional<SaveTier> choose_tier(TimePoint at, bool is_stopping);
    void tell_all(const checkpoint::Tell& outcome);
    Result<void> ask_coordinator(std::uint64_t step, const CommitLetter& letter, std::uint32_t written_by);
    void watch_adopted(const checkpoint::CheckpointId& id, std::uint32_t world);
    void snapshot_copied();
    template <class Condition>
    bool wait_until(std::unique_lock<std::mutex>& lock, TimePoint limit, const Condition& condition);
    std::uint64_t steps_ahead(std::uint64_t step, TimePoint at);

    const Place place_;
    const Send send_;
    const std::function<void()> waiting_for_;
    std::optional<checkpoint::SlowDisk> slow_disk_;
    std::optional<checkpoint::Store> store_;  // opened by the first save
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::uint64_t, StatePointer> open_;           // without an outcome yet
    std::map<std::uint64_t, std::optional<Error>> early_;  // outcomes that came before this rank's save()
    std::optional<std::uint64_t> last_step_;
    std::optional<At> announced_;                          // the step that all ranks will save
    std::optional<At> due_;                                // what is_due has said last
    SaveInterval interval_;                                // rank 0's
    std::map<std::uint64_t, UnderWay> begun_;              // saves on disk without an outcome yet
    std::optional<InMemory> in_memory_;                    // the last save, if it is one in memory
    std::optional<std::uint64_t> begun_on_disk_;           // the newest
    std::optional<std::uint64_t> not_held_;                // rank 0: the newest step that some rank's keeper does not hold
    std::optional<std::uint64_t> told_;                    // the newest snapshot that the shepherd was told of
    std::optional<std::uint64_t> told_before_;             // the one before it
    std::optional<std::uint64_t> replicated_;              // the newest that another node's keeper holds, too
    std::array<std::uint64_t, 2> kept_{};                  // the newest steps that are in memory alone; 0: none
    std::optional<std::uint64_t> written_;                 // rank 0: the newest step that all ranks have on disk
    bool has_said_why_ = false;
    bool has_said_here_ = false;
    bool has_announced_last_ = false;                      // before a stop
    std::optional<std::pair<std::uint64_t, TimePoint>> asked_;  // the last is_due
    double step_s_ = 0;                                    // a step's time, as is_due sees it
    std::optional<At> job_;             // what the writer works on
    std::set<std::uint64_t> failed_;    // saves of which nothing may stay on disk
    std::optional<double> metric_;      // of the newest step whose copy has begun; rank 0's
    std::uint64_t copies_ = 0;          // saves whose copy has begun
    At copying_;                        // the newest of them
    bool is_in_keeper_ = false;         // its copy
    std::size_t busy_copiers_ = 0;
    bool is_stopping_ = false;
    std::vector<Tensor> mine_;          // of the tracked tensors those that this rank writes
    std::map<std::string, std::size_t, std::less<>> mine_by_name_;
    std::size_t tracked_ = 0;           // how many were tracked when mine_ was made
    bool is_laid_out_ = false;          // the image, for mine_
    checkpoint::ShardImage image_;
    SaveMeter meter_;
    bool has_said_copy_ = false;
    MemoryTier memory_;
    std::unique_ptr<CommitLoop> committer_;  // rank 0
    std::optional<checkpoint::Store> adopted_store_;
    std::uint64_t adopted_step_ = 0;
    std::unique_ptr<CommitLoop> adopted_;    // rank 0, of an earlier attempt's snapshots
    std::thread adopter_;
    std::vector<Waiting> waiting_;           // rank 0: letters from before its first save
    std::thread writer_;
    std::vector<std::thread> copiers_;
};

}  // namespace gangline
