#pragma once
// The shell round checkpoint::Committer, on rank 0: a thread that performs its actions on the job's folder.
//
// Thread rule: post() from any thread; the callbacks run on the loop's thread.

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/commit_letter.h"
#include "checkpoint/committer.h"
#include "runner/worker/place.h"
#include "runner/worker/scrub_loop.h"

namespace gangline {

class CommitLoop {
  public:
    struct Outlets {
        // Asks the coordinator; the answer is posted. Errors are tolerated: the request is repeated.
        std::function<Result<void>(std::uint64_t step, const CommitLetter&)> ask;
        std::function<void(const checkpoint::Tell&)> tell;  // every rank
        std::function<void(const std::string&)> complain;   // the user
        ScrubLoop::Tell tainted;                            // the coordinator and the user
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
    void perform_one(const checkpoint::WriteView& action);
    void perform_one(const checkpoint::Tell& action) { outlets_.tell(action); }
    void perform_one(const checkpoint::Complain& action) { outlets_.complain(action.what); }
    checkpoint::CommitReply decide_alone(const checkpoint::AskCoordinator& action);
    std::vector<checkpoint::CheckpointId> kept_alone();
    std::vector<MarkedCheckpoint> marks() const;
    void write_view(std::uint64_t step);
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
    std::deque<std::uint64_t> views_;           // steps that are to get one
    bool has_written_rule_ = false;
    std::map<checkpoint::CheckpointId, std::optional<double>> metrics_;  // alone: of good checkpoints, as their manifests say
    bool is_stopping_ = false;
    std::thread thread_;
    std::unique_ptr<ScrubLoop> scrub_loop_;
};

}  // namespace gangline
