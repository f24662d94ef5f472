// `gangline coordinator` as a process: started, killed, started again.
#include "coordinator/server/main.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/process.h"
#include "base/protocol/node.pb.h"
#include "base/protocol/user.pb.h"
#include "base/wire/secret_file.h"
#include "base/wire/wire.h"

namespace gangline::coordinator {
namespace {

class CoordinatorProcess : public ::testing::Test {
  protected:
    void SetUp() override {
        char name[] = "/tmp/gangline-coordinator-XXXXXX";
        ASSERT_NE(::mkdtemp(name), nullptr);
        folder_ = name;
        state_ = folder_ + "/state";
        ASSERT_TRUE(make_folders(state_, 0700));
        write_authorised("");
    }
    void TearDown() override {
        if (pid_ > 0) {
            ::kill(pid_, SIGKILL);
            exit_status();
        }
        std::filesystem::remove_all(folder_);
    }
    void write_authorised(const std::string& more) {
        ASSERT_TRUE(write_file_atomically(
            state_ + "/authorised", fmt::format("user {} admin {}\nnode n0 - {}\n{}", ::getpwuid(::geteuid())->pw_name, me_.public_key,
                                                n0_.public_key, more)));
    }
    void start(std::vector<std::string> more = {}) {
        int ready[2];
        int lifeline[2];
        ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
        ASSERT_EQ(::pipe2(lifeline, O_CLOEXEC), 0);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::close(ready[0]);
            ::close(lifeline[1]);
            const int log = ::open((folder_ + "/log").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
            ::dup2(log, 2);
            std::vector<std::string> words = {"coordinator", "--state", state_, "--ready-fd", std::to_string(ready[1]),
                                              "--lifeline-fd", std::to_string(lifeline[0])};
            words.insert(words.end(), more.begin(), more.end());
            std::vector<char*> argv;
            for (std::string& word : words) argv.push_back(word.data());
            ::_exit(coordinator_main(static_cast<int>(argv.size()), argv.data()));
        }
        ::close(ready[1]);
        ::close(lifeline[0]);
        ready_.reset(ready[0]);
        lifeline_.reset(lifeline[1]);
    }
    bool is_ready() {
        char text[16] = {};
        pollfd waiting = {ready_.get(), POLLIN, 0};
        return ::poll(&waiting, 1, 10'000) == 1 && ::read(ready_.get(), text, sizeof text) == 6 && std::string(text) == "ready\n";
    }
    int exit_status() {
        int status = -1;
        ::waitpid(pid_, &status, 0);
        pid_ = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    std::string log() const { return *read_file(folder_ + "/log"); }
    std::unique_ptr<ClientSocket> connect(const KeyPair& keys, const char* port) {
        const auto endpoints = nlohmann::json::parse(*read_file(state_ + "/endpoints.json"));
        if (!wire_) wire_ = *Wire::create(nullptr);
        return *ClientSocket::connect(*wire_, {.keys = keys, .endpoint = endpoints[port], .server_key = endpoints["key"]});
    }
    static std::optional<proto::Response> answer(ClientSocket& client, Duration limit = seconds(5)) {
        proto::Response response;
        const auto bytes = client.receive(limit);
        if (!bytes || !response.ParseFromString(*bytes)) return std::nullopt;
        return response;
    }
    std::optional<proto::Response> ask(ClientSocket& client, proto::Request request) {
        client.send(request.SerializeAsString());
        return answer(client);
    }
    std::unique_ptr<ClientSocket> bring_node() {
        auto agent = connect(n0_, "nodes");
        proto::NodeMessage hello;
        auto& node = *hello.mutable_hello()->mutable_node();
        node.set_name("n0");
        node.set_cpus(2);
        node.set_memory_mib(1000);
        node.add_cards()->set_is_virtual(true);
        hello.mutable_hello()->set_agent_id("a");
        agent->send(hello.SerializeAsString());
        EXPECT_TRUE(agent->receive(seconds(5)));
        return agent;
    }
    static proto::Request held_job(std::uint64_t id) {
        proto::Request request;
        request.set_id(id);
        auto& spec = *request.mutable_submit()->mutable_spec();
        spec.set_name("t");
        spec.add_argv("/bin/true");
        spec.set_cwd("/");
        spec.set_ranks(1);
        spec.set_hold(true);
        return request;
    }

    std::string folder_;
    std::string state_;
    KeyPair me_ = new_key_pair();
    KeyPair n0_ = new_key_pair();
    pid_t pid_ = 0;
    Fd ready_;
    Fd lifeline_;
    std::unique_ptr<Wire> wire_;
};

TEST_F(CoordinatorProcess, IsReadyServesAndEndsWithSigterm) {
    start();
    ASSERT_TRUE(is_ready()) << log();
    {
        const auto me = connect(me_, "users");
        proto::Request ping;
        ping.mutable_ping();
        const auto response = ask(*me, ping);
        ASSERT_TRUE(response) << log();
        EXPECT_EQ(response->pong().pid(), pid_);
        EXPECT_EQ(response->pong().role(), "admin");
    }
    ::kill(pid_, SIGTERM);
    EXPECT_EQ(exit_status(), 0) << log();
}

TEST_F(CoordinatorProcess, EndsWithItsLifeline) {
    start();
    ASSERT_TRUE(is_ready()) << log();
    lifeline_.reset();
    EXPECT_EQ(exit_status(), 0) << log();
}

TEST_F(CoordinatorProcess, KilledWhileItAcknowledgesLosesAndDoublesNothing) {
    for (int round = 0; round < 3; ++round) {
        start();
        ASSERT_TRUE(is_ready()) << log();
        std::set<std::uint64_t> acknowledged;
        {
            const auto agent = bring_node();
            const auto me = connect(me_, "users");
            for (std::uint64_t i = 1; i <= 3000; ++i) me->send(held_job(i).SerializeAsString());
            while (acknowledged.size() < 200 + 400 * static_cast<std::size_t>(round)) {
                const auto response = answer(*me);
                ASSERT_TRUE(response) << log();
                ASSERT_EQ(response->outcome(), proto::OK) << response->message();
                ASSERT_TRUE(acknowledged.insert(response->job()).second) << "an id twice";
            }
            ::kill(pid_, SIGKILL);
            exit_status();
            while (const auto response = answer(*me, milliseconds(10))) acknowledged.insert(response->job());
        }
        start();
        ASSERT_TRUE(is_ready()) << log();
        const auto me = connect(me_, "users");
        proto::Request queue;
        queue.mutable_list_jobs();
        queue.mutable_list_jobs()->set_limit(100'000);
        const auto listed = ask(*me, queue);
        ASSERT_TRUE(listed);
        std::set<std::uint64_t> found;
        for (const auto& job : listed->jobs()) found.insert(job.id());
        for (const std::uint64_t job : acknowledged) EXPECT_TRUE(found.contains(job)) << job;
        ::kill(pid_, SIGKILL);
        exit_status();
    }
}

TEST_F(CoordinatorProcess, ServesAgainAfterAKillWithTenThousandQueued) {
    start();
    ASSERT_TRUE(is_ready()) << log();
    {
        const auto agent = bring_node();
        const auto me = connect(me_, "users");
        std::uint64_t sent = 0;
        for (std::uint64_t answered = 0; answered < 10'000; ++answered) {
            while (sent < 10'000 && sent < answered + 2'000) me->send(held_job(++sent).SerializeAsString());
            const auto response = answer(*me);
            ASSERT_TRUE(response) << log();
            ASSERT_EQ(response->outcome(), proto::OK) << response->message();
        }
    }
    ::kill(pid_, SIGKILL);
    exit_status();
    const TimePoint killed = now().steady;
    start();
    ASSERT_TRUE(is_ready()) << log();
    const TimePoint ready = now().steady;
    const auto me = connect(me_, "users");
    proto::Request ping;
    ping.mutable_ping();
    const auto response = ask(*me, ping);
    ASSERT_TRUE(response);
    EXPECT_EQ(response->pong().jobs(), 10'000U);
    printf("10000 queued: ready after %ld ms, served after %ld ms\n", static_cast<long>(to_ms(ready - killed)),
           static_cast<long>(to_ms(now().steady - killed)));
}

TEST_F(CoordinatorProcess, ASecondOneOnTheSameStateEndsAtOnce) {
    start();
    ASSERT_TRUE(is_ready()) << log();
    const pid_t first = pid_;
    start();
    EXPECT_EQ(exit_status(), 4);
    EXPECT_NE(log().find("another coordinator"), std::string::npos) << log();
    pid_ = first;
}

TEST_F(CoordinatorProcess, RefusesADamagedJournalAndKeysOpenToOthers) {
    start();
    ASSERT_TRUE(is_ready()) << log();
    ::kill(pid_, SIGTERM);
    ASSERT_EQ(exit_status(), 0);
    const std::string key = state_ + "/keys/coordinator.key";
    ASSERT_EQ(::chmod(key.c_str(), 0644), 0);
    start();
    EXPECT_EQ(exit_status(), 3);
    EXPECT_NE(log().find("chmod 600"), std::string::npos) << log();
    ASSERT_EQ(::chmod(key.c_str(), 0600), 0);
    const std::string path = state_ + "/journal.db-wal";
    std::string journal = *read_file(path);
    const std::size_t at = journal.find("0.1.0");  // the version in the record of the first term
    ASSERT_NE(at, std::string::npos);
    journal[at] = '9';
    ASSERT_TRUE(write_file_atomically(path, journal, 0600));
    start();
    EXPECT_EQ(exit_status(), 1);
    EXPECT_NE(log().find("record 1 is missing"), std::string::npos) << log();
}

TEST_F(CoordinatorProcess, HoldsSecretsInMemoryThatIsNeverDumped) {
    start();
    ASSERT_TRUE(is_ready()) << log();
    const std::string limits = *read_file(fmt::format("/proc/{}/limits", pid_));
    const std::size_t at = limits.find("Max core file size");
    ASSERT_NE(at, std::string::npos);
    EXPECT_EQ(limits.substr(at + 26, 1), "0");
    for (const char* secret : {"/keys/coordinator.key", "/keys/ticket.key"}) {
        const std::string text = *read_secret_file(state_ + secret);
        const std::string value = text.substr(text.rfind(' ') + 1, 40);
        EXPECT_EQ(log().find(value), std::string::npos);
        EXPECT_EQ(read_file(fmt::format("/proc/{}/cmdline", pid_))->find(value), std::string::npos);
    }
}

TEST_F(CoordinatorProcess, ReadsTheAuthorisedFileAgainAtSighup) {
    start();
    ASSERT_TRUE(is_ready()) << log();
    const KeyPair carol = new_key_pair();
    const auto socket = connect(carol, "users");
    proto::Request ping;
    ping.mutable_ping();
    socket->send(ping.SerializeAsString());
    EXPECT_FALSE(socket->receive(seconds(5)));
    EXPECT_TRUE(socket->is_refused());
    write_authorised("user carol user " + carol.public_key + "\n");
    ::kill(pid_, SIGHUP);
    std::optional<proto::Response> response;
    for (const TimePoint end = now().steady + seconds(5); !response && now().steady < end;) {
        socket->send(ping.SerializeAsString());
        response = answer(*socket, milliseconds(50));
    }
    ASSERT_TRUE(response) << log();
    EXPECT_EQ(response->pong().user(), "carol");
}

TEST_F(CoordinatorProcess, SaysWhatIsWrongWithItsOptions) {
    start({"--heartbeat-ms", "1"});
    EXPECT_EQ(exit_status(), 2);
    EXPECT_NE(log().find("--heartbeat-ms 1: 20 to 60000"), std::string::npos) << log();
    start({"--authorised", folder_ + "/absent"});
    EXPECT_EQ(exit_status(), 3);
    EXPECT_NE(log().find("absent"), std::string::npos) << log();
}

}  // namespace
}  // namespace gangline::coordinator
