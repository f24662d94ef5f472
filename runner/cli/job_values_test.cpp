#include "runner/cli/job_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gangline::runner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string words_of_nodes(const std::string& value) {
    const auto range = parse_node_range({"nodes", value, ""});
    return range ? "" : range.error().message;
}

TEST(NodeRange, IsANumberOrARangeWithAStep) {
    const auto range = parse_node_range({"nodes", "4-16:4", ""});
    ASSERT_TRUE(range.ok());
    EXPECT_EQ(range->least, 4);
    EXPECT_EQ(range->most, 16);
    EXPECT_EQ(range->step, 4);
    EXPECT_EQ(parse_node_range({"nodes", "3", ""})->most, 3);
    EXPECT_EQ(parse_node_range({"nodes", "2-4", ""})->step, 0);
    EXPECT_EQ(parse_node_range({"nodes", "2-4:2", ""})->step, 2);
}

TEST(NodeRange, OtherWordsNameOptionAndForms) {
    for (const char* const value : {"", "x", "0", "4-2", "0-2", "2-", "-2", "4:2", "2:3-4", "1,5,9", "2-x", "2000000"}) {
        EXPECT_THAT(words_of_nodes(value), HasSubstr("--nodes: '" + std::string(value) + "' is not a number of nodes: write N, MIN-MAX")) << value;
    }
}

TEST(NodeRange, AStepLeadsFromTheLeastToTheMost) {
    EXPECT_EQ(words_of_nodes("2-8:4"), "--nodes: steps of 4 from 2 do not lead to 8: write 2-6:4 or 2-10:4");
    EXPECT_EQ(words_of_nodes("2-8:7"), "--nodes: a step of 7 from 2 goes beyond 8: write 2-8, or 2-9:7");
    EXPECT_EQ(words_of_nodes("2-8:0"), "--nodes: '0' is not a step: write how many nodes are added at a time (2-8:1), or leave out :0");
    EXPECT_EQ(words_of_nodes("2-8:"), "--nodes: '' is not a step: write how many nodes are added at a time (2-8:1), or leave out :");
    EXPECT_EQ(words_of_nodes("2-3:2"), "--nodes: a step of 2 from 2 goes beyond 3: write 2-3, or 2-4:2");
    EXPECT_EQ(words_of_nodes("4-4:1"), "--nodes: '4-4:1' has a step but one size: leave out :1");
}

ArrayTasks tasks_of(const std::string& value) {
    const auto array = parse_array_tasks({"array", value, ""});
    EXPECT_TRUE(array.ok()) << (array ? "" : array.error().message);
    return array ? *array : ArrayTasks();
}

std::string words_of_array(const std::string& value) {
    const auto array = parse_array_tasks({"array", value, "in job.sh line 3"});
    return array ? "" : array.error().message;
}

TEST(ArrayTasks, AreReadInAllOfSbatchsWays) {
    EXPECT_EQ(tasks_of("0-15").tasks.size(), 16U);
    EXPECT_THAT(tasks_of("7").tasks, ElementsAre(7U));
    EXPECT_THAT(tasks_of("1,3,5-9").tasks, ElementsAre(1U, 3U, 5U, 6U, 7U, 8U, 9U));
    EXPECT_THAT(tasks_of("0-10:4").tasks, ElementsAre(0U, 4U, 8U));
    EXPECT_EQ(tasks_of("0-10:4").step, 4U);
    EXPECT_EQ(tasks_of("0-15%4").most_at_once, 4U);
    EXPECT_EQ(tasks_of("0-15").most_at_once, 0U);
    EXPECT_EQ(tasks_of("4000000").tasks.front(), 4'000'000U);
}

TEST(ArrayTasks, AreAscendingAndThereOnce) {
    const ArrayTasks array = tasks_of("9,1-3,2-4:2,1%2");
    EXPECT_THAT(array.tasks, ElementsAre(1U, 2U, 3U, 4U, 9U));
    EXPECT_EQ(array.step, 1U);
    EXPECT_EQ(array.most_at_once, 2U);
}

TEST(ArrayTasks, OtherWordsAreRefusedWithWhereAndTheForms) {
    for (const char* const value : {"", "x", "1,", ",1", "1-", "-1", "1--3", "5:2", "1-5:", "1-5:x", "1 - 3", "4000001", "0-4000001"}) {
        EXPECT_THAT(words_of_array(value), HasSubstr("--array (in job.sh line 3): ")) << value;
        EXPECT_THAT(words_of_array(value), HasSubstr("numbers up to 4000000 and ranges")) << value;
    }
    EXPECT_THAT(words_of_array("9-5"), HasSubstr("'9-5': the smaller number of a range comes first"));
    EXPECT_THAT(words_of_array("1-5:0"), HasSubstr("a step is a whole number from 1"));
    for (const char* const value : {"0-5%", "0-5%0", "0-5%x", "0-5%2%3"}) {
        EXPECT_THAT(words_of_array(value), HasSubstr("does not say how many may run at once")) << value;
    }
}

TEST(ArrayTasks, AreTenThousandAtMost) {
    EXPECT_EQ(tasks_of("1-10000").tasks.size(), kMostTasks);
    EXPECT_EQ(tasks_of("1-10000,1-10000").tasks.size(), kMostTasks);
    EXPECT_THAT(words_of_array("0-10000"), HasSubstr("'0-10000' has 10001 tasks, the most is 10000: submit it in parts"));
}

std::string words_of_constraint(const std::string& value) {
    const auto good = check_constraint({"constraint", value, ""});
    return good ? "" : good.error().message;
}

TEST(Constraint, IsFeaturesJoinedByAndAndOr) {
    for (const char* const value : {"nvme", "nvme&ib", "a|b", "a&b|c", "gpu_mem:80gb", "rack-1", "v1.2"}) EXPECT_EQ(words_of_constraint(value), "");
}

TEST(Constraint, BracketsCountsAndMissingFeaturesAreRefusedWithTheForm) {
    for (const char* const value : {"[a|b]", "(a|b)&c", "a*4", "a*2&b*2"}) {
        EXPECT_THAT(words_of_constraint(value), HasSubstr("has brackets or counts, which are not taken: write features")) << value;
    }
    for (const char* const value : {"", "&", "a&", "|a", "a&&b"}) {
        EXPECT_THAT(words_of_constraint(value), HasSubstr("has a place without a feature: write features")) << value;
    }
    for (const char* const value : {"a b", "a,b", "!a", "\xC3\xA4"}) {
        EXPECT_THAT(words_of_constraint(value), HasSubstr("--constraint: '" + std::string(value) + "' is not made of features")) << value;
    }
}

TEST(ReservationName, IsOneShortPlainWord) {
    EXPECT_TRUE(check_reservation_name("--reservation", "course-2.b_1").ok());
    EXPECT_TRUE(check_reservation_name("--reservation", std::string(64, 'x')).ok());
    for (const std::string name : {"", "a,b", "-a", "a b", "a/b", "\xC3\xA4"}) EXPECT_FALSE(check_reservation_name("reserve", name).ok()) << name;
    EXPECT_THAT(check_reservation_name("--reservation", std::string(65, 'x')).error().message, HasSubstr("at most 64"));
}

}  // namespace
}  // namespace gangline::runner
