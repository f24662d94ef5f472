#include "runner/agent/node_claim.h"

#include <gtest/gtest.h>
#include <pwd.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/process.h"

namespace gangline::runner {
namespace {

TEST(NodeClaim, IsHeldByOneAndFreeAfterIt) {
    const std::string cluster = "test" + random_hex(4);
    auto first = claim_node(cluster, "n0", {});
    ASSERT_TRUE(first.ok() && *first);
    const auto second = claim_node(cluster, "n0", {});
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code, Code::Refused);
    EXPECT_NE(second.error().message.find(fmt::format("process {}", ::getpid())), std::string::npos) << second.error().message;
    EXPECT_TRUE(claim_node(cluster, "n1", {}).ok()) << "another node";
    EXPECT_TRUE(claim_node(cluster + "x", "n0", {}).ok()) << "another cluster";
    first->reset();
    EXPECT_TRUE(claim_node(cluster, "n0", {}).ok());
}

TEST(NodeClaim, WaitsForAHolderThatIsDying) {
    const std::string cluster = "test" + random_hex(4);
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t holder = ::fork();
    if (holder == 0) {
        const auto claim = claim_node(cluster, "n0", {});
        (void)!::write(ends[1], claim.ok() ? "+" : "-", 1);
        ::pause();
        ::_exit(0);
    }
    char byte = 0;
    ASSERT_EQ(::read(ends[0], &byte, 1), 1);
    ASSERT_EQ(byte, '+');
    ASSERT_FALSE(claim_node(cluster, "n0", {}).ok());
    ::kill(holder, SIGKILL);
    EXPECT_TRUE(claim_node(cluster, "n0", seconds(20)).ok());
    ::waitpid(holder, nullptr, 0);
}

TEST(NodeClaim, AnotherUserKeepsNobodyFromHisNode) {
    if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
    const passwd* user = ::getpwnam("games");
    ASSERT_NE(user, nullptr);
    const std::string cluster = "test" + random_hex(4);
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t squatter = ::fork();
    if (squatter == 0) {
        const bool became = ::setgid(user->pw_gid) == 0 && ::setuid(user->pw_uid) == 0;
        const auto claim = claim_node(cluster, "n0", {});
        (void)!::write(ends[1], became && claim.ok() ? "+" : "-", 1);
        ::pause();
        ::_exit(0);
    }
    char byte = 0;
    ASSERT_EQ(::read(ends[0], &byte, 1), 1);
    ASSERT_EQ(byte, '+');
    const auto claim = claim_node(cluster, "n0", {});
    EXPECT_TRUE(claim.ok());
    EXPECT_FALSE(claim.ok() && *claim);
    ::kill(squatter, SIGKILL);
    ::waitpid(squatter, nullptr, 0);
}

}  // namespace
}  // namespace gangline::runner
