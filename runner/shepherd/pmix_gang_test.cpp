// Open MPI programs under our PMIx servers, without mpirun: each node is a process of its own (pmix_node_test_program).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/handle.h"
#include "base/process.h"
#include "base/text.h"
#include "base/time.h"

namespace gangline::runner {
namespace {

constexpr Duration kLimit = seconds(60);

bool begins(const std::string& line, const std::string& prefix) { return line.substr(0, prefix.size()) == prefix; }

// A node process and what it has said so far.
class Node {
  public:
    Node(std::uint32_t index, const std::string& layout, const std::string& folder, const std::string& cluster) {
        int in[2], out[2];
        EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
        EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
        const std::string number = std::to_string(index);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            ::dup2(in[0], STDIN_FILENO);
            ::dup2(out[1], STDOUT_FILENO);
            ::execl(PMIX_NODE, PMIX_NODE, number.c_str(), layout.c_str(), folder.c_str(), cluster.c_str(), nullptr);
            ::_exit(127);
        }
        ::close(in[0]);
        ::close(out[1]);
        in_.reset(in[1]);
        out_.reset(out[0]);
    }
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;
    ~Node() {
        in_.reset();
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }

    void tell(const std::string& line) { EXPECT_TRUE(write_all(in_.get(), line + "\n").ok()); }
    int fd() const { return out_.get(); }
    bool read() {
        char bytes[65536];
        const ssize_t n = ::read(out_.get(), bytes, sizeof bytes);
        if (n <= 0) return false;
        rest_.append(bytes, static_cast<std::size_t>(n));
        for (auto end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n')) {
            lines.push_back(rest_.substr(0, end));
            rest_.erase(0, end + 1);
        }
        return true;
    }
    std::string line_with(const std::string& prefix) const {
        for (const std::string& line : lines) {
            if (begins(line, prefix)) return line;
        }
        return {};
    }
    std::vector<std::string> lines;

  private:
    pid_t pid_ = 0;
    Fd in_, out_;
    std::string rest_;
};

class Gang {
  public:
    explicit Gang(const std::string& layout) {
        folder_ = fmt::format("/dev/shm/gangline-test-{}", random_hex(6));
        const std::string cluster = "test" + random_hex(6);
        const auto counts = split(layout, ',');
        for (std::uint32_t i = 0; i < counts.size(); ++i) {
            nodes.push_back(std::make_unique<Node>(i, layout, fmt::format("{}/n{}", folder_, i), cluster));
        }
        const bool ready = wait([&] { return count("prepared ") == nodes.size(); });
        EXPECT_TRUE(ready) << story();
        endpoint_ = split(nodes[0]->line_with("prepared "), ' ').back();
        for (const auto& node : nodes) {
            const auto words = split(node->line_with("prepared "), ' ');
            keys_ += (keys_.empty() ? "" : ",") + (words.size() > 1 ? words[1] : std::string());
        }
    }
    ~Gang() {
        nodes.clear();
        EXPECT_TRUE(remove_tree(folder_).ok());
    }
    void launch(const std::string& command) {
        ++step_;
        // The others first: a lead that learns of its peers late is the harder case.
        for (std::size_t i = nodes.size(); i-- > 0;) nodes[i]->tell(fmt::format("launch {} {} {} {}", step_, endpoint_, keys_, command));
    }
    bool wait(const std::function<bool()>& until) {
        const TimePoint deadline = now().steady + kLimit;
        while (!until()) {
            std::vector<pollfd> waiting;
            for (const auto& node : nodes) waiting.push_back({node->fd(), POLLIN, 0});
            const auto left = to_ms(deadline - now().steady);
            if (left <= 0 || ::poll(waiting.data(), waiting.size(), static_cast<int>(left)) <= 0) return false;
            for (std::size_t i = 0; i < waiting.size(); ++i) {
                if (waiting[i].revents != 0 && !nodes[i]->read()) return until();
            }
        }
        return true;
    }
    std::vector<std::string> all(const std::string& prefix) const {
        std::vector<std::string> found;
        for (const auto& node : nodes) {
            for (const std::string& line : node->lines) {
                if (begins(line, prefix)) found.push_back(line);
            }
        }
        return found;
    }
    std::size_t count(const std::string& prefix) const { return all(prefix).size(); }
    bool wait_done(std::size_t times = 1) { return wait([&] { return count("done") == nodes.size() * times; }); }
    std::string story() const {
        std::string text;
        for (std::size_t i = 0; i < nodes.size(); ++i) {
            for (const std::string& line : nodes[i]->lines) text += fmt::format("n{}: {}\n", i, line);
        }
        return text;
    }
    std::vector<std::unique_ptr<Node>> nodes;

  private:
    std::string folder_;
    std::string endpoint_;
    std::string keys_;
    std::uint32_t step_ = 0;
};

const std::string kProbe = MPI_PROBE;

// The lines that ranks print after a right all-reduce.
std::vector<std::string> right_lines(const std::vector<std::uint32_t>& layout) {
    std::uint32_t size = 0;
    for (const std::uint32_t count : layout) size += count;
    std::vector<std::string> lines;
    std::uint32_t rank = 0;
    for (const std::uint32_t count : layout) {
        for (std::uint32_t i = 0; i < count; ++i, ++rank) {
            lines.push_back(fmt::format("out {} rank {} of {} sum {} node {}", rank, rank, size, size * (size - 1) / 2, count));
        }
    }
    return lines;
}

void expect_right_run(Gang& gang, const std::vector<std::uint32_t>& layout) {
    gang.launch(kProbe + " allreduce");
    ASSERT_TRUE(gang.wait_done()) << gang.story();
    std::vector<std::string> results;
    for (const std::string& line : gang.all("out ")) {
        if (line.find(" sum ") != std::string::npos) results.push_back(line);
    }
    EXPECT_THAT(results, testing::UnorderedElementsAreArray(right_lines(layout))) << gang.story();
    std::size_t ranks = 0;
    for (const std::uint32_t count : layout) ranks += count;
    EXPECT_EQ(gang.count("connected "), ranks);
    EXPECT_EQ(gang.count("finalized "), ranks);
    for (const std::string& line : gang.all("exited ")) EXPECT_THAT(line, testing::HasSubstr(" 0 0 outside"));
}

TEST(PmixGang, FourRanksOnOneNodeFormOneWorldWithoutMpirun) {
    Gang gang("4");
    expect_right_run(gang, {4});
}

TEST(PmixGang, FourRanksOnTwoNodesFormOneWorld) {
    Gang gang("2,2");
    expect_right_run(gang, {2, 2});
}

TEST(PmixGang, AnUnevenLayoutIsOneWorldToo) {
    Gang gang("3,1");
    expect_right_run(gang, {3, 1});
}

TEST(PmixGang, ThreeNodesExchangeLargeMessages) {
    Gang gang("1,2,1");
    gang.launch(kProbe + " sendring 3000000");
    ASSERT_TRUE(gang.wait_done()) << gang.story();
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(gang.count(fmt::format("out {} rank {} ring wrong 0", rank, rank)), 1u) << gang.story();
}

TEST(PmixGang, OneServerServesSeveralNamespacesOneAfterTheOther) {
    Gang gang("2,1");
    for (std::size_t run = 1; run <= 3; ++run) {
        gang.launch(kProbe + " allreduce");
        ASSERT_TRUE(gang.wait_done(run)) << gang.story();
        EXPECT_EQ(gang.count("finalized "), 3 * run);
    }
}

TEST(PmixGang, DataThatIsNotCollectedIsFetchedFromTheOtherNode) {
    ::setenv("OMPI_MCA_pmix_base_collect_data", "0", 1);
    Gang gang("2,2");
    ::unsetenv("OMPI_MCA_pmix_base_collect_data");
    expect_right_run(gang, {2, 2});
}

// Its peers hang (Open MPI 4), or one or the other sees its socket close and aborts (Open MPI 5).
TEST(PmixGang, AKilledRankIsSeenInsideMpiAndTheNextGangIsNotDisturbedByIt) {
    Gang gang("2,2");
    gang.launch(kProbe + " loop");
    ASSERT_TRUE(gang.wait([&] {
        std::size_t looping = 0;
        for (int rank = 0; rank < 4; ++rank) looping += gang.count(fmt::format("out {} looping", rank));
        return looping == 4;
    })) << gang.story();
    gang.nodes[1]->tell("kill 3 9");
    ASSERT_TRUE(gang.wait([&] { return gang.count("exited 3 0 9 inside") == 1; })) << gang.story();
    for (int rank = 0; rank < 3; ++rank) gang.nodes[rank < 2 ? 0 : 1]->tell(fmt::format("kill {} 9", rank));
    ASSERT_TRUE(gang.wait_done()) << gang.story();
    // The next gang of the same servers is not disturbed by it.
    gang.launch(kProbe + " allreduce");
    ASSERT_TRUE(gang.wait_done(2)) << gang.story();
    EXPECT_EQ(gang.count("finalized "), 4u);
}

TEST(PmixGang, AbortIsReportedWithItsCodeBeforeTheExit) {
    Gang gang("2,2");
    gang.launch(kProbe + " abort 7");
    ASSERT_TRUE(gang.wait([&] { return gang.count("exited 1 ") == 1; })) << gang.story();
    const auto& lines = gang.nodes[0]->lines;
    const auto aborted = std::find(lines.begin(), lines.end(), "aborted 1 7");
    const auto exited = std::find(lines.begin(), lines.end(), "exited 1 7 0 outside");
    EXPECT_TRUE(aborted != lines.end() && exited != lines.end() && aborted < exited) << gang.story();
}

TEST(PmixGang, ExitCodeZeroWithoutFinalizeIsVisible) {
    Gang gang("2,2");
    gang.launch(kProbe + " leave");
    ASSERT_TRUE(gang.wait([&] { return gang.count("exited 1 ") == 1; })) << gang.story();
    EXPECT_EQ(gang.count("exited 1 0 0 inside"), 1u) << gang.story();
}

TEST(PmixGang, AProgramWithoutMpiIsSeenNeverToConnect) {
    Gang gang("2");
    gang.launch("/bin/true");
    ASSERT_TRUE(gang.wait_done()) << gang.story();
    EXPECT_EQ(gang.count("exited 0 0 0 never"), 1u);
    EXPECT_EQ(gang.count("exited 1 0 0 never"), 1u);
}

TEST(PmixGang, ProgramsOfOthersRunUnchanged) {
    if (::access("/usr/bin/python3", X_OK) != 0 || std::system("/usr/bin/python3 -c 'import mpi4py' 2>/dev/null") != 0) {
        GTEST_SKIP() << "python3-mpi4py is not installed";
    }
    Gang gang("2,2");
    gang.launch("/usr/bin/python3 -m mpi4py.bench helloworld");
    ASSERT_TRUE(gang.wait_done()) << gang.story();
    for (int rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(gang.count(fmt::format("out {} Hello, World! I am process {} of 4", rank, rank)), 1u) << gang.story();
    }
    gang.launch("/usr/bin/python3 -m mpi4py.bench ringtest -n 1000 -l 20");
    ASSERT_TRUE(gang.wait_done(2)) << gang.story();
    EXPECT_EQ(gang.count("out 0 time for 20 loops"), 1u) << gang.story();
}

TEST(PmixGang, StartUpTimesAreReported) {
    for (const char* layout : {"4", "2,2", "8,8"}) {
        Gang gang(layout);
        const double before = static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(
                                  std::chrono::steady_clock::now().time_since_epoch()).count()) / 1e3;
        gang.launch(kProbe + " allreduce");
        ASSERT_TRUE(gang.wait_done()) << gang.story();
        double last = 0;
        for (const std::string& line : gang.all("out ")) {
            const auto words = split(line, ' ');
            if (words.size() == 5 && words[2] == "initialised") last = std::max(last, std::stod(words[4]));
        }
        std::string starts;
        for (const std::string& line : gang.all("started ")) starts += line.substr(7);
        fmt::print("layout {}: PMIx server start{} us, launch to all ranks through MPI_Init {:.1f} ms\n", layout, starts, last - before);
    }
}

}  // namespace
}  // namespace gangline::runner
