// Whole shepherds on two nodes, with this test as their agent: MPI programs that nobody here wrote, and scripts whose steps
// run on both nodes. This program is also the `srun` and `gangline launch` of those scripts.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <memory>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/output_log.h"
#include "base/process.h"
#include "base/protocol/shepherd.pb.h"
#include "runner/shepherd/launch_client.h"
#include "runner/shepherd/serve.h"

namespace gangline::runner {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAreArray;

const std::string kProbe = MPI_PROBE;
constexpr Duration kLimit = seconds(60);

// One shepherd and the agent's end of its line.
class Node {
  public:
    Node(const std::string& folder, const std::string& cluster, const std::string& name) : spool(folder + "/" + name) {
        EXPECT_TRUE(make_folders(spool, 0700).ok());
        const std::string socket_name = "gangline-test-" + random_hex(8);
        auto listener = listen_abstract(socket_name, SOCK_STREAM);
        EXPECT_TRUE(listener.ok());
        pid_ = ::fork();
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            ShepherdStart start;
            start.listen_fd = listener->release();
            start.spool_folder = spool;
            start.node = name;
            start.address = "127.0.0.1";
            start.cluster = cluster;
            start.warm = true;
            ::_exit(shepherd_serve(start));
        }
        auto socket = connect_abstract(socket_name, SOCK_STREAM);
        EXPECT_TRUE(socket.ok());
        fd_ = std::move(*socket);
    }
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;
    ~Node() {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    void send(const proto::ToShepherd& message) {
        writer_.push(message.SerializeAsString());
        EXPECT_TRUE(writer_.flush(fd_.get()).ok());
    }
    void read() {
        is_open = reader_.fill(fd_.get()).ok();
        while (const auto frame = reader_.next()) {
            proto::FromShepherd message;
            ASSERT_TRUE(message.ParseFromString(*frame));
            if (message.has_report() && message.report().revision() > report.revision()) report = message.report();
        }
    }
    int fd() const { return fd_.get(); }
    pid_t pid() const { return pid_; }
    // What the ranks wrote, by lines, each with its rank: "2: text".
    std::vector<std::string> lines() const {
        std::map<std::uint32_t, std::string> texts;
        const auto file = read_file(spool + "/output.log");
        std::string_view bytes = file ? std::string_view(*file) : std::string_view();
        OutputRecord record;
        while (next_output_record(bytes, record)) texts[record.header.rank] += record.data;
        std::vector<std::string> result;
        for (const auto& [rank, text] : texts) {
            std::size_t from = 0;
            for (auto end = text.find('\n'); end != std::string::npos; from = end + 1, end = text.find('\n', from)) {
                result.push_back(fmt::format("{}: {}", rank, std::string_view(text).substr(from, end - from)));
            }
        }
        return result;
    }
    std::string log() const {
        const auto text = read_file(spool + "/shepherd.log");
        return text ? *text : "";
    }
    std::string spool;
    proto::AttemptReport report;
    bool is_open = true;

  private:
    pid_t pid_ = 0;
    Fd fd_;
    FrameReader reader_;
    FrameWriter writer_;
};

class Gang {
  public:
    explicit Gang(const std::vector<std::uint32_t>& layout) {
        folder_ = "/tmp/gangline-test-" + random_hex(6);
        cluster_ = "t" + random_hex(6);
        std::uint32_t next = 0;
        for (std::size_t i = 0; i < layout.size(); ++i) {
            proto::Placement placement;
            placement.set_node("n" + std::to_string(i));
            placement.set_address("127.0.0.1");
            placement.set_first_rank(next);
            placement.set_rank_count(layout[i]);
            next += layout[i];
            placements_.push_back(placement);
            nodes.push_back(std::make_unique<Node>(folder_, cluster_, placement.node()));
        }
        spec.set_name("test");
        spec.set_ranks(next);
        spec.set_cwd("/tmp");
        set_variable("PATH", "/usr/local/bin:/usr/bin:/bin");
        set_variable("HOME", "/root");
    }
    ~Gang() {
        nodes.clear();
        EXPECT_TRUE(remove_tree(folder_).ok());
        // Left by a shepherd that was killed above before its gang was gone.
        for (const auto& placement : placements_) {
            EXPECT_TRUE(remove_tree(fmt::format("/dev/shm/gangline-{}-{}-5-1", cluster_, placement.node())).ok());
        }
    }
    void set_variable(const std::string& name, const std::string& value) {
        proto::Variable& variable = *spec.add_environment();
        variable.set_name(name);
        variable.set_value(value);
    }
    bool wait(const std::function<bool()>& until) {
        const TimePoint end = now().steady + kLimit;
        while (!until()) {
            std::vector<pollfd> waiting;
            for (const auto& node : nodes) waiting.push_back({node->is_open ? node->fd() : -1, POLLIN, 0});
            const auto left = to_ms(end - now().steady);
            if (left <= 0 || ::poll(waiting.data(), waiting.size(), static_cast<int>(left)) <= 0) return false;
            for (std::size_t i = 0; i < waiting.size(); ++i) {
                if (waiting[i].revents != 0) nodes[i]->read();
            }
        }
        return true;
    }
    bool wait_phase(proto::AttemptPhase phase) {
        return wait([&] {
            return std::all_of(nodes.begin(), nodes.end(), [&](const auto& node) { return node->report.phase() >= phase && node->report.has_id(); });
        });
    }
    void start() {
        for (std::uint32_t i = 0; i < nodes.size(); ++i) {
            proto::ToShepherd identity;
            identity.mutable_identity()->set_node(placements_[i].node());
            identity.mutable_identity()->set_cluster(cluster_);
            identity.mutable_identity()->set_spool_folder(nodes[i]->spool);
            identity.mutable_identity()->set_address("127.0.0.1");
            nodes[i]->send(identity);
            proto::ToShepherd message;
            proto::Prepare& prepare = *message.mutable_prepare();
            prepare.mutable_id()->set_job(5);
            prepare.mutable_id()->set_attempt(1);
            *prepare.mutable_spec() = spec;
            for (const auto& placement : placements_) *prepare.add_gang() = placement;
            prepare.set_node_index(i);
            prepare.set_checkpoint_folder(folder_ + "/checkpoints");
            prepare.set_user("root");
            nodes[i]->send(message);
        }
        ASSERT_TRUE(wait_phase(proto::ATTEMPT_PREPARED)) << story();
        proto::ToShepherd message;
        proto::Launch& launch = *message.mutable_launch();
        launch.mutable_id()->set_job(5);
        launch.mutable_id()->set_attempt(1);
        launch.set_lead_endpoint(nodes[0]->report.gang_endpoint());
        launch.set_master_port(nodes[0]->report.master_port());
        for (std::uint32_t i = 0; i < nodes.size(); ++i) {
            proto::Peer& peer = *launch.add_peers();
            peer.set_node_index(i);
            peer.set_gang_key(nodes[i]->report.gang_key());
        }
        for (std::size_t i = nodes.size(); i-- > 0;) nodes[i]->send(message);
    }
    void stop() {
        for (const auto& node : nodes) {
            proto::ToShepherd message;
            message.mutable_stop()->mutable_id()->set_job(5);
            message.mutable_stop()->mutable_id()->set_attempt(1);
            message.mutable_stop()->set_reason("test");
            node->send(message);
        }
    }
    // The lead is gone by itself when its script has ended; the coordinator then stops the other nodes.
    bool wait_script() {
        if (!wait([&] { return nodes[0]->report.phase() == proto::ATTEMPT_GONE; })) return false;
        stop();
        return wait_phase(proto::ATTEMPT_GONE);
    }
    void release() {
        for (const auto& node : nodes) {
            proto::ToShepherd message;
            message.mutable_release()->mutable_id()->set_job(5);
            message.mutable_release()->mutable_id()->set_attempt(1);
            node->send(message);
        }
        EXPECT_TRUE(wait([&] {
            return std::none_of(nodes.begin(), nodes.end(), [](const auto& node) { return node->is_open; });
        }));
    }
    std::vector<std::string> lines() const {
        std::vector<std::string> all;
        for (const auto& node : nodes) {
            for (const std::string& line : node->lines()) all.push_back(line);
        }
        return all;
    }
    bool has_line(const std::string& line) const {
        const auto all = lines();
        return std::find(all.begin(), all.end(), line) != all.end();
    }
    const proto::RankReport* rank(std::uint32_t number) const {
        for (const auto& node : nodes) {
            for (const auto& report : node->report.ranks()) {
                if (report.rank() == number && report.step_id() == 0) return &report;
            }
        }
        return nullptr;
    }
    void command(const std::vector<std::string>& words) {
        for (const std::string& word : words) spec.add_argv(word);
    }
    std::string story() const {
        std::string text;
        for (const auto& node : nodes) text += node->report.DebugString() + node->log();
        for (const std::string& line : lines()) text += line + "\n";
        return text;
    }
    proto::JobSpec spec;
    std::vector<std::unique_ptr<Node>> nodes;

  private:
    std::string folder_;
    std::string cluster_;
    std::vector<proto::Placement> placements_;
};

std::vector<std::string> sums(const std::vector<std::string>& lines) {
    std::vector<std::string> found;
    for (const std::string& line : lines) {
        if (line.find(" sum ") != std::string::npos) found.push_back(line);
    }
    return found;
}

TEST(ShepherdGang, AnMpiProgramOnTwoNodesIsOneWorldAndEndsByItself) {
    Gang gang({2, 2});
    gang.command({kProbe, "allreduce"});
    gang.start();
    ASSERT_TRUE(gang.wait_phase(proto::ATTEMPT_GONE)) << gang.story();
    const std::vector<std::string> right = {"0: rank 0 of 4 sum 6 node 2", "1: rank 1 of 4 sum 6 node 2", "2: rank 2 of 4 sum 6 node 2",
                                            "3: rank 3 of 4 sum 6 node 2"};
    EXPECT_THAT(sums(gang.lines()), UnorderedElementsAreArray(right)) << gang.story();
    for (std::uint32_t i = 0; i < 4; ++i) {
        ASSERT_NE(gang.rank(i), nullptr);
        EXPECT_EQ(gang.rank(i)->state(), proto::RANK_EXITED);
        EXPECT_EQ(gang.rank(i)->exit_code(), 0);
    }
    gang.release();
}

TEST(ShepherdGang, ProgramsOfOthersRunUnchangedOnAnUnevenLayout) {
    if (::access("/usr/bin/python3", X_OK) != 0 || std::system("/usr/bin/python3 -c 'import mpi4py' 2>/dev/null") != 0) {
        GTEST_SKIP() << "python3-mpi4py is not installed";
    }
    Gang gang({3, 1});
    gang.command({"/usr/bin/python3", "-m", "mpi4py.bench", "ringtest", "-n", "1000", "-l", "10"});
    gang.start();
    ASSERT_TRUE(gang.wait_phase(proto::ATTEMPT_GONE)) << gang.story();
    EXPECT_THAT(gang.lines(), testing::Contains(HasSubstr("time for 10 loops"))) << gang.story();
}

TEST(ShepherdGang, AKilledRankIsReportedAndTheGangStopsByOrder) {
    Gang gang({2, 2});
    gang.command({kProbe, "loop"});
    gang.start();
    ASSERT_TRUE(gang.wait([&] {
        const auto lines = gang.lines();
        return std::count_if(lines.begin(), lines.end(), [](const std::string& line) { return line.find("looping") != std::string::npos; }) == 4 &&
               gang.rank(3) != nullptr;
    })) << gang.story();
    EXPECT_EQ(gang.rank(3)->state(), proto::RANK_JOINED) << gang.story();
    ::kill(gang.rank(3)->pid(), SIGKILL);
    ASSERT_TRUE(gang.wait([&] { return gang.rank(3)->state() == proto::RANK_EXITED; })) << gang.story();
    EXPECT_EQ(gang.rank(3)->signal(), SIGKILL);
    EXPECT_EQ(gang.rank(0)->state(), proto::RANK_JOINED) << "the shepherds decide nothing";
    gang.stop();
    ASSERT_TRUE(gang.wait_phase(proto::ATTEMPT_GONE)) << gang.story();
    gang.release();
}

TEST(ShepherdGang, LeavingMpiWithoutFinalizeIsAFailureInSpiteOfCodeZero) {
    Gang gang({1, 1});
    gang.command({kProbe, "leave"});
    gang.start();
    ASSERT_TRUE(gang.wait([&] { return gang.rank(1) != nullptr && gang.rank(1)->state() == proto::RANK_EXITED; })) << gang.story();
    EXPECT_NE(gang.rank(1)->exit_code(), 0) << gang.story();
    gang.stop();
    ASSERT_TRUE(gang.wait_phase(proto::ATTEMPT_GONE)) << gang.story();
}

TEST(ShepherdGang, AScriptStartsStepsOnBothNodes) {
    Gang gang({2, 2});
    gang.spec.set_script(fmt::format("#!/bin/bash\n"
                                     "srun -l {0} allreduce | grep sum\n"
                                     "echo \"status ${{PIPESTATUS[0]}}\"\n"
                                     "gangline launch -n 2 sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME'\n"
                                     "srun -n 4 sh -c 'exit $SLURM_PROCID'; echo \"status $?\"\n"
                                     "srun -n 2 -K sh -c '[ $SLURM_PROCID = 1 ] && exit 5; exec sleep 60'; echo \"status $?\"\n"
                                     "srun -n 9 true; echo \"status $?\"\n"
                                     "srun /no/such/program; echo \"status $?\"\n"
                                     "(srun -n 1 sh -c 'sleep 0.2; echo a') & srun -n 1 echo b & wait\n"
                                     "exit 3\n",
                                     kProbe));
    gang.start();
    ASSERT_TRUE(gang.wait_script()) << gang.story();
    for (int rank = 0; rank < 4; ++rank) {
        EXPECT_TRUE(gang.has_line(fmt::format("0: {}: rank {} of 4 sum 6 node 2", rank, rank))) << gang.story();
    }
    EXPECT_TRUE(gang.has_line("0: 0 of 2 on n0")) << gang.story();
    EXPECT_TRUE(gang.has_line("0: 1 of 2 on n1")) << gang.story();
    std::vector<std::string> statuses;
    for (const std::string& line : gang.nodes[0]->lines()) {
        if (line.find("0: status") == 0) statuses.push_back(line);
    }
    EXPECT_THAT(statuses, testing::ElementsAre("0: status 0", "0: status 3", "0: status 5", "0: status 3", "0: status 127")) << gang.story();
    EXPECT_TRUE(gang.has_line("0: a") && gang.has_line("0: b")) << gang.story();
    EXPECT_TRUE(gang.nodes[0]->report.script_ended());
    ASSERT_NE(gang.rank(0), nullptr);
    EXPECT_EQ(gang.rank(0)->exit_code(), 3);
}

TEST(ShepherdGang, AStepThatLosesAnMpiRankEndsForTheScript) {
    Gang gang({2, 2});
    gang.spec.set_script(fmt::format("#!/bin/bash\n"
                                     "srun sh -c '[ $SLURM_PROCID = 3 ] && ( sleep 1; kill -9 $$ ) & exec {0} loop'\n"
                                     "echo \"status $?\"\n"
                                     "srun {0} allreduce | grep -c sum\n",
                                     kProbe));
    gang.start();
    ASSERT_TRUE(gang.wait_script()) << gang.story();
    EXPECT_TRUE(gang.has_line("0: status 137")) << gang.story();
    EXPECT_TRUE(gang.has_line("0: 4")) << gang.story();
}

}  // namespace
}  // namespace gangline::runner

int main(int argc, char** argv) {
    const std::string program = argv[0];
    if (program.substr(program.rfind('/') + 1) == "srun") return gangline::runner::launch_main(argc, argv);
    if (argc > 1 && std::string(argv[1]) == "launch") return gangline::runner::launch_main(argc - 1, argv + 1);
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
