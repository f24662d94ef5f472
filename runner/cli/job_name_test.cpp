#include "runner/cli/job_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gangline::runner {
namespace {

using testing::HasSubstr;

TEST(JobName, IsANumberOrATaskOfAnArray) {
    EXPECT_EQ(parse_job_name("12")->job, 12U);
    EXPECT_FALSE(parse_job_name("12")->task.has_value());
    EXPECT_EQ(parse_job_name("12_5")->job, 12U);
    EXPECT_EQ(parse_job_name("12_5")->task, 5U);
    EXPECT_EQ(parse_job_name("12_0")->task, 0U);
    for (const char* const word : {"12", "12_5", "12_0"}) EXPECT_EQ(to_string(*parse_job_name(word)), word);
}

TEST(JobName, OtherWordsAreRefusedWithTheFormsThereAre) {
    for (const char* const word : {"", "0", "0_1", "x", "12_", "_5", "12_x", "12_-1", "12_5_1", "-3", "12.5", "12_99999999999"}) {
        const auto name = parse_job_name(word);
        ASSERT_FALSE(name.ok()) << word;
        EXPECT_THAT(name.error().message, HasSubstr("12_5 for task 5 of the array 12")) << word;
    }
}

TEST(JobName, ARequestCarriesTheTaskOnlyWhereOneIsNamed) {
    proto::Request request;
    set_task(request, {12, 0U});
    EXPECT_TRUE(request.has_task());
    EXPECT_EQ(request.task(), 0U);
    set_task(request, {12, {}});
    EXPECT_FALSE(request.has_task());
}

TEST(JobName, OfAViewIsItsNumberUnlessItIsOfAnArray) {
    proto::JobView job;
    job.set_id(17);
    EXPECT_EQ(name_of(job), "17");
    job.mutable_array()->set_job(12);
    job.mutable_array()->set_task(5);
    EXPECT_EQ(name_of(job), "17");
    job.mutable_array()->set_count(8);
    EXPECT_EQ(name_of(job), "12_5");
}

}  // namespace
}  // namespace gangline::runner
