#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "runner/cli/views.h"

namespace gangline::runner {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kNow = 3'600'000;

proto::JobView queued_job(std::uint64_t id, const std::string& reason) {
    proto::JobView job;
    job.set_id(id);
    job.set_name("sweep");
    job.set_user("alice");
    job.set_state(proto::QUEUED);
    job.set_reason(reason);
    job.set_ranks(1);
    job.set_submitted_unix_ms(kNow - 60'000);
    return job;
}

proto::JobView element(std::uint64_t array, std::uint32_t task, proto::JobState state, const std::string& reason = "waits for 1 card") {
    proto::JobView job = queued_job(array + task, reason);
    job.set_state(state);
    job.mutable_array()->set_job(array);
    job.mutable_array()->set_task(task);
    job.mutable_array()->set_count(200);
    job.mutable_array()->set_step(1);
    job.mutable_array()->set_most(199);
    return job;
}

std::size_t lines_in(const std::string& text) { return split(text, '\n').size() - 1; }

TEST(Queue, WaitingTasksOfAnArrayThatWaitForTheSameAreOneLine) {
    JobViews jobs;
    for (std::uint32_t task = 0; task < 5; ++task) *jobs.Add() = element(10, task, proto::RUNNING, "");
    for (std::uint32_t task = 5; task < 200; ++task) *jobs.Add() = element(10, task, proto::QUEUED);
    *jobs.Add() = queued_job(300, "waits for 1 card");
    const std::string text = queue_text(jobs, {}, kNow);
    EXPECT_EQ(lines_in(text), 8U) << text;
    EXPECT_THAT(text, HasSubstr("10_[5-199]  sweep"));
    EXPECT_THAT(text, HasSubstr("10_4  sweep"));
    EXPECT_THAT(text, HasSubstr("300  sweep"));
}

TEST(Queue, TasksWithOtherReasonsOrOfOtherArraysStandApart) {
    JobViews jobs;
    *jobs.Add() = element(10, 1, proto::QUEUED);
    *jobs.Add() = element(10, 2, proto::QUEUED, "held by alice");
    *jobs.Add() = element(500, 1, proto::QUEUED);
    *jobs.Add() = element(10, 3, proto::QUEUED);
    const std::string text = queue_text(jobs, {}, kNow);
    EXPECT_EQ(lines_in(text), 4U) << text;
    EXPECT_THAT(text, HasSubstr("10_[1,3]"));
    EXPECT_THAT(text, HasSubstr("10_2"));
    EXPECT_THAT(text, HasSubstr("500_1"));
}

TEST(Queue, TheEstimateHasItsColumnAndDoesNotKeepTasksApart) {
    JobViews jobs;
    for (std::uint32_t task = 1; task <= 3; ++task) {
        *jobs.Add() = element(10, task, proto::QUEUED, fmt::format("waits for 1 card; may start in about {}m 00s", 10 * task));
        jobs.Mutable(jobs.size() - 1)->set_expected_unix_ms(kNow + task * 600'000);
    }
    const std::string text = queue_text(jobs, {}, kNow);
    EXPECT_EQ(lines_in(text), 2U) << text;
    EXPECT_THAT(text, HasSubstr("10_[1-3]"));
    EXPECT_THAT(text, HasSubstr("10m 00s+  waits for 1 card\n"));
}

TEST(Queue, ColumnsWithNothingInThemAreLeftOutAndTheReasonHasTheirPlace) {
    JobViews jobs;
    *jobs.Add() = queued_job(7, "waits for 4 cards; may start in about 12m 00s");
    jobs.Mutable(0)->set_name("a-name-that-is-rather-long-for-a-name-of-a-job");
    jobs.Mutable(0)->set_expected_unix_ms(kNow + 720'000);
    const std::string text = queue_text(jobs, {false, false, 80}, kNow);
    for (const char* const column : {"RESTARTS", "STEP"}) EXPECT_THAT(text, Not(HasSubstr(column)));
    EXPECT_THAT(text, HasSubstr("12m 00s  waits for 4 cards\n"));
    EXPECT_THAT(text, HasSubstr("a-name-"));
    for (const std::string& line : split(text, '\n')) EXPECT_LE(line.size(), 80U) << line;
    EXPECT_THAT(text, HasSubstr("USER"));
    EXPECT_THAT(queue_text(jobs, {}, kNow, QueueOf::OneUser), Not(HasSubstr("USER")));
    jobs.Mutable(0)->set_restarts(2);
    jobs.Mutable(0)->clear_expected_unix_ms();
    EXPECT_THAT(queue_text(jobs, {}, kNow), HasSubstr("RESTARTS"));
    EXPECT_THAT(queue_text(jobs, {}, kNow), Not(HasSubstr("STARTS IN")));
}

TEST(Queue, NumbersAreFoldedAsArraysAreWritten) {
    EXPECT_EQ(ranges_of({3}, 1), "3");
    EXPECT_EQ(ranges_of({9, 10, 11, 8}, 1), "8-11");
    EXPECT_EQ(ranges_of({1, 2, 5, 7, 8, 9}, 1), "1-2,5,7-9");
    EXPECT_EQ(ranges_of({0, 4, 8, 96}, 4), "0-8:4,96");
    EXPECT_EQ(ranges_of({0, 4}, 4), "0,4");
    EXPECT_EQ(ranges_of({1, 2}, 0), "1-2");
}

TEST(Queue, TheLimitCountsEndedJobsOnly) {
    JobViews jobs;
    for (std::uint64_t id = 1; id <= 9; ++id) *jobs.Add() = queued_job(id, "");
    for (const proto::JobState state : {proto::COMPLETED, proto::FAILED, proto::CANCELLED}) {
        *jobs.Add() = queued_job(20 + static_cast<std::uint64_t>(state), "");
        jobs.Mutable(jobs.size() - 1)->set_state(state);
    }
    const JobViews kept = with_most_ended(jobs, 2);
    ASSERT_EQ(kept.size(), 11);
    EXPECT_EQ(kept.Get(10).state(), proto::FAILED);
}

TEST(Array, IsToldAsAWholeWithATaskToLookAt) {
    JobViews jobs;
    *jobs.Add() = element(10, 0, proto::COMPLETED);
    *jobs.Add() = element(10, 4, proto::TIMED_OUT);
    *jobs.Add() = element(10, 3, proto::FAILED);
    *jobs.Add() = element(10, 5, proto::RECOVERING);
    for (const std::uint32_t task : {6U, 7U}) *jobs.Add() = element(10, task, proto::QUEUED);
    *jobs.Add() = element(500, 1, proto::QUEUED);
    EXPECT_EQ(array_text(jobs, 10), "Array 10: 6 tasks: 1 done, 2 failed, 1 running, 2 waiting; one of them: gangline show 10_3\n");
    jobs.Mutable(1)->set_state(proto::CANCELLED);
    jobs.Mutable(2)->set_state(proto::COMPLETED);
    EXPECT_EQ(array_text(jobs, 10), "Array 10: 6 tasks: 2 done, 0 failed, 1 cancelled, 1 running, 2 waiting; one of them: gangline show 10_7\n");
    EXPECT_EQ(array_text(jobs, 11), "");
}

}  // namespace
}  // namespace gangline::runner
