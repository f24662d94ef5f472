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
    if (need.memory_mib != 0) {
        text += fmt::format(", {} of memory a node", human_bytes(static_cast<double>(need.memory_mib) * 1048576.0));
    }
    if (need.exclusive) text += ", whole nodes";
    return text;
}

}  // namespace

// Who has what, and which nodes take nothing new.
Survey Brain::State::survey() const {
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
        } else {
            found.with_drained.push_back(node.offer());
            if (node.drained) found.drained.push_back(name);
        }
        for (const auto& [key, hold] : node.holds) found.holders[key.job] += hold.cards.size();
        if (!is_offerable(name)) continue;
        ++found.open;
        found.free += node.cards_free();
        found.all += static_cast<std::uint64_t>(node.info.cards_size());
    }
    return found;
}

std::string Brain::State::what_would_help(const Need& need, const Survey& nodes, const std::vector<Offer>& offers) const {
    const std::uint32_t now_fits = largest_that_fits(need, offers);
    const bool fills_its_nodes = now_fits >= need.nodes_min;
    if (now_fits > 0 && now_fits < need.ranks && fills_its_nodes) return fmt::format("--ranks {} would fit now", now_fits);
    if (!nodes.drained.empty() && place(need, nodes.with_drained)) return "gangline resume " + nodes.drained.front();
    std::vector<Offer> emptied;
    for (const Offer& offer : offers) emptied.push_back(whole_offer(facts.node(offer.node)->info));
    if (!place(need, emptied)) return "no open node could hold it even when empty: bring nodes back, or ask for less";
    if (nodes.holders.empty()) return {};
    if (nodes.holders.size() == 1) return fmt::format("it starts when job {} has ended", nodes.holders.begin()->first);
    return fmt::format("it starts when enough of the {} before it have ended", count(nodes.holders.size(), "job", "jobs"));
}

void Brain::State::why_queued(const Job& job, const Now& at, proto::Why& out) const {
    out.set_position(position(job));
    if (job.held) {
        out.set_sentence(fmt::format("Job {} is held by {}.", job.id, job.held_by));
        out.set_sooner("let it go: gangline release " + std::to_string(job.id));
        return;
    }
    const Need need = need_of(job.spec);
    if (facts.nodes.empty()) {
        out.set_sentence(fmt::format("Job {} waits: no node has reported yet.", job.id));
        out.set_sooner("start an agent: gangline agent --coordinator ...");
        return;
    }
    const Survey nodes = survey();
    const std::vector<Offer> offers = offers_for(nullptr);
    out.set_sentence(fmt::format("Job {} waits: it needs {}; {} of {} cards on {} are free.", job.id, wanted(need), nodes.free,
                                 nodes.all, count(nodes.open, "open node", "open nodes")));
    if (need.cards() > nodes.free) {
        out.add_clauses(fmt::format("{}: {} of {} cards free, {} needed", count(nodes.open, "node", "nodes"), nodes.free, nodes.all,
                                    need.cards()));
    } else if (const std::string clause = misfit(need, offers); !clause.empty()) {
        out.add_clauses("what is free now: " + clause);
    }
    const auto closed = [&](const std::vector<std::string>& names, const char* words) {
        if (!names.empty()) out.add_clauses(fmt::format("{} {} ({})", names.size(), words, join_names(names)));
    };
    closed(nodes.drained, "drained");
    closed(nodes.lost, "lost");
    closed(nodes.silent, "not heard from");
    closed(nodes.unclean, "being cleaned");
    std::size_t shown = 0;
    for (const auto& [id, cards] : nodes.holders) {
        if (++shown > 5) break;
        const Job* holder = facts.find(id);
        out.add_clauses(fmt::format("job {}{} holds {}", id, holder == nullptr ? "" : " of " + holder->user,
                                    count(cards, "card", "cards")));
    }
    if (out.position() > 1) out.add_clauses(fmt::format("{} before it in the queue", count(out.position() - 1, "job is", "jobs are")));
    if (place(need, offers)) {
        for (const QueueKey& key : facts.queue) {
            if (key.job == job.id) break;
            if (at.unix_ms - facts.find(key.job)->submitted_ms < kPatienceMs) continue;
            out.add_clauses(fmt::format("job {} has waited too long to be passed over again", key.job));
            break;
        }
    }
    out.set_sooner(what_would_help(need, nodes, offers));
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
            out.set_sentence(fmt::format("Job {} holds {} and waits for its nodes to prove their cards empty ({}).", job.id,
                                         node_names(job.attempt()), reason));
            break;
        case proto::PREPARING:
            out.set_sentence(fmt::format("Job {} is launched on {}; its ranks are joining ({}).", job.id,
                                         node_names(job.attempt()), reason));
            break;
        case proto::RUNNING:
            out.set_sentence(fmt::format("Job {} runs on {} ({}).", job.id, node_names(job.attempt()), reason));
            break;
        case proto::RECOVERING:
            out.set_sentence(fmt::format("Job {} recovers: {}.", job.id, reason));
            if (job.attempt().end.back_off_ms() != 0) {
                out.add_clauses(fmt::format("it waits {:.1f} s before it starts again, as {} restarts in a row brought no progress",
                                            static_cast<double>(job.attempt().end.back_off_ms()) / 1000, job.without_progress));
            }
            break;
        case proto::STOPPING: out.set_sentence(fmt::format("Job {} is ending: {}.", job.id, reason)); break;
        case proto::COMPLETED:
        case proto::FAILED:
        case proto::CANCELLED:
        case proto::TIMED_OUT:
            out.set_sentence(fmt::format("Job {} has ended ({}): {}.", job.id, proto::JobState_Name(job.state), reason));
            return;
        case proto::JobState_INT_MIN_SENTINEL_DO_NOT_USE_:
        case proto::JobState_INT_MAX_SENTINEL_DO_NOT_USE_: return;
    }
    for (const Part& part : job.attempt().parts) {
        if (part.state == PartState::Held && is_ending(job.state)) {
            out.add_clauses(fmt::format("{} has not proved its part gone yet", part.place.node()));
        }
    }
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
