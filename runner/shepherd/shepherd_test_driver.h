#pragma once
// For tests: a real shepherd in a child process, and this process as its agent.

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/output_log.h"
#include "base/process.h"
#include "base/protocol/shepherd.pb.h"
#include "runner/shepherd/reaper.h"
#include "runner/shepherd/serve.h"

namespace gangline::runner {

inline constexpr Duration kTestLimit = seconds(30);

class TestShepherd {
  public:
    TestShepherd() : folder("/tmp/gangline-test-" + random_hex(6)), cluster("t" + random_hex(4)) {
        EXPECT_TRUE(make_folders(spool(), 0700).ok());
        EXPECT_TRUE(make_folders(folder + "/work").ok());
        prepare.mutable_id()->set_job(7);
        prepare.mutable_id()->set_attempt(1);
        prepare.mutable_spec()->set_name("test");
        prepare.mutable_spec()->set_cwd(folder + "/work");
        prepare.set_checkpoint_folder(folder + "/checkpoints");
        prepare.set_user("tester");
        set_variable("PATH", "/usr/local/bin:/usr/bin:/bin");
    }
    TestShepherd(const TestShepherd&) = delete;
    TestShepherd& operator=(const TestShepherd&) = delete;
    ~TestShepherd() {
        if (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == 0) {
            ::kill(pid_, SIGKILL);
            ::waitpid(pid_, nullptr, 0);
        }
        EXPECT_TRUE(remove_tree(folder).ok());
        EXPECT_TRUE(remove_tree(shared_folder()).ok());
        // A killed shepherd leaves its group behind; its ranks die with it, which the group learns a moment later.
        const std::string root = writable_cgroup_root();
        for (std::string path = fmt::format("{}/gangline/{}/n0/7.1/ranks", root, cluster); !root.empty() && path.size() > root.size() + 10;
             path = path.substr(0, path.rfind('/'))) {
            const TimePoint end = now().steady + seconds(5);
            while (::rmdir(path.c_str()) != 0 && errno == EBUSY && now().steady < end && path.ends_with("/ranks")) ::sched_yield();
        }
    }

    std::string spool() const { return folder + "/spool/7-1"; }
    std::string work(const std::string& name) const { return folder + "/work/" + name; }
    std::string shared_folder() const { return fmt::format("/dev/shm/gangline-{}-n0-7-1", cluster); }
    std::string mark() const { return fmt::format("{}/n0/7.1", cluster); }
    pid_t pid() const { return pid_; }
    proto::JobSpec& spec() { return *prepare.mutable_spec(); }

    void set_variable(const std::string& name, const std::string& value) {
        proto::Variable& variable = *prepare.mutable_spec()->add_environment();
        variable.set_name(name);
        variable.set_value(value);
    }
    // A command on this node alone, run by /bin/sh.
    void shell(std::uint32_t ranks, const std::string& text) {
        spec().clear_argv();
        for (const std::string& word : {std::string("/bin/sh"), std::string("-c"), text}) spec().add_argv(word);
        place(ranks);
    }
    void place(std::uint32_t ranks, std::uint32_t held = 0) {
        spec().set_ranks(ranks);
        prepare.clear_gang();
        proto::Placement& placement = *prepare.add_gang();
        placement.set_node("n0");
        placement.set_address("127.0.0.1");
        placement.set_rank_count(ranks);
        for (std::uint32_t card = 0; card < held; ++card) placement.add_cards(card);
    }

    void start(bool spare = false) {
        socket_name_ = "gangline-test-" + random_hex(8);
        auto listener = listen_abstract(socket_name_, SOCK_STREAM);
        ASSERT_TRUE(listener.ok());
        pid_ = ::fork();
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            ShepherdStart begin;
            begin.listen_fd = listener->release();
            begin.spool_folder = spool();
            begin.node = "n0";
            begin.address = "127.0.0.1";
            begin.cluster = cluster;
            begin.cards = cards;
            if (!spare) begin.job = 7;
            if (!spare) begin.attempt = 1;
            begin.warm = spare;
            ::_exit(shepherd_serve(begin));
        }
        connect();
    }
    void connect() {
        auto socket = connect_abstract(socket_name_, SOCK_STREAM);
        ASSERT_TRUE(socket.ok()) << socket.error().message;
        fd_ = std::move(*socket);
        reader_ = {};
        is_open = true;
    }
    void disconnect() { fd_.reset(); }

    void send(const proto::ToShepherd& message) {
        FrameWriter writer;
        writer.push(message.SerializeAsString());
        ASSERT_TRUE(writer.flush(fd_.get()).ok());
    }
    void send_prepare() {
        proto::ToShepherd message;
        *message.mutable_prepare() = prepare;
        send(message);
    }
    void send_launch() {
        proto::ToShepherd message;
        *message.mutable_launch()->mutable_id() = prepare.id();
        message.mutable_launch()->set_master_port(report.master_port());
        if (restore) *message.mutable_launch()->mutable_restore() = *restore;
        send(message);
    }
    void send_stop(std::uint64_t grace_ms) {
        proto::ToShepherd message;
        *message.mutable_stop()->mutable_id() = prepare.id();
        message.mutable_stop()->set_grace_ms(grace_ms);
        message.mutable_stop()->set_reason("test");
        send(message);
    }
    void send_release() {
        proto::ToShepherd message;
        *message.mutable_release()->mutable_id() = prepare.id();
        send(message);
    }

    // Reads what comes until `until` holds; false after the limit, or when the line closes.
    bool wait(const std::function<bool()>& until) {
        const TimePoint end = now().steady + kTestLimit;
        while (!until()) {
            pollfd one{fd_.get(), POLLIN, 0};
            const auto left = to_ms(end - now().steady);
            if (!is_open || left <= 0 || ::poll(&one, 1, static_cast<int>(left)) <= 0) return until();
            is_open = reader_.fill(fd_.get()).ok();
            while (const auto frame = reader_.next()) {
                proto::FromShepherd message;
                if (!message.ParseFromString(*frame)) return false;
                if (message.has_report()) report = message.report();
                if (!message.has_report()) news.push_back(message);
            }
        }
        return true;
    }
    bool wait_phase(proto::AttemptPhase phase) {
        return wait([&] { return report.has_id() && report.phase() >= phase; });
    }
    bool wait_output(const std::string& text, std::size_t times = 1) {
        // Each read of the log is behind a report: they come twice a second while ranks run, and at each change.
        return wait([&] { return count(output(), text) >= times; });
    }
    bool wait_exit() {
        const bool closed = wait([&] { return !is_open; });
        int status = 0;
        const bool ended = ::waitpid(pid_, &status, 0) == pid_ && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        pid_ = 0;
        return closed && ended;
    }
    // Prepare, launch, and through to its own end.
    void run() {
        if (pid_ == 0) start();
        send_prepare();
        ASSERT_TRUE(wait_phase(proto::ATTEMPT_PREPARED)) << story();
        if (report.phase() == proto::ATTEMPT_GONE) return;
        send_launch();
        ASSERT_TRUE(wait_phase(proto::ATTEMPT_GONE)) << story();
    }
    void launch() {
        if (pid_ == 0) start();
        send_prepare();
        ASSERT_TRUE(wait_phase(proto::ATTEMPT_PREPARED)) << story();
        send_launch();
        ASSERT_TRUE(wait_phase(proto::ATTEMPT_RUNNING)) << story();
    }

    // All that one rank wrote, or all ranks; by stream.
    std::string output(std::optional<std::uint32_t> rank = std::nullopt, std::optional<OutputStream> stream = std::nullopt) const {
        const auto file = read_file(spool() + "/output.log");
        std::string_view bytes = file ? std::string_view(*file) : std::string_view();
        std::string text;
        OutputRecord record;
        while (next_output_record(bytes, record)) {
            if (rank && record.header.rank != *rank) continue;
            if (stream && record.header.stream != static_cast<std::uint16_t>(*stream)) continue;
            text += record.data;
        }
        return text;
    }
    const proto::RankReport& rank(int index) const { return report.ranks(index); }
    std::string story() const {
        const auto log = read_file(spool() + "/shepherd.log");
        return report.ShortDebugString() + "\n" + (log ? *log : "") + output();
    }
    static std::size_t count(const std::string& text, const std::string& part) {
        std::size_t times = 0;
        for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++times;
        return times;
    }

    std::string folder;
    std::string cluster;
    std::uint32_t cards = 0;  // of the node
    proto::Prepare prepare;
    std::optional<proto::RestorePoint> restore;
    proto::AttemptReport report;
    std::vector<proto::FromShepherd> news;
    bool is_open = true;

  private:
    std::string socket_name_;
    pid_t pid_ = 0;
    Fd fd_;
    FrameReader reader_;
};

}  // namespace gangline::runner
