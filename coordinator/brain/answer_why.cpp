// Why a job is where it is: one sentence, each clause that holds it back with counts, and what would start it sooner.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "coordinator/brain/core.h"

namespace gangline::coordinator {
namespace {

std::string join_names(const std::vector<std::string>& names) {
    std::string text;
    for (std::size_t i = 0; i < names.size() && i < 8; ++i) text += (i == 0 ? "" : ", ") + names[i];
    if (names.size() > 8) text += fmt::format(" and {} more", names.size() - 8);
    return text;
}

std::string count(std::size_t number, const char* one, const char* many) {
    return fmt::format("{} {}", number, number == 1 ? one : many);
}

std::string wanted(const Need& need) {
    std::string text = need.cards_per_rank == 0
                           ? count(std::uint64_t{need.ranks} * need.cpus_per_rank, "CPU", "CPUs")
                           : count(need.cards(), "card", "cards");
    if (need.ranks_per_node != 0) text += fmt::format(", {} a node", count(need.ranks_per_node, "rank", "ranks"));
    if (need.nodes_min != 0 && need.nodes_min == need.nodes_max) {
        text += ", on " + count(need.nodes_min, "node", "nodes");
    } else if (need.nodes_min > 1 && need.nodes_max != 0) {
        text += fmt::format(", on {} to {} nodes", need.nodes_min, need.nodes_max);
    } else if (need.nodes_max != 0) {
        text += ", on at most " + count(need.nodes_max, "node", "nodes");
    } else if (need.nodes_min != 0) {
        text += fmt::format(", on {} or more nodes", need.nodes_min);
    }
    if (need.within == Level::Rack) text += ", all in one rack";
    if (need.within == Level::Block) text += ", all in one block";
    if (need.memory_mib != 0) {
        text += fmt::format(", {} of memory a node", human_bytes(static_cast<double>(need.memory_mib) * 1048576.0));
    }
    if (need.exclusive) text += ", whole nodes";
    if (need.segment > 1) text += fmt::format(", in groups of {} nodes in one rack", need.segment);
    if (!need.card_model.empty()) text += ", of model " + need.card_model;
    if (!need.constraint.empty()) text += ", with " + need.constraint;
    if (!need.reservation.empty()) text += ", in reservation " + need.reservation;
    return text;
}

// Ranks that the fullest node of the gang has to take.
std::uint32_t ranks_a_node(const Need& need) {
    if (need.ranks_per_node != 0) return need.ranks_per_node;
    if (need.nodes_max != 0) return (need.ranks + need.nodes_max - 1) / need.nodes_max;
    return 1;
}

std::string clock(std::int64_t unix_ms, std::int64_t now_ms) {
    if (unix_ms <= now_ms) return "now";
    return fmt::format("{} (in {})", iso_time(unix_ms), human_duration(static_cast<double>(unix_ms - now_ms) / 1000));
}

}  // namespace

// Who has what, and which nodes take nothing new.
const Survey& Brain::State::survey() const {
    if (!outlook.survey || outlook.made_ms == 0) outlook.survey = std::make_shared<const Survey>(make_survey());
    return *outlook.survey;
}

Survey Brain::State::make_survey() const {
    Survey found;
    for (const auto& [name, node] : facts.nodes) {
        const auto seen = nodes_now.find(name);
        const bool here = seen != nodes_now.end() && seen->second.connected && !seen->second.suspect;
        if (node.lost) {
            found.lost.push_back(name);
        } else if (!here) {
            found.silent.push_back(name);
        } else if (!seen->second.unwanted.empty()) {
            found.unclean.push_back(name);
        } else if (node.drained) {
            found.drained.push_back(name);
        }
        for (const auto& [key, hold] : node.holds) {
            Survey::Holder& holder = found.holders[key.job];
            holder.cards += hold.cards.size();
            ++holder.nodes;
        }
        if (node.lost || node.drained || !here || !seen->second.unwanted.empty()) continue;
        ++found.open;
        found.free += static_cast<std::uint64_t>(node.info.cards_size()) - node.busy.size();
        found.all += static_cast<std::uint64_t>(node.info.cards_size());
    }
    return found;
}

// Each demand relaxed alone: what would start the job now, or would let it start at all.
void Brain::State::relax(const Job& job, const Cluster& cluster, const Survey& nodes, const Now& at, proto::Why& out) const {
    const Need need = facts.needs[job.need].smallest();
    const Ms end = end_if_started(job);
    const auto fits = [&](const Need& other) { return cluster.place_ignoring_promises(shape_for(other), at.unix_ms, end).has_value(); };
    const auto say = [&](std::string what) { out.add_relaxed(std::move(what)); };
    if (fits(need)) {
        std::int64_t first_ms = 0;
        for (const auto& [id, one] : outlook.jobs) {
            if (one.promised_ms > at.unix_ms && (first_ms == 0 || one.promised_ms < first_ms)) first_ms = one.promised_ms;
        }
        const std::int64_t hole_s = (first_ms - at.unix_ms - to_ms(grace_of(job))) / 1000;
        if (first_ms != 0 && hole_s >= 60) say(fmt::format("--time {} would start now, before what is promised to others", hole_s / 60));
        return;
    }
    Need other = need;
    std::uint32_t low = 0;
    for (std::uint32_t high = need.ranks; low + 1 < high;) {  // fewer ranks of the same shape fit wherever more do
        other.ranks = low + (high - low) / 2;
        other.nodes_min = need.nodes_min == 0 ? 0 : std::max(1u, need.nodes_min * other.ranks / need.ranks);
        (fits(other) ? low : high) = other.ranks;
    }
    if (low != 0 && low >= need.nodes_min) say(fmt::format("--ranks {} would fit now", low));
    if (low != 0 && low < need.nodes_min) say(fmt::format("--ranks {} --nodes {} would fit now", low, std::max(1u, need.nodes_min * low / need.ranks)));
    const auto without = [&](auto change, const char* words) {
        Need changed = need;
        change(changed);
        if (changed.shape() != need.shape() && fits(changed)) say(words);
    };
    if (cluster.has_windows() && cluster.place_ignoring_promises(shape_for(need))) {
        std::int64_t first_ms = 0;
        for (const auto& [name, one] : facts.reservations) {
            if (one.start_unix_ms() > at.unix_ms && (first_ms == 0 || one.start_unix_ms() < first_ms)) first_ms = one.start_unix_ms();
        }
        const std::int64_t hole_s = (first_ms - at.unix_ms - to_ms(grace_of(job))) / 1000;
        if (first_ms != 0 && hole_s >= 60) say(fmt::format("--time {} would start now, before the next reservation", hole_s / 60));
    }
    without([](Need& one) { one.within = Level::Cluster; }, "without --switches it would start now");
    without([](Need& one) { one.exclusive = false; }, "without --exclusive it would start now");
    without([](Need& one) { one.nodes_min = one.nodes_max = one.ranks_per_node = 0; }, "without a number of nodes, or of ranks on each, it would start now");
    without([](Need& one) { one.only.clear(); }, "without --nodelist it would start now");
    without([](Need& one) { one.exclude.clear(); }, "without --exclude it would start now");
    without([](Need& one) { one.card_model.clear(); }, "with cards of any model it would start now");
    without([](Need& one) { one.constraint.clear(); }, "without --constraint it would start now");
    without([](Need& one) { one.segment = 0; }, "without --segment it would start now");
    without([](Need& one) { one.memory_mib = 0; }, "with less --mem it would start now");
    without([](Need& one) { one.cpus_per_rank = one.cards_per_rank == 0 ? 1 : 0; }, "with fewer --cpus-per-task it would start now");
    if (out.relaxed_size() != 0 || nodes.drained.empty()) return;
    std::vector<Offer> with_drained = offers();
    for (const std::string& name : nodes.drained) with_drained.push_back(facts.node(name)->offer());
    for (Offer& offer : with_drained) offer.block = offer.rack = 0;
    if (place(need, with_drained)) say("gangline resume " + nodes.drained.front());
}

// What each open node lacks, counted.
void Brain::State::count_lacks(const Job& job, const Cluster& cluster, proto::Why& out) const {
    const Need need = facts.needs[job.need].smallest();
    const Shape shape = shape_for(need);
    const Ms end = end_if_started(job);
    std::map<Cluster::Lack, std::size_t> lacks;
    for (std::uint32_t node = 0; node < cluster.nodes(); ++node) ++lacks[cluster.lack(shape, node, ranks_a_node(need), now.unix_ms, end)];
    const auto say = [&](Cluster::Lack lack, const char* words) {
        if (const std::size_t nodes = lacks[lack]) out.add_clauses(fmt::format("{} {}", count(nodes, "open node", "open nodes"), words));
    };
    say(Cluster::Lack::Cards, "with too few free cards");
    say(Cluster::Lack::Cpus, "with too few free CPUs");
    say(Cluster::Lack::Memory, "with too little free memory");
    say(Cluster::Lack::Whole, "not empty, and whole nodes are asked for");
    say(Cluster::Lack::NotAllowed, "ruled out by what was asked for (--nodelist, --exclude, --constraint, card model, --reservation)");
    say(Cluster::Lack::Reserved, "reserved for others before it would end");
    say(Cluster::Lack::Penalty, "unreliable lately, and the gang is large");
    say(Cluster::Lack::Nothing, "with room for a part of it");
}

// Whether the holder has a node that the need may go to.
bool Brain::State::concerns(std::uint64_t holder, const Need& need) const {
    const Job* job = facts.find(holder);
    if (job == nullptr || job->attempts.empty()) return true;
    return std::any_of(job->attempt().parts.begin(), job->attempt().parts.end(), [&](const Part& part) {
        const auto number = nodes_in_order().numbers.find(part.place.node());
        return number == nodes_in_order().numbers.end() || allows(need, nodes_in_order().traits[number->second]);
    });
}

// Which reservations keep the job from nodes that it may go to, and when.
void Brain::State::name_reservations(const Job& job, proto::Why& out) const {
    for (const auto& [name, one] : facts.reservations) {
        const bool concerned = std::any_of(one.nodes().begin(), one.nodes().end(), [&](const std::string& node) {
            const auto number = nodes_in_order().numbers.find(node);
            return number != nodes_in_order().numbers.end() && allows(facts.needs[job.need], nodes_in_order().traits[number->second]) && is_reserved_from(job, node);
        });
        if (!concerned || name == job.spec.reservation()) continue;
        out.add_clauses(fmt::format("reservation {}{} keeps {} {} until {}{}", name, one.maintenance() ? " (maintenance)" : "", count(static_cast<std::uint64_t>(one.nodes_size()), "node", "nodes"),
                                    one.start_unix_ms() <= now.unix_ms ? "now," : "from " + iso_time(one.start_unix_ms()), iso_time(one.end_unix_ms()),
                                    may_use(one, job.user) ? fmt::format("; {} may use it: --reservation {}", job.user, name) : ""));
    }
}

void Brain::State::why_room(const Job& job, const Cluster& cluster, const Now& at, proto::Why& out) const {
    const Survey& nodes = survey();
    const Need need = facts.needs[job.need].smallest();
    out.set_sentence(fmt::format("Job {} waits: it needs {}; {} of {} cards on {} are free.", job.name(), wanted(need), nodes.free, nodes.all,
                                 count(nodes.open, "open node", "open nodes")));
    if (!cluster.place_ignoring_promises(shape_for(need), at.unix_ms, end_if_started(job))) count_lacks(job, cluster, out);
    const auto closed = [&](const std::vector<std::string>& names, const char* words) {
        if (!names.empty()) out.add_clauses(fmt::format("{} {} ({})", names.size(), words, join_names(names)));
    };
    name_reservations(job, out);
    closed(nodes.drained, "drained");
    closed(nodes.lost, "lost");
    closed(nodes.silent, "not heard from");
    closed(nodes.unclean, "being cleaned");
    closed(outlook.spares, "kept as spares");
    std::size_t shown = 0;
    const std::size_t holders = static_cast<std::size_t>(std::count_if(nodes.holders.begin(), nodes.holders.end(), [&](const auto& one) { return concerns(one.first, need); }));
    for (const auto& [id, holder] : nodes.holders) {
        if (!concerns(id, need)) continue;
        if (++shown > 5) {
            out.add_clauses(fmt::format("{} more hold cards", count(holders - 5, "job", "jobs")));
            break;
        }
        const Job* by = facts.find(id);
        const auto left_ms = by == nullptr || is_ended(by->state) ? std::nullopt : by->time_left_ms(at.unix_ms);
        out.add_clauses(fmt::format("job {}{} holds {} on {}{}", by == nullptr ? std::to_string(id) : by->name(), by == nullptr ? "" : " of " + by->user, count(holder.cards, "card", "cards"),
                                    count(holder.nodes, "node", "nodes"), left_ms ? ", until " + clock(at.unix_ms + *left_ms, at.unix_ms) + " at the latest" : ""));
    }
    relax(job, cluster, nodes, at, out);
    if (const auto moving = outlook.by_moving.find(job.id); moving != outlook.by_moving.end()) out.add_relaxed(moving->second);
    if (out.relaxed_size() != 0) return out.set_sooner(out.relaxed(0));
    if (!nodes_in_order().empty->place_ignoring_promises(shape_for(need))) {
        return out.set_sooner("no known node could hold it even when empty: ask for less");
    }
    if (nodes.open != facts.nodes.size() && nodes.holders.empty()) return out.set_sooner("bring nodes back, or ask for less");
    if (holders != 0) out.set_sooner(holders == 1 ? "it starts when the job that holds cards has ended" : fmt::format("it starts when enough of the {} that hold cards have ended", count(holders, "job", "jobs")));
}

void Brain::State::why_queued(const Job& job, const Now& at, proto::Why& out) const {
    out.set_position(position(job));
    out.set_plan_unix_ms(outlook.made_ms);
    std::int64_t wake_ms = 0;
    if (job.held) {
        out.set_sentence(fmt::format("Job {} is held by {}.", job.name(), *job.held_by));
        out.set_sooner("let it go: gangline release " + job.name());
        return;
    }
    if (facts.nodes.empty()) {
        out.set_sentence(fmt::format("Job {} waits: no node has reported yet.", job.name()));
        out.set_sooner("start an agent: gangline agent --coordinator ...");
        return;
    }
    if (const std::string awaited = what_it_awaits(job, at.unix_ms, wake_ms); !awaited.empty()) {
        out.set_sentence(fmt::format("Job {} waits: {}.", job.name(), awaited));
        return;
    }
    const auto planned = outlook.jobs.find(job.id);
    if (planned != outlook.jobs.end() && planned->second.standing == Standing::OverLimit) {
        const Team* team = options.fleet.team_of(job.user);
        const auto most = job.spec.array().most_at_once();
        out.set_sentence(planned->second.over_array
                             ? fmt::format("Job {} waits: {} of its array run already, and no more may together (--array=...%{}).", job.name(), most, most)
                             : fmt::format("Job {} waits: its team{} holds as many cards as it may (most_cards in the cluster file).", job.name(), team == nullptr ? "" : " " + team->name));
        out.set_sooner(planned->second.over_array ? "it starts when one of them has ended, if there is room" : "it starts when gangs of the team have ended");
        return;
    }
    const std::optional<Cluster> fresh = outlook.cluster ? std::nullopt : std::optional(cluster_now(nullptr, nullptr));
    why_room(job, fresh ? *fresh : *outlook.cluster, at, out);
    if (planned == outlook.jobs.end()) {
        out.add_clauses("the scheduler has not looked at it yet");
        return;
    }
    const Outlook::Entry& entry = planned->second;
    out.set_expected_unix_ms(entry.expected_ms);
    out.set_promised_unix_ms(entry.promised_ms);
    if (entry.promised_ms != 0) {
        out.add_clauses(fmt::format("places are promised to it from {} on, at the latest, if all time limits hold", clock(entry.promised_ms, at.unix_ms)));
    }
    if (job.claim) {
        out.add_clauses(job.claim->reason);
        out.set_sooner("it starts when they have saved and stopped");
    } else if (entry.standing == Standing::Kept) out.add_clauses("it has waited so long that nodes take nobody new until they are free for it");
    if (entry.standing == Standing::Reserved) out.add_clauses("there is room, but a reservation begins before it could end (gangline reservations)");
    if (entry.behind != 0) {
        const auto other = outlook.jobs.find(entry.behind);
        const bool kept = other != outlook.jobs.end() && other->second.standing == Standing::Kept;
        out.add_clauses(kept ? fmt::format("job {} has waited too long to be passed over again", entry.behind)
                             : fmt::format("there is room, but it would delay job {}{}", entry.behind,
                                           other == outlook.jobs.end() || other->second.promised_ms == 0
                                               ? ""
                                               : ", to which places are promised from " + clock(other->second.promised_ms, at.unix_ms) + " on"));
    }
    if (entry.expected_ms != 0) out.add_clauses("it may expect to start at about " + clock(entry.expected_ms, at.unix_ms));
    if (options.preemption && may_evict(job) && job.spec.priority() > lowest_running_priority()) {
        out.add_clauses(fmt::format("gangs of lower priority make room for it, each once it has run {} s, if that is enough", to_ms(options.guaranteed_run) / 1000));
    }
    if (out.position() > 1) out.add_clauses(fmt::format("{} before it in the queue", count(out.position() - 1, "job is", "jobs are")));
}

void Brain::State::why(const Job& job, const Now& at, proto::Why& out) const {
    out.set_job(job.id);
    out.set_state(job.state);
    const std::string& reason = job.reason;
    switch (job.state) {
        case proto::QUEUED:
            why_queued(job, at, out);
            if (!job.attempts.empty()) out.add_clauses(reason);
            return;
        case proto::RESERVED:
            out.set_sentence(fmt::format("Job {} holds {} and waits for its nodes to prove their cards empty ({}).", job.name(),
                                         node_names(job.attempt()), reason));
            break;
        case proto::PREPARING:
            out.set_sentence(fmt::format("Job {} is launched on {}; its ranks are joining ({}).", job.name(),
                                         node_names(job.attempt()), reason));
            break;
        case proto::RUNNING:
            out.set_sentence(fmt::format("Job {} runs on {} ({}).", job.name(), node_names(job.attempt()), reason));
            if (job.spec.elastic() && job.attempt().ranks() < job.spec.ranks()) {
                out.add_clauses(fmt::format("it has {} of the {} nodes that it may have, and grows when nobody waits for cards, it has saved since it started, and it has run {} s",
                                            job.attempt().parts.size(), job.spec.nodes_max(), to_ms(options.guaranteed_run) / 1000));
            }
            break;
        case proto::RECOVERING:
            out.set_sentence(fmt::format("Job {} recovers: {}.", job.name(), reason));
            if (job.attempt().end.back_off_ms() != 0) {
                out.add_clauses(fmt::format("it waits {:.1f} s before it starts again, as {} restarts in a row brought no progress",
                                            static_cast<double>(job.attempt().end.back_off_ms()) / 1000, job.without_progress));
            }
            break;
        case proto::STOPPING: out.set_sentence(fmt::format("Job {} is ending: {}.", job.name(), reason)); break;
        case proto::COMPLETED:
        case proto::FAILED:
        case proto::CANCELLED:
        case proto::TIMED_OUT:
            out.set_sentence(fmt::format("Job {} has ended ({}): {}.", job.name(), proto::JobState_Name(job.state), reason));
            return;
        case proto::JobState_INT_MIN_SENTINEL_DO_NOT_USE_:
        case proto::JobState_INT_MAX_SENTINEL_DO_NOT_USE_: return;
    }
    for (const Part& part : job.attempt().parts) {
        if (part.state == PartState::Held && is_ending(job.state)) {
            out.add_clauses(fmt::format("{} has not proved its part gone yet", part.place.node()));
        }
    }
    if (is_live(job.state)) out.mutable_passed_over()->Assign(job.attempt().passed_over.begin(), job.attempt().passed_over.end());
    if (job.state != proto::RESERVED) return;
    const auto run = runs.find(job.id);
    for (std::size_t i = 0; run != runs.end() && i < run->second.parts.size(); ++i) {
        const PartNow& seen = run->second.parts[i];
        if (!seen.heard || seen.phase < proto::ATTEMPT_PREPARED) {
            out.add_clauses(fmt::format("{} has not answered yet", job.attempt().parts[i].place.node()));
        }
    }
}

}  // namespace gangline::coordinator
