#include "coordinator/brain/job.h"

#include "base/check.h"

namespace gangline::coordinator {

using enum proto::JobState;

std::optional<proto::JobState> next_state(proto::JobState from, JobSignal signal) {
    switch (from) {
        case QUEUED:
            if (signal == JobSignal::Placed) return RESERVED;
            if (signal == JobSignal::Cancelled) return CANCELLED;
            if (signal == JobSignal::Failed) return FAILED;
            return std::nullopt;
        case RESERVED:
            if (signal == JobSignal::Launched) return PREPARING;
            if (signal == JobSignal::Restart) return RECOVERING;
            if (signal == JobSignal::End) return STOPPING;
            return std::nullopt;
        case PREPARING:
            if (signal == JobSignal::Joined) return RUNNING;
            [[fallthrough]];
        case RUNNING:
            if (signal == JobSignal::Restart) return RECOVERING;
            if (signal == JobSignal::End) return STOPPING;
            if (signal == JobSignal::Completed) return COMPLETED;
            return std::nullopt;
        case RECOVERING:
            if (signal == JobSignal::Placed) return RESERVED;
            if (signal == JobSignal::Requeued) return QUEUED;
            if (signal == JobSignal::End) return STOPPING;
            return std::nullopt;
        case STOPPING:
            if (signal == JobSignal::Completed) return COMPLETED;
            if (signal == JobSignal::Failed) return FAILED;
            if (signal == JobSignal::Cancelled) return CANCELLED;
            if (signal == JobSignal::TimedOut) return TIMED_OUT;
            return std::nullopt;
        case COMPLETED:
        case FAILED:
        case CANCELLED:
        case TIMED_OUT:
        case JobState_INT_MIN_SENTINEL_DO_NOT_USE_:
        case JobState_INT_MAX_SENTINEL_DO_NOT_USE_:
            return std::nullopt;
    }
    return std::nullopt;
}

JobSignal ending_signal(proto::JobState outcome) {
    switch (outcome) {
        case COMPLETED: return JobSignal::Completed;
        case FAILED: return JobSignal::Failed;
        case CANCELLED: return JobSignal::Cancelled;
        case TIMED_OUT: return JobSignal::TimedOut;
        case QUEUED:
        case RESERVED:
        case PREPARING:
        case RUNNING:
        case RECOVERING:
        case STOPPING:
        case JobState_INT_MIN_SENTINEL_DO_NOT_USE_:
        case JobState_INT_MAX_SENTINEL_DO_NOT_USE_: break;
    }
    CHECK(false, "a job ends in an outcome");
    return JobSignal::Failed;
}

}  // namespace gangline::coordinator
