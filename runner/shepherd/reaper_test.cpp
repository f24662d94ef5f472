#include "runner/shepherd/reaper.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace gangline::runner {
namespace {

// A double: plain files in place of a cgroup, for the memory controller is seldom delegated where tests run.
TEST(RankCgroup, CountsWhatTheKernelHasKilledForWantOfMemory) {
    char name[] = "/tmp/gangline-cgroup-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    const std::string ranks = std::string(name) + "/ranks";
    ASSERT_EQ(::mkdir(ranks.c_str(), 0700), 0);
    std::ofstream(ranks + "/cgroup.procs") << "";
    const auto group = RankCgroup::create(name);
    ASSERT_TRUE(group);
    EXPECT_EQ(group->killed_for_memory(), 0u) << "no such file";
    std::ofstream(ranks + "/memory.events") << "low 0\nhigh 0\nmax 7\noom 2\noom_kill 0\noom_group_kill 0\n";
    EXPECT_EQ(group->killed_for_memory(), 0u) << "oom is not oom_kill, nor is oom_group_kill";
    std::ofstream(ranks + "/memory.events") << "low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 9\n";
    EXPECT_EQ(group->killed_for_memory(), 3u);
    for (const char* file : {"/memory.events", "/cgroup.procs"}) ::unlink((ranks + file).c_str());
    ::rmdir(ranks.c_str());
    ::rmdir(name);
}

}  // namespace
}  // namespace gangline::runner
