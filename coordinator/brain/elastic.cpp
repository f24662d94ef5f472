// Gangs that change their size, and the nodes that are held beside them.
//
//   shrink   on a loss, when nothing else fits: place_recovering gives an elastic gang as many of its nodes as there are
//   grow     when nobody waits for cards: told to save and stop, then placed on more nodes, one that failed once and is back among them. Only a
//            gang that has saved, that ran its guaranteed time, and that gains more than the restart costs
//   spares   whole nodes of the job's own. A failed node's place is taken by one of them first; they are filled up when nodes are free
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/brain/core.h"

namespace gangline::coordinator {
namespace {

constexpr double kRestartS = 60;             // what a restart costs each card, beside the work since the last checkpoint
constexpr double kGain = 4;                  // more nodes must pay back their restart so many times
constexpr std::int64_t kLongestGainMs = 3'600'000;  // what comes after that is not counted on

}  // namespace

// ---- spares

// Those of the newest attempt that may still serve: fit, and of no reservation that has begun for others.
std::vector<std::string> Brain::State::spares_left(const Job& job) const {
    std::vector<std::string> left;
    if (job.attempts.empty()) return left;
    for (const std::string& name : job.attempt().spares) {
        if (is_offerable(name) && !is_reserved_from(job, name, now.unix_ms + 1)) left.push_back(name);
    }
    return left;
}

void Brain::State::drop_unfit_spares() {
    for (const std::uint64_t id : facts.active) {
        Job& job = *facts.find(id);
        if (!is_live(job.state) || job.attempt().spares.empty()) continue;
        const std::vector<std::string> left = spares_left(job);
        if (left.size() != job.attempt().spares.size()) hold_spares(job, left);
    }
}

// Idle spares make room for a job of higher priority before any gang does.
bool Brain::State::give_up_spares(const Cluster& now_taken, const std::vector<Job*>& blocked) {
    std::size_t tried = 0;
    for (const Job* job : blocked) {
        if (job->state != proto::QUEUED || !waits_for_room(*job)) continue;
        if (++tried > options.promises) return false;
        Cluster freed = now_taken;
        freed.forget_promises();
        std::vector<Job*> holders;
        for (const std::uint64_t id : facts.active) {
            Job& other = *facts.find(id);
            if (!is_live(other.state) || other.attempt().spares.empty() || other.spec.priority() >= job->spec.priority()) continue;
            holders.push_back(&other);
            const auto [first, last] = spare_gangs.equal_range(id);
            for (auto one = first; one != last; ++one) freed.remove(one->second);
        }
        if (holders.empty()) return false;
        const auto place = freed.place_ignoring_promises(shape_for(facts.needs[job->need]), now.unix_ms, end_if_started(*job));
        if (!place) continue;
        for (Job* holder : holders) {
            std::vector<std::string> left = spares_left(*holder);
            std::erase_if(left, [&](const std::string& name) {
                return std::any_of(place->begin(), place->end(), [&](const Share& share) { return nodes_in_order().names[share.node] == name; });
            });
            if (left.size() != holder->attempt().spares.size()) hold_spares(*holder, left);
        }
        place_wanted = true;  // the next pass starts it
        return true;
    }
    return false;
}

void Brain::State::hold_spares(Job& job, const std::vector<std::string>& nodes) {
    proto::Record held;
    proto::SparesHeld& body = *held.mutable_spares_held();
    *body.mutable_id() = id_of(job);
    for (const std::string& name : nodes) body.add_spares()->set_node(name);
    record(std::move(held));
}

// What the queue leaves: only when nobody waits for room, so that a spare delays nobody.
void Brain::State::top_up_spares(Cluster& cluster) {
    for (const std::uint64_t id : std::vector<std::uint64_t>(facts.active.begin(), facts.active.end())) {
        Job& job = *facts.find(id);
        if (job.spec.spares() == 0 || !is_live(job.state)) continue;
        std::vector<std::string> nodes = spares_left(job);
        const std::size_t before = nodes.size();
        const Need need = facts.needs[job.need];
        Shape shape = shape_for(need);
        shape.ranks = need.ranks_per_node != 0 ? need.ranks_per_node : job.attempt().parts.front().place.rank_count();
        shape.nodes_min = shape.nodes_max = 1;
        shape.ranks_per_node = shape.segment = 0;
        shape.elastic = false;
        shape.exclusive = true;
        while (nodes.size() < job.spec.spares()) {
            const auto place = cluster.place(shape, now.unix_ms, end_if_started(job), avoided_by(job));
            if (!place) break;
            nodes.push_back(nodes_in_order().names[place->front().node]);
            cluster.add(shape, *place, end_if_started(job));
        }
        if (nodes.size() != before) hold_spares(job, nodes);
    }
}

// ---- growth

// Whether it would take more nodes if they were free.
bool Brain::State::wants_more(const Job& job) const {
    if (!is_live(job.state)) return false;
    if (job.spec.spares() != 0) return true;  // one of them may have become unfit
    return job.spec.elastic() && job.attempt().ranks() < job.spec.ranks();
}

// `cluster`: after the plan's starts; nobody waits for cards.
void Brain::State::grow_gangs(const Cluster& cluster, const std::vector<Ending>& running) {
    for (const Ending& one : running) {
        Job& job = *facts.find(one.job);
        if (!job.spec.elastic() || job.state != proto::RUNNING || job.attempt().ranks() >= job.spec.ranks() || all_ranks_done(job)) continue;
        const Checkpoint* newest = job.newest_good();
        if (newest == nullptr || newest->point.attempt() != job.attempt().number) continue;  // it has saved since it started
        if (now.unix_ms - job.attempt().reserved_ms < to_ms(options.guaranteed_run)) continue;
        Cluster without = cluster;
        without.remove(one.gang);
        const auto wider = without.place(shape_for(facts.needs[job.need]), now.unix_ms, end_if_started(job), avoided_by(job, 2));
        if (!wider || ranks_of(*wider) <= job.attempt().ranks()) continue;
        const double more = static_cast<double>(ranks_of(*wider) - job.attempt().ranks());
        const double left_s = static_cast<double>(std::min(one.expected - now.unix_ms, kLongestGainMs)) / 1000;
        const double lost_s = static_cast<double>(now.unix_ms - newest->unix_ms) / 1000 + kRestartS;
        if (more * left_s < kGain * lost_s * static_cast<double>(job.attempt().ranks())) continue;
        proto::Record ending;
        proto::AttemptEnding& body = *ending.mutable_attempt_ending();
        *body.mutable_id() = id_of(job);
        body.set_cause(fmt::format("grows from {} to {} nodes, which are free", job.attempt().parts.size(), wider->size()));
        body.set_kind(proto::RESIZE);
        body.set_rank(-1);
        body.set_next(proto::RESTART);
        *body.mutable_progress() = progress_of(job);
        const std::string reason = body.cause();
        record(std::move(ending));
        stop_parts(job, options.preemption_grace, reason);
        return;  // one at a time: the next plan counts with it
    }
}

}  // namespace gangline::coordinator
