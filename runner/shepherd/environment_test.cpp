#include "runner/shepherd/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runner/shepherd/binding.h"
#include "runner/shepherd/rank_process.h"
#include "runner/shepherd/worker_line.h"

namespace gangline::runner {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

proto::Placement placement(const std::string& node, std::uint32_t first, std::uint32_t count, std::vector<std::uint32_t> cards = {}) {
    proto::Placement place;
    place.set_node(node);
    place.set_address("10.0.0." + std::to_string(first + 1));
    place.set_first_rank(first);
    place.set_rank_count(count);
    for (const std::uint32_t card : cards) place.add_cards(card);
    return place;
}

struct Fixture {
    Fixture() {
        prepare.mutable_id()->set_job(12);
        prepare.mutable_id()->set_attempt(3);
        prepare.set_restarts(2);
        prepare.mutable_spec()->set_cpus_per_rank(4);
        *prepare.add_gang() = placement("gpu1", 0, 2, {4, 5, 6, 7});
        *prepare.add_gang() = placement("gpu2", 2, 2, {0, 1, 2, 3});
        *prepare.add_gang() = placement("gpu3", 4, 1, {0, 1});
        launch.set_master_port(23456);
        node.prepare = &prepare;
        node.launch = &launch;
        node.gang.assign(prepare.gang().begin(), prepare.gang().end());
        node.node_index = 1;
        node.cluster = "c";
        node.progress_folder = "/dev/shm/x";
    }
    proto::Prepare prepare;
    proto::Launch launch;
    EnvironmentOfNode node;
};

TEST(Environment, ARankOfASecondNodeKnowsItsPlaceInTheWhole) {
    const Fixture f;
    const auto environment = rank_environment(f.node, f.prepare.spec().environment(), 1);
    for (const char* expected : {"RANK=3", "WORLD_SIZE=5", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "NODE_RANK=1", "MASTER_ADDR=10.0.0.1",
                                 "MASTER_PORT=23456", "CUDA_VISIBLE_DEVICES=2,3", "SLURM_JOB_NODELIST=gpu[1-3]", "SLURM_NTASKS=5",
                                 "SLURM_TASKS_PER_NODE=2(x2),1", "SLURM_CPUS_PER_TASK=4", "SLURM_GPUS_ON_NODE=4", "SLURM_RESTART_COUNT=2",
                                 "SLURM_STEP_ID=0", "GANGLINE_ATTEMPT=3", "GANGLINE_PROGRESS=/dev/shm/x/progress-0-3"}) {
        EXPECT_THAT(environment, Contains(expected));
    }
    EXPECT_EQ(environment[0], "GANGLINE_MARK=c/gpu2/12.3");
    EXPECT_THAT(environment, Not(Contains(StartsWith("GANGLINE_RESTORE_STEP"))));
}

TEST(Environment, ARankIsToldWhomToAskForKeepers) {
    Fixture f;
    for (int i = 0; i < f.prepare.gang_size(); ++i) f.prepare.mutable_gang(i)->set_replica_peer(static_cast<std::uint32_t>((i + 1) % f.prepare.gang_size()));
    f.node.gang.assign(f.prepare.gang().begin(), f.prepare.gang().end());
    EXPECT_EQ(value_in(rank_environment(f.node, f.prepare.spec().environment(), 0), "GANGLINE_REPLICA_RANK"), "4");
    f.prepare.mutable_gang(1)->set_replica_peer(1);
    EXPECT_THAT(rank_environment(f.node, f.prepare.spec().environment(), 0), Not(Contains(StartsWith("GANGLINE_REPLICA_RANK"))));
    auto& at = *f.launch.add_snapshots();
    at.set_first_rank(0);
    at.set_rank_count(2);
    at.add_node_indexes(2);
    auto& more = *f.launch.add_snapshots();
    more.set_first_rank(2);
    more.set_rank_count(3);
    more.add_node_indexes(0);
    more.add_node_indexes(1);
    more.add_node_indexes(7);  // there is none
    EXPECT_THAT(rank_environment(f.node, f.prepare.spec().environment(), 0), Not(Contains(StartsWith("GANGLINE_RESTORE_FROM")))) << "a fresh start";
    f.launch.mutable_restore()->set_step(5);
    EXPECT_EQ(value_in(rank_environment(f.node, f.prepare.spec().environment(), 0), "GANGLINE_RESTORE_FROM"), "0-1@4,2-4@0+2");
}

TEST(Environment, TheRunnersVariablesWinAndEachNameIsThereOnce) {
    Fixture f;
    for (const char* name : {"RANK", "GANGLINE_MARK", "GANGLINE_STEP_SOCKET", "PATH", "not a name"}) {
        auto& variable = *f.prepare.mutable_spec()->add_environment();
        variable.set_name(name);
        variable.set_value("users");
    }
    f.node.tools_folder = "/tools";
    const auto environment = rank_environment(f.node, f.prepare.spec().environment(), 0);
    EXPECT_THAT(environment, Contains("PATH=/tools:users"));
    EXPECT_THAT(environment, Not(Contains(StartsWith("GANGLINE_STEP_SOCKET"))));
    EXPECT_EQ(std::count_if(environment.begin(), environment.end(), [](const auto& one) { return one.starts_with("RANK="); }), 1);
    EXPECT_EQ(value_in(environment, "RANK"), "2");
}

TEST(Environment, AnElementOfAnArrayKnowsItsTaskAndNoOtherJobDoes) {
    Fixture f;
    for (const char* name : {"SLURM_ARRAY_TASK_ID", "GANGLINE_ARRAY_TASK"}) {
        auto& variable = *f.prepare.mutable_spec()->add_environment();
        variable.set_name(name);
        variable.set_value("of the job that submitted this one");
    }
    const auto none = rank_environment(f.node, f.prepare.spec().environment(), 0);
    EXPECT_THAT(none, Not(Contains(StartsWith("SLURM_ARRAY_"))));
    EXPECT_THAT(none, Not(Contains(StartsWith("GANGLINE_ARRAY_TASK"))));
    proto::ArrayElement& array = *f.prepare.mutable_spec()->mutable_array();
    array.set_job(7);
    array.set_task(8);
    array.set_count(3);
    array.set_least(4);
    array.set_most(12);
    array.set_step(4);
    for (const auto& environment : {rank_environment(f.node, f.prepare.spec().environment(), 0), script_environment(f.node)}) {
        for (const char* expected : {"SLURM_JOB_ID=12", "SLURM_ARRAY_JOB_ID=7", "SLURM_ARRAY_TASK_ID=8", "SLURM_ARRAY_TASK_COUNT=3",
                                     "SLURM_ARRAY_TASK_MIN=4", "SLURM_ARRAY_TASK_MAX=12", "SLURM_ARRAY_TASK_STEP=4", "GANGLINE_ARRAY_TASK=8"}) {
            EXPECT_THAT(environment, Contains(expected));
        }
    }
}

TEST(Environment, SizesAreLimitedAtTheByte) {
    proto::JobSpec spec;
    auto& variable = *spec.add_environment();
    variable.set_name("A");
    variable.set_value(std::string(kMostVariableBytes - 2, 'x'));
    EXPECT_TRUE(check_environment(spec.environment()).ok());
    variable.set_value(std::string(kMostVariableBytes - 1, 'x'));
    EXPECT_THAT(check_environment(spec.environment()).error().message, HasSubstr("A has 65537 bytes"));
    variable.set_value(std::string("a\0b", 3));
    EXPECT_FALSE(check_environment(spec.environment()).ok());
    spec.clear_environment();
    for (int i = 0; i < 17; ++i) {
        auto& one = *spec.add_environment();
        one.set_name("V" + std::to_string(i));
        one.set_value(std::string(63 * 1024, 'x'));
    }
    EXPECT_THAT(check_environment(spec.environment()).error().message, HasSubstr("in all"));
}

TEST(Binding, CardsOwnEqualSharesOfTheUnits) {
    const std::vector<unsigned> units = {0, 2, 4, 6, 1, 3, 5, 7};
    const auto share = share_of(units, 4, {1});
    ASSERT_TRUE(share.has_value());
    EXPECT_EQ(CPU_COUNT(&*share), 2);
    EXPECT_TRUE(CPU_ISSET(4, &*share));
    EXPECT_TRUE(CPU_ISSET(6, &*share));
    const auto two = share_of(units, 4, {2, 3});
    ASSERT_TRUE(two.has_value());
    EXPECT_EQ(CPU_COUNT(&*two), 4);
    EXPECT_FALSE(share_of(units, 16, {1}).has_value() && share_of(units, 16, {0}).has_value());  // more cards than units
    EXPECT_FALSE(share_of(units, 0, {1}).has_value());
    EXPECT_FALSE(share_of(units, 4, {}).has_value());
    EXPECT_FALSE(share_of(units, 4, {4}).has_value());
    EXPECT_FALSE(units_in_order().empty());
}

TEST(FindProgram, LooksAlongThePathAndSaysWhereItLooked) {
    EXPECT_EQ(*find_program("sh", "/nowhere:/bin", "/"), "/bin/sh");
    EXPECT_EQ(*find_program("./sh", "", "/bin"), "./sh");
    EXPECT_THAT(find_program("no-such", "/bin", "/").error().message, HasSubstr("PATH=/bin"));
    EXPECT_EQ(find_program("/etc/passwd", "", "/").error().code, Code::Refused);
    EXPECT_EQ(find_program("/bin", "", "/").error().code, Code::Refused);
    EXPECT_FALSE(find_program("", "/bin", "/").ok());
}

TEST(WorkerFrames, OnlyWholeFramesOfThisProtocolAreTaken) {
    WorkerHeader header;
    header.kind = static_cast<std::uint16_t>(WorkerKind::Relay);
    WorkerFrame frame;
    const std::string packet = encode(header, "payload");
    EXPECT_TRUE(decode(packet, frame));
    EXPECT_EQ(frame.payload, "payload");
    EXPECT_FALSE(decode(packet.substr(0, packet.size() - 1), frame));
    EXPECT_FALSE(decode(packet + "x", frame));
    EXPECT_FALSE(decode("", frame));
    header.kind = 99;
    EXPECT_FALSE(decode(encode(header, ""), frame));
    std::string magic = packet;
    magic[0] = 'X';
    EXPECT_FALSE(decode(magic, frame));
}

}  // namespace
}  // namespace gangline::runner
