// Mistakes that other schedulers' change logs tell of, each as a story here. Not here because told elsewhere: one pass that goes over an
// aggregate limit (plan_test), a damaged log that is taken silently (store_test), a job's folder that cannot be entered blamed on its node
// (tests/e2e/test_user_errors.py), a plan that is too slow (./bench scheduler).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "coordinator/simulate/faults.h"

namespace gangline::simulate {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

bool is(const World& world, std::uint64_t job, proto::JobState state) { return world.view(job).state() == state; }

std::uint32_t free_cards(const World& world) {
    proto::Request request;
    request.mutable_list_nodes();
    std::uint32_t free = 0;
    const proto::Response response = world.answer(request);
    for (const proto::NodeView& node : response.nodes()) free += node.cards_free();
    return free;
}

void cancel(World& world, std::uint64_t job) {
    proto::Request request;
    request.mutable_cancel()->set_job(job);
    world.ask(std::move(request));
}

TEST(KnownBugs, NewsOfAnOldAttemptIsNotTakenForTheNewOnes) {
    World world({.nodes = 3, .cards = 2});
    proto::JobSpec spec = command(4, {"train", "steps=3000", "every=100", "step_ms=10"});
    const std::uint64_t job = world.submit(spec);
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) > 100; }));
    const std::string node = world.view(job).gang(0).node();
    world.kill_agent(node);
    world.cut(node, seconds(20));
    ASSERT_TRUE(world.kill_rank(job, 0, SIGKILL));  // what it says of it arrives when attempt 2 runs
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 2 && is(world, job, proto::RUNNING); }));
    world.start_agent(node);
    world.run_for(seconds(5));
    EXPECT_EQ(world.view(job).attempt(), 2u);
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::COMPLETED); }));
    EXPECT_EQ(world.view(job).attempt(), 2u);
    EXPECT_THAT(world.violations(), IsEmpty());
}

TEST(KnownBugs, AGangRunsOnlyWhenEveryNodeHasConfirmedIt) {
    World world({.nodes = 2, .cards = 2});
    world.node("n1").mute_prepare = true;
    const std::uint64_t job = world.submit(command(4, {"sleep", "ms=1000"}));
    for (int i = 0; i < 50; ++i) {
        world.run_for(milliseconds(100));
        EXPECT_EQ(world.live_ranks(job), 0u);
        EXPECT_TRUE(is(world, job, proto::RESERVED));
    }
    world.node("n1").mute_prepare = false;
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::COMPLETED); }));
}

TEST(KnownBugs, ALaunchThatFailsHalfWayKeepsNoCard) {
    WorldOptions options{.nodes = 2, .cards = 2};
    options.brain.prepare_timeout = seconds(2);
    World world(options);
    world.node("n1").mute_prepare = true;
    const std::uint64_t job = world.submit(command(4, {"sleep", "ms=1000"}));
    world.run_for(seconds(5));
    cancel(world, job);
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::CANCELLED); }));
    world.node("n1").mute_prepare = false;
    ASSERT_TRUE(world.run_until([&] { return free_cards(world) == 4; }));
    const std::uint64_t next = world.submit(command(4, {"true"}));
    ASSERT_TRUE(world.run_until([&] { return is(world, next, proto::COMPLETED); }));
}

TEST(KnownBugs, AKillThatTakesLongGivesTheCardsBackInTheEnd) {
    WorldOptions options{.nodes = 1, .cards = 2};
    options.brain.stop_timeout = seconds(2);
    World world(options);
    const std::uint64_t job = world.submit(command(2, {"sleep", "ms=600000"}));
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::RUNNING); }));
    world.node("n0").immortal = true;
    cancel(world, job);
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::CANCELLED); }));
    EXPECT_EQ(free_cards(world), 0u) << "not proved empty";
    const std::uint64_t next = world.submit(command(2, {"true"}));
    world.run_for(seconds(10));
    EXPECT_TRUE(is(world, next, proto::QUEUED));
    world.node("n0").immortal = false;
    ASSERT_TRUE(world.run_until([&] { return is(world, next, proto::COMPLETED); }));
    EXPECT_EQ(free_cards(world), 2u);
}

// Runs a gang of priority 0 and lets one of priority 1 take its place.
std::uint64_t preempted(World& world, bool no_requeue) {
    proto::JobSpec low = command(2, {"train", "steps=2000", "every=50", "step_ms=10"});
    low.set_no_requeue(no_requeue);
    const std::uint64_t job = world.submit(low);
    world.run_until([&] { return world.step_of(job) > 200; });
    proto::JobSpec high = command(2, {"sleep", "ms=5000"});
    high.set_priority(1);
    world.submit(high);
    world.run_until([&] { return is(world, job, proto::QUEUED); });
    return job;
}

TEST(KnownBugs, APreemptionIsNoFailure) {
    WorldOptions options{.nodes = 1, .cards = 2};
    options.brain.guaranteed_run = seconds(0);
    World world(options);
    const std::uint64_t job = preempted(world, true);
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::COMPLETED); })) << world.view(job).reason();
    EXPECT_EQ(world.view(job).attempts(0).kind(), proto::PREEMPTION);
    EXPECT_EQ(world.view(job).attempt(), 2u);
}

TEST(KnownBugs, AJobThatWentBackToTheQueueGivesItsCardsBackOnce) {
    WorldOptions options{.nodes = 1, .cards = 2};
    options.brain.guaranteed_run = seconds(0);
    World world(options);
    const std::uint64_t job = preempted(world, false);
    cancel(world, job);
    EXPECT_TRUE(is(world, job, proto::CANCELLED));
    ASSERT_TRUE(world.run_until([&] { return free_cards(world) == 2; }));
    EXPECT_THAT(world.violations(), IsEmpty());
}

TEST(KnownBugs, TheEndOfTheTimeLimitIsNoFailure) {
    World world({.nodes = 1, .cards = 1});
    proto::JobSpec spec = command(1, {"sleep", "ms=600000"});
    spec.set_time_limit_s(5);
    const std::uint64_t job = world.submit(spec);
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::TIMED_OUT); }));
    EXPECT_EQ(world.view(job).attempts(0).kind(), proto::NO_FAULT);
    EXPECT_THAT(world.view(job).reason(), HasSubstr("time limit"));
}

TEST(KnownBugs, AFreedCardIsTakenAtOnceNotAtTheNextRound) {
    World world({.nodes = 1, .cards = 1});
    const std::uint64_t first = world.submit(command(1, {"sleep", "ms=3000"}));
    const std::uint64_t second = world.submit(command(1, {"true"}));
    ASSERT_TRUE(world.run_until([&] { return is(world, first, proto::COMPLETED); }));
    ASSERT_TRUE(world.run_until([&] { return !is(world, second, proto::QUEUED); }, milliseconds(20)));
}

TEST(KnownBugs, EndedJobsAreForgottenAndStayForgottenAfterAReplay) {
    coordinator::Brain brain{coordinator::BrainOptions{}};
    coordinator::Brain again{coordinator::BrainOptions{}};
    for (std::uint64_t job = 1; job <= 10'100; ++job) {
        proto::Record record;
        record.set_unix_ms(static_cast<std::int64_t>(job));
        record.mutable_job_submitted()->set_job(job);
        record.mutable_job_submitted()->set_user("alice");
        record.mutable_job_submitted()->mutable_spec()->set_ranks(1);
        brain.replay(record);
        again.replay(record);
        record.mutable_job_ended()->set_job(job);
        record.mutable_job_ended()->set_outcome(proto::CANCELLED);
        brain.replay(record);
        again.replay(record);
    }
    EXPECT_FALSE(brain.owner(100)) << "the newest ten thousand are kept";
    EXPECT_TRUE(brain.owner(101));
    EXPECT_EQ(brain.dump(), again.dump());
}

}  // namespace
}  // namespace gangline::simulate
