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
    if (place_wanted) place_waiting();
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
                end_job(*job, fmt::format("its time limit of {} s has come", job->spec.time_limit_s()), proto::TIMED_OUT,
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
    reply(event, proto::USAGE, "this request is answered, not stepped");
}

// ---- people's changing verbs, besides submit

void Brain::State::cancel(const FromUser& event) {
    const proto::Cancel& request = event.request.cancel();
    Job* job = facts.find(request.job());
    if (job == nullptr) return reply(event, proto::REFUSED, fmt::format("there is no job {}", request.job()));
    if (is_ended(job->state)) {
        return reply(event, proto::REFUSED,
                     fmt::format("job {} has ended already ({})", job->id, proto::JobState_Name(job->state)), job->id);
    }
    std::string cause = "cancelled by " + event.who.user;
    if (!request.reason().empty()) cause += ": " + request.reason();
    std::string said = fmt::format("job {} is cancelled", job->id);
    if (job->state == proto::QUEUED) {
        finish_job(*job, proto::CANCELLED, cause);
    } else if (job->state == proto::STOPPING) {
        said = fmt::format("job {} is ending already: {}", job->id, job->reason);
    } else if (is_launched(job->state) && all_ranks_done(*job)) {
        said = fmt::format("job {} has just finished", job->id);
    } else {
        end_job(*job, cause, proto::CANCELLED, grace_of(*job));
    }
    reply(event, proto::OK, std::move(said), request.job());
}

void Brain::State::set_hold(const FromUser& event) {
    const proto::SetHold& request = event.request.set_hold();
    Job* job = facts.find(request.job());
    if (job == nullptr) return reply(event, proto::REFUSED, fmt::format("there is no job {}", request.job()));
    if (job->state != proto::QUEUED) {
        return reply(event, proto::REFUSED,
                     fmt::format("job {} is {}: only a queued job can be held or let go", job->id,
                                 proto::JobState_Name(job->state)),
                     job->id);
    }
    if (job->held != request.hold()) {
        proto::Record held;
        held.mutable_job_held()->set_job(job->id);
        held.mutable_job_held()->set_hold(request.hold());
        held.mutable_job_held()->set_who(event.who.user);
        record(std::move(held));
        place_wanted = true;
    }
    reply(event, proto::OK, fmt::format("job {} is {}", job->id, request.hold() ? "held" : "let go"), job->id);
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
