// What people see: jobs, nodes, reports.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "coordinator/brain/core.h"
#include "coordinator/brain/retention.h"

namespace gangline::coordinator {
namespace {

// Steps a second of this attempt, from the time inside its steps.
double rate_of(const proto::Progress& progress) {
    if (progress.step_s() <= 0 || progress.step() <= progress.first_step()) return 0;
    return static_cast<double>(progress.step() - progress.first_step()) / progress.step_s();
}

std::string state_of(const RankNow& rank) {
    const proto::RankReport& report = rank.report;
    switch (report.state()) {
        case proto::RANK_STARTING: return "running";
        case proto::RANK_JOINED: return "joined";
        case proto::RANK_EXITED:
            return report.signal() != 0 ? fmt::format("signal {}", report.signal()) : fmt::format("exit {}", report.exit_code());
        case proto::RankState_INT_MIN_SENTINEL_DO_NOT_USE_:
        case proto::RankState_INT_MAX_SENTINEL_DO_NOT_USE_: break;
    }
    return "unknown";
}

void view_attempt(const Attempt& attempt, proto::AttemptView& view) {
    view.set_attempt(attempt.number);
    view.set_reserved_unix_ms(attempt.reserved_ms);
    view.set_launched_unix_ms(attempt.launched_ms);
    view.set_joined_unix_ms(attempt.joined_ms);
    view.set_ended_unix_ms(attempt.ended_ms);
    view.set_gone_unix_ms(attempt.gone_ms);
    for (const Part& part : attempt.parts) *view.add_gang() = part.place;
    if (attempt.restore) *view.mutable_restored() = *attempt.restore;
    view.set_rank(-1);
    if (attempt.ended_ms == 0) return;
    view.set_cause(attempt.end.cause());
    view.set_kind(attempt.end.kind());
    view.set_rank(attempt.end.rank());
    view.set_exit_code(attempt.end.exit_code());
    view.set_signal(attempt.end.signal());
    view.set_last_lines(attempt.end.last_lines());
    view.set_last_step(attempt.end.progress().step());
}

// "; next try in 4 s" while a gang backs off; half a second is not worth the words.
std::string next_try(const Job& job, std::int64_t now_ms) {
    if (job.state != proto::RECOVERING || job.attempts.empty()) return {};
    const std::int64_t left_ms = job.attempt().ended_ms + static_cast<std::int64_t>(job.attempt().end.back_off_ms()) - now_ms;
    return left_ms <= 500 ? "" : fmt::format("; next try in {} s", (left_ms + 999) / 1000);
}

}  // namespace

std::string Brain::State::checkpoint_folder(const Job& job) const {
    if (!job.spec.checkpoint_folder().empty()) return job.spec.checkpoint_folder();
    const std::string root = options.checkpoint_root.empty() ? job.account->home + "/.gangline/checkpoints" : options.checkpoint_root;
    return fmt::format("{}/job-{}", root, job.id);
}

// From 1; 0 = not in the queue.
std::uint32_t Brain::State::position(const Job& job) const {
    if (job.state != proto::QUEUED) return 0;
    if (const auto planned = outlook.jobs.find(job.id); planned != outlook.jobs.end()) return planned->second.place;
    const auto at = facts.queue.find(job.queue_key());
    if (at == facts.queue.end()) return 0;
    return static_cast<std::uint32_t>(std::distance(facts.queue.begin(), at)) + 1;
}

// By the last plan: not for its array, its team or a reservation.
bool Brain::State::waits_for_room(const Job& job) const {
    const auto planned = outlook.jobs.find(job.id);
    return planned == outlook.jobs.end() || (planned->second.standing != Standing::OverLimit && planned->second.standing != Standing::Reserved);
}

std::string Brain::State::queued_reason(const Job& job) const {
    if (job.held) return "held by " + *job.held_by;
    std::int64_t wake_ms = 0;
    if (std::string awaited = what_it_awaits(job, now.unix_ms, wake_ms); !awaited.empty()) return "waits: " + awaited;
    const Need& need = facts.needs[job.need];
    const std::uint64_t cpus = std::uint64_t{need.ranks} * need.cpus_per_rank;
    std::string text = need.cards_per_rank == 0 ? fmt::format("waits for {} {}", cpus, cpus == 1 ? "CPU" : "CPUs")
                                                : fmt::format("waits for {} {}", need.cards(), need.cards() == 1 ? "card" : "cards");
    const auto planned = outlook.jobs.find(job.id);
    if (planned != outlook.jobs.end() && planned->second.standing == Standing::OverLimit) {
        return planned->second.over_array ? fmt::format("waits: {} of its array run already (%{})", job.spec.array().most_at_once(), job.spec.array().most_at_once())
                                          : "waits: its team holds as many cards as it may";
    }
    if (planned != outlook.jobs.end() && planned->second.standing == Standing::Reserved) text += ", until a reservation is over";
    if (planned != outlook.jobs.end() && planned->second.expected_ms > now.unix_ms) {
        text += "; may start in about " + human_duration(static_cast<double>(planned->second.expected_ms - now.unix_ms) / 1000);
    }
    return text;
}

proto::JobView Brain::State::job_view(const Job& job, bool whole, bool with_environment) const {
    proto::JobView view;
    view.set_id(job.id);
    view.set_name(job.spec.name());
    view.set_user(job.user);
    view.set_state(job.state);
    view.set_reason(job.state == proto::QUEUED && job.attempts.empty() ? queued_reason(job)
                                                                         : job.reason + next_try(job, now.unix_ms));
    view.set_ranks(job.ranks());
    if (job.spec.has_array()) *view.mutable_array() = job.spec.array();
    view.set_attempt(job.key().attempt);
    view.set_restarts(job.attempts.empty() ? 0 : static_cast<std::uint32_t>(job.attempts.size()) - 1);
    view.set_submitted_unix_ms(job.submitted_ms);
    view.set_started_unix_ms(job.attempts.empty() ? 0 : job.attempts.front().reserved_ms);
    view.set_ended_unix_ms(job.ended_ms);
    view.set_exit_code(job.exit_code);
    view.set_checkpoint_folder(checkpoint_folder(job));
    view.set_eta_s(-1);
    const auto run = runs.find(job.id);
    if (run != runs.end() && run->second.moved) {
        *view.mutable_progress() = progress_of(job);
    } else if (job.last_progress && job.last_progress->beat() != 0) {
        *view.mutable_progress() = *job.last_progress;
    }
    const double rate = rate_of(view.progress());
    view.set_steps_per_s(rate);
    if (rate > 0 && is_launched(job.state) && view.progress().total_steps() >= view.progress().step()) {
        view.set_eta_s(static_cast<double>(view.progress().total_steps() - view.progress().step()) / rate);
    }
    if (!job.attempts.empty() && (is_live(job.state) || is_ending(job.state))) {
        for (const Part& part : job.attempt().parts) *view.add_gang() = part.place;
        for (const std::string& name : job.attempt().spares) view.add_spares(name);
    }
    for (const std::string& fault : job.faults) view.add_faults(fault);
    view.set_time_limit_s(job.granted_limit_s != 0 ? job.granted_limit_s : job.spec.time_limit_s());
    if (const auto planned = outlook.jobs.find(job.id); job.state == proto::QUEUED && planned != outlook.jobs.end()) {
        view.set_expected_unix_ms(planned->second.expected_ms);
        view.set_promised_unix_ms(planned->second.promised_ms);
    }
    if (!whole) return view;
    view.set_position(position(job));
    if (!job.attempts.empty()) view.mutable_passed_over()->Assign(job.attempt().passed_over.begin(), job.attempt().passed_over.end());
    for (const Attempt& attempt : job.attempts) view_attempt(attempt, *view.add_attempts());
    if (run != runs.end()) {
        for (const auto& [key, rank] : run->second.ranks) {
            proto::RankView& one = *view.add_rank_views();
            one.set_rank(rank.report.rank());
            one.set_node(rank.node);
            one.set_pid(rank.report.pid());
            one.set_state(state_of(rank));
            one.set_step(rank.report.progress().step());
            if (rank.report.has_snapshot_step()) one.set_snapshot_step(rank.report.snapshot_step());
            if (rank.report.has_replica_step()) one.set_replica_step(rank.report.replica_step());
        }
    }
    const std::vector<Needs> needs = needs_of(job, rule_of(job.spec, options.keep_checkpoints));
    for (std::size_t i = 0; i < job.checkpoints.size(); ++i) {
        const Checkpoint& one = job.checkpoints[i];
        proto::CheckpointView& shown = *view.add_checkpoints();
        shown.set_step(one.point.step());
        shown.set_attempt(one.point.attempt());
        shown.set_unix_ms(one.unix_ms);
        shown.set_bytes(one.bytes);
        shown.set_damaged(one.damaged);
        shown.set_note(one.note);
        shown.set_needed_by(needs[i].words());
        if (one.metric) shown.set_metric(*one.metric);
    }
    *view.mutable_spec() = with_environment ? job.full_spec() : job.spec;
    return view;
}

// Live jobs in order of their ids, the queue in its own order, ended jobs last, newest first.
void Brain::State::list_jobs(const Caller& who, const proto::ListJobs& request, proto::Response& response) const {
    const std::string user = !request.user().empty() ? request.user() : request.all_users() ? "" : who.user;
    const auto full = [&] { return request.limit() != 0 && response.jobs_size() >= static_cast<int>(request.limit()); };
    const auto add = [&](const Job& job, std::uint32_t place) {
        if (full() || (!user.empty() && job.user != user)) return;
        *response.add_jobs() = job_view(job, false, false);
        response.mutable_jobs(response.jobs_size() - 1)->set_position(place);
    };
    for (const std::uint64_t id : facts.active) add(*facts.find(id), 0);
    std::uint32_t place = 0;
    for (const Job* job : queue_in_order()) add(*job, ++place);
    for (const auto& [id, job] : facts.jobs) {
        if (full()) return;
        if (job.state == proto::QUEUED && job.held) add(job, 0);
    }
    if (!request.ended_too()) return;
    for (auto job = facts.jobs.rbegin(); job != facts.jobs.rend() && !full(); ++job) {
        if (is_ended(job->second.state)) add(job->second, 0);
    }
}

proto::NodeView Brain::State::node_view(const Node& node) const {
    proto::NodeView view;
    *view.mutable_node() = node.info;
    const auto seen = nodes_now.find(node.info.name());
    const bool is_here = seen != nodes_now.end() && seen->second.connected;
    const bool unclean = (is_here && !seen->second.unwanted.empty()) ||
                         std::any_of(node.holds.begin(), node.holds.end(), [](const auto& hold) { return hold.second.cleaning; });
    const std::uint32_t free = node.cards_free();
    view.set_cards_free(free);
    for (const auto& [key, hold] : node.holds) {
        proto::AttemptId& id = *view.add_attempts();
        id.set_job(key.job);
        id.set_attempt(key.attempt);
    }
    if (seen != nodes_now.end()) view.set_heard_unix_ms(seen->second.heard_ms);
    if (node.drained) {
        view.set_set_by(node.drained_by);
        view.set_note(node.drain_note);
    }
    view.set_lemon(node.lemon_at(now.unix_ms));
    if (node.penalty_at(now.unix_ms) != 0) {
        view.set_lemon_words(fmt::format("unreliable: {:.1f} failures lately (newer ones weigh more), taken last{}; gangline resume forgets them", view.lemon(),
                                         nodes_in_order().names.size() >= Cluster::kLargeGangNodes ? ", by no large gang" : ""));
    }
    for (const auto& [name, one] : facts.reservations) {
        const bool mine = std::find(one.nodes().begin(), one.nodes().end(), node.info.name()) != one.nodes().end();
        if (!mine || one.end_unix_ms() <= now.unix_ms) continue;
        view.set_reservation(fmt::format("{} {} {} until {}", name, one.maintenance() ? "(maintenance)" : "", one.start_unix_ms() <= now.unix_ms ? "now" : "from " + iso_time(one.start_unix_ms()),
                                         iso_time(one.end_unix_ms())));
    }
    if (std::find(outlook.spares.begin(), outlook.spares.end(), node.info.name()) != outlook.spares.end()) view.set_note("kept as a spare");
    if (node.lost) {
        view.set_state("lost");
        view.set_note(node.lost_reason);
    } else if (!is_here) {
        view.set_state("suspect");
        view.set_note("its agent has not been heard; gangs on it go on");
    } else if (node.drained) {
        view.set_state(node.holds.empty() ? "drained" : "draining");
    } else if (unclean) {
        view.set_state("cleaning");
        view.set_note("an earlier attempt is not proved gone from it");
    } else if (node.holds.empty()) {
        view.set_state("idle");
    } else {
        view.set_state(free == 0 ? "allocated" : "mixed");
    }
    return view;
}

void Brain::State::report(const Job& job, const Now& at, proto::Report& out) const {
    *out.mutable_job() = job_view(job, true, false);
    const Ledger ledger = make_ledger(story_of(job, job.ended_ms != 0 ? job.ended_ms : at.unix_ms, progress_of(job)));
    out.set_queue_wait_s(ledger.queue_wait_s);
    out.set_wall_s(ledger.wall_s);
    out.set_card_seconds(ledger.card_s);
    out.set_effective_training_time(ledger.effective_training_time);
    out.set_steps(ledger.steps);
    out.set_steps_redone(ledger.steps_redone);
    for (const LedgerCause& cause : ledger.causes) {
        proto::Cause& shown = *out.add_causes();
        shown.set_name(cause.name);
        shown.set_wall_s(cause.wall_s);
        shown.set_card_s(cause.card_s);
        shown.set_words(cause.words);
    }
    for (const std::string& note : ledger.notes) out.add_notes(note);
    out.set_cost(price_of(job, job.ended_ms != 0 ? job.ended_ms : at.unix_ms));
    out.set_currency(options.fleet.currency);
}

}  // namespace gangline::coordinator
