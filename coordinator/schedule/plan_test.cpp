#include "coordinator/schedule/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

namespace gangline::coordinator {
namespace {

std::vector<NodeSeed> nodes(std::uint32_t count, std::uint32_t cards) {
    std::vector<NodeSeed> seeds(count);
    for (NodeSeed& seed : seeds) seed.all = {cards, 64, 1000};
    return seeds;
}

// A queue in which each job has its own shape: so many whole nodes, or cards.
struct Queue {
    PlanInput input;
    void add(Shape shape, Ms limit, Ms least = 0) {
        input.shapes.push_back(std::move(shape));
        input.waiting.push_back({.job = input.waiting.size() + 1, .shape = static_cast<std::uint32_t>(input.shapes.size() - 1),
                                 .limit = limit, .expected = limit, .least = least});
    }
    void runs(Cluster& cluster, const Shape& shape, const Shares& shares, Ms end) {
        input.running.push_back({.gang = cluster.add(shape, shares, end), .expected = end});
    }
};

Shape cards(std::uint32_t ranks) { return {.ranks = ranks}; }
Shape whole(std::uint32_t count) { return {.ranks = count * 4, .ranks_per_node = 4}; }

TEST(Plan, AShortJobPassesABlockedOneAndALongOneDoesNot) {
    Cluster cluster(nodes(2, 4));
    Queue queue;
    queue.runs(cluster, whole(1), {{0, 4}}, 1000);
    queue.add(whole(2), 500);
    queue.add(whole(1), 2000);
    queue.add(whole(1), 1000);
    const Plan plan = make_plan(cluster, queue.input, 0, {});
    EXPECT_EQ(plan.jobs[0].standing, Standing::Promised);
    EXPECT_EQ(plan.jobs[0].start, 1000);
    EXPECT_EQ(plan.jobs[1].standing, Standing::Promised) << "it has a promise of its own, after the first";
    EXPECT_EQ(plan.jobs[1].start, 1500);
    EXPECT_EQ(plan.jobs[2].standing, Standing::Starts);
    EXPECT_EQ(plan.jobs[2].shares, (Shares{{1, 4}}));
}

TEST(Plan, BeforeAReservationOnlyWhatEndsInTimeStartsAndTheRestIsToldSo) {
    Cluster cluster(nodes(1, 4));
    cluster.keep_for(0, 0, 1000, 5000);
    Queue queue;
    queue.input.shapes = {cards(1)};
    for (const Ms limit : {2000, 900, 1500}) queue.input.waiting.push_back({.job = static_cast<std::uint64_t>(limit), .shape = 0, .limit = limit, .expected = limit});
    const Plan plan = make_plan(cluster, queue.input, 0, {.promises = 0});
    EXPECT_EQ(plan.jobs[0].standing, Standing::Reserved);
    EXPECT_EQ(plan.jobs[1].standing, Standing::Starts);
    EXPECT_EQ(plan.jobs[2].standing, Standing::Reserved);
}

TEST(Plan, OfAnArrayNoMoreRunTogetherThanItsCap) {
    Cluster cluster(nodes(2, 4));
    Queue queue;
    queue.input.limits = {{.held = 0, .most = 5}, {.held = 1, .most = 3, .parent = 0, .counts_jobs = true}};
    queue.input.shapes = {cards(2)};
    for (std::uint64_t job = 1; job <= 4; ++job) queue.input.waiting.push_back({.job = job, .shape = 0, .limit_of = 1});
    const Plan plan = make_plan(cluster, queue.input, 0, {});
    EXPECT_EQ(plan.jobs[0].standing, Standing::Starts);
    EXPECT_EQ(plan.jobs[1].standing, Standing::Starts);
    EXPECT_EQ(plan.jobs[2].standing, Standing::OverLimit);
    EXPECT_EQ(plan.jobs[2].over, 1) << "the array's cap, before the team's cards";
}

TEST(Plan, AnElasticGangKeepsToItsTeamsCards) {
    Cluster cluster(nodes(4, 4));
    Queue queue;
    queue.input.limits = {{.held = 0, .most = 13}};
    queue.add({.ranks = 16, .nodes_min = 1, .nodes_max = 4, .ranks_per_node = 4, .elastic = true}, 1000);
    queue.input.waiting[0].limit_of = 0;
    const Plan plan = make_plan(cluster, queue.input, 0, {});
    EXPECT_EQ(ranks_of(plan.jobs[0].shares), 12u);
}

TEST(Plan, BehindAPromiseTheJobInTheWayIsNamed) {
    Cluster cluster(nodes(2, 4));
    Queue queue;
    queue.runs(cluster, whole(1), {{0, 4}}, 1000);
    queue.add(whole(2), 500);
    queue.add(whole(1), 2000);
    const Plan plan = make_plan(cluster, queue.input, 0, {.promises = 1});
    EXPECT_EQ(plan.jobs[1].standing, Standing::Behind);
    EXPECT_EQ(plan.jobs[1].behind, 1u);
    EXPECT_EQ(plan.jobs[1].expected, 1500);
}

TEST(Plan, InOrderNothingPasses) {
    Cluster cluster(nodes(2, 4));
    Queue queue;
    queue.runs(cluster, whole(1), {{0, 4}}, 1000);
    queue.add(whole(2), 500);
    queue.add(whole(1), 10);
    const Plan plan = make_plan(cluster, queue.input, 0, {.in_order = true});
    EXPECT_EQ(plan.starts, 0u);
    EXPECT_EQ(plan.jobs[1].behind, 1u);
}

TEST(Plan, AJobThatCanNeverStartHidesNobody) {
    Cluster cluster(nodes(2, 4));
    Queue queue;
    for (int i = 0; i < 1000; ++i) queue.add(whole(3), 500);
    queue.add(whole(1), kNever);
    queue.add(whole(1), 10);
    const Plan plan = make_plan(cluster, queue.input, 0, {});
    EXPECT_EQ(plan.starts, 2u);
    EXPECT_EQ(plan.jobs[1000].standing, Standing::Starts);
    EXPECT_EQ(plan.jobs[0].expected, kNever);
}

TEST(Plan, OfTwoEqualShapesTheShorterMayPassWhereTheLongerMayNot) {
    Cluster cluster(nodes(2, 4));
    Queue queue;
    queue.runs(cluster, whole(1), {{0, 4}}, 1000);
    queue.add(whole(2), 500);
    const auto shape = static_cast<std::uint32_t>(queue.input.shapes.size());
    queue.input.shapes.push_back(whole(1));
    for (const Ms limit : {3000, 2000, 900}) queue.input.waiting.push_back({.job = 9, .shape = shape, .limit = limit, .expected = limit});
    const Plan plan = make_plan(cluster, queue.input, 0, {.promises = 1});
    EXPECT_EQ(plan.jobs[1].standing, Standing::Behind);
    EXPECT_EQ(plan.jobs[2].standing, Standing::Behind);
    EXPECT_EQ(plan.jobs[3].standing, Standing::Starts);
}

TEST(Plan, ALimitIsCutDownToTheLeastThatTheJobAccepts) {
    Cluster cluster(nodes(2, 4));
    Queue queue;
    queue.runs(cluster, whole(1), {{0, 4}}, 1000);
    queue.add(whole(2), 500);
    queue.add(whole(1), 5000, 800);
    const Plan plan = make_plan(cluster, queue.input, 0, {.promises = 1});
    ASSERT_EQ(plan.jobs[1].standing, Standing::Starts);
    EXPECT_EQ(plan.jobs[1].limit, 1000) << "all of the hole";
}

TEST(Plan, AJobWithoutALimitDoesNotStartOnPromisedPlaces) {
    Cluster cluster(nodes(2, 4));
    Queue queue;
    queue.runs(cluster, whole(1), {{0, 4}}, 1000);
    queue.add(whole(2), 500);
    queue.add(cards(1), kNever);
    EXPECT_NE(make_plan(cluster, queue.input, 0, {}).jobs[1].standing, Standing::Starts);
}

TEST(Plan, AnOverdueJobIsKeptNodesForEvenWhenNobodyKnowsWhenTheyAreFree) {
    Cluster cluster(nodes(3, 4));
    Queue queue;
    queue.runs(cluster, cards(1), {{0, 1}}, kNever);
    queue.runs(cluster, cards(1), {{1, 1}}, kNever);
    queue.add(whole(2), 500);
    queue.add(whole(1), kNever);
    queue.add(cards(3), kNever);
    Cluster before = cluster;
    Plan plan = make_plan(before, queue.input, 0, {});
    EXPECT_EQ(plan.starts, 2u) << "a job that waits for what never ends stops nobody";
    queue.input.waiting[0].overdue = true;
    plan = make_plan(cluster, queue.input, 0, {});
    EXPECT_EQ(plan.jobs[0].standing, Standing::Kept);
    EXPECT_EQ(plan.starts, 1u);
    EXPECT_EQ(plan.jobs[2].standing, Standing::Starts) << "on the node that is not kept";
}

TEST(Plan, JobsThatFitATeamsLimitOneByOneDoNotPassItTogether) {
    Cluster cluster(nodes(8, 4));
    Queue queue;
    queue.input.limits = {{.held = 0, .most = 12, .parent = -1}, {.held = 4, .most = 8, .parent = 0}, {.held = 0, .most = 8, .parent = 0}};
    for (int i = 0; i < 6; ++i) queue.add(whole(1), 100);
    for (std::size_t i = 0; i < 6; ++i) queue.input.waiting[i].limit_of = i < 3 ? 1 : 2;
    const Plan plan = make_plan(cluster, queue.input, 0, {});
    EXPECT_EQ(plan.jobs[0].standing, Standing::Starts);
    EXPECT_EQ(plan.jobs[1].standing, Standing::OverLimit) << "its team would hold 12 of 8";
    EXPECT_EQ(plan.jobs[3].standing, Standing::Starts);
    EXPECT_EQ(plan.jobs[4].standing, Standing::Starts);
    EXPECT_EQ(plan.jobs[5].standing, Standing::OverLimit) << "and the parent 16 of 12";
    EXPECT_EQ(plan.starts, 3u);
}

TEST(Estimate, AQueueOfEqualJobsStartsOneAfterTheOther) {
    Cluster cluster(nodes(1, 4));
    Queue queue;
    queue.runs(cluster, whole(1), {{0, 4}}, 100);
    for (int i = 0; i < 20; ++i) queue.add(whole(1), 100);
    const Plan plan = make_plan(cluster, queue.input, 0, {.promises = 2});
    for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(plan.jobs[i].expected, 100 + 100 * static_cast<Ms>(i)) << i;
}

TEST(Estimate, ALargeJobIsNotOvertakenForEver) {
    Cluster cluster(nodes(8, 4));
    Queue queue;
    for (std::uint32_t i = 0; i < 8; ++i) queue.runs(cluster, whole(1), {{i, 4}}, 100 + 10 * i);
    queue.add(whole(8), 100);
    for (int i = 0; i < 500; ++i) queue.add(whole(1), 95);
    const Plan plan = make_plan(cluster, queue.input, 0, {.promises = 0});
    EXPECT_LT(plan.jobs[0].expected, 500);
}

// What is promised is kept: with every job running to its limit, each promised job finds its places free in time.
TEST(Plan, NoStartDelaysAPromiseInAnyOfManyRandomClusters) {
    std::mt19937_64 random(3);
    const auto draw = [&](std::uint32_t most) { return static_cast<std::uint32_t>(random() % (most + 1)); };
    std::size_t promised = 0;
    std::size_t passed = 0;
    for (int round = 0; round < 2000; ++round) {
        const std::uint32_t count = 1 + draw(5);
        Cluster cluster(nodes(count, 4));
        Queue queue;
        struct Use {
            Shares shares;
            std::uint32_t cards_per_rank;
            Ms from;
            Ms until;
        };
        std::vector<Use> uses;
        for (std::uint32_t i = 0; i < count * 2; ++i) {
            const Shape shape = cards(1 + draw(3));
            const auto shares = cluster.place(shape, 0, kNever);
            if (!shares) continue;
            const Ms end = 10 + draw(90);
            queue.runs(cluster, shape, *shares, end);
            uses.push_back({*shares, 1, 0, end});
        }
        for (std::uint32_t i = 0; i < 12; ++i) {
            Shape shape = draw(1) == 0 ? cards(1 + draw(4 * count - 1)) : whole(1 + draw(count - 1));
            queue.add(shape, 5 + draw(100));
        }
        const Plan plan = make_plan(cluster, queue.input, 0, {.promises = 1 + draw(6), .estimates = false});
        bool blocked = false;
        for (std::size_t i = 0; i < plan.jobs.size(); ++i) {
            const Planned& one = plan.jobs[i];
            if (one.standing != Standing::Starts && one.standing != Standing::Promised) {
                blocked = true;
                continue;
            }
            passed += blocked && one.standing == Standing::Starts ? 1u : 0u;
            blocked = blocked || one.standing == Standing::Promised;
            promised += one.standing == Standing::Promised ? 1u : 0u;
            uses.push_back({one.shares, 1, one.start, one.start + queue.input.waiting[i].limit});
        }
        for (const Use& at : uses) {  // use only rises at a start
            std::vector<std::uint32_t> used(count);
            for (const Use& use : uses) {
                if (use.from > at.from || use.until <= at.from) continue;
                for (const Share& share : use.shares) used[share.node] += share.ranks * use.cards_per_rank;
            }
            for (std::uint32_t node = 0; node < count; ++node) ASSERT_LE(used[node], 4u) << "round " << round << " node " << node << " at " << at.from;
        }
    }
    EXPECT_GT(promised, 1000u);
    EXPECT_GT(passed, 100u);
}

// Without promises a pass is first fit in order: a second, plain way to say it.
TEST(Plan, WithoutPromisesItIsFirstFitInOrder) {
    std::mt19937_64 random(4);
    for (int round = 0; round < 500; ++round) {
        Cluster cluster(nodes(4, 4));
        Queue queue;
        for (int i = 0; i < 30; ++i) queue.add(cards(1 + static_cast<std::uint32_t>(random() % 9)), 100);
        const Plan plan = make_plan(cluster, queue.input, 0, {.promises = 0, .estimates = false});
        Cluster plain(nodes(4, 4));
        for (std::size_t i = 0; i < 30; ++i) {
            const auto shares = plain.place(queue.input.shapes[i], 0, 100);
            ASSERT_EQ(plan.jobs[i].standing == Standing::Starts, shares.has_value()) << i;
            if (shares) plain.add(queue.input.shapes[i], *shares, 100);
        }
    }
}

}  // namespace
}  // namespace gangline::coordinator
