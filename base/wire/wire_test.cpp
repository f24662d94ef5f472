// The traps of libzmq 4.3.4 that touch us, each shut: see docs/security.md.
#include "base/wire/wire.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <fstream>
#include <thread>

#include "base/handle.h"

namespace gangline {
namespace {

constexpr int kZapEnforceDomain = 93;

// Waits for the next message that is let in.
std::optional<Incoming> receive(ServerSocket& server, Duration limit = seconds(5)) {
    const TimePoint deadline = now().steady + limit;
    for (;;) {
        if (auto incoming = server.receive()) return incoming;
        const auto left = std::chrono::ceil<milliseconds>(deadline - now().steady).count();
        if (left <= 0) return std::nullopt;
        pollfd waiting = {server.fd(), POLLIN, 0};
        ::poll(&waiting, 1, static_cast<int>(left));
    }
}

class WireTest : public ::testing::Test {
  protected:
    void SetUp() override {
        wire_ = *Wire::create(&table_);
        server_ = *ServerSocket::bind(*wire_, table_, {.keys = new_key_pair()});
        alice_row_ = table_.add({.kind = PrincipalKind::User, .name = "alice", .role = Role::User, .public_key = alice_.public_key});
    }
    std::unique_ptr<ClientSocket> client(const KeyPair& keys) {
        return *ClientSocket::connect(*wire_, {.keys = keys, .endpoint = server_->endpoint(), .server_key = server_->public_key()});
    }
    std::uint16_t port() const {
        const std::string endpoint = server_->endpoint();
        return static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
    }
    // One message there and back proves that everything sent before it has been seen.
    bool is_served(ClientSocket& client, const std::string& text = "ping") {
        if (!client.send(text)) return false;
        const auto incoming = receive(*server_);
        if (!incoming || incoming->payload != text || !server_->send(incoming->route, "pong")) return false;
        return client.receive(seconds(5)) == "pong";
    }

    KeyTable table_;
    std::unique_ptr<Wire> wire_;
    std::unique_ptr<ServerSocket> server_;
    KeyPair alice_ = new_key_pair();
    std::uint64_t alice_row_ = 0;
};

// A bare libzmq socket with options that ClientSocket does not offer.
class Raw {
  public:
    Raw(int type, const KeyPair& keys, const std::string& server_key, const std::string& routing_id = "")
        : context_(zmq_ctx_new()), socket_(zmq_socket(context_, type)) {
        const int zero = 0;
        zmq_setsockopt(socket_, ZMQ_LINGER, &zero, sizeof zero);
        zmq_setsockopt(socket_, ZMQ_CURVE_SERVERKEY, server_key.data(), server_key.size());
        zmq_setsockopt(socket_, ZMQ_CURVE_PUBLICKEY, keys.public_key.data(), keys.public_key.size());
        zmq_setsockopt(socket_, ZMQ_CURVE_SECRETKEY, keys.secret_key.data(), keys.secret_key.size());
        if (!routing_id.empty()) zmq_setsockopt(socket_, ZMQ_ROUTING_ID, routing_id.data(), routing_id.size());
    }
    ~Raw() {
        zmq_close(socket_);
        zmq_ctx_term(context_);
    }
    void connect(const std::string& endpoint) { ASSERT_EQ(zmq_connect(socket_, endpoint.c_str()), 0); }
    void send(const std::string& text, int flags = 0) {
        ASSERT_EQ(zmq_send(socket_, text.data(), text.size(), flags), static_cast<int>(text.size()));
    }
    std::optional<std::string> receive(int wait_ms) {
        zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
        char buffer[256];
        const int n = zmq_recv(socket_, buffer, sizeof buffer, 0);
        if (n < 0) return std::nullopt;
        return std::string(buffer, static_cast<std::size_t>(n));
    }
    void* socket() { return socket_; }

  private:
    void* context_;
    void* socket_;
};

TEST_F(WireTest, AnAuthorisedKeyIsServedAndTheSenderIsItsRow) {
    const auto alice = client(alice_);
    ASSERT_TRUE(alice->send("hello"));
    const auto incoming = receive(*server_);
    ASSERT_TRUE(incoming);
    EXPECT_EQ(incoming->payload, "hello");
    EXPECT_EQ(incoming->sender.row, alice_row_);
    EXPECT_EQ(incoming->sender.name, "alice");
    ASSERT_TRUE(server_->send(incoming->route, "welcome"));
    EXPECT_EQ(alice->receive(seconds(5)), "welcome");
}

TEST_F(WireTest, AnUnknownKeyGetsNothingThrough) {
    const auto stranger = client(new_key_pair());
    stranger->send("let me in");
    const auto checked = check_stranger_is_refused(*wire_, *server_, seconds(5));
    EXPECT_TRUE(checked) << checked.error().message;
    const auto alice = client(alice_);
    ASSERT_TRUE(is_served(*alice));
    EXPECT_FALSE(server_->receive());
    EXPECT_EQ(server_->dropped(), 0U);  // Not even dropped: it never arrived.
}

TEST_F(WireTest, TheSelfTestNoticesAServerThatLetsStrangersIn) {
    // A table in which every random key would be known cannot be made; so the self-test meets a server without ZAP.
    struct OpenServer : ServerSocket {
        std::string where, key;
        int fd() const override { return -1; }
        std::optional<Incoming> receive() override { return std::nullopt; }
        bool send(const std::string&, std::string_view) override { return false; }
        std::string endpoint() const override { return where; }
        std::string public_key() const override { return key; }
        std::uint64_t dropped() const override { return 0; }
    } open;
    void* context = zmq_ctx_new();
    void* socket = zmq_socket(context, ZMQ_ROUTER);
    const KeyPair keys = new_key_pair();
    const int one = 1, zero = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &one, sizeof one);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys.secret_key.data(), keys.secret_key.size());
    ASSERT_EQ(zmq_bind(socket, "tcp://127.0.0.1:*"), 0);
    char endpoint[128];
    std::size_t size = sizeof endpoint;
    zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &size);
    open.where = endpoint;
    open.key = keys.public_key;
    const auto checked = check_stranger_is_refused(*wire_, open, seconds(5));
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, Code::Refused);
    EXPECT_NE(checked.error().message.find("let in"), std::string::npos) << checked.error().message;
    zmq_close(socket);
    zmq_ctx_term(context);
}

TEST_F(WireTest, WithoutAZapHandlerNothingIsBound) {
    const auto bare = *Wire::create(nullptr);
    const auto server = ServerSocket::bind(*bare, table_, {.keys = new_key_pair()});
    ASSERT_FALSE(server);
    EXPECT_EQ(server.error().code, Code::Refused);
}

// The trap itself, in bare libzmq: without a handler CURVE lets anybody in; with an enforced domain nobody.
int messages_without_a_zap_handler(bool enforced) {
    void* context = zmq_ctx_new();
    void* server = zmq_socket(context, ZMQ_ROUTER);
    const KeyPair keys = new_key_pair();
    const int one = 1, zero = 0;
    zmq_setsockopt(server, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(server, ZMQ_CURVE_SERVER, &one, sizeof one);
    zmq_setsockopt(server, ZMQ_CURVE_SECRETKEY, keys.secret_key.data(), keys.secret_key.size());
    zmq_setsockopt(server, ZMQ_ZAP_DOMAIN, "gangline", 8);
    if (enforced) {
        EXPECT_EQ(zmq_setsockopt(server, kZapEnforceDomain, &one, sizeof one), 0);
    }
    EXPECT_EQ(zmq_bind(server, "tcp://127.0.0.1:*"), 0);
    char endpoint[128];
    std::size_t size = sizeof endpoint;
    zmq_getsockopt(server, ZMQ_LAST_ENDPOINT, endpoint, &size);
    int messages = 0;
    {
        Raw stranger(ZMQ_DEALER, new_key_pair(), keys.public_key);
        stranger.connect(endpoint);
        stranger.send("x");
        zmq_pollitem_t item = {server, 0, ZMQ_POLLIN, 0};
        messages = zmq_poll(&item, 1, enforced ? 150 : 5000);
    }
    zmq_close(server);
    zmq_ctx_term(context);
    return messages;
}
TEST(LibzmqTrap, CurveWithoutAZapHandlerIsOpenToAll) { EXPECT_EQ(messages_without_a_zap_handler(false), 1); }
TEST(LibzmqTrap, AnEnforcedDomainWithoutAZapHandlerIsShut) { EXPECT_EQ(messages_without_a_zap_handler(true), 0); }

TEST_F(WireTest, TheSenderIsReadFromThePayloadFrameEvenAfterPollingWhenTheFirstFrameHasNone) {
    // Polling reads ahead, and in 4.3.4 the first part then carries no User-Id.
    const auto alice = client(alice_);
    for (int i = 0; i < 20; ++i) {
        ASSERT_TRUE(alice->send("m"));
        pollfd waiting = {server_->fd(), POLLIN, 0};
        while (true) {
            ASSERT_EQ(::poll(&waiting, 1, 5000), 1);
            if (const auto incoming = server_->receive()) {
                EXPECT_EQ(incoming->sender.row, alice_row_);
                // send() asks for ZMQ_EVENTS: the next message is read ahead.
                ASSERT_TRUE(server_->send(incoming->route, "ok"));
                break;
            }
        }
        ASSERT_EQ(alice->receive(seconds(5)), "ok");
    }
    EXPECT_EQ(server_->dropped(), 0U);
}

TEST_F(WireTest, APeerThatChoosesItsRoutingIdGetsNowhereAndStealsNothing) {
    const auto alice = client(alice_);
    ASSERT_TRUE(alice->send("mine"));
    const auto first = receive(*server_);
    ASSERT_TRUE(first);
    const std::string routing_id = first->route.substr(sizeof(std::uint64_t));

    const KeyPair bob_keys = new_key_pair();
    table_.add({.kind = PrincipalKind::User, .name = "bob", .role = Role::User, .public_key = bob_keys.public_key});
    Raw same(ZMQ_DEALER, bob_keys, server_->public_key(), routing_id);   // alice's own id
    Raw named(ZMQ_DEALER, bob_keys, server_->public_key(), "node-n0");   // a name of his choice
    same.connect(server_->endpoint());
    named.connect(server_->endpoint());
    same.send("theft");
    named.send("theft");

    ASSERT_TRUE(server_->send(first->route, "for alice"));
    EXPECT_EQ(alice->receive(seconds(5)), "for alice");
    while (server_->dropped() == 0) {
        ASSERT_FALSE(receive(*server_, milliseconds(20)));  // The chosen name's message arrives, and is dropped.
    }
    EXPECT_TRUE(is_served(*alice));
    EXPECT_FALSE(same.receive(0));
    EXPECT_FALSE(named.receive(0));
}

TEST_F(WireTest, ARevokedKeyIsRefusedAtItsNextMessageAndGetsNoReply) {
    const auto alice = client(alice_);
    ASSERT_TRUE(alice->send("one"));
    const auto first = receive(*server_);
    ASSERT_TRUE(first);
    table_.remove(alice_row_);
    EXPECT_FALSE(server_->send(first->route, "secret"));
    ASSERT_TRUE(alice->send("two"));
    while (server_->dropped() == 0) ASSERT_FALSE(receive(*server_, milliseconds(20)));
    EXPECT_EQ(server_->dropped(), 1U);
    EXPECT_FALSE(alice->receive());
}

TEST_F(WireTest, TwoKeysOfOneNameAreTwoRowsThatBothServe) {
    const KeyPair second = new_key_pair();
    const auto row = table_.add({.kind = PrincipalKind::User, .name = "alice", .role = Role::User, .public_key = second.public_key});
    const auto old_host = client(alice_);
    const auto new_host = client(second);
    ASSERT_TRUE(is_served(*old_host));
    ASSERT_TRUE(new_host->send("x"));
    const auto incoming = receive(*server_);
    ASSERT_TRUE(incoming);
    EXPECT_EQ(incoming->sender.name, "alice");
    EXPECT_EQ(incoming->sender.row, row);
    table_.remove(alice_row_);  // Rotation ends: the old key alone is out.
    ASSERT_TRUE(old_host->send("stale"));
    ASSERT_TRUE(is_served(*new_host));
}

TEST_F(WireTest, AMessageOfManyPartsIsDroppedWhole) {
    Raw alice(ZMQ_DEALER, alice_, server_->public_key());
    alice.connect(server_->endpoint());
    alice.send("a", ZMQ_SNDMORE);
    alice.send("b", ZMQ_SNDMORE);
    alice.send("c");
    alice.send("whole");
    const auto incoming = receive(*server_);
    ASSERT_TRUE(incoming);
    EXPECT_EQ(incoming->payload, "whole");
    EXPECT_EQ(server_->dropped(), 1U);
}

TEST_F(WireTest, APortForUsersKeepsNodesOutAndTellsStrangersAtOnce) {
    const auto users = *ServerSocket::bind(*wire_, table_, {.keys = new_key_pair(), .admits = Admits::Users});
    const KeyPair node_keys = new_key_pair();
    table_.add({.kind = PrincipalKind::Node, .name = "n0", .public_key = node_keys.public_key});
    const auto node = *ClientSocket::connect(*wire_, {.keys = node_keys, .endpoint = users->endpoint(), .server_key = users->public_key()});
    node->send("x");
    const TimePoint before = now().steady;
    EXPECT_FALSE(node->receive(seconds(30)));
    EXPECT_TRUE(node->is_refused());
    EXPECT_LT(now().steady - before, seconds(10));
    EXPECT_FALSE(users->receive());
}

TEST_F(WireTest, ANodeThatIsAuthorisedLaterComesInAtOneOfItsNextMessages) {
    const KeyPair keys = new_key_pair();
    const auto node = client(keys);
    ASSERT_TRUE(node->send("hello"));
    EXPECT_FALSE(node->receive(seconds(30)));
    ASSERT_TRUE(node->is_refused());
    EXPECT_FALSE(server_->receive());
    table_.add({.kind = PrincipalKind::Node, .name = "n0", .public_key = keys.public_key});
    std::optional<Incoming> incoming;
    for (const TimePoint end = now().steady + seconds(5); !incoming && now().steady < end;) {
        node->send("hello");
        incoming = receive(*server_, milliseconds(20));
    }
    ASSERT_TRUE(incoming);
    EXPECT_EQ(incoming->sender.name, "n0");
    EXPECT_FALSE(node->is_refused());
}

TEST_F(WireTest, ASendThatSwallowsTheWakeUpLeavesTheDescriptorReadable) {
    const auto alice = client(alice_);
    ASSERT_TRUE(alice->send("first"));
    const auto first = receive(*server_);
    ASSERT_TRUE(first);
    for (int round = 0; round < 200; ++round) {
        while (server_->receive()) {
        }
        ASSERT_TRUE(alice->send("x"));
        // Replies meanwhile: any of them may consume the socket's own hint that "x" has come.
        for (int i = 0; i < 3; ++i) ASSERT_TRUE(server_->send(first->route, "busy"));
        pollfd waiting = {server_->fd(), POLLIN, 0};
        bool got = false;
        while (!got) {
            ASSERT_EQ(::poll(&waiting, 1, 5000), 1) << "round " << round;
            while (const auto incoming = server_->receive()) got = got || incoming->payload == "x";
        }
        for (int i = 0; i < 3; ++i) ASSERT_EQ(alice->receive(seconds(5)), "busy");
    }
}

TEST_F(WireTest, ARouteThatIsGoneSaysSo) {
    auto alice = client(alice_);
    ASSERT_TRUE(alice->send("x"));
    const auto incoming = receive(*server_);
    ASSERT_TRUE(incoming);
    alice.reset();
    const TimePoint deadline = now().steady + seconds(5);
    bool gone = false;
    while (!gone && now().steady < deadline) gone = !server_->send(incoming->route, "y");
    EXPECT_TRUE(gone);
    EXPECT_FALSE(server_->send("short", "y"));
}

Fd plain_tcp(std::uint16_t port) {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fd.reset();
    return fd;
}

TEST_F(WireTest, ManyIdleConnectionsDoNotLockOutAClient) {
    std::vector<Fd> idle;
    for (int i = 0; i < 300; ++i) {
        idle.push_back(plain_tcp(port()));
        ASSERT_TRUE(idle.back());
    }
    const auto alice = client(alice_);
    EXPECT_TRUE(is_served(*alice));
}

long resident_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmRSS:")) return std::stol(line.substr(6));
    }
    return 0;
}

TEST_F(WireTest, AnOversizedMessageBeforeAuthenticationIsDroppedWithoutMemory) {
    const long before = resident_kib();
    const std::string chunk(1 << 20, 'x');
    for (int peer = 0; peer < 4; ++peer) {
        const Fd fd = plain_tcp(port());
        ASSERT_TRUE(fd);
        std::string greeting("\xff\0\0\0\0\0\0\0\0\x7f\x03\x00", 12);
        greeting += "CURVE";
        greeting.resize(64, '\0');
        ASSERT_EQ(::send(fd.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL), 64);
        std::string command("\x06", 1);  // A long command of 1 GiB.
        command += std::string("\0\0\0\0\x40\0\0\0", 8);
        ASSERT_EQ(::send(fd.get(), command.data(), command.size(), MSG_NOSIGNAL), 9);
        bool is_closed = false;
        for (int i = 0; i < 64 && !is_closed; ++i) {
            for (std::size_t sent = 0; sent < chunk.size() && !is_closed;) {
                const ssize_t n = ::send(fd.get(), chunk.data() + sent, chunk.size() - sent, MSG_NOSIGNAL);
                is_closed = n < 0;
                if (n > 0) sent += static_cast<std::size_t>(n);
            }
        }
        EXPECT_TRUE(is_closed) << "the connection took 64 MiB";
    }
    EXPECT_LT(resident_kib() - before, 16 * 1024);
    const auto alice = client(alice_);
    EXPECT_TRUE(is_served(*alice));
}

TEST_F(WireTest, AnOversizedMessageOfAnAuthorisedPeerIsNotDelivered) {
    const auto small = *ServerSocket::bind(*wire_, table_, {.keys = new_key_pair(), .most_message_bytes = 1000});
    const auto alice = *ClientSocket::connect(*wire_, {.keys = alice_, .endpoint = small->endpoint(), .server_key = small->public_key()});
    ASSERT_TRUE(alice->send(std::string(2000, 'x')));
    std::optional<Incoming> incoming;
    for (const TimePoint end = now().steady + seconds(5); !incoming && now().steady < end;) {
        alice->send("small");  // The connection was closed, and is made again.
        incoming = receive(*small, milliseconds(20));
    }
    ASSERT_TRUE(incoming);
    EXPECT_EQ(incoming->payload, "small");
}

TEST_F(WireTest, BadEndpointsAreErrorsThatSayWhatToGive) {
    EXPECT_EQ(ServerSocket::bind(*wire_, table_, {.keys = new_key_pair(), .endpoint = "nonsense"}).error().code, Code::InvalidArgument);
    EXPECT_EQ(ServerSocket::bind(*wire_, table_, {.keys = new_key_pair(), .endpoint = server_->endpoint()}).error().code, Code::Unavailable);
    EXPECT_EQ(ClientSocket::connect(*wire_, {.keys = alice_, .endpoint = server_->endpoint(), .server_key = "x"}).error().code,
              Code::InvalidArgument);
    EXPECT_EQ(ClientSocket::connect(*wire_, {.keys = alice_, .endpoint = "tcp://", .server_key = server_->public_key()}).error().code,
              Code::InvalidArgument);
}

TEST_F(WireTest, ClientsThatAreClosedWhileTheyAreRefusedStallNobody) {
    // libzmq's trap: an event for a monitor that is gone blocks the I/O thread for ever.
    for (int i = 0; i < 100; ++i) {
        const auto stranger = client(new_key_pair());
        stranger->send("x");
        if (i % 2 == 0) stranger->receive(milliseconds(i % 4));
        if (i % 10 == 0) {
            ASSERT_TRUE(check_stranger_is_refused(*wire_, *server_, seconds(5)));
        }
    }
    const auto alice = client(alice_);
    EXPECT_TRUE(is_served(*alice));
}

TEST_F(WireTest, UnixSocketsServeToo) {
    const std::string path = "/tmp/gangline-wire-" + std::to_string(::getpid());
    const auto local = *ServerSocket::bind(*wire_, table_, {.keys = new_key_pair(), .endpoint = "ipc://" + path});
    const auto alice = *ClientSocket::connect(*wire_, {.keys = alice_, .endpoint = local->endpoint(), .server_key = local->public_key()});
    ASSERT_TRUE(alice->send("x"));
    EXPECT_TRUE(receive(*local));
}

}  // namespace
}  // namespace gangline
