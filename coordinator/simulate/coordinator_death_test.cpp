// The coordinator dies before each of its actions in turn; whatever was durable must be enough.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "coordinator/simulate/faults.h"

namespace gangline::simulate {
namespace {

using testing::IsEmpty;

// A gang on two nodes that loses a rank on its way, and a short job beside it.
void live_through(World& world, std::uint64_t& train, std::uint64_t& quick) {
    proto::JobSpec spec = command(4, {"train", "steps=60", "every=20", "step_ms=20"});
    spec.set_nodes_min(2);
    spec.set_idempotency_key("train");
    proto::JobSpec beside = command(1, {"true"});
    beside.set_idempotency_key("quick");
    const auto until_told = [&](proto::JobSpec given) {  // as the CLI does: the same key again until it is answered
        for (int i = 0; i < 20; ++i) {
            if (const std::uint64_t job = world.submit(given)) return job;
            if (!world.coordinator_up()) world.start_coordinator();
            world.run_for(milliseconds(600));
        }
        return std::uint64_t{0};
    };
    train = until_told(spec);
    quick = until_told(beside);
    bool killed = false;
    const auto end = [&] {
        if (!world.coordinator_up()) {
            world.run_for(milliseconds(300));
            world.start_coordinator();
        }
        if (!killed && world.step_of(train) >= 30) killed = world.kill_rank(train, 1, SIGKILL);
        return world.view(train).state() >= proto::COMPLETED && world.unfinished().empty();
    };
    world.run_until(end, seconds(300));
}

WorldOptions options() {
    WorldOptions made;
    made.seed = 11;
    return made;
}

TEST(CoordinatorDeath, BeforeAnyActionLosesNoJobRunsNoneTwiceAndLeavesNoneStuck) {
    std::uint64_t train = 0;
    std::uint64_t quick = 0;
    std::uint64_t actions = 0;
    {
        World calm(options());
        const std::uint64_t before = calm.actions_done();
        live_through(calm, train, quick);
        ASSERT_EQ(calm.view(train).state(), proto::COMPLETED);
        actions = calm.actions_done() - before;
    }
    ASSERT_GT(actions, 40u);
    for (std::uint64_t at = 0; at < actions; ++at) {
        World world(options());
        world.kill_coordinator_at_action(at);
        live_through(world, train, quick);
        ASSERT_THAT(world.violations(), IsEmpty()) << "killed before action " << at;
        ASSERT_THAT(world.unfinished(), IsEmpty()) << "killed before action " << at;
        ASSERT_EQ(world.view(train).state(), proto::COMPLETED) << "killed before action " << at << ": " << world.view(train).reason();
        ASSERT_EQ(world.view(quick).state(), proto::COMPLETED) << "killed before action " << at;
        ASSERT_LE(world.view(quick).attempt(), 1u) << "a finished job ran again, killed before action " << at;
        ASSERT_EQ(world.promised().size(), 2u) << "a submit was taken twice, killed before action " << at;
    }
}

TEST(CoordinatorDeath, WhileAGangTrainsIsNotNoticedByItsRanks) {
    World world(options());
    const std::uint64_t job = world.submit(command(4, {"train", "steps=400", "every=50", "step_ms=20"}));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) >= 60; }));
    world.kill_coordinator();
    world.run_for(seconds(3));
    EXPECT_GT(world.step_of(job), 180u);
    world.start_coordinator();
    ASSERT_TRUE(world.run_until([&] { return world.coordinator_up() && world.view(job).state() == proto::COMPLETED; }));
    EXPECT_EQ(world.view(job).restarts(), 0u);
}

TEST(CoordinatorDeath, AJobThatFinishedMeanwhileIsNotRunAgain) {
    World world(options());
    const std::uint64_t job = world.submit(command(2, {"sleep", "ms=500"}));
    ASSERT_TRUE(world.run_until([&] { return world.live_ranks(job) == 2; }));
    world.kill_coordinator();
    world.run_for(seconds(5));
    EXPECT_EQ(world.live_ranks(job), 0u);
    world.start_coordinator();
    ASSERT_TRUE(world.run_until([&] { return world.view(job).state() == proto::COMPLETED; }));
    EXPECT_EQ(world.view(job).attempt(), 1u);
}

TEST(CoordinatorDeath, AnyPrefixOfTheJournalCanBeReplayed) {
    World world(options());
    std::uint64_t train = 0;
    std::uint64_t quick = 0;
    live_through(world, train, quick);
    coordinator::Brain growing{coordinator::BrainOptions{}};
    for (std::size_t length = 1; length <= world.journal().size(); ++length) {
        growing.replay(world.journal()[length - 1]);
        coordinator::Brain fresh{coordinator::BrainOptions{}};
        for (std::size_t i = 0; i < length; ++i) fresh.replay(world.journal()[i]);
        ASSERT_EQ(fresh.dump(), growing.dump());
    }
}

}  // namespace
}  // namespace gangline::simulate
