#include "checkpoint/keeper/arenas.h"

#include <gtest/gtest.h>

#include <random>

namespace gangline::checkpoint {
namespace {

constexpr std::uint64_t kMuch = 1u << 30;
constexpr std::uint64_t kSize = 4096;

SlotNumber save(Arenas& arenas, LineNumber line, std::uint32_t rank, std::uint32_t attempt, std::uint64_t step) {
    const auto given = arenas.want(line, rank, attempt, kSize, kMuch);
    EXPECT_NE(given.slot, 0u) << given.refused;
    EXPECT_TRUE(arenas.whole(line, given.slot, step, kSize - 100, 100));
    return given.slot;
}

TEST(TheArenas, TakeTurnsAndTheNewestIsNeverGivenAway) {
    Arenas arenas;
    const SlotNumber first = save(arenas, 1, 0, 1, 10);
    const SlotNumber second = save(arenas, 1, 0, 1, 20);
    EXPECT_NE(first, second);
    EXPECT_EQ(save(arenas, 1, 0, 1, 30), first);
    EXPECT_EQ(arenas.want(1, 0, 1, kSize, kMuch).slot, second);
    EXPECT_EQ(arenas.bytes(), 2 * kSize);
    EXPECT_FALSE(arenas.find(2, {0, 1, 20})) << "it is being written over";
    EXPECT_EQ(arenas.find(2, {0, 1, 30}), first);
}

TEST(TheArenas, WhatADeadRankHadWholeButNotOnDiskIsPersistedNewestFirst) {
    Arenas arenas;
    const SlotNumber first = save(arenas, 1, 0, 1, 10);
    const SlotNumber second = save(arenas, 1, 0, 1, 20);
    EXPECT_EQ(arenas.closed(1), (std::vector<SlotNumber>{second, first}));
    EXPECT_TRUE(arenas.is_persisting());
    arenas.persisted(first, true);
    arenas.persisted(second, false);
    EXPECT_FALSE(arenas.is_persisting());

    save(arenas, 2, 1, 1, 10);
    EXPECT_TRUE(arenas.durable(2, {1, 1, 10}).empty());
    EXPECT_TRUE(arenas.closed(2).empty()) << "on disk already";
}

TEST(TheArenas, AHalfCopiedSnapshotIsNone) {
    Arenas arenas;
    const auto given = arenas.want(1, 0, 1, kSize, kMuch);
    EXPECT_TRUE(arenas.closed(1).empty());
    EXPECT_EQ(arenas.at(given.slot)->state, Arenas::State::Empty);
    EXPECT_FALSE(arenas.whole(1, given.slot, 10, 10, 10)) << "its line is over";
}

TEST(TheArenas, OnlyTheSlotsOwnLineSaysThatItIsWholeAndWithinItsSize) {
    Arenas arenas;
    const auto given = arenas.want(1, 0, 1, kSize, kMuch);
    EXPECT_FALSE(arenas.whole(2, given.slot, 10, 10, 10));
    EXPECT_FALSE(arenas.whole(1, given.slot + 1, 10, 10, 10));
    EXPECT_FALSE(arenas.whole(1, given.slot, 10, kSize, 1));
    EXPECT_FALSE(arenas.whole(1, given.slot, 10, ~0ull, ~0ull));
    EXPECT_TRUE(arenas.whole(1, given.slot, 10, kSize, 0));
    EXPECT_FALSE(arenas.whole(1, given.slot, 11, kSize, 0)) << "twice";
}

TEST(TheArenas, WhatIsReadOrWrittenIsNotGivenAwayUntilThatIsDone) {
    Arenas arenas;
    const SlotNumber old = save(arenas, 1, 0, 1, 10);
    const SlotNumber newest = save(arenas, 1, 0, 1, 20);
    (void)arenas.durable(1, {0, 1, 10});
    EXPECT_EQ(arenas.closed(1), std::vector<SlotNumber>{newest});
    ASSERT_TRUE(arenas.find(2, {0, 1, 10}));
    const auto third = arenas.want(3, 0, 2, kSize, kMuch);
    EXPECT_TRUE(third.is_new) << "one is read, one is written";
    EXPECT_EQ(arenas.want(3, 0, 2, kSize, kMuch).slot, third.slot) << "nothing whole lies there yet";
    ASSERT_TRUE(arenas.whole(3, third.slot, 30, 10, 10));
    const auto none = arenas.want(3, 0, 2, kSize, kMuch);
    EXPECT_EQ(none.slot, 0u);
    EXPECT_NE(none.refused.find("still being read"), std::string::npos) << none.refused;
    arenas.done(2);
    EXPECT_EQ(arenas.want(3, 0, 2, kSize, kMuch).slot, old);
}

TEST(TheArenas, KeepToTheirBudget) {
    Arenas arenas;
    EXPECT_NE(arenas.want(1, 0, 1, kSize, kSize).slot, 0u);
    const auto none = arenas.want(2, 1, 1, kSize, kSize);
    EXPECT_EQ(none.slot, 0u);
    EXPECT_NE(none.refused.find("budget"), std::string::npos) << none.refused;
    EXPECT_EQ(arenas.bytes(), kSize);
}

TEST(TheArenas, GiveBackWhatHasBecomeTooSmall) {
    Arenas arenas;
    save(arenas, 1, 0, 1, 10);
    save(arenas, 1, 0, 1, 20);
    const auto given = arenas.want(1, 0, 1, 2 * kSize, kMuch);
    EXPECT_TRUE(given.is_new);
    EXPECT_EQ(given.dropped.size(), 1u) << "never the newest";
}

TEST(TheArenas, OfRanksThatDidNotComeBackAreGivenBackWhenTheNextAttemptIsOnDisk) {
    Arenas arenas;
    save(arenas, 1, 0, 1, 10);
    const SlotNumber lost = save(arenas, 2, 1, 1, 10);
    for (const LineNumber line : {LineNumber{1}, LineNumber{2}}) {
        for (const SlotNumber slot : arenas.closed(line)) arenas.persisted(slot, true);
    }
    save(arenas, 3, 0, 2, 20);
    EXPECT_EQ(arenas.durable(3, {0, 2, 20}), std::vector<SlotNumber>{lost});
    EXPECT_TRUE(arenas.find(9, {0, 1, 10}));
}

TEST(TheArenas, WhatIsBeingSentIsGivenAwayOnlyWhereThereIsNoOtherRoom) {
    Arenas arenas;
    const SlotNumber first = save(arenas, 1, 0, 1, 10);
    arenas.sending(first, true);
    const SlotNumber second = save(arenas, 1, 0, 1, 20);
    const auto third = arenas.want(1, 0, 1, kSize, kMuch);
    EXPECT_TRUE(third.is_new) << "there is room beside it";
    EXPECT_TRUE(arenas.whole(1, third.slot, 30, 10, 10));
    arenas.sending(second, true);
    EXPECT_EQ(arenas.want(1, 0, 1, kSize, 3 * kSize).slot, second) << "its copy will not have its checksums";

    Arenas narrow;
    const SlotNumber sent = save(narrow, 1, 0, 1, 10);
    narrow.sending(sent, true);
    save(narrow, 1, 0, 1, 20);
    EXPECT_EQ(narrow.want(1, 0, 1, kSize, 2 * kSize).slot, sent);
}

TEST(TheArenas, ReplicasTakeHalfOfTheBudgetAndTheNodesOwnRanksTheRest) {
    Arenas arenas;
    EXPECT_NE(arenas.want(1, 4, 1, kSize, 4 * kSize, true).slot, 0u);
    EXPECT_NE(arenas.want(2, 5, 1, kSize, 4 * kSize, true).slot, 0u);
    const auto none = arenas.want(3, 6, 1, kSize, 4 * kSize, true);
    EXPECT_EQ(none.slot, 0u);
    EXPECT_NE(none.refused.find("replicas"), std::string::npos) << none.refused;
    EXPECT_NE(arenas.want(4, 0, 1, kSize, 4 * kSize).slot, 0u);
    EXPECT_NE(arenas.want(5, 1, 1, kSize, 4 * kSize).slot, 0u);
    EXPECT_EQ(arenas.want(6, 2, 1, kSize, 4 * kSize).slot, 0u);
}

TEST(TheArenas, AReplicaIsBroughtToDiskOnlyWhenItsNodeIsLost) {
    Arenas arenas;
    const auto left = arenas.want(1, 4, 1, kSize, kMuch, true);
    ASSERT_TRUE(arenas.whole(1, left.slot, 10, 10, 10));
    const auto lost = arenas.want(2, 5, 1, kSize, kMuch, true);
    ASSERT_TRUE(arenas.whole(2, lost.slot, 10, 10, 10));
    EXPECT_FALSE(arenas.begin_persisting(lost.slot)) << "its line is open";
    arenas.replicas_closed(1, false);
    arenas.replicas_closed(2, true);
    EXPECT_FALSE(arenas.is_persisting());
    EXPECT_FALSE(arenas.begin_persisting(left.slot));
    EXPECT_TRUE(arenas.find(9, {4, 1, 10})) << "it serves all the same";
    EXPECT_TRUE(arenas.begin_persisting(lost.slot));
    EXPECT_FALSE(arenas.begin_persisting(lost.slot)) << "it is being written";
    arenas.persisted(lost.slot, true);
    EXPECT_FALSE(arenas.begin_persisting(lost.slot));
}

// Whatever happens in whatever order: what find() returns is whole and of that name, the newest of each rank stays, the budget holds.
TEST(TheArenas, KeepTheirPromisesOverRandomHistories) {
    for (std::uint32_t seed = 0; seed < 300; ++seed) {
        std::mt19937 random(seed);
        Arenas arenas;
        std::map<SlotNumber, SnapshotId> content;       // what whoever copies has put there
        std::map<std::uint32_t, SnapshotId> newest;     // by rank
        std::map<LineNumber, std::uint32_t> lines;      // open ones, and their ranks
        std::map<LineNumber, SlotNumber> filling;
        LineNumber next_line = 1;
        std::uint32_t attempt = 1;
        std::uint64_t step = 0;
        std::vector<SlotNumber> persisting;
        const std::uint64_t budget = 7 * kSize;
        for (int i = 0; i < 300; ++i) {
            const auto any_line = [&] { return std::next(lines.begin(), static_cast<long>(random() % lines.size())); };
            switch (random() % 8) {
                case 0:
                    if (lines.size() < 3) lines[next_line++] = static_cast<std::uint32_t>(lines.size());
                    break;
                case 1:
                case 2: {
                    if (lines.empty()) break;
                    const auto [line, rank] = *any_line();
                    const auto given = arenas.want(line, rank, attempt, kSize, budget);
                    for (const SlotNumber slot : given.dropped) content.erase(slot);
                    if (given.slot == 0) break;
                    content[given.slot] = {99, 99, 99};
                    filling[line] = given.slot;
                    break;
                }
                case 3:
                case 4: {
                    if (filling.empty()) break;
                    const auto [line, slot] = *filling.begin();
                    const SnapshotId id{lines.at(line), attempt, ++step};
                    ASSERT_TRUE(arenas.whole(line, slot, step, 10, 10));
                    content[slot] = newest[id.rank] = id;
                    filling.erase(line);
                    break;
                }
                case 5: {
                    if (lines.empty()) break;
                    const auto [line, rank] = *any_line();
                    for (const SlotNumber slot : arenas.closed(line)) persisting.push_back(slot);
                    lines.erase(line);
                    filling.erase(line);
                    if (lines.empty()) ++attempt;
                    break;
                }
                case 6:
                    if (persisting.empty()) break;
                    arenas.persisted(persisting.back(), random() % 2 == 0);
                    persisting.pop_back();
                    break;
                case 7:
                    for (const auto& [rank, id] : newest) {
                        const auto found = arenas.find(1000, id);
                        ASSERT_TRUE(found) << "seed " << seed;
                        ASSERT_EQ(content.at(*found), id) << "seed " << seed;
                    }
                    arenas.done(1000);
                    break;
            }
            ASSERT_LE(arenas.bytes(), budget) << "seed " << seed;
        }
    }
}

}  // namespace
}  // namespace gangline::checkpoint
