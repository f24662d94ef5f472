#include "runner/worker/copy_mode.h"

#include <gtest/gtest.h>

namespace gangline {
namespace {

// A gibibyte, a disk that needs half a second, a fence after 800 ms.
CopyMeasurements measured() {
    CopyMeasurements all;
    all.is_fenced = true;
    all.bytes = 1u << 30;
    all.straight_bytes = all.bytes - (2u << 20);
    all.seconds_to_fence = 0.8;
    all.write_seconds = 0.5;
    all.lazy = SaveCost{0.04, 0.08};
    all.zero_copy = SaveCost{0.5, 0.05};
    return all;
}

TEST(TheCopyMode, IsBlockingWithoutAFence) {
    auto all = measured();
    all.is_fenced = false;
    EXPECT_EQ(choose_mode(all).mode, CopyMode::Blocking);
    all.wish = CopyWish::Straight;
    EXPECT_EQ(choose_mode(all).mode, CopyMode::Blocking) << "the state would change under the disk";
}

TEST(TheCopyMode, IsZeroCopyWhereThatTakesLessFromTheTraining) {
    const auto choice = choose_mode(measured());
    EXPECT_EQ(choice.mode, CopyMode::ZeroCopy);
    EXPECT_TRUE(choice.is_measured);
    EXPECT_NE(choice.reason.find("50.0 ms, a copy 80.0 ms"), std::string::npos) << choice.reason;
    auto all = measured();
    all.zero_copy->cpu_seconds = 0.13;  // small pages
    EXPECT_EQ(choose_mode(all).mode, CopyMode::Lazy);
    EXPECT_NE(choose_mode(all).reason.find("costs it 80.0 ms, writing from where the state lies 130.0 ms"), std::string::npos) << choose_mode(all).reason;
}

TEST(TheCopyMode, IsLazyUntilThereIsSomethingToCompare) {
    auto all = measured();
    all.lazy.reset();
    EXPECT_EQ(choose_mode(all).mode, CopyMode::Lazy);
    EXPECT_FALSE(choose_mode(all).is_measured);
    all = measured();
    all.seconds_to_fence.reset();
    EXPECT_EQ(choose_mode(all).mode, CopyMode::Lazy);
    all = measured();
    all.zero_copy.reset();
    EXPECT_EQ(choose_mode(all).mode, CopyMode::ZeroCopy) << "it is tried once";
    EXPECT_FALSE(choose_mode(all).is_measured);
}

TEST(TheCopyMode, IsLazyWhereTheFenceWouldWaitForTheDisk) {
    auto all = measured();
    all.seconds_to_fence = 0.6;
    EXPECT_EQ(choose_mode(all).mode, CopyMode::Lazy) << "the disk is not always equally fast";
    EXPECT_NE(choose_mode(all).reason.find("the disk needs 500.0 ms, the fence comes after 600.0 ms"), std::string::npos) << choose_mode(all).reason;
    all.seconds_to_fence = 0.63;
    EXPECT_EQ(choose_mode(all).mode, CopyMode::ZeroCopy);
    all.zero_copy->seconds = 0.7;  // from small pages the disk is slower: the fence waits 70 ms
    EXPECT_EQ(choose_mode(all).mode, CopyMode::Lazy);
}

TEST(TheCopyMode, IsLazyWhereTheCopyIsMadeAllTheSame) {
    auto all = measured();
    all.straight_bytes = all.bytes / 2;
    EXPECT_EQ(choose_mode(all).mode, CopyMode::Lazy);
    EXPECT_NE(choose_mode(all).reason.find("only 50 %"), std::string::npos);
    all = measured();
    all.outlives = true;
    EXPECT_EQ(choose_mode(all).mode, CopyMode::Lazy);
    all.wish = CopyWish::Straight;
    EXPECT_EQ(choose_mode(all).mode, CopyMode::Lazy) << "a restart needs it";
}

TEST(TheCopyMode, ChangesForAClearGainOnly) {
    auto all = measured();
    all.zero_copy->cpu_seconds = 0.075;
    all.before = CopyMode::Lazy;
    EXPECT_EQ(choose_mode(all).mode, CopyMode::Lazy);
    all.before = CopyMode::ZeroCopy;
    EXPECT_EQ(choose_mode(all).mode, CopyMode::ZeroCopy);
    all.zero_copy->cpu_seconds = 0.085;
    EXPECT_EQ(choose_mode(all).mode, CopyMode::ZeroCopy);
    all.zero_copy->cpu_seconds = 0.095;
    EXPECT_EQ(choose_mode(all).mode, CopyMode::Lazy);
}

TEST(TheSaveMeter, KnowsWhatEachModeTookAndForgetsWhatFailed) {
    SaveMeter meter;
    const TimePoint start{};
    EXPECT_FALSE(meter.ended().lazy.has_value());
    meter.begun(CopyMode::Lazy, start);
    meter.copied(start + milliseconds(40));
    meter.fenced(start + milliseconds(800));
    meter.fenced(start + milliseconds(900));
    meter.written(start + milliseconds(500));
    meter.took(milliseconds(50));
    meter.took(milliseconds(30));
    auto known = meter.ended();
    ASSERT_TRUE(known.lazy.has_value());
    EXPECT_DOUBLE_EQ(known.lazy->seconds, 0.04);
    EXPECT_DOUBLE_EQ(known.lazy->cpu_seconds, 0.08);
    EXPECT_DOUBLE_EQ(*known.seconds_to_fence, 0.8);
    EXPECT_DOUBLE_EQ(*known.write_seconds, 0.5);
    EXPECT_FALSE(known.zero_copy.has_value());
    meter.begun(CopyMode::ZeroCopy, start);
    meter.copied(start + milliseconds(30));
    meter.written(start + milliseconds(400));
    meter.took(milliseconds(50));
    known = meter.ended();
    EXPECT_DOUBLE_EQ(known.zero_copy->seconds, 0.4);
    EXPECT_DOUBLE_EQ(*known.write_seconds, 0.7 * 0.5 + 0.3 * 0.4);
    EXPECT_EQ(known.before, CopyMode::ZeroCopy);
    meter.begun(CopyMode::Lazy, start);
    meter.copied(start + milliseconds(4000));  // and the disk was full
    EXPECT_DOUBLE_EQ(meter.ended().lazy->seconds, 0.04);
    meter.begun(CopyMode::Blocking, start);
    meter.copied(start + milliseconds(4));
    meter.written(start + milliseconds(5));
    EXPECT_DOUBLE_EQ(meter.ended().lazy->seconds, 0.04);
}

TEST(TheCopyMode, IsWhatTheProgramAsksFor) {
    auto all = measured();
    all.wish = CopyWish::Copy;
    EXPECT_EQ(choose_mode(all).mode, CopyMode::Lazy);
    all.wish = CopyWish::Straight;
    all.seconds_to_fence.reset();
    all.straight_bytes = 0;
    EXPECT_EQ(choose_mode(all).mode, CopyMode::ZeroCopy);
}

}  // namespace
}  // namespace gangline
