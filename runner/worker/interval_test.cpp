#include "runner/worker/interval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace gangline {
namespace {

constexpr TimePoint kStart{seconds(1000)};
constexpr SaveInterval::Tiers kDiskAlone{};
constexpr SaveInterval::Tiers kWithMemory{.may_use_memory = true};
using Tier = std::optional<SaveTier>;

double on_disk_s(const SaveInterval& interval) { return to_seconds(interval.interval(SaveTier::Disk)); }
double in_memory_s(const SaveInterval& interval) { return to_seconds(interval.interval(SaveTier::Memory)); }

TEST(SaveInterval, IsYoungs) {
    SaveInterval interval(seconds(18'400), kStart, kDiskAlone);  // a failure each 5.1 h
    interval.measured(milliseconds(1200), seconds(10));
    EXPECT_NEAR(on_disk_s(interval), 210.1, 0.1);
    EXPECT_EQ(interval.due(kStart + seconds(210)), std::nullopt);
    EXPECT_EQ(interval.due(kStart + seconds(211)), Tier(SaveTier::Disk));
    interval.begun(SaveTier::Disk, kStart + seconds(211));
    EXPECT_EQ(interval.due(kStart + seconds(400)), std::nullopt);
    EXPECT_THAT(interval.reason(), testing::HasSubstr("a save stalls the training 1200.0 ms"));
}

TEST(SaveInterval, NeverCostsMoreThanAHundredthNorKeepsTheDiskBusyMoreThanHalf) {
    SaveInterval often(seconds(60), kStart, kDiskAlone);
    often.measured(seconds(1), seconds(4));
    EXPECT_NEAR(on_disk_s(often), 100, 0.1);
    EXPECT_THAT(often.reason(), testing::HasSubstr("1 % of the time at most"));
    SaveInterval slow_disk(seconds(60), kStart, kDiskAlone);
    slow_disk.measured(milliseconds(1), seconds(40));
    EXPECT_NEAR(on_disk_s(slow_disk), 80, 0.1);
    EXPECT_THAT(slow_disk.reason(), testing::HasSubstr("the disk is busy half of the time at most"));
}

TEST(SaveInterval, NeverPutsMoreThanHalfAnHourAtStake) {
    SaveInterval rare(seconds(400'000'000), kStart, kDiskAlone);
    rare.measured(seconds(10), seconds(20));
    EXPECT_NEAR(on_disk_s(rare), 1800, 0.1);
    EXPECT_THAT(rare.reason(), testing::HasSubstr("half an hour"));
}

TEST(SaveInterval, EachTierIsForTheFailuresThatNeedIt) {
    SaveInterval both(seconds(11'124), kStart, kWithMemory);  // a failure each 3.09 h: 88 of 419 take the memory along
    both.measured(milliseconds(500), seconds(30));
    both.measured_in_memory(milliseconds(20), milliseconds(400));
    EXPECT_NEAR(in_memory_s(both), std::sqrt(2 * 0.020 * 11'124 * 419 / 331), 0.01);
    EXPECT_NEAR(on_disk_s(both), std::sqrt(2 * 0.500 * 11'124 * 419 / 88), 0.01);
    EXPECT_THAT(both.reason(), testing::AllOf(testing::StartsWith("in memory every 23.7s: "), testing::HasSubstr("a copy stalls the training 20.0 ms; on disk every 3m 50s: ")));

    SaveInterval replicas(seconds(11'124), kStart, {.may_use_memory = true, .has_replicas = true});
    replicas.measured(milliseconds(500), seconds(30));
    replicas.measured_in_memory(milliseconds(20), milliseconds(400));
    EXPECT_LT(in_memory_s(replicas), in_memory_s(both)) << "more failures are its own";
    EXPECT_NEAR(on_disk_s(replicas), std::sqrt(2 * 0.500 * 11'124 * 419 / 17.5), 0.01);
}

TEST(SaveInterval, TheFirstSaveIsOnDiskAndSoonThoseBetweenAreInMemory) {
    SaveInterval both(seconds(10'000'000), kStart, kWithMemory);
    EXPECT_EQ(both.due(kStart + seconds(9)), std::nullopt);
    EXPECT_EQ(both.due(kStart + seconds(10)), Tier(SaveTier::Disk));
    both.begun(SaveTier::Disk, kStart + seconds(10));
    both.measured(milliseconds(1), seconds(120));
    const Duration in_memory = both.interval(SaveTier::Memory);
    const Duration on_disk = both.interval(SaveTier::Disk);
    ASSERT_LT(in_memory, on_disk);
    TimePoint at = kStart + seconds(10) + in_memory;
    EXPECT_EQ(both.due(at - milliseconds(1)), std::nullopt);
    EXPECT_EQ(both.due(at), Tier(SaveTier::Memory));
    both.begun(SaveTier::Memory, at);
    EXPECT_EQ(both.due(at + milliseconds(1)), std::nullopt);
    EXPECT_EQ(both.due(kStart + seconds(10) + on_disk), Tier(SaveTier::Disk)) << "saves in memory put it off by nothing";
}

TEST(SaveInterval, WithoutKeepersAllSavesAreOnDiskAsOftenAsAllFailuresAskFor) {
    SaveInterval both(seconds(100'000), kStart, kWithMemory);
    SaveInterval disk(seconds(100'000), kStart, kDiskAlone);
    for (SaveInterval* one : {&both, &disk}) {
        one->begun(SaveTier::Disk, kStart);
        one->measured(milliseconds(10), seconds(1));
    }
    EXPECT_GT(on_disk_s(both), on_disk_s(disk));
    both.memory_holds(false);
    EXPECT_FALSE(both.uses_memory());
    EXPECT_EQ(on_disk_s(both), on_disk_s(disk));
    EXPECT_EQ(both.reason(), disk.reason());
    EXPECT_EQ(both.due(kStart + both.interval(SaveTier::Disk) - seconds(1)), std::nullopt);
    both.memory_holds(true);
    EXPECT_TRUE(both.uses_memory());
}

TEST(SaveInterval, CopiesTakeATenthOfTheTimeAtMostAndAreASecondApart) {
    SaveInterval large(seconds(10), kStart, kWithMemory);
    large.measured(Duration{0}, seconds(100));
    EXPECT_NEAR(in_memory_s(large), 1, 0.001);
    large.measured_in_memory(Duration{0}, seconds(2));
    EXPECT_NEAR(in_memory_s(large), 20, 0.1);
    EXPECT_THAT(large.reason(), testing::HasSubstr("copies take a tenth of the time at most"));
}

TEST(SaveInterval, MemoryAloneIsOfNoUseWhereTheDiskIsAsQuick) {
    SaveInterval quick(seconds(1), kStart, kWithMemory);
    quick.begun(SaveTier::Disk, kStart);
    quick.measured(Duration{0}, milliseconds(50));
    EXPECT_FALSE(quick.uses_memory());
    EXPECT_EQ(quick.due(kStart + seconds(5)), Tier(SaveTier::Disk));
}

}  // namespace
}  // namespace gangline
