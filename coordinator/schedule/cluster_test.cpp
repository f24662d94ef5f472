#include "coordinator/schedule/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace gangline::coordinator {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

// Racks of `nodes_a_rack` nodes of 8 cards, four racks a block.
std::vector<NodeSeed> racks(std::uint32_t count, std::uint32_t nodes_a_rack) {
    std::vector<NodeSeed> seeds(std::size_t{count} * nodes_a_rack);
    for (std::uint32_t i = 0; i < seeds.size(); ++i) {
        seeds[i].all = {8, 32, 1000};
        seeds[i].rack = i / nodes_a_rack;
        seeds[i].block = seeds[i].rack / 4;
    }
    return seeds;
}

Shape cards(std::uint32_t ranks) { return {.ranks = ranks}; }
Shape whole_nodes(std::uint32_t nodes) { return {.ranks = nodes * 8, .ranks_per_node = 8}; }
std::vector<std::uint32_t> nodes_of(const std::optional<Shares>& shares) {
    std::vector<std::uint32_t> nodes;
    if (shares) {
        for (const Share& share : *shares) nodes.push_back(share.node);
    }
    return nodes;
}

TEST(Place, ASmallGangGoesToTheFullestNodeThatTakesItSoThatWholeNodesStayWhole) {
    Cluster cluster(racks(2, 2));
    cluster.add(cards(3), {{2, 3}}, kNever);
    cluster.add(cards(6), {{1, 6}}, kNever);
    EXPECT_THAT(nodes_of(cluster.place(cards(2), 0, kNever)), ElementsAre(1));
    EXPECT_THAT(nodes_of(cluster.place(cards(4), 0, kNever)), ElementsAre(2));
    EXPECT_THAT(nodes_of(cluster.place(cards(7), 0, kNever)), SizeIs(1)) << "not what is left between others, while one node takes all";
}

TEST(Place, AGangGoesIntoTheRackWithLeastToSpare) {
    Cluster cluster(racks(3, 4));
    cluster.add(whole_nodes(1), {{5, 8}}, kNever);
    EXPECT_THAT(nodes_of(cluster.place(whole_nodes(3), 0, kNever)), ElementsAre(4, 6, 7));
}

TEST(Place, AGangLargerThanARackStaysInOneBlockAndTakesAsFewRacksAsPossible) {
    Cluster cluster(racks(8, 4));
    cluster.add(cards(1), {{0, 1}}, kNever);  // block 0 cannot hold four whole racks any more
    EXPECT_THAT(nodes_of(cluster.place(whole_nodes(16), 0, kNever)), ElementsAre(16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31));
    const auto six = nodes_of(cluster.place(whole_nodes(6), 0, kNever));
    std::set<std::uint32_t> used;
    for (const std::uint32_t node : six) used.insert(node / 4);
    EXPECT_THAT(used, SizeIs(2));
    EXPECT_LT(six.back(), 16u) << "the block with least to spare";
}

TEST(Place, AGangThatMustStayInARackWaitsThoughTheClusterHasRoom) {
    Cluster cluster(racks(2, 4));
    cluster.add(cards(1), {{0, 1}}, kNever);
    cluster.add(cards(1), {{4, 1}}, kNever);
    Shape shape = whole_nodes(4);
    EXPECT_TRUE(cluster.place(shape, 0, kNever));
    shape.within = Level::Rack;
    EXPECT_FALSE(cluster.place(shape, 0, kNever));
    shape = whole_nodes(3);
    shape.within = Level::Rack;
    EXPECT_THAT(nodes_of(cluster.place(shape, 0, kNever)), ElementsAre(1, 2, 3));
}

TEST(Place, TheRanksOfANumberOfNodesAreSharedOutEvenlyAndElseAsLevelAsTheRoomsAllow) {
    Cluster cluster(racks(1, 4));
    EXPECT_EQ(cluster.place({.ranks = 10, .nodes_min = 4}, 0, kNever), (Shares{{0, 3}, {1, 3}, {2, 2}, {3, 2}}));
    cluster.add(cards(7), {{0, 7}}, kNever);
    EXPECT_EQ(cluster.place({.ranks = 10, .nodes_min = 4, .nodes_max = 4}, 0, kNever), (Shares{{0, 1}, {1, 3}, {2, 3}, {3, 3}}));
}

TEST(Place, AGangThatNamesNoNodesFillsWhatIsLeftBetweenOthers) {
    Cluster cluster(racks(1, 3));
    cluster.add(cards(5), {{0, 5}}, kNever);
    cluster.add(cards(6), {{1, 6}}, kNever);
    cluster.add(cards(7), {{2, 7}}, kNever);
    EXPECT_EQ(cluster.place(cards(5), 0, kNever), (Shares{{0, 3}, {1, 2}}));
    EXPECT_EQ(cluster.place(cards(6), 0, kNever), (Shares{{0, 3}, {1, 2}, {2, 1}}));
    EXPECT_FALSE(cluster.place({.ranks = 6, .nodes_max = 2}, 0, kNever));
    EXPECT_FALSE(cluster.place(cards(7), 0, kNever));
}

TEST(Place, ClosedNodesAndNodesThatAreNotAllowedAreLeftAlone) {
    auto seeds = racks(1, 3);
    seeds[0].open = false;
    const Cluster cluster(seeds);
    EXPECT_THAT(nodes_of(cluster.place(cards(8), 0, kNever)), ElementsAre(1));
    Shape picky = cards(8);
    picky.allowed = std::make_shared<std::vector<bool>>(std::vector<bool>{true, false, true});
    EXPECT_THAT(nodes_of(cluster.place(picky, 0, kNever)), ElementsAre(2));
    picky.ranks = 16;
    EXPECT_FALSE(cluster.place(picky, 0, kNever));
    EXPECT_EQ(cluster.free_cards(), 16u);
}

TEST(Place, AnUnreliableNodeIsTakenLastAndByALargeGangNever) {
    auto seeds = racks(1, 34);
    seeds[0].penalty = 2;
    const Cluster cluster(seeds);
    EXPECT_THAT(nodes_of(cluster.place(cards(8), 0, kNever)), ElementsAre(1));
    EXPECT_THAT(nodes_of(cluster.place(whole_nodes(33), 0, kNever)), SizeIs(33));
    EXPECT_FALSE(cluster.place(whole_nodes(34), 0, kNever));
    auto two = racks(1, 2);
    two[0].penalty = 1;
    EXPECT_THAT(nodes_of(Cluster(two).place(whole_nodes(2), 0, kNever)), ElementsAre(0, 1));
}

TEST(Place, NodesToAvoidAreTakenOnlyWhenNothingFitsWithoutThem) {
    const Cluster cluster(racks(1, 2));
    EXPECT_THAT(nodes_of(cluster.place(cards(8), 0, kNever, {0})), ElementsAre(1));
    EXPECT_THAT(nodes_of(cluster.place(whole_nodes(2), 0, kNever, {0})), ElementsAre(0, 1));
}

TEST(Place, WholeNodesAreForOneGangAlone) {
    Cluster cluster(racks(1, 2));
    cluster.add(cards(1), {{0, 1}}, kNever);
    const Shape alone{.ranks = 1, .exclusive = true};
    EXPECT_THAT(nodes_of(cluster.place(alone, 0, kNever)), ElementsAre(1));
    cluster.add(alone, {{1, 1}}, 100);
    EXPECT_FALSE(cluster.place(alone, 0, kNever));
    EXPECT_FALSE(cluster.place(cards(8), 0, kNever));
    EXPECT_EQ(cluster.earliest(alone, 0, 10)->from, 100);
}

TEST(Place, CpusAndMemoryCountToo) {
    Cluster cluster(racks(1, 2));
    cluster.add({.ranks = 1, .cpus_per_rank = 30, .memory_mib = 900}, {{0, 1}}, kNever);
    EXPECT_THAT(nodes_of(cluster.place({.ranks = 1, .cpus_per_rank = 4}, 0, kNever)), ElementsAre(1));
    EXPECT_THAT(nodes_of(cluster.place({.ranks = 1, .memory_mib = 200}, 0, kNever)), ElementsAre(1));
    EXPECT_THAT(nodes_of(cluster.place({.ranks = 2, .cards_per_rank = 0, .cpus_per_rank = 1}, 0, kNever)), ElementsAre(0));
    EXPECT_FALSE(cluster.place({.ranks = 1, .cpus_per_rank = 33}, 0, kNever));
}

TEST(Place, AnElasticGangTakesTheMostNodesOfItsRangeThatFit) {
    Cluster cluster(racks(2, 4));
    const Shape elastic{.ranks = 8 * 8, .nodes_min = 2, .nodes_max = 8, .ranks_per_node = 8, .elastic = true, .nodes_step = 2};
    EXPECT_EQ(cluster.place(elastic, 0, kNever)->size(), 8u);
    cluster.add(cards(1), {{3, 1}}, 500);
    EXPECT_EQ(cluster.place(elastic, 0, kNever)->size(), 6u) << "seven are free, and it goes in twos";
    cluster.add(whole_nodes(4), {{4, 8}, {5, 8}, {6, 8}, {7, 8}}, 900);
    EXPECT_THAT(nodes_of(cluster.place(elastic, 0, kNever)), ElementsAre(0, 1));
    cluster.add(whole_nodes(2), {{0, 8}, {1, 8}}, 1000);
    EXPECT_FALSE(cluster.place(elastic, 0, kNever));
    EXPECT_EQ(cluster.earliest(elastic, 0, 10)->from, 500);
    EXPECT_EQ(cluster.earliest(elastic, 0, 10)->shares.size(), 2u);
}

TEST(Place, SegmentsStandInOneRackEach) {
    Cluster cluster(racks(3, 4));
    for (const std::uint32_t node : {0u, 4u, 5u}) cluster.add(cards(8), {{node, 8}}, kNever);  // 3, 2 and 4 nodes are left
    Shape shape = whole_nodes(6);
    EXPECT_EQ(cluster.place(shape, 0, kNever)->size(), 6u);
    shape.segment = 3;
    EXPECT_THAT(nodes_of(cluster.place(shape, 0, kNever)), ElementsAre(1, 2, 3, 8, 9, 10));
    shape.segment = 2;
    const auto pairs = cluster.place(shape, 0, kNever);
    ASSERT_TRUE(pairs);
    std::map<std::uint32_t, int> in_rack;
    for (const Share& share : *pairs) ++in_rack[share.node / 4];
    for (const auto& [rack, count] : in_rack) EXPECT_EQ(count % 2, 0) << rack;
    shape = whole_nodes(8);
    shape.segment = 4;
    EXPECT_FALSE(cluster.place(shape, 0, kNever)) << "only one rack has four";
}

TEST(Place, SpreadTakesTheEmptiestNodes) {
    Cluster cluster(racks(1, 3));
    cluster.add(cards(2), {{0, 2}}, kNever);
    Shape one = cards(1);
    EXPECT_THAT(nodes_of(cluster.place(one, 0, kNever)), ElementsAre(0));
    one.spread = true;
    EXPECT_NE(cluster.place(one, 0, kNever)->front().node, 0u);
}

TEST(Window, ItsNodesTakeOnlyItsOwnGangsAndThoseThatEndBefore) {
    Cluster cluster(racks(1, 2));
    cluster.keep_for(0, 1, 1000, 2000);
    cluster.keep_for(1, 1, 1000, 2000);
    EXPECT_TRUE(cluster.place(cards(2), 0, 1000));
    EXPECT_FALSE(cluster.place(cards(2), 0, 1001));
    EXPECT_FALSE(cluster.place(cards(2), 1500, 1600));
    EXPECT_FALSE(cluster.place(cards(2), 0, kNever));
    EXPECT_TRUE(cluster.place(cards(2), 2000, kNever));
    EXPECT_EQ(cluster.earliest(cards(2), 500, 600)->from, 2000);
    Shape its_own = cards(2);
    its_own.reservation = 1;
    EXPECT_TRUE(cluster.place(its_own, 1500, kNever));
    EXPECT_FALSE(cluster.place_quickly(cards(2), 1500, kNever, true));
    cluster.forget_promises();
    EXPECT_FALSE(cluster.place(cards(2), 1500, 1600)) << "windows are no promises";
    EXPECT_EQ(cluster.lack(cards(2), 0, 1, 1500, 1600), Cluster::Lack::Reserved);
}

TEST(Promise, ItsPlacesAreLentOnlyToWhoEndsBefore) {
    Cluster cluster(racks(1, 1));
    cluster.add(cards(6), {{0, 6}}, 1000);
    cluster.promise(cards(8), {{0, 8}}, 1000, 2000);
    EXPECT_TRUE(cluster.place(cards(2), 0, 1000));
    EXPECT_FALSE(cluster.place(cards(2), 0, 1001));
    EXPECT_FALSE(cluster.place(cards(2), 0, kNever));
    EXPECT_TRUE(cluster.place_ignoring_promises(cards(2)));
    cluster.forget_promises();
    EXPECT_TRUE(cluster.place(cards(2), 0, kNever));
}

TEST(Promise, CardsBesideItAreNobodys) {
    Cluster cluster(racks(1, 1));
    cluster.add(cards(6), {{0, 6}}, 1000);
    cluster.promise(cards(4), {{0, 4}}, 1000, 2000);
    EXPECT_TRUE(cluster.place(cards(2), 0, kNever)) << "at 1000 eight are free, four are promised";
    cluster.promise(cards(3), {{0, 3}}, 1500, 2500);
    EXPECT_FALSE(cluster.place(cards(2), 0, kNever)) << "at 1500 seven are promised";
    EXPECT_TRUE(cluster.place(cards(1), 0, kNever));
}

TEST(Earliest, IsWhenEnoughHasEnded) {
    Cluster cluster(racks(1, 4));
    for (std::uint32_t node = 0; node < 4; ++node) cluster.add(whole_nodes(1), {{node, 8}}, 100 * (node + 1));
    const auto opening = cluster.earliest(whole_nodes(3), 0, 50);
    ASSERT_TRUE(opening);
    EXPECT_EQ(opening->from, 300);
    EXPECT_THAT(nodes_of(opening->shares), ElementsAre(0, 1, 2));
    EXPECT_EQ(cluster.earliest(cards(4), 0, 50)->from, 100);
    EXPECT_FALSE(cluster.earliest(whole_nodes(5), 0, 50));
}

TEST(Earliest, IsAfterAPromiseToAnother) {
    Cluster cluster(racks(1, 1));
    cluster.add(whole_nodes(1), {{0, 8}}, 100);
    cluster.promise(whole_nodes(1), {{0, 8}}, 100, 600);
    EXPECT_EQ(cluster.earliest(whole_nodes(1), 0, 50)->from, 600);
}

TEST(Earliest, IsNeverBehindAGangThatMayRunForEver) {
    Cluster cluster(racks(1, 1));
    cluster.add(cards(1), {{0, 1}}, kNever);
    EXPECT_FALSE(cluster.earliest(cards(8), 0, 50));
    EXPECT_EQ(cluster.earliest(cards(7), 0, 50)->from, 0);
}

// ---- against a slow second opinion

struct Case {
    std::vector<NodeSeed> seeds;
    std::vector<Room> free;
    Shape shape;
};

std::uint32_t room_for(const Case& one, std::uint32_t node) {
    const Room& free = one.free[node];
    if (!one.seeds[node].open || one.shape.memory_mib > free.memory_mib) return 0;
    std::uint32_t most = one.shape.ranks;
    if (one.shape.cards_per_rank != 0) most = std::min(most, free.cards / one.shape.cards_per_rank);
    if (one.shape.cpus_per_rank != 0) most = std::min(most, free.cpus / one.shape.cpus_per_rank);
    return most;
}

// Whether any choice of nodes of one domain could hold the gang, by its rules, found by trying all of them.
bool fits_at_all(const Case& one) {
    const auto nodes = static_cast<std::uint32_t>(one.seeds.size());
    for (std::uint32_t set = 1; set < (1u << nodes); ++set) {
        std::vector<std::uint32_t> rooms;
        std::set<std::uint32_t> racks_used;
        std::set<std::uint32_t> blocks_used;
        for (std::uint32_t node = 0; node < nodes; ++node) {
            if ((set >> node & 1) == 0) continue;
            rooms.push_back(room_for(one, node));
            racks_used.insert(one.seeds[node].rack);
            blocks_used.insert(one.seeds[node].block);
        }
        const Shape& shape = one.shape;
        if (shape.within == Level::Rack && racks_used.size() > 1) continue;
        if (shape.within == Level::Block && blocks_used.size() > 1) continue;
        if (std::count(rooms.begin(), rooms.end(), 0u) != 0) continue;
        const auto count = static_cast<std::uint32_t>(rooms.size());
        std::uint32_t sum = 0;
        for (const std::uint32_t room : rooms) sum += room;
        if (shape.ranks_per_node != 0) {
            if (count != (shape.ranks + shape.ranks_per_node - 1) / shape.ranks_per_node) continue;
            std::sort(rooms.begin(), rooms.end());
            const std::uint32_t rest = shape.ranks % shape.ranks_per_node;
            bool all = rooms[0] >= (rest == 0 ? shape.ranks_per_node : rest);
            for (std::uint32_t i = 1; i < count; ++i) all = all && rooms[i] >= shape.ranks_per_node;
            if (all) return true;
        } else if (sum >= shape.ranks && count <= shape.ranks && count >= shape.nodes_min && (shape.nodes_max == 0 || count <= shape.nodes_max)) {
            return true;
        }
    }
    return false;
}

TEST(Place, AgreesWithTryingEveryChoiceOfNodes) {
    std::mt19937_64 random(5);
    const auto draw = [&](std::uint32_t most) { return static_cast<std::uint32_t>(random() % (most + 1)); };
    int placed = 0;
    for (int round = 0; round < 3000; ++round) {
        Case one;
        one.seeds.resize(2 + draw(6));
        for (std::uint32_t i = 0; i < one.seeds.size(); ++i) {
            one.seeds[i] = {.all = {4, 8, 100}, .block = i / 4, .rack = i / 2, .open = draw(9) != 0};
        }
        Cluster cluster(one.seeds);
        for (std::uint32_t i = 0; i < one.seeds.size(); ++i) {
            const Shape other{.ranks = draw(4), .cpus_per_rank = 1 + draw(1), .memory_mib = draw(60)};
            cluster.add(other, {{i, other.ranks}}, kNever);
            one.free.push_back(cluster.free(i));
        }
        one.shape.ranks = 1 + draw(11);
        one.shape.cards_per_rank = draw(2);
        one.shape.cpus_per_rank = one.shape.cards_per_rank == 0 ? 1 : draw(2);
        one.shape.memory_mib = draw(1) * draw(60);
        if (draw(2) == 0) {
            one.shape.ranks_per_node = 1 + draw(3);
        } else if (draw(1) == 0) {
            one.shape.nodes_min = std::min(one.shape.ranks, 1 + draw(3));
            if (draw(1) == 0) one.shape.nodes_max = one.shape.nodes_min + draw(2);
        }
        one.shape.within = std::array{Level::Cluster, Level::Cluster, Level::Block, Level::Rack}[draw(3)];
        const auto shares = cluster.place(one.shape, 0, kNever);
        ASSERT_EQ(shares.has_value(), fits_at_all(one)) << "round " << round;
        if (!shares) continue;
        ++placed;
        std::uint32_t ranks = 0;
        for (const Share& share : *shares) {
            EXPECT_LE(share.ranks, room_for(one, share.node)) << "round " << round;
            ranks += share.ranks;
        }
        EXPECT_EQ(ranks, one.shape.ranks);
        EXPECT_TRUE(std::is_sorted(shares->begin(), shares->end(), [](const Share& a, const Share& b) { return a.node < b.node; }));
    }
    EXPECT_GT(placed, 800);
}

TEST(Place, WhatIsGivenBackIsFreeAgainToTheLastCard) {
    std::mt19937_64 random(9);
    Cluster cluster(racks(8, 4));
    std::vector<std::uint32_t> running;
    for (int round = 0; round < 5000; ++round) {
        const std::array<std::uint32_t, 6> sizes = {1, 2, 4, 8, 16, 40};
        const Shape shape = cards(sizes[random() % sizes.size()]);
        if (const auto shares = cluster.place(shape, 0, kNever)) running.push_back(cluster.add(shape, *shares, 5));
        if (random() % 3 != 0 && !running.empty()) {
            std::swap(running[random() % running.size()], running.back());
            cluster.remove(running.back());
            running.pop_back();
        }
        std::uint64_t sum = 0;
        for (std::uint32_t node = 0; node < cluster.nodes(); ++node) sum += cluster.free(node).cards;
        ASSERT_EQ(sum, cluster.free_cards());
    }
    for (const std::uint32_t gang : running) cluster.remove(gang);
    EXPECT_EQ(cluster.whole_free_nodes(), 32u);
    EXPECT_THAT(nodes_of(cluster.place(whole_nodes(32), 0, kNever)), SizeIs(32));
}

}  // namespace
}  // namespace gangline::coordinator
