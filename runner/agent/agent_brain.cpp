#include "runner/agent/agent_brain.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace gangline::runner {
namespace {

// What the agent itself says of a dead shepherd outdoes all that it said, also over its own line.
constexpr std::uint64_t kOurRevision = std::uint64_t{1} << 40;
constexpr Duration kSpareMemory = seconds(10);
constexpr Duration kAbandonSlack = seconds(2);
constexpr Duration kLeavingLimit = seconds(8);
constexpr Duration kKeeperLeavingLimit = seconds(310);  // it brings to disk what is not there yet, and ends by itself after five minutes
constexpr Duration kReapLimit = seconds(10);      // then execd has died over it: asked again
constexpr std::uint32_t kManyUnanswered = 20;     // beats; from then on each fourth, so that no queue of old news builds up

// What is worth telling at once: everything but progress and process states.
std::string digest_of(const proto::AttemptReport& report) {
    std::string digest = fmt::format("{}|{}|{}|{}|{}|{}", static_cast<int>(report.phase()), report.failure(), report.gang_key(),
                                     report.gang_endpoint(), report.script_ended(), report.master_port());
    for (const auto& rank : report.ranks()) {
        digest += fmt::format("|{}.{}:{}:{}:{}:{}", rank.step_id(), rank.rank(), rank.pid(), static_cast<int>(rank.state()), rank.exit_code(), rank.signal());
    }
    for (const auto& fault : report.faults()) digest += "|" + fault;
    return digest;
}

bool is_keeper(const std::string& spool_folder) { return spool_folder.starts_with("keeper-"); }

}  // namespace

std::string AgentBrain::spool_name(const proto::AttemptId& id) { return fmt::format("{}-{}", id.job(), id.attempt()); }

AgentBrain::AgentBrain(AgentOptions options) : options_(std::move(options)) {}

std::vector<AgentAction> AgentBrain::step(const AgentEvent& event, const Now& now) {
    now_ = now;
    actions_.clear();
    std::visit([this](const auto& one) { handle(one); }, event);
    first_hello();
    return std::move(actions_);
}

std::optional<TimePoint> AgentBrain::next_deadline() const {
    TimePoint next = next_beat_;
    if (refill_at_) next = std::min(next, *refill_at_);
    if (hello_by_) next = std::min(next, *hello_by_);
    if (abandon_by_) next = std::min(next, *abandon_by_);
    for (const auto& [name, leaving] : leaving_) next = std::min(next, leaving.deadline);
    for (const auto& [key, attempt] : attempts_) {
        if (attempt.deadline) next = std::min(next, *attempt.deadline);
    }
    return next;
}

void AgentBrain::tell(proto::NodeMessage message) {
    message.set_sequence(++sequence_);
    actions_.push_back(Tell{std::move(message)});
}

std::string AgentBrain::cgroup_of(Key key) const {
    return options_.cgroups ? fmt::format("gangline/{}/{}/{}.{}", options_.cluster, options_.node.name(), key.job, key.attempt) : "";
}

proto::ToShepherd AgentBrain::identity(const std::string& spool) const {
    proto::ToShepherd message;
    auto& identity = *message.mutable_identity();
    identity.set_node(options_.node.name());
    identity.set_cluster(options_.cluster);
    identity.set_spool_folder(spool);
    identity.set_address(options_.node.address());
    identity.set_agent_id(options_.agent_id);
    return message;
}

AgentBrain::Attempt* AgentBrain::by_socket(const std::string& name, Key& key) {
    for (auto& [one, attempt] : attempts_) {
        if (attempt.note.socket_name != name) continue;
        key = one;
        return &attempt;
    }
    return nullptr;
}

AgentBrain::Spare* AgentBrain::spare_by_socket(const std::string& name) {
    const auto found = std::find_if(spares_.begin(), spares_.end(), [&](const Spare& spare) { return spare.socket_name == name; });
    return found == spares_.end() ? nullptr : &*found;
}

// ---- the coordinator

void AgentBrain::hello() {
    proto::NodeMessage message;
    auto& hello = *message.mutable_hello();
    *hello.mutable_node() = options_.node;
    hello.set_agent_id(options_.agent_id);
    hello.set_coordinator_id(coordinator_id_);
    hello.set_highest_epoch(options_.highest_epoch);
    for (auto& [key, attempt] : attempts_) {
        *hello.add_attempts() = attempt.report;
        attempt.told = digest_of(attempt.report);
    }
    tell(std::move(message));
}

// When every shepherd that an earlier agent started has said what it is, or is known to be dead.
void AgentBrain::first_hello() {
    if (!hello_by_) return;
    const bool all_known = std::all_of(attempts_.begin(), attempts_.end(), [](const auto& entry) {
        return entry.second.state == State::Gone || entry.second.report.revision() > 0;
    });
    if (!all_known && now_.steady < *hello_by_) return;
    hello_by_.reset();
    hello();
}

void AgentBrain::beat() {
    proto::NodeMessage message;
    auto& beat = *message.mutable_heartbeat();
    beat.set_coordinator_id(coordinator_id_);
    for (const auto& [key, attempt] : attempts_) {
        const bool runs = attempt.state == State::Live && attempt.report.ranks_size() > 0;
        if (runs || attempt.state == State::Gone) *beat.add_progress() = attempt.report;
    }
    if (++unanswered_beats_ > kManyUnanswered && unanswered_beats_ % 4 != 0) return;
    tell(std::move(message));
}

void AgentBrain::handle(const FromCoordinator& event) {
    const proto::Order& order = event.order;
    unanswered_beats_ = 0;
    if (order.epoch() < options_.highest_epoch) {
        say(fmt::format("order_refused epoch={} highest={}", order.epoch(), options_.highest_epoch));
        return;
    }
    if (order.epoch() > options_.highest_epoch) {
        options_.highest_epoch = order.epoch();
        actions_.push_back(KeepEpoch{order.epoch()});
    }
    const bool is_new = order.coordinator_id() != coordinator_id_;
    coordinator_id_ = order.coordinator_id();
    switch (order.body_case()) {
        case proto::Order::kWelcome:
            if (order.welcome().heartbeat_ms() > 0) options_.heartbeat = milliseconds(order.welcome().heartbeat_ms());
            if (!order.welcome().send_hello()) welcome_ = true;
            else if (!hello_by_) hello();
            return;
        case proto::Order::kHeartbeat:
            if (is_new && !hello_by_) hello();
            return;
        case proto::Order::kPrepare: return prepare(order.prepare());
        case proto::Order::kLaunch: return launch(order.launch());
        case proto::Order::kStop: return stop(order.stop());
        case proto::Order::kRelease: return release(order.release());
        case proto::Order::kCommit: {
            const auto found = attempts_.find({order.commit().id().job(), order.commit().id().attempt()});
            if (found == attempts_.end() || !found->second.connected) return;
            proto::ToShepherd message;
            *message.mutable_commit() = order.commit();
            actions_.push_back(TellShepherd{found->second.note.socket_name, std::move(message)});
            return;
        }
        case proto::Order::kLogs: {
            const Key key{order.logs().id().job(), order.logs().id().attempt()};
            const auto found = attempts_.find(key);
            const bool ended = found == attempts_.end() || found->second.state == State::Gone;
            const std::string spool = found == attempts_.end() ? spool_name(order.logs().id()) : found->second.note.spool_folder;
            actions_.push_back(ReadLog{order.logs(), spool, ended});
            return;
        }
        case proto::Order::kBye:
            handle(Leave{});
            actions_.push_back(Exit{3, "the coordinator closed this line: " + order.bye().reason()});
            return;
        case proto::Order::BODY_NOT_SET: return;
    }
}

// ---- prepare and launch

bool AgentBrain::cards_are_free(Key key, const proto::Prepare& order) const {
    const auto& mine = order.gang(static_cast<int>(order.node_index()));
    const std::set<std::uint32_t> wanted(mine.cards().begin(), mine.cards().end());
    for (const auto& [other, attempt] : attempts_) {
        if (other == key || attempt.state == State::Gone || attempt.state == State::Waiting) continue;
        const proto::Prepare& held = attempt.note.prepare;
        if (held.gang_size() <= static_cast<int>(held.node_index())) continue;
        const auto& cards = held.gang(static_cast<int>(held.node_index())).cards();
        if (std::any_of(cards.begin(), cards.end(), [&](std::uint32_t card) { return wanted.contains(card); })) return false;
    }
    return true;
}

void AgentBrain::prepare(const proto::Prepare& order) {
    if (abandoned_) return;
    const Key key{order.id().job(), order.id().attempt()};
    if (const auto found = attempts_.find(key); found != attempts_.end()) return tell_report(found->second, true);
    Attempt& attempt = attempts_[key];
    attempt.note.prepare = order;
    attempt.note.spool_folder = spool_name(order.id());
    *attempt.report.mutable_id() = order.id();
    attempt.report.set_node(options_.node.name());
    attempt.report.set_phase(proto::ATTEMPT_PREPARING);
    if (order.gang_size() <= static_cast<int>(order.node_index())) {
        attempt.failure = "the order names no place for this node";
        return gone(key, attempt);
    }
    if (std::string why = why_not_ours(order); !why.empty()) {
        attempt.failure = std::move(why);
        return gone(key, attempt);
    }
    if (cards_are_free(key, order)) begin(key, attempt);
}

// Without an execd we can become nobody: only our own user's jobs run here, or any user would run as us (R5).
std::string AgentBrain::why_not_ours(const proto::Prepare& order) const {
    if (options_.node.multi_user()) return "";
    proto::TicketClaims claims;
    const bool has_ticket = !order.ticket().claims().empty() && claims.ParseFromString(order.ticket().claims());
    if (has_ticket ? claims.uid() == options_.uid : options_.user.empty() || order.user() == options_.user) return "";
    return fmt::format("this node's agent runs as '{}' (uid {}) and serves that user alone; '{}' needs a node with gangline execd", options_.user,
                       options_.uid, order.user());
}

void AgentBrain::take_waiting() {
    for (auto& [key, attempt] : attempts_) {
        if (attempt.state == State::Waiting && cards_are_free(key, attempt.note.prepare)) begin(key, attempt);
    }
}

void AgentBrain::begin(Key key, Attempt& attempt) {
    if (take_spare(attempt)) {
        attempt.state = State::Live;
        return send_prepared_state(key, attempt);
    }
    spawn_for(key, attempt);
}

bool AgentBrain::take_spare(Attempt& attempt) {
    std::uint32_t world = 0;
    for (const auto& place : attempt.note.prepare.gang()) world += place.rank_count();
    if (world < 2 && attempt.note.prepare.spec().script().empty()) return false;  // needs no PMIx server
    auto found = std::find_if(spares_.begin(), spares_.end(), [](const Spare& spare) { return spare.ready; });
    if (found == spares_.end()) found = std::find_if(spares_.begin(), spares_.end(), [](const Spare& spare) { return spare.connected; });
    if (found == spares_.end()) return false;
    attempt.note.socket_name = found->socket_name;
    attempt.note.shepherd = found->shepherd;
    attempt.note.spare_folder = found->spool_folder;
    actions_.push_back(KeepNote{attempt.note});  // before the other goes: the shepherd always has one
    attempt.connected = true;
    attempt.heard = now_.steady;
    actions_.push_back(DropNote{found->spool_folder});
    spares_.erase(found);
    spares_taken_.push_back(now_.steady);
    refill_at_ = now_.steady + options_.refill_delay;
    return true;
}

void AgentBrain::spawn_for(Key key, Attempt& attempt) {
    attempt.state = State::Spawning;
    attempt.request = next_request_++;
    attempt.deadline = now_.steady + options_.spawn_limit;
    attempt.note.socket_name = fmt::format("gangline-{}-{}", options_.socket_seed, next_socket_++);
    proto::SpawnRequest request;
    const proto::Prepare& order = attempt.note.prepare;
    request.set_request(attempt.request);
    *request.mutable_id() = order.id();
    *request.mutable_ticket() = order.ticket();
    *request.mutable_spec() = order.spec();
    request.set_socket_name(attempt.note.socket_name);
    request.set_spool_folder(attempt.note.spool_folder);
    request.set_node(options_.node.name());
    request.set_address(options_.node.address());
    request.set_cgroup(cgroup_of(key));
    request.set_cards(static_cast<std::uint32_t>(options_.node.cards_size()));
    request.set_cluster(options_.cluster);
    actions_.push_back(Spawn{std::move(request)});
}

void AgentBrain::refill_spares() {
    refill_at_.reset();
    if (!options_.spares_allowed || abandoned_) return;
    std::erase_if(spares_taken_, [&](TimePoint at) { return at + kSpareMemory < now_.steady; });
    const std::size_t wanted = std::clamp<std::size_t>(spares_taken_.size(), 1, options_.most_spares);
    while (spares_.size() < wanted) {
        Spare spare;
        spare.request = next_request_++;
        spare.socket_name = fmt::format("gangline-{}-{}", options_.socket_seed, next_socket_++);
        spare.spool_folder = fmt::format("spare-{}-{}", started_ms_, next_spare_++);
        proto::SpawnRequest request;
        request.set_request(spare.request);
        request.set_socket_name(spare.socket_name);
        request.set_spool_folder(spare.spool_folder);
        request.set_node(options_.node.name());
        request.set_address(options_.node.address());
        request.set_warm(true);
        request.set_cards(static_cast<std::uint32_t>(options_.node.cards_size()));
        request.set_cluster(options_.cluster);
        actions_.push_back(Spawn{std::move(request)});
        spares_.push_back(std::move(spare));
    }
}

// Everything that this shepherd must have been told, again: it may have lost any of it with its connection.
void AgentBrain::send_prepared_state(Key key, Attempt& attempt) {
    (void)key;
    const std::string& name = attempt.note.socket_name;
    proto::ToShepherd message = identity(attempt.note.spool_folder);
    actions_.push_back(TellShepherd{name, message});
    message.Clear();
    *message.mutable_prepare() = attempt.note.prepare;
    actions_.push_back(TellShepherd{name, message});
    if (attempt.launch) {
        message.Clear();
        *message.mutable_launch() = *attempt.launch;
        actions_.push_back(TellShepherd{name, message});
    }
    if (attempt.stop) {
        message.Clear();
        *message.mutable_stop() = *attempt.stop;
        actions_.push_back(TellShepherd{name, message});
    }
}

void AgentBrain::launch(const proto::Launch& order) {
    const auto found = attempts_.find({order.id().job(), order.id().attempt()});
    if (found == attempts_.end()) return;  // the coordinator's next Hello from us tells it so
    Attempt& attempt = found->second;
    attempt.launch = order;
    if (attempt.state == State::Gone) return tell_report(attempt, true);
    if (!attempt.connected) return;
    proto::ToShepherd message;
    *message.mutable_launch() = order;
    actions_.push_back(TellShepherd{attempt.note.socket_name, std::move(message)});
}

// ---- stop, gone, release

void AgentBrain::stop(const proto::Stop& order) {
    const Key key{order.id().job(), order.id().attempt()};
    const auto found = attempts_.find(key);
    if (found == attempts_.end()) {
        Attempt unknown;
        *unknown.report.mutable_id() = order.id();
        unknown.report.set_node(options_.node.name());
        unknown.report.set_phase(proto::ATTEMPT_GONE);
        unknown.report.set_revision(kOurRevision);
        return tell_report(unknown, true);
    }
    Attempt& attempt = found->second;
    attempt.stop = order;
    switch (attempt.state) {
        case State::Waiting: return gone(key, attempt);
        case State::Gone: return tell_report(attempt, true);
        case State::Spawning:
        case State::Reaping: return;
        case State::Live: break;
    }
    attempt.deadline = now_.steady + milliseconds(order.grace_ms()) + (abandoned_ ? kAbandonSlack : options_.stop_slack);
    if (!attempt.connected) return;
    proto::ToShepherd message;
    *message.mutable_stop() = order;
    actions_.push_back(TellShepherd{attempt.note.socket_name, std::move(message)});
}

proto::ReapRequest AgentBrain::reap_request(Key key) const {
    proto::ReapRequest request;
    request.mutable_id()->set_job(key.job);
    request.mutable_id()->set_attempt(key.attempt);
    request.set_cgroup(cgroup_of(key));
    request.set_cluster(options_.cluster);
    request.set_node(options_.node.name());
    return request;
}

void AgentBrain::reap(Key key, Attempt& attempt, std::string why) {
    attempt.state = State::Reaping;
    attempt.connected = false;
    attempt.deadline = now_.steady + kReapLimit;
    attempt.failure = std::move(why);
    attempt.request = next_request_++;
    if (attempt.note.shepherd.pid != 0) actions_.push_back(KillShepherd{attempt.note.shepherd});
    proto::ReapRequest request = reap_request(key);
    request.set_request(attempt.request);
    actions_.push_back(Reap{std::move(request)});
}

void AgentBrain::gone(Key key, Attempt& attempt) {
    (void)key;
    attempt.state = State::Gone;
    attempt.deadline.reset();
    if (attempt.report.phase() != proto::ATTEMPT_GONE) {
        attempt.report.set_phase(proto::ATTEMPT_GONE);
        attempt.report.set_revision(attempt.report.revision() + kOurRevision);
        if (attempt.report.failure().empty()) attempt.report.set_failure(attempt.failure);
    }
    tell_report(attempt, false);
    take_waiting();
    exit_when_empty();
}

void AgentBrain::release(const proto::Release& order) {
    const auto found = attempts_.find({order.id().job(), order.id().attempt()});
    const bool is_gone = found != attempts_.end() && found->second.state == State::Gone;
    const bool has_other = std::any_of(attempts_.begin(), attempts_.end(), [&](const auto& one) {
        return one.first.job == order.id().job() && !(is_gone && one.first.attempt == order.id().attempt());
    });
    if (!order.keep_snapshots() && !has_other) let_keeper_go(order.id().job());
    if (!is_gone) return;
    const AttemptNote note = found->second.note;
    const bool connected = found->second.connected;
    attempts_.erase(found);
    actions_.push_back(DropNote{note.spool_folder});
    let_go(note, connected);
}

// Its last words may still be on their way to a slow disk: what it leaves is cleared when it has gone.
void AgentBrain::let_go(const AttemptNote& note, bool connected) {
    if (!connected) return has_left(note);
    proto::ToShepherd message;
    if (note.prepare.id().job() == 0) message.mutable_quit();
    else *message.mutable_release()->mutable_id() = note.prepare.id();
    actions_.push_back(TellShepherd{note.socket_name, std::move(message)});
    const bool has_much_to_write = is_keeper(note.spool_folder) && !abandoned_;
    leaving_[note.socket_name] = {note, now_.steady + (has_much_to_write ? kKeeperLeavingLimit : kLeavingLimit)};
}

void AgentBrain::has_left(const AttemptNote& note) {
    const Key key{note.prepare.id().job(), note.prepare.id().attempt()};
    if (key.job == 0) {
        actions_.push_back(RemoveSpool{note.spool_folder});
        return;
    }
    if (!note.spare_folder.empty()) actions_.push_back(RemoveSpool{note.spare_folder});
    actions_.push_back(SpoolEnded{note.spool_folder});
    if (options_.node.multi_user()) actions_.push_back(Reap{reap_request(key)});  // its cgroup is root's
}

void AgentBrain::tell_report(Attempt& attempt, bool always) {
    const std::string digest = digest_of(attempt.report);
    if (!always && digest == attempt.told) return;
    attempt.told = digest;
    proto::NodeMessage message;
    *message.mutable_report() = attempt.report;
    tell(std::move(message));
}

}  // namespace gangline::runner
