// What a shepherd hears from its ranks, and whom it tells: worker protocol, progress, the own line, full disks.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/mount.h>

#include <bit>
#include <cstdio>
#include <cstring>

#include "base/commit_letter.h"
#include "base/progress_page.h"
#include "base/wire/wire.h"
#include "base/worker_protocol.h"
#include "runner/shepherd/shepherd_test_driver.h"
#include "runner/shepherd/worker_line.h"

namespace gangline::runner {
namespace {

using testing::HasSubstr;

constexpr const char* kWaitForEver = "echo ready; exec sleep 1000";

// What the worker library does in a rank, done here: the socket's name is in the rank's environment.
class RawWorker {
  public:
    RawWorker(const TestShepherd& shepherd, int index) {
        const auto name = process_environment(shepherd.rank(index).pid(), "GANGLINE_WORKER_SOCKET");
        EXPECT_TRUE(name.has_value());
        auto socket = connect_abstract(name.value_or("none"), SOCK_SEQPACKET);
        EXPECT_TRUE(socket.ok());
        if (socket) fd_ = std::move(*socket);
    }
    void send(WorkerKind kind, std::uint32_t rank, std::string_view payload = {}, std::uint64_t step = 0, std::uint32_t to = 0) {
        WorkerHeader header;
        header.kind = static_cast<std::uint16_t>(kind);
        header.rank = rank;
        header.to_rank = to;
        header.step = step;
        header.attempt = 1;
        send_raw(encode(header, payload));
    }
    void send_raw(const std::string& packet) { EXPECT_EQ(::send(fd_.get(), packet.data(), packet.size(), MSG_NOSIGNAL), static_cast<ssize_t>(packet.size())); }
    // False: closed, or nothing came.
    bool receive(WorkerFrame& frame) {
        pollfd one{fd_.get(), POLLIN, 0};
        if (::poll(&one, 1, static_cast<int>(to_ms(kTestLimit))) <= 0) return false;
        std::string packet(sizeof(WorkerHeader) + kMostWorkerPayload, '\0');
        const ssize_t n = ::recv(fd_.get(), packet.data(), packet.size(), 0);
        return n > 0 && decode(std::string_view(packet).substr(0, static_cast<std::size_t>(n)), frame);
    }

  private:
    Fd fd_;
};

TEST(ShepherdWorkers, JoinRelayCommitAndStopSoonGoTheirWays) {
    TestShepherd shepherd;
    shepherd.shell(2, "trap '' TERM; echo ready; while :; do sleep 0.01; done");
    shepherd.launch();
    ASSERT_TRUE(shepherd.wait_output("ready", 2));
    RawWorker zero(shepherd, 0);
    zero.send(WorkerKind::Join, 0);
    ASSERT_TRUE(shepherd.wait([&] { return shepherd.rank(0).state() == proto::RANK_JOINED; }));
    EXPECT_EQ(shepherd.rank(1).state(), proto::RANK_STARTING);
    zero.send(WorkerKind::Relay, 0, "to one", 0, 1);  // Waits for rank 1 to join.
    RawWorker one(shepherd, 1);
    one.send(WorkerKind::Join, 1);
    WorkerFrame frame;
    ASSERT_TRUE(one.receive(frame));
    EXPECT_EQ(frame.payload, "to one");
    EXPECT_EQ(frame.header.rank, 0u);

    std::string commit(32, '\x5a');
    const std::uint64_t bytes = 4096;
    commit.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
    zero.send(WorkerKind::Commit, 0, commit, 30);
    ASSERT_TRUE(shepherd.wait([&] { return !shepherd.news.empty(); }));
    EXPECT_EQ(shepherd.news[0].commit().step(), 30u);
    EXPECT_EQ(shepherd.news[0].commit().bytes(), 4096u);
    EXPECT_EQ(shepherd.news[0].commit().manifest_sha256(), std::string(32, '\x5a'));
    proto::ToShepherd message;
    proto::CommitReply& reply = *message.mutable_commit();
    *reply.mutable_id() = shepherd.prepare.id();
    reply.set_step(30);
    reply.set_accepted(true);
    reply.add_keep()->set_step(30);
    reply.set_reason("fine");
    shepherd.send(message);
    ASSERT_TRUE(zero.receive(frame));
    EXPECT_EQ(frame.header.kind, static_cast<std::uint16_t>(WorkerKind::CommitResult));
    EXPECT_EQ(frame.header.step, 30u);
    EXPECT_EQ(frame.payload.size(), 1 + 4 + 12 + 8 + 4u);
    EXPECT_TRUE(frame.payload.ends_with("fine"));

    shepherd.send_stop(300);
    ASSERT_TRUE(one.receive(frame));
    EXPECT_EQ(frame.header.kind, static_cast<std::uint16_t>(WorkerKind::StopSoon));
    std::uint32_t left_ms = 0;
    std::memcpy(&left_ms, frame.payload.data(), sizeof left_ms);
    EXPECT_EQ(left_ms, 300u);
    ASSERT_TRUE(shepherd.wait_phase(proto::ATTEMPT_GONE)) << shepherd.story();
}

TEST(ShepherdWorkers, ACommitWithoutAnAnswerIsAskedAgainOfTheNextAgent) {
    TestShepherd shepherd;
    shepherd.shell(1, kWaitForEver);
    shepherd.launch();
    ASSERT_TRUE(shepherd.wait_output("ready"));
    RawWorker zero(shepherd, 0);
    zero.send(WorkerKind::Join, 0);
    zero.send(WorkerKind::Commit, 0, std::string(40, 'c'), 9);
    ASSERT_TRUE(shepherd.wait([&] { return !shepherd.news.empty(); }));
    shepherd.connect();
    shepherd.news.clear();
    proto::ToShepherd identity;
    identity.mutable_identity();
    shepherd.send(identity);
    ASSERT_TRUE(shepherd.wait([&] { return shepherd.news.size() >= 2; }));
    EXPECT_EQ(shepherd.news[1].commit().step(), 9u);
}

TEST(ShepherdWorkers, ACommitsMarksAndWhatIsDamagedAtRestReachTheCoordinator) {
    TestShepherd shepherd;
    shepherd.shell(1, kWaitForEver);
    shepherd.launch();
    ASSERT_TRUE(shepherd.wait_output("ready"));
    RawWorker zero(shepherd, 0);
    zero.send(WorkerKind::Join, 0);
    zero.send(WorkerKind::Commit, 0, encode(CommitLetter{std::string(32, 'd'), 5, 0.5, {{10, 1, true, false}}}), 20);
    ASSERT_TRUE(shepherd.wait([&] { return !shepherd.news.empty(); }));
    const proto::CommitRequest commit = shepherd.news[0].commit();
    EXPECT_EQ(commit.metric(), 0.5);
    ASSERT_EQ(commit.marks_size(), 1);
    EXPECT_EQ(commit.marks(0).step(), 10u);
    EXPECT_TRUE(commit.marks(0).pinned() && !commit.marks(0).verified());
    shepherd.news.clear();
    zero.send(WorkerKind::DamagedAtRest, 0, "block 3", 10);
    const auto is_told = [&] {
        return std::any_of(shepherd.news.begin(), shepherd.news.end(), [](const auto& one) {
            return one.damaged().at_rest() && one.damaged().checkpoint().step() == 10 && one.damaged().what() == "block 3";
        });
    };
    ASSERT_TRUE(shepherd.wait(is_told));
    shepherd.news.clear();
    shepherd.connect();  // the next agent hears of it, too
    proto::ToShepherd identity;
    identity.mutable_identity();
    shepherd.send(identity);
    EXPECT_TRUE(shepherd.wait(is_told));
}

TEST(ShepherdWorkers, StrangeFramesCloseTheirConnectionAndNothingElse) {
    TestShepherd shepherd;
    shepherd.shell(1, kWaitForEver);
    shepherd.launch();
    ASSERT_TRUE(shepherd.wait_output("ready"));
    WorkerFrame frame;
    RawWorker other(shepherd, 0);
    other.send(WorkerKind::Join, 5);  // not a rank of this node
    EXPECT_FALSE(other.receive(frame));
    RawWorker garbled(shepherd, 0);
    garbled.send_raw("nonsense that is longer than a header of a frame");
    EXPECT_FALSE(garbled.receive(frame));
    RawWorker early(shepherd, 0);
    early.send(WorkerKind::Fault, 0, "before joining");
    EXPECT_FALSE(early.receive(frame));
    RawWorker right(shepherd, 0);
    right.send(WorkerKind::Join, 0);
    RawWorker twin(shepherd, 0);
    twin.send(WorkerKind::Join, 0);
    EXPECT_FALSE(twin.receive(frame));
    right.send(WorkerKind::Fault, 0, "disk of the user is slow");
    ASSERT_TRUE(shepherd.wait([&] { return shepherd.report.faults_size() == 1; }));
    EXPECT_EQ(shepherd.report.faults(0), "disk of the user is slow");
    EXPECT_EQ(shepherd.news.at(0).fault().what(), "disk of the user is slow");
}

TEST(ShepherdWorkers, TheProgressPageIsRead) {
    TestShepherd shepherd;
    shepherd.shell(1, kWaitForEver);
    shepherd.launch();
    ASSERT_TRUE(shepherd.wait_output("ready"));
    const auto path = process_environment(shepherd.rank(0).pid(), "GANGLINE_PROGRESS");
    ASSERT_TRUE(path.has_value());
    const Fd fd(::open(path->c_str(), O_RDWR | O_CLOEXEC));
    void* memory = ::mmap(nullptr, kProgressBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto* page = static_cast<ProgressPage*>(memory);
    page->version = kProgressVersion;
    page->step = 41;
    page->total_steps = 100;
    page->loss = std::bit_cast<std::uint64_t>(0.25);
    page->samples = std::bit_cast<std::uint64_t>(1.0 / 0.0);
    page->data_wait_ns = 1'500'000'000;
    std::strcpy(page->phase, "train");
    page->beat = 3;
    page->magic = kProgressMagic;
    ASSERT_TRUE(shepherd.wait([&] { return shepherd.rank(0).has_progress(); }));
    const proto::Progress& progress = shepherd.rank(0).progress();
    EXPECT_EQ(progress.step(), 41u);
    EXPECT_EQ(progress.beat(), 3u);
    EXPECT_EQ(progress.loss(), 0.25);
    EXPECT_EQ(progress.samples(), 0);
    EXPECT_EQ(progress.data_wait_s(), 1.5);
    EXPECT_EQ(progress.phase(), "train");
    EXPECT_EQ(shepherd.rank(0).process_state(), "S");
    // A page that its rank cuts short takes nobody with it.
    EXPECT_EQ(::ftruncate(fd.get(), 0), 0);
    const auto revision = shepherd.report.revision();
    EXPECT_TRUE(shepherd.wait([&] { return shepherd.report.revision() > revision + 1; }));
    ::munmap(memory, kProgressBytes);
}

TEST(ShepherdOwnLine, ASilentAgentIsReplacedByALineToTheCoordinatorWhichMayEndTheGang) {
    KeyTable table;
    auto wire = Wire::create(&table);
    ASSERT_TRUE(wire.ok());
    ServerOptions options;
    options.keys = new_key_pair();
    options.admits = Admits::Nodes;
    auto server = ServerSocket::bind(**wire, table, options);
    ASSERT_TRUE(server.ok());
    TestShepherd shepherd;
    shepherd.prepare.set_coordinator_endpoint((*server)->endpoint());
    shepherd.prepare.set_coordinator_key((*server)->public_key());
    shepherd.shell(1, kWaitForEver);
    shepherd.launch();
    Principal principal;
    principal.kind = PrincipalKind::Shepherd;
    principal.public_key = shepherd.report.gang_key();
    principal.job = 7;
    principal.attempt = 1;
    table.add(principal);
    shepherd.disconnect();
    std::string route;
    const auto hear = [&](proto::AttemptPhase phase) {
        const TimePoint end = now().steady + kTestLimit;
        while (now().steady < end) {
            pollfd one{(*server)->fd(), POLLIN, 0};
            ::poll(&one, 1, 1000);
            while (auto incoming = (*server)->receive()) {
                proto::NodeMessage message;
                if (!message.ParseFromString(incoming->payload)) return false;
                route = incoming->route;
                if (message.has_report() && message.report().phase() == phase) return true;
            }
        }
        return false;
    };
    ASSERT_TRUE(hear(proto::ATTEMPT_RUNNING)) << shepherd.story();
    proto::Order order;
    order.set_epoch(2);
    *order.mutable_stop()->mutable_id() = shepherd.prepare.id();
    EXPECT_TRUE((*server)->send(route, order.SerializeAsString()));
    ASSERT_TRUE(hear(proto::ATTEMPT_GONE)) << shepherd.story();
    proto::Order old;
    old.set_epoch(1);  // A coordinator that is no longer one: refused.
    *old.mutable_release()->mutable_id() = shepherd.prepare.id();
    EXPECT_TRUE((*server)->send(route, old.SerializeAsString()));
    ASSERT_TRUE(hear(proto::ATTEMPT_GONE)) << shepherd.story();
    order.Clear();
    order.set_epoch(2);
    *order.mutable_release()->mutable_id() = shepherd.prepare.id();
    EXPECT_TRUE((*server)->send(route, order.SerializeAsString()));
    shepherd.is_open = false;
    EXPECT_TRUE(shepherd.wait_exit());
}

// A small file system of its own, for whoever may mount one.
class SmallDisk {
  public:
    explicit SmallDisk(std::string path) : path_(std::move(path)) {
        (void)make_folders(path_);
        mounted_ = ::mount("none", path_.c_str(), "tmpfs", 0, "size=65536") == 0;
    }
    SmallDisk(const SmallDisk&) = delete;
    SmallDisk& operator=(const SmallDisk&) = delete;
    ~SmallDisk() {
        if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
    }
    bool is_mounted() const { return mounted_; }
    bool grow() const { return ::mount("none", path_.c_str(), "tmpfs", MS_REMOUNT, "size=16777216") == 0; }

  private:
    std::string path_;
    bool mounted_ = false;
};

TEST(ShepherdDisk, AFullDiskHoldsNoRankUpAndNothingIsLostWhenThereIsRoomAgain) {
    TestShepherd shepherd;
    const SmallDisk disk(shepherd.folder + "/small");
    if (!disk.is_mounted()) GTEST_SKIP() << "NOT TESTED: mounting a tmpfs needs root";
    shepherd.spec().set_output(shepherd.folder + "/small/out");
    shepherd.shell(1, "head -c 1000000 /dev/zero | tr '\\0' x; echo written >&2; exec sleep 1000");
    shepherd.spec().set_error("err");
    shepherd.launch();
    ASSERT_TRUE(shepherd.wait([&] { return shepherd.report.faults_size() == 1; })) << shepherd.story();
    EXPECT_THAT(shepherd.report.faults(0), HasSubstr("disk full: at least "));
    ASSERT_TRUE(shepherd.wait_output("written")) << shepherd.story();  // Not blocked by its output.
    EXPECT_LE(read_file(shepherd.folder + "/small/out")->size(), 65536u);
    ASSERT_TRUE(disk.grow());
    ASSERT_TRUE(shepherd.wait([&] { return shepherd.report.faults_size() == 0; })) << shepherd.story();
    EXPECT_EQ(*read_file(shepherd.folder + "/small/out"), std::string(1'000'000, 'x'));
    shepherd.send_stop(0);
    ASSERT_TRUE(shepherd.wait_phase(proto::ATTEMPT_GONE));
}

// Not asserted: a loaded machine is no failure.
TEST(ShepherdSpeed, TimesAreShown) {
    TestShepherd shepherd;
    shepherd.shell(8, "exec sleep 1000");
    shepherd.start(true);
    shepherd.send_prepare();
    ASSERT_TRUE(shepherd.wait_phase(proto::ATTEMPT_PREPARED)) << shepherd.story();
    const auto begin = now().steady;
    shepherd.send_launch();
    ASSERT_TRUE(shepherd.wait_phase(proto::ATTEMPT_RUNNING)) << shepherd.story();
    const auto launched = now().steady;
    ::kill(shepherd.rank(3).pid(), SIGKILL);
    ASSERT_TRUE(shepherd.wait([&] { return shepherd.rank(3).state() == proto::RANK_EXITED; }));
    const auto reported = now().steady;
    shepherd.send_stop(0);
    ASSERT_TRUE(shepherd.wait_phase(proto::ATTEMPT_GONE)) << shepherd.story();
    const auto gone = now().steady;
    fmt::print("launch of 8 ranks {:.2f} ms, SIGKILL to report {:.2f} ms, stop to gone {:.2f} ms\n", 1e3 * to_seconds(launched - begin),
               1e3 * to_seconds(reported - launched), 1e3 * to_seconds(gone - reported));
}

}  // namespace
}  // namespace gangline::runner
