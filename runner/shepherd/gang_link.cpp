#include "runner/shepherd/gang_link.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "base/handle.h"
#include "base/log.h"
#include "runner/shepherd/gang_fences.h"

namespace gangline::runner {
namespace {

constexpr Duration kAliveEvery = milliseconds(500);
// A peer may be told to launch before the lead is: the lead then does not know its key yet and refuses it.
constexpr Duration kFirstRetry = milliseconds(5);
constexpr Duration kLongestRetry = milliseconds(200);
constexpr std::int64_t kMostMessageBytes = 64 << 20;
constexpr std::uint32_t kLead = 0;

class GangLinkImpl : public GangLink {
  public:
    GangLinkImpl(GangLinkOptions options, GangEvents events) : options_(std::move(options)), events_(std::move(events)) {}
    Result<void> open();

    std::string public_key() const override { return keys_.public_key; }
    std::string endpoint() const override { return server_ ? server_->endpoint() : std::string(); }
    Result<void> connect(const proto::Launch& launch) override;
    int fd() const override { return epoll_.get(); }
    void handle() override;
    TimePoint next_deadline() const override;
    void tick(TimePoint now) override;

    void add_gang(const std::string& name_space, const std::vector<proto::Placement>& gang) override;
    void fence(const std::string& key, const std::string& blob, bool partial) override;
    void fail_gang(const std::string& name_space) override;
    void ask_modex(std::uint64_t request, const std::string& name_space, std::uint32_t rank) override;
    void answer_modex(std::uint64_t request, int status, const std::string& blob) override;
    bool send_relay(const std::string& name_space, proto::WorkerRelay relay) override;
    void send_start_step(const proto::StartStep& step, std::uint32_t node_index) override;
    void send_stop_step(const proto::StopStep& step, std::uint32_t node_index) override;
    void send_step_exit(const proto::StepExit& exit) override;
    void send_step_output(const proto::StepOutput& output) override;
    Duration silent_for(std::uint32_t node_index, TimePoint now) const override;

  private:
    struct Asked {  // a modex request that this node has to answer
        std::uint32_t node_index = 0;
        std::uint64_t request = 0;
    };

    bool is_lead() const { return options_.node_index == kLead; }
    bool is_alone() const { return options_.gang.size() == 1; }
    Result<void> watch(int fd);
    void wake();
    Result<void> admit(const proto::Launch& launch);
    Result<void> join(const proto::Launch& launch);
    void reconnect_when_refused(TimePoint now);
    proto::GangMessage message_to(std::uint32_t node_index) const;
    bool deliver(proto::GangMessage message);  // to ourselves, or through the lead
    bool post(const proto::GangMessage& message);
    void receive_from_peers();
    void receive_from_lead();
    void on_message(const proto::GangMessage& message);
    void dispatch(const proto::GangMessage& message);
    void on_fence_part(std::uint32_t node_index, const proto::Fence& part);
    void answer_fences(const std::vector<proto::FenceDone>& done);
    std::optional<std::uint32_t> node_of(const std::string& name_space, std::uint32_t rank) const;
    std::optional<std::uint32_t> index_of(const std::string& node) const;

    GangLinkOptions options_;
    GangEvents events_;
    KeyPair keys_;
    KeyTable table_;
    std::unique_ptr<Wire> wire_;
    std::unique_ptr<ServerSocket> server_;            // the lead's
    std::map<std::uint32_t, std::string> routes_;     // lead: node index -> route
    std::map<std::uint64_t, std::uint32_t> indices_;  // lead: row of a key -> node index
    std::unique_ptr<ClientSocket> client_;            // the others'
    ClientOptions client_options_;
    Duration retry_ = kFirstRetry;
    std::optional<TimePoint> retry_at_;
    Fd epoll_;
    Fd woken_;
    std::vector<proto::GangMessage> to_ourselves_;
    std::map<std::uint32_t, std::vector<std::string>> unsent_;  // lead: for a node that has not connected yet
    std::vector<std::string> unsent_to_lead_;                   // the others: before Launch
    GangFences fences_;
    std::map<std::string, std::vector<proto::Placement>> gangs_;
    std::map<std::uint64_t, Asked> asked_;
    std::uint64_t next_asked_ = 1;
    std::map<std::uint32_t, TimePoint> heard_;
    TimePoint alive_at_ = TimePoint::max();
};

Result<void> GangLinkImpl::open() {
    if (options_.gang.empty() || options_.node_index >= options_.gang.size()) {
        return Error{Code::InvalidArgument, fmt::format("node index {} of a gang on {} nodes: it must be below that",
                                                        options_.node_index, options_.gang.size())};
    }
    keys_ = options_.keys.secret_key.empty() ? new_key_pair() : options_.keys;
    epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
    woken_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!epoll_ || !woken_) return errno_error("cannot make a descriptor to wait on");
    if (auto watched = watch(woken_.get()); !watched) return watched;
    if (is_alone()) return {};
    auto wire = Wire::create(is_lead() ? &table_ : nullptr);
    if (!wire) return wire.error();
    wire_ = std::move(*wire);
    if (!is_lead()) return {};
    std::string address = options_.address.empty() ? options_.gang[kLead].address() : options_.address;
    if (address.empty()) address = "127.0.0.1";
    if (address.find(':') != std::string::npos && address[0] != '[') address = "[" + address + "]";
    ServerOptions server;
    server.keys = keys_;
    server.endpoint = fmt::format("tcp://{}:*", address);
    server.most_message_bytes = kMostMessageBytes;
    server.admits = Admits::Nodes;
    auto bound = ServerSocket::bind(*wire_, table_, server);
    if (!bound) return bound.error();
    server_ = std::move(*bound);
    return watch(server_->fd());
}

Result<void> GangLinkImpl::watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return errno_error("cannot wait on a socket");
    return {};
}

void GangLinkImpl::wake() {
    const std::uint64_t one = 1;
    while (::write(woken_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
}

// ---- Launch: keys and connections.

Result<void> GangLinkImpl::connect(const proto::Launch& launch) {
    if (is_alone()) return {};
    const TimePoint now = gangline::now().steady;
    auto done = is_lead() ? admit(launch) : join(launch);
    if (!done) return done;
    if (alive_at_ == TimePoint::max()) {
        alive_at_ = now;
        for (std::uint32_t i = 0; i < options_.gang.size(); ++i) heard_[i] = now;
    }
    return {};
}

Result<void> GangLinkImpl::admit(const proto::Launch& launch) {
    std::map<std::uint32_t, std::string> keys;
    for (const proto::Peer& peer : launch.peers()) {
        if (peer.node_index() == kLead) continue;
        if (peer.node_index() >= options_.gang.size() || !is_public_key(peer.gang_key())) {
            return Error{Code::InvalidArgument, fmt::format("launch: the key '{}' of node index {} is not 40 characters of Z85, or "
                                                            "the gang has no such node", peer.gang_key(), peer.node_index())};
        }
        keys[peer.node_index()] = peer.gang_key();
    }
    if (keys.size() + 1 != options_.gang.size()) {
        return Error{Code::InvalidArgument, fmt::format("launch: keys of {} peers were given, the gang has {}", keys.size(),
                                                        options_.gang.size() - 1)};
    }
    for (const auto& [index, key] : keys) {
        if (table_.by_key(key)) continue;
        Principal peer;
        peer.kind = PrincipalKind::Shepherd;
        peer.name = options_.gang[index].node();
        peer.public_key = key;
        peer.job = options_.id.job();
        peer.attempt = options_.id.attempt();
        indices_[table_.add(peer)] = index;
    }
    return {};
}

Result<void> GangLinkImpl::join(const proto::Launch& launch) {
    if (client_) return {};
    for (const proto::Peer& peer : launch.peers()) {
        if (peer.node_index() == kLead) client_options_.server_key = peer.gang_key();
    }
    if (!is_public_key(client_options_.server_key)) {
        return Error{Code::InvalidArgument, fmt::format("launch: the lead's key '{}' is not 40 characters of Z85",
                                                        client_options_.server_key)};
    }
    client_options_.keys = keys_;
    client_options_.endpoint = launch.lead_endpoint();
    client_options_.most_message_bytes = kMostMessageBytes;
    auto client = ClientSocket::connect(*wire_, client_options_);
    if (!client) return client.error();
    client_ = std::move(*client);
    for (const std::string& bytes : std::exchange(unsent_to_lead_, {})) client_->send(bytes);
    return watch(client_->fd());
}

// A refused connection is given up by libzmq: a new socket, soon. What it had queued is lost; fences are sent again.
void GangLinkImpl::reconnect_when_refused(TimePoint now) {
    if (is_lead() || alive_at_ == TimePoint::max() || (client_ && !client_->is_refused())) return;
    if (!retry_at_) {
        retry_at_ = now + retry_;
        retry_ = std::min(retry_ * 2, kLongestRetry);
        return;
    }
    if (now < *retry_at_) return;
    retry_at_.reset();
    client_.reset();  // Its descriptor leaves the epoll set as it closes.
    auto client = ClientSocket::connect(*wire_, client_options_);
    if (!client || !watch((*client)->fd())) return;
    client_ = std::move(*client);
    alive_at_ = now;
}

// ---- Sending.

proto::GangMessage GangLinkImpl::message_to(std::uint32_t node_index) const {
    proto::GangMessage message;
    *message.mutable_id() = options_.id;
    message.set_from(options_.node_index);
    message.set_to(node_index);
    return message;
}

bool GangLinkImpl::deliver(proto::GangMessage message) {
    if (message.to() == options_.node_index) {
        to_ourselves_.push_back(std::move(message));
        wake();
        return true;
    }
    return post(message);
}

// The lead keeps what is for a node that has not connected yet; the others what they say before Launch.
bool GangLinkImpl::post(const proto::GangMessage& message) {
    std::string bytes = message.SerializeAsString();
    if (!is_lead()) {
        if (client_) return client_->send(bytes);
        if (!message.has_alive()) unsent_to_lead_.push_back(std::move(bytes));
        return true;
    }
    const auto route = routes_.find(message.to());
    if (route == routes_.end()) {
        if (!message.has_alive()) unsent_[message.to()].push_back(std::move(bytes));
        return true;
    }
    return server_->send(route->second, bytes);
}

TimePoint GangLinkImpl::next_deadline() const {
    return retry_at_ ? std::min(alive_at_, *retry_at_) : alive_at_;
}

void GangLinkImpl::tick(TimePoint now) {
    reconnect_when_refused(now);
    if (now < alive_at_) return;
    alive_at_ = now + kAliveEvery;
    if (is_lead()) {
        for (const auto& [index, route] : routes_) {
            auto message = message_to(index);
            message.mutable_alive();
            post(message);
        }
        return;
    }
    auto message = message_to(kLead);
    message.mutable_alive();
    post(message);
    for (const proto::Fence& part : fences_.unanswered()) {
        auto again = message_to(kLead);
        *again.mutable_fence() = part;
        post(again);
    }
}

// ---- Receiving.

void GangLinkImpl::handle() {
    std::uint64_t count = 0;
    while (::read(woken_.get(), &count, sizeof count) < 0 && errno == EINTR) {
    }
    for (const proto::GangMessage& message : std::exchange(to_ourselves_, {})) dispatch(message);
    if (server_) receive_from_peers();
    if (client_) receive_from_lead();
}

void GangLinkImpl::receive_from_peers() {
    while (auto incoming = server_->receive()) {
        const auto index = indices_.find(incoming->sender.row);
        proto::GangMessage message;
        if (index == indices_.end() || !message.ParseFromString(incoming->payload) || message.from() != index->second) {
            log_warn("gang_message_dropped from={} bytes={}", incoming->sender.name, incoming->payload.size());
            continue;
        }
        heard_[index->second] = now().steady;
        std::string& route = routes_[index->second];
        if (route != incoming->route) {
            route = incoming->route;
            for (const std::string& bytes : std::exchange(unsent_[index->second], {})) server_->send(route, bytes);
        }
        on_message(message);
    }
}

void GangLinkImpl::receive_from_lead() {
    while (auto payload = client_->receive()) {
        proto::GangMessage message;
        if (!message.ParseFromString(*payload)) {
            log_warn("gang_message_dropped from=lead bytes={}", payload->size());
            continue;
        }
        heard_[kLead] = now().steady;
        retry_ = kFirstRetry;
        on_message(message);
    }
    reconnect_when_refused(now().steady);
}

void GangLinkImpl::on_message(const proto::GangMessage& message) {
    if (message.id().job() != options_.id.job() || message.id().attempt() != options_.id.attempt()) return;
    if (message.to() == options_.node_index) {
        dispatch(message);
    } else if (is_lead() && message.to() < options_.gang.size()) {
        post(message);
    }
}

void GangLinkImpl::dispatch(const proto::GangMessage& message) {
    const auto call = [](const auto& event, const auto&... arguments) {
        if (event) event(arguments...);
    };
    switch (message.body_case()) {
        case proto::GangMessage::kFence: on_fence_part(message.from(), message.fence()); break;
        case proto::GangMessage::kFenceDone:
            // An answer that comes again, to a part that was sent again, is none.
            if (fences_.forget(message.fence_done().key())) call(events_.fence_done, message.fence_done());
            break;
        case proto::GangMessage::kModexRequest: {
            const std::uint64_t number = next_asked_++;
            asked_[number] = {message.from(), message.modex_request().request()};
            call(events_.modex_request, number, message.modex_request().name_space(), message.modex_request().rank());
            break;
        }
        case proto::GangMessage::kModexReply:
            call(events_.modex_reply, message.modex_reply().request(), message.modex_reply().status(), message.modex_reply().blob());
            break;
        case proto::GangMessage::kRelay: call(events_.relay, message.relay()); break;
        case proto::GangMessage::kStartStep: call(events_.start_step, message.start_step()); break;
        case proto::GangMessage::kStopStep: call(events_.stop_step, message.stop_step()); break;
        case proto::GangMessage::kStepExit: call(events_.step_exit, message.from(), message.step_exit()); break;
        case proto::GangMessage::kStepOutput: call(events_.step_output, message.from(), message.step_output()); break;
        case proto::GangMessage::kAlive:
        case proto::GangMessage::BODY_NOT_SET: break;
    }
}

// ---- Fences.

void GangLinkImpl::add_gang(const std::string& name_space, const std::vector<proto::Placement>& gang) {
    gangs_[name_space] = gang;
    std::vector<GangFences::Range> ranges;
    for (const proto::Placement& placement : gang) {
        const auto index = index_of(placement.node());
        if (index && placement.rank_count() > 0) ranges.push_back({*index, placement.first_rank(), placement.rank_count()});
    }
    answer_fences(fences_.add_gang(name_space, std::move(ranges)));
}

void GangLinkImpl::fence(const std::string& key, const std::string& blob, bool partial) {
    auto message = message_to(kLead);
    message.mutable_fence()->set_key(key);
    message.mutable_fence()->set_blob(blob);
    message.mutable_fence()->set_partial(partial);
    fences_.remember(message.fence());
    deliver(std::move(message));
}

void GangLinkImpl::on_fence_part(std::uint32_t node_index, const proto::Fence& part) {
    if (!is_lead()) return;
    if (!fences_.was_answered(part.key())) return answer_fences(fences_.add(node_index, part));
    for (const proto::FenceDone& answer : fences_.add(node_index, part)) {
        auto message = message_to(node_index);
        *message.mutable_fence_done() = answer;
        deliver(std::move(message));
    }
}

void GangLinkImpl::answer_fences(const std::vector<proto::FenceDone>& done) {
    if (!is_lead()) return;
    for (const proto::FenceDone& answer : done) {
        for (const std::uint32_t index : fences_.participants(answer.key())) {
            auto message = message_to(index);
            *message.mutable_fence_done() = answer;
            deliver(std::move(message));
        }
    }
}

void GangLinkImpl::fail_gang(const std::string& name_space) {
    if (is_lead()) answer_fences(fences_.fail(name_space));
    for (const proto::FenceDone& answer : fences_.fail_unanswered(name_space)) {
        auto message = message_to(options_.node_index);
        *message.mutable_fence_done() = answer;
        deliver(std::move(message));
    }
}

// ---- Everything else goes through.

std::optional<std::uint32_t> GangLinkImpl::index_of(const std::string& node) const {
    for (std::uint32_t i = 0; i < options_.gang.size(); ++i) {
        if (options_.gang[i].node() == node) return i;
    }
    return std::nullopt;
}

std::optional<std::uint32_t> GangLinkImpl::node_of(const std::string& name_space, std::uint32_t rank) const {
    const auto found = gangs_.find(name_space);
    for (const proto::Placement& placement : found == gangs_.end() ? options_.gang : found->second) {
        if (rank >= placement.first_rank() && rank - placement.first_rank() < placement.rank_count()) {
            return index_of(placement.node());
        }
    }
    return std::nullopt;
}

void GangLinkImpl::ask_modex(std::uint64_t request, const std::string& name_space, std::uint32_t rank) {
    const auto index = gangs_.count(name_space) != 0 ? node_of(name_space, rank) : std::nullopt;
    auto message = message_to(index.value_or(options_.node_index));
    if (index) {
        message.mutable_modex_request()->set_request(request);
        message.mutable_modex_request()->set_name_space(name_space);
        message.mutable_modex_request()->set_rank(rank);
    } else {
        message.mutable_modex_reply()->set_request(request);
        message.mutable_modex_reply()->set_status(-46);  // PMIX_ERR_NOT_FOUND, without libpmix's header
    }
    deliver(std::move(message));
}

void GangLinkImpl::answer_modex(std::uint64_t request, int status, const std::string& blob) {
    const auto asked = asked_.find(request);
    if (asked == asked_.end()) return;
    auto message = message_to(asked->second.node_index);
    message.mutable_modex_reply()->set_request(asked->second.request);
    message.mutable_modex_reply()->set_status(status);
    message.mutable_modex_reply()->set_blob(blob);
    asked_.erase(asked);
    deliver(std::move(message));
}

bool GangLinkImpl::send_relay(const std::string& name_space, proto::WorkerRelay relay) {
    const auto index = node_of(name_space, relay.to_rank());
    if (!index) return false;
    auto message = message_to(*index);
    *message.mutable_relay() = std::move(relay);
    return deliver(std::move(message));
}

void GangLinkImpl::send_start_step(const proto::StartStep& step, std::uint32_t node_index) {
    auto message = message_to(node_index);
    *message.mutable_start_step() = step;
    deliver(std::move(message));
}

void GangLinkImpl::send_stop_step(const proto::StopStep& step, std::uint32_t node_index) {
    auto message = message_to(node_index);
    *message.mutable_stop_step() = step;
    deliver(std::move(message));
}

void GangLinkImpl::send_step_exit(const proto::StepExit& exit) {
    auto message = message_to(kLead);
    *message.mutable_step_exit() = exit;
    deliver(std::move(message));
}

void GangLinkImpl::send_step_output(const proto::StepOutput& output) {
    auto message = message_to(kLead);
    *message.mutable_step_output() = output;
    deliver(std::move(message));
}

Duration GangLinkImpl::silent_for(std::uint32_t node_index, TimePoint now) const {
    const auto heard = heard_.find(node_index);
    return heard == heard_.end() || node_index == options_.node_index ? Duration::zero() : now - heard->second;
}

}  // namespace

Result<std::unique_ptr<GangLink>> GangLink::prepare(const GangLinkOptions& options, GangEvents events) {
    auto link = std::make_unique<GangLinkImpl>(options, std::move(events));
    if (auto opened = link->open(); !opened) return opened.error();
    return std::unique_ptr<GangLink>(std::move(link));
}

}  // namespace gangline::runner
