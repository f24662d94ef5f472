// Each fault that the brain decides about, on virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include <fmt/format.h>

#include "coordinator/simulate/faults.h"

namespace gangline::simulate {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

WorldOptions two_nodes(std::uint64_t seed = 7) {
    WorldOptions options;
    options.nodes = 2;
    options.seed = seed;
    return options;
}

proto::JobSpec training(std::uint32_t ranks, std::uint32_t nodes) {
    proto::JobSpec spec = command(ranks, {"train", "steps=200", "every=20", "step_ms=20"});
    spec.set_nodes_min(nodes);
    return spec;
}

bool is(World& world, std::uint64_t job, proto::JobState state) { return world.view(job).state() == state; }

// The job has ended so, nothing is held, and nothing that must never happen has happened.
void expect_ended(World& world, std::uint64_t job, proto::JobState state) {
    ASSERT_TRUE(world.run_until([&] { return is(world, job, state) && world.unfinished().empty(); }, seconds(600)))
        << world.view(job).ShortDebugString();
    EXPECT_THAT(world.violations(), IsEmpty());
}

TEST(Gang, RunsFromSubmitToCompletedWithItsReasons) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(training(4, 2));
    ASSERT_EQ(job, 1u);
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::RUNNING); }));
    EXPECT_EQ(world.view(job).gang(0).rank_count(), 2u);
    EXPECT_EQ(world.view(job).gang(1).rank_count(), 2u);
    expect_ended(world, job, proto::COMPLETED);
    EXPECT_EQ(world.view(job).reason(), "all 4 ranks exited 0");
    EXPECT_EQ(world.view(job).exit_code(), 0);
    EXPECT_EQ(world.view(job).restarts(), 0u);
}

TEST(Gang, AShortJobNeedsFiveRecords) {
    World world(two_nodes());
    const std::size_t before = world.journal().size();
    expect_ended(world, world.submit(command(1, {"true"})), proto::COMPLETED);
    EXPECT_EQ(world.journal().size() - before, 5u);
}

TEST(Gang, AProgramThatJoinsNothingIsRunningAfterASecond) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(command(2, {"sleep", "ms=3000"}));
    EXPECT_TRUE(world.run_until([&] { return is(world, job, proto::RUNNING); }, milliseconds(1200)));
    expect_ended(world, job, proto::COMPLETED);
}

class KilledRank : public testing::TestWithParam<int> {};

TEST_P(KilledRank, SendsTheGangBackToTheNewestCommittedCheckpointOnTheSameCards) {
    World world(two_nodes(static_cast<std::uint64_t>(GetParam())));
    world.options().echo = 0.8;  // its peers exit 1 on the way
    const std::uint64_t job = world.submit(training(4, 2));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) >= static_cast<std::uint64_t>(25 + GetParam()); }));
    const auto before = world.view(job).gang();
    ASSERT_TRUE(world.kill_rank(job, static_cast<std::uint32_t>(GetParam() % 4), SIGKILL));
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 2; }, seconds(1)));
    EXPECT_EQ(world.view(job).attempts(1).restored().step(), 20u);
    EXPECT_EQ(world.view(job).gang(0).cards(0), before.Get(0).cards(0));
    EXPECT_EQ(world.view(job).gang(1).node(), before.Get(1).node());
    const proto::AttemptView first = world.view(job).attempts(0);
    EXPECT_EQ(first.kind(), proto::INFRASTRUCTURE);
    EXPECT_EQ(first.rank(), GetParam() % 4);
    EXPECT_THAT(first.cause(), HasSubstr("was killed by SIGKILL"));
    expect_ended(world, job, proto::COMPLETED);
}
INSTANTIATE_TEST_SUITE_P(Seeds, KilledRank, testing::Range(0, 12));

TEST(Fault, TwentyKilledRanksInOneRunAreSurvived) {
    World world(two_nodes());
    world.options().echo = 0.5;
    proto::JobSpec spec = command(4, {"train", "steps=500", "every=20", "step_ms=20"});
    spec.set_nodes_min(2);
    const std::uint64_t job = world.submit(spec);
    for (std::uint32_t i = 0; i < 20; ++i) {
        ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == i + 1 && world.live_ranks(job) == 4; }));
        world.run_for(world.random().between(milliseconds(50), milliseconds(700)));
        ASSERT_TRUE(world.kill_rank(job, i % 4, SIGKILL));
    }
    expect_ended(world, job, proto::COMPLETED);
}

TEST(Fault, AnAgentAloneMayDieTheGangTrainsOnAndLosesNoStep) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(training(4, 2));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) >= 30; }));
    world.kill_agent("n0");
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) >= 180; }));
    EXPECT_EQ(world.view(job).attempt(), 1u);
    world.start_agent("n0");
    expect_ended(world, job, proto::COMPLETED);
    EXPECT_EQ(world.view(job).restarts(), 0u);
}

TEST(Fault, ANodeWhoseShepherdSpeaksIsSuspectAndTakesNoNewGang) {
    World world(two_nodes());
    proto::JobSpec long_one = command(1, {"train", "steps=2000", "every=20", "step_ms=20"});
    long_one.add_only_nodes("n0");
    const std::uint64_t job = world.submit(long_one);
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::RUNNING); }));
    world.kill_agent("n0");
    world.run_for(seconds(8));
    proto::Request nodes;
    nodes.mutable_list_nodes();
    EXPECT_EQ(world.answer(nodes).nodes(0).state(), "suspect");
    proto::JobSpec late = command(1, {"true"});
    late.add_only_nodes("n0");
    const std::uint64_t waits = world.submit(late);
    world.run_for(seconds(2));
    EXPECT_TRUE(is(world, waits, proto::QUEUED));
    EXPECT_TRUE(is(world, job, proto::RUNNING));
    world.start_agent("n0");
    expect_ended(world, waits, proto::COMPLETED);
    EXPECT_EQ(world.view(job).restarts(), 0u);
}

TEST(Fault, ADeadNodeIsLostWithinThreeSecondsAndItsGangMoves) {
    WorldOptions options = two_nodes();
    options.nodes = 3;
    options.echo = 1;  // the survivors exit with a code of their own, before anybody knows of the node
    World world(options);
    const std::uint64_t job = world.submit(training(4, 2));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) >= 50; }));
    const std::string dead = world.view(job).gang(0).node();
    const TimePoint died = world.now();
    world.kill_node(dead);
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 2; }, seconds(4)));
    EXPECT_LE(to_seconds(world.now() - died), 3.0);
    const proto::JobView moved = world.view(job);
    for (const proto::Placement& place : moved.gang()) EXPECT_NE(place.node(), dead);
    EXPECT_EQ(world.view(job).attempts(0).kind(), proto::INFRASTRUCTURE);
    EXPECT_THAT(world.view(job).attempts(0).cause(), HasSubstr(dead + " is lost"));
    world.start_node(dead);
    expect_ended(world, job, proto::COMPLETED);
}

TEST(Fault, AGangThatFitsNowhereGoesBackToTheQueueWithItsAgeAndComesBack) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(training(8, 2));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) >= 50; }));
    world.kill_node("n1");
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::QUEUED); }, seconds(60)));
    EXPECT_EQ(world.reached().at("job_requeued"), 1u);
    world.start_node("n1");
    expect_ended(world, job, proto::COMPLETED);
    EXPECT_EQ(world.view(job).attempts(1).restored().step(), 40u);
}

TEST(Fault, FreedCardsOfARecoveringGangAreNotStolen) {
    World world(two_nodes());
    proto::JobSpec spec = command(8, {"sleep", "ms=20000"});
    const std::uint64_t job = world.submit(spec);
    proto::JobSpec thief = command(4, {"sleep", "ms=60000"});
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::RUNNING); }));
    const std::uint64_t waits = world.submit(thief);
    for (std::uint32_t i = 0; i < 3; ++i) {  // the third failure without progress has a back-off of a second
        ASSERT_TRUE(world.run_until([&] { return world.live_ranks(job) == 8; }));
        world.kill_rank(job, i, SIGKILL);
        ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::RECOVERING); }, seconds(1)));
    }
    world.run_for(milliseconds(500));
    EXPECT_TRUE(is(world, job, proto::RECOVERING));
    EXPECT_TRUE(is(world, waits, proto::QUEUED));
    EXPECT_EQ(world.live_ranks(waits), 0u);
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::COMPLETED); }));
    expect_ended(world, waits, proto::COMPLETED);
}

TEST(Fault, AStoppedRankIsNamedAndTheGangRestarted) {
    WorldOptions options = two_nodes();
    options.brain.progress_timeout = seconds(3);
    World world(options);
    const std::uint64_t job = world.submit(training(4, 2));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) >= 50; }));
    ASSERT_TRUE(world.stop_rank(job, 2));
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 2; }, seconds(4)));
    const proto::AttemptView first = world.view(job).attempts(0);
    EXPECT_EQ(first.rank(), 2);
    EXPECT_EQ(first.kind(), proto::INFRASTRUCTURE);
    EXPECT_THAT(first.cause(), HasSubstr("rank 2 on n1 is stopped (state T)"));
    expect_ended(world, job, proto::COMPLETED);
    proto::Request report;
    report.mutable_report_job()->set_job(job);
    double sum = 0;
    double hang = 0;
    const proto::Response answer = world.answer(report);
    for (const proto::Cause& cause : answer.report().causes()) {
        sum += cause.wall_s();
        if (cause.name() == "hang") hang = cause.wall_s();
    }
    EXPECT_NEAR(sum, answer.report().wall_s(), 1e-6);
    EXPECT_NEAR(hang, 3, 0.6);
}

TEST(Fault, ADamagedCheckpointIsNotTriedAgainAndTheOlderOneServes) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(training(4, 2));
    ASSERT_TRUE(world.run_until([&] { return world.view(job).checkpoints_size() == 1; }));
    world.options().checkpoint_rots = 1;
    ASSERT_TRUE(world.run_until([&] { return world.view(job).checkpoints_size() == 2; }));
    world.options().checkpoint_rots = 0;
    world.kill_rank(job, 0, SIGKILL);
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 3; }, seconds(2)));
    EXPECT_EQ(world.view(job).attempts(1).restored().step(), 40u);
    EXPECT_EQ(world.view(job).attempts(2).restored().step(), 20u);
    EXPECT_THAT(world.view(job).attempts(1).cause(), HasSubstr("checkpoint of step 40 (attempt 1) is damaged: checksum differs"));
    EXPECT_TRUE(world.view(job).checkpoints(1).damaged());
    EXPECT_THAT(world.view(job).faults(0), HasSubstr("damaged"));
    expect_ended(world, job, proto::COMPLETED);
}

// Four ranks on two nodes that have every twentieth step whole in memory, and commit every fiftieth where they commit at all.
proto::JobSpec snapshotting(bool commits) {
    proto::JobSpec spec = command(4, {"train", "steps=300", "step_ms=10", "snapshot=20", commits ? "every=50" : "every=0"});
    spec.set_nodes_min(2);
    spec.set_nodes_max(2);
    return spec;
}

TEST(Fault, AKilledRanksGangStartsFromTheNewestSnapshotThatAllOfItHadWholeAndThatIsThenCommitted) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(snapshotting(false));
    ASSERT_TRUE(world.run_until([&] { return world.view(job).progress().step() >= 45; }));
    world.kill_rank(job, 3, SIGKILL);
    ASSERT_TRUE(world.run_until([&] { return world.view(job).checkpoints_size() == 1; }, seconds(2)));
    const proto::JobView view = world.view(job);
    ASSERT_EQ(view.attempts_size(), 2);
    EXPECT_TRUE(view.attempts(1).restored().in_memory());
    EXPECT_GE(view.attempts(1).restored().step(), 40u);
    EXPECT_EQ(view.attempts(1).restored().step() % 20, 0u);
    EXPECT_EQ(view.checkpoints(0).step(), view.attempts(1).restored().step());
    EXPECT_EQ(view.checkpoints(0).attempt(), 1u) << "the attempt that wrote it";
    world.kill_rank(job, 0, SIGKILL);
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 3; }, seconds(2)));
    EXPECT_GE(world.view(job).attempts(2).restored().step(), view.checkpoints(0).step());
    expect_ended(world, job, proto::COMPLETED);
}

TEST(Fault, ASnapshotThatIsLostNeverCountedSoTheCommittedCheckpointServes) {
    WorldOptions options = two_nodes();
    options.snapshot_is_lost = 1;
    World world(options);
    const std::uint64_t job = world.submit(snapshotting(true));
    ASSERT_TRUE(world.run_until([&] { return world.view(job).checkpoints_size() == 1; }));
    ASSERT_TRUE(world.run_until([&] { return world.view(job).progress().step() >= 60 && world.view(job).progress().step() % 50 >= 25; }));
    world.kill_rank(job, 3, SIGKILL);
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() >= 2; }, seconds(2)));
    const proto::RestorePoint lost = world.view(job).attempts(1).restored();
    if (!lost.in_memory()) GTEST_SKIP() << "the commit was as new as the snapshot";
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 3; }, seconds(2)));
    EXPECT_THAT(world.view(job).attempts(1).cause(), HasSubstr(fmt::format("the snapshot of step {} (attempt 1) is lost", lost.step())));
    EXPECT_EQ(world.view(job).attempts(2).restored().step(), lost.step() / 50 * 50);
    EXPECT_FALSE(world.view(job).attempts(2).restored().in_memory());
    expect_ended(world, job, proto::COMPLETED);
    const proto::JobView view = world.view(job);
    for (const proto::CheckpointView& one : view.checkpoints()) EXPECT_FALSE(one.damaged());
}

TEST(Fault, ASnapshotThatIsLostBeforeAnythingWasCommittedLetsTheJobBegin) {
    WorldOptions options = two_nodes();
    options.snapshot_is_lost = 1;
    World world(options);
    const std::uint64_t job = world.submit(snapshotting(false));
    ASSERT_TRUE(world.run_until([&] { return world.view(job).progress().step() >= 45; }));
    world.kill_rank(job, 3, SIGKILL);
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 3; }, seconds(2)));
    EXPECT_THAT(world.view(job).attempts(1).cause(), HasSubstr("the job starts afresh"));
    EXPECT_FALSE(world.view(job).attempts(2).has_restored());
    expect_ended(world, job, proto::COMPLETED);
}

TEST(Fault, ALostNodesSnapshotsServeFromTheNodeThatHasTheirReplicasUnlessThatIsLostToo) {
    for (const bool both : {false, true}) {
        WorldOptions options = two_nodes();
        options.nodes = 4;
        World world(options);
        proto::JobSpec spec = snapshotting(true);
        *spec.add_argv() = "replicas=1";
        const std::uint64_t job = world.submit(spec);
        ASSERT_TRUE(world.run_until([&] { return world.view(job).progress().step() >= 70 && world.view(job).progress().step() % 50 >= 25; }));
        world.kill_node("n1");
        if (both) world.kill_node("n0");
        ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 2; }, seconds(60)));
        const proto::RestorePoint restored = world.view(job).attempts(1).restored();
        EXPECT_EQ(restored.in_memory(), !both);
        EXPECT_EQ(restored.step() % (both ? 50 : 20), 0u);
        ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::COMPLETED); }, seconds(60)));
        EXPECT_THAT(world.violations(), IsEmpty());
    }
}

TEST(Fault, ALostNodeTakesItsSnapshotsWithIt) {
    WorldOptions options = two_nodes();
    options.nodes = 3;
    World world(options);
    const std::uint64_t job = world.submit(snapshotting(true));
    ASSERT_TRUE(world.run_until([&] { return world.view(job).progress().step() >= 60; }));
    world.kill_node("n1");
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 2; }, seconds(60)));
    EXPECT_FALSE(world.view(job).attempts(1).restored().in_memory());
    EXPECT_EQ(world.view(job).attempts(1).restored().step() % 50, 0u);
    world.start_node("n1");
    expect_ended(world, job, proto::COMPLETED);
}

TEST(Fault, WhenNoCheckpointIsGoodTheJobFailsAndNeverStartsAfresh) {
    WorldOptions options = two_nodes();
    options.checkpoint_rots = 1;
    World world(options);
    const std::uint64_t job = world.submit(training(4, 2));
    ASSERT_TRUE(world.run_until([&] { return world.view(job).checkpoints_size() == 1; }));
    world.kill_rank(job, 0, SIGKILL);
    expect_ended(world, job, proto::FAILED);
    EXPECT_THAT(world.view(job).reason(), HasSubstr("no other checkpoint is left"));
}

TEST(Fault, ADamagedCheckpointAtRestStopsNothingAndIsNotUsed) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(training(4, 2));
    ASSERT_TRUE(world.run_until([&] { return world.view(job).checkpoints_size() == 1; }));
    world.options().checkpoint_rots = 1;
    ASSERT_TRUE(world.run_until([&] { return world.view(job).checkpoints_size() == 2; }));
    world.options().checkpoint_rots = 0;
    world.options().found_at_rest = 1;
    ASSERT_TRUE(world.run_until([&] { return world.view(job).checkpoints_size() == 3 && world.view(job).checkpoints(1).damaged(); }));
    EXPECT_EQ(world.view(job).attempt(), 1u);  // trains on
    EXPECT_EQ(world.view(job).checkpoints(1).needed_by(), "");
    EXPECT_THAT(world.view(job).checkpoints(1).note(), HasSubstr("at rest"));
    EXPECT_THAT(world.view(job).faults(0), HasSubstr("step 40 (attempt 1) is damaged"));
    expect_ended(world, job, proto::COMPLETED);
    EXPECT_EQ(world.view(job).attempt(), 1u);
}

TEST(Fault, WhenEveryCheckpointWasFoundDamagedAtRestTheNextFailureIsTheJobsEnd) {
    WorldOptions options = two_nodes();
    options.checkpoint_rots = 1;
    options.found_at_rest = 1;
    World world(options);
    const std::uint64_t job = world.submit(training(4, 2));
    ASSERT_TRUE(world.run_until([&] { return world.view(job).checkpoints_size() == 1 && world.view(job).checkpoints(0).damaged(); }));
    EXPECT_EQ(world.view(job).state(), proto::RUNNING);
    world.kill_rank(job, 0, SIGKILL);
    expect_ended(world, job, proto::FAILED);
    EXPECT_THAT(world.view(job).reason(), HasSubstr("each of its checkpoints was found damaged"));
    EXPECT_THAT(world.view(job).reason(), HasSubstr("SIGKILL"));
}

TEST(Fault, TheCheckpointOfTheSnapshotThatAnAttemptStartedFromMayRotWithoutStoppingIt) {
    WorldOptions options = two_nodes();
    options.checkpoint_rots = 1;
    options.found_at_rest = 1;
    World world(options);
    const std::uint64_t job = world.submit(snapshotting(false));
    ASSERT_TRUE(world.run_until([&] { return world.view(job).progress().step() >= 45; }));
    world.kill_rank(job, 3, SIGKILL);
    ASSERT_TRUE(world.run_until([&] { return world.view(job).checkpoints_size() == 1 && world.view(job).checkpoints(0).damaged(); }, seconds(3)));
    EXPECT_TRUE(world.view(job).attempts(1).restored().in_memory());
    expect_ended(world, job, proto::COMPLETED);
    EXPECT_EQ(world.view(job).attempt(), 2u);
}

TEST(Fault, AUsersErrorEndsTheJobWithOneCause) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(command(4, {"train", "steps=100", "step_ms=10", "fail_rank=2", "fail_step=30", "fail_code=3"}));
    expect_ended(world, job, proto::FAILED);
    const proto::JobView view = world.view(job);
    EXPECT_EQ(view.exit_code(), 3);
    EXPECT_EQ(view.attempts(0).kind(), proto::USER);
    EXPECT_EQ(view.attempts(0).rank(), 2);
    EXPECT_THAT(view.attempts(0).last_lines(), HasSubstr("Traceback"));
    EXPECT_THAT(view.reason(), HasSubstr("rank 2 on"));
    EXPECT_THAT(view.reason(), HasSubstr("exited with code 3"));
}

TEST(Fault, RetriesAreSpentOnUserErrorsButNotTwiceOnTheSameOneWithoutProgress) {
    World world(two_nodes());
    proto::JobSpec spec = command(2, {"train", "steps=100", "step_ms=10", "fail_step=30"});
    spec.set_user_retries(10);
    const std::uint64_t job = world.submit(spec);
    expect_ended(world, job, proto::FAILED);
    EXPECT_EQ(world.view(job).restarts(), 1u);
    EXPECT_THAT(world.view(job).reason(), HasSubstr("crash loop"));
}

TEST(Fault, ASegmentationFaultIsTheUsers) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(command(1, {"sleep", "ms=60000"}));
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::RUNNING); }));
    world.kill_rank(job, 0, SIGSEGV);
    expect_ended(world, job, proto::FAILED);
    EXPECT_EQ(world.view(job).exit_code(), 128 + SIGSEGV);
}

TEST(Fault, RestartsWithoutProgressWaitLongerEachTime) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(command(2, {"sleep", "ms=5000"}));
    for (std::uint32_t i = 0; i < 4; ++i) {
        ASSERT_TRUE(world.run_until([&] { return world.live_ranks(job) == 2; }));
        world.kill_rank(job, i % 2, SIGKILL);
        ASSERT_TRUE(world.run_until([&] { return world.live_ranks(job) == 0 && !is(world, job, proto::PREPARING); }));
    }
    expect_ended(world, job, proto::COMPLETED);
    std::vector<std::uint64_t> waits;
    for (const proto::Record& record : world.journal()) {
        if (record.has_attempt_ending()) waits.push_back(record.attempt_ending().back_off_ms());
    }
    EXPECT_THAT(waits, testing::ElementsAre(0, 500, 1000, 2000));
}

TEST(Fault, TheSameRankKilledAgainAndAgainWithoutProgressMovesThenStops) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(command(1, {"sleep", "ms=50000"}));
    std::vector<std::string> nodes;
    while (!is(world, job, proto::FAILED) && nodes.size() < 10) {
        ASSERT_TRUE(world.run_until([&] { return world.live_ranks(job) == 1; }));
        nodes.push_back(world.view(job).gang(0).node());
        world.kill_rank(job, 0, SIGKILL);
        ASSERT_TRUE(world.run_until([&] { return world.live_ranks(job) == 0 && !is(world, job, proto::PREPARING); }));
        world.run_for(milliseconds(300));
    }
    ASSERT_EQ(nodes.size(), 3u);
    EXPECT_EQ(nodes[1], nodes[0]);
    EXPECT_NE(nodes[2], nodes[0]);
    EXPECT_THAT(world.view(job).reason(), HasSubstr("crash loop"));
    expect_ended(world, job, proto::FAILED);
}

TEST(Fault, ACoordinatorThatWasStoppedForAMinuteLosesNoNode) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(training(4, 2));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) > 30; }));
    world.sleep_coordinator(seconds(60));
    expect_ended(world, job, proto::COMPLETED);
    EXPECT_EQ(world.view(job).restarts(), 0u);
}

TEST(Fault, AShepherdThatDiesOnEachNodeEndsTheJobAsACrashLoop) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(command(1, {"sleep", "ms=50000"}));
    std::vector<std::string> nodes;
    while (!is(world, job, proto::FAILED) && nodes.size() < 10) {
        ASSERT_TRUE(world.run_until([&] { return world.live_ranks(job) == 1; }));
        nodes.push_back(world.view(job).gang(0).node());
        world.kill_shepherd(nodes.back(), {job, world.view(job).attempt()});
        ASSERT_TRUE(world.run_until([&] { return world.live_ranks(job) == 0 && !is(world, job, proto::PREPARING); }));
        world.run_for(milliseconds(700));
    }
    ASSERT_EQ(nodes.size(), 3u);
    EXPECT_NE(nodes[2], nodes[0]);
    EXPECT_THAT(world.view(job).reason(), HasSubstr("crash loop"));
}

TEST(Fault, ANodeThatDoesNotPrepareIsBlamedAndReplaced) {
    WorldOptions options = two_nodes();
    options.nodes = 3;
    options.brain.prepare_timeout = seconds(2);
    World world(options);
    world.node("n0").mute_prepare = true;
    const std::uint64_t job = world.submit(training(8, 2));
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 2; }, seconds(3)));
    EXPECT_THAT(world.view(job).attempts(0).cause(), HasSubstr("node n0 did not prepare"));
    EXPECT_EQ(world.view(job).gang(0).node(), "n2") << "in its place; the other node's ranks stay where they were";
    EXPECT_EQ(world.view(job).gang(1).node(), "n1");
    expect_ended(world, job, proto::COMPLETED);
}

TEST(Fault, ProcessesThatWillNotDieKeepTheirCardsFromOthers) {
    WorldOptions options = two_nodes();
    options.brain.stop_timeout = seconds(2);
    World world(options);
    world.node("n0").immortal = true;
    proto::JobSpec spec = command(4, {"sleep", "ms=60000"});
    spec.add_only_nodes("n0");
    const std::uint64_t job = world.submit(spec);
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::RUNNING); }));
    proto::Request cancel;
    cancel.mutable_cancel()->set_job(job);
    EXPECT_EQ(world.ask(cancel).outcome(), proto::OK);
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::CANCELLED); }, seconds(10)));
    proto::Request nodes;
    nodes.mutable_list_nodes();
    EXPECT_EQ(world.answer(nodes).nodes(0).state(), "cleaning");
    EXPECT_EQ(world.answer(nodes).nodes(0).cards_free(), 0u);
    world.node("n0").immortal = false;
    expect_ended(world, job, proto::CANCELLED);
}

TEST(Fault, AShepherdThatDiesTakesItsGangThroughRecovery) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(training(4, 2));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) >= 30; }));
    world.kill_shepherd("n1", {job, 1});
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 2; }, seconds(1)));
    EXPECT_EQ(world.view(job).attempts(0).kind(), proto::INFRASTRUCTURE);
    expect_ended(world, job, proto::COMPLETED);
}

TEST(Fault, AnAgentThatIsBackOnARebootedMachineHasLostItsGang) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(training(4, 2));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) >= 30; }));
    world.kill_node("n1");
    world.start_node("n1");  // before anybody could call it lost
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 2; }, seconds(1)));
    EXPECT_THAT(world.view(job).attempts(0).cause(), HasSubstr("n1 restarted and lost its part"));
    expect_ended(world, job, proto::COMPLETED);
}

TEST(Fault, AShortCutIsNotNoticedByTheGang) {
    World world(two_nodes());
    const std::uint64_t job = world.submit(training(4, 2));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) >= 30; }));
    world.cut("n0", seconds(2));
    expect_ended(world, job, proto::COMPLETED);
    EXPECT_EQ(world.view(job).restarts(), 0u);
}

TEST(Fault, ATimeLimitEndsTheJobAsTimedOut) {
    World world(two_nodes());
    proto::JobSpec spec = command(2, {"sleep", "ms=60000"});
    spec.set_time_limit_s(5);
    const std::uint64_t job = world.submit(spec);
    const TimePoint start = world.now();
    expect_ended(world, job, proto::TIMED_OUT);
    EXPECT_NEAR(to_seconds(world.now() - start), 7.5, 2.6);
    EXPECT_EQ(world.view(job).exit_code(), 124);
}

TEST(Fault, AJobCanBeCancelledInEveryState) {
    for (const auto state : {proto::QUEUED, proto::RESERVED, proto::PREPARING, proto::RUNNING, proto::RECOVERING}) {
        World world(two_nodes());
        const std::uint64_t blocker = state == proto::QUEUED ? world.submit(command(8, {"sleep", "ms=5000"})) : 0;
        const std::uint64_t job = world.submit(command(8, {"sleep", "ms=60000"}));
        if (state == proto::RECOVERING) {
            for (int i = 0; i < 2; ++i) {
                ASSERT_TRUE(world.run_until([&] { return world.live_ranks(job) == 8; }));
                world.kill_rank(job, 0, SIGKILL);
                ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::RECOVERING); }));
            }
        }
        ASSERT_TRUE(world.run_until([&] { return is(world, job, state); })) << proto::JobState_Name(state);
        proto::Request cancel;
        cancel.mutable_cancel()->set_job(job);
        EXPECT_EQ(world.ask(cancel).outcome(), proto::OK);
        expect_ended(world, job, proto::CANCELLED);
        if (blocker != 0) {
            EXPECT_TRUE(is(world, blocker, proto::COMPLETED));
        }
    }
}

TEST(Fault, ADrainedNodeTakesNoNewGangAndItsRunningOneGoesOn) {
    World world(two_nodes());
    proto::JobSpec spec = command(2, {"sleep", "ms=5000"});
    spec.add_only_nodes("n0");
    const std::uint64_t runs = world.submit(spec);
    proto::Request drain;
    drain.mutable_set_node()->set_node("n0");
    drain.mutable_set_node()->set_drain(true);
    EXPECT_EQ(world.ask(drain).outcome(), proto::OK);
    const std::uint64_t waits = world.submit(spec);
    ASSERT_TRUE(world.run_until([&] { return is(world, runs, proto::COMPLETED); }));
    EXPECT_TRUE(is(world, waits, proto::QUEUED));
    drain.mutable_set_node()->set_drain(false);
    EXPECT_EQ(world.ask(drain).outcome(), proto::OK);
    expect_ended(world, waits, proto::COMPLETED);
}

}  // namespace
}  // namespace gangline::simulate
