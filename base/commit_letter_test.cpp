#include "base/commit_letter.h"

#include <gtest/gtest.h>

#include "base/retention.h"
#include "base/worker_protocol.h"

namespace gangline {
namespace {

TEST(ACommitLetter, ComesBackAsItWasWritten) {
    CommitLetter letter{std::string(32, 'd'), 1ull << 40, -0.25, {}};
    letter.marks = {{100, 1, true, false}, {1ull << 50, 7, false, true}, {200, 2, true, true}};
    const auto read = decode_commit(encode(letter));
    ASSERT_TRUE(read);
    EXPECT_EQ(read->manifest_sha256, letter.manifest_sha256);
    EXPECT_EQ(read->bytes, letter.bytes);
    EXPECT_EQ(read->metric, letter.metric);
    ASSERT_EQ(read->marks.size(), 3u);
    EXPECT_EQ(read->marks[1].step, 1ull << 50);
    EXPECT_EQ(read->marks[1].attempt, 7u);
    EXPECT_TRUE(read->marks[0].is_pinned && !read->marks[0].is_verified && !read->marks[1].is_pinned && read->marks[1].is_verified);
    EXPECT_FALSE(decode_commit(encode(CommitLetter{std::string(32, 'd'), 1, std::nullopt, {}}))->metric);
}

TEST(ACommitLetter, MayEndBehindItsBytesAndNowhereElse) {
    const std::string whole = encode(CommitLetter{std::string(32, 'd'), 5, 1.5, {{1, 1, true, false}}});
    for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_EQ(decode_commit(whole.substr(0, size)).has_value(), size == 40) << size;
    EXPECT_FALSE(decode_commit(whole + "x"));
    EXPECT_EQ(decode_commit(whole.substr(0, 40))->bytes, 5u);
}

TEST(ACommitLetter, NamesTheNewestWhereThereAreTooMany) {
    CommitLetter letter{std::string(32, 'd'), 5, std::nullopt, {}};
    for (std::uint64_t step = 1; step <= kMostMarks + 10; ++step) letter.marks.push_back({step, 1, true, false});
    const auto read = decode_commit(encode(letter));
    ASSERT_TRUE(read);
    EXPECT_EQ(read->marks.size(), kMostMarks);
    EXPECT_EQ(read->marks.front().step, 11u);
}

TEST(ACommitAnswer, ComesBackAsItWasWritten) {
    const CommitAnswer answer{true, {{100, 1}, {200, 3}}, 1000, "fine"};
    const std::string whole = encode(answer);
    const auto read = decode_commit_answer(whole);
    ASSERT_TRUE(read);
    EXPECT_TRUE(read->accepted);
    ASSERT_EQ(read->keep.size(), 2u);
    EXPECT_EQ(read->keep[1].step, 200u);
    EXPECT_EQ(read->keep[1].attempt, 3u);
    EXPECT_EQ(read->keep_every, 1000u);
    EXPECT_EQ(read->reason, "fine");
    for (std::size_t size = 0; size < whole.size() - 4; ++size) EXPECT_FALSE(decode_commit_answer(whole.substr(0, size))) << size;
    EXPECT_FALSE(decode_commit_answer(std::string("\1\xff\xff\xff\xff", 5) + std::string(100, 'x')));
}

// Last, best, unverified, the newest verified, one that is restored, and as many pinned as a letter names.
TEST(ACommitAnswer, FitsIntoALetterHoweverManyStay) {
    CommitAnswer answer{true, {}, 1, ""};
    answer.keep.resize(3 * kMostKept + kMostMarks + 2);
    const std::string whole = encode(answer);
    EXPECT_LE(whole.size(), kMostWorkerPayload);
    EXPECT_EQ(decode_commit_answer(whole)->keep.size(), answer.keep.size());
}

}  // namespace
}  // namespace gangline
