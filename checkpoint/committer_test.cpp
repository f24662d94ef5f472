#include "checkpoint/committer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

namespace gangline::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string name(const WriteManifest& a) { return fmt::format("write {} ({} parts)", a.step, a.parts.size()); }
std::string name(const AskCoordinator& a) { return fmt::format("ask {}", a.step); }
std::string name(const Publish& a) { return fmt::format("publish {}", a.step); }
std::string name(const DropTemporary& a) { return fmt::format("drop {}", a.step); }
std::string name(const DeleteOld& a) { return fmt::format("delete old, keep {} and {}", a.step, a.keep.size()); }
std::string name(const WriteView& a) { return fmt::format("view {}", a.step); }
std::string name(const Tell& a) { return fmt::format("tell {} {}", a.step, a.committed ? "committed" : a.reason); }
std::string name(const Complain& a) { return "complain: " + a.what; }

class ACommitter : public ::testing::Test {
  protected:
    std::vector<std::string> step(const CommitterEvent& event) {
        std::vector<std::string> names;
        for (const auto& action : committer.step(event, clock)) names.push_back(std::visit([](const auto& a) { return name(a); }, action));
        return names;
    }
    std::vector<std::string> shard(std::uint32_t rank, std::uint64_t at, std::uint32_t attempt = 3) {
        return step(ShardDurable{rank, attempt, at, {}});
    }
    void ask(std::uint64_t at) {  // brings a step to the point where the coordinator is asked
        shard(0, at);
        ASSERT_THAT(shard(1, at), ElementsAre(fmt::format("write {} (2 parts)", at)));
        ASSERT_THAT(step(ManifestWritten{at, {}}), ElementsAre(fmt::format("ask {}", at)));
    }

    Committer committer{CommitterOptions{.world = 2, .attempt = 3}};
    TimePoint clock{seconds(100)};
};

TEST_F(ACommitter, CommitsAStepOnceEveryRankIsDurableAndTheCoordinatorAgrees) {
    EXPECT_THAT(shard(1, 100), IsEmpty());
    EXPECT_THAT(shard(0, 100), ElementsAre("write 100 (2 parts)"));
    EXPECT_THAT(step(ManifestWritten{100, {}}), ElementsAre("ask 100"));
    EXPECT_THAT(step(CommitReply{100, true, "", {{100, 3}, {50, 2}}}),
                ElementsAre("publish 100", "tell 100 committed", "delete old, keep 100 and 2", "view 100"));
    EXPECT_TRUE(committer.is_idle());
}

TEST_F(ACommitter, HearsNoOtherAttempt) {
    EXPECT_THAT(shard(0, 100, 2), ElementsAre("complain: a shard of step 100 is not used: rank 0 speaks for attempt 2, this is attempt 3"));
    EXPECT_THAT(shard(7, 100), ElementsAre("complain: a shard of step 100 is not used: rank 7 is not one of 2 ranks"));
    EXPECT_TRUE(committer.is_idle());
}

TEST_F(ACommitter, CountsARepeatedShardOnce) {
    shard(0, 100);
    EXPECT_THAT(shard(0, 100), IsEmpty());
    EXPECT_THAT(shard(1, 100), ElementsAre("write 100 (2 parts)"));
    EXPECT_THAT(shard(1, 100), IsEmpty());
}

TEST_F(ACommitter, EndsASaveWhenARankFailsAndIgnoresItsOtherShards) {
    shard(0, 100);
    EXPECT_THAT(step(ShardFailed{1, 3, 100, "disk full"}),
                ElementsAre("drop 100", "tell 100 rank 1: disk full", "complain: the checkpoint of step 100 was not saved: rank 1: disk full"));
    EXPECT_THAT(shard(1, 100), IsEmpty());
    EXPECT_THAT(step(ShardFailed{0, 3, 100, "too"}), IsEmpty());
    EXPECT_TRUE(committer.is_idle());
    shard(0, 200);
    EXPECT_THAT(shard(1, 200), ElementsAre("write 200 (2 parts)"));
}

TEST_F(ACommitter, AsksAgainUntilItIsAnsweredAndComplainsOnce) {
    ask(100);
    EXPECT_THAT(step(Tick{}), IsEmpty());
    ASSERT_TRUE(committer.next_deadline().has_value());
    int complaints = 0;
    int questions = 0;
    for (int i = 0; i < 30; ++i) {
        clock = *committer.next_deadline();
        for (const std::string& action : step(Tick{})) {
            questions += action == "ask 100";
            complaints += action.starts_with("complain: the coordinator has not answered");
        }
    }
    EXPECT_EQ(questions, 30);
    EXPECT_EQ(complaints, 1);
    EXPECT_THAT(step(CommitReply{100, true, "", {}}), ElementsAre("publish 100", "tell 100 committed", "delete old, keep 100 and 0", "view 100"));
    EXPECT_THAT(step(CommitReply{100, true, "", {}}), IsEmpty());  // the answer to a repeated question
}

TEST_F(ACommitter, DropsWhatTheCoordinatorRefuses) {
    ask(100);
    EXPECT_THAT(step(CommitReply{100, false, "attempt 3 is not the present one", {}}),
                ElementsAre("drop 100", "tell 100 the coordinator refused it: attempt 3 is not the present one", ::testing::_));
}

TEST_F(ACommitter, LetsANewerStepOvertakeOneThatWaitsForASilentCoordinator) {
    ask(100);
    shard(0, 200);
    EXPECT_THAT(shard(1, 200), IsEmpty());  // waits for its turn
    shard(0, 300);
    EXPECT_THAT(shard(1, 300), ElementsAre("drop 200", "tell 200 step 300 was ready before the coordinator had answered"));
    EXPECT_THAT(step(CommitReply{100, true, "", {}}),
                ElementsAre("publish 100", "tell 100 committed", "delete old, keep 100 and 0", "view 100", "write 300 (2 parts)"));
}

TEST_F(ACommitter, NeverTouchesTheFolderOfAStepWhoseAnswerIsOpen) {
    ask(100);
    for (std::uint64_t at = 200; at < 1000; at += 100) {
        for (std::uint32_t rank : {0u, 1u}) {
            for (const std::string& action : shard(rank, at)) EXPECT_NE(action, "drop 100");
        }
        clock += seconds(20);
        for (const std::string& action : step(Tick{})) EXPECT_NE(action, "drop 100");
    }
}

TEST_F(ACommitter, NamesTheRankThatDidNotWriteItsShardInTime) {
    shard(0, 100);
    clock += seconds(600);
    EXPECT_THAT(step(Tick{}), ElementsAre("drop 100", "tell 100 rank 1 has not written its shard within 600 s (1 of 2 ranks have)", ::testing::_));
}

TEST_F(ACommitter, GivesShardsFourTimesAsLongAsTheyTookBefore) {
    shard(0, 100);
    EXPECT_EQ(committer.next_deadline(), clock + seconds(600));  // nothing was seen yet
    clock += seconds(30);
    shard(1, 100);
    step(ManifestWritten{100, {}});
    step(CommitReply{100, true, "", {}});
    shard(1, 200);
    EXPECT_EQ(committer.next_deadline(), clock + seconds(120));
    clock += seconds(120);
    EXPECT_THAT(step(Tick{}), ElementsAre("drop 200", "tell 200 rank 0 has not written its shard within 120 s (1 of 2 ranks have)", ::testing::_));
    shard(0, 300);
    EXPECT_EQ(committer.next_deadline(), clock + seconds(480));  // a disk that has become slow is given longer
}

TEST(AGatherHistory, TakesTheNinetyNinthPercentileWithinBounds) {
    GatherHistory history;
    EXPECT_EQ(history.limit(), GatherHistory::kFirst);
    history.took(milliseconds(5));
    EXPECT_EQ(history.limit(), GatherHistory::kLeast);
    for (int i = 0; i < 99; ++i) history.took(seconds(20));
    EXPECT_EQ(history.limit(), seconds(80));
    history.took(seconds(500));  // one of 101: above the 99th percentile
    EXPECT_EQ(history.limit(), seconds(80));
    history.took(seconds(200));
    history.took(seconds(200));
    EXPECT_EQ(history.limit(), seconds(800));
    history.took(seconds(2000));
    history.took(seconds(2000));
    history.took(seconds(2000));
    EXPECT_EQ(history.limit(), GatherHistory::kMost);
    for (int i = 0; i < 256; ++i) history.took(seconds(1));  // what is old is forgotten
    EXPECT_EQ(history.limit(), GatherHistory::kLeast);
}

TEST_F(ACommitter, EndsASaveWhoseManifestCannotBeWritten) {
    shard(0, 100);
    shard(1, 100);
    EXPECT_THAT(step(ManifestFailed{100, "no space"}), ElementsAre("drop 100", "tell 100 the manifest: no space", ::testing::_));
    EXPECT_THAT(step(ManifestWritten{100, {}}), IsEmpty());
}

}  // namespace
}  // namespace gangline::checkpoint
