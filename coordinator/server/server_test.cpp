// The whole shell in one process: real sockets, journal and brain; people and nodes are client sockets of the test.
#include "coordinator/server/server.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/process.h"
#include "coordinator/server/start.h"

namespace gangline::coordinator {
namespace {

std::string own_name() { return ::getpwuid(::geteuid())->pw_name; }

class ServerTest : public ::testing::Test {
  protected:
    void SetUp() override {
        std::signal(SIGPIPE, SIG_IGN);
        char name[] = "/tmp/gangline-server-XXXXXX";
        ASSERT_NE(::mkdtemp(name), nullptr);
        folder_ = name;
        options_.state = folder_;
        options_.cluster = "lab";
        write_authorised({});
        start();
    }
    void TearDown() override {
        stop();
        std::filesystem::remove_all(folder_);
    }
    void write_authorised(const std::vector<std::string>& more) {
        std::string text = fmt::format("user {} user {}\nuser olga operator {}\nuser bob user {}\nnode n0 - {}\nnode n1 - {}\n", own_name(),
                                       me_.public_key, olga_.public_key, bob_.public_key, n0_.public_key, n1_.public_key);
        for (const std::string& line : more) text += line + "\n";
        ASSERT_TRUE(write_file_atomically(folder_ + "/authorised", text));
    }
    void start() {
        keys_ = *find_or_make_keys(folder_);
        store_ = *Store::open(folder_ + "/journal.db");
        brain_ = std::make_unique<Brain>(options_.for_brain());
        ASSERT_TRUE(store_->replay([&](proto::Record&& record) { brain_->replay(std::move(record)); }));
        table_ = std::make_unique<KeyTable>();
        table_->replace(PrincipalKind::Node, PrincipalKind::User, *load_authorised(options_));
        wire_ = *Wire::create(table_.get());
        listening_ = *listen(*wire_, *table_, options_, keys_.wire);
        server_ = std::make_unique<Server>(ServerParts{options_, *store_, *brain_, *table_, *listening_.users, *listening_.nodes,
                                                       keys_.tickets.secret_key, fmt::format("c{}", store_->epoch())});
        ASSERT_TRUE(server_->take_office());
    }
    void stop() {
        server_.reset();
        listening_ = {};
        wire_.reset();
        store_.reset();
    }
    std::unique_ptr<ClientSocket> connect(const KeyPair& keys, const ServerSocket& server) {
        return *ClientSocket::connect(*clients_, {.keys = keys, .endpoint = server.endpoint(), .server_key = server.public_key()});
    }
    std::unique_ptr<ClientSocket> person(const KeyPair& keys) { return connect(keys, *listening_.users); }
    std::unique_ptr<ClientSocket> node(const KeyPair& keys) { return connect(keys, *listening_.nodes); }

    // Lets the server work until `done`, at most five seconds.
    template <class Done>
    bool run_until(Done done) {
        const TimePoint deadline = now().steady + seconds(5);
        while (now().steady < deadline) {
            EXPECT_TRUE(server_->turn());
            if (done()) return true;
            pollfd waiting[] = {{listening_.users->fd(), POLLIN, 0}, {listening_.nodes->fd(), POLLIN, 0}};
            ::poll(waiting, 2, 1);
        }
        return false;
    }
    proto::Response ask(ClientSocket& client, proto::Request request) {
        static std::uint64_t id = 100;
        request.set_id(++id);
        EXPECT_TRUE(client.send(request.SerializeAsString()));
        proto::Response response;
        EXPECT_TRUE(run_until([&] {
            const auto bytes = client.receive();
            return bytes && response.ParseFromString(*bytes) && response.id() == id;
        }));
        return response;
    }
    proto::Order next_order(ClientSocket& agent, proto::Order::BodyCase kind) {
        proto::Order order;
        EXPECT_TRUE(run_until([&] {
            while (const auto bytes = agent.receive()) {
                if (order.ParseFromString(*bytes) && order.body_case() == kind) return true;
            }
            return false;
        })) << "no order of kind " << static_cast<int>(kind);
        return order;
    }
    static proto::NodeMessage hello(const std::string& name, const std::string& agent = "agent-1") {
        proto::NodeMessage message;
        auto& node = *message.mutable_hello()->mutable_node();
        node.set_name(name);
        node.set_address("127.0.0.1");
        node.set_cpus(4);
        node.set_memory_mib(8192);
        for (std::uint32_t i = 0; i < 2; ++i) {
            node.add_cards()->set_index(i);
            node.mutable_cards(static_cast<int>(i))->set_is_virtual(true);
        }
        message.mutable_hello()->set_agent_id(agent);
        return message;
    }
    static proto::Request submit(std::uint32_t ranks = 1) {
        proto::Request request;
        auto& spec = *request.mutable_submit()->mutable_spec();
        spec.set_name("t");
        spec.add_argv("/bin/true");
        spec.set_cwd("/");
        spec.set_ranks(ranks);
        return request;
    }

    std::string folder_;
    CoordinatorOptions options_;
    KeyPair me_ = new_key_pair(), olga_ = new_key_pair(), bob_ = new_key_pair(), n0_ = new_key_pair(), n1_ = new_key_pair();
    CoordinatorKeys keys_;
    std::unique_ptr<Store> store_;
    std::unique_ptr<Brain> brain_;
    std::unique_ptr<KeyTable> table_;
    std::unique_ptr<Wire> wire_;
    std::unique_ptr<Wire> clients_ = *Wire::create(nullptr);
    Listening listening_;
    std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, AnswersPingWithWhoIsAsking) {
    const auto me = person(me_);
    proto::Request ping;
    ping.mutable_ping();
    const proto::Response response = ask(*me, ping);
    EXPECT_EQ(response.pong().cluster(), "lab");
    EXPECT_EQ(response.pong().user(), own_name());
    EXPECT_EQ(response.pong().role(), "user");
    EXPECT_EQ(response.pong().pid(), ::getpid());
    EXPECT_EQ(response.pong().coordinator_id(), "c1");
}

TEST_F(ServerTest, AGangIsPreparedWithATicketForItsNodeAlone) {
    const auto agent = node(n0_);
    ASSERT_TRUE(agent->send(hello("n0").SerializeAsString()));
    EXPECT_FALSE(next_order(*agent, proto::Order::kWelcome).welcome().send_hello());
    const auto me = person(me_);
    const proto::Response submitted = ask(*me, submit(2));
    ASSERT_EQ(submitted.outcome(), proto::OK) << submitted.message();
    const proto::Order order = next_order(*agent, proto::Order::kPrepare);
    EXPECT_EQ(order.coordinator_id(), "c1");
    EXPECT_EQ(order.epoch(), 1U);
    const proto::Prepare& prepare = order.prepare();
    EXPECT_EQ(prepare.coordinator_endpoint(), listening_.nodes->endpoint());
    EXPECT_EQ(prepare.coordinator_key(), keys_.wire.public_key);
    const auto claims = open_ticket(keys_.tickets.public_key, prepare.ticket(), now().unix_ms);
    ASSERT_TRUE(claims) << claims.error().message;
    EXPECT_EQ(claims->user(), own_name());
    EXPECT_EQ(claims->uid(), ::geteuid());
    EXPECT_TRUE(check_ticket(*claims, {.cluster = "lab", .node = "n0", .job = submitted.job(), .attempt = 1,
                                       .spec_bytes = prepare.spec().SerializeAsString()}));
}

TEST_F(ServerTest, ANodeThatSaysItIsAnotherIsStillItself) {
    const auto agent = node(n0_);
    ASSERT_TRUE(agent->send(hello("n1").SerializeAsString()));
    next_order(*agent, proto::Order::kWelcome);
    const auto me = person(me_);
    proto::Request nodes;
    nodes.mutable_list_nodes();
    const proto::Response response = ask(*me, nodes);
    ASSERT_EQ(response.nodes_size(), 1);
    EXPECT_EQ(response.nodes(0).node().name(), "n0");
}

TEST_F(ServerTest, AStrangeAgentIsAskedForHelloAndANewerOneTakesOver) {
    const auto old_agent = node(n0_);
    proto::NodeMessage beat;
    beat.mutable_heartbeat()->set_coordinator_id("another");
    ASSERT_TRUE(old_agent->send(beat.SerializeAsString()));
    EXPECT_TRUE(next_order(*old_agent, proto::Order::kWelcome).welcome().send_hello());
    ASSERT_TRUE(old_agent->send(hello("n0", "old").SerializeAsString()));
    EXPECT_FALSE(next_order(*old_agent, proto::Order::kWelcome).welcome().send_hello());
    ASSERT_TRUE(old_agent->send(beat.SerializeAsString()));
    next_order(*old_agent, proto::Order::kHeartbeat);

    const auto new_agent = node(n0_);
    ASSERT_TRUE(new_agent->send(hello("n0", "new").SerializeAsString()));
    next_order(*new_agent, proto::Order::kWelcome);
    EXPECT_NE(next_order(*old_agent, proto::Order::kBye).bye().reason(), "");
    ASSERT_TRUE(old_agent->send(hello("n0", "old").SerializeAsString()));
    next_order(*old_agent, proto::Order::kBye);
    ASSERT_TRUE(new_agent->send(beat.SerializeAsString()));
    next_order(*new_agent, proto::Order::kHeartbeat);
}

TEST_F(ServerTest, OthersMayNeitherStopNorReadAJob) {
    const auto me = person(me_);
    const auto bob = person(bob_);
    const auto olga = person(olga_);
    proto::Request impossible_yet = submit();
    impossible_yet.mutable_submit()->mutable_spec()->set_hold(true);
    const auto agent = node(n0_);
    ASSERT_TRUE(agent->send(hello("n0").SerializeAsString()));
    next_order(*agent, proto::Order::kWelcome);
    const proto::Response submitted = ask(*me, impossible_yet);
    ASSERT_EQ(submitted.outcome(), proto::OK) << submitted.message();
    proto::Request show, cancel, logs, drain;
    show.mutable_show_job()->set_job(submitted.job());
    cancel.mutable_cancel()->set_job(submitted.job());
    logs.mutable_read_logs()->set_job(submitted.job());
    drain.mutable_set_node()->set_node("n0");
    drain.mutable_set_node()->set_drain(true);
    for (const proto::Request& request : {show, cancel, logs, drain}) EXPECT_EQ(ask(*bob, request).outcome(), proto::REFUSED);
    EXPECT_EQ(ask(*me, show).jobs(0).spec().argv(0), "/bin/true");
    EXPECT_EQ(ask(*me, drain).outcome(), proto::REFUSED);
    EXPECT_EQ(ask(*olga, show).outcome(), proto::OK);
    EXPECT_EQ(ask(*olga, drain).outcome(), proto::OK);
    EXPECT_EQ(ask(*me, cancel).outcome(), proto::OK);
    EXPECT_NE(ask(*me, logs).message().find("not started"), std::string::npos);
    // bob's and olga's accounts do not exist on this machine: they may ask, but run nothing.
    EXPECT_NE(ask(*bob, submit()).message().find("no account"), std::string::npos);
}

TEST_F(ServerTest, LogsComeFromTheNodeUnderTheAskersId) {
    const auto agent = node(n0_);
    ASSERT_TRUE(agent->send(hello("n0").SerializeAsString()));
    next_order(*agent, proto::Order::kWelcome);
    const auto me = person(me_);
    const std::uint64_t job = ask(*me, submit()).job();
    next_order(*agent, proto::Order::kPrepare);
    proto::Request logs;
    logs.set_id(9);
    logs.mutable_read_logs()->set_job(job);
    logs.mutable_read_logs()->set_offset(5);
    ASSERT_TRUE(me->send(logs.SerializeAsString()));
    const proto::Order order = next_order(*agent, proto::Order::kLogs);
    EXPECT_EQ(order.logs().offset(), 5U);
    EXPECT_EQ(order.logs().id().attempt(), 1U);
    proto::NodeMessage data;
    data.mutable_log_data()->set_request(order.logs().request());
    data.mutable_log_data()->set_records("r");
    ASSERT_TRUE(agent->send(data.SerializeAsString()));
    proto::Response response;
    ASSERT_TRUE(run_until([&] {
        const auto bytes = me->receive();
        return bytes && response.ParseFromString(*bytes);
    }));
    EXPECT_EQ(response.id(), 9U);
    EXPECT_EQ(response.logs().records(), "r");
    logs.mutable_read_logs()->set_node("n1");
    EXPECT_NE(ask(*me, logs).message().find("did not run on n1"), std::string::npos);
}

TEST_F(ServerTest, AShepherdSpeaksForItsAttemptOnlyAndHearsOrdersWhenItsAgentIsSilent) {
    auto agent = node(n0_);
    ASSERT_TRUE(agent->send(hello("n0").SerializeAsString()));
    next_order(*agent, proto::Order::kWelcome);
    const auto me = person(me_);
    const std::uint64_t job = ask(*me, submit()).job();
    next_order(*agent, proto::Order::kPrepare);
    const KeyPair gang = new_key_pair();
    proto::NodeMessage report;
    report.mutable_report()->mutable_id()->set_job(job);
    report.mutable_report()->mutable_id()->set_attempt(1);
    report.mutable_report()->set_phase(proto::ATTEMPT_PREPARED);
    report.mutable_report()->set_revision(1);
    report.mutable_report()->set_gang_key(gang.public_key);
    ASSERT_TRUE(agent->send(report.SerializeAsString()));
    next_order(*agent, proto::Order::kLaunch);
    ASSERT_TRUE(table_->by_key(gang.public_key));

    const auto shepherd = node(gang);
    proto::NodeMessage foreign = report;
    foreign.mutable_report()->mutable_id()->set_job(job + 1);
    ASSERT_TRUE(shepherd->send(hello("n0", "x").SerializeAsString()));  // not for shepherds
    ASSERT_TRUE(shepherd->send(foreign.SerializeAsString()));           // not its attempt: would be answered with Stop
    report.mutable_report()->set_phase(proto::ATTEMPT_RUNNING);
    report.mutable_report()->set_revision(2);
    ASSERT_TRUE(shepherd->send(report.SerializeAsString()));
    const TimePoint silent = now().steady + milliseconds(1100);
    ASSERT_TRUE(run_until([&] { return now().steady > silent; }));
    EXPECT_FALSE(shepherd->receive());
    EXPECT_FALSE(brain_->owner(job + 1));

    proto::Request cancel;
    cancel.mutable_cancel()->set_job(job);
    ASSERT_EQ(ask(*me, cancel).outcome(), proto::OK);
    EXPECT_EQ(next_order(*shepherd, proto::Order::kStop).stop().id().job(), job);
    report.mutable_report()->set_phase(proto::ATTEMPT_GONE);
    report.mutable_report()->set_revision(3);
    ASSERT_TRUE(shepherd->send(report.SerializeAsString()));
    next_order(*shepherd, proto::Order::kRelease);
    EXPECT_FALSE(table_->by_key(gang.public_key));
}

TEST_F(ServerTest, AChangedListLetsInAndThrowsOutWithoutARestart) {
    const auto agent = node(n1_);
    ASSERT_TRUE(agent->send(hello("n1").SerializeAsString()));
    next_order(*agent, proto::Order::kWelcome);
    const KeyPair carol = new_key_pair();
    ASSERT_TRUE(write_file_atomically(folder_ + "/authorised", fmt::format("user carol user {}\nuser olga user {}\n", carol.public_key, olga_.public_key)));
    next_order(*agent, proto::Order::kBye);
    const auto new_user = person(carol);
    proto::Request ping;
    ping.mutable_ping();
    EXPECT_EQ(ask(*new_user, ping).pong().user(), "carol");
    EXPECT_EQ(ask(*person(olga_), ping).pong().role(), "user");
    EXPECT_FALSE(table_->by_key(me_.public_key));
    // A list that cannot be read changes nothing.
    ASSERT_TRUE(write_file_atomically(folder_ + "/authorised", "nonsense\n"));
    const TimePoint later = now().steady + milliseconds(1100);
    ASSERT_TRUE(run_until([&] { return now().steady > later; }));
    EXPECT_EQ(ask(*new_user, ping).pong().user(), "carol");
}

TEST_F(ServerTest, WhatWasAcknowledgedIsThereAfterARestartOnTheSamePorts) {
    const auto agent = node(n0_);
    ASSERT_TRUE(agent->send(hello("n0").SerializeAsString()));
    next_order(*agent, proto::Order::kWelcome);
    const auto me = person(me_);
    for (int i = 0; i < 10; ++i) ASSERT_EQ(ask(*me, submit()).outcome(), proto::OK);
    ASSERT_TRUE(write_endpoints(folder_, {"lab", "c1", listening_.users->endpoint(), listening_.nodes->endpoint(), "k", "t"}));
    const std::string users = listening_.users->endpoint();
    const std::string before = brain_->dump();
    stop();
    start();
    EXPECT_EQ(listening_.users->endpoint(), users);
    EXPECT_EQ(store_->epoch(), 2U);
    proto::Request queue;
    queue.mutable_list_jobs()->set_ended_too(true);
    EXPECT_EQ(ask(*me, queue).jobs_size(), 10);  // The same client socket: it has connected again by itself.
}

TEST_F(ServerTest, AThousandPipelinedSubmitsShareCommits) {
    const auto agent = node(n0_);
    ASSERT_TRUE(agent->send(hello("n0").SerializeAsString()));
    next_order(*agent, proto::Order::kWelcome);
    const auto me = person(me_);
    const TimePoint start = now().steady;
    proto::Request request = submit(2);
    for (std::uint64_t i = 1; i <= 1000; ++i) {
        request.set_id(i);
        ASSERT_TRUE(me->send(request.SerializeAsString()));
    }
    std::set<std::uint64_t> jobs;
    ASSERT_TRUE(run_until([&] {
        while (const auto bytes = me->receive()) {
            proto::Response response;
            EXPECT_TRUE(response.ParseFromString(*bytes) && response.outcome() == proto::OK) << response.message();
            jobs.insert(response.job());
        }
        return jobs.size() == 1000;
    }));
    const double rate = 1000 / to_seconds(now().steady - start);
    printf("1000 durable submits: %.0f a second\n", rate);
    RecordProperty("submits_per_s", static_cast<int>(rate));
}

TEST_F(ServerTest, BytesThatAreNoRequestAreAnsweredAndHurtNobody) {
    const auto me = person(me_);
    ASSERT_TRUE(me->send("\xff\xff\xff nonsense"));
    proto::Response response;
    ASSERT_TRUE(run_until([&] {
        const auto bytes = me->receive();
        return bytes && response.ParseFromString(*bytes);
    }));
    EXPECT_EQ(response.outcome(), proto::USAGE);
    proto::Request none;
    EXPECT_EQ(ask(*me, none).outcome(), proto::REFUSED);
    const auto agent = node(n0_);
    ASSERT_TRUE(agent->send("\xff\xff\xff"));
    ASSERT_TRUE(agent->send(hello("n0").SerializeAsString()));
    next_order(*agent, proto::Order::kWelcome);
}

TEST_F(ServerTest, KeysAreMadeOnceForTheOwnerAlone) {
    const CoordinatorKeys again = *find_or_make_keys(folder_);
    EXPECT_EQ(again.wire.public_key, keys_.wire.public_key);
    EXPECT_EQ(again.tickets.secret_key, keys_.tickets.secret_key);
    for (const char* name : {"/keys/coordinator.key", "/keys/ticket.key"}) {
        struct stat about = {};
        ASSERT_EQ(::stat((folder_ + name).c_str(), &about), 0);
        EXPECT_EQ(about.st_mode & 0777U, 0600U);
    }
    ASSERT_EQ(::chmod((folder_ + "/keys/ticket.key").c_str(), 0640), 0);
    EXPECT_EQ(find_or_make_keys(folder_).error().code, Code::Refused);
}

TEST_F(ServerTest, EndpointsTellClientsAllTheyNeedAndNoSecret) {
    ASSERT_TRUE(write_endpoints(folder_, {"lab", "c1", "tcp://a:1", "tcp://a:2", "Z85", std::string("\x01\xff", 2)}));
    const std::string text = *read_file(folder_ + "/endpoints.json");
    const auto json = nlohmann::json::parse(text);
    EXPECT_EQ(json["users"], "tcp://a:1");
    EXPECT_EQ(json["ticket_key"], "01ff");
    EXPECT_EQ(json["pid"], ::getpid());
    for (const char* name : {"/keys/coordinator.key", "/keys/ticket.key"}) {
        std::ifstream file(folder_ + name);
        for (std::string word; file >> word;) {
            const bool is_secret = word.size() >= 40 && word != keys_.wire.public_key;
            EXPECT_FALSE(is_secret && text.find(word) != std::string::npos) << name;
        }
    }
    EXPECT_EQ(reachable("tcp://0.0.0.0:7"), "tcp://" + host_name() + ":7");
    EXPECT_EQ(reachable("tcp://10.0.0.1:7"), "tcp://10.0.0.1:7");
}

TEST_F(ServerTest, BothPortsRefuseStrangersInMilliseconds) {
    const auto proved = prove_strangers_are_refused(*wire_, listening_);
    EXPECT_TRUE(proved) << proved.error().message;
}

}  // namespace
}  // namespace gangline::coordinator
