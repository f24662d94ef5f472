#include "runner/worker/interval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gangline {
namespace {

constexpr TimePoint kStart{seconds(1000)};

TEST(SaveInterval, IsYoungs) {
    SaveInterval interval(seconds(18'400), kStart);  // a failure each 5.1 h
    interval.measured(milliseconds(1200), seconds(10));
    EXPECT_NEAR(to_seconds(interval.interval()), 210.1, 0.1);
    EXPECT_FALSE(interval.is_due(kStart + seconds(210)));
    EXPECT_TRUE(interval.is_due(kStart + seconds(211)));
    interval.begun(kStart + seconds(211));
    EXPECT_FALSE(interval.is_due(kStart + seconds(400)));
    EXPECT_THAT(interval.reason(), testing::HasSubstr("a save stalls the training 1200.0 ms"));
}

TEST(SaveInterval, NeverCostsMoreThanAHundredthNorKeepsTheDiskBusyMoreThanHalf) {
    SaveInterval often(seconds(60), kStart);
    often.measured(seconds(1), seconds(4));
    EXPECT_NEAR(to_seconds(often.interval()), 100, 0.1);
    SaveInterval slow_disk(seconds(60), kStart);
    slow_disk.measured(milliseconds(1), seconds(40));
    EXPECT_NEAR(to_seconds(slow_disk.interval()), 80, 0.1);
}

TEST(SaveInterval, NeverPutsMoreThanHalfAnHourAtStake) {
    SaveInterval rare(seconds(400'000'000), kStart);
    rare.measured(seconds(10), seconds(20));
    EXPECT_NEAR(to_seconds(rare.interval()), 1800, 0.1);
}

}  // namespace
}  // namespace gangline
