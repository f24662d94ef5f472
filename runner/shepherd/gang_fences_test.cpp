#include "runner/shepherd/gang_fences.h"

#include <gtest/gtest.h>

namespace gangline::runner {
namespace {

proto::Fence part(const std::string& key, const std::string& blob, bool partial = false) {
    proto::Fence fence;
    fence.set_key(key);
    fence.set_blob(blob);
    fence.set_partial(partial);
    return fence;
}

const std::vector<GangFences::Range> kTwoNodes = {{0, 0, 2}, {1, 2, 2}};

TEST(GangFences, TheAnswerIsDueWhenEveryNodeHasGivenItsPart) {
    GangFences fences;
    fences.add_gang("c-1.1.0", kTwoNodes);
    EXPECT_TRUE(fences.add(1, part("c-1.1.0:*#0", "BB")).empty());
    const auto done = fences.add(0, part("c-1.1.0:*#0", "A"));
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].blob(), "ABB");
    EXPECT_FALSE(done[0].failed());
    EXPECT_EQ(fences.participants("c-1.1.0:*#0"), (std::set<std::uint32_t>{0, 1}));
}

TEST(GangFences, APartThatComesBeforeItsGangIsKept) {
    GangFences fences;
    EXPECT_TRUE(fences.add(0, part("c-1.1.0:*#0", "A")).empty());
    EXPECT_TRUE(fences.add(1, part("c-1.1.0:*#0", "B")).empty());
    const auto done = fences.add_gang("c-1.1.0", kTwoNodes);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].blob(), "AB");
}

TEST(GangFences, APartThatComesAgainGetsItsAnswerAgain) {
    GangFences fences;
    fences.add_gang("g", kTwoNodes);
    fences.add(0, part("g:*#0", "A"));
    EXPECT_TRUE(fences.add(0, part("g:*#0", "A")).empty());
    EXPECT_EQ(fences.add(1, part("g:*#0", "B")).size(), 1u);
    const auto again = fences.add(1, part("g:*#0", "B"));
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(again[0].blob(), "AB");
}

TEST(GangFences, OnlyTheNodesOfTheNamedRanksTakePart) {
    GangFences fences;
    fences.add_gang("g", {{0, 0, 1}, {1, 1, 1}, {2, 2, 1}});
    EXPECT_TRUE(fences.add(2, part("g:0|g:2#3", "C")).empty());
    const auto done = fences.add(0, part("g:0|g:2#3", "A"));
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].blob(), "AC");
    EXPECT_EQ(fences.participants("g:0|g:2#3"), (std::set<std::uint32_t>{0, 2}));
}

TEST(GangFences, ADeadParticipantFailsTheFenceForAll) {
    GangFences fences;
    fences.add_gang("g", kTwoNodes);
    fences.add(1, part("g:*#2", "", true));
    const auto done = fences.add(0, part("g:*#2", "A"));
    ASSERT_EQ(done.size(), 1u);
    EXPECT_TRUE(done[0].failed());
    EXPECT_TRUE(done[0].blob().empty());
}

TEST(GangFences, AFailedGangFailsWaitingAndLaterFences) {
    GangFences fences;
    fences.add_gang("g", kTwoNodes);
    fences.add_gang("h", kTwoNodes);
    fences.add(1, part("g:*#0", "B"));
    fences.add(1, part("h:*#0", "B"));
    const auto done = fences.fail("g");
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].key(), "g:*#0");
    EXPECT_TRUE(done[0].failed());
    const auto later = fences.add(0, part("g:*#1", "A"));
    ASSERT_EQ(later.size(), 1u);
    EXPECT_TRUE(later[0].failed());
    const auto other = fences.add(0, part("h:*#0", "A"));
    ASSERT_EQ(other.size(), 1u);
    EXPECT_EQ(other[0].blob(), "AB");
}

TEST(GangFences, WhatIsUnansweredIsForgottenWithItsAnswer) {
    GangFences fences;
    fences.remember(part("g:*#0", "A"));
    ASSERT_EQ(fences.unanswered().size(), 1u);
    fences.forget("g:*#0");
    EXPECT_TRUE(fences.unanswered().empty());
}

TEST(GangFences, AKeyThatIsNoneIsDropped) {
    GangFences fences;
    fences.add_gang("g", kTwoNodes);
    for (const char* key : {"", "g", "#1", "g#1", "g:x#1", ":*#1", "g:*|#1"}) {
        EXPECT_FALSE(parse_fence_key(key)) << key;
        EXPECT_TRUE(fences.add(0, part(key, "A")).empty()) << key;
    }
    const auto members = parse_fence_key("a:b-1.1.0:*#12");
    ASSERT_TRUE(members);
    EXPECT_EQ(members->front().name_space, "a:b-1.1.0");
}

}  // namespace
}  // namespace gangline::runner
