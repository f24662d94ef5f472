#include "runner/shepherd/step_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>

#include "base/framing.h"
#include "base/process.h"
#include "runner/shepherd/launch_client.h"

namespace gangline::runner {
namespace {

using testing::HasSubstr;

// A job on one node with four ranks; what its shepherd is asked to do is written down.
class Shepherd {
  public:
    Shepherd() {
        proto::Placement placement;
        placement.set_node("n0");
        placement.set_rank_count(4);
        gang.push_back(placement);
        GangLinkOptions link_options;
        link_options.gang = gang;
        auto made = GangLink::prepare(link_options, {});
        EXPECT_TRUE(made.ok());
        link = std::move(*made);
        StepOptions options;
        options.socket_name = socket_name;
        options.gang = gang;
        options.spec.set_ranks(4);
        StepHooks hooks;
        hooks.start_ranks = [this](const proto::StartStep& step) -> Result<void> {
            started.push_back(step);
            if (fail_start) return Error{Code::InvalidArgument, "no such file"};
            return {};
        };
        hooks.signal_ranks = [this](std::uint32_t step, int signal) { signals.emplace_back(step, signal); };
        hooks.pause_output = [this](std::uint32_t, bool paused) { pauses.push_back(paused); };
        auto server = StepServer::start(options, std::move(hooks), *link);
        EXPECT_TRUE(server.ok()) << server.error().message;
        steps = std::move(*server);
    }
    bool run(const std::function<bool()>& until, int other_fd = -1) {
        const TimePoint end = now().steady + seconds(20);
        while (!until()) {
            const TimePoint next = std::min(end, steps->next_deadline());
            pollfd waiting[2] = {{steps->fd(), POLLIN, 0}, {other_fd, POLLIN, 0}};
            ::poll(waiting, 2, static_cast<int>(std::max<std::int64_t>(to_ms(next - now().steady) + 1, 0)));
            steps->handle();
            steps->tick(now().steady);
            if (now().steady >= end) return false;
        }
        return true;
    }
    void exit(std::uint32_t step, std::uint32_t rank, int code, int signal = 0) {
        proto::RankReport report;
        report.set_rank(rank);
        report.set_exit_code(code);
        report.set_signal(signal);
        steps->local_exit(step, report);
    }
    std::string socket_name = "gangline-test-" + random_hex(8);
    std::vector<proto::Placement> gang;
    std::unique_ptr<GangLink> link;
    std::vector<proto::StartStep> started;
    std::vector<std::pair<std::uint32_t, int>> signals;
    std::vector<bool> pauses;
    bool fail_start = false;
    std::unique_ptr<StepServer> steps;
};

// A client that speaks the frames itself.
class RawClient {
  public:
    RawClient(Shepherd& shepherd, std::uint32_t ranks, bool kill_on_bad_exit = false) : shepherd_(shepherd) {
        auto socket = connect_abstract(shepherd.socket_name, SOCK_STREAM);
        EXPECT_TRUE(socket.ok());
        fd = std::move(*socket);
        proto::StepClientMessage message;
        message.mutable_start()->add_argv("prog");
        message.mutable_start()->set_ranks(ranks);
        message.mutable_start()->set_kill_on_bad_exit(kill_on_bad_exit);
        send(message);
    }
    void send(const proto::StepClientMessage& message) {
        FrameWriter writer;
        writer.push(message.SerializeAsString());
        EXPECT_TRUE(writer.flush(fd.get()).ok());
    }
    void read() {
        (void)reader_.fill(fd.get()).ok();
        while (const auto frame = reader_.next()) {
            proto::StepEvent event;
            EXPECT_TRUE(event.ParseFromString(*frame));
            events.push_back(event);
        }
    }
    // The first event of the kind; runs the shepherd until it is there.
    proto::StepEvent wait_for(proto::StepEvent::BodyCase kind) {
        proto::StepEvent found;
        EXPECT_TRUE(shepherd_.run([&] {
            read();
            for (const auto& event : events) {
                if (event.body_case() == kind) {
                    found = event;
                    return true;
                }
            }
            return false;
        }, fd.get()));
        return found;
    }
    std::uint32_t start() { return wait_for(proto::StepEvent::kStarted).started(); }
    Fd fd;
    std::vector<proto::StepEvent> events;

  private:
    Shepherd& shepherd_;
    FrameReader reader_;
};

TEST(StepServer, AStepStartsReportsAndEndsWithItsHighestExitCode) {
    Shepherd shepherd;
    RawClient client(shepherd, 2);
    const std::uint32_t step = client.start();
    ASSERT_EQ(shepherd.started.size(), 1u);
    EXPECT_EQ(shepherd.started[0].gang(0).rank_count(), 2u);
    shepherd.steps->local_output(step, 1, false, "hello\n");
    shepherd.exit(step, 0, 3);
    EXPECT_TRUE(shepherd.signals.empty()) << "an exit code alone leaves the others running";
    shepherd.exit(step, 1, 0);
    const auto ended = client.wait_for(proto::StepEvent::kEnded).ended();
    EXPECT_EQ(ended.exit_code(), 3);
    ASSERT_EQ(ended.failed_size(), 1);
    EXPECT_EQ(ended.failed(0).rank(), 0u);
    EXPECT_EQ(client.wait_for(proto::StepEvent::kOutput).output().data(), "hello\n");
    EXPECT_EQ(shepherd.steps->running(), 0u);
}

TEST(StepServer, ASignalThatEndsOneRankStopsTheOthersAndCountsAlone) {
    Shepherd shepherd;
    RawClient client(shepherd, 0);
    const std::uint32_t step = client.start();
    shepherd.exit(step, 2, 0, SIGSEGV);
    EXPECT_THAT(shepherd.signals, testing::ElementsAre(std::pair{step, SIGTERM}));
    for (const std::uint32_t rank : {0u, 1u, 3u}) shepherd.exit(step, rank, 0, SIGTERM);
    const auto ended = client.wait_for(proto::StepEvent::kEnded).ended();
    EXPECT_EQ(ended.exit_code(), 128 + SIGSEGV);
    EXPECT_EQ(ended.failed_size(), 1);
}

TEST(StepServer, RanksThatDoNotHearSigtermAreKilled) {
    Shepherd shepherd;
    RawClient client(shepherd, 2, true);
    const std::uint32_t step = client.start();
    shepherd.exit(step, 0, 1);
    EXPECT_EQ(shepherd.signals.size(), 1u);
    shepherd.steps->tick(now().steady + seconds(1));
    EXPECT_EQ(shepherd.signals.size(), 1u);
    shepherd.steps->tick(now().steady + seconds(3));
    EXPECT_THAT(shepherd.signals, testing::ElementsAre(std::pair{step, SIGTERM}, std::pair{step, SIGKILL}));
}

TEST(StepServer, AFailureInsideMpiStopsThePeersThatWouldHang) {
    Shepherd shepherd;
    RawClient client(shepherd, 2);
    const std::uint32_t step = client.start();
    shepherd.steps->local_joined(step, 0);
    shepherd.steps->local_joined(step, 1);
    shepherd.exit(step, 1, 7);
    EXPECT_THAT(shepherd.signals, testing::ElementsAre(std::pair{step, SIGTERM}));
    shepherd.exit(step, 0, 0, SIGTERM);
    EXPECT_EQ(client.wait_for(proto::StepEvent::kEnded).ended().exit_code(), 7);
}

TEST(StepServer, AStepDiesWithItsClient) {
    Shepherd shepherd;
    std::uint32_t step = 0;
    {
        RawClient client(shepherd, 0);
        step = client.start();
    }
    ASSERT_TRUE(shepherd.run([&] { return !shepherd.signals.empty(); }));
    EXPECT_EQ(shepherd.signals[0], (std::pair{step, SIGTERM}));
    for (std::uint32_t rank = 0; rank < 4; ++rank) shepherd.exit(step, rank, 0, SIGTERM);
    EXPECT_EQ(shepherd.steps->running(), 0u);
}

TEST(StepServer, SeveralStepsRunAtOnceAndEndForThemselves) {
    Shepherd shepherd;
    RawClient first(shepherd, 1);
    RawClient second(shepherd, 1);
    const std::uint32_t a = first.start();
    const std::uint32_t b = second.start();
    EXPECT_NE(a, b);
    EXPECT_EQ(shepherd.steps->running(), 2u);
    shepherd.exit(b, 0, 5);
    EXPECT_EQ(second.wait_for(proto::StepEvent::kEnded).ended().exit_code(), 5);
    EXPECT_EQ(shepherd.steps->running(), 1u);
    shepherd.exit(a, 0, 0);
    EXPECT_EQ(first.wait_for(proto::StepEvent::kEnded).ended().exit_code(), 0);
}

TEST(StepServer, WhatDoesNotFitOrCannotStartIsSaid) {
    Shepherd shepherd;
    RawClient wide(shepherd, 9);
    EXPECT_THAT(wide.wait_for(proto::StepEvent::kError).error(), HasSubstr("--ntasks=9"));
    shepherd.fail_start = true;
    RawClient client(shepherd, 2);
    const auto ended = client.wait_for(proto::StepEvent::kEnded).ended();
    EXPECT_EQ(ended.exit_code(), 127);
    EXPECT_THAT(client.wait_for(proto::StepEvent::kOutput).output().data(), HasSubstr("n0: cannot start prog: no such file"));
    shepherd.steps->close();
    RawClient late(shepherd, 1);
    EXPECT_THAT(late.wait_for(proto::StepEvent::kError).error(), HasSubstr("ending"));
}

TEST(StepServer, AClientThatDoesNotReadPausesTheOutput) {
    Shepherd shepherd;
    RawClient client(shepherd, 1);
    const std::uint32_t step = client.start();
    for (int i = 0; i < 200 && shepherd.pauses.empty(); ++i) shepherd.steps->local_output(step, 0, false, std::string(65536, 'x'));
    EXPECT_THAT(shepherd.pauses, testing::ElementsAre(true));
    ASSERT_TRUE(shepherd.run([&] {
        client.read();
        return shepherd.pauses.size() == 2;
    }, client.fd.get()));
    EXPECT_FALSE(shepherd.pauses[1]);
}

// `gangline launch` itself, in a process of its own.
class LaunchProcess {
  public:
    LaunchProcess(const std::string& socket_name, std::vector<std::string> words) {
        int out[2];
        EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
        pid = ::fork();
        if (pid == 0) {
            ::dup2(out[1], STDOUT_FILENO);
            ::dup2(out[1], STDERR_FILENO);
            ::setenv("GANGLINE_STEP_SOCKET", socket_name.c_str(), 1);
            std::vector<char*> argv;
            for (std::string& word : words) argv.push_back(word.data());
            ::_exit(launch_main(static_cast<int>(argv.size()), argv.data()));
        }
        ::close(out[1]);
        output_fd.reset(out[0]);
    }
    int wait() {
        char bytes[4096];
        for (ssize_t n = 1; n > 0;) {
            n = ::read(output_fd.get(), bytes, sizeof bytes);
            if (n > 0) output.append(bytes, static_cast<std::size_t>(n));
        }
        int status = 0;
        ::waitpid(pid, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    pid_t pid = 0;
    Fd output_fd;
    std::string output;
};

TEST(LaunchClient, PrintsLabelledLinesAndReturnsTheHighestExitCode) {
    Shepherd shepherd;
    LaunchProcess launch(shepherd.socket_name, {"srun", "-n2", "-l", "prog"});
    ASSERT_TRUE(shepherd.run([&] { return !shepherd.started.empty(); }));
    const std::uint32_t step = shepherd.started[0].step_id();
    EXPECT_EQ(shepherd.started[0].argv(0), "prog");
    shepherd.steps->local_output(step, 1, false, "half");
    shepherd.steps->local_output(step, 0, false, "one\ntwo\n");
    shepherd.steps->local_output(step, 1, false, " line\nrest");
    shepherd.exit(step, 0, 2);
    shepherd.exit(step, 1, 0, SIGKILL);
    EXPECT_EQ(launch.wait(), 128 + SIGKILL);
    EXPECT_THAT(launch.output, HasSubstr("0: one\n0: two\n1: half line\n1: rest\n"));
    EXPECT_THAT(launch.output, HasSubstr("srun: rank 0 ended with exit code 2"));
    EXPECT_THAT(launch.output, HasSubstr("srun: rank 1 was ended by SIGKILL"));
}

TEST(LaunchClient, ForwardsSignalsToTheRanks) {
    Shepherd shepherd;
    LaunchProcess launch(shepherd.socket_name, {"launch", "prog"});
    ASSERT_TRUE(shepherd.run([&] { return !shepherd.started.empty(); }));
    const std::uint32_t step = shepherd.started[0].step_id();
    ::kill(launch.pid, SIGINT);
    ASSERT_TRUE(shepherd.run([&] { return !shepherd.signals.empty(); }));
    EXPECT_EQ(shepherd.signals[0], (std::pair{step, SIGINT}));
    for (std::uint32_t rank = 0; rank < 4; ++rank) shepherd.exit(step, rank, 0, SIGINT);
    EXPECT_EQ(launch.wait(), 128 + SIGINT);
}

TEST(LaunchClient, SaysThatAJobIsNeededOutsideOfOne) {
    LaunchProcess outside("", {"launch", "prog"});
    EXPECT_EQ(outside.wait(), 3);
    EXPECT_THAT(outside.output, HasSubstr("gangline run --ranks N -- program"));
    LaunchProcess gone("gangline-test-no-such-socket", {"launch", "prog"});
    EXPECT_EQ(gone.wait(), 4);
    LaunchProcess usage("", {"launch", "--nodez", "prog"});
    EXPECT_EQ(usage.wait(), 2);
}

}  // namespace
}  // namespace gangline::runner
