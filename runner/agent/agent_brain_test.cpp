#include "runner/agent/agent_brain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace gangline::runner {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

// A node under test: feeds events, keeps what came out.
class Node {
  public:
    explicit Node(bool spares = false) : brain_(options(spares)) { feed(Started{}); }

    static AgentOptions options(bool spares) {
        AgentOptions options;
        options.cluster = "c";
        options.node.set_name("n0");
        options.node.set_address("127.0.0.1");
        for (std::uint32_t i = 0; i < 4; ++i) options.node.add_cards()->set_index(i);
        options.agent_id = "agent";
        options.socket_seed = "seed";
        options.spares_allowed = spares;
        return options;
    }

    void feed(const AgentEvent& event) { last_ = brain_.step(event, now_); }
    void order(proto::Order order, std::uint64_t epoch = 1) {
        order.set_epoch(epoch);
        order.set_coordinator_id("coordinator");
        feed(FromCoordinator{order});
    }
    void pass(Duration time) {
        now_.steady += time;
        feed(AgentTick{});
    }

    template <class T>
    std::vector<T> all() const {
        std::vector<T> found;
        for (const AgentAction& action : last_) {
            if (const T* one = std::get_if<T>(&action)) found.push_back(*one);
        }
        return found;
    }
    std::vector<proto::AttemptReport> reports() const {
        std::vector<proto::AttemptReport> found;
        for (const Tell& tell : all<Tell>()) {
            if (tell.message.has_report()) found.push_back(tell.message.report());
        }
        return found;
    }

    proto::Prepare prepare(std::uint64_t job, std::uint32_t attempt, std::vector<std::uint32_t> cards, std::uint32_t ranks = 2) {
        proto::Prepare order;
        order.mutable_id()->set_job(job);
        order.mutable_id()->set_attempt(attempt);
        auto& place = *order.add_gang();
        place.set_node("n0");
        place.set_rank_count(ranks);
        for (const auto card : cards) place.add_cards(card);
        return order;
    }
    void order_prepare(std::uint64_t job, std::uint32_t attempt, std::vector<std::uint32_t> cards, std::uint64_t epoch = 1) {
        proto::Order one;
        *one.mutable_prepare() = prepare(job, attempt, std::move(cards));
        order(one, epoch);
    }
    void order_stop(std::uint64_t job, std::uint32_t attempt, std::uint64_t grace_ms = 0) {
        proto::Order one;
        one.mutable_stop()->mutable_id()->set_job(job);
        one.mutable_stop()->mutable_id()->set_attempt(attempt);
        one.mutable_stop()->set_grace_ms(grace_ms);
        order(one);
    }
    void order_release(std::uint64_t job, std::uint32_t attempt) {
        proto::Order one;
        one.mutable_release()->mutable_id()->set_job(job);
        one.mutable_release()->mutable_id()->set_attempt(attempt);
        order(one);
    }

    // The spare that the node has asked for, spawned and connected.
    proto::SpawnRequest bring_up_spare() {
        const proto::SpawnRequest request = all<Spawn>().at(0).request;
        proto::SpawnReply reply;
        reply.set_request(request.request());
        reply.set_pid(50);
        feed(Spawned{reply});
        feed(ShepherdUp{request.socket_name()});
        return request;
    }
    // Prepare, spawn, connect; returns the socket's name.
    std::string bring_up(std::uint64_t job, std::uint32_t attempt, std::vector<std::uint32_t> cards) {
        order_prepare(job, attempt, std::move(cards));
        const auto spawns = all<Spawn>();
        EXPECT_THAT(spawns, SizeIs(1));
        proto::SpawnReply reply;
        reply.set_request(spawns.at(0).request.request());
        reply.set_pid(100);
        feed(Spawned{reply});
        feed(ShepherdUp{spawns.at(0).request.socket_name()});
        return spawns.at(0).request.socket_name();
    }
    void shepherd_says(const std::string& socket, std::uint64_t job, std::uint32_t attempt, proto::AttemptPhase phase, std::uint64_t revision) {
        proto::FromShepherd message;
        auto& report = *message.mutable_report();
        report.mutable_id()->set_job(job);
        report.mutable_id()->set_attempt(attempt);
        report.set_phase(phase);
        report.set_revision(revision);
        feed(FromShepherdEvent{socket, message});
    }

    Now now_{TimePoint{} + seconds(100), 1'000'000};
    AgentBrain brain_;
    std::vector<AgentAction> last_;
};

TEST(AgentBrain, SaysHelloAtItsStartAndAgainToANewCoordinator) {
    Node node;
    ASSERT_THAT(node.all<Tell>(), SizeIs(1));
    EXPECT_TRUE(node.all<Tell>()[0].message.has_hello());
    proto::Order welcome;
    welcome.mutable_welcome()->set_send_hello(true);
    node.order(welcome);
    ASSERT_THAT(node.all<Tell>(), SizeIs(1));
    EXPECT_EQ(node.all<Tell>()[0].message.hello().coordinator_id(), "coordinator");
}

TEST(AgentBrain, PassesPrepareAndLaunchToTheShepherdAndItsReportsUp) {
    Node node;
    const std::string socket = node.bring_up(7, 1, {0, 1});
    const auto told = node.all<TellShepherd>();
    ASSERT_THAT(told, SizeIs(2));
    EXPECT_TRUE(told[0].message.has_identity());
    EXPECT_EQ(told[1].message.prepare().id().job(), 7u);
    node.shepherd_says(socket, 7, 1, proto::ATTEMPT_PREPARED, 1);
    ASSERT_THAT(node.reports(), SizeIs(1));
    EXPECT_EQ(node.reports()[0].phase(), proto::ATTEMPT_PREPARED);
    EXPECT_EQ(node.reports()[0].node(), "n0");
    node.shepherd_says(socket, 7, 1, proto::ATTEMPT_PREPARED, 2);  // only the revision is new
    EXPECT_THAT(node.reports(), IsEmpty());
}

TEST(AgentBrain, NeverOffersACardTwiceBeforeItsHolderIsGone) {
    Node node;
    const std::string socket = node.bring_up(1, 1, {0, 1});
    node.order_prepare(2, 1, {1, 2});
    EXPECT_THAT(node.all<Spawn>(), IsEmpty());
    node.shepherd_says(socket, 1, 1, proto::ATTEMPT_GONE, 5);
    ASSERT_THAT(node.all<Spawn>(), SizeIs(1));
    EXPECT_EQ(node.all<Spawn>()[0].request.id().job(), 2u);
}

TEST(AgentBrain, KeepsAnOutcomeUntilItsRelease) {
    Node node;
    const std::string socket = node.bring_up(1, 1, {0});
    node.shepherd_says(socket, 1, 1, proto::ATTEMPT_GONE, 5);
    proto::Order welcome;
    welcome.mutable_welcome()->set_send_hello(true);
    node.order(welcome);
    ASSERT_EQ(node.all<Tell>()[0].message.hello().attempts_size(), 1);
    EXPECT_EQ(node.all<Tell>()[0].message.hello().attempts(0).phase(), proto::ATTEMPT_GONE);
    node.order_release(1, 1);
    EXPECT_THAT(node.all<DropNote>(), SizeIs(1));
    node.order(welcome);
    EXPECT_EQ(node.all<Tell>()[0].message.hello().attempts_size(), 0);
}

TEST(AgentBrain, ReapsWhatADeadShepherdLeftAndSaysGoneOnlyWhenNothingIsThere) {
    Node node;
    const std::string socket = node.bring_up(1, 1, {0});
    node.shepherd_says(socket, 1, 1, proto::ATTEMPT_RUNNING, 3);
    node.feed(ShepherdDown{socket});
    EXPECT_THAT(node.all<Connect>(), SizeIs(1));  // only the connection may be lost
    node.feed(ShepherdDown{socket});
    ASSERT_THAT(node.all<Reap>(), SizeIs(1));
    proto::ReapReply reply;
    reply.set_request(node.all<Reap>()[0].request.request());
    reply.set_still_there(2);
    node.feed(Reaped{reply});
    EXPECT_THAT(node.reports(), IsEmpty());
    node.pass(seconds(1));
    ASSERT_THAT(node.all<Reap>(), SizeIs(1));
    reply.set_request(node.all<Reap>()[0].request.request());
    reply.set_still_there(0);
    node.feed(Reaped{reply});
    ASSERT_THAT(node.reports(), SizeIs(1));
    EXPECT_EQ(node.reports()[0].phase(), proto::ATTEMPT_GONE);
    EXPECT_EQ(node.reports()[0].failure(), "the shepherd of this attempt died");
    EXPECT_GT(node.reports()[0].revision(), 3u);
}

TEST(AgentBrain, KillsAShepherdThatDoesNotEndItsAttemptInTime) {
    Node node;
    const std::string socket = node.bring_up(1, 1, {0});
    node.shepherd_says(socket, 1, 1, proto::ATTEMPT_RUNNING, 3);
    node.order_stop(1, 1, 2000);
    EXPECT_TRUE(node.all<TellShepherd>().at(0).message.has_stop());
    node.pass(milliseconds(6900));
    EXPECT_THAT(node.all<KillShepherd>(), IsEmpty());
    node.pass(milliseconds(200));
    EXPECT_THAT(node.all<KillShepherd>(), SizeIs(1));
    EXPECT_THAT(node.all<Reap>(), SizeIs(1));
}

TEST(AgentBrain, AnswersStopOfAnUnknownAttemptWithGone) {
    Node node;
    node.order_stop(9, 4);
    ASSERT_THAT(node.reports(), SizeIs(1));
    EXPECT_EQ(node.reports()[0].phase(), proto::ATTEMPT_GONE);
    EXPECT_EQ(node.reports()[0].id().attempt(), 4u);
}

TEST(AgentBrain, RefusesOrdersOfAnOlderCoordinator) {
    Node node;
    node.order_prepare(1, 1, {0}, 5);
    ASSERT_THAT(node.all<Spawn>(), SizeIs(1));
    ASSERT_THAT(node.all<KeepEpoch>(), SizeIs(1));
    node.order_prepare(2, 1, {1}, 4);
    EXPECT_THAT(node.all<Spawn>(), IsEmpty());
}

TEST(AgentBrain, TakesAWarmSpareForAGangAndRefillsItLater) {
    Node node(true);
    const auto spawns = node.all<Spawn>();
    ASSERT_THAT(spawns, SizeIs(1));
    EXPECT_TRUE(spawns[0].request.warm());
    proto::SpawnReply reply;
    reply.set_request(spawns[0].request.request());
    reply.set_pid(50);
    node.feed(Spawned{reply});
    node.feed(ShepherdUp{spawns[0].request.socket_name()});
    node.order_prepare(1, 1, {0, 1});
    EXPECT_THAT(node.all<Spawn>(), IsEmpty());
    EXPECT_THAT(node.all<TellShepherd>(), SizeIs(2));
    node.pass(milliseconds(301));
    EXPECT_THAT(node.all<Spawn>(), SizeIs(1));
}

TEST(AgentBrain, AShepherdThatStartsWhenNobodyWaitsForItAnyMoreIsKilled) {
    Node node(true);
    proto::SpawnReply reply;
    reply.set_request(node.all<Spawn>().at(0).request.request());
    reply.set_pid(50);
    reply.set_start_ticks(7);
    node.feed(Leave{});
    EXPECT_THAT(node.all<KillShepherd>(), IsEmpty()) << "it is not known yet";
    node.feed(Spawned{reply});
    ASSERT_THAT(node.all<KillShepherd>(), SizeIs(1));
    EXPECT_EQ(node.all<KillShepherd>()[0].shepherd, (ProcessId{50, 7}));
}

TEST(AgentBrain, FindsAttemptsOfAnEarlierAgentAndWaitsForTheirWordBeforeHello) {
    Node fresh;
    AgentBrain brain(Node::options(false));
    AttemptNote note;
    note.prepare = fresh.prepare(3, 2, {0});
    note.socket_name = "old-socket";
    note.spool_folder = "3-2";
    note.shepherd = {77, 5};
    fresh.brain_ = AgentBrain(Node::options(false));
    fresh.feed(Started{{note}, {}});
    ASSERT_THAT(fresh.all<Connect>(), SizeIs(1));
    EXPECT_THAT(fresh.all<Tell>(), IsEmpty());
    fresh.feed(ShepherdUp{"old-socket"});
    fresh.shepherd_says("old-socket", 3, 2, proto::ATTEMPT_RUNNING, 9);
    bool said_hello = false;
    for (const Tell& tell : fresh.all<Tell>()) {
        if (!tell.message.has_hello()) continue;
        said_hello = true;
        ASSERT_EQ(tell.message.hello().attempts_size(), 1);
        EXPECT_EQ(tell.message.hello().attempts(0).phase(), proto::ATTEMPT_RUNNING);
    }
    EXPECT_TRUE(said_hello);
}

TEST(AgentBrain, ALostConnectionToALivingShepherdCostsNothing) {
    Node node;
    const std::string socket = node.bring_up(1, 1, {0});
    node.shepherd_says(socket, 1, 1, proto::ATTEMPT_RUNNING, 3);
    node.feed(ShepherdDown{socket});
    node.feed(ShepherdUp{socket});
    EXPECT_THAT(node.all<TellShepherd>(), SizeIs(2)) << "all that it must know, again";
    EXPECT_THAT(node.all<Reap>(), IsEmpty());
}

TEST(AgentBrain, ATakenSparesSpoolIsNamedAfterTheAttemptAndItsOldFolderGoesWithIt) {
    Node node(true);
    const proto::SpawnRequest spare = node.bring_up_spare();
    const std::string socket = spare.socket_name();
    node.order_prepare(5, 2, {0, 1});
    ASSERT_THAT(node.all<TellShepherd>(), SizeIs(2));
    EXPECT_EQ(node.all<TellShepherd>()[0].message.identity().spool_folder(), "5-2");
    ASSERT_THAT(node.all<KeepNote>(), SizeIs(1));
    EXPECT_EQ(node.all<KeepNote>()[0].note.spare_folder, spare.spool_folder());
    node.shepherd_says(socket, 5, 2, proto::ATTEMPT_GONE, 5);
    node.order_release(5, 2);
    EXPECT_THAT(node.all<RemoveSpool>(), IsEmpty()) << "it is still there";
    node.feed(ShepherdDown{socket});
    ASSERT_THAT(node.all<RemoveSpool>(), SizeIs(1));
    EXPECT_EQ(node.all<RemoveSpool>()[0].spool_folder, spare.spool_folder());
    ASSERT_THAT(node.all<SpoolEnded>(), SizeIs(1));
    EXPECT_EQ(node.all<SpoolEnded>()[0].spool_folder, "5-2");
}

TEST(AgentBrain, AShepherdThatSaysNothingForTwentySecondsIsKilledAndOneJustTakenIsNot) {
    Node node(true);
    const proto::SpawnRequest spare = node.bring_up_spare();
    const std::string socket = spare.socket_name();
    for (int i = 0; i < 40; ++i) node.pass(milliseconds(500));
    node.order_prepare(5, 2, {0, 1});
    const auto kills_in = [&](int half_seconds) {
        std::size_t kills = 0;
        for (int i = 0; i < half_seconds; ++i) {
            node.pass(milliseconds(500));
            kills += node.all<KillShepherd>().size();
        }
        return kills;
    };
    EXPECT_EQ(kills_in(38), 0u);
    node.shepherd_says(socket, 5, 2, proto::ATTEMPT_RUNNING, 2);
    EXPECT_EQ(kills_in(38), 0u);
    EXPECT_EQ(kills_in(4), 1u);
    node.shepherd_says(socket, 5, 2, proto::ATTEMPT_RUNNING, 3);
    node.pass(seconds(60));
    EXPECT_THAT(node.all<KillShepherd>(), IsEmpty()) << "it was the agent that slept";
}

TEST(AgentBrain, AShepherdThatDoesNotLeaveAfterItsReleaseIsKilled) {
    Node node;
    const std::string socket = node.bring_up(1, 1, {0});
    node.shepherd_says(socket, 1, 1, proto::ATTEMPT_GONE, 5);
    node.order_release(1, 1);
    node.pass(seconds(9));
    ASSERT_THAT(node.all<KillShepherd>(), SizeIs(1));
    EXPECT_EQ(node.all<KillShepherd>()[0].shepherd.pid, 100);
}

TEST(AgentBrain, AskedTwiceForTheSamePrepareItStartsOneShepherd) {
    Node node;
    node.order_prepare(1, 1, {0});
    ASSERT_THAT(node.all<Spawn>(), SizeIs(1));
    node.order_prepare(1, 1, {0});
    EXPECT_THAT(node.all<Spawn>(), IsEmpty());
    ASSERT_THAT(node.reports(), SizeIs(1));
    EXPECT_EQ(node.reports()[0].phase(), proto::ATTEMPT_PREPARING);
}

TEST(AgentBrain, WithoutExecdServesItsOwnUserAlone) {
    AgentOptions options = Node::options(false);
    options.uid = 1000;
    options.user = "alice";
    Node node;
    node.brain_ = AgentBrain(options);
    node.feed(Started{});
    const auto try_as = [&](std::uint64_t job, const std::string& user, std::optional<std::uint32_t> uid) {
        proto::Order one;
        *one.mutable_prepare() = node.prepare(job, 1, {0});
        one.mutable_prepare()->set_user(user);
        proto::TicketClaims claims;
        if (uid) claims.set_uid(*uid);
        claims.set_node("n0");
        if (uid) one.mutable_prepare()->mutable_ticket()->set_claims(claims.SerializeAsString());
        node.order(one);
        return node.all<Spawn>().size();
    };
    EXPECT_EQ(try_as(1, "bob", 1001), 0u);
    ASSERT_THAT(node.reports(), SizeIs(1));
    EXPECT_EQ(node.reports()[0].phase(), proto::ATTEMPT_GONE);
    EXPECT_THAT(node.reports()[0].failure(), testing::HasSubstr("execd"));
    EXPECT_EQ(try_as(2, "bob", std::nullopt), 0u) << "no ticket, another name";
    EXPECT_EQ(try_as(3, "alice", 0), 0u) << "the number counts, not the name";
    EXPECT_EQ(try_as(4, "alice", 1000), 1u);
}

TEST(AgentBrain, EndsWhatAnEarlierAgentLeftWithoutANoteAndSaysSo) {
    Node node;
    node.brain_ = AgentBrain(Node::options(false));
    proto::AttemptId left;
    left.set_job(4);
    left.set_attempt(2);
    node.feed(Started{{}, {left}});
    ASSERT_THAT(node.all<Reap>(), SizeIs(1));
    EXPECT_THAT(node.all<Tell>(), IsEmpty()) << "its Hello waits for the answer";
    proto::ReapReply reply;
    reply.set_request(node.all<Reap>()[0].request.request());
    node.feed(Reaped{reply});
    bool told = false;
    for (const Tell& tell : node.all<Tell>()) {
        if (!tell.message.has_hello()) continue;
        ASSERT_EQ(tell.message.hello().attempts_size(), 1);
        told = tell.message.hello().attempts(0).phase() == proto::ATTEMPT_GONE;
    }
    EXPECT_TRUE(told);
}

TEST(AgentBrain, AsksForAReapAgainWhenNoAnswerComes) {
    Node node;
    const std::string socket = node.bring_up(1, 1, {0});
    node.feed(ShepherdDown{socket});
    node.feed(ShepherdDown{socket});
    ASSERT_THAT(node.all<Reap>(), SizeIs(1));
    node.pass(seconds(11));
    EXPECT_THAT(node.all<Reap>(), SizeIs(1));
}

TEST(AgentBrain, TellsAnOutcomeAgainWithEachBeatUntilItsRelease) {
    Node node;
    const std::string socket = node.bring_up(1, 1, {0});
    node.shepherd_says(socket, 1, 1, proto::ATTEMPT_GONE, 5);
    node.pass(seconds(1));
    ASSERT_THAT(node.all<Tell>(), SizeIs(1));
    ASSERT_EQ(node.all<Tell>()[0].message.heartbeat().progress_size(), 1);
    EXPECT_EQ(node.all<Tell>()[0].message.heartbeat().progress(0).phase(), proto::ATTEMPT_GONE);
}

TEST(AgentBrain, ASilentCoordinatorIsNotBuriedInHeartbeats) {
    Node node;
    std::size_t beats = 0;
    for (int i = 0; i < 120; ++i) {
        node.pass(milliseconds(500));
        beats += node.all<Tell>().size();
    }
    EXPECT_LE(beats, 50u);
    EXPECT_GE(beats, 20u);
}

TEST(AgentBrain, ToldToEndEverythingItLeavesWhenTheLastAttemptIsGone) {
    Node node;
    const std::string socket = node.bring_up(1, 1, {0});
    node.feed(Abandon{});
    EXPECT_THAT(node.all<Exit>(), IsEmpty());
    EXPECT_TRUE(node.all<TellShepherd>().at(0).message.has_stop());
    node.shepherd_says(socket, 1, 1, proto::ATTEMPT_GONE, 8);
    EXPECT_THAT(node.all<Exit>(), IsEmpty());
    ASSERT_THAT(node.all<TellShepherd>(), SizeIs(1));
    EXPECT_TRUE(node.all<TellShepherd>()[0].message.has_release()) << "nobody else will say it";
    node.feed(ShepherdDown{socket});
    EXPECT_THAT(node.all<Exit>(), SizeIs(1));
}

// ---- keepers

proto::FromShepherd keeper_wanted(bool start) {
    proto::FromShepherd message;
    message.mutable_keeper()->set_start(start);
    return message;
}

// Asked for, spawned, connected; returns its socket's name.
std::string bring_up_keeper(Node& node, const std::string& shepherd) {
    node.feed(FromShepherdEvent{shepherd, keeper_wanted(true)});
    const auto spawns = node.all<Spawn>();
    EXPECT_THAT(spawns, SizeIs(1));
    EXPECT_TRUE(spawns.at(0).request.keeper());
    EXPECT_EQ(spawns.at(0).request.spool_folder(), "keeper-7");
    proto::SpawnReply reply;
    reply.set_request(spawns.at(0).request.request());
    reply.set_pid(200);
    node.feed(Spawned{reply});
    EXPECT_THAT(node.all<KeepNote>(), SizeIs(1));
    node.feed(ShepherdUp{spawns.at(0).request.socket_name()});
    return spawns.at(0).request.socket_name();
}

std::optional<std::string> told_keeper(const Node& node, const std::string& shepherd) {
    for (const TellShepherd& told : node.all<TellShepherd>()) {
        if (told.socket_name == shepherd && told.message.has_keeper()) return told.message.keeper().socket();
    }
    return std::nullopt;
}

TEST(AgentBrain, StartsAKeeperWhenAJobAsksForOneAndGivesTheSameToItsNextAttempt) {
    Node node;
    const std::string first = node.bring_up(7, 1, {0, 1});
    node.feed(FromShepherdEvent{first, keeper_wanted(false)});
    EXPECT_EQ(told_keeper(node, first), "") << "nobody wants one to be started";
    const std::string keeper = bring_up_keeper(node, first);
    EXPECT_EQ(told_keeper(node, first), keeper);

    node.shepherd_says(first, 7, 1, proto::ATTEMPT_GONE, 5);
    proto::Order release;
    release.mutable_release()->mutable_id()->set_job(7);
    release.mutable_release()->mutable_id()->set_attempt(1);
    release.mutable_release()->set_keep_snapshots(true);
    node.order(release);
    const std::string second = node.bring_up(7, 2, {0, 1});
    node.feed(FromShepherdEvent{second, keeper_wanted(false)});
    EXPECT_EQ(told_keeper(node, second), keeper);
    EXPECT_THAT(node.all<Spawn>(), IsEmpty());
}

TEST(AgentBrain, AKeeperIsToldToGoWhenTheJobsSnapshotsAreNotNeededAndHasTimeForWhatItMustWrite) {
    Node node;
    const std::string shepherd = node.bring_up(7, 1, {0, 1});
    const std::string keeper = bring_up_keeper(node, shepherd);
    node.shepherd_says(shepherd, 7, 1, proto::ATTEMPT_GONE, 5);
    node.order_release(7, 1);
    bool is_told = false;
    for (const TellShepherd& told : node.all<TellShepherd>()) is_told = is_told || (told.socket_name == keeper && told.message.has_quit());
    EXPECT_TRUE(is_told);
    EXPECT_THAT(node.all<DropNote>(), testing::Contains(testing::Field(&DropNote::spool_folder, "keeper-7")));
    node.pass(seconds(60));
    EXPECT_THAT(node.all<KillShepherd>(), testing::Not(testing::Contains(testing::Field(&KillShepherd::shepherd, testing::Field(&ProcessId::pid, 200)))));
    node.feed(ShepherdDown{keeper});
    EXPECT_THAT(node.all<RemoveSpool>(), SizeIs(1));
}

TEST(AgentBrain, ADeadKeeperIsReplacedWhenTheNextRankAsks) {
    Node node;
    const std::string shepherd = node.bring_up(7, 1, {0, 1});
    const std::string keeper = bring_up_keeper(node, shepherd);
    node.feed(ShepherdDown{keeper});
    EXPECT_THAT(node.all<DropNote>(), SizeIs(1));
    EXPECT_NE(bring_up_keeper(node, shepherd), keeper);
}

TEST(AgentBrain, AKeeperThatDoesNotStartIsNobodysWait) {
    Node node;
    const std::string shepherd = node.bring_up(7, 1, {0, 1});
    node.feed(FromShepherdEvent{shepherd, keeper_wanted(true)});
    proto::SpawnReply reply;
    reply.set_request(node.all<Spawn>().at(0).request.request());
    reply.set_error("no");
    node.feed(Spawned{reply});
    EXPECT_EQ(told_keeper(node, shepherd), "");
}

TEST(AgentBrain, FindsTheKeeperOfAnEarlierAgentAgain) {
    Node node;
    AttemptNote note;
    note.socket_name = "gangline-old-3";
    note.spool_folder = "keeper-7";
    note.shepherd = {200, 5};
    node.feed(Started{{note}, {}});
    EXPECT_THAT(node.all<Connect>(), testing::Contains(testing::Field(&Connect::socket_name, "gangline-old-3")));
    EXPECT_THAT(node.all<KillShepherd>(), IsEmpty());
    node.feed(ShepherdUp{"gangline-old-3"});
    const std::string shepherd = node.bring_up(7, 2, {0, 1});
    node.feed(FromShepherdEvent{shepherd, keeper_wanted(false)});
    EXPECT_EQ(told_keeper(node, shepherd), "gangline-old-3");
}

}  // namespace
}  // namespace gangline::runner
