#include "coordinator/brain/brain.h"

#include <fmt/format.h>

#include "base/check.h"
#include "coordinator/brain/core.h"

namespace gangline::coordinator {

Brain::Brain(BrainOptions options) : state_(std::make_unique<State>(std::move(options))) {}
Brain::~Brain() = default;
Brain::Brain(Brain&&) noexcept = default;
Brain& Brain::operator=(Brain&&) noexcept = default;

std::vector<Action> Brain::step(const Event& event, const Now& now) {
    state_->begin(now);
    state_->handle(event);
    return state_->finish();
}

std::vector<Action> Brain::step(const std::vector<Event>& events, const Now& now) {
    state_->begin(now);
    for (const Event& event : events) state_->handle(event);
    return state_->finish();
}

void Brain::replay(const proto::Record& record) { state_->facts.apply(record); }
void Brain::replay(proto::Record&& record) { state_->facts.apply(std::move(record)); }

std::optional<TimePoint> Brain::next_deadline() const { return state_->timers.next(); }

std::optional<std::string> Brain::owner(std::uint64_t job) const {
    const Job* found = state_->facts.find(job);
    if (found == nullptr) return std::nullopt;
    return found->user;
}

std::vector<proto::Placement> Brain::gang_of(std::uint64_t job, std::uint32_t& attempt) const {
    std::vector<proto::Placement> gang;
    const Job* found = state_->facts.find(job);
    if (found == nullptr || found->attempts.empty()) return gang;
    if (attempt == 0) attempt = found->attempt().number;
    for (const Attempt& one : found->attempts) {
        if (one.number != attempt) continue;
        for (const Part& part : one.parts) gang.push_back(part.place);
    }
    return gang;
}

std::string Brain::resolve_task(proto::Request& request) const {
    const auto find = [&](std::uint64_t array, const auto& set) -> std::string {
        if (const Job* job = state_->element(array, request.task())) {
            set(job->id);
            return {};
        }
        return fmt::format("there is no job {}_{}", array, request.task());
    };
    switch (request.body_case()) {
        case proto::Request::kCancel: return find(request.cancel().job(), [&](std::uint64_t id) { request.mutable_cancel()->set_job(id); });
        case proto::Request::kShowJob: return find(request.show_job().job(), [&](std::uint64_t id) { request.mutable_show_job()->set_job(id); });
        case proto::Request::kReportJob: return find(request.report_job().job(), [&](std::uint64_t id) { request.mutable_report_job()->set_job(id); });
        case proto::Request::kWhyJob: return find(request.why_job().job(), [&](std::uint64_t id) { request.mutable_why_job()->set_job(id); });
        case proto::Request::kReadLogs: return find(request.read_logs().job(), [&](std::uint64_t id) { request.mutable_read_logs()->set_job(id); });
        case proto::Request::kSetHold: return find(request.set_hold().job(), [&](std::uint64_t id) { request.mutable_set_hold()->set_job(id); });
        case proto::Request::kSubmit:
        case proto::Request::kListJobs:
        case proto::Request::kListNodes:
        case proto::Request::kSetNode:
        case proto::Request::kPing:
        case proto::Request::kSetReservation:
        case proto::Request::kListReservations:
        case proto::Request::kReportCluster:
        case proto::Request::BODY_NOT_SET: return "this request is about no job";
    }
    return {};
}

std::string Brain::dump() const { return state_->facts.dump(); }

// ---- one step

void Brain::State::begin(const Now& at) {
    now = at;
    outlook.survey.reset();
    records.clear();
    others.clear();
}

std::vector<Action> Brain::State::finish() {
    if (const auto next = timers.next(); next && now.steady - *next > kOverslept) forgive_our_sleep();
    while (const auto due = timers.take_due(now.steady)) expire(*due);
    for (const std::uint64_t id : std::vector<std::uint64_t>(verdicts.begin(), verdicts.end())) {
        Job* job = facts.find(id);
        job == nullptr ? static_cast<void>(verdicts.erase(id)) : check_verdict(*job);
    }
    for (int pass = 0; place_wanted && pass < kMostPasses; ++pass) place_waiting();
    std::vector<Action> actions;
    actions.reserve(records.size() + others.size());
    for (proto::Record& one : records) actions.push_back(Persist{std::move(one)});
    for (Action& one : others) actions.push_back(std::move(one));
    records.clear();
    others.clear();
    return actions;
}

void Brain::State::handle(const Event& event) {
    std::visit([this](const auto& one) { handle(one); }, event);
}

// Deadlines are looked at when the step finishes.
void Brain::State::handle(const Tick&) {}

void Brain::State::record(proto::Record record) {
    record.set_unix_ms(now.unix_ms);
    record.set_epoch(epoch);
    facts.apply(record);
    records.push_back(std::move(record));
}

void Brain::State::order(const std::string& node, proto::Order order) {
    others.push_back(SendOrder{node, std::move(order)});
}

void Brain::State::reply(const FromUser& to, proto::Outcome outcome, std::string message, std::uint64_t job) {
    Reply answer{to.tag, {}};
    answer.response.set_id(to.request.id());
    answer.response.set_outcome(outcome);
    answer.response.set_message(std::move(message));
    answer.response.set_job(job);
    others.push_back(std::move(answer));
}

namespace {

std::string time_limit_words(const Job& job) {
    if (job.granted_limit_s == 0) return fmt::format("its time limit of {} s has come", job.spec.time_limit_s());
    return fmt::format("its time limit of {} s has come (cut from {} s, as --time-min allowed, to start it sooner)", job.granted_limit_s, job.spec.time_limit_s());
}

}  // namespace

void Brain::State::expire(const WaitKey& wait) {
    if (wait.what == Wait::Silence) return silence_expired(wait.node);
    if (wait.what == Wait::Plan) {
        place_wanted = true;
        return;
    }
    Job* job = facts.find(wait.job);
    if (job == nullptr) return;
    switch (wait.what) {
        case Wait::Silence:
        case Wait::Plan: return;
        case Wait::Prepare: return prepare_expired(*job);
        case Wait::Forked: return check_joined(*job);
        case Wait::Join: return join_expired(*job);
        case Wait::Verdict: return ask_for_verdict(*job);
        case Wait::Stop: return stop_expired(*job);
        case Wait::Finish: return finish_expired(*job);
        case Wait::Progress: return progress_expired(*job);
        case Wait::TimeLimit:
            if (is_live(job->state) && !all_ranks_done(*job)) {
                end_job(*job, time_limit_words(*job), proto::TIMED_OUT,
                        grace_of(*job));
            }
            return;
        case Wait::BackOff: place_wanted = true; return;
        case Wait::Reserved:
            if (job->state == proto::RECOVERING && job->attempt().all_gone()) {
                proto::Record requeued;
                requeued.mutable_job_requeued()->set_job(job->id);
                requeued.mutable_job_requeued()->set_reason(
                    fmt::format("back in the queue with its age: its gang fits nowhere now ({})", job->reason));
                record(std::move(requeued));
                timers.clear_job(job->id);
                runs.erase(job->id);
                place_wanted = true;
            }
            return;
    }
}

void Brain::State::handle(const TookOffice& event) {
    epoch = event.epoch;
    coordinator_id = event.coordinator_id;
    office_since = now.steady;
    proto::Record took;
    took.mutable_took_office()->set_coordinator_id(event.coordinator_id);
    took.mutable_took_office()->set_version(options.version);
    record(std::move(took));
    for (const auto& [name, node] : facts.nodes) {
        NodeNow& seen = nodes_now[name];
        seen.heard = now.steady;
        if (!node.lost) watch_silence(name);
    }
    const std::vector<std::uint64_t> active(facts.active.begin(), facts.active.end());
    for (const std::uint64_t id : active) {
        watch_run(*facts.find(id));
        // Not before its nodes have said how long it has run.
        const WaitKey limit{Wait::TimeLimit, id, {}};
        if (timers.is_set(limit)) timers.set(limit, std::max(timers.when(limit), now.steady + options.node_timeout + 2 * kReturnGrace));
    }
    for (const auto& [name, node] : facts.nodes) {
        if (node.lost) lose_parts_on(name, node.lost_reason);
    }
    for (const std::uint64_t id : active) {
        if (Job* job = facts.find(id)) settle(*job);
    }
    place_wanted = true;
}

void Brain::State::handle(const FromNode& event) {
    const proto::NodeMessage& message = event.message;
    if (message.has_hello()) return hello(event.node, message.hello());
    if (!event.by_shepherd) {
        if (!nodes_now[event.node].connected) {
            proto::Order welcome;
            welcome.mutable_welcome()->set_send_hello(true);
            welcome.mutable_welcome()->set_heartbeat_ms(static_cast<std::uint64_t>(to_ms(options.heartbeat)));
            order(event.node, std::move(welcome));
        } else {
            heard(event.node);
        }
    }
    if (facts.node(event.node) == nullptr) return;
    switch (message.body_case()) {
        case proto::NodeMessage::kHeartbeat: {
            if (!event.by_shepherd && !nodes_now[event.node].connected) return;
            for (const auto& report : message.heartbeat().progress()) hear_progress(event.node, report, event.by_shepherd);
            proto::Order answer;
            answer.mutable_heartbeat();
            order(event.node, std::move(answer));
            return send_again(event.node, kSendAgain);
        }
        case proto::NodeMessage::kReport: return hear_report(event.node, message.report(), event.by_shepherd);
        case proto::NodeMessage::kCommit: return commit(event.node, message.commit());
        case proto::NodeMessage::kDamaged: return damaged(message.damaged());
        case proto::NodeMessage::kFault: {
            Job* job = facts.current(message.fault().id());
            if (job != nullptr) hear_fault(*job, message.fault().rank(), message.fault().what());
            return;
        }
        case proto::NodeMessage::kHello:
        case proto::NodeMessage::kLogData:  // the shell's
        case proto::NodeMessage::BODY_NOT_SET: return;
    }
}

void Brain::State::handle(const FromUser& event) {
    const proto::Request& request = event.request;
    if (request.has_submit()) return submit(event);
    if (request.has_cancel()) return cancel(event);
    if (request.has_set_hold()) return set_hold(event);
    if (request.has_set_node()) return set_node(event);
    if (request.has_set_reservation()) return set_reservation(event);
    reply(event, proto::USAGE, "this request is answered, not stepped");
}

// ---- people's changing verbs, besides submit

// The jobs that a request means: all elements of an array when its id is given without a task.
std::vector<Job*> Brain::State::meant(std::uint64_t id, const proto::Request& request) {
    std::vector<Job*> jobs;
    if (Job* one = facts.find(id); one != nullptr && (request.has_task() || !one->is_array())) return {one};
    for (const Job* one : elements(id)) jobs.push_back(facts.find(one->id));
    return jobs;
}

std::string Brain::State::cancel_one(Job& job, const std::string& cause) {
    if (job.state == proto::STOPPING) return fmt::format("job {} is ending already: {}", job.name(), job.reason);
    if (is_launched(job.state) && all_ranks_done(job)) return fmt::format("job {} has just finished", job.name());
    if (job.state == proto::QUEUED) {
        finish_job(job, proto::CANCELLED, cause);
    } else {
        end_job(job, cause, proto::CANCELLED, grace_of(job));
    }
    return fmt::format("job {} is cancelled", job.name());
}

void Brain::State::cancel(const FromUser& event) {
    const proto::Cancel& request = event.request.cancel();
    const std::vector<Job*> jobs = meant(request.job(), event.request);
    if (jobs.empty()) return reply(event, proto::REFUSED, fmt::format("there is no job {}", request.job()));
    std::string cause = "cancelled by " + event.who.user;
    if (!request.reason().empty()) cause += ": " + request.reason();
    std::string said;
    std::size_t done = 0;
    for (Job* job : jobs) {
        if (is_ended(job->state)) continue;
        said = cancel_one(*job, cause);
        ++done;
    }
    if (done == 0) {
        return reply(event, proto::REFUSED,
                     jobs.size() == 1 ? fmt::format("job {} has ended already ({})", jobs.front()->name(), proto::JobState_Name(jobs.front()->state))
                                      : fmt::format("all {} jobs of array {} have ended already", jobs.size(), request.job()),
                     request.job());
    }
    if (jobs.size() > 1) said = fmt::format("array {}: {} of its {} jobs cancelled", request.job(), done, jobs.size());
    reply(event, proto::OK, std::move(said), request.job());
}

void Brain::State::set_hold(const FromUser& event) {
    const proto::SetHold& request = event.request.set_hold();
    const std::vector<Job*> jobs = meant(request.job(), event.request);
    if (jobs.empty()) return reply(event, proto::REFUSED, fmt::format("there is no job {}", request.job()));
    std::size_t done = 0;
    for (Job* job : jobs) {
        if (job->state != proto::QUEUED) continue;
        ++done;
        if (job->held == request.hold()) continue;
        proto::Record held;
        held.mutable_job_held()->set_job(job->id);
        held.mutable_job_held()->set_hold(request.hold());
        held.mutable_job_held()->set_who(event.who.user);
        record(std::move(held));
        place_wanted = true;
    }
    if (done == 0) {
        return reply(event, proto::REFUSED,
                     fmt::format("job {} is {}: only a queued job can be held or let go", request.job(), proto::JobState_Name(jobs.front()->state)),
                     request.job());
    }
    const char* word = request.hold() ? "held" : "let go";
    reply(event, proto::OK,
          jobs.size() == 1 ? fmt::format("job {} is {}", jobs.front()->name(), word) : fmt::format("array {}: {} queued jobs {}", request.job(), done, word), request.job());
}

void Brain::State::set_node(const FromUser& event) {
    const proto::SetNode& request = event.request.set_node();
    const Node* node = facts.node(request.node());
    if (node == nullptr) {
        std::string known;
        for (const auto& [name, one] : facts.nodes) known += (known.empty() ? "" : ", ") + name;
        return reply(event, proto::REFUSED,
                     fmt::format("there is no node {}; known nodes: {}", request.node(), known.empty() ? "none" : known));
    }
    proto::Record drained;
    drained.mutable_node_drained()->set_node(request.node());
    drained.mutable_node_drained()->set_drained(request.drain());
    drained.mutable_node_drained()->set_who(event.who.user);
    drained.mutable_node_drained()->set_note(request.note());
    record(std::move(drained));
    place_wanted = true;
    std::string said = fmt::format("node {} {}", request.node(), request.drain() ? "takes no new gang" : "is open again");
    if (request.drain() && !node->holds.empty()) said += fmt::format("; {} gangs on it go on", node->holds.size());
    if (!request.drain() && node->lost) said += "; it is still lost: " + node->lost_reason;
    reply(event, proto::OK, std::move(said));
}

// ---- read-only verbs

proto::Response Brain::answer(const Caller& who, const proto::Request& request, const Now& now) const {
    const State& state = *state_;
    proto::Response response;
    response.set_id(request.id());
    const auto refuse = [&](std::uint64_t id) {
        response.set_outcome(proto::REFUSED);
        response.set_message(fmt::format("there is no job {}", id));
    };
    if (request.has_ping()) {
        proto::Pong& pong = *response.mutable_pong();
        pong.set_cluster(state.options.cluster);
        pong.set_version(state.options.version);
        pong.set_coordinator_id(state.coordinator_id);
        pong.set_user(who.user);
        pong.set_role(who.is_operator ? "operator" : "user");
        pong.set_jobs(state.facts.jobs.size());
        pong.set_nodes(state.facts.nodes.size());
        pong.set_last_job(state.facts.last_job);
    } else if (request.has_list_reservations()) {
        for (const auto& [name, one] : state.facts.reservations) {
            if (one.end_unix_ms() > now.unix_ms) *response.add_reservations() = one;
        }
    } else if (request.has_report_cluster()) {
        const std::string& user = request.report_cluster().user();
        const bool runs = std::any_of(state.facts.active.begin(), state.facts.active.end(), [&](std::uint64_t id) { return state.facts.find(id)->user == user; });
        if (!user.empty() && !runs && state.facts.users.count(user) == 0 && state.facts.waiting_of_user.count(user) == 0) {
            response.set_outcome(proto::REFUSED);
            response.set_message(fmt::format("--user {}: no job of that user has run here", user));
            return response;
        }
        state.report_cluster(who, request.report_cluster(), now, *response.mutable_cluster_report());
    } else if (request.has_list_jobs()) {
        state.list_jobs(who, request.list_jobs(), response);
    } else if (request.has_list_nodes()) {
        for (const auto& [name, node] : state.facts.nodes) *response.add_nodes() = state.node_view(node);
    } else if (request.has_show_job()) {
        const Job* job = state.facts.find(request.show_job().job());
        if (job == nullptr) {
            refuse(request.show_job().job());
        } else {
            *response.add_jobs() = state.job_view(*job, true, who.is_operator || who.user == job->user);
        }
    } else if (request.has_report_job()) {
        const Job* job = state.facts.find(request.report_job().job());
        job == nullptr ? refuse(request.report_job().job()) : state.report(*job, now, *response.mutable_report());
    } else if (request.has_why_job()) {
        const Job* job = state.facts.find(request.why_job().job());
        job == nullptr ? refuse(request.why_job().job()) : state.why(*job, now, *response.mutable_why());
    } else {
        response.set_outcome(proto::USAGE);
        response.set_message("this request has no read-only answer");
    }
    return response;
}

}  // namespace gangline::coordinator
