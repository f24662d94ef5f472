// A gang's way: prepared on every node, launched, joined, ended when its last node is proved empty.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "coordinator/brain/core.h"
#include "coordinator/brain/retention.h"

namespace gangline::coordinator {

proto::AttemptId id_of(const Job& job) {
    proto::AttemptId id;
    id.set_job(job.id);
    id.set_attempt(job.key().attempt);
    return id;
}

std::string node_names(const Attempt& attempt) {
    std::string names;
    for (const Part& part : attempt.parts) names += (names.empty() ? "" : ", ") + part.place.node();
    return names;
}

Run& Brain::State::run_of(const Job& job) {
    Run& run = runs[job.id];
    run.parts.resize(job.attempts.empty() ? 0 : job.attempt().parts.size());
    return run;
}

Duration Brain::State::grace_of(const Job& job) const {
    return job.spec.grace_ms() == 0 ? options.grace : milliseconds(job.spec.grace_ms());
}

// Of a gang of so many nodes: what is known of others' nodes (6.5 failures per 1,000 node-days, as one failure seen), and what was seen here.
double Brain::State::mean_between_failures_s(std::size_t nodes) const {
    constexpr double kPriorDays = 1000 / 6.5;
    const double a_node_day = (1 + static_cast<double>(facts.accounts.faults())) / (kPriorDays + facts.accounts.node_days());
    return 86'400 / (a_node_day * static_cast<double>(std::max<std::size_t>(1, nodes)));
}

// ---- orders

void Brain::State::order_prepare(Job& job, std::size_t part) {
    Run& run = run_of(job);
    run.parts[part] = {};
    run.parts[part].ordered = now.steady;
    proto::Order out;
    proto::Prepare& prepare = *out.mutable_prepare();
    *prepare.mutable_id() = id_of(job);
    *prepare.mutable_spec() = job.full_spec();
    if (job.spec.elastic()) {
        prepare.mutable_spec()->set_ranks(job.attempt().ranks());
        prepare.mutable_spec()->set_nodes_min(static_cast<std::uint32_t>(job.attempt().parts.size()));
        prepare.mutable_spec()->set_nodes_max(static_cast<std::uint32_t>(job.attempt().parts.size()));
    }
    proto::Variable& failures = *prepare.mutable_spec()->add_environment();
    failures.set_name("GANGLINE_MTBF_S");
    failures.set_value(std::to_string(static_cast<std::uint64_t>(mean_between_failures_s(job.attempt().parts.size()))));
    const RetentionRule rule = rule_of(job.spec, options.keep_checkpoints);
    for (const auto& [name, value] : {std::pair{"GANGLINE_KEEP_LAST", std::to_string(rule.last)}, {"GANGLINE_KEEP_EVERY", std::to_string(rule.every)},
                                      {"GANGLINE_KEEP_BEST", std::to_string(rule.best)}, {"GANGLINE_BEST_IS", std::string(rule.higher_is_better ? "higher" : "lower")}}) {
        proto::Variable& variable = *prepare.mutable_spec()->add_environment();
        variable.set_name(name);
        variable.set_value(value);
    }
    for (const Part& one : job.attempt().parts) *prepare.add_gang() = one.place;
    prepare.set_node_index(static_cast<std::uint32_t>(part));
    prepare.set_checkpoint_folder(checkpoint_folder(job));
    prepare.set_restarts(static_cast<std::uint32_t>(job.attempts.size()) - 1);
    prepare.set_user(job.user);
    prepare.set_submitted_unix_ms(job.submitted_ms);
    order(job.attempt().parts[part].place.node(), std::move(out));
}

// Where the snapshots of the attempt that wrote the restore point may be: with the keepers of its nodes, or of those that had their replicas, as far as
// they are in this gang, too.
void Brain::State::add_snapshots(const Job& job, proto::Launch& launch) const {
    const auto wrote = std::find_if(job.attempts.begin(), job.attempts.end(), [&](const Attempt& one) { return one.number == launch.restore().attempt(); });
    if (wrote == job.attempts.end()) return;
    std::map<std::string_view, std::uint32_t> here;
    for (std::uint32_t i = 0; i < job.attempt().parts.size(); ++i) here[job.attempt().parts[i].place.node()] = i;
    for (const Part& part : wrote->parts) {
        proto::SnapshotsAt at;
        at.set_first_rank(part.place.first_rank());
        at.set_rank_count(part.place.rank_count());
        const auto add = [&](const Part& one) {
            const auto found = here.find(one.place.node());
            if (found != here.end() && one.state != PartState::Presumed) at.add_node_indexes(found->second);
        };
        add(part);
        if (const std::uint32_t peer = part.place.replica_peer(); peer < wrote->parts.size() && &wrote->parts[peer] != &part) add(wrote->parts[peer]);
        if (at.node_indexes_size() > 0) *launch.add_snapshots() = std::move(at);
    }
}

void Brain::State::order_launch(Job& job, std::size_t part) {
    Run& run = run_of(job);
    run.parts[part].ordered = now.steady;
    proto::Order out;
    proto::Launch& launch = *out.mutable_launch();
    *launch.mutable_id() = id_of(job);
    for (std::size_t i = 0; i < run.parts.size(); ++i) {
        proto::Peer& peer = *launch.add_peers();
        peer.set_node_index(static_cast<std::uint32_t>(i));
        peer.set_gang_key(run.parts[i].gang_key);
    }
    launch.set_lead_endpoint(run.parts[0].gang_endpoint);
    launch.set_master_port(run.parts[0].master_port);
    if (job.attempt().restore) {
        *launch.mutable_restore() = *job.attempt().restore;
        add_snapshots(job, launch);
    }
    order(job.attempt().parts[part].place.node(), std::move(out));
}

void Brain::State::order_stop(Job& job, std::size_t part, Duration grace, const std::string& reason) {
    run_of(job).parts[part].ordered = now.steady;
    proto::Order out;
    proto::Stop& stop = *out.mutable_stop();
    *stop.mutable_id() = id_of(job);
    stop.set_grace_ms(static_cast<std::uint64_t>(std::max<std::int64_t>(0, to_ms(grace))));
    stop.set_reason(reason);
    order(job.attempt().parts[part].place.node(), std::move(out));
}

// ---- from prepared to joined

void Brain::State::try_launch(Job& job) {
    if (job.state != proto::RESERVED) return;
    Run& run = run_of(job);
    const bool ready = std::all_of(run.parts.begin(), run.parts.end(), [](const PartNow& part) {
        return part.heard && part.phase >= proto::ATTEMPT_PREPARED && part.phase < proto::ATTEMPT_STOPPING;
    });
    if (!ready) return;
    proto::Record launched;
    *launched.mutable_gang_launched()->mutable_id() = id_of(job);
    record(std::move(launched));
    for (std::size_t part = 0; part < run.parts.size(); ++part) order_launch(job, part);
    watch_run(job);
}

void Brain::State::check_joined(Job& job) {
    if (job.state != proto::PREPARING) return;
    Run& run = run_of(job);
    const std::uint32_t ranks = job.is_script() ? 1 : job.attempt().ranks();
    std::uint32_t joined = 0;
    std::uint32_t exited = 0;
    std::uint32_t known = 0;
    for (const auto& [key, rank] : run.ranks) {
        if (key.first != 0) continue;
        ++known;
        if (rank.report.state() == proto::RANK_JOINED) ++joined;
        if (rank.report.state() == proto::RANK_EXITED) ++exited;
    }
    if (known < ranks || exited == known) return;
    if (!run.forked) run.forked = now.steady;
    bool all = job.is_script() || (joined != 0 && joined + exited == known);
    if (!all && joined == 0) {
        all = *run.forked + kForkedIsJoined <= now.steady;
        if (!all) timers.set({Wait::Forked, job.id, {}}, *run.forked + kForkedIsJoined);
    }
    if (!all) return;
    timers.clear({Wait::Forked, job.id, {}});
    proto::Record record_joined;
    *record_joined.mutable_gang_joined()->mutable_id() = id_of(job);
    record(std::move(record_joined));
}

// Arms the deadlines of the job's present state, at each entry to it and for a new coordinator.
void Brain::State::watch_run(Job& job) {
    Run& run = run_of(job);
    if (job.state == proto::RESERVED) {
        timers.set({Wait::Prepare, job.id, {}}, now.steady + options.prepare_timeout);
    } else if (is_launched(job.state)) {
        timers.clear({Wait::Prepare, job.id, {}});
        timers.set({Wait::Join, job.id, {}}, now.steady + options.join_timeout);
        const auto left_ms = job.time_left_ms(now.unix_ms);
        if (left_ms) timers.set({Wait::TimeLimit, job.id, {}}, now.steady + milliseconds(*left_ms));
    } else if (is_ending(job.state)) {
        const Attempt& attempt = job.attempt();
        if (!attempt.all_gone()) timers.set({Wait::Stop, job.id, {}}, now.steady + grace_of(job) + options.stop_timeout);
        if (job.state != proto::RECOVERING) return;
        const std::int64_t until = attempt.ended_ms + static_cast<std::int64_t>(attempt.end.back_off_ms());
        run.back_off_until = now.steady + milliseconds(std::max<std::int64_t>(0, until - now.unix_ms));
    }
}

// ---- the end of a gang

bool Brain::State::part_succeeded(const Job& job, std::size_t part) const {
    const auto found = runs.find(job.id);
    if (found == runs.end() || part >= found->second.parts.size()) return false;
    const Run& run = found->second;
    const auto ended_well = [&](std::uint32_t rank) {
        const auto one = run.ranks.find({0, rank});
        return one != run.ranks.end() && one->second.report.state() == proto::RANK_EXITED &&
               one->second.report.exit_code() == 0 && one->second.report.signal() == 0;
    };
    if (job.is_script()) return part != 0 || (run.parts[0].script_ended && ended_well(0));
    const proto::Placement& place = job.attempt().parts[part].place;
    for (std::uint32_t rank = place.first_rank(); rank < place.first_rank() + place.rank_count(); ++rank) {
        if (!ended_well(rank)) return false;
    }
    return true;
}

bool Brain::State::all_ranks_done(const Job& job) const {
    if (!is_launched(job.state)) return false;
    if (job.is_script()) return job.attempt().parts[0].state != PartState::Held || part_succeeded(job, 0);
    for (std::size_t part = 0; part < job.attempt().parts.size(); ++part) {
        if (job.attempt().parts[part].state == PartState::Held && !part_succeeded(job, part)) return false;
    }
    return true;
}

void Brain::State::part_gone(Job& job, std::size_t part, bool presumed, std::string note) {
    const std::string node = job.attempt().parts[part].place.node();
    const proto::AttemptId id = id_of(job);
    proto::Record gone;
    *gone.mutable_node_part_gone()->mutable_id() = id;
    gone.mutable_node_part_gone()->set_node(node);
    gone.mutable_node_part_gone()->set_presumed(presumed);
    gone.mutable_node_part_gone()->set_note(std::move(note));
    if (const auto step = snapshot_of(job, part, presumed)) gone.mutable_node_part_gone()->set_snapshot_step(*step);
    record(std::move(gone));
    if (presumed) {
        nodes_now[node].unwanted[key_of(id)] = now.steady;
    } else {
        nodes_now[node].unwanted.erase(key_of(id));
        release(node, id, job.state == proto::RECOVERING);
        place_wanted = true;
    }
}

// The newest step that every rank of this part has told to be whole in its keeper's memory, or, of a node that is given up, in another's. One before a
// rank's newest is on disk, or there too.
std::optional<std::uint64_t> Brain::State::snapshot_of(const Job& job, std::size_t part, bool is_lost) const {
    const auto run = runs.find(job.id);
    if (run == runs.end() || job.is_script()) return std::nullopt;
    const proto::Placement& place = job.attempt().parts[part].place;
    std::optional<std::uint64_t> step;
    for (std::uint32_t rank = place.first_rank(); rank < place.first_rank() + place.rank_count(); ++rank) {
        const auto one = run->second.ranks.find({0, rank});
        if (one == run->second.ranks.end()) return std::nullopt;
        const proto::RankReport& report = one->second.report;
        if (!(is_lost ? report.has_replica_step() : report.has_snapshot_step())) return std::nullopt;
        const std::uint64_t held = is_lost ? report.replica_step() : report.snapshot_step();
        step = std::min(step.value_or(held), held);
    }
    return step;
}

// Records every part that has said GONE. Only when that is no failure, or the failure is recorded already.
void Brain::State::absorb_gone(Job& job) {
    const Run& run = run_of(job);
    for (std::size_t part = 0; part < run.parts.size(); ++part) {
        if (job.attempt().parts[part].state != PartState::Held) continue;
        if (!run.parts[part].heard || run.parts[part].phase != proto::ATTEMPT_GONE) continue;
        if (is_ending(job.state) || part_succeeded(job, part)) part_gone(job, part, false, "");
    }
}

void Brain::State::settle(Job& job) {
    if (job.attempts.empty() || !(is_live(job.state) || is_ending(job.state)) || !job.attempt().all_gone()) return;
    timers.clear({Wait::Stop, job.id, {}});
    if (job.state == proto::RECOVERING && job.has_lost_its_checkpoints()) {
        end_job(job, fmt::format("{}; each of its checkpoints was found damaged, and the job is not started afresh: submit it again to do that", job.attempt().end.cause()),
                proto::FAILED, Duration{0});
    } else if (job.state == proto::RECOVERING && job.attempt().end.kind() == proto::PREEMPTION) {
        proto::Record requeued;
        requeued.mutable_job_requeued()->set_job(job.id);
        requeued.mutable_job_requeued()->set_reason(fmt::format("back in the queue with its age: {}", job.reason));
        record(std::move(requeued));
        timers.clear_job(job.id);
        runs.erase(job.id);
        place_wanted = true;
    } else if (job.state == proto::RECOVERING) {
        const Run& run = run_of(job);
        if (run.back_off_until && *run.back_off_until > now.steady) {
            timers.set({Wait::BackOff, job.id, {}}, *run.back_off_until);
        }
        place_wanted = true;
    } else if (job.state == proto::STOPPING) {
        finish_job(job, job.attempt().end.outcome(), job.attempt().end.cause());
    } else {
        CHECK(is_launched(job.state), "a gang that was never launched ends by a decision");
        finish_job(job, proto::COMPLETED,
                   job.is_script() ? "its script exited 0"
                                   : fmt::format("{} exited 0", job.attempt().ranks() == 1 ? "its rank"
                                                                                      : fmt::format("all {} ranks", job.attempt().ranks())));
    }
}

}  // namespace gangline::coordinator
