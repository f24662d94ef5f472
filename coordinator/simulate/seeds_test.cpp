// A few hundred short stories (ten thousand with GANGLINE_SOAK=1), and the canary: a planted bug that the checks must catch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "coordinator/simulate/faults.h"

namespace gangline::simulate {
namespace {

TEST(Seeds, EveryJobEndsEveryCardIsFreeAndTheSameSeedTellsTheSameStory) {
    std::map<std::string, std::uint64_t> reached;
    const std::uint64_t seeds = std::getenv("GANGLINE_SOAK") == nullptr ? 300 : 10'000;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        const Outcome outcome = run_seed_twice(seed);
        for (const auto& [path, times] : outcome.reached) reached[path] += times;
        ASSERT_THAT(outcome.wrong, testing::IsEmpty()) << "simulate --seed " << seed << " --runs 1 --verbose";
    }
    for (const char* rare : {"back-off", "checkpoint_found_damaged", "hang", "node_lost", "node_returned", "prepare timeout",
                             "presumed gone", "suspect", "job_requeued", "preemption_planned", "spares_held", "reservation_set", "repeated message"}) {
        EXPECT_GT(reached[rare], 0u) << "a rare path was never reached: " << rare;
    }
    if (seeds > 1000) {
        EXPECT_GT(reached["RESIZE"], 0u) << "no gang ever grew";
    }
}

TEST(Canary, ANodeThatFreesItsCardsEarlyIsCaught) {
    bool caught = false;
    for (std::uint64_t seed = 1; seed <= 60 && !caught; ++seed) {
        for (const std::string& line : run_seed(seed, PlantedBug::CardsFreedEarly).wrong) {
            caught = caught || line.find("is used by") != std::string::npos;
        }
    }
    EXPECT_TRUE(caught);
}

}  // namespace
}  // namespace gangline::simulate
