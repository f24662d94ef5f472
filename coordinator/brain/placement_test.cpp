#include "coordinator/brain/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "coordinator/brain/timers.h"

namespace gangline::coordinator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Offer offer(const std::string& node, std::uint32_t free, std::uint32_t total = 8) {
    Offer one;
    one.node = node;
    one.cards.resize(free);
    std::iota(one.cards.begin(), one.cards.end(), total - free);
    one.cards_total = total;
    one.cpus = 64;
    one.memory_mib = 100'000;
    one.whole = free == total;
    return one;
}

std::vector<std::pair<std::string, std::uint32_t>> shares(const std::optional<std::vector<proto::Placement>>& gang) {
    std::vector<std::pair<std::string, std::uint32_t>> list;
    if (!gang) return list;
    for (const proto::Placement& place : *gang) list.emplace_back(place.node(), place.rank_count());
    return list;
}
using P = std::pair<std::string, std::uint32_t>;

TEST(Placement, IsWholeOrNothing) {
    EXPECT_FALSE(place({.ranks = 5}, {offer("n0", 2), offer("n1", 2)}));
    EXPECT_THAT(shares(place({.ranks = 4}, {offer("n0", 2), offer("n1", 2)})), ElementsAre(P{"n0", 2}, P{"n1", 2}));
}

TEST(Placement, TakesTheFewestNodesAndAmongThemTheTightest) {
    EXPECT_THAT(shares(place({.ranks = 3}, {offer("n0", 8), offer("n1", 4), offer("n2", 2)})), ElementsAre(P{"n1", 3}));
}

TEST(Placement, FillsLargeNodesFirstAndEndsOnTheTightestOne) {
    EXPECT_THAT(shares(place({.ranks = 10}, {offer("n0", 3), offer("n1", 8), offer("n2", 2)})), ElementsAre(P{"n1", 8}, P{"n2", 2}));
}

TEST(Placement, SpreadsEvenlyWhereANumberOfNodesIsGiven) {
    EXPECT_THAT(shares(place({.ranks = 4, .nodes_min = 2}, {offer("n0", 8), offer("n1", 8)})), ElementsAre(P{"n0", 2}, P{"n1", 2}));
    EXPECT_THAT(shares(place({.ranks = 5, .nodes_min = 2}, {offer("n0", 8), offer("n1", 8)})), ElementsAre(P{"n0", 3}, P{"n1", 2}));
}

TEST(Placement, SpreadsAsLevelAsTheNodesAllow) {
    EXPECT_THAT(shares(place({.ranks = 6, .nodes_min = 2}, {offer("n0", 5), offer("n1", 1)})), ElementsAre(P{"n0", 5}, P{"n1", 1}));
}

TEST(Placement, NeverUsesMoreNodesThanAllowed) {
    EXPECT_FALSE(place({.ranks = 4, .nodes_max = 1}, {offer("n0", 2), offer("n1", 2)}));
    EXPECT_THAT(shares(place({.ranks = 4, .nodes_max = 2}, {offer("n0", 2), offer("n1", 2)})), ElementsAre(P{"n0", 2}, P{"n1", 2}));
}

TEST(Placement, HonoursRanksPerNode) {
    EXPECT_THAT(shares(place({.ranks = 5, .ranks_per_node = 2}, {offer("n0", 8), offer("n1", 8), offer("n2", 1)})),
                ElementsAre(P{"n0", 2}, P{"n1", 2}, P{"n2", 1}));
}

TEST(Placement, RanksAndCardsAreContiguousByNode) {
    const auto gang = place({.ranks = 3, .nodes_min = 2, .cards_per_rank = 2}, {offer("n0", 8), offer("n1", 8)});
    ASSERT_TRUE(gang);
    EXPECT_EQ((*gang)[1].first_rank(), 2u);
    EXPECT_THAT((*gang)[0].cards(), ElementsAre(0, 1, 2, 3));
    EXPECT_THAT((*gang)[1].cards(), ElementsAre(0, 1));
}

TEST(Placement, ARankWithoutACardTakesACpu) {
    proto::JobSpec spec;
    spec.set_ranks(3);
    spec.set_cards_given(true);
    Offer small = offer("n0", 0);
    small.cpus = 2;
    EXPECT_FALSE(place(need_of(spec), {small}));
    small.cpus = 3;
    EXPECT_TRUE(place(need_of(spec), {small}));
}

TEST(Placement, MemoryAndExclusivityAreHonoured) {
    EXPECT_FALSE(place({.ranks = 1, .memory_mib = 200'000}, {offer("n0", 8)}));
    EXPECT_THAT(shares(place({.ranks = 1, .exclusive = true}, {offer("n0", 7), offer("n1", 8)})), ElementsAre(P{"n1", 1}));
}

TEST(Placement, AUsersListsAreHard) {
    EXPECT_THAT(shares(place({.ranks = 2, .only = {"n1"}}, {offer("n0", 8), offer("n1", 8)})), ElementsAre(P{"n1", 2}));
    EXPECT_FALSE(place({.ranks = 2, .exclude = {"n0"}}, {offer("n0", 8)}));
}

TEST(Placement, AMisfitNamesTheClauseAndTheLargestThatFits) {
    const std::vector<Offer> offers = {offer("n0", 8), offer("n1", 8)};
    EXPECT_EQ(misfit({.ranks = 16}, offers), "");
    EXPECT_THAT(misfit({.ranks = 17}, offers), HasSubstr("17 ranks of 1 card need 17 cards; 2 nodes have 16"));
    EXPECT_THAT(misfit({.ranks = 17}, offers), HasSubstr("--ranks 16"));
    EXPECT_THAT(misfit({.ranks = 1, .cards_per_rank = 9}, offers), HasSubstr("the largest node (n0) has 8"));
    EXPECT_THAT(misfit({.ranks = 3, .nodes_min = 3}, offers), HasSubstr("3 nodes are asked for; 2 may be used"));
    EXPECT_THAT(misfit({.ranks = 1, .memory_mib = 1'000'000}, offers), HasSubstr("100000 MiB"));
}

TEST(Placement, AVirtualCardIsACpuShare) {
    proto::NodeInfo node;
    node.set_cpus(2);
    for (int i = 0; i < 4; ++i) node.add_cards()->set_is_virtual(true);
    EXPECT_EQ(cpus_of(node), 4u);
}

TEST(Timers, TheEarliestDeadlineComesFirstAndAKeyHasOnlyOne) {
    Timers timers;
    const TimePoint start{};
    timers.set({Wait::Stop, 1, {}}, start + seconds(5));
    timers.set({Wait::Join, 2, {}}, start + seconds(3));
    timers.set({Wait::Stop, 1, {}}, start + seconds(1));
    EXPECT_EQ(timers.next(), start + seconds(1));
    EXPECT_FALSE(timers.take_due(start));
    EXPECT_EQ(timers.take_due(start + seconds(9))->job, 1u);
    timers.clear_job(2);
    EXPECT_FALSE(timers.next());
}

}  // namespace
}  // namespace gangline::coordinator
