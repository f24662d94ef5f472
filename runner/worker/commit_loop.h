#pragma once
// The shell round checkpoint::Committer, on rank 0: a thread that performs its actions on the job's folder.
//
// Thread rule: post() from any thread; the callbacks run on the loop's thread.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "checkpoint/committer.h"
#include "runner/worker/place.h"

namespace gangline {

class CommitLoop {
  public:
    struct Outlets {
        // Asks the coordinator; the answer is posted. Errors are tolerated: the request is repeated.
        std::function<Result<void>(const checkpoint::AskCoordinator&)> ask;
        std::function<void(const checkpoint::Tell&)> tell;  // every rank
        std::function<void(const std::string&)> complain;   // the user
    };
    CommitLoop(const Place& place, const checkpoint::Store& store, Outlets outlets);
    ~CommitLoop();

    void post(checkpoint::CommitterEvent event);
    // True once nothing is under way; false when the limit comes first.
    bool wait_idle(TimePoint limit);

  private:
    void run();
    void perform_one(const checkpoint::WriteManifest& action);
    void perform_one(const checkpoint::AskCoordinator& action);
    void perform_one(const checkpoint::Publish& action);
    void perform_one(const checkpoint::DropTemporary& action);
    void perform_one(const checkpoint::DeleteOld& action);
    void perform_one(const checkpoint::Tell& action) { outlets_.tell(action); }
    void perform_one(const checkpoint::Complain& action) { outlets_.complain(action.what); }
    checkpoint::CommitReply decide_alone(const checkpoint::AskCoordinator& action);
    checkpoint::CheckpointId id_of(std::uint64_t step) const { return {step, place_.attempt}; }

    Place place_;
    const checkpoint::Store& store_;
    Outlets outlets_;
    checkpoint::Committer committer_;
    checkpoint::Merger merger_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<checkpoint::CommitterEvent> events_;
    bool is_idle_ = true;
    std::optional<std::uint64_t> unpublished_;  // the step whose publish failed last
    bool is_stopping_ = false;
    std::thread thread_;
};

}  // namespace gangline
