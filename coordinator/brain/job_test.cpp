#include "coordinator/brain/job.h"

#include <gtest/gtest.h>

namespace gangline::coordinator {
namespace {

using enum proto::JobState;

TEST(JobTable, ALifeWithoutTroubleGoesFromQueuedToCompleted) {
    EXPECT_EQ(next_state(QUEUED, JobSignal::Placed), RESERVED);
    EXPECT_EQ(next_state(RESERVED, JobSignal::Launched), PREPARING);
    EXPECT_EQ(next_state(PREPARING, JobSignal::Joined), RUNNING);
    EXPECT_EQ(next_state(RUNNING, JobSignal::Completed), COMPLETED);
}

TEST(JobTable, AProgramThatNeverJoinsCanStillComplete) {
    EXPECT_EQ(next_state(PREPARING, JobSignal::Completed), COMPLETED);
}

TEST(JobTable, EveryLiveStateCanRecoverAndEveryRecoveryCanBePlacedRequeuedOrEnded) {
    for (const auto from : {RESERVED, PREPARING, RUNNING}) EXPECT_EQ(next_state(from, JobSignal::Restart), RECOVERING);
    EXPECT_EQ(next_state(RECOVERING, JobSignal::Placed), RESERVED);
    EXPECT_EQ(next_state(RECOVERING, JobSignal::Requeued), QUEUED);
    EXPECT_EQ(next_state(RECOVERING, JobSignal::End), STOPPING);
}

TEST(JobTable, AnEndedJobHearsNothingAnyMore) {
    for (const auto from : {COMPLETED, FAILED, CANCELLED, TIMED_OUT}) {
        for (int signal = 0; signal <= static_cast<int>(JobSignal::TimedOut); ++signal) {
            EXPECT_EQ(next_state(from, static_cast<JobSignal>(signal)), std::nullopt);
        }
    }
}

TEST(JobTable, CardsAreHeldFromReservedUntilTheEnd) {
    EXPECT_EQ(next_state(QUEUED, JobSignal::Completed), std::nullopt);  // nothing ran
    EXPECT_EQ(next_state(RUNNING, JobSignal::Failed), std::nullopt);    // first its nodes are emptied
    EXPECT_EQ(next_state(RUNNING, JobSignal::Cancelled), std::nullopt);
    EXPECT_EQ(next_state(STOPPING, JobSignal::Placed), std::nullopt);
}

}  // namespace
}  // namespace gangline::coordinator
