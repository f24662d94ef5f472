// Time, the coordinator's life, and the connections.
#include "coordinator/simulate/world.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace gangline::simulate {

using coordinator::Action;
using coordinator::Brain;
using coordinator::Event;

namespace {

constexpr Duration kLatestRepeat = milliseconds(300);

}  // namespace

std::uint64_t Random::next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

Duration Random::between(Duration least, Duration most) {
    const auto span = static_cast<std::uint64_t>(std::max<std::int64_t>(1, (most - least).count()));
    return least + Duration(static_cast<std::int64_t>(below(span)));
}

World::World(WorldOptions options) : options_(std::move(options)), random_(options_.seed), now_(seconds(1000)), shadow_(options_.brain) {
    for (std::uint32_t i = 0; i < options_.nodes; ++i) {
        const std::string name = fmt::format("n{}", i);
        nodes_[name].name = name;
    }
    start_coordinator();
    for (auto& [name, node] : nodes_) start_agent(name);
    run_for(milliseconds(200));
}

Now World::virtual_now() const {
    return {now_, 1'800'000'000'000 + to_ms(now_.time_since_epoch())};
}

void World::say(std::string line) {
    transcript_.push_back(fmt::format("{:.6f} {}", to_seconds(now_.time_since_epoch()) - 1000, std::move(line)));
}

void World::at(TimePoint when, std::function<void()> what) {
    later_.emplace(Later{std::max(when, now_), next_order_++}, std::move(what));
}

bool World::run_one() {
    if (later_.empty()) return false;
    auto first = later_.extract(later_.begin());
    now_ = first.key().when;
    first.mapped()();
    return true;
}

bool World::run_until(const std::function<bool()>& done, Duration limit) {
    const TimePoint end = now_ + limit;
    while (!done()) {
        if (later_.empty() || later_.begin()->first.when > end) {
            now_ = end;
            return done();
        }
        run_one();
    }
    return true;
}

void World::run_for(Duration duration) {
    run_until([] { return false; }, duration);
}

// ---- the coordinator

void World::start_coordinator() {
    if (brain_) return;
    brain_ = std::make_unique<Brain>(options_.brain);
    for (const proto::Record& record : journal_) brain_->replay(record);
    ++coordinator_starts_;
    say(fmt::format("coordinator {} starts with {} records", coordinator_starts_, journal_.size()));
    deliver(coordinator::TookOffice{coordinator_starts_, fmt::format("c{}", coordinator_starts_)});
    for (auto& [name, node] : nodes_) {
        if (node.agent_up) after(random_.between(milliseconds(1), milliseconds(500)), [this, n = name] { link(n); });
    }
}

void World::kill_coordinator() {
    if (!brain_) return;
    say("coordinator dies");
    brain_.reset();
    inbox_.clear();
    inbox_scheduled_ = false;
    ++deadline_generation_;
    for (auto& [name, node] : nodes_) {
        node.linked = false;
        ++node.connection;
    }
}

void World::deliver(Event event) {
    if (!brain_) return;
    inbox_.push_back(std::move(event));
    if (inbox_scheduled_) return;
    inbox_scheduled_ = true;
    after(random_.between(Duration{0}, options_.most_delay), [this, life = coordinator_starts_] {
        if (brain_ && life == coordinator_starts_) step_coordinator();
    });
}

// SIGSTOP for a while: what arrives waits.
void World::sleep_coordinator(Duration duration) {
    asleep_until_ = now_ + duration;
    run_for(duration);
}

void World::step_coordinator() {
    if (now_ < asleep_until_) return at(asleep_until_, [this] { step_coordinator(); });
    inbox_scheduled_ = false;
    if (!brain_) return;
    std::vector<Event> events;
    events.swap(inbox_);
    std::vector<Action> actions = brain_->step(events, virtual_now());
    perform(std::move(actions));
    if (!brain_) return;
    if (options_.check_replay_every != 0 && ++steps_ % options_.check_replay_every == 0) check_replay();
    arm_deadline();
}

void World::arm_deadline() {
    const std::uint64_t mine = ++deadline_generation_;
    const auto next = brain_->next_deadline();
    if (!next) return;
    at(*next, [this, mine] {
        if (brain_ && mine == deadline_generation_) deliver(coordinator::Tick{});
    });
}

void World::perform(std::vector<Action> actions) {
    bool persists_over = false;
    for (Action& action : actions) {
        const bool dies = (dies_at_action_ && *dies_at_action_ == actions_done_) ||
                          (faults_ && random_.chance(options_.coordinator_dies));
        if (dies) {
            dies_at_action_.reset();
            kill_coordinator();
            if (faults_) after(random_.between(milliseconds(10), seconds(4)), [this] { start_coordinator(); });
            return;
        }
        ++actions_done_;
        if (auto* persist = std::get_if<coordinator::Persist>(&action)) {
            if (persists_over) violated("a Persist after another action: two commits for one step");
            check_record(persist->record);
            journal_.push_back(std::move(persist->record));
            continue;
        }
        persists_over = true;
        if (auto* reply = std::get_if<coordinator::Reply>(&action)) {
            if (reply->response.job() != 0 && reply->response.outcome() == proto::OK) {
                for (std::uint64_t i = 0; i < std::max(1u, reply->response.tasks()); ++i) promised_.insert(reply->response.job() + i);
            }
            responses_[reply->tag] = std::move(reply->response);
        } else {
            auto& out = std::get<coordinator::SendOrder>(action);
            out.order.set_coordinator_id(fmt::format("c{}", coordinator_starts_));
            out.order.set_epoch(coordinator_starts_);
            send_order(out.node, std::move(out.order));
        }
    }
}

void World::kill_coordinator_at_action(std::uint64_t count) { dies_at_action_ = actions_done_ + count; }

void World::stop_faults() {
    faults_ = false;
    dies_at_action_.reset();
    options_.checkpoint_rots = 0;
    start_coordinator();
    for (auto& [name, node] : nodes_) {
        node.mute_prepare = false;
        if (!node.up) start_node(name);
        if (!node.agent_up) start_agent(name);
    }
}

// ---- people

proto::Response World::ask(proto::Request request, const std::string& user) {
    const std::uint64_t tag = next_tag_++;
    request.set_id(tag);
    coordinator::FromUser event{tag, {.user = user, .uid = 1000, .gid = 1000, .groups = {}, .home = "/home/" + user, .is_operator = true},
                                std::move(request)};
    deliver(std::move(event));
    run_until([&] { return responses_.count(tag) != 0 || !brain_; }, seconds(1));
    const auto found = responses_.find(tag);
    if (found != responses_.end()) return found->second;
    proto::Response nothing;
    nothing.set_outcome(proto::UNREACHABLE);
    return nothing;
}

std::uint64_t World::submit(proto::JobSpec spec) { return submit_as("alice", std::move(spec)); }

std::uint64_t World::submit_as(const std::string& user, proto::JobSpec spec) {
    proto::Request request;
    *request.mutable_submit()->mutable_spec() = std::move(spec);
    const proto::Response response = ask(std::move(request), user);
    return response.outcome() == proto::OK ? response.job() : 0;
}

proto::Response World::answer(const proto::Request& request) const {
    CHECK(brain_ != nullptr, "the coordinator must be up to answer");
    return brain_->answer({.user = "alice", .uid = 1000, .gid = 1000, .groups = {}, .home = "/home/alice", .is_operator = true}, request,
                          virtual_now());
}

proto::JobView World::view(std::uint64_t job) const {
    if (!brain_) return {};
    proto::Request request;
    request.mutable_show_job()->set_job(job);
    const proto::Response response = answer(request);
    return response.jobs_size() == 0 ? proto::JobView() : response.jobs(0);
}

// ---- connections: FIFO each way; a cut loses what is under way, and a message may come a second time, after later ones

void World::link(const std::string& name) {
    SimNode& node = nodes_.at(name);
    if (!brain_ || !node.up || !node.agent_up || node.linked) return;
    node.linked = true;
    ++node.connection;
    say_hello(node);
}

void World::cut(const std::string& name, Duration back_after) {
    SimNode& node = nodes_.at(name);
    if (!node.linked) return;
    say(fmt::format("{} is cut off for {} ms", name, to_ms(back_after)));
    node.linked = false;
    ++node.connection;
    after(back_after, [this, name] { link(name); });
}

void World::to_coordinator(const std::string& name, proto::NodeMessage message, bool by_shepherd) {
    SimNode& node = nodes_.at(name);
    if (!brain_ || (!by_shepherd && !node.linked)) return;
    const TimePoint arrives = std::max(node.last_arrival_in, now_ + random_.between(Duration{0}, options_.most_delay));
    node.last_arrival_in = arrives;
    const auto arrival = [this, name, by_shepherd, connection = node.connection, life = coordinator_starts_, m = std::move(message)] {
        if (!brain_ || life != coordinator_starts_) return;
        if (!by_shepherd && nodes_.at(name).connection != connection) return;
        deliver(coordinator::FromNode{name, m, by_shepherd});
    };
    at(arrives, arrival);
    if (is_repeated()) at(arrives + random_.between(Duration{0}, kLatestRepeat), arrival);
}

bool World::is_repeated() {
    const bool repeated = options_.repeats > 0 && faults_ && random_.chance(options_.repeats);
    if (repeated) ++reached_["repeated message"];
    return repeated;
}

void World::send_order(const std::string& name, proto::Order order) {
    const auto found = nodes_.find(name);
    if (found == nodes_.end() || !found->second.linked) return;
    SimNode& node = found->second;
    const TimePoint arrives = std::max(node.last_arrival_out, now_ + random_.between(Duration{0}, options_.most_delay));
    node.last_arrival_out = arrives;
    const auto arrival = [this, name, connection = node.connection, o = std::move(order)] {
        const SimNode& there = nodes_.at(name);
        if (there.connection == connection && there.agent_up) hear_order(name, o);
    };
    at(arrives, arrival);
    if (is_repeated()) at(arrives + random_.between(Duration{0}, kLatestRepeat), arrival);
}

}  // namespace gangline::simulate
