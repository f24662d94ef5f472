#include "runner/shepherd/pmix_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gangline::runner {
namespace {

using testing::Contains;
using testing::Not;
using testing::StartsWith;

TEST(MpiEnvironment, ARankIsMarkedAsLaunchedElseItWouldBeAloneInItsWorld) {
    EXPECT_THAT(mpi_environment({"A=1"}, {}), Contains("JSM_JSRUN_PORT=0"));
    EXPECT_THAT(mpi_environment({"JSM_JSRUN_PORT=7"}, {}), Contains("JSM_JSRUN_PORT=0"));
}

TEST(MpiEnvironment, WhatAnotherLauncherSetForItsOwnRanksIsDropped) {
    const auto result = mpi_environment({"PMIX_RANK=3", "OMPI_COMM_WORLD_RANK=3", "OMPI_MCA_orte_hnp_uri=x", "OMPI_MCA_ess=env",
                                         "FLUX_JOB_ID=1", "PMI_RANK=2", "HOME=/root"}, {});
    EXPECT_THAT(result, Contains("HOME=/root"));
    for (const char* name : {"PMIX_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte", "OMPI_MCA_ess", "FLUX_", "PMI_RANK"}) {
        EXPECT_THAT(result, Not(Contains(StartsWith(name)))) << name;
    }
}

TEST(MpiEnvironment, TheUsersOwnSettingsWin) {
    const auto result = mpi_environment({"OMPI_MCA_mpi_yield_when_idle=0", "OMPI_MCA_pml=ucx"}, {"/dev/shm/x", "127.0.0.1", true});
    EXPECT_THAT(result, Contains("OMPI_MCA_mpi_yield_when_idle=0"));
    EXPECT_THAT(result, Not(Contains("OMPI_MCA_mpi_yield_when_idle=1")));
    EXPECT_THAT(result, Contains("OMPI_MCA_pml=ucx"));
    EXPECT_THAT(result, Not(Contains("OMPI_MCA_pml=ob1")));
    EXPECT_THAT(result, Contains("OMPI_MCA_btl_vader_backing_directory=/dev/shm/x"));
    EXPECT_THAT(result, Contains("OMPI_MCA_btl_tcp_if_include=lo"));
}

TEST(MpiEnvironment, TheInterfaceIsFoundByItsAddress) {
    EXPECT_EQ(interface_of("127.0.0.1"), "lo");
    EXPECT_EQ(interface_of("127.0.3.4"), "lo");
    EXPECT_EQ(interface_of("203.0.113.77"), "");
    EXPECT_EQ(interface_of(""), "");
}

}  // namespace
}  // namespace gangline::runner
