#include "coordinator/schedule/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "coordinator/schedule/spares.h"

namespace gangline::coordinator {
namespace {

TEST(ReplicaPeers, ANodeAloneHasNone) { EXPECT_THAT(replica_peers({0}), testing::ElementsAre(0)); }

TEST(ReplicaPeers, InOneRackTheNextNodeKeepsThem) { EXPECT_THAT(replica_peers({3, 3, 3}), testing::ElementsAre(1, 2, 0)); }

TEST(ReplicaPeers, OverTwoEqualRacksEachKeepsTheOther) { EXPECT_THAT(replica_peers({0, 0, 1, 1}), testing::ElementsAre(2, 3, 0, 1)); }

TEST(ReplicaPeers, EachNodeKeepsOneAndOnlyWhatOneRackHasTooMuchStaysInIt) {
    std::mt19937 random(5);
    for (int i = 0; i < 2000; ++i) {
        std::vector<std::uint32_t> racks(2 + random() % 40);
        const auto kinds = static_cast<std::uint32_t>(1 + random() % 6);
        for (std::uint32_t& rack : racks) rack = static_cast<std::uint32_t>(random() % kinds);
        const auto peers = replica_peers(racks);
        std::vector<std::uint32_t> sorted = peers;
        std::sort(sorted.begin(), sorted.end());
        std::size_t longest = 0;
        for (const std::uint32_t rack : racks) longest = std::max<std::size_t>(longest, static_cast<std::size_t>(std::count(racks.begin(), racks.end(), rack)));
        std::size_t inside = 0;
        for (std::uint32_t node = 0; node < peers.size(); ++node) {
            ASSERT_EQ(sorted[node], node);
            ASSERT_NE(peers[node], node);
            inside += racks[peers[node]] == racks[node] ? 1u : 0u;
        }
        ASSERT_EQ(inside, longest * 2 > racks.size() ? 2 * longest - racks.size() : 0) << testing::PrintToString(racks);
    }
}

TEST(Spares, ThePoissonQuantilesAreThoseOfTheTables) {
    EXPECT_EQ(poisson_quantile(0, 0.99), 0u);
    EXPECT_EQ(poisson_quantile(1, 0.99), 4u);
    EXPECT_EQ(poisson_quantile(8, 0.99), 15u);
    EXPECT_EQ(poisson_quantile(43, 0.99), 59u);
}

TEST(Spares, AClusterLikeMetasWithTheRepairsOfStepFunKeepsThreePercent) {
    const double faults = 2048 * 3.79e-3 * 100;
    EXPECT_EQ(spares_for({.nodes = 2048, .days = 100, .faults = faults, .repaired = faults, .repair_days = 5.5 * faults}), 59u);
}

TEST(Spares, AYoungClusterKeepsAFewAndNeverMoreThanHalf) {
    EXPECT_EQ(spares_for({.nodes = 100, .days = 0}), 0u);
    EXPECT_EQ(spares_for({.nodes = 100, .days = 0.1}), 3u);
    EXPECT_EQ(spares_for({.nodes = 4, .days = 1, .faults = 50}), 2u);
}

}  // namespace
}  // namespace gangline::coordinator
