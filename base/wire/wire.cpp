#include "base/wire/wire.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

#include "base/handle.h"
#include "base/wire/zap.h"

namespace gangline {
namespace {

// In Debian's header behind the draft define, in its library always (4.3.4).
constexpr int kZapEnforceDomain = 93;
constexpr int kHandshakeMs = 3000;
constexpr Duration kRetryAfterRefusal = milliseconds(200);
constexpr int kMostDropsAtOnce = 1000;
constexpr std::size_t kRowBytes = sizeof(std::uint64_t);
// libzmq's own routing ids: a zero byte and four bytes of a counter that starts at random.
constexpr std::size_t kOwnRoutingIdBytes = 5;

struct SocketTraits {
    using Value = void*;
    static Value none() { return nullptr; }
    static void close(Value socket) { zmq_close(socket); }
};
using ZmqSocket = Handle<SocketTraits>;

class Message {
  public:
    Message() { zmq_msg_init(&message_); }
    Message(const Message&) = delete;
    Message& operator=(const Message&) = delete;
    ~Message() { zmq_msg_close(&message_); }
    zmq_msg_t* get() { return &message_; }
    std::string_view bytes() { return {static_cast<const char*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)}; }
    bool has_more() const { return zmq_msg_more(&message_) != 0; }
    // The principal's row as the ZAP handler gave it; 0 when libzmq did not attach it.
    std::uint64_t row() const {
        const char* text = zmq_msg_gets(&message_, "User-Id");
        std::uint64_t row = 0;
        if (text != nullptr) std::from_chars(text, text + std::strlen(text), row);
        return row;
    }

  private:
    zmq_msg_t message_;
};

bool receive_part(void* socket, Message& message) {
    for (;;) {
        if (zmq_msg_recv(message.get(), socket, ZMQ_DONTWAIT) >= 0) return true;
        if (errno != EINTR) return false;
    }
}

bool send_part(void* socket, std::string_view bytes, int flags) {
    for (;;) {
        if (zmq_send(socket, bytes.data(), bytes.size(), flags | ZMQ_DONTWAIT) >= 0) return true;
        if (errno != EINTR) return false;
    }
}

class WireImpl : public Wire {
  public:
    explicit WireImpl(void* context) : context_(context) {}
    ~WireImpl() override {
        zmq_ctx_shutdown(context_);
        zap_.reset();
        while (zmq_ctx_term(context_) != 0 && errno == EINTR) {
        }
    }
    bool start_zap(const KeyTable& table) {
        zap_ = ZapHandler::start(context_, table);
        return zap_ != nullptr;
    }
    bool has_zap() const { return zap_ != nullptr; }
    void* context() const { return context_; }
    std::string monitor_name() { return fmt::format("inproc://monitor.{}", monitors_++); }

  private:
    void* context_;
    std::unique_ptr<ZapHandler> zap_;
    std::atomic<int> monitors_{0};
};

// A ZeroMQ socket's descriptor only says "look at ZMQ_EVENTS", and sending can swallow that hint. `fd()` is an epoll
// set of it and of an event that is raised whenever a send found messages waiting: so a plain poll loop misses none.
class Waker {
  public:
    Result<void> watch(void* socket) {
        socket_ = socket;
        std::size_t size = sizeof(int);
        int socket_fd = -1;
        if (zmq_getsockopt(socket, ZMQ_FD, &socket_fd, &size) != 0) return errno_error("cannot read ZMQ_FD");
        epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
        again_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (!epoll_ || !again_) return errno_error("cannot make a descriptor to wait on");
        if (auto added = add(socket_fd); !added) return added;
        return add(again_.get());
    }
    Result<void> add(int fd) {
        epoll_event event = {};
        event.events = EPOLLIN;
        event.data.fd = fd;
        if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return errno_error("cannot wait on a socket");
        return {};
    }
    int fd() const { return epoll_.get(); }
    bool has_messages() const {
        int events = 0;
        std::size_t size = sizeof events;
        return zmq_getsockopt(socket_, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN) != 0;
    }
    void after_send() {
        if (!raised_ && has_messages()) raise();
    }
    void raise() {
        const std::uint64_t one = 1;
        raised_ = ::write(again_.get(), &one, sizeof one) == sizeof one || raised_;
    }
    void lower() {
        std::uint64_t count = 0;
        if (raised_ && ::read(again_.get(), &count, sizeof count) > 0) raised_ = false;
    }

  private:
    void* socket_ = nullptr;
    Fd epoll_;
    Fd again_;
    bool raised_ = false;
};

Result<void> set(void* socket, int option, int value, const char* name) {
    if (zmq_setsockopt(socket, option, &value, sizeof value) != 0) return errno_error(fmt::format("cannot set {}", name));
    return {};
}

Result<void> set(void* socket, int option, const std::string& value, const char* name) {
    if (zmq_setsockopt(socket, option, value.c_str(), value.size()) != 0) {
        return Error{Code::InvalidArgument, fmt::format("cannot set {}: {}", name, zmq_strerror(errno))};
    }
    return {};
}

struct Limits {
    std::int64_t most_message_bytes;
    int most_waiting_messages;
};

Result<void> set_common(void* socket, const Limits& limits, const std::string& endpoint) {
    // Behind ipc there is a server that is just starting, on this machine: it costs little to look again soon.
    const bool is_local = endpoint.starts_with("ipc:");
    const std::pair<int, int> options[] = {
        {ZMQ_LINGER, 0},
        {ZMQ_HANDSHAKE_IVL, kHandshakeMs},
        {ZMQ_HEARTBEAT_IVL, 5'000},
        {ZMQ_HEARTBEAT_TIMEOUT, 15'000},
        {ZMQ_HEARTBEAT_TTL, 30'000},
        {ZMQ_RECONNECT_IVL, is_local ? 2 : 5},
        {ZMQ_RECONNECT_IVL_MAX, is_local ? 0 : 200},
        {ZMQ_BACKLOG, 1024},
        {ZMQ_SNDHWM, limits.most_waiting_messages},
        {ZMQ_RCVHWM, limits.most_waiting_messages},
        {ZMQ_IPV6, endpoint.find('[') != std::string::npos ? 1 : 0},
    };
    for (const auto& [option, value] : options) {
        if (auto done = set(socket, option, value, "a socket option"); !done) return done;
    }
    if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &limits.most_message_bytes, sizeof limits.most_message_bytes) != 0) {
        return errno_error("cannot set MAXMSGSIZE");
    }
    return {};
}

Result<void> set_client_keys(void* socket, const KeyPair& keys, const std::string& server_key) {
    if (!is_public_key(server_key)) {
        return Error{Code::InvalidArgument, fmt::format("the coordinator's key '{}' is not 40 characters of Z85 text", server_key)};
    }
    if (auto done = set(socket, ZMQ_CURVE_SERVERKEY, server_key, "the server's key"); !done) return done;
    if (auto done = set(socket, ZMQ_CURVE_PUBLICKEY, keys.public_key, "the public key"); !done) return done;
    return set(socket, ZMQ_CURVE_SECRETKEY, keys.secret_key, "the secret key");
}

Error endpoint_error(const std::string& what, const std::string& endpoint) {
    const int error = errno;
    const bool is_wrong = error == EINVAL || error == EPROTONOSUPPORT || error == ENOCOMPATPROTO || error == ENODEV;
    return {is_wrong ? Code::InvalidArgument : Code::Unavailable,
            fmt::format("cannot {} {}: {}{}", what, endpoint, zmq_strerror(error),
                        is_wrong ? "; give tcp://ADDRESS:PORT (PORT may be * to bind) or ipc://PATH" : "")};
}

class ServerSocketImpl : public ServerSocket {
  public:
    ServerSocketImpl(ZmqSocket socket, const KeyTable& table) : socket_(std::move(socket)), table_(table) {}

    Result<void> open(const ServerOptions& options) {
        void* s = socket_.get();
        if (auto done = set_common(s, {options.most_message_bytes, options.most_waiting_messages}, options.endpoint); !done) return done;
        if (auto done = set(s, ZMQ_ROUTER_MANDATORY, 1, "ROUTER_MANDATORY"); !done) return done;
        if (auto done = set(s, ZMQ_CURVE_SERVER, 1, "CURVE_SERVER"); !done) return done;
        if (auto done = set(s, ZMQ_CURVE_SECRETKEY, options.keys.secret_key, "the secret key"); !done) return done;
        if (auto done = set(s, ZMQ_ZAP_DOMAIN, std::string(domain_of(options.admits)), "ZAP_DOMAIN"); !done) return done;
        if (auto done = set(s, kZapEnforceDomain, 1, "ZAP_ENFORCE_DOMAIN"); !done) return done;
        if (zmq_bind(s, options.endpoint.c_str()) != 0) return endpoint_error("listen on", options.endpoint);
        char endpoint[512] = {};
        std::size_t size = sizeof endpoint;
        if (zmq_getsockopt(s, ZMQ_LAST_ENDPOINT, endpoint, &size) != 0) return errno_error("cannot read the endpoint");
        endpoint_ = endpoint;
        public_key_ = options.keys.public_key;
        return waker_.watch(s);
    }

    int fd() const override { return waker_.fd(); }
    std::string endpoint() const override { return endpoint_; }
    std::string public_key() const override { return public_key_; }
    std::uint64_t dropped() const override { return dropped_; }

    std::optional<Incoming> receive() override {
        for (int i = 0; i < kMostDropsAtOnce; ++i) {
            Message route;
            if (!receive_part(socket_.get(), route)) {
                waker_.lower();
                return std::nullopt;
            }
            if (auto incoming = receive_payload(route)) return incoming;
            ++dropped_;
        }
        waker_.raise();  // A flood of nothing: others have their turn, then we look again.
        return std::nullopt;
    }

    bool send(const std::string& route, std::string_view payload) override {
        if (route.size() <= kRowBytes) return false;
        std::uint64_t row = 0;
        std::memcpy(&row, route.data(), kRowBytes);
        if (!table_.by_row(row)) return false;
        const bool sent = send_part(socket_.get(), std::string_view(route).substr(kRowBytes), ZMQ_SNDMORE) &&
                          send_part(socket_.get(), payload, 0);
        waker_.after_send();
        return sent;
    }

  private:
    // The rest of a message whose first part is `route`; nothing when its sender or its shape is not valid.
    std::optional<Incoming> receive_payload(Message& route) {
        Message payload;
        bool is_shaped = route.has_more() && receive_part(socket_.get(), payload);
        const bool has_extra = is_shaped && payload.has_more();
        for (bool more = has_extra; more;) {
            Message extra;
            more = receive_part(socket_.get(), extra) && extra.has_more();
        }
        // A routing id that its peer chose could be another's: such a peer gets nowhere.
        const std::string_view id = route.bytes();
        is_shaped = is_shaped && !has_extra && id.size() == kOwnRoutingIdBytes && id[0] == '\0';
        const std::uint64_t row = payload.row();
        if (!is_shaped || row == 0) return std::nullopt;
        auto sender = table_.by_row(row);
        if (!sender) return std::nullopt;
        Incoming incoming;
        incoming.route.resize(kRowBytes);
        std::memcpy(incoming.route.data(), &row, kRowBytes);
        incoming.route.append(id);
        incoming.sender = std::move(*sender);
        incoming.payload = payload.bytes();
        return incoming;
    }

    ZmqSocket socket_;
    const KeyTable& table_;
    Waker waker_;
    std::string endpoint_;
    std::string public_key_;
    std::uint64_t dropped_ = 0;
};

// Events of a socket's connection, from libzmq's monitor. It is stopped before its listening end is closed: an event
// that nobody could take would block libzmq's only I/O thread, and with it every socket of the process, for ever. So it
// must be destroyed before the socket that it watches.
class Monitor {
  public:
    Monitor() = default;
    Monitor(const Monitor&) = delete;
    Monitor& operator=(const Monitor&) = delete;
    ~Monitor() {
        if (watched_ != nullptr) zmq_socket_monitor(watched_, nullptr, 0);
    }
    Result<void> watch(WireImpl& wire, void* socket, int events) {
        const std::string name = wire.monitor_name();
        if (zmq_socket_monitor(socket, name.c_str(), events) != 0) return errno_error("cannot monitor a socket");
        watched_ = socket;
        socket_.reset(zmq_socket(wire.context(), ZMQ_PAIR));
        if (!socket_) return errno_error("cannot make a socket");
        if (auto done = set(socket_.get(), ZMQ_LINGER, 0, "LINGER"); !done) return done;
        if (zmq_connect(socket_.get(), name.c_str()) != 0) return errno_error("cannot monitor a socket");
        return {};
    }
    int fd() const {
        int fd = -1;
        std::size_t size = sizeof fd;
        zmq_getsockopt(socket_.get(), ZMQ_FD, &fd, &size);
        return fd;
    }
    // The next event's number; nothing when there is none now.
    std::optional<int> next() {
        Message event;
        if (!receive_part(socket_.get(), event)) return std::nullopt;
        Message address;
        if (event.has_more()) receive_part(socket_.get(), address);
        std::uint16_t number = 0;
        if (event.bytes().size() < sizeof number) return 0;
        std::memcpy(&number, event.bytes().data(), sizeof number);
        return number;
    }

  private:
    void* watched_ = nullptr;
    ZmqSocket socket_;
};

int poll_timeout(TimePoint deadline) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - now().steady).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
}

class ClientSocketImpl : public ClientSocket {
  public:
    explicit ClientSocketImpl(ZmqSocket socket) : socket_(std::move(socket)) {}

    Result<void> open(WireImpl& wire, const ClientOptions& options) {
        void* s = socket_.get();
        if (auto done = set_common(s, {options.most_message_bytes, options.most_waiting_messages}, options.endpoint); !done) return done;
        if (auto done = set_client_keys(s, options.keys, options.server_key); !done) return done;
        if (auto done = monitor_.watch(wire, s, ZMQ_EVENT_HANDSHAKE_FAILED_AUTH); !done) return done;
        if (auto done = waker_.watch(s); !done) return done;
        if (auto done = waker_.add(monitor_.fd()); !done) return done;
        endpoint_ = options.endpoint;
        if (zmq_connect(s, endpoint_.c_str()) != 0) return endpoint_error("connect to", endpoint_);
        return {};
    }

    int fd() const override { return waker_.fd(); }

    std::optional<std::string> receive() override {
        for (;;) {
            Message message;
            if (!receive_part(socket_.get(), message)) break;
            std::string payload(message.bytes());
            if (!message.has_more()) return payload;
            for (bool more = true; more;) {  // Not a shape that a coordinator sends.
                Message extra;
                more = receive_part(socket_.get(), extra) && extra.has_more();
            }
        }
        waker_.lower();
        read_monitor();
        return std::nullopt;
    }

    std::optional<std::string> receive(Duration timeout) override {
        const TimePoint deadline = now().steady + timeout;
        for (;;) {
            if (auto payload = receive()) return payload;
            const int wait_ms = poll_timeout(deadline);
            if (refused_ || wait_ms == 0) return std::nullopt;
            pollfd waiting = {fd(), POLLIN, 0};
            ::poll(&waiting, 1, wait_ms);
        }
    }

    bool send(std::string_view payload) override {
        read_monitor();
        if (refused_ && now().steady >= retry_at_) connect_again();
        const bool sent = send_part(socket_.get(), payload, 0);
        waker_.after_send();
        return sent;
    }

    bool is_refused() override {
        read_monitor();
        return refused_;
    }

  private:
    void read_monitor() {
        while (monitor_.next()) {
            refused_ = true;
            retry_at_ = now().steady + kRetryAfterRefusal;
        }
    }
    // libzmq gives a refused connection up for good.
    void connect_again() {
        zmq_disconnect(socket_.get(), endpoint_.c_str());
        if (zmq_connect(socket_.get(), endpoint_.c_str()) == 0) refused_ = false;
    }

    ZmqSocket socket_;
    Monitor monitor_;
    Waker waker_;
    std::string endpoint_;
    bool refused_ = false;
    TimePoint retry_at_;
};

}  // namespace

Result<std::unique_ptr<Wire>> Wire::create(const KeyTable* table) {
    void* context = zmq_ctx_new();
    if (context == nullptr) return errno_error("cannot start ZeroMQ");
    auto wire = std::make_unique<WireImpl>(context);
    if (table != nullptr && !wire->start_zap(*table)) return Error{Code::Internal, "cannot start the ZAP handler"};
    return std::unique_ptr<Wire>(std::move(wire));
}

Result<std::unique_ptr<ServerSocket>> ServerSocket::bind(Wire& wire, const KeyTable& table, const ServerOptions& options) {
    auto& impl = static_cast<WireImpl&>(wire);
    if (!impl.has_zap()) {
        return Error{Code::Refused, "nobody would check the keys of who connects (no ZAP handler): not listening"};
    }
    ZmqSocket socket(zmq_socket(impl.context(), ZMQ_ROUTER));
    if (!socket) return errno_error("cannot make a socket");
    auto server = std::make_unique<ServerSocketImpl>(std::move(socket), table);
    if (auto opened = server->open(options); !opened) return opened.error();
    return std::unique_ptr<ServerSocket>(std::move(server));
}

Result<std::unique_ptr<ClientSocket>> ClientSocket::connect(Wire& wire, const ClientOptions& options) {
    auto& impl = static_cast<WireImpl&>(wire);
    ZmqSocket socket(zmq_socket(impl.context(), ZMQ_DEALER));
    if (!socket) return errno_error("cannot make a socket");
    auto client = std::make_unique<ClientSocketImpl>(std::move(socket));
    if (auto opened = client->open(impl, options); !opened) return opened.error();
    return std::unique_ptr<ClientSocket>(std::move(client));
}

Result<void> check_stranger_is_refused(Wire& wire, ServerSocket& server, Duration limit) {
    auto& impl = static_cast<WireImpl&>(wire);
    const TimePoint deadline = now().steady + limit;
    const ZmqSocket stranger(zmq_socket(impl.context(), ZMQ_DEALER));
    if (!stranger) return errno_error("cannot make a socket");
    if (auto done = set_common(stranger.get(), {1 << 20, 10}, server.endpoint()); !done) return done;
    if (auto done = set_client_keys(stranger.get(), new_key_pair(), server.public_key()); !done) return done;
    Monitor monitor;
    if (auto done = monitor.watch(impl, stranger.get(), ZMQ_EVENT_ALL); !done) return done;
    if (zmq_connect(stranger.get(), server.endpoint().c_str()) != 0) return endpoint_error("connect to", server.endpoint());
    for (;;) {
        while (const auto event = monitor.next()) {
            switch (*event) {
                case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
                    return Error{Code::Refused, fmt::format("{} let in a key that nobody has authorised", server.endpoint())};
                case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
                case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                case ZMQ_EVENT_DISCONNECTED: return {};
                default: break;  // NOLINT: libzmq's numbers, not an enum of ours
            }
        }
        const int wait_ms = poll_timeout(deadline);
        if (wait_ms == 0) {
            return Error{Code::Refused, fmt::format("{} did not refuse an unknown key within {} ms", server.endpoint(), to_ms(limit))};
        }
        pollfd waiting = {monitor.fd(), POLLIN, 0};
        ::poll(&waiting, 1, wait_ms);
    }
}

}  // namespace gangline
