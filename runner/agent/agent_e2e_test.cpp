// The real agent, execd and shepherd on this machine; the test is their coordinator. The executable is also the programs it
// starts: `agent`, `execd`, and `as UID GID VERB ...`, the same as another user.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "base/output_log.h"
#include "base/process.h"
#include "base/wire/ticket.h"
#include "base/wire/wire.h"
#include "runner/agent/main.h"
#include "runner/execd/main.h"

namespace gangline::runner {
namespace {

constexpr Duration kPatience = seconds(20);

bool is_alive(pid_t pid) {
    const auto stat = process_stat(pid);
    return stat && stat->state != 'Z' && stat->state != 'X';
}

// Waits for what no descriptor tells of (another process's child), looking often.
bool eventually(const std::function<bool()>& condition) {
    const TimePoint until = now().steady + kPatience;
    while (!condition()) {
        if (now().steady > until) return false;
        ::poll(nullptr, 0, 2);
    }
    return true;
}

struct Child {
    pid_t pid = 0;
    Fd lifeline;
    Fd ready;
    Fd handle;

    void kill(int signal) const { ::kill(pid, signal); }
    // The exit code; -1 when it was killed or does not end.
    int wait() {
        const TimePoint until = now().steady + kPatience;
        int status = 0;
        while (::waitpid(pid, &status, WNOHANG) == 0) {
            if (now().steady > until) return -1;
            ::poll(nullptr, 0, 2);
        }
        pid = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
};

class NodeTest : public testing::Test {
  protected:
    void SetUp() override {
        char pattern[] = "/tmp/gangline-agent-XXXXXX";
        root_ = ::mkdtemp(pattern);
        cluster_ = "test" + random_hex(4);
        auto wire = Wire::create(&table_);
        ASSERT_TRUE(wire.ok());
        wire_ = std::move(wire).value();
        server_keys_ = new_key_pair();
        node_keys_ = new_key_pair();
        table_.add({.kind = PrincipalKind::Node, .name = "n0", .public_key = node_keys_.public_key});
        ServerOptions options;
        options.keys = server_keys_;
        auto server = ServerSocket::bind(*wire_, table_, options);
        ASSERT_TRUE(server.ok());
        server_ = std::move(server).value();
        state_ = root_ + "/n0";
        key_file_ = root_ + "/n0.key";
        ASSERT_TRUE(write_key_file(key_file_, node_keys_, "test").ok());
    }
    void TearDown() override {
        for (Child* child : {&agent_, &execd_}) {
            if (child->pid == 0) continue;
            child->kill(SIGKILL);
            ::waitpid(child->pid, nullptr, 0);
        }
        Child clean = start({"agent", "--clean", "--state", state_, "--node", "n0", "--cluster", cluster_});
        EXPECT_EQ(clean.wait(), 0);
        EXPECT_TRUE(left_behind().empty());
        (void)remove_tree(root_);
    }

    Child start(std::vector<std::string> words, bool with_pipes = false) const {
        Child child;
        int lifeline[2] = {-1, -1};
        int ready[2] = {-1, -1};
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        if (with_pipes) {
            EXPECT_EQ(::pipe2(lifeline, O_CLOEXEC), 0);
            EXPECT_EQ(::pipe2(ready, O_CLOEXEC), 0);
            ::posix_spawn_file_actions_adddup2(&actions, ::fcntl(lifeline[0], F_DUPFD_CLOEXEC, 60), 50);
            ::posix_spawn_file_actions_adddup2(&actions, ::fcntl(ready[1], F_DUPFD_CLOEXEC, 60), 51);
            words.insert(words.end(), {"--lifeline-fd", "50", "--ready-fd", "51"});
            child.lifeline = Fd(lifeline[1]);
            child.ready = Fd(ready[0]);
        }
        ::posix_spawn_file_actions_addopen(&actions, 2, (root_ + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
        const std::string program = executable_path();
        words.insert(words.begin(), program);
        std::vector<char*> argv;
        for (std::string& word : words) argv.push_back(word.data());
        argv.push_back(nullptr);
        EXPECT_EQ(::posix_spawn(&child.pid, program.c_str(), &actions, nullptr, argv.data(), environ), 0);
        ::posix_spawn_file_actions_destroy(&actions);
        if (with_pipes) {
            ::close(lifeline[0]);
            ::close(ready[1]);
        }
        return child;
    }
    std::vector<std::string> agent_words() const {
        return {"agent", "--coordinator", server_->endpoint(), "--coordinator-key", server_->public_key(), "--key", key_file_, "--state", state_,
                "--node", "n0", "--cards", "4", "--cluster", cluster_};
    }
    void start_agent() { agent_ = start(agent_words(), true); }

    // Takes what the node says until `wanted` says that it is enough.
    bool hear(const std::function<bool()>& wanted) {
        const TimePoint until = now().steady + kPatience;
        while (!wanted()) {
            pollfd wait{server_->fd(), POLLIN, 0};
            ::poll(&wait, 1, 20);
            while (auto incoming = server_->receive()) take(*incoming);
            if (now().steady > until) return false;
        }
        return true;
    }
    void take(const Incoming& incoming) {
        proto::NodeMessage message;
        if (!message.ParseFromString(incoming.payload)) return;
        route_ = incoming.route;
        if (message.has_hello()) {
            hello_ = message.hello();
            for (const auto& report : message.hello().attempts()) reports_[report.id().attempt()] = report;
            proto::Order order;
            order.mutable_welcome()->set_heartbeat_ms(100);
            send(order);
        }
        if (message.has_heartbeat()) {
            for (const auto& report : message.heartbeat().progress()) reports_[report.id().attempt()] = report;
            proto::Order order;
            order.mutable_heartbeat();
            send(order);
        }
        if (message.has_report()) reports_[message.report().id().attempt()] = message.report();
        if (message.has_log_data()) log_ = message.log_data();
    }
    void send(proto::Order order) {
        order.set_coordinator_id("test");
        order.set_epoch(1);
        server_->send(route_, order.SerializeAsString());
    }
    bool is_in(std::uint32_t attempt, proto::AttemptPhase phase) { return reports_[attempt].phase() == phase && reports_[attempt].id().job() == 1; }

    proto::Prepare prepare(std::uint32_t attempt, const std::string& script, std::uint32_t ranks = 2) const {
        proto::Prepare prepare;
        prepare.mutable_id()->set_job(1);
        prepare.mutable_id()->set_attempt(attempt);
        auto& spec = *prepare.mutable_spec();
        for (const std::string& word : {std::string("/bin/sh"), std::string("-c"), script}) spec.add_argv(word);
        spec.set_cwd("/tmp");
        spec.set_ranks(ranks);
        auto& place = *prepare.add_gang();
        place.set_node("n0");
        place.set_rank_count(ranks);
        for (std::uint32_t i = 0; i < ranks; ++i) place.add_cards(i);
        place.set_address("127.0.0.1");
        const passwd* self = ::getpwuid(::getuid());
        prepare.set_user(self == nullptr ? "" : self->pw_name);
        return prepare;
    }
    void order(const proto::Prepare& prepare) {
        proto::Order order;
        *order.mutable_prepare() = prepare;
        send(order);
    }
    void launch(std::uint32_t attempt) {
        proto::Order order;
        order.mutable_launch()->mutable_id()->set_job(1);
        order.mutable_launch()->mutable_id()->set_attempt(attempt);
        order.mutable_launch()->set_master_port(reports_[attempt].master_port());
        send(order);
    }
    void stop(std::uint32_t attempt) {
        proto::Order order;
        order.mutable_stop()->mutable_id()->set_job(1);
        order.mutable_stop()->mutable_id()->set_attempt(attempt);
        send(order);
    }
    void release(std::uint32_t attempt) {
        proto::Order order;
        order.mutable_release()->mutable_id()->set_job(1);
        order.mutable_release()->mutable_id()->set_attempt(attempt);
        send(order);
    }
    void bring_up(const proto::Prepare& what) {
        const std::uint32_t attempt = what.id().attempt();
        order(what);
        ASSERT_TRUE(hear([&] { return is_in(attempt, proto::ATTEMPT_PREPARED) || is_in(attempt, proto::ATTEMPT_GONE); })) << logs();
        ASSERT_EQ(reports_[attempt].phase(), proto::ATTEMPT_PREPARED) << reports_[attempt].failure() << logs();
        launch(attempt);
        const int ranks = static_cast<int>(what.spec().ranks());
        ASSERT_TRUE(hear([&] { return is_in(attempt, proto::ATTEMPT_RUNNING) && reports_[attempt].ranks_size() == ranks && reports_[attempt].ranks(0).pid() > 0; })) << logs();
    }
    std::vector<pid_t> ranks(std::uint32_t attempt) {
        std::vector<pid_t> pids;
        for (const auto& rank : reports_[attempt].ranks()) pids.push_back(rank.pid());
        return pids;
    }
    std::string read_output(std::uint32_t attempt) {
        log_.Clear();
        proto::Order order;
        order.mutable_logs()->mutable_id()->set_job(1);
        order.mutable_logs()->mutable_id()->set_attempt(attempt);
        order.mutable_logs()->set_request(7);
        order.mutable_logs()->set_limit_bytes(1 << 20);
        send(order);
        if (!hear([&] { return log_.request() == 7; })) return "no answer";
        if (!log_.error().empty()) return log_.error();
        std::string text;
        std::string_view bytes = log_.records();
        OutputRecord record;
        while (next_output_record(bytes, record)) text += record.data;
        return text;
    }
    // Agent, execd, and the shepherds that it forked.
    std::vector<std::string> parts() const {
        std::vector<std::string> found;
        for (const pid_t pid : all_pids()) {
            const auto words = read_file(fmt::format("/proc/{}/cmdline", pid));
            if (pid == ::getpid() || !words.ok() || words->find(state_) == std::string::npos || !is_alive(pid)) continue;
            const auto name = read_file(fmt::format("/proc/{}/comm", pid));
            found.push_back(fmt::format("{} {}", pid, name.ok() ? *name : ""));
        }
        return found;
    }
    // Processes, shared memory and cgroups of this test's cluster.
    std::vector<std::string> left_behind() const {
        std::vector<std::string> left;
        for (const pid_t pid : all_pids()) {
            const auto mark = process_environment(pid, "GANGLINE_MARK");
            if (mark && mark->starts_with(cluster_ + "/") && is_alive(pid)) left.push_back(fmt::format("process {}", pid));
        }
        for (const char* folder : {"/dev/shm", "/sys/fs/cgroup/gangline", "/sys/fs/cgroup/unified/gangline"}) {
            std::error_code error;
            for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
                if (entry.path().filename().string().find(cluster_) != std::string::npos) left.push_back(entry.path());
            }
        }
        return left;
    }
    std::string logs() const {
        const auto text = read_file(root_ + "/log");
        return "\n" + (text.ok() ? *text : std::string("no log"));
    }

    std::string root_, state_, key_file_, cluster_;
    KeyTable table_;
    KeyPair server_keys_, node_keys_;
    std::unique_ptr<Wire> wire_;
    std::unique_ptr<ServerSocket> server_;
    std::string route_;
    proto::Hello hello_;
    proto::LogData log_;
    std::map<std::uint32_t, proto::AttemptReport> reports_;
    Child agent_, execd_;
};

TEST_F(NodeTest, AGangLivesThroughItsAgentsDeathAndIsProvedGoneAfterStop) {
    start_agent();
    ASSERT_TRUE(hear([&] { return hello_.node().cards_size() == 4; })) << logs();
    char ready[16] = {};
    ASSERT_EQ(::read(agent_.ready.get(), ready, sizeof ready), 6) << "`ready` once it was welcomed";
    bring_up(prepare(1, "echo says $RANK; trap '' TERM; sleep 1000 & setsid sleep 1000 & wait; wait"));
    const std::vector<pid_t> before = ranks(1);
    agent_.kill(SIGKILL);
    EXPECT_EQ(agent_.wait(), -1);
    for (const pid_t pid : before) EXPECT_TRUE(is_alive(pid));
    hello_.Clear();
    reports_.clear();
    start_agent();
    ASSERT_TRUE(hear([&] { return hello_.attempts_size() == 1; })) << logs();
    EXPECT_EQ(hello_.attempts(0).phase(), proto::ATTEMPT_RUNNING);
    EXPECT_EQ(ranks(1), before);
    stop(1);
    ASSERT_TRUE(hear([&] { return is_in(1, proto::ATTEMPT_GONE); })) << logs();
    EXPECT_TRUE(left_behind().empty() || left_behind().front().find("process") == std::string::npos);
    for (const pid_t pid : before) EXPECT_FALSE(is_alive(pid));
    const pid_t shepherd = reports_[1].shepherd_pid();
    release(1);
    EXPECT_TRUE(eventually([&] { return !is_alive(shepherd); }));
    const std::string output = read_output(1);
    EXPECT_NE(output.find("says 0"), std::string::npos) << output;
    EXPECT_NE(output.find("says 1"), std::string::npos) << output;
    EXPECT_TRUE(log_.complete());
    agent_.lifeline.reset();
    EXPECT_EQ(agent_.wait(), 0) << logs();
}

TEST_F(NodeTest, TheLifelinesEndTakesAllWithIt) {
    start_agent();
    ASSERT_TRUE(hear([&] { return hello_.node().cards_size() == 4; })) << logs();
    bring_up(prepare(1, "sleep 1000"));
    const pid_t shepherd = reports_[1].shepherd_pid();
    const std::vector<pid_t> before = ranks(1);
    EXPECT_FALSE(parts().empty());
    agent_.lifeline.reset();
    EXPECT_EQ(agent_.wait(), 0) << logs();
    EXPECT_THAT(parts(), testing::IsEmpty()) << "whoever asked may remove its folder now";
    EXPECT_FALSE(is_alive(shepherd));
    for (const pid_t pid : before) EXPECT_FALSE(is_alive(pid));
    EXPECT_TRUE(left_behind().empty());
}

// At once, while execd and the first spare are only starting.
TEST_F(NodeTest, AnAgentThatIsToldToGoAtItsStartLeavesNobody) {
    for (int i = 0; i < 5; ++i) {
        start_agent();
        agent_.lifeline.reset();
        EXPECT_EQ(agent_.wait(), 0) << logs();
        EXPECT_THAT(parts(), testing::IsEmpty());
        EXPECT_TRUE(remove_tree(state_).ok());
        EXPECT_NE(::access(state_.c_str(), F_OK), 0);
    }
}

TEST_F(NodeTest, ASecondAgentOfOneNodeIsTurnedAwayAndHurtsNobody) {
    start_agent();
    ASSERT_TRUE(hear([&] { return hello_.node().cards_size() == 4; })) << logs();
    bring_up(prepare(1, "sleep 1000"));
    std::vector<std::string> words = agent_words();
    *(std::find(words.begin(), words.end(), "--state") + 1) = root_ + "/twin";
    Child second = start(words);
    Child cleaner = start({"agent", "--clean", "--state", root_ + "/cleaner", "--node", "n0", "--cluster", cluster_});
    for (Child* child : {&second, &cleaner}) {
        EXPECT_EQ(child->wait(), 3);
        if (child->pid != 0) child->kill(SIGKILL);
    }
    EXPECT_NE(logs().find(fmt::format("another agent (process {}) serves node n0", agent_.pid)), std::string::npos) << logs();
    for (const pid_t pid : ranks(1)) EXPECT_TRUE(is_alive(pid));
    EXPECT_TRUE(is_alive(agent_.pid));
}

TEST_F(NodeTest, AKilledShepherdsAttemptIsGoneWithItsReason) {
    start_agent();
    ASSERT_TRUE(hear([&] { return hello_.node().cards_size() == 4; })) << logs();
    bring_up(prepare(1, "setsid sleep 1000 & sleep 1000"));
    ::kill(reports_[1].shepherd_pid(), SIGKILL);
    ASSERT_TRUE(hear([&] { return is_in(1, proto::ATTEMPT_GONE); })) << logs();
    EXPECT_EQ(reports_[1].failure(), "the shepherd of this attempt died");
    EXPECT_EQ(reports_[1].ranks_size(), 2) << "what was last known of its ranks";
    EXPECT_TRUE(left_behind().empty());
    release(1);
    bring_up(prepare(2, "sleep 1000"));  // the same cards
    stop(2);
    EXPECT_TRUE(hear([&] { return is_in(2, proto::ATTEMPT_GONE); })) << logs();
}

TEST_F(NodeTest, ANewAgentEndsWhatAShepherdThatDiedMeanwhileLeft) {
    start_agent();
    ASSERT_TRUE(hear([&] { return hello_.node().cards_size() == 4; })) << logs();
    bring_up(prepare(1, "(setsid sleep 1000 &) ; sleep 1000"));
    const pid_t shepherd = reports_[1].shepherd_pid();
    agent_.kill(SIGKILL);
    EXPECT_EQ(agent_.wait(), -1);
    ::kill(shepherd, SIGKILL);
    ASSERT_TRUE(eventually([&] { return !is_alive(shepherd); }));
    (void)remove_tree(state_ + "/attempts");  // not even a note: its shared memory tells of it
    hello_.Clear();
    reports_.clear();
    start_agent();
    ASSERT_TRUE(hear([&] { return is_in(1, proto::ATTEMPT_GONE); })) << logs();
    EXPECT_NE(reports_[1].failure(), "");
    EXPECT_TRUE(left_behind().empty());
}

TEST_F(NodeTest, CleanEndsEverythingWithoutACoordinator) {
    start_agent();
    ASSERT_TRUE(hear([&] { return hello_.node().cards_size() == 4; })) << logs();
    bring_up(prepare(1, "sleep 1000"));
    const pid_t shepherd = reports_[1].shepherd_pid();
    Child second = start({"agent", "--clean", "--state", state_, "--node", "n0", "--cluster", cluster_});
    EXPECT_EQ(second.wait(), 3) << "the agent still lives";
    agent_.kill(SIGKILL);
    EXPECT_EQ(agent_.wait(), -1);
    Child clean = start({"agent", "--clean", "--state", state_, "--node", "n0", "--cluster", cluster_});
    EXPECT_EQ(clean.wait(), 0) << logs();
    EXPECT_FALSE(is_alive(shepherd));
    EXPECT_TRUE(left_behind().empty());
}

TEST_F(NodeTest, SigtermLeavesGangsRunning) {
    start_agent();
    ASSERT_TRUE(hear([&] { return hello_.node().cards_size() == 4; })) << logs();
    bring_up(prepare(1, "sleep 1000"));
    agent_.kill(SIGTERM);
    EXPECT_EQ(agent_.wait(), 0);
    for (const pid_t pid : ranks(1)) EXPECT_TRUE(is_alive(pid));
}

// Root's execd, an agent that is nobody special, and a job of a third user.
TEST_F(NodeTest, WithExecdAJobRunsAsItsUserAndItsAgentReadsTheLog) {
    if (::getuid() != 0) GTEST_SKIP() << "only root can start an execd for several users";
    const passwd* entry = ::getpwnam("daemon");
    ASSERT_NE(entry, nullptr);
    const uid_t agent_uid = entry->pw_uid;
    const gid_t agent_gid = entry->pw_gid;
    entry = ::getpwnam("games");
    ASSERT_NE(entry, nullptr);
    const uid_t user_uid = entry->pw_uid;
    const gid_t user_gid = entry->pw_gid;
    const TicketKeys keys = new_ticket_keys();
    ASSERT_EQ(::chmod(root_.c_str(), 0755), 0);
    ASSERT_EQ(::mkdir(state_.c_str(), 0700), 0);
    const std::string key_folder = root_ + "/keys";
    ASSERT_EQ(::mkdir(key_folder.c_str(), 0700), 0);
    ASSERT_EQ(::rename(key_file_.c_str(), (key_folder + "/n0.key").c_str()), 0);
    key_file_ = key_folder + "/n0.key";
    for (const std::string& path : {state_, key_folder, key_file_}) ASSERT_EQ(::chown(path.c_str(), agent_uid, agent_gid), 0);
    const std::string socket = "gangline-execd-" + random_hex(6);
    const std::string execd_state = root_ + "/execd";
    execd_ = start({"execd", "--listen", socket, "--agent-uid", std::to_string(agent_uid), "--ticket-key", to_hex(keys.public_key), "--cluster", cluster_,
                    "--node", "n0", "--state", execd_state, "--min-uid", "1"});
    ASSERT_TRUE(eventually([&] { return logs().find("serving socket") != std::string::npos; })) << logs();
    std::vector<std::string> words = {"as", std::to_string(agent_uid), std::to_string(agent_gid)};
    for (const std::string& word : agent_words()) words.push_back(word);
    words.insert(words.end(), {"--execd", socket, "--spool", execd_state + "/spool"});
    agent_ = start(words, true);
    ASSERT_TRUE(hear([&] { return hello_.node().multi_user(); })) << logs();

    proto::Prepare what = prepare(1, "id -u; id -G; exec sleep 1000");
    what.set_user("games");
    const auto sign = [&](proto::Prepare& one) {
        proto::TicketClaims claims;
        claims.set_cluster(cluster_);
        claims.set_node("n0");
        *claims.mutable_id() = one.id();
        claims.set_user("games");
        claims.set_uid(user_uid);
        claims.set_gid(user_gid);
        claims.add_groups(user_gid);
        claims.set_spec_sha256(sha256(one.spec().SerializeAsString()));
        claims.set_epoch(1);
        claims.set_expires_unix_ms(now().unix_ms + 30'000);
        claims.set_nonce(new_nonce());
        *one.mutable_ticket() = make_ticket(keys.secret_key, claims);
    };
    sign(what);
    bring_up(what);
    for (const pid_t pid : ranks(1)) {
        struct stat info {};
        ASSERT_EQ(::stat(fmt::format("/proc/{}", pid).c_str(), &info), 0);
        EXPECT_EQ(info.st_uid, user_uid);
    }
    EXPECT_TRUE(eventually([&] { return read_output(1).find(fmt::format("{}\n{}\n", user_uid, user_gid)) != std::string::npos; })) << log_.DebugString();
    ::kill(reports_[1].shepherd_pid(), SIGKILL);  // execd must end what is the user's
    ASSERT_TRUE(hear([&] { return is_in(1, proto::ATTEMPT_GONE); })) << logs();
    EXPECT_EQ(reports_[1].failure(), "the shepherd of this attempt died");
    EXPECT_TRUE(eventually([&] { return left_behind().empty(); }));
    release(1);

    proto::Prepare unsigned_one = prepare(2, "id -u");
    order(unsigned_one);
    ASSERT_TRUE(hear([&] { return is_in(2, proto::ATTEMPT_GONE); }));
    EXPECT_NE(reports_[2].failure().find("ticket"), std::string::npos) << reports_[2].failure();

    proto::Prepare third = prepare(3, "sleep 1000");
    third.set_user("games");
    sign(third);
    bring_up(third);
    stop(3);
    ASSERT_TRUE(hear([&] { return is_in(3, proto::ATTEMPT_GONE); })) << logs();
    release(3);
    EXPECT_TRUE(eventually([&] { return left_behind().empty(); })) << "its cgroup is root's, and goes with it";
    agent_.lifeline.reset();
    EXPECT_EQ(agent_.wait(), 0) << logs();
    execd_.kill(SIGTERM);
    execd_.wait();
}

}  // namespace
}  // namespace gangline::runner

int main(int argc, char** argv) {
    const std::string verb = argc > 1 ? argv[1] : "";
    if (verb == "as" && argc > 4) {
        const auto uid = static_cast<uid_t>(std::stoul(argv[2]));
        const auto gid = static_cast<gid_t>(std::stoul(argv[3]));
        if (::setgroups(0, nullptr) != 0 || ::setresgid(gid, gid, gid) != 0 || ::setresuid(uid, uid, uid) != 0) return 126;
        return gangline::runner::agent_main(argc - 4, argv + 4);
    }
    if (verb == "agent") return gangline::runner::agent_main(argc - 1, argv + 1);
    if (verb == "execd") return gangline::runner::execd_main(argc - 1, argv + 1);
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
