#include "runner/agent/leftovers.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/handle.h"
#include "base/process.h"

namespace gangline::runner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class SpoolFolder : public testing::Test {
  protected:
    void SetUp() override {
        char pattern[] = "/tmp/gangline-spools-XXXXXX";
        root_ = ::mkdtemp(pattern);
    }
    void TearDown() override { (void)remove_tree(root_); }
    void make(const std::string& name, off_t bytes, int changed_s) const {
        const std::string path = root_ + "/" + name;
        ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
        const Fd log(::open((path + "/output.log").c_str(), O_WRONLY | O_CREAT, 0600));
        ASSERT_TRUE(static_cast<bool>(log));
        ASSERT_EQ(::truncate((path + "/output.log").c_str(), bytes), 0);
        const timespec times[2] = {{changed_s, 0}, {changed_s, 0}};
        ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    }
    std::string root_;
};

TEST_F(SpoolFolder, KeepsTheNewestFiftyThatHaveEnded) {
    Spools spools(root_);
    EXPECT_THAT(spools.scan({}), IsEmpty());
    for (int i = 1; i <= 50; ++i) {
        make(fmt::format("{}-1", i), 10, i);
        EXPECT_THAT(spools.add_ended(fmt::format("{}-1", i)), IsEmpty());
    }
    make("51-1", 10, 51);
    EXPECT_THAT(spools.add_ended("51-1"), ElementsAre("1-1"));
}

TEST_F(SpoolFolder, MakesRoomWhenTheirLogsAreTooBig) {
    make("1-1", 100 << 20, 1);
    make("2-1", 100 << 20, 2);
    make("3-1", 100 << 20, 3);
    Spools spools(root_);
    EXPECT_THAT(spools.scan({"3-1"}), IsEmpty());
    EXPECT_THAT(spools.add_ended("3-1"), ElementsAre("1-1"));
}

TEST_F(SpoolFolder, AtItsStartRemovesOldSparesAndTouchesNothingInUse) {
    make("spare-100-1", 1, 1);
    make("spare-100-2", 1, 2);
    make("7-1", 1, 3);
    make("something else", 1, 3);
    Spools spools(root_);
    EXPECT_THAT(spools.scan({"spare-100-2", "7-1"}), UnorderedElementsAre("spare-100-1"));
}

TEST(LeftAttempts, AreFoundByTheirSharedMemoryAndNotMistakenForAnotherNodes) {
    const std::string cluster = "test" + random_hex(4);
    const std::string mine = fmt::format("/dev/shm/gangline-{}-n-12-3", cluster);
    const std::string others = fmt::format("/dev/shm/gangline-{}-n-1-12-4", cluster);  // node n-1
    if (::mkdir(mine.c_str(), 0700) != 0) GTEST_SKIP() << "no shared memory here";
    ASSERT_EQ(::mkdir(others.c_str(), 0700), 0);
    const auto left = left_attempts(cluster, "n");
    ::rmdir(mine.c_str());
    ::rmdir(others.c_str());
    ASSERT_EQ(left.size(), 1u);
    EXPECT_EQ(left[0].job(), 12u);
    EXPECT_EQ(left[0].attempt(), 3u);
}

TEST(ParseAttempt, TakesTwoNumbersAndNothingElse) {
    EXPECT_EQ(parse_attempt("7-2", '-').attempt(), 2u);
    for (const char* bad : {"7", "7-", "-2", "7-2-1", "7-2x", "a-1", "", "7 -2", "99999999999999999999-1"}) {
        EXPECT_EQ(parse_attempt(bad, '-').job(), 0u) << bad;
    }
}

}  // namespace
}  // namespace gangline::runner
