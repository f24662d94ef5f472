// What people ask and what they are told: refusals at submit, why, list, hold, report; and the cost of long queues.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/simulate/faults.h"

namespace gangline::simulate {
namespace {

using testing::Contains;
using testing::HasSubstr;

proto::Response submit(World& world, const proto::JobSpec& spec) {
    proto::Request request;
    *request.mutable_submit()->mutable_spec() = spec;
    return world.ask(std::move(request));
}

std::vector<std::string> clauses(World& world, std::uint64_t job, proto::Why* out = nullptr) {
    proto::Request request;
    request.mutable_why_job()->set_job(job);
    const proto::Response response = world.answer(request);
    if (out != nullptr) *out = response.why();
    return {response.why().clauses().begin(), response.why().clauses().end()};
}

TEST(Submit, RefusesWhatCanNeverRunWithTheClauseAndTheLargestThatFits) {
    World world({.nodes = 2, .cards = 4});
    const proto::Response too_many = submit(world, command(9, {"true"}));
    EXPECT_EQ(too_many.outcome(), proto::REFUSED);
    EXPECT_THAT(too_many.message(), HasSubstr("9 ranks of 1 card need 9 cards; 2 nodes have 8"));
    EXPECT_THAT(too_many.message(), HasSubstr("--ranks 8"));
    proto::JobSpec wide = command(1, {"true"});
    wide.set_cards_given(true);
    wide.set_cards_per_rank(5);
    EXPECT_THAT(submit(world, wide).message(), HasSubstr("the largest node (n0) has 4"));
    proto::JobSpec named = command(1, {"true"});
    named.add_only_nodes("n7");
    EXPECT_THAT(submit(world, named).message(), HasSubstr("names n7, which is unknown; known nodes: n0, n1"));
    proto::JobSpec hungry = command(1, {"true"});
    hungry.set_memory_mib_per_node(1 << 20);
    EXPECT_EQ(submit(world, hungry).outcome(), proto::REFUSED);
    EXPECT_EQ(world.promised().size(), 0u);
}

TEST(Submit, NamesWhatIsMalformed) {
    World world(WorldOptions{});
    proto::JobSpec both = command(1, {"true"});
    both.set_script("#!/bin/sh\n");
    EXPECT_EQ(submit(world, both).outcome(), proto::USAGE);
    EXPECT_THAT(submit(world, command(0, {"true"})).message(), HasSubstr("--ranks 0"));
    proto::JobSpec relative = command(1, {"true"});
    relative.set_cwd("here");
    EXPECT_THAT(submit(world, relative).message(), HasSubstr("absolute"));
    proto::JobSpec nodes = command(2, {"true"});
    nodes.set_nodes_min(3);
    EXPECT_THAT(submit(world, nodes).message(), HasSubstr("at most 2"));
}

TEST(Submit, IsTakenWhenNoNodeHasReportedYet) {
    World world({.nodes = 0});
    EXPECT_EQ(submit(world, command(64, {"true"})).outcome(), proto::OK);
}

TEST(Submit, TheSameKeyAnswersTheFirstJob) {
    World world(WorldOptions{});
    proto::JobSpec spec = command(1, {"true"});
    spec.set_idempotency_key("once");
    const std::uint64_t first = submit(world, spec).job();
    world.run_for(seconds(1));
    EXPECT_EQ(submit(world, spec).job(), first);
    spec.set_idempotency_key("twice");
    EXPECT_NE(submit(world, spec).job(), first);
}

TEST(Submit, ATestStartsNothing) {
    World world(WorldOptions{});
    proto::Request request;
    *request.mutable_submit()->mutable_spec() = command(3, {"true"});
    request.mutable_submit()->set_test_only(true);
    EXPECT_THAT(world.ask(request).message(), HasSubstr("would start now on n0"));
    EXPECT_TRUE(world.promised().empty());
}

TEST(Why, CountsWhatHoldsAJobBackAndSaysWhatWouldHelp) {
    World world({.nodes = 2, .cards = 4});
    world.submit(command(5, {"sleep", "ms=60000"}));
    const std::uint64_t job = world.submit(command(4, {"true"}));
    world.run_for(milliseconds(100));
    proto::Why why;
    EXPECT_THAT(clauses(world, job, &why), Contains("1 open node with too few free cards"));
    EXPECT_THAT(clauses(world, job), Contains("1 open node with room for a part of it"));
    EXPECT_THAT(clauses(world, job), Contains("job 1 of alice holds 5 cards on 2 nodes"));
    EXPECT_THAT(why.sentence(), HasSubstr("3 of 8 cards on 2 open nodes are free"));
    EXPECT_THAT(why.sooner(), HasSubstr("--ranks 3 would fit now"));
    EXPECT_EQ(why.position(), 1u);
}

TEST(Why, NamesDrainedAndLostNodes) {
    World world({.nodes = 3, .cards = 2});
    proto::Request drain;
    drain.mutable_set_node()->set_node("n0");
    drain.mutable_set_node()->set_drain(true);
    world.ask(drain);
    world.kill_node("n1");
    world.run_for(seconds(4));
    const std::uint64_t job = world.submit(command(4, {"true"}));
    world.run_for(milliseconds(100));
    proto::Why why;
    EXPECT_THAT(clauses(world, job, &why), Contains("1 drained (n0)"));
    EXPECT_THAT(clauses(world, job), Contains("1 lost (n1)"));
    proto::JobSpec held = command(1, {"true"});
    held.set_hold(true);
    clauses(world, world.submit(held), &why);
    EXPECT_THAT(why.sentence(), HasSubstr("held by alice"));
}

TEST(Queue, HigherPriorityThenAgeAndASmallJobPassesABlockedOne) {
    World world({.nodes = 1, .cards = 4});
    const std::uint64_t first = world.submit(command(3, {"sleep", "ms=2000"}));
    const std::uint64_t blocked = world.submit(command(4, {"sleep", "ms=100"}));
    proto::JobSpec urgent = command(2, {"sleep", "ms=100"});
    urgent.set_priority(5);
    const std::uint64_t wins = world.submit(urgent);
    const std::uint64_t passes = world.submit(command(1, {"sleep", "ms=100"}));
    ASSERT_TRUE(world.run_until([&] { return world.view(passes).state() == proto::COMPLETED; }, seconds(1)));
    EXPECT_EQ(world.view(blocked).state(), proto::QUEUED);
    EXPECT_EQ(world.view(blocked).position(), 2u);
    EXPECT_EQ(world.view(wins).position(), 1u);
    ASSERT_TRUE(world.run_until([&] { return world.view(blocked).state() == proto::COMPLETED; }));
    EXPECT_EQ(world.view(first).state(), proto::COMPLETED);
    EXPECT_LT(world.view(wins).started_unix_ms(), world.view(blocked).started_unix_ms());
}

TEST(Queue, AJobThatWasPassedOverForFiveMinutesIsPassedNoMore) {
    World world({.nodes = 1, .cards = 4, .check_replay_every = 0});
    world.submit(command(2, {"sleep", "ms=400000"}));
    const std::uint64_t big = world.submit(command(4, {"sleep", "ms=100"}));
    world.run_for(seconds(310));
    const std::uint64_t small = world.submit(command(1, {"sleep", "ms=100"}));
    world.run_for(seconds(10));
    EXPECT_EQ(world.view(small).state(), proto::QUEUED);
    EXPECT_THAT(clauses(world, small), Contains(HasSubstr("job 2 has waited too long")));
    ASSERT_TRUE(world.run_until([&] { return world.view(small).state() == proto::COMPLETED; }));
    EXPECT_EQ(world.view(big).state(), proto::COMPLETED);
}

TEST(Queue, AHeldJobWaitsUntilItIsLetGo) {
    World world(WorldOptions{});
    proto::JobSpec spec = command(1, {"true"});
    spec.set_hold(true);
    const std::uint64_t job = world.submit(spec);
    world.run_for(seconds(1));
    EXPECT_EQ(world.view(job).state(), proto::QUEUED);
    proto::Request release;
    release.mutable_set_hold()->set_job(job);
    EXPECT_EQ(world.ask(release).outcome(), proto::OK);
    EXPECT_TRUE(world.run_until([&] { return world.view(job).state() == proto::COMPLETED; }, seconds(1)));
}

TEST(Queue, AJobWaitsForTheJobsThatItDependsOn) {
    World world({.nodes = 1, .cards = 4});
    const std::uint64_t first = world.submit(command(1, {"sleep", "ms=2000"}));
    proto::JobSpec after = command(1, {"true"});
    after.set_dependency("afterok:" + std::to_string(first));
    const std::uint64_t second = world.submit(after);
    world.run_for(seconds(1));
    EXPECT_EQ(world.view(second).state(), proto::QUEUED);
    proto::Why why;
    clauses(world, second, &why);
    EXPECT_THAT(why.sentence(), HasSubstr("afterok:1 (job 1 has not ended)"));
    ASSERT_TRUE(world.run_until([&] { return world.view(second).state() == proto::COMPLETED; }, seconds(5)));
    EXPECT_GE(world.view(second).started_unix_ms(), world.view(first).ended_unix_ms());
}

TEST(Queue, ADependencyThatCanNeverBeMetSaysSoAndAnyOfSeveralIsEnough) {
    World world({.nodes = 1, .cards = 4});
    const std::uint64_t fails = world.submit(command(1, {"train", "steps=9", "step_ms=10", "fail_step=1"}));
    proto::JobSpec never = command(1, {"true"});
    never.set_dependency("afterok:" + std::to_string(fails));
    const std::uint64_t stuck = world.submit(never);
    never.set_dependency("afterok:" + std::to_string(fails) + "?afternotok:" + std::to_string(fails));
    const std::uint64_t goes = world.submit(never);
    ASSERT_TRUE(world.run_until([&] { return world.view(goes).state() == proto::COMPLETED; }));
    EXPECT_EQ(world.view(stuck).state(), proto::QUEUED);
    proto::Why why;
    clauses(world, stuck, &why);
    EXPECT_THAT(why.sentence(), HasSubstr("can never be met now"));
    never.set_dependency("afterok:99");
    EXPECT_EQ(world.submit(never), 0u);
    never.set_dependency("befor:1");
    EXPECT_EQ(world.submit(never), 0u);
}

TEST(Queue, ASingletonWaitsForItsNamesake) {
    World world({.nodes = 1, .cards = 4});
    proto::JobSpec spec = command(1, {"sleep", "ms=1000"});
    spec.set_name("same");
    spec.set_dependency("singleton");
    const std::uint64_t first = world.submit(spec);
    const std::uint64_t second = world.submit(spec);
    ASSERT_TRUE(world.run_until([&] { return world.view(second).state() == proto::COMPLETED; }));
    EXPECT_GE(world.view(second).started_unix_ms(), world.view(first).ended_unix_ms());
}

TEST(Queue, AJobDoesNotStartBeforeItsBeginTimeAndNotAfterItsDeadline) {
    World world({.nodes = 1, .cards = 4});
    const std::uint64_t runs = world.submit(command(4, {"sleep", "ms=20000"}));
    ASSERT_TRUE(world.run_until([&] { return world.view(runs).state() == proto::RUNNING; }));
    const std::int64_t now_ms = world.view(runs).started_unix_ms();
    proto::JobSpec late = command(1, {"true"});
    late.set_begin_unix_ms(now_ms + 30'000);
    const std::uint64_t begins = world.submit(late);
    proto::JobSpec urgent = command(1, {"true"});
    urgent.set_deadline_unix_ms(now_ms + 10'000);
    urgent.set_time_limit_s(1);
    const std::uint64_t misses = world.submit(urgent);
    urgent.set_time_limit_s(100);
    EXPECT_EQ(world.submit(urgent), 0u) << "it could never end in time";
    ASSERT_TRUE(world.run_until([&] { return world.view(misses).state() == proto::CANCELLED; }, seconds(15)));
    EXPECT_THAT(world.view(misses).reason(), HasSubstr("deadline"));
    ASSERT_TRUE(world.run_until([&] { return world.view(begins).state() == proto::COMPLETED; }));
    EXPECT_GE(world.view(begins).started_unix_ms(), now_ms + 30'000);
    EXPECT_LT(world.view(begins).started_unix_ms(), now_ms + 31'000);
}

TEST(Queue, ABlockedJobWithALimitIsPromisedATimeAndShortJobsFillTheHole) {
    World world({.nodes = 2, .cards = 4});
    const auto limited = [](std::uint32_t ranks, const char* ms, std::uint64_t limit_s) {
        proto::JobSpec spec = command(ranks, {"sleep", ms});
        spec.set_time_limit_s(limit_s);
        return spec;
    };
    const std::uint64_t runs = world.submit(limited(4, "ms=60000", 100));
    const std::uint64_t big = world.submit(limited(8, "ms=1000", 200));
    const std::uint64_t no_limit = world.submit(command(2, {"sleep", "ms=1000"}));
    const std::uint64_t brief = world.submit(limited(2, "ms=1000", 60));
    ASSERT_TRUE(world.run_until([&] { return world.view(brief).state() == proto::COMPLETED; }, seconds(5)));
    EXPECT_EQ(world.view(no_limit).state(), proto::QUEUED);
    EXPECT_GT(world.view(big).promised_unix_ms(), world.view(runs).started_unix_ms() + 90'000);
    EXPECT_THAT(clauses(world, no_limit), Contains(HasSubstr("there is room, but it would delay job 2")));
    EXPECT_THAT(clauses(world, big), Contains(HasSubstr("places are promised to it from")));
    ASSERT_TRUE(world.run_until([&] { return world.view(big).state() == proto::COMPLETED; }));
    EXPECT_LT(world.view(big).started_unix_ms(), world.view(runs).ended_unix_ms() + 1000) << "at once when the other ends early";
}

TEST(Queue, ALimitThatWasCutToFitAHoleHoldsForTheRecoveryToo) {
    World world({.nodes = 2, .cards = 4});
    const auto limited = [](std::uint32_t ranks, std::uint64_t limit_s) {
        proto::JobSpec spec = command(ranks, {"sleep", "ms=60000"});
        spec.set_time_limit_s(limit_s);
        return spec;
    };
    world.submit(limited(4, 100));
    world.submit(limited(8, 200));
    proto::JobSpec flexible = limited(2, 5000);
    flexible.set_time_min_s(70);
    const std::uint64_t job = world.submit(flexible);
    ASSERT_TRUE(world.run_until([&] { return world.view(job).state() == proto::RUNNING; }, seconds(5)));
    const std::uint64_t granted = world.view(job).time_limit_s();
    EXPECT_GE(granted, 70u);
    EXPECT_LE(granted, 100u);
    world.kill_rank(job, 0, 9);
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 2; }, seconds(5)));
    EXPECT_EQ(world.view(job).time_limit_s(), granted);
}

TEST(Queue, ATeamHoldsNoMoreThanItMay) {
    WorldOptions options{.nodes = 2, .cards = 4};
    options.brain.fleet.teams["vision"] = {.name = "vision", .parent = {}, .users = {"alice"}, .quota_cards = 2, .most_cards = 4};
    World world(options);
    const std::uint64_t first = world.submit(command(3, {"sleep", "ms=3000"}));
    const std::uint64_t second = world.submit(command(3, {"sleep", "ms=100"}));
    const std::uint64_t other = world.submit_as("bob", command(4, {"sleep", "ms=100"}));
    ASSERT_TRUE(world.run_until([&] { return world.view(other).state() == proto::COMPLETED; }, seconds(2)));
    EXPECT_EQ(world.view(second).state(), proto::QUEUED);
    proto::Why why;
    clauses(world, second, &why);
    EXPECT_THAT(why.sentence(), HasSubstr("its team vision holds as many cards as it may"));
    ASSERT_TRUE(world.run_until([&] { return world.view(second).state() == proto::COMPLETED; }));
    EXPECT_GE(world.view(second).started_unix_ms(), world.view(first).ended_unix_ms());
}

TEST(Queue, AMoreUsedShareGoesBehindALessUsedOne) {
    World world({.nodes = 1, .cards = 4});
    const std::uint64_t first = world.submit(command(4, {"sleep", "ms=5000"}));
    const std::uint64_t again = world.submit(command(4, {"sleep", "ms=100"}));
    const std::uint64_t other = world.submit_as("bob", command(4, {"sleep", "ms=100"}));
    ASSERT_TRUE(world.run_until([&] { return world.view(again).state() == proto::COMPLETED; }));
    EXPECT_EQ(world.view(first).state(), proto::COMPLETED);
    EXPECT_LT(world.view(other).started_unix_ms(), world.view(again).started_unix_ms());
}

TEST(Queue, WithoutRequeueAMachinesFailureEndsTheJob) {
    World world(WorldOptions{});
    proto::JobSpec spec = command(1, {"sleep", "ms=60000"});
    spec.set_no_requeue(true);
    const std::uint64_t job = world.submit(spec);
    ASSERT_TRUE(world.run_until([&] { return world.view(job).state() == proto::RUNNING; }));
    world.kill_rank(job, 0, 9);
    ASSERT_TRUE(world.run_until([&] { return world.view(job).state() == proto::FAILED; }, seconds(5)));
    EXPECT_THAT(world.view(job).reason(), HasSubstr("--no-requeue"));
}

WorldOptions with_preemption(std::uint32_t nodes) {
    WorldOptions options;
    options.nodes = nodes;
    options.brain.guaranteed_run = seconds(5);
    options.brain.preemption_grace = seconds(2);
    return options;
}

proto::JobSpec of_priority(std::int32_t priority, proto::JobSpec spec) {
    spec.set_priority(priority);
    return spec;
}

TEST(Preemption, TakesTheCheapestWholeGangsAfterTheirGuaranteedTimeAndTheJobThenStarts) {
    World world(with_preemption(3));
    const std::uint64_t old = world.submit(command(4, {"train", "steps=4000", "every=20", "step_ms=20"}));
    const std::uint64_t bare = world.submit(command(4, {"sleep", "ms=80000"}));
    const std::uint64_t other = world.submit(command(4, {"train", "steps=4000", "every=20", "step_ms=20"}));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(other) > 100; }));
    const std::uint64_t urgent = world.submit(of_priority(10, command(8, {"sleep", "ms=1000"})));
    world.run_for(seconds(1));
    EXPECT_EQ(world.view(urgent).state(), proto::QUEUED) << "each gang runs for its guaranteed time first";
    ASSERT_TRUE(world.run_until([&] { return world.view(urgent).state() == proto::RUNNING; }, seconds(20)));
    EXPECT_EQ(world.view(bare).restarts(), 0u) << "it has no checkpoint: it would cost most";
    EXPECT_EQ(world.view(bare).state(), proto::RUNNING);
    EXPECT_EQ(world.view(old).state(), proto::QUEUED);
    EXPECT_THAT(world.view(old).reason(), HasSubstr("preempted by job 4 of priority 10"));
    EXPECT_EQ(world.view(old).attempts(0).kind(), proto::PREEMPTION);
    ASSERT_TRUE(world.run_until([&] { return world.unfinished().empty(); }, seconds(600)));
    EXPECT_EQ(world.view(old).state(), proto::COMPLETED);
    EXPECT_GT(world.view(old).attempts(1).restored().step(), 0u);
    EXPECT_THAT(world.violations(), testing::IsEmpty());
}

TEST(Preemption, NobodyIsEvictedInVain) {
    World world(with_preemption(2));
    const std::uint64_t low = world.submit(command(4, {"sleep", "ms=60000"}));
    const std::uint64_t high = world.submit(of_priority(20, command(4, {"sleep", "ms=60000"})));
    ASSERT_TRUE(world.run_until([&] { return world.view(high).state() == proto::RUNNING; }));
    const std::uint64_t urgent = world.submit(of_priority(10, command(8, {"sleep", "ms=100"})));
    world.run_for(seconds(30));
    EXPECT_EQ(world.view(low).state(), proto::RUNNING) << "with it gone the job would still not fit";
    EXPECT_EQ(world.view(urgent).state(), proto::QUEUED);
}

TEST(Preemption, FreedPlacesAreKeptForTheJobAndItEvictsOnce) {
    World world(with_preemption(2));
    const std::uint64_t first = world.submit(command(4, {"sleep", "ms=90000"}));
    const std::uint64_t second = world.submit(command(4, {"sleep", "ms=90000"}));
    ASSERT_TRUE(world.run_until([&] { return world.view(second).state() == proto::RUNNING; }));
    world.run_for(seconds(6));
    const std::uint64_t urgent = world.submit(of_priority(10, command(8, {"sleep", "ms=100"})));
    const std::uint64_t thief = world.submit(of_priority(5, command(1, {"sleep", "ms=5000"})));
    ASSERT_TRUE(world.run_until([&] { return world.view(urgent).state() == proto::COMPLETED; }, seconds(20)));
    EXPECT_GE(world.view(thief).started_unix_ms(), world.view(urgent).started_unix_ms());
    std::size_t planned = 0;
    for (const proto::Record& record : world.journal()) planned += record.has_preemption_planned() ? 1u : 0u;
    EXPECT_EQ(planned, 1u);
    ASSERT_TRUE(world.run_until([&] { return world.unfinished().empty(); }, seconds(600)));
    EXPECT_EQ(world.view(first).state(), proto::COMPLETED);
    EXPECT_THAT(world.violations(), testing::IsEmpty());
}

TEST(Preemption, ATeamTakesBackItsQuotaFromWhoBorrowedItAndNoMore) {
    WorldOptions options = with_preemption(3);
    options.brain.fleet.teams["vision"] = {.name = "vision", .parent = {}, .users = {"alice"}, .quota_cards = 4, .most_cards = std::nullopt};
    options.brain.fleet.teams["speech"] = {.name = "speech", .parent = {}, .users = {"bob"}, .quota_cards = 8, .most_cards = std::nullopt};
    World world(options);
    std::vector<std::uint64_t> borrowed;
    for (int i = 0; i < 3; ++i) borrowed.push_back(world.submit(command(4, {"sleep", "ms=200000"})));
    ASSERT_TRUE(world.run_until([&] { return world.view(borrowed[2]).state() == proto::RUNNING; }));
    world.run_for(seconds(6));
    const std::uint64_t ours = world.submit_as("bob", command(4, {"sleep", "ms=60000"}));
    const std::uint64_t more = world.submit_as("bob", command(4, {"sleep", "ms=60000"}));
    const std::uint64_t beyond = world.submit_as("bob", command(4, {"sleep", "ms=60000"}));
    ASSERT_TRUE(world.run_until([&] { return world.view(more).state() == proto::RUNNING; }, seconds(20)));
    world.run_for(seconds(20));
    EXPECT_EQ(world.view(ours).state(), proto::RUNNING);
    EXPECT_EQ(world.view(beyond).state(), proto::QUEUED) << "that would be beyond its own quota";
    std::size_t left = 0;
    for (const std::uint64_t job : borrowed) left += world.view(job).state() == proto::RUNNING ? 1u : 0u;
    EXPECT_EQ(left, 1u) << "the quota of the other team stays its own";
}

TEST(Preemption, IsNoFailureAndCanBeSwitchedOff) {
    WorldOptions options = with_preemption(1);
    options.brain.preemption = false;
    World world(options);
    const std::uint64_t low = world.submit(command(4, {"sleep", "ms=20000"}));
    ASSERT_TRUE(world.run_until([&] { return world.view(low).state() == proto::RUNNING; }));
    world.run_for(seconds(6));
    world.submit(of_priority(10, command(4, {"true"})));
    world.run_for(seconds(5));
    EXPECT_EQ(world.view(low).state(), proto::RUNNING);
    EXPECT_EQ(world.view(low).restarts(), 0u);
}

TEST(Queue, TenThousandQueuedJobsAreReplayedAndListed) {
    coordinator::Brain brain{coordinator::BrainOptions{}};
    for (std::uint64_t id = 1; id <= 10'000; ++id) {
        proto::Record record;
        record.mutable_job_submitted()->set_job(id);
        record.mutable_job_submitted()->set_user("alice");
        *record.mutable_job_submitted()->mutable_spec() = command(4, {"true"});
        brain.replay(record);
    }
    proto::Request request;
    request.mutable_list_jobs()->set_all_users(true);
    const proto::Response all = brain.answer({}, request, {});
    ASSERT_EQ(all.jobs_size(), 10'000);
    EXPECT_EQ(all.jobs(9'999).position(), 10'000u);
    request.mutable_list_jobs()->set_limit(5);
    EXPECT_EQ(brain.answer({}, request, {}).jobs_size(), 5);
}

}  // namespace
}  // namespace gangline::simulate
