// The nursery as root: who it becomes, and what it refuses. Needs root to become anybody; skipped, loudly, otherwise.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/process.h"
#include "runner/execd/become_user.h"
#include "runner/execd/nursery.h"
#include "runner/execd/reap.h"

namespace gangline::runner {
namespace {

constexpr const char* kUser = "games";  // on every Debian; a number below 1000, hence min_uid 1 here

// Takes one request up and waits for its reply.
proto::ExecdReply ask(Nursery& nursery, const proto::ExecdRequest& request) {
    nursery.begin(request);
    const TimePoint until = now().steady + seconds(20);
    while (now().steady < until) {
        auto replies = nursery.settle(now().steady);
        if (!replies.empty()) return replies.front();
        std::vector<pollfd> list;
        for (const int fd : nursery.waits()) list.push_back({fd, POLLIN, 0});
        const auto next = nursery.next_deadline();
        const auto left = next ? to_ms(*next - now().steady) + 1 : 1000;
        ::poll(list.data(), list.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000)));
    }
    ADD_FAILURE() << "no reply";
    return {};
}

class NurseryOfManyUsers : public testing::Test {
  protected:
    void SetUp() override {
        if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
        const passwd* user = ::getpwnam(kUser);
        ASSERT_NE(user, nullptr);
        uid_ = user->pw_uid;
        gid_ = user->pw_gid;
        char pattern[] = "/tmp/gangline-execd-XXXXXX";
        state_ = ::mkdtemp(pattern);
        ::chmod(state_.c_str(), 0711);
        keys_ = new_ticket_keys();
        options_.state = state_;
        options_.cluster = "c";
        options_.node = "n0";
        options_.multi_user = true;
        options_.ticket_key = keys_.public_key;
        options_.min_uid = 1;
        nursery_ = std::make_unique<Nursery>(options_);
        ASSERT_TRUE(nursery_->prepare().ok());
    }
    void TearDown() override {
        for (const pid_t pid : started_) {
            ::kill(pid, SIGKILL);
            ::waitpid(pid, nullptr, 0);
        }
        if (!state_.empty()) (void)remove_tree(state_);
    }

    proto::TicketClaims claims(std::uint64_t epoch = 7) const {
        proto::TicketClaims claims;
        claims.set_cluster("c");
        claims.set_node("n0");
        claims.mutable_id()->set_job(3);
        claims.mutable_id()->set_attempt(1);
        claims.set_user(kUser);
        claims.set_uid(uid_);
        claims.set_gid(gid_);
        claims.add_groups(gid_);
        claims.set_spec_sha256(sha256(spec().SerializeAsString()));
        claims.set_epoch(epoch);
        claims.set_expires_unix_ms(now().unix_ms + 30'000);
        claims.set_nonce(new_nonce());
        return claims;
    }
    static proto::JobSpec spec() {
        proto::JobSpec spec;
        spec.add_argv("/bin/true");
        spec.set_ranks(1);
        return spec;
    }
    proto::SpawnReply spawn(const proto::Ticket& ticket, const proto::JobSpec& what = spec()) {
        proto::ExecdRequest request;
        auto& body = *request.mutable_spawn();
        body.set_request(1);
        body.mutable_id()->set_job(3);
        body.mutable_id()->set_attempt(1);
        *body.mutable_ticket() = ticket;
        *body.mutable_spec() = what;
        socket_ = "gangline-test-" + random_hex(8);
        body.set_socket_name(socket_);
        body.set_spool_folder("3-1");
        body.set_node("n0");
        body.set_address("127.0.0.1");
        body.set_cluster("c");
        const proto::SpawnReply reply = ask(*nursery_, request).spawn();
        if (reply.pid() != 0) started_.push_back(reply.pid());
        return reply;
    }
    proto::SpawnReply spawn(const proto::TicketClaims& with) { return spawn(make_ticket(keys_.secret_key, with)); }

    uid_t uid_ = 0;
    gid_t gid_ = 0;
    std::string state_;
    std::string socket_;
    TicketKeys keys_;
    NurseryOptions options_;
    std::unique_ptr<Nursery> nursery_;
    std::vector<pid_t> started_;
};

std::string status_line(pid_t pid, const std::string& name) {
    const auto text = read_file(fmt::format("/proc/{}/status", pid));
    if (!text.ok()) return "";
    const std::size_t at = text->find("\n" + name + ":");
    return at == std::string::npos ? "" : text->substr(at + 1, text->find('\n', at + 1) - at - 1);
}

TEST_F(NurseryOfManyUsers, TheShepherdIsTheUserWithHisGroupsAndNothingOfRoot) {
    const auto reply = spawn(claims());
    ASSERT_EQ(reply.error(), "");
    const pid_t pid = reply.pid();
    EXPECT_EQ(status_line(pid, "Uid"), fmt::format("Uid:\t{0}\t{0}\t{0}\t{0}", uid_));
    EXPECT_EQ(status_line(pid, "Gid"), fmt::format("Gid:\t{0}\t{0}\t{0}\t{0}", gid_));
    EXPECT_EQ(status_line(pid, "Groups").find("Groups:\t" + std::to_string(gid_)), 0u);
    EXPECT_EQ(status_line(pid, "CapEff"), "CapEff:\t0000000000000000");
    const auto stat = process_stat(pid);
    ASSERT_TRUE(stat.has_value());
    EXPECT_EQ(stat->session, pid);
    struct stat spool{};
    ASSERT_EQ(::stat((state_ + "/spool/3-1").c_str(), &spool), 0);
    EXPECT_EQ(spool.st_uid, uid_);
    EXPECT_EQ(spool.st_mode & 07777, 02750u);
    // Who connects sees the user, not root.
    auto connection = connect_abstract(socket_, SOCK_STREAM);
    ASSERT_TRUE(connection.ok());
    const auto peer = peer_credentials(connection->get());
    ASSERT_TRUE(peer.ok());
    EXPECT_EQ(peer->uid, uid_);
}

TEST_F(NurseryOfManyUsers, ATicketServesOnceAndOnlyForWhatItSays) {
    const auto ticket = make_ticket(keys_.secret_key, claims());
    proto::Ticket tampered = ticket;
    (*tampered.mutable_claims())[4] = static_cast<char>((*tampered.mutable_claims())[4] ^ 1);
    EXPECT_TRUE(spawn(tampered).refused());
    proto::JobSpec other = spec();
    other.set_argv(0, "/bin/sh");
    EXPECT_TRUE(spawn(ticket, other).refused());
    EXPECT_FALSE(spawn(ticket).refused());
    EXPECT_TRUE(spawn(ticket).refused()) << "replayed";
    EXPECT_TRUE(spawn(proto::Ticket()).error() != "");
    const auto stranger = new_ticket_keys();
    EXPECT_TRUE(spawn(make_ticket(stranger.secret_key, claims())).refused());
}

TEST_F(NurseryOfManyUsers, RefusesOtherNodesExpiryOlderCoordinatorsAndForbiddenUsers) {
    auto elsewhere = claims();
    elsewhere.set_node("n1");
    EXPECT_TRUE(spawn(elsewhere).refused());
    auto late = claims();
    late.set_expires_unix_ms(now().unix_ms - 1);
    EXPECT_TRUE(spawn(late).refused());
    EXPECT_FALSE(spawn(claims(9)).refused());
    EXPECT_TRUE(spawn(claims(8)).refused()) << "an older coordinator";
}

TEST_F(NurseryOfManyUsers, AsksItsOwnUserTableAndRefusesRootNobodyAndTheUnknown) {
    const auto why_not = [&](const std::string& user, uid_t uid) {
        auto other = claims();
        other.set_user(user);
        other.set_uid(uid);
        const auto reply = spawn(other);
        EXPECT_TRUE(reply.refused()) << user << " " << uid;
        EXPECT_NE(::access((state_ + "/spool/3-1").c_str(), F_OK), 0) << "nothing is left of it";
        return reply.error();
    };
    EXPECT_NE(why_not("root", 0).find("root may not"), std::string::npos);
    EXPECT_NE(why_not(kUser, uid_ + 1).find("in the ticket"), std::string::npos);
    EXPECT_NE(why_not("no-such-user-here", uid_).find("not known"), std::string::npos);
    EXPECT_NE(why_not("nobody", 65534).find("nobody"), std::string::npos);
    options_.min_uid = uid_ + 1;
    nursery_ = std::make_unique<Nursery>(options_);
    EXPECT_NE(why_not(kUser, uid_).find("--min-uid"), std::string::npos);
}

TEST_F(NurseryOfManyUsers, ANewNurseryRemembersTheHighestEpoch) {
    ASSERT_EQ(spawn(claims(20)).error(), "");
    nursery_ = std::make_unique<Nursery>(options_);
    ASSERT_TRUE(nursery_->prepare().ok());
    EXPECT_TRUE(spawn(claims(19)).refused());
}

TEST_F(NurseryOfManyUsers, ANewNurseryRemembersUsedTickets) {
    const auto ticket = make_ticket(keys_.secret_key, claims());
    ASSERT_EQ(spawn(ticket).error(), "");
    nursery_ = std::make_unique<Nursery>(options_);
    ASSERT_TRUE(nursery_->prepare().ok());
    const auto again = spawn(ticket);
    EXPECT_TRUE(again.refused());
    EXPECT_NE(again.error().find("used before"), std::string::npos) << again.error();
}

// The agent's own words never become a path: a hostile one gains nothing by them.
TEST_F(NurseryOfManyUsers, RefusesNamesOfOtherNodesOtherAttemptsAndOfNoAttempt) {
    proto::ExecdRequest request;
    auto& reap = *request.mutable_reap();
    reap.mutable_id()->set_job(3);
    reap.mutable_id()->set_attempt(1);
    reap.set_cluster("c");
    reap.set_node("../../etc");
    EXPECT_NE(ask(*nursery_, request).reap().error(), "");
    reap.set_node("n0");
    reap.set_cgroup("gangline/c/n0/../../../..");
    EXPECT_NE(ask(*nursery_, request).reap().error(), "");
    reap.set_cgroup("gangline/c/n0/3.1");
    EXPECT_EQ(ask(*nursery_, request).reap().error(), "");
    reap.clear_cgroup();
    reap.mutable_id()->Clear();
    reap.set_remove_spool(true);
    reap.set_spool_folder("../spool");
    EXPECT_NE(ask(*nursery_, request).reap().error(), "");
    reap.set_remove_spool(false);
    reap.set_spool_folder("3-1");
    EXPECT_NE(ask(*nursery_, request).reap().error(), "") << "job 0 is nobody's";
}

TEST_F(NurseryOfManyUsers, AFolderThatOthersMayWriteIsRefused) {
    ::chmod(state_.c_str(), 0777);
    Nursery nursery(options_);
    const auto prepared = nursery.prepare();
    ASSERT_FALSE(prepared.ok());
    EXPECT_NE(prepared.error().message.find("chmod go-w"), std::string::npos);
}

TEST_F(NurseryOfManyUsers, NoDescriptorOfRootReachesTheUser) {
    const Fd secret(::open("/etc/shadow", O_RDONLY));
    const auto reply = spawn(claims());
    ASSERT_EQ(reply.error(), "");
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", reply.pid()), error)) {
        const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
        EXPECT_EQ(target.find("shadow"), std::string::npos);
        EXPECT_EQ(target.find(state_ + "/nonces"), std::string::npos);
    }
    EXPECT_FALSE(error) << error.message();
}

TEST_F(NurseryOfManyUsers, WhatTheUserLeavesInHisSpoolIsRemovedWithoutFollowingHisLinks) {
    ASSERT_EQ(spawn(claims()).error(), "");
    const std::string kept = state_ + "/kept";
    ASSERT_EQ(::mkdir(kept.c_str(), 0700), 0);
    ASSERT_TRUE(write_file_atomically(kept + "/file", "x").ok());
    ASSERT_EQ(::symlink(kept.c_str(), (state_ + "/spool/3-1/link").c_str()), 0);
    proto::ExecdRequest request;
    request.mutable_reap()->set_spool_folder("3-1");
    request.mutable_reap()->set_remove_spool(true);
    EXPECT_EQ(ask(*nursery_, request).reap().error(), "");
    EXPECT_NE(::access((state_ + "/spool/3-1").c_str(), F_OK), 0);
    EXPECT_EQ(::access((kept + "/file").c_str(), F_OK), 0);
}

TEST(Nursery, RefusesSpoolNamesThatAreNotNumbers) {
    NurseryOptions options;
    char pattern[] = "/tmp/gangline-execd-XXXXXX";
    options.state = ::mkdtemp(pattern);
    options.node = "n0";
    Nursery nursery(options);
    ASSERT_TRUE(nursery.prepare().ok());
    for (const char* name : {"../x", "", "1-2/..", "spare-", "a-1", "-1", "1 2", "spare-../1"}) {
        proto::ExecdRequest request;
        request.mutable_spawn()->set_spool_folder(name);
        request.mutable_spawn()->set_node("n0");
        request.mutable_spawn()->set_socket_name("gangline-test-" + random_hex(8));
        EXPECT_NE(ask(nursery, request).spawn().error().find("spool name"), std::string::npos) << name;
    }
    (void)remove_tree(options.state);
}

// Late by its agent's whole life: the folder that held its state has been removed.
TEST(Nursery, DoesNotMakeItsAgentsFolderAgain) {
    char pattern[] = "/tmp/gangline-execd-XXXXXX";
    const std::string folder = ::mkdtemp(pattern);
    NurseryOptions options;
    options.state = folder + "/run/n0";
    Nursery nursery(options);
    EXPECT_FALSE(nursery.prepare().ok());
    EXPECT_EQ(::rmdir(folder.c_str()), 0) << "nothing is in it";
    ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
}

TEST(Nursery, AShepherdThatIsOnlyStartingGoesWithWhoeverAskedForIt) {
    char pattern[] = "/tmp/gangline-execd-XXXXXX";
    NurseryOptions options;
    options.state = ::mkdtemp(pattern);
    options.cluster = "c";
    options.node = "n0";
    Nursery nursery(options);
    ASSERT_TRUE(nursery.prepare().ok());
    proto::ExecdRequest request;
    auto& spawn = *request.mutable_spawn();
    spawn.set_socket_name("gangline-test-" + random_hex(8));
    spawn.set_spool_folder("spare-1");
    spawn.set_cluster("c");
    spawn.set_node("n0");
    nursery.begin(request);
    EXPECT_TRUE(wait_dead(nursery.forget_asker(), seconds(20)));
    EXPECT_TRUE(nursery.settle(now().steady).empty());
    bool was_killed = false;
    for (int status = 0; ::waitpid(-1, &status, 0) > 0;) was_killed = was_killed || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    EXPECT_TRUE(was_killed) << "it ended by itself, later";
    ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
    (void)remove_tree(options.state);
}

// An agent proves one attempt gone while it starts another: the new shepherd is a child of ours too, and no orphan.
TEST(Nursery, AShepherdThatStartsWhileAnotherAttemptIsReapedLives) {
    NurseryOptions options;
    char pattern[] = "/tmp/gangline-execd-XXXXXX";
    options.state = ::mkdtemp(pattern);
    options.cluster = "c" + random_hex(4);
    options.node = "n0";
    Nursery nursery(options);
    ASSERT_TRUE(nursery.prepare().ok());
    proto::ExecdRequest request;
    request.mutable_reap()->mutable_id()->set_job(9);
    request.mutable_reap()->mutable_id()->set_attempt(1);
    request.mutable_reap()->set_cluster(options.cluster);
    request.mutable_reap()->set_node("n0");
    nursery.begin(request);
    ASSERT_TRUE(nursery.settle(now().steady).empty()) << "a reaping looks twice";
    auto& spawn = *request.mutable_spawn();
    spawn.mutable_id()->set_job(9);
    spawn.mutable_id()->set_attempt(2);
    spawn.set_socket_name("gangline-test-" + random_hex(8));
    spawn.set_spool_folder("9-2");
    spawn.set_cluster(options.cluster);
    spawn.set_node("n0");
    nursery.begin(request);
    std::optional<proto::ReapReply> reaped;
    std::optional<proto::SpawnReply> spawned;
    for (const TimePoint until = now().steady + seconds(20); (!reaped || !spawned) && now().steady < until;) {
        for (const auto& reply : nursery.settle(now().steady)) {
            if (reply.has_reap()) reaped = reply.reap();
            if (reply.has_spawn()) spawned = reply.spawn();
        }
    }
    ASSERT_TRUE(reaped && spawned);
    EXPECT_EQ(reaped->still_there(), 0u);
    ASSERT_EQ(spawned->error(), "");
    const auto stat = process_stat(spawned->pid());
    EXPECT_TRUE(stat && stat->state != 'Z');
    ::kill(spawned->pid(), SIGKILL);
    ::waitpid(spawned->pid(), nullptr, 0);
    ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
    (void)remove_tree(options.state);
}

std::size_t reap(const ReapScope& scope, const std::vector<ProcessId>& shepherds = {}) {
    Reaping reaping(scope, now().steady + seconds(10));
    while (true) {
        if (const auto left = reaping.look(now().steady, shepherds)) return *left;
        for (const Fd& death : reaping.deaths()) {
            pollfd wait{death.get(), POLLIN, 0};
            ::poll(&wait, 1, 1000);
        }
    }
}

TEST(Reap, FindsAndEndsEveryBearerOfTheMarkWhateverItsSession) {
    const std::string mark = "test/n0/" + random_hex(6);
    const pid_t pid = ::fork();
    if (pid == 0) {
        ::setenv("GANGLINE_MARK", mark.c_str(), 1);
        ::execl("/bin/sh", "sh", "-c", "setsid sleep 1000 & setsid sh -c 'trap \"\" TERM; sleep 1000' & exec sleep 1000", nullptr);
        ::_exit(127);
    }
    ReapScope scope;
    scope.mark = mark;
    const TimePoint until = now().steady + seconds(5);
    while (members_of(scope).size() < 3 && now().steady < until) ::sched_yield();
    EXPECT_GE(members_of(scope).size(), 3u);
    EXPECT_EQ(reap(scope), 0u);
    EXPECT_TRUE(members_of(scope).empty());
    ::waitpid(pid, nullptr, 0);
}

// A daemon that wipes its environment bears no mark; without a cgroup only the sub-reaper finds it.
TEST(Reap, FindsAnOrphanWithoutMarkAsItsSubReaper) {
    ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
    const pid_t spared = ::fork();
    if (spared == 0) {
        ::pause();
        ::_exit(0);
    }
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
        if (::fork() == 0) {
            ::setsid();
            (void)!::write(ends[1], "x", 1);
            ::pause();
        }
        ::_exit(0);
    }
    char byte = 0;
    ASSERT_EQ(::read(ends[0], &byte, 1), 1);
    ::waitpid(pid, nullptr, 0);
    ReapScope scope;
    scope.orphans = true;
    const std::vector<ProcessId> shepherds = {process_stat(spared)->id};
    EXPECT_EQ(members_of(scope, shepherds).size(), 1u);
    EXPECT_EQ(reap(scope, shepherds), 0u);
    EXPECT_TRUE(process_stat(spared).has_value());
    EXPECT_NE(process_stat(spared)->state, 'Z');
    ::kill(spared, SIGKILL);
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
}

}  // namespace
}  // namespace gangline::runner
