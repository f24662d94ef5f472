// Saves that go to a keeper's memory alone: the keeper is a real one, the test is the shepherd and, where a gang has two ranks, the other rank.

#include <signal.h>
#include <sys/wait.h>

#include "checkpoint/keeper/client.h"
#include "checkpoint/keeper/keeper.h"
#include "checkpoint/keeper/peer.h"
#include "runner/worker/mail.h"
#include "runner/worker/test_gang.h"

namespace gangline {
namespace {

constexpr std::size_t kValues = 200'000;  // two runs

class AGangWithAKeeper : public AGang {
  protected:
    AGangWithAKeeper() {
        start_keeper(Duration{0});
        const TimePoint until = now().steady + kLimit;
        while (!checkpoint::KeeperClient::connect(keeper_socket_, {7, 1, 9, 0, folder_}) && now().steady < until) ::usleep(2000);
        shepherd_ = std::make_unique<FakeShepherd>(socket_);
        shepherd_->keeper_is(keeper_socket_);
    }
    // It hears ranks after `pause`.
    void start_keeper(Duration pause) {
        keeper_socket_ = "gangline-test-keeper-" + random_hex(8);
        auto listener = listen_abstract(keeper_socket_, SOCK_STREAM).value();
        keeper_ = ::fork();
        if (keeper_ == 0) {
            checkpoint::KeeperOptions options;
            options.agents = std::move(listener);
            options.name = keeper_socket_;
            options.agent_uid = ::getuid();
            std::this_thread::sleep_for(pause);
            auto keeper = checkpoint::Keeper::make(std::move(options));
            ::_exit(keeper ? (*keeper)->run() : 99);
        }
    }
    ~AGangWithAKeeper() override { kill_keeper(); }
    void kill_keeper() {
        if (keeper_ == 0) return;
        ::kill(keeper_, SIGKILL);
        ::waitpid(keeper_, nullptr, 0);
        keeper_ = 0;
        shepherd_->keeper_is("");
    }
    // Rank 0 says so; the letter is there when it is true.
    bool is_due(Gang& gang, std::uint64_t step, const std::string& letter) {
        if (!std::exchange(has_joined_, true)) (void)shepherd_->wait_for(WorkerKind::Join);
        shepherd_->send(1, WorkerKind::Relay, step, 3, letter);
        const TimePoint until = now().steady + kLimit;
        while (now().steady < until) {
            if (gang.should_save(step)) return true;
            ::usleep(1000);
        }
        return false;
    }
    bool lies_on_disk(std::uint64_t step, std::uint32_t rank) const {
        const std::string folder = fmt::format("{}/job-7/.tmp-{}", folder_, checkpoint::folder_name({step, 3}));
        auto store = checkpoint::Store::open(folder_ + "/job-7");
        return fs::exists(folder) && store && store->read_part({step, 3}, rank).ok();
    }

    std::string keeper_socket_;
    pid_t keeper_ = 0;
    std::unique_ptr<FakeShepherd> shepherd_;
    bool has_joined_ = false;
    std::vector<std::uint64_t> state_ = std::vector<std::uint64_t>(kValues, 5);
};

TEST_F(AGangWithAKeeper, ASaveInMemoryEndsWithTheSnapshotAndTheDiskHearsNothingOfItUntilTheRankDies) {
    in_gangline(1, 2);
    {
        auto gang = Gang::join().value();
        ASSERT_TRUE(gang.track_slice("state", state_.data(), {2 * kValues}, {kValues}, {kValues}).ok());
        ASSERT_TRUE(is_due(gang, 10, "SM"));
        const Save save = gang.save(10);
        EXPECT_EQ(save.tier(), SaveTier::Memory);
        ASSERT_TRUE(save.wait(kLimit).ok());
        EXPECT_EQ(shepherd_->wait_for(WorkerKind::Snapshot).header.step, 10u);
        ASSERT_TRUE(is_due(gang, 11, "SM"));
        const Save fenced = gang.save(11, SaveMode::Fenced);
        gang.fence();
        ASSERT_TRUE(fenced.wait(kLimit).ok());
        EXPECT_EQ(shepherd_->wait_for(WorkerKind::Snapshot).header.step, 11u);
        EXPECT_EQ(shepherd_->count(WorkerKind::Relay), 0u) << "rank 0's committer hears nothing of it";
        EXPECT_FALSE(fs::exists(folder_ + "/job-7"));
    }
    const TimePoint until = now().steady + kLimit;
    while (!lies_on_disk(11, 1) && now().steady < until) ::usleep(2000);
    EXPECT_TRUE(lies_on_disk(11, 1)) << "its keeper brings it there when the rank has gone without a word";
}

TEST_F(AGangWithAKeeper, AProgramThatHasFinishedLeavesNothingToBeWritten) {
    in_gangline(1, 2);
    {
        auto gang = Gang::join().value();
        ASSERT_TRUE(gang.track_slice("state", state_.data(), {2 * kValues}, {kValues}, {kValues}).ok());
        for (const std::uint64_t step : {10u, 20u, 30u}) {
            ASSERT_TRUE(is_due(gang, step, "SM"));
            const auto saved = gang.save(step).wait(kLimit);
            ASSERT_TRUE(saved) << saved.error().message;
            EXPECT_EQ(shepherd_->wait_for(WorkerKind::Snapshot).header.step, step);
        }
        ASSERT_TRUE(gang.finish(kLimit).ok());
        EXPECT_EQ(shepherd_->wait_for(WorkerKind::Snapshot).header.step, 0u) << "the runner starts from none of them";
    }
    // The keeper serves this one behind the end of the other's line.
    auto next = checkpoint::KeeperClient::connect(keeper_socket_, {7, 4, 1, 0, folder_ + "/job-7"}).value();
    ASSERT_TRUE(next->find(1, 3, 30));
    next->done();
    EXPECT_FALSE(fs::exists(folder_ + "/job-7"));
}

TEST_F(AGangWithAKeeper, WithoutItsKeeperASaveInMemoryIsLeftOutAndTheNextOnDiskIsMade) {
    in_gangline(1, 2);
    auto gang = Gang::join().value();
    ASSERT_TRUE(gang.track_slice("state", state_.data(), {2 * kValues}, {kValues}, {kValues}).ok());
    ASSERT_TRUE(is_due(gang, 10, "SM"));
    ASSERT_TRUE(gang.save(10).wait(kLimit).ok());
    EXPECT_EQ(shepherd_->wait_for(WorkerKind::Snapshot).header.step, 10u);
    kill_keeper();
    ASSERT_TRUE(is_due(gang, 20, "SM"));
    const auto left_out = gang.save(20).wait(kLimit);
    ASSERT_FALSE(left_out.ok());
    EXPECT_EQ(left_out.error().code, Code::Unavailable);
    EXPECT_THAT(left_out.error().message, testing::HasSubstr("step 20 was to be saved in memory, but no keeper"));
    EXPECT_EQ(shepherd_->wait_for(WorkerKind::Snapshot).header.step, 0u) << "step 10 is lost, too";
    const Frame told = shepherd_->wait_for(WorkerKind::Relay);
    EXPECT_EQ(told.payload, "K");
    EXPECT_EQ(told.header.step, 20u);
    ASSERT_TRUE(is_due(gang, 30, "SD"));
    const Save save = gang.save(30);
    EXPECT_EQ(save.tier(), SaveTier::Disk);
    EXPECT_EQ(shepherd_->wait_for(WorkerKind::Relay).payload, "K");
    EXPECT_EQ(shepherd_->wait_for(WorkerKind::Relay).payload[0], 'D');
    shepherd_->send(1, WorkerKind::Relay, 30, 3, "C");
    EXPECT_TRUE(save.wait(kLimit).ok());
}

TEST_F(AGangWithAKeeper, AKeeperInADeadOnesPlaceIsWaitedForThatHasOnlyJustBeenStarted) {
    in_gangline(1, 2);
    auto gang = Gang::join().value();
    ASSERT_TRUE(gang.track_slice("state", state_.data(), {2 * kValues}, {kValues}, {kValues}).ok());
    ASSERT_TRUE(is_due(gang, 10, "SM"));
    ASSERT_TRUE(gang.save(10).wait(kLimit).ok());
    kill_keeper();
    start_keeper(milliseconds(100));
    shepherd_->keeper_is(keeper_socket_);
    ASSERT_TRUE(is_due(gang, 20, "SM"));
    const auto saved = gang.save(20).wait(kLimit);
    EXPECT_TRUE(saved) << saved.error().message;
}

TEST_F(AGangWithAKeeper, WhatNobodyHasAnnouncedGoesToDiskAndStepsRiseOverBothTiers) {
    in_gangline(1, 2);
    auto gang = Gang::join().value();
    ASSERT_TRUE(gang.track_slice("state", state_.data(), {2 * kValues}, {kValues}, {kValues}).ok());
    const Save first = gang.save(9);
    EXPECT_EQ(first.tier(), SaveTier::Disk);
    EXPECT_EQ(shepherd_->wait_for(WorkerKind::Relay).payload[0], 'D');
    shepherd_->send(1, WorkerKind::Relay, 9, 3, "C");
    ASSERT_TRUE(first.wait(kLimit).ok());
    ASSERT_TRUE(is_due(gang, 10, "SM"));
    ASSERT_FALSE(gang.should_save(11));
    EXPECT_EQ(gang.save(11).tier(), SaveTier::Disk) << "10 was announced";
    const auto refused = gang.save(10).wait(kLimit);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, testing::HasSubstr("steps must rise"));
}

TEST_F(AGangWithAKeeper, RankZeroSavesOnDiskFirstThenInMemoryAndOnDiskBeforeAStop) {
    in_gangline(0, 1);
    set("GANGLINE_MTBF_S", "1");
    set("GANGLINE_CHECKPOINT_WRITE_MIB_S", "1");  // the disk is busy half of the time at most
    auto gang = Gang::join().value();
    ASSERT_TRUE(gang.track("state", state_.data(), {kValues}).ok());
    std::vector<SaveTier> tiers;
    std::uint64_t step = 0;
    const auto run_until = [&](auto&& condition) {
        const TimePoint until = now().steady + kLimit;
        while (!condition() && now().steady < until) {
            ::usleep(1000);
            if (!gang.should_save(++step)) continue;
            const Save save = gang.save(step);
            tiers.push_back(save.tier());
            EXPECT_TRUE(save.wait(kLimit).ok());
        }
    };
    run_until([&] { return !tiers.empty() && tiers.back() == SaveTier::Memory; });
    ASSERT_GE(tiers.size(), 2u);
    EXPECT_EQ(tiers.front(), SaveTier::Disk);
    EXPECT_EQ(tiers.back(), SaveTier::Memory);
    EXPECT_THAT(gang.save_interval(), testing::AllOf(testing::StartsWith("in memory every "), testing::HasSubstr("; on disk every ")));
    EXPECT_FALSE(fs::exists(saved(step, 3))) << "nothing is on disk of it";
    tiers.clear();
    shepherd_->send(0, WorkerKind::StopSoon, 0, 3, std::string("\x60\xea\0\0", 4));
    run_until([&] { return !tiers.empty() && gang.should_stop(); });
    EXPECT_EQ(tiers.back(), SaveTier::Disk);
    EXPECT_TRUE(fs::exists(saved(step, 3)));
}

TEST_F(AGangWithAKeeper, OneRankWithoutAKeeperPutsAllSavesOnDiskUntilTheNextIsThere) {
    in_gangline(0, 2);
    set("GANGLINE_MTBF_S", "1000");
    auto gang = Gang::join().value();
    ASSERT_TRUE(gang.track_slice("state", state_.data(), {2 * kValues}, {0}, {kValues}).ok());
    EXPECT_THAT(gang.save_interval(), testing::StartsWith("in memory every "));
    (void)shepherd_->wait_for(WorkerKind::Join);
    shepherd_->send(0, WorkerKind::Relay, 5, 3, "K");
    const TimePoint until = now().steady + kLimit;
    while (gang.save_interval().starts_with("in memory") && now().steady < until) ::usleep(1000);
    EXPECT_THAT(gang.save_interval(), testing::StartsWith("every "));
    (void)gang.save(10);
    EXPECT_THAT(gang.save_interval(), testing::StartsWith("in memory every "));
}

// Whoever asks is answered at once, also where there is none: it would wait for it otherwise, in the middle of its restart.
TEST_F(AGangWithAKeeper, EachRankSaysWhereItsKeeperIsOrThatThereIsNone) {
    in_gangline(1, 2);
    {
        auto gang = Gang::join().value();
        ASSERT_TRUE(gang.track_slice("state", state_.data(), {2 * kValues}, {kValues}, {kValues}).ok());
        ASSERT_TRUE(is_due(gang, 10, "SM"));
        shepherd_->send(1, WorkerKind::Relay, 0, 3, std::string(1, static_cast<char>(Mail::WhereKeeper)));
        ASSERT_TRUE(gang.save(10).wait(kLimit).ok());
        const std::string answer = shepherd_->wait_for(WorkerKind::Relay).payload;
        ASSERT_FALSE(answer.empty());
        EXPECT_EQ(answer[0], static_cast<char>(Mail::KeeperAt));
        EXPECT_TRUE(checkpoint::parse_keeper_address(std::string_view(answer).substr(1)));
    }
    set("GANGLINE_CHECKPOINT_MEMORY_MIB", "0");
    auto gang = Gang::join().value();
    shepherd_->wait_for(WorkerKind::Join);
    shepherd_->send(1, WorkerKind::Relay, 0, 3, std::string(1, static_cast<char>(Mail::WhereKeeper)));
    EXPECT_EQ(shepherd_->wait_for(WorkerKind::Relay).payload, std::string(1, static_cast<char>(Mail::KeeperAt)));
}

TEST_F(AGangWithAKeeper, WithoutSnapshotsARestoreAsksNobodyForKeepers) {
    std::string digest;
    set("GANGLINE_CHECKPOINT_MEMORY_MIB", "0");
    in_gangline(0, 1);
    {
        auto gang = Gang::join().value();
        ASSERT_TRUE(gang.track("state", state_.data(), {kValues}).ok());
        ASSERT_TRUE(gang.save(10).wait(kLimit).ok());
        digest = decode_commit(shepherd_->wait_for(WorkerKind::Commit).payload)->manifest_sha256;
        ASSERT_TRUE(gang.finish(kLimit).ok());
    }
    checkpoint::Sha256 sha{};
    std::memcpy(sha.data(), digest.data(), sha.size());
    in_gangline(0, 2, 4);
    set("GANGLINE_RESTORE_STEP", "10");
    set("GANGLINE_RESTORE_ATTEMPT", "3");
    set("GANGLINE_RESTORE_SHA256", checkpoint::to_hex(sha));
    set("GANGLINE_RESTORE_FROM", "0-0@1");
    auto gang = Gang::join().value();
    std::vector<std::uint64_t> back(kValues);
    ASSERT_TRUE(gang.track("state", back.data(), {kValues}).ok());
    const auto restored = gang.restore();
    ASSERT_TRUE(restored) << restored.error().message;
    EXPECT_EQ(back, state_);
    EXPECT_EQ(shepherd_->count(WorkerKind::Relay), 0u);
}

TEST_F(AGangWithAKeeper, TheTiersCanBeSwitchedOff) {
    in_gangline(0, 1);
    set("GANGLINE_MTBF_S", "1000");
    set("GANGLINE_CHECKPOINT_TIERS", "disk");
    EXPECT_THAT(Gang::join().value().save_interval(), testing::StartsWith("every "));
    set("GANGLINE_CHECKPOINT_TIERS", "both");
    const auto gang = Gang::join();
    ASSERT_FALSE(gang.ok());
    EXPECT_THAT(gang.error().message, testing::HasSubstr("GANGLINE_CHECKPOINT_TIERS='both' must be auto or disk"));
}

}  // namespace
}  // namespace gangline
