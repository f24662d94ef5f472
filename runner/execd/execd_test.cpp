// The nursery as root: who it becomes, and what it refuses. Needs root to become anybody; skipped, loudly, otherwise.

#include <dirent.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/process.h"
#include "runner/execd/become_user.h"
#include "runner/execd/nursery.h"
#include "runner/execd/reap.h"

namespace gangline::runner {
namespace {

constexpr const char* kUser = "games";  // on every Debian; a number below 1000, hence min_uid 1 here

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
        const proto::SpawnReply reply = nursery_->handle(request, -1).spawn();
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
    auto root = claims(9);
    root.set_user("root");
    root.set_uid(0);
    EXPECT_TRUE(spawn(root).refused());
    auto renamed = claims(9);
    renamed.set_uid(uid_ + 1);
    EXPECT_TRUE(spawn(renamed).refused());
    auto unknown = claims(9);
    unknown.set_user("no-such-user-here");
    EXPECT_TRUE(spawn(unknown).refused());
}

TEST_F(NurseryOfManyUsers, ANewNurseryRemembersTheHighestEpoch) {
    ASSERT_EQ(spawn(claims(20)).error(), "");
    nursery_ = std::make_unique<Nursery>(options_);
    ASSERT_TRUE(nursery_->prepare().ok());
    EXPECT_TRUE(spawn(claims(19)).refused());
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
        request.mutable_spawn()->set_socket_name("gangline-test-" + random_hex(8));
        EXPECT_NE(nursery.handle(request, -1).spawn().error(), "") << name;
    }
    (void)remove_tree(options.state);
}

TEST(Reap, FindsAndEndsEveryBearerOfTheMarkWhateverItsSession) {
    const std::string mark = "test/n0/" + random_hex(6);
    const pid_t pid = ::fork();
    if (pid == 0) {
        ::setenv("GANGLINE_MARK", mark.c_str(), 1);
        ::execl("/bin/sh", "sh", "-c", "setsid sleep 1000 & setsid sh -c 'trap \"\" TERM; sleep 1000' & exec sleep 1000", nullptr);
        ::_exit(127);
    }
    const ReapScope scope{"", mark};
    const auto until = std::chrono::steady_clock::now() + seconds(5);
    while (members_of(scope).size() < 3 && std::chrono::steady_clock::now() < until) ::sched_yield();
    EXPECT_GE(members_of(scope).size(), 3u);
    EXPECT_EQ(kill_until_gone(scope, seconds(5)), 0u);
    EXPECT_TRUE(members_of(scope).empty());
    ::waitpid(pid, nullptr, 0);
}

}  // namespace
}  // namespace gangline::runner
