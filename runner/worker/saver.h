#pragma once
// Saves of one rank: copy, write on a thread, tell rank 0, learn the outcome.
//
//   save(step) --copy--> writer thread: shard, part --letter--> rank 0's commit loop --letter to all--> Save
//
// Thread rule: save() and drain() from the training thread; receive() from the line's thread.

#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "checkpoint/store.h"
#include "runner/worker/commit_loop.h"
#include "runner/worker/gangline.h"
#include "runner/worker/line.h"

namespace gangline {

struct Save::State {
    explicit State(std::uint64_t number) : step(number) {}
    void finish(std::optional<Error> why);

    const std::uint64_t step;
    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;
    std::optional<Error> error;
};

class Saver {
  public:
    using Send = std::function<Result<void>(const Letter&)>;
    Saver(Place place, Send send);
    ~Saver();  // as stop()

    Save save(std::uint64_t step, std::span<const Tensor> tracked);
    void receive(const WorkerHeader& header, std::string_view payload);  // Relay and CommitResult
    // Waits for the outcome of every save. Errors: Deadline.
    Result<void> drain(TimePoint limit);
    // Ends the threads behind the disk operation under way. What is received later is dropped.
    void stop();

  private:
    struct Job {
        std::uint64_t step = 0;
        std::vector<Tensor> tensors;  // point into staging_
    };
    using StatePointer = std::shared_ptr<Save::State>;
    struct Waiting {
        std::uint64_t step = 0;
        checkpoint::CommitterEvent event;
    };
    Result<void> open(std::uint64_t step);
    void complain(const std::string& what);
    Result<void> refuse_stale_folder(std::uint64_t step) const;
    Result<Job> stage(std::uint64_t step, std::span<const Tensor> tracked);
    void run_writer();
    void write(const Job& job);
    void report_failure(std::uint64_t step, const Error& error);
    Result<void> mail(std::uint32_t to_rank, std::uint64_t step, std::string payload);
    void deliver(std::uint32_t from_rank, std::uint64_t step, std::uint32_t attempt, std::string_view payload);
    void conclude(std::uint64_t step, std::optional<Error> error);
    void tell_all(const checkpoint::Tell& outcome);

    const Place place_;
    const Send send_;
    std::optional<checkpoint::Store> store_;  // opened by the first save
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::uint64_t, StatePointer> open_;           // without an outcome yet
    std::map<std::uint64_t, std::optional<Error>> early_;  // outcomes that came before this rank's save()
    std::optional<std::uint64_t> last_step_;
    std::optional<Job> job_;  // what the writer works on
    bool is_stopping_ = false;
    std::unique_ptr<char, void (*)(void*)> staging_{nullptr, ::free};
    std::size_t staging_bytes_ = 0;
    std::unique_ptr<CommitLoop> committer_;  // rank 0
    std::vector<Waiting> waiting_;           // rank 0: letters from before its first save
    std::thread writer_;
};

}  // namespace gangline
