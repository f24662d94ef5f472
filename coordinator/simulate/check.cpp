// What must hold at every moment, whatever has died.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/simulate/world.h"

namespace gangline::simulate {

void World::violated(std::string what) {
    say("VIOLATED: " + what);
    violations_.push_back(transcript_.back());
}

// No card is used by two, as the nodes' own processes have it.
void World::check_world() {
    for (const auto& [name, node] : nodes_) {
        std::map<std::uint32_t, AttemptOf> users;
        for (const auto& [attempt, shepherd] : node.shepherds) {
            const bool lives = std::any_of(shepherd.ranks.begin(), shepherd.ranks.end(), [](const auto& rank) { return !rank.second.exited; });
            if (!lives) continue;
            for (const std::uint32_t card : shepherd.place.cards()) {
                const auto [user, first] = users.emplace(card, attempt);
                if (first) continue;
                violated(fmt::format("card {} of {} is used by {}.{} and {}.{}", card, name, user->second.first, user->second.second,
                                     attempt.first, attempt.second));
            }
        }
    }
}

// Each record as it becomes durable.
void World::check_record(const proto::Record& record) {
    ++reached_[std::string(record.GetDescriptor()->FindFieldByNumber(record.body_case())->name())];
    if (record.has_gang_reserved()) {
        const auto& body = record.gang_reserved();
        std::uint32_t ranks = 0;
        for (const proto::Placement& place : body.gang()) {
            if (place.first_rank() != ranks) violated("ranks are not contiguous by node");
            ranks += place.rank_count();
            std::set<std::uint32_t> cards(place.cards().begin(), place.cards().end());
            if (cards.size() != static_cast<std::size_t>(place.cards_size())) violated("a card is given twice in one gang");
        }
        std::uint32_t& newest = newest_attempt_[body.id().job()];
        if (body.id().attempt() != newest + 1) violated("attempts do not count up by one");
        newest = body.id().attempt();
        std::uint64_t best = 0;
        for (const auto& [step, one] : committed_[body.id().job()]) {
            if (one.good) best = std::max(best, step);
        }
        const auto& whole = snapshots_[body.id().job()][body.restore().step()];
        if (body.restore().in_memory()) {
            if (body.restore().step() <= best) violated(fmt::format("restored from the snapshot of step {}, but {} is committed", body.restore().step(), best));
            if (whole.size() != ranks) violated(fmt::format("restored from step {}, which {} of {} ranks had whole", body.restore().step(), whole.size(), ranks));
        } else if (body.restore().step() != best) violated(fmt::format("restored from step {}, but {} is committed", body.restore().step(), best));
        if (body.restore().step() == 0 && !committed_[body.id().job()].empty()) violated("a silent fresh start");
        say(fmt::format("{}.{} reserved: {}", body.id().job(), body.id().attempt(), body.reason()));
    } else if (record.has_checkpoint_committed()) {
        const auto& body = record.checkpoint_committed();
        if (body.id().attempt() != newest_attempt_[body.id().job()]) violated("a fenced attempt has committed");
        auto& known = committed_[body.id().job()];
        known[body.step()] = {body.written_by() != 0 ? body.written_by() : body.id().attempt(), true};
        std::set<std::uint64_t> newest_good;
        for (const auto& [step, one] : known) {
            if (one.good) newest_good.insert(step);
            if (newest_good.size() > 2) newest_good.erase(newest_good.begin());
        }
        for (const auto& gone : body.gone()) {
            if (known.erase(gone.step()) == 0) violated("a checkpoint that nobody has is let go");
            if (newest_good.count(gone.step()) != 0) violated(fmt::format("step {} is let go, one of the two newest good ones", gone.step()));
            for (const auto& mark : body.marks()) {
                if (mark.step() == gone.step() && mark.pinned()) violated(fmt::format("step {} is let go, which is pinned", gone.step()));
            }
        }
    } else if (record.has_checkpoint_found_damaged() && !record.checkpoint_found_damaged().checkpoint().in_memory()) {
        committed_[record.checkpoint_found_damaged().id().job()][record.checkpoint_found_damaged().checkpoint().step()].good = false;
    } else if (record.has_attempt_ending()) {
        const auto& body = record.attempt_ending();
        ++reached_[proto::FaultKind_Name(body.kind())];
        if (body.cause().find("no progress") != std::string::npos) ++reached_["hang"];
        if (body.cause().find("did not prepare") != std::string::npos) ++reached_["prepare timeout"];
        if (body.back_off_ms() != 0) ++reached_["back-off"];
        say(fmt::format("{}.{} ends: {}", body.id().job(), body.id().attempt(), body.cause()));
    } else if (record.has_preemption_planned()) {
        const auto& body = record.preemption_planned();
        if (!evicted_for_.insert(body.job()).second) violated(fmt::format("job {} has others evicted twice", body.job()));
        if (body.victims_size() == 0) violated("a preemption without victims");
        for (const std::uint64_t victim : body.victims()) {
            if (evicted_for_.count(victim) != 0 && victim == body.job()) violated("a job evicts itself");
            if (ended_jobs_.count(victim) != 0) violated(fmt::format("job {} is evicted after its end", victim));
        }
        say(fmt::format("job {} is made room for: {}", body.job(), body.reason()));
    } else if (record.has_node_part_gone() && record.node_part_gone().presumed()) {
        ++reached_["presumed gone"];
    } else if (record.has_job_ended()) {
        const auto& body = record.job_ended();
        if (!ended_jobs_.insert(body.job()).second) violated(fmt::format("job {} has ended twice", body.job()));
        const AttemptOf attempt{body.job(), newest_attempt_[body.job()]};
        if (body.outcome() == proto::COMPLETED && ranks_exited_well_[attempt] == 0) {
            violated(fmt::format("job {} is COMPLETED, but no rank of its last attempt exited 0", body.job()));
        }
        say(fmt::format("job {} {}: {}", body.job(), proto::JobState_Name(body.outcome()), body.reason()));
    }
}

// The journal replayed is the state.
void World::check_replay() {
    while (shadowed_ < journal_.size()) shadow_.replay(journal_[shadowed_++]);
    if (shadow_.dump() != brain_->dump()) violated("the journal replayed is not the state");
}

std::vector<std::string> World::unfinished() const {
    std::vector<std::string> lines;
    if (!brain_) return {"the coordinator is down"};
    for (const std::uint64_t job : promised_) {
        const proto::JobView shown = view(job);
        if (shown.id() == 0) lines.push_back(fmt::format("job {} is lost", job));
        if (shown.state() < proto::COMPLETED) {
            lines.push_back(fmt::format("job {} is {}: {}", job, proto::JobState_Name(shown.state()), shown.reason()));
        }
        if (live_ranks(job) != 0) lines.push_back(fmt::format("job {} has live ranks", job));
    }
    proto::Request request;
    request.mutable_list_nodes();
    const proto::Response nodes = answer(request);
    for (const proto::NodeView& shown : nodes.nodes()) {
        if (shown.cards_free() != static_cast<std::uint32_t>(shown.node().cards_size()) || shown.state() != "idle") {
            lines.push_back(fmt::format("{} is {} with {} cards free: {}", shown.node().name(), shown.state(), shown.cards_free(), shown.note()));
        }
    }
    return lines;
}

}  // namespace gangline::simulate
