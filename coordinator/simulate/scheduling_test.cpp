// Elastic gangs, spares, arrays, reservations, constraints, moves, unreliable nodes, and the ledger that adds up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <csignal>

#include "coordinator/simulate/faults.h"

namespace gangline::simulate {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

proto::JobSpec elastic(std::uint32_t least, std::uint32_t most, std::uint32_t on_each, std::vector<std::string> argv) {
    proto::JobSpec spec = command(most * on_each, std::move(argv));
    spec.set_elastic(true);
    spec.set_nodes_min(least);
    spec.set_nodes_max(most);
    spec.set_ranks_per_node(on_each);
    return spec;
}

std::vector<std::string> nodes_of(const World& world, std::uint64_t job) {
    std::vector<std::string> names;
    const proto::JobView view = world.view(job);
    for (const auto& place : view.gang()) names.push_back(place.node());
    return names;
}

bool is(const World& world, std::uint64_t job, proto::JobState state) { return world.view(job).state() == state; }

proto::Response reserve(World& world, const std::string& name, std::vector<std::string> nodes, Duration from, Duration length, const std::string& user = "") {
    proto::Request request;
    proto::Reservation& one = *request.mutable_set_reservation()->mutable_reservation();
    one.set_name(name);
    for (const std::string& node : nodes) one.add_nodes(node);
    one.set_start_unix_ms(world.unix_ms() + to_ms(from));
    one.set_end_unix_ms(world.unix_ms() + to_ms(from + length));
    one.set_maintenance(user.empty());
    if (!user.empty()) one.add_users(user);
    return world.ask(std::move(request), "operator");
}

TEST(ElasticGang, StartsOnAsManyNodesAsAreFree) {
    World world({.nodes = 4, .cards = 2});
    const std::uint64_t other = world.submit(command(2, {"sleep", "ms=600000"}));
    const std::uint64_t job = world.submit(elastic(2, 4, 2, {"true"}));
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::COMPLETED); }));
    EXPECT_FALSE(is(world, other, proto::QUEUED));
    EXPECT_EQ(world.view(job).ranks(), 6u);
    EXPECT_THAT(world.view(job).reason(), HasSubstr("all 6 ranks exited 0"));
}

TEST(ElasticGang, ShrinksWhenANodeIsLostAndGrowsWhenItComesBack) {
    WorldOptions options{.nodes = 3, .cards = 2};
    options.brain.guaranteed_run = seconds(0);
    World world(options);
    const std::uint64_t job = world.submit(elastic(1, 3, 2, {"train", "steps=200000", "every=100", "step_ms=10"}));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) > 500; }));
    EXPECT_EQ(nodes_of(world, job).size(), 3u);
    world.kill_node("n1");
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 2 && is(world, job, proto::RUNNING); }));
    EXPECT_THAT(nodes_of(world, job), UnorderedElementsAre("n0", "n2"));
    EXPECT_THAT(world.view(job).reason(), HasSubstr("shrunk from 3 to 2 nodes"));
    EXPECT_GE(world.view(job).attempts(1).restored().step(), 400u);
    world.start_node("n1");
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 3 && is(world, job, proto::RUNNING); }, seconds(1200)));
    EXPECT_EQ(nodes_of(world, job).size(), 3u);
    const proto::AttemptView before = world.view(job).attempts(1);
    EXPECT_EQ(before.kind(), proto::RESIZE);
    EXPECT_THAT(before.cause(), HasSubstr("grows from 2 to 3 nodes"));
    EXPECT_THAT(world.violations(), testing::IsEmpty());
}

TEST(ElasticGang, GrowsOnlyWhenItHasSavedAndNobodyWaits) {
    WorldOptions options{.nodes = 2, .cards = 2};
    options.brain.guaranteed_run = seconds(0);
    World world(options);
    const std::uint64_t first = world.submit(command(2, {"sleep", "ms=20000"}));
    const std::uint64_t never_saves = world.submit(elastic(1, 2, 2, {"train", "steps=100000", "every=1000000", "step_ms=10"}));
    ASSERT_TRUE(world.run_until([&] { return is(world, first, proto::COMPLETED) && is(world, never_saves, proto::RUNNING); }));
    world.run_for(seconds(120));
    EXPECT_EQ(world.view(never_saves).attempt(), 1u);
}

TEST(Spares, AFailedNodesPlaceIsTakenByTheJobsOwnAndItIsFilledUpAgain) {
    World world({.nodes = 4, .cards = 2});
    proto::JobSpec spec = command(4, {"train", "steps=100000", "every=50", "step_ms=10"});
    spec.set_nodes_min(2);
    spec.set_nodes_max(2);
    spec.set_spares(1);
    const std::uint64_t job = world.submit(spec);
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) > 100; }));
    ASSERT_EQ(world.view(job).spares_size(), 1);
    const std::string spare = world.view(job).spares(0);
    // Nobody else gets it: of two nodes that are left, one is the spare.
    const std::uint64_t other = world.submit(command(2, {"sleep", "ms=600000"}));
    const std::uint64_t too_many = world.submit(command(2, {"true"}));
    ASSERT_TRUE(world.run_until([&] { return is(world, other, proto::RUNNING); }));
    world.run_for(seconds(3));
    EXPECT_TRUE(is(world, too_many, proto::QUEUED));
    const std::string dead = nodes_of(world, job).front();
    world.kill_node(dead);
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 2 && is(world, job, proto::RUNNING); }));
    EXPECT_THAT(nodes_of(world, job), Contains(spare));
    EXPECT_EQ(world.view(job).spares_size(), 0);
    world.start_node(dead);
    ASSERT_TRUE(world.run_until([&] { return is(world, too_many, proto::COMPLETED); })) << "the queue goes before a spare";
    ASSERT_TRUE(world.run_until([&] { return world.view(job).spares_size() == 1; }));
    EXPECT_THAT(world.violations(), testing::IsEmpty());
}

TEST(Spares, TheClustersAreLeftAloneByTheQueueAndTakenByRecovery) {
    WorldOptions options{.nodes = 3, .cards = 2};
    options.brain.spares = {coordinator::SparePolicy::How::Number, 1};
    World world(options);
    EXPECT_THAT(world.submit(command(6, {"true"})), 0u) << "more than the cluster without its spares";
    const std::uint64_t job = world.submit(command(4, {"train", "steps=100000", "every=50", "step_ms=10"}));
    const std::uint64_t waits = world.submit(command(1, {"true"}));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) > 100; }));
    EXPECT_TRUE(is(world, waits, proto::QUEUED));
    proto::Request why;
    why.mutable_why_job()->set_job(waits);
    const proto::Response answer = world.answer(why);
    EXPECT_THAT(std::vector<std::string>(answer.why().clauses().begin(), answer.why().clauses().end()), Contains(HasSubstr("1 kept as spares")));
    world.kill_node(nodes_of(world, job).front());
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 2 && is(world, job, proto::RUNNING); }));
    EXPECT_EQ(world.view(job).gang_size(), 2);
}

TEST(Spares, MakeRoomForAHigherPriorityBeforeAnyGangDoes) {
    WorldOptions options{.nodes = 3, .cards = 2};
    options.brain.guaranteed_run = seconds(0);
    World world(options);
    proto::JobSpec low = command(2, {"train", "steps=100000", "every=50", "step_ms=10"});
    low.set_spares(2);
    const std::uint64_t holder = world.submit(low);
    ASSERT_TRUE(world.run_until([&] { return world.view(holder).spares_size() == 2; }));
    proto::JobSpec high = command(4, {"sleep", "ms=5000"});
    high.set_priority(1);
    const std::uint64_t job = world.submit(high);
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::COMPLETED); }));
    EXPECT_EQ(world.view(holder).attempt(), 1u) << "its gang was left alone";
    ASSERT_TRUE(world.run_until([&] { return world.view(holder).spares_size() == 2; })) << "and it has its spares again";
}

TEST(Spares, AnUnfitOneIsReplacedThoughNobodyElseIsThere) {
    World world({.nodes = 3, .cards = 2});
    proto::JobSpec spec = command(2, {"sleep", "ms=600000"});
    spec.set_spares(1);
    const std::uint64_t job = world.submit(spec);
    ASSERT_TRUE(world.run_until([&] { return world.view(job).spares_size() == 1; }));
    const std::string first = world.view(job).spares(0);
    world.kill_node(first);
    ASSERT_TRUE(world.run_until([&] { return world.view(job).spares_size() == 1 && world.view(job).spares(0) != first; }));
    EXPECT_EQ(world.view(job).attempt(), 1u);
}

TEST(Spares, ATakenOneNeverUndoesAPreemption) {
    WorldOptions options{.nodes = 3, .cards = 2};
    options.brain.guaranteed_run = seconds(0);
    World world(options);
    proto::Request drain;
    drain.mutable_set_node()->set_node("n2");
    drain.mutable_set_node()->set_drain(true);
    world.ask(drain);
    proto::JobSpec victim = command(2, {"train", "steps=100000", "every=50", "step_ms=10"});
    victim.add_only_nodes("n0");
    const std::uint64_t low = world.submit(victim);
    ASSERT_TRUE(world.run_until([&] { return world.step_of(low) > 100; }));
    proto::JobSpec keeper = command(2, {"sleep", "ms=600000"});
    keeper.set_priority(10);
    keeper.set_spares(1);
    keeper.add_only_nodes("n1");
    keeper.add_only_nodes("n2");
    world.submit(keeper);
    proto::JobSpec high = command(4, {"sleep", "ms=3000"});
    high.set_priority(10);
    high.add_only_nodes("n0");
    high.add_only_nodes("n2");
    const std::uint64_t job = world.submit(high);
    world.run_for(seconds(3));
    drain.mutable_set_node()->set_drain(false);
    world.ask(drain);
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::COMPLETED); })) << world.view(job).reason();
    ASSERT_TRUE(world.run_until([&] { return is(world, low, proto::RUNNING); }));
}

TEST(Reservation, InTheFutureDoesNotStopAGangThatRunsFromRecovering) {
    World world({.nodes = 3, .cards = 2});
    const std::uint64_t job = world.submit(command(4, {"train", "steps=100000", "every=50", "step_ms=10"}));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) > 100; }));
    reserve(world, "later", {"n0", "n1", "n2"}, seconds(7200), seconds(600));
    world.kill_node(nodes_of(world, job).front());
    ASSERT_TRUE(world.run_until([&] { return world.view(job).attempt() == 2 && is(world, job, proto::RUNNING); }));
}

proto::JobSpec array_of(std::vector<std::uint32_t> tasks, std::uint32_t most_at_once, std::vector<std::string> argv) {
    proto::JobSpec spec = command(1, std::move(argv));
    for (const std::uint32_t task : tasks) spec.add_array_tasks(task);
    spec.mutable_array()->set_most_at_once(most_at_once);
    return spec;
}

TEST(Array, IsAsManyJobsAndNoMoreRunTogetherThanItsCap) {
    World world({.nodes = 2, .cards = 4});
    const std::uint64_t array = world.submit(array_of({0, 3, 6, 9, 12}, 2, {"sleep", "ms=5000"}));
    world.run_for(seconds(2));
    int running = 0;
    for (std::uint64_t job = array; job < array + 5; ++job) running += is(world, job, proto::QUEUED) ? 0 : 1;
    EXPECT_EQ(running, 2);
    EXPECT_EQ(world.view(array + 2).array().task(), 6u);
    EXPECT_EQ(world.view(array + 2).array().count(), 5u);
    proto::Request why;
    why.mutable_why_job()->set_job(array + 4);
    const proto::Response answer = world.answer(why);
    EXPECT_THAT(std::vector<std::string>(answer.why().clauses().begin(), answer.why().clauses().end()), testing::IsEmpty());
    EXPECT_THAT(answer.why().sentence(), HasSubstr("2 of its array run already"));
    ASSERT_TRUE(world.run_until([&] { return is(world, array + 4, proto::COMPLETED); }));
}

TEST(Array, ItsIdMeansAllOfItAndATaskOne) {
    World world({.nodes = 1, .cards = 2});
    const std::uint64_t array = world.submit(array_of({1, 2, 3, 4}, 0, {"sleep", "ms=600000"}));
    ASSERT_TRUE(world.run_until([&] { return is(world, array, proto::RUNNING); }));
    proto::Request one;
    one.mutable_cancel()->set_job(array + 2);
    one.set_has_task(true);
    one.set_task(3);
    world.ask(one);
    EXPECT_TRUE(is(world, array + 2, proto::CANCELLED));
    EXPECT_TRUE(is(world, array + 3, proto::QUEUED));
    proto::Request hold;
    hold.mutable_set_hold()->set_job(array);
    hold.mutable_set_hold()->set_hold(true);
    EXPECT_THAT(world.ask(hold).message(), HasSubstr("1 queued jobs held"));
    proto::Request all;
    all.mutable_cancel()->set_job(array);
    EXPECT_THAT(world.ask(all).message(), HasSubstr("3 of its 4 jobs cancelled"));
    ASSERT_TRUE(world.run_until([&] { return is(world, array, proto::CANCELLED) && is(world, array + 3, proto::CANCELLED); }));
}

TEST(Array, AftercorrPairsElementsAndAfterokWaitsForAll) {
    World world({.nodes = 1, .cards = 4});
    const std::uint64_t first = world.submit(array_of({0, 1}, 1, {"sleep", "ms=4000"}));
    proto::JobSpec paired = array_of({0, 1}, 0, {"true"});
    paired.set_dependency("aftercorr:" + std::to_string(first));
    const std::uint64_t second = world.submit(paired);
    proto::JobSpec last = command(1, {"true"});
    last.set_dependency("afterok:" + std::to_string(first));
    const std::uint64_t third = world.submit(last);
    ASSERT_TRUE(world.run_until([&] { return is(world, second, proto::COMPLETED); }));
    EXPECT_TRUE(is(world, second + 1, proto::QUEUED)) << "its partner runs still";
    EXPECT_TRUE(is(world, third, proto::QUEUED));
    ASSERT_TRUE(world.run_until([&] { return is(world, third, proto::COMPLETED) && is(world, second + 1, proto::COMPLETED); }));
}

TEST(Array, OfTenThousandWithATwinThatDependsOnItIsPlannedInAMoment) {
    World world({.nodes = 1, .cards = 4, .check_replay_every = 0});
    std::vector<std::uint32_t> tasks(10'000);
    for (std::uint32_t i = 0; i < tasks.size(); ++i) tasks[i] = i;
    const std::uint64_t first = world.submit(array_of(tasks, 4, {"sleep", "ms=2000"}));
    for (const char* kind : {"aftercorr:", "afterok:"}) {
        proto::JobSpec twin = array_of(tasks, 0, {"true"});
        twin.set_dependency(kind + std::to_string(first));
        ASSERT_NE(world.submit(twin), 0u);
    }
    proto::JobSpec alone = array_of(tasks, 0, {"true"});
    alone.set_dependency("singleton");
    ASSERT_NE(world.submit(alone), 0u);
    const auto begun = std::chrono::steady_clock::now();
    proto::Request list;
    list.mutable_list_jobs()->set_all_users(true);
    EXPECT_GT(world.answer(list).jobs_size(), 39'000);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20)) << "quadratic: it was minutes";
}

TEST(Array, WhatDependsOnAJobKeepsItFromBeingForgotten) {
    World world({.nodes = 1, .cards = 4, .check_replay_every = 0});
    proto::JobSpec held = array_of({0, 1, 2}, 0, {"true"});
    held.set_hold(true);
    const std::uint64_t first = world.submit(held);
    proto::JobSpec after = command(1, {"true"});
    after.set_dependency("afterok:" + std::to_string(first));
    const std::uint64_t waits = world.submit(after);
    after.set_dependency("afterok:" + std::to_string(first) + "_0");
    const std::uint64_t waits_too = world.submit(after);
    const auto cancel = [&](std::uint64_t job, bool one) {
        proto::Request request;
        request.mutable_cancel()->set_job(job);
        request.set_has_task(one);
        world.ask(request);
    };
    cancel(first, true);
    std::vector<std::uint32_t> tasks(10'000);
    for (std::uint32_t i = 0; i < tasks.size(); ++i) tasks[i] = i;
    for (int i = 0; i < 2; ++i) {
        proto::JobSpec many = array_of(tasks, 0, {"true"});
        many.set_hold(true);
        cancel(world.submit(many), false);
    }
    world.run_for(seconds(15));
    EXPECT_TRUE(is(world, waits, proto::QUEUED));
    EXPECT_TRUE(is(world, waits_too, proto::QUEUED));
    EXPECT_TRUE(is(world, first, proto::CANCELLED)) << "an element is kept while others of its array go on";
    cancel(first, false);
    EXPECT_TRUE(is(world, first + 2, proto::CANCELLED));
}

TEST(Reservation, KeepsItsNodesForItsUsersAndForWhoEndsBefore) {
    World world({.nodes = 2, .cards = 2});
    EXPECT_EQ(reserve(world, "exam", {"n0", "n1"}, seconds(600), seconds(600), "bob").outcome(), proto::OK);
    proto::JobSpec endless = command(2, {"true"});
    const std::uint64_t waits = world.submit(endless);
    proto::JobSpec brief = command(2, {"true"});
    brief.set_time_limit_s(300);
    const std::uint64_t runs = world.submit(brief);
    ASSERT_TRUE(world.run_until([&] { return is(world, runs, proto::COMPLETED); }));
    EXPECT_TRUE(is(world, waits, proto::QUEUED));
    proto::Request why;
    why.mutable_why_job()->set_job(waits);
    const proto::Response answer = world.answer(why);
    EXPECT_THAT(std::vector<std::string>(answer.why().clauses().begin(), answer.why().clauses().end()), Contains(HasSubstr("2 open nodes reserved for others before it would end")));
    EXPECT_THAT(answer.why().sooner(), HasSubstr("--time 9 would start now"));
    proto::JobSpec inside = command(2, {"true"});
    inside.set_reservation("exam");
    EXPECT_EQ(world.submit(inside), 0u) << "alice may not";
    const std::uint64_t exam = world.submit_as("bob", inside);
    ASSERT_NE(exam, 0u);
    world.run_for(seconds(500));
    EXPECT_TRUE(is(world, exam, proto::QUEUED));
    world.run_for(seconds(110));
    EXPECT_TRUE(is(world, exam, proto::COMPLETED));
    ASSERT_TRUE(world.run_until([&] { return is(world, waits, proto::COMPLETED); }, seconds(700)));
}

TEST(Reservation, ATimeLimitIsCutToTheHoleBeforeItAndNeverBelowWhatIsTheLeast) {
    World world({.nodes = 1, .cards = 2});
    reserve(world, "firmware", {"n0"}, seconds(180), seconds(600));
    proto::JobSpec spec = command(1, {"sleep", "ms=600000"});
    spec.set_time_limit_s(600);
    spec.set_time_min_s(10);
    const std::uint64_t job = world.submit(spec);
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::RUNNING); }));
    EXPECT_GT(world.view(job).time_limit_s(), 160u);
    EXPECT_LE(world.view(job).time_limit_s(), 175u) << "and its grace is over before the reservation begins";
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::TIMED_OUT); }, seconds(300)));
    EXPECT_THAT(world.view(job).reason(), HasSubstr("cut from 600 s, as --time-min allowed"));
}

TEST(Reservation, MaintenanceIsForNobodyAndEndingItOpensTheNodes) {
    World world({.nodes = 1, .cards = 2});
    const std::uint64_t runs = world.submit(command(1, {"sleep", "ms=600000"}));
    world.run_for(seconds(1));
    EXPECT_THAT(reserve(world, "firmware", {"n0"}, seconds(0), seconds(3600)).message(), HasSubstr("still running then, unless they end before: job 1"));
    EXPECT_EQ(reserve(world, "other", {"n0"}, seconds(10), seconds(10)).outcome(), proto::USAGE) << "two reservations of one node";
    EXPECT_EQ(reserve(world, "nowhere", {"n9"}, seconds(10), seconds(10)).outcome(), proto::USAGE);
    const std::uint64_t waits = world.submit(command(1, {"true"}));
    world.run_for(seconds(5));
    EXPECT_TRUE(is(world, waits, proto::QUEUED));
    EXPECT_TRUE(is(world, runs, proto::RUNNING));
    proto::Request end;
    end.mutable_set_reservation()->mutable_reservation()->set_name("firmware");
    end.mutable_set_reservation()->set_end(true);
    EXPECT_EQ(world.ask(end, "operator").outcome(), proto::OK);
    ASSERT_TRUE(world.run_until([&] { return is(world, waits, proto::COMPLETED); }));
}

coordinator::Fleet fleet_of(const std::string& toml) {
    auto fleet = coordinator::parse_fleet(toml);
    EXPECT_TRUE(fleet) << (fleet ? "" : fleet.error().message);
    return fleet ? std::move(*fleet) : coordinator::Fleet();
}

TEST(Constraint, ModelAndFeaturesChooseTheNodesAndWhatNobodyHasIsRefused) {
    WorldOptions options{.nodes = 3, .cards = 2};
    options.brain.fleet = fleet_of(R"([cards.H100]
memory_mib = 81559
[cards.A100]
memory_mib = 40960
[[nodes]]
names = "n0"
cards = "A100"
[[nodes]]
names = "n1"
cards = "H100"
[[nodes]]
names = "n2"
cards = "H100"
features = ["nvme"]
)");
    World world(options);
    proto::JobSpec spec = command(2, {"sleep", "ms=600000"});
    spec.set_card_model("h100");
    spec.set_constraint("nvme");
    const std::uint64_t job = world.submit(spec);
    ASSERT_TRUE(world.run_until([&] { return is(world, job, proto::RUNNING); }));
    EXPECT_THAT(nodes_of(world, job), UnorderedElementsAre("n2"));
    const proto::JobView view = world.view(job);
    EXPECT_THAT(std::vector<std::string>(view.passed_over().begin(), view.passed_over().end()), Contains(HasSubstr("2 nodes ruled out by what was asked for")));
    proto::Request request;
    *request.mutable_submit()->mutable_spec() = spec;
    request.mutable_submit()->mutable_spec()->set_card_model("b200");
    EXPECT_THAT(world.ask(request).message(), HasSubstr("no node has cards of the model b200; there are: A100, H100"));
    request.mutable_submit()->mutable_spec()->set_card_model("");
    request.mutable_submit()->mutable_spec()->set_constraint("ib");
    EXPECT_THAT(world.ask(request).message(), HasSubstr("no node has the features ib (--constraint); there are: nvme"));
    request.mutable_submit()->mutable_spec()->set_constraint("nvme&");
    EXPECT_EQ(world.ask(request).outcome(), proto::USAGE);
    request.mutable_submit()->mutable_spec()->set_constraint("ib|nvme");
    request.mutable_submit()->mutable_spec()->set_ranks(4);
    EXPECT_THAT(world.ask(request).message(), HasSubstr("4 ranks of 1 card need 4 cards"));
}

TEST(Defragmentation, LeavesGangsAloneThatAreNotSmall) {
    WorldOptions options{.nodes = 3, .cards = 4};
    options.brain.guaranteed_run = seconds(0);
    options.brain.defragment = true;
    World world(options);
    const std::uint64_t blocks = world.submit(command(2, {"train", "steps=1000000", "every=50", "step_ms=10"}));
    proto::JobSpec one_more = command(2, {"train", "steps=1000000", "every=50", "step_ms=10"});
    one_more.add_only_nodes("n1");
    const std::uint64_t second = world.submit(one_more);
    proto::JobSpec third_spec = command(2, {"train", "steps=1000000", "every=50", "step_ms=10"});
    third_spec.add_only_nodes("n2");
    const std::uint64_t third = world.submit(third_spec);
    ASSERT_TRUE(world.run_until([&] { return world.step_of(blocks) > 200 && world.step_of(second) > 200 && world.step_of(third) > 200; }));
    proto::JobSpec large = command(4, {"sleep", "ms=5000"});
    large.set_nodes_min(1);
    large.set_nodes_max(1);
    const std::uint64_t job = world.submit(large);
    world.run_for(seconds(60));
    EXPECT_TRUE(is(world, job, proto::QUEUED)) << "a gang of half its size is not small";
}

TEST(Defragmentation, IsOffByDefaultAndWhySaysWhatItWouldGain) {
    WorldOptions options{.nodes = 2, .cards = 8};
    options.brain.guaranteed_run = seconds(0);
    for (const bool on : {false, true}) {
        options.brain.defragment = on;
        World world(options);
        std::vector<std::uint64_t> small;
        for (const char* node : {"n0", "n1"}) {
            proto::JobSpec spec = command(2, {"train", "steps=1000000", "every=50", "step_ms=10"});
            spec.add_exclude_nodes(std::string(node) == "n0" ? "n1" : "n9");
            if (std::string(node) == "n1") spec.set_spread(true);
            small.push_back(world.submit(spec));
        }
        ASSERT_TRUE(world.run_until([&] { return world.step_of(small[0]) > 200 && world.step_of(small[1]) > 200; }));
        ASSERT_NE(nodes_of(world, small[0]), nodes_of(world, small[1]));
        proto::JobSpec large = command(8, {"sleep", "ms=5000"});
        large.set_nodes_min(1);
        large.set_nodes_max(1);
        const std::uint64_t job = world.submit(large);
        world.run_for(seconds(30));
        if (!on) {
            EXPECT_TRUE(is(world, job, proto::QUEUED));
            proto::Request why;
            why.mutable_why_job()->set_job(job);
            const proto::Response answer = world.answer(why);
            EXPECT_THAT(std::vector<std::string>(answer.why().relaxed().begin(), answer.why().relaxed().end()), Contains(HasSubstr("moving job 2 elsewhere")));
            continue;
        }
        EXPECT_TRUE(is(world, job, proto::COMPLETED)) << world.view(job).reason();
        EXPECT_EQ(world.view(small[1]).attempt(), 2u);
        EXPECT_THAT(nodes_of(world, small[1]), UnorderedElementsAre("n0")) << "where it was proved to fit";
        EXPECT_EQ(world.view(small[0]).attempt(), 1u);
        EXPECT_GE(world.view(small[1]).attempts(1).restored().step(), 150u);
        EXPECT_THAT(world.violations(), testing::IsEmpty());
    }
}

TEST(Lemon, ANodeThatFailedTwiceIsTakenLastUntilItIsResumed) {
    World world({.nodes = 2, .cards = 2});
    for (int i = 0; i < 2; ++i) {
        world.kill_node("n0");
        world.run_for(seconds(5));
        world.start_node("n0");
        world.run_for(seconds(5));
    }
    const auto place = [&] {
        const std::uint64_t job = world.submit(command(1, {"sleep", "ms=1000"}));
        world.run_until([&] { return is(world, job, proto::RUNNING); });
        const std::string node = nodes_of(world, job).front();
        world.run_until([&] { return is(world, job, proto::COMPLETED); });
        return node;
    };
    EXPECT_EQ(place(), "n1");
    proto::Request list;
    list.mutable_list_nodes();
    EXPECT_THAT(world.answer(list).nodes(0).lemon_words(), HasSubstr("unreliable: 2.0 failures lately"));
    proto::Request resume;
    resume.mutable_set_node()->set_node("n0");
    resume.mutable_set_node()->set_drain(false);
    world.ask(resume);
    EXPECT_EQ(place(), "n0");
}

TEST(ClusterLedger, ItsCausesAddUpToTheCardsThatAreOwned) {
    WorldOptions options{.nodes = 3, .cards = 4};
    options.brain.fleet = fleet_of(R"(currency = "CHF"
[cards.H100]
price_per_hour = 3600
[[nodes]]
names = "n[0-2]"
cards = "H100"
[teams.lab]
users = ["alice", "bob"]
)");
    World world(options);
    proto::JobSpec whole = command(1, {"sleep", "ms=20000"});
    whole.set_exclusive(true);
    world.submit_as("bob", whole);
    const std::uint64_t job = world.submit(command(4, {"train", "steps=3000", "every=50", "step_ms=10"}));
    ASSERT_TRUE(world.run_until([&] { return world.step_of(job) > 300; }));
    world.kill_rank(job, 1, SIGKILL);
    world.run_for(seconds(3));
    world.kill_node("n2");
    world.submit(command(8, {"sleep", "ms=1000"}));
    world.run_for(seconds(8));
    world.start_node("n2");
    world.run_for(seconds(30));
    proto::Request drain;
    drain.mutable_set_node()->set_node("n2");
    drain.mutable_set_node()->set_drain(true);
    world.ask(drain);
    world.run_for(seconds(10));
    proto::Request request;
    request.mutable_report_cluster();
    const proto::ClusterReport report = world.answer(request).cluster_report();
    std::map<std::string, double> causes;
    double sum = 0;
    for (const proto::Cause& cause : report.causes()) {
        causes[cause.name()] = cause.card_s();
        sum += cause.card_s();
        EXPECT_GE(cause.card_s(), 0) << cause.name();
    }
    EXPECT_GT(report.owned_card_s(), 500);
    EXPECT_NEAR(sum, report.owned_card_s(), report.owned_card_s() * 1e-3);
    for (const char* name : {"compute", "redo", "idle-held", "broken", "drained", "free", "queue-fragmentation"}) EXPECT_GT(causes[name], 0) << name;
    ASSERT_EQ(report.teams_size(), 1);
    EXPECT_NEAR(report.teams(0).card_s(), report.users(0).card_s() + report.users(1).card_s(), 1e-6);
    const double held = report.teams(0).card_s();
    EXPECT_NEAR(report.allocated(), held / report.owned_card_s(), 1e-9);
    EXPECT_EQ(report.currency(), "CHF");
    EXPECT_NEAR(report.teams(0).cost(), held, held * 0.01) << "a card-second costs 1 here";
    EXPECT_THAT(report.jobs(0).name(), testing::AnyOf("1", std::to_string(job)));
}

}  // namespace
}  // namespace gangline::simulate
