#include "coordinator/server/server.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "coordinator/server/authorisation.h"
#include "coordinator/server/start.h"

namespace gangline::coordinator {
namespace {

constexpr int kMostOfABatch = 4096;           // messages of one socket taken in one turn
constexpr Duration kLookAtFile = seconds(1);
constexpr Duration kLongestWait = seconds(60);

// The attempt that a message of a node is about; nothing when it is about none.
const proto::AttemptId* attempt_of(const proto::NodeMessage& message) {
    switch (message.body_case()) {
        case proto::NodeMessage::kReport: return &message.report().id();
        case proto::NodeMessage::kCommit: return &message.commit().id();
        case proto::NodeMessage::kDamaged: return &message.damaged().id();
        case proto::NodeMessage::kFault: return &message.fault().id();
        case proto::NodeMessage::kHello:
        case proto::NodeMessage::kHeartbeat:
        case proto::NodeMessage::kLogData:
        case proto::NodeMessage::BODY_NOT_SET: return nullptr;
    }
    return nullptr;
}

// Orders that a shepherd hears on its own line while its agent is silent.
const proto::AttemptId* shepherds_order(const proto::Order& order) {
    switch (order.body_case()) {
        case proto::Order::kStop: return &order.stop().id();
        case proto::Order::kCommit: return &order.commit().id();
        case proto::Order::kRelease: return &order.release().id();
        case proto::Order::kWelcome:
        case proto::Order::kHeartbeat:
        case proto::Order::kPrepare:
        case proto::Order::kLaunch:
        case proto::Order::kLogs:
        case proto::Order::kBye:
        case proto::Order::BODY_NOT_SET: return nullptr;
    }
    return nullptr;
}

// The verified name replaces whatever the body says.
void put_name(const std::string& node, proto::NodeMessage& message) {
    if (message.has_hello()) {
        message.mutable_hello()->mutable_node()->set_name(node);
        for (auto& report : *message.mutable_hello()->mutable_attempts()) report.set_node(node);
    } else if (message.has_heartbeat()) {
        for (auto& report : *message.mutable_heartbeat()->mutable_progress()) report.set_node(node);
    } else if (message.has_report()) {
        message.mutable_report()->set_node(node);
    }
}

timespec as_timespec(Duration wait) {
    const auto whole = std::chrono::duration_cast<seconds>(wait);
    return {static_cast<time_t>(whole.count()), static_cast<long>((wait - whole).count())};
}

const char* role_name(Role role) {
    switch (role) {
        case Role::None: return "none";
        case Role::User: return "user";
        case Role::Operator: return "operator";
        case Role::Admin: return "admin";
    }
    return "none";
}

}  // namespace

Server::Server(ServerParts parts)
    : parts_(std::move(parts)),
      identities_({.own_uid = ::geteuid(),
                   .least_uid = static_cast<uid_t>(parts_.options.min_uid),
                   .allow_root = parts_.options.allow_root}),
      gang_keys_(parts_.table),
      watch_(parts_.options.authorised_path()),
      now_(now()) {
    next_look_ = now_.steady + kLookAtFile;
}

Result<void> Server::take_office() {
    now_ = now();
    return perform(parts_.brain.step(TookOffice{parts_.store.epoch(), parts_.coordinator_id}, now_));
}

// ---- the loop

Duration Server::time_to_wait(TimePoint at) const {
    TimePoint until = std::min(at + kLongestWait, next_look_);
    if (const auto brain = parts_.brain.next_deadline()) until = std::min(until, *brain);
    if (const auto relay = relays_.next_deadline()) until = std::min(until, *relay);
    return std::max(until - at, Duration(0));
}

Result<void> Server::serve(int signal_fd, int lifeline_fd) {
    bool more = true;
    for (;;) {
        pollfd waiting[] = {
            {parts_.users.fd(), POLLIN, 0}, {parts_.nodes.fd(), POLLIN, 0}, {signal_fd, POLLIN, 0}, {lifeline_fd, POLLIN, 0}};
        const timespec wait = as_timespec(more ? Duration(0) : time_to_wait(now().steady));
        if (::ppoll(waiting, std::size(waiting), &wait, nullptr) < 0 && errno != EINTR) return errno_error("cannot wait");
        if (waiting[2].revents != 0) {
            signalfd_siginfo info = {};
            while (::read(signal_fd, &info, sizeof info) == sizeof info) {
                if (info.ssi_signo == SIGHUP) {
                    reload_authorised();
                    continue;
                }
                log_info("stopping signal={} from_pid={}", info.ssi_signo, info.ssi_pid);
                return {};
            }
        }
        if (waiting[3].revents != 0) {
            char byte = 0;
            if (::read(lifeline_fd, &byte, 1) <= 0) {
                log_info("stopping because=\"the lifeline has ended\"");
                return {};
            }
        }
        auto turned = turn();
        if (!turned) return turned.error();
        more = *turned;
    }
}

Result<bool> Server::turn() {
    now_ = now();
    std::vector<Event> events;
    bool more = true;
    for (int i = 0; i < kMostOfABatch && more; ++i) {
        auto incoming = parts_.nodes.receive();
        more = incoming.has_value();
        if (more) hear_node(std::move(*incoming), events);
    }
    const bool more_nodes = more;
    more = true;
    for (int i = 0; i < kMostOfABatch && more; ++i) {
        auto incoming = parts_.users.receive();
        more = incoming.has_value();
        if (more) hear_user(std::move(*incoming), events);
    }
    const auto deadline = parts_.brain.next_deadline();
    if (events.empty() && deadline && *deadline <= now_.steady) events.emplace_back(Tick{});
    if (!events.empty()) {
        if (auto done = perform(parts_.brain.step(events, now_)); !done) return done.error();
    }
    for (Read& read : std::exchange(reads_, {})) answer(std::move(read));
    for (const LogRelays::Answer& late : relays_.expire(now_.steady)) send_response(late.asker, late.response);
    if (now_.steady >= next_look_) {
        next_look_ = now_.steady + kLookAtFile;
        if (watch_.has_changed()) reload_authorised();
    }
    return more || more_nodes;
}

// ---- people

void Server::hear_user(Incoming incoming, std::vector<Event>& events) {
    Asker asker{std::move(incoming.route), 0};
    proto::Request request;
    if (!request.ParseFromString(incoming.payload)) return refuse(asker, proto::USAGE, "this request cannot be read: is the client of another version?");
    asker.request = request.id();
    const auto verb = request.body_case();
    if (request.has_task()) {
        if (auto why = parts_.brain.resolve_task(request); !why.empty()) return refuse(asker, proto::REFUSED, std::move(why));
    }
    const std::uint64_t job = job_of(request);
    const auto owner = job != 0 ? parts_.brain.owner(job) : std::nullopt;
    if (auto why = refusal(incoming.sender, request, owner)) {
        log_warn("refused user={} verb=\"{}\" job={}", incoming.sender.name, verb_name(verb), job);
        return refuse(asker, proto::REFUSED, std::move(*why));
    }
    if (!is_change(verb)) {
        reads_.push_back({std::move(asker), std::move(incoming.sender), std::move(request)});
        return;
    }
    Caller caller = Identities::name_of(incoming.sender);
    if (verb == proto::Request::kSubmit) {
        auto account = identities_.account_of(incoming.sender.name, now_.steady);
        if (!account) return refuse(asker, proto::REFUSED, account.error().message);
        account->is_operator = caller.is_operator;
        caller = std::move(*account);
    }
    const Tag tag = next_tag_++;
    askers_.emplace(tag, std::move(asker));
    events.emplace_back(FromUser{tag, std::move(caller), std::move(request)});
}

void Server::answer(Read read) {
    if (read.request.has_read_logs()) return relay_logs(read);
    proto::Response response = parts_.brain.answer(Identities::name_of(read.sender), read.request, now_);
    response.set_id(read.asker.request);
    if (read.request.has_list_jobs()) redact_queue(read.sender, response);
    if (response.has_pong()) {
        response.mutable_pong()->set_role(role_name(read.sender.role));
        response.mutable_pong()->set_pid(::getpid());
    }
    send_response(read.asker, response);
}

void Server::relay_logs(const Read& read) {
    const proto::ReadLogs& wish = read.request.read_logs();
    if (!parts_.brain.owner(wish.job())) return refuse(read.asker, proto::REFUSED, fmt::format("there is no job {}", wish.job()));
    std::uint32_t attempt = wish.attempt();
    const auto gang = parts_.brain.gang_of(wish.job(), attempt);
    if (gang.empty()) {
        return refuse(read.asker, proto::REFUSED,
                      wish.attempt() == 0 ? fmt::format("job {} has not started yet: it has no output", wish.job())
                                          : fmt::format("job {} has no attempt {}", wish.job(), wish.attempt()));
    }
    const std::string node = wish.node().empty() ? gang.front().node() : wish.node();
    const bool is_there = std::any_of(gang.begin(), gang.end(), [&](const auto& place) { return place.node() == node; });
    if (!is_there) {
        std::string places;
        for (const auto& place : gang) places += (places.empty() ? "" : ", ") + place.node();
        return refuse(read.asker, proto::REFUSED, fmt::format("attempt {} of job {} did not run on {}: it ran on {}", attempt, wish.job(), node, places));
    }
    if (!lines_.route_of(node)) {
        return refuse(read.asker, proto::UNREACHABLE, fmt::format("node {} is not connected: the output is kept there; try again when it is back", node));
    }
    proto::Order order;
    proto::LogRequest& ask = *order.mutable_logs();
    ask.mutable_id()->set_job(wish.job());
    ask.mutable_id()->set_attempt(attempt);
    ask.set_request(relays_.add(read.asker, node, now_.steady));
    ask.set_offset(wish.offset());
    ask.set_limit_bytes(wish.limit_bytes());
    ask.set_tail(wish.tail());
    send_order(node, std::move(order));
}

void Server::refuse(const Asker& asker, proto::Outcome outcome, std::string message) {
    proto::Response response;
    response.set_id(asker.request);
    response.set_outcome(outcome);
    response.set_message(std::move(message));
    send_response(asker, response);
}

void Server::send_response(const Asker& asker, const proto::Response& response) {
    if (!parts_.users.send(asker.route, response.SerializeAsString())) log_debug("response_lost request={}", asker.request);
}

// ---- nodes

void Server::hear_node(Incoming incoming, std::vector<Event>& events) {
    const std::string node = incoming.sender.name;
    proto::NodeMessage message;
    if (!message.ParseFromString(incoming.payload) || message.body_case() == proto::NodeMessage::BODY_NOT_SET) {
        log_warn("message_unreadable node={} bytes={}", node, incoming.payload.size());
        return;
    }
    put_name(node, message);
    if (incoming.sender.kind == PrincipalKind::Shepherd) return hear_shepherd(incoming, std::move(message), events);
    if (incoming.sender.kind != PrincipalKind::Node) return;
    const Hearing hearing = lines_.hear(node, incoming.route, message, now_.steady);
    if (hearing.replaced_route) {
        log_warn("agent_replaced node={}", node);
        say_bye(*hearing.replaced_route, fmt::format("another agent of node {} has connected", node));
    }
    switch (hearing.what) {
        case Hearing::What::Dropped: return;
        case Hearing::What::Superseded: return say_bye(incoming.route, fmt::format("a newer agent of node {} has taken over", node));
        case Hearing::What::Elsewhere:
            log_warn("agent_turned_away node={} boot_id={}", node, message.hello().node().boot_id());
            return say_bye(incoming.route, fmt::format("another machine serves as node {}: stop its agent first, or give this one a key and --node of its own", node));
        case Hearing::What::AskHello: {
            proto::Order order;
            order.mutable_welcome()->set_send_hello(true);
            order.mutable_welcome()->set_heartbeat_ms(static_cast<std::uint64_t>(parts_.options.heartbeat_ms));
            return send_order_to(incoming.route, std::move(order));
        }
        case Hearing::What::Counts: break;
    }
    if (message.has_log_data()) {
        if (auto reply = relays_.take(node, std::move(*message.mutable_log_data()))) send_response(reply->asker, reply->response);
        return;
    }
    if (message.has_hello()) log_info("node_hello node={} agent={} attempts={}", node, message.hello().agent_id(), message.hello().attempts_size());
    note_gang_keys(node, message);
    events.emplace_back(FromNode{node, std::move(message), false});
}

void Server::hear_shepherd(const Incoming& incoming, proto::NodeMessage message, std::vector<Event>& events) {
    const Principal& shepherd = incoming.sender;
    const proto::AttemptId* id = attempt_of(message);
    if (id == nullptr || id->job() != shepherd.job || id->attempt() != shepherd.attempt) {
        log_warn("shepherd_refused node={} attempt={}.{}", shepherd.name, shepherd.job, shepherd.attempt);
        return;
    }
    lines_.hear_shepherd({shepherd.name, shepherd.job, shepherd.attempt}, incoming.route);
    events.emplace_back(FromNode{shepherd.name, std::move(message), true});
}

void Server::note_gang_keys(const std::string& node, const proto::NodeMessage& message) {
    if (message.has_report()) note_gang_key(node, message.report());
    for (const auto& report : message.hello().attempts()) note_gang_key(node, report);
    for (const auto& report : message.heartbeat().progress()) note_gang_key(node, report);
}

void Server::note_gang_key(const std::string& node, const proto::AttemptReport& report) {
    const PartId part{node, report.id().job(), report.id().attempt()};
    if (report.phase() == proto::ATTEMPT_GONE) {
        gang_keys_.remove(part);
        lines_.forget_shepherd(part);
        return;
    }
    if (report.gang_key().empty() || part.attempt == 0 || gang_keys_.knows(part, report.gang_key())) return;
    std::uint32_t attempt = part.attempt;
    const auto gang = parts_.brain.gang_of(part.job, attempt);
    const bool is_placed = std::any_of(gang.begin(), gang.end(), [&](const auto& place) { return place.node() == node; });
    if (!is_placed) return;
    if (auto added = gang_keys_.add(part, report.gang_key()); !added) log_warn("gang_key_refused because=\"{}\"", added.error().message);
}

void Server::say_bye(const std::string& route, std::string reason) {
    proto::Order order;
    order.mutable_bye()->set_reason(std::move(reason));
    send_order_to(route, std::move(order));
}

// ---- actions

Result<void> Server::perform(std::vector<Action> actions) {
    std::vector<proto::Record> records;
    for (Action& action : actions) {
        if (auto* persist = std::get_if<Persist>(&action)) {
            records.push_back(std::move(persist->record));
            if (records.back().epoch() == 0) records.back().set_epoch(parts_.store.epoch());
            if (records.back().unix_ms() == 0) records.back().set_unix_ms(now_.unix_ms);
        }
    }
    if (auto stored = parts_.store.append(records); !stored) return stored;
    for (Action& action : actions) {
        if (auto* reply = std::get_if<Reply>(&action)) {
            const auto asker = askers_.find(reply->tag);
            if (asker == askers_.end()) continue;
            reply->response.set_id(asker->second.request);
            send_response(asker->second, reply->response);
            askers_.erase(asker);
        } else if (auto* order = std::get_if<SendOrder>(&action)) {
            send_order(order->node, std::move(order->order));
        }
    }
    return {};
}

void Server::send_order(const std::string& node, proto::Order order) {
    if (order.has_prepare()) fill_prepare(node, *order.mutable_prepare());
    const proto::AttemptId* id = shepherds_order(order);
    const std::optional<PartId> part = id != nullptr ? std::optional<PartId>({node, id->job(), id->attempt()}) : std::nullopt;
    const bool is_last = order.has_release();
    if (part && lines_.is_silent(node, now_.steady)) {
        if (const auto route = lines_.shepherd_route(*part)) send_order_to(*route, order);
    }
    if (const auto route = lines_.route_of(node)) send_order_to(*route, std::move(order));
    if (part && is_last) {
        gang_keys_.remove(*part);
        lines_.forget_shepherd(*part);
    }
}

void Server::send_order_to(const std::string& route, proto::Order order) {
    order.set_coordinator_id(parts_.coordinator_id);
    order.set_epoch(parts_.store.epoch());
    if (!parts_.nodes.send(route, order.SerializeAsString())) log_debug("order_lost kind={}", static_cast<int>(order.body_case()));
}

void Server::fill_prepare(const std::string& node, proto::Prepare& prepare) {
    prepare.set_coordinator_endpoint(reachable(parts_.nodes.endpoint()));
    prepare.set_coordinator_key(parts_.nodes.public_key());
    const auto account = identities_.account_of(prepare.user(), now_.steady);
    if (!account) {  // The node refuses to become a user without a ticket.
        log_warn("no_ticket node={} job={} because=\"{}\"", node, prepare.id().job(), account.error().message);
        return;
    }
    proto::TicketClaims claims;
    claims.set_cluster(parts_.options.cluster);
    claims.set_node(node);
    *claims.mutable_id() = prepare.id();
    claims.set_user(prepare.user());
    claims.set_uid(account->uid);
    claims.set_gid(account->gid);
    for (const std::uint32_t group : account->groups) claims.add_groups(group);
    claims.set_spec_sha256(sha256(prepare.spec().SerializeAsString()));
    claims.set_epoch(parts_.store.epoch());
    claims.set_expires_unix_ms(now_.unix_ms + kTicketLifeMs);
    claims.set_nonce(new_nonce());
    *prepare.mutable_ticket() = make_ticket(parts_.ticket_secret, claims);
}

// ---- the allow-list

void Server::reload_authorised() {
    auto principals = load_authorised(parts_.options);
    if (!principals) {
        log_error("authorised_not_reloaded because=\"{}\" remedy=\"correct it; the earlier list stays in force\"", principals.error().message);
        return;
    }
    const std::size_t before = parts_.table.size();
    for (const std::string& node : lines_.nodes()) {
        const bool stays = std::any_of(principals->begin(), principals->end(),
                                       [&](const Principal& p) { return p.kind == PrincipalKind::Node && p.name == node; });
        if (stays) continue;
        log_warn("node_revoked node={}", node);
        if (const auto route = lines_.route_of(node)) say_bye(*route, "this node's key is no longer authorised");
        lines_.forget(node);
        gang_keys_.remove_node(node);
    }
    parts_.table.replace(PrincipalKind::Node, PrincipalKind::User, std::move(*principals));
    log_info("authorised_reloaded keys_before={} keys={}", before, parts_.table.size());
}

}  // namespace gangline::coordinator
