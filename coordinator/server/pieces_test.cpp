// The shell's pure pieces: lines to nodes, gang keys, log relays, identities.
#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include "coordinator/server/gang_keys.h"
#include "coordinator/server/identity.h"
#include "coordinator/server/log_relays.h"
#include "coordinator/server/node_lines.h"

namespace gangline::coordinator {
namespace {

constexpr TimePoint kStart = TimePoint(seconds(1000));
using What = Hearing::What;

proto::NodeMessage hello(const std::string& agent, const std::string& boot_id = "m") {
    proto::NodeMessage message;
    message.mutable_hello()->set_agent_id(agent);
    message.mutable_hello()->mutable_node()->set_boot_id(boot_id);
    return message;
}
proto::NodeMessage heartbeat() {
    proto::NodeMessage message;
    message.mutable_heartbeat();
    return message;
}

TEST(NodeLines, AskAnUnknownRouteForHelloBeforeAnythingElseCounts) {
    NodeLines lines;
    EXPECT_EQ(lines.hear("n0", "r1", heartbeat(), kStart).what, What::AskHello);
    EXPECT_EQ(lines.hear("n0", "r1", heartbeat(), kStart + milliseconds(10)).what, What::Dropped);  // asked just now
    EXPECT_EQ(lines.hear("n0", "r1", heartbeat(), kStart + milliseconds(300)).what, What::AskHello);
    EXPECT_FALSE(lines.route_of("n0"));
    EXPECT_EQ(lines.hear("n0", "r1", hello("a"), kStart).what, What::Counts);
    EXPECT_EQ(lines.hear("n0", "r1", heartbeat(), kStart).what, What::Counts);
    EXPECT_EQ(lines.route_of("n0"), "r1");
}

TEST(NodeLines, AnAgentThatConnectsAgainKeepsItsNode) {
    NodeLines lines;
    lines.hear("n0", "r1", hello("a"), kStart);
    EXPECT_EQ(lines.hear("n0", "r2", heartbeat(), kStart).what, What::AskHello);
    EXPECT_EQ(lines.route_of("n0"), "r1");
    const Hearing again = lines.hear("n0", "r2", hello("a"), kStart);
    EXPECT_EQ(again.what, What::Counts);
    EXPECT_FALSE(again.replaced_route);
    EXPECT_EQ(lines.route_of("n0"), "r2");
}

TEST(NodeLines, ANewerAgentTakesOverAndTheOldOneNeverComesBack) {
    NodeLines lines;
    lines.hear("n0", "r1", hello("a"), kStart);
    const Hearing taken = lines.hear("n0", "r2", hello("b"), kStart);
    EXPECT_EQ(taken.what, What::Counts);
    EXPECT_EQ(taken.replaced_route, "r1");
    EXPECT_EQ(lines.hear("n0", "r1", heartbeat(), kStart).what, What::AskHello);
    EXPECT_EQ(lines.hear("n0", "r1", hello("a"), kStart).what, What::Superseded);
    EXPECT_EQ(lines.hear("n0", "r3", hello("a"), kStart).what, What::Superseded);
    EXPECT_EQ(lines.route_of("n0"), "r2");
}

TEST(NodeLines, AnotherMachineDoesNotTakeANameWhoseAgentSpeaks) {
    NodeLines lines;
    lines.hear("n0", "r1", hello("a", "m"), kStart);
    const Hearing taken = lines.hear("n0", "r2", hello("b", "other"), kStart + milliseconds(1000));
    EXPECT_EQ(taken.what, What::Elsewhere);
    EXPECT_FALSE(taken.replaced_route);
    EXPECT_EQ(lines.route_of("n0"), "r1");
    EXPECT_EQ(lines.hear("n0", "r1", heartbeat(), kStart + milliseconds(1000)).what, What::Counts);
    // The machine was replaced, or has started again.
    EXPECT_EQ(lines.hear("n0", "r2", hello("b", "other"), kStart + milliseconds(2001)).what, What::Counts);
    EXPECT_EQ(lines.hear("n0", "r1", hello("a", "m"), kStart + milliseconds(2001)).what, What::Superseded);
}

TEST(NodeLines, KeepNodesApart) {
    NodeLines lines;
    lines.hear("n0", "r1", hello("a"), kStart);
    EXPECT_EQ(lines.hear("n1", "r1", heartbeat(), kStart).what, What::AskHello);
    lines.hear("n1", "r2", hello("a"), kStart);
    EXPECT_EQ(lines.route_of("n0"), "r1");
    lines.forget("n0");
    EXPECT_FALSE(lines.route_of("n0"));
    EXPECT_EQ(lines.nodes(), std::vector<std::string>{"n1"});
}

TEST(NodeLines, ANodeIsSilentASecondAfterItsLastWord) {
    NodeLines lines;
    EXPECT_TRUE(lines.is_silent("n0", kStart));
    lines.hear("n0", "r1", hello("a"), kStart);
    EXPECT_FALSE(lines.is_silent("n0", kStart + milliseconds(1000)));
    EXPECT_TRUE(lines.is_silent("n0", kStart + milliseconds(1001)));
    lines.hear("n0", "r9", heartbeat(), kStart + milliseconds(2000));  // not by its line: proves nothing
    EXPECT_TRUE(lines.is_silent("n0", kStart + milliseconds(2000)));
}

TEST(NodeLines, AShepherdsLineBelongsToItsAttempt) {
    NodeLines lines;
    lines.hear_shepherd({"n0", 7, 1}, "s1");
    EXPECT_EQ(lines.shepherd_route({"n0", 7, 1}), "s1");
    EXPECT_FALSE(lines.shepherd_route({"n0", 7, 2}));
    EXPECT_FALSE(lines.shepherd_route({"n1", 7, 1}));
    lines.forget_shepherd({"n0", 7, 1});
    EXPECT_FALSE(lines.shepherd_route({"n0", 7, 1}));
}

TEST(GangKeys, LetAShepherdInForItsAttemptUntilItIsRemoved) {
    KeyTable table;
    GangKeys keys(table);
    const std::string key = new_key_pair().public_key;
    ASSERT_TRUE(keys.add({"n0", 7, 2}, key));
    const auto principal = table.by_key(key);
    ASSERT_TRUE(principal);
    EXPECT_EQ(principal->kind, PrincipalKind::Shepherd);
    EXPECT_EQ(principal->name, "n0");
    EXPECT_EQ(principal->job, 7U);
    EXPECT_EQ(principal->attempt, 2U);
    ASSERT_TRUE(keys.add({"n0", 7, 2}, key));
    EXPECT_EQ(table.by_key(key)->row, principal->row);
    keys.remove({"n0", 7, 2});
    EXPECT_FALSE(table.by_key(key));
}

TEST(GangKeys, ANewKeyOfAnAttemptReplacesTheOld) {
    KeyTable table;
    GangKeys keys(table);
    const std::string first = new_key_pair().public_key;
    const std::string second = new_key_pair().public_key;
    ASSERT_TRUE(keys.add({"n0", 7, 2}, first));
    ASSERT_TRUE(keys.add({"n0", 7, 2}, second));
    EXPECT_FALSE(table.by_key(first));
    EXPECT_TRUE(table.by_key(second));
}

TEST(GangKeys, ANodeCannotClaimAKeyThatIsSomebodyElses) {
    KeyTable table;
    GangKeys keys(table);
    const std::string alice = new_key_pair().public_key;
    const std::string other = new_key_pair().public_key;
    const auto row = table.add({.kind = PrincipalKind::User, .name = "alice", .role = Role::Admin, .public_key = alice});
    ASSERT_TRUE(keys.add({"n1", 3, 1}, other));
    EXPECT_EQ(keys.add({"n0", 7, 2}, alice).error().code, Code::Refused);
    EXPECT_EQ(keys.add({"n0", 7, 2}, other).error().code, Code::Refused);
    EXPECT_EQ(keys.add({"n0", 7, 2}, "nonsense").error().code, Code::Refused);
    EXPECT_EQ(table.by_key(alice)->row, row);
    EXPECT_EQ(table.by_key(other)->name, "n1");
}

TEST(GangKeys, ANodesKeysAreBoundedAndGoWithIt) {
    KeyTable table;
    GangKeys keys(table);
    for (std::uint64_t job = 1; job <= kMostShepherdsOfANode; ++job) ASSERT_TRUE(keys.add({"n0", job, 1}, new_key_pair().public_key));
    EXPECT_FALSE(keys.add({"n0", 999'999, 1}, new_key_pair().public_key));
    EXPECT_TRUE(keys.add({"n1", 1, 1}, new_key_pair().public_key));
    keys.remove_node("n0");
    EXPECT_EQ(table.size(), 1U);
}

TEST(LogRelays, AnswerTheAskerUnderItsOwnIdAndOnlyFromTheNodeThatWasAsked) {
    LogRelays relays;
    const auto id = relays.add({"route", 42}, "n0", kStart);
    proto::LogData data;
    data.set_request(id);
    data.set_records("text");
    data.set_node("n9");
    EXPECT_FALSE(relays.take("n1", data));
    const auto answer = relays.take("n0", data);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->asker.route, "route");
    EXPECT_EQ(answer->response.id(), 42U);
    EXPECT_EQ(answer->response.logs().records(), "text");
    EXPECT_EQ(answer->response.logs().node(), "n0");
    EXPECT_FALSE(relays.take("n0", data));
    EXPECT_FALSE(relays.next_deadline());
}

TEST(LogRelays, EndAQuestionThatNobodyAnswersBeforeItIsAskedAgain) {
    LogRelays relays;
    relays.add({"a", 1}, "n0", kStart);
    relays.add({"b", 2}, "n1", kStart + seconds(1));
    EXPECT_EQ(*relays.next_deadline(), kStart + kLogDeadline);
    EXPECT_TRUE(relays.expire(kStart + milliseconds(1499)).empty());
    const auto late = relays.expire(kStart + milliseconds(1500));
    ASSERT_EQ(late.size(), 1U);
    EXPECT_EQ(late[0].response.id(), 1U);
    EXPECT_EQ(late[0].response.outcome(), proto::UNREACHABLE);
    EXPECT_NE(late[0].response.message().find("n0"), std::string::npos);
    EXPECT_EQ(relays.expire(kStart + seconds(9)).size(), 1U);
}

std::string own_name() { return ::getpwuid(::geteuid())->pw_name; }

TEST(Identities, TakeAccountsFromTheMachineNotFromMessages) {
    Identities identities({.own_uid = ::geteuid()});
    const auto own = identities.account_of(own_name(), kStart);
    ASSERT_TRUE(own) << own.error().message;
    EXPECT_EQ(own->uid, ::geteuid());
    EXPECT_FALSE(own->home.empty());
    EXPECT_FALSE(own->groups.empty());
    const auto nobody = identities.account_of("no-such-account-here", kStart);
    ASSERT_FALSE(nobody);
    EXPECT_EQ(nobody.error().code, Code::Refused);
}

TEST(Identities, RefuseRootAndSystemAccountsUnlessTheyAreTheCoordinatorsOwnOrAllowed) {
    Identities strict({.own_uid = 12345, .least_uid = 1000});
    EXPECT_NE(strict.account_of("root", kStart).error().message.find("--allow-root"), std::string::npos);
    EXPECT_NE(strict.account_of("daemon", kStart).error().message.find("--min-uid"), std::string::npos);
    EXPECT_FALSE(strict.account_of("nobody", kStart));
    Identities lax({.own_uid = 12345, .least_uid = 1, .allow_root = true});
    EXPECT_TRUE(lax.account_of("root", kStart));
    EXPECT_TRUE(lax.account_of("daemon", kStart));
    EXPECT_FALSE(lax.account_of("nobody", kStart));
    Identities own({.own_uid = 0});
    EXPECT_TRUE(own.account_of("root", kStart));
}

}  // namespace
}  // namespace gangline::coordinator
