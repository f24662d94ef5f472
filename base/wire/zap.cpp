#include "base/wire/zap.h"

#include <pthread.h>
#include <zmq.h>

#include <array>
#include <csignal>
#include <optional>

namespace gangline {
namespace {

constexpr std::size_t kMostFrames = 8;

bool is_admitted(std::string_view domain, PrincipalKind kind) {
    if (domain == domain_of(Admits::Everybody)) return true;
    if (domain == domain_of(Admits::Users)) return kind == PrincipalKind::User;
    return domain == domain_of(Admits::Nodes) && kind != PrincipalKind::User;
}

std::string z85(const std::string& key) {
    std::array<char, 41> text{};
    std::array<std::uint8_t, 32> bytes{};
    if (key.size() != bytes.size()) return {};
    std::copy(key.begin(), key.end(), bytes.begin());
    if (zmq_z85_encode(text.data(), bytes.data(), bytes.size()) == nullptr) return {};
    return text.data();
}

// One multipart message; nothing when the context ends.
std::optional<std::vector<std::string>> receive_frames(void* socket) {
    std::vector<std::string> frames;
    for (int more = 1; more != 0;) {
        zmq_msg_t message;
        zmq_msg_init(&message);
        int rc = -1;
        do rc = zmq_msg_recv(&message, socket, 0);
        while (rc < 0 && errno == EINTR);
        if (rc < 0) {
            zmq_msg_close(&message);
            return std::nullopt;
        }
        if (frames.size() < kMostFrames) frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
        more = zmq_msg_more(&message);
        zmq_msg_close(&message);
    }
    return frames;
}

}  // namespace

const char* domain_of(Admits admits) {
    switch (admits) {
        case Admits::Everybody: return "gangline";
        case Admits::Users: return "gangline.users";
        case Admits::Nodes: return "gangline.nodes";
    }
    return "gangline.nobody";
}

std::unique_ptr<ZapHandler> ZapHandler::start(void* context, const KeyTable& table) {
    void* socket = zmq_socket(context, ZMQ_REP);
    if (socket == nullptr) return nullptr;
    const int linger = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    if (zmq_bind(socket, "inproc://zeromq.zap.01") != 0) {
        zmq_close(socket);
        return nullptr;
    }
    return std::unique_ptr<ZapHandler>(new ZapHandler(socket, table));
}

ZapHandler::ZapHandler(void* socket, const KeyTable& table) : socket_(socket), table_(table) {
    // Signals are for the process's main thread.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { serve(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ZapHandler::~ZapHandler() { thread_.join(); }

void ZapHandler::serve() {
    while (answer_one()) {
    }
    zmq_close(socket_);
}

bool ZapHandler::answer_one() {
    const auto request = receive_frames(socket_);
    if (!request) return false;
    const auto frame = [&](std::size_t i) { return i < request->size() ? (*request)[i] : std::string(); };
    const bool is_curve = request->size() == 7 && frame(0) == "1.0" && frame(5) == "CURVE";
    const auto principal = is_curve ? table_.by_key(z85(frame(6))) : std::nullopt;
    const bool admitted = principal && is_admitted(frame(2), principal->kind);
    // 400 tells the stranger at once; 300 would leave it connected until the handshake's deadline.
    const std::array<std::string, 6> reply = {"1.0",
                                              frame(1),
                                              admitted ? "200" : "400",
                                              admitted ? "welcome" : "this key is not authorised",
                                              admitted ? std::to_string(principal->row) : "",
                                              ""};
    for (std::size_t i = 0; i < reply.size(); ++i) {
        const int flags = i + 1 < reply.size() ? ZMQ_SNDMORE : 0;
        int rc = -1;
        do rc = zmq_send(socket_, reply[i].data(), reply[i].size(), flags);
        while (rc < 0 && errno == EINTR);
        if (rc < 0) return false;
    }
    return true;
}

}  // namespace gangline
