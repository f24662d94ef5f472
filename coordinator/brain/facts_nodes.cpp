// The half of the facts that is about nodes: who holds what, whose fault they are, what is kept for whom, and how each card's time counts.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "coordinator/brain/facts.h"

namespace gangline::coordinator {

Offer Node::offer(std::optional<AttemptKey> kept) const {
    Offer offer = whole_offer(info);
    const auto is_kept = [&](const AttemptKey& key) { return kept && key == *kept; };
    std::erase_if(offer.cards, [&](std::uint32_t card) {
        const auto holder = busy.find(card);
        return holder != busy.end() && !is_kept(holder->second);
    });
    for (const auto& [key, hold] : holds) {
        if (is_kept(key)) continue;
        offer.whole = false;
        if (hold.exclusive) return {.node = info.name(), .address = info.address(), .cards = {}, .whole = false};
        offer.cpus -= std::min(offer.cpus, hold.cpus);
        offer.memory_mib -= std::min(offer.memory_mib, hold.memory_mib);
    }
    return offer;
}

std::uint32_t Node::cards_free() const { return static_cast<std::uint32_t>(offer().cards.size()); }

double Node::lemon_at(std::int64_t unix_ms) const {
    if (lemon == 0) return 0;
    return lemon * std::exp2(-std::max(0.0, static_cast<double>(unix_ms - lemon_ms) / 1000) / kLemonHalfLifeS);
}

std::uint32_t Node::penalty_at(std::int64_t unix_ms) const {
    const double score = lemon_at(unix_ms);
    return score < 1.5 ? 0 : score < 3.5 ? 1 : 2;
}

CardCounts Node::count() const {
    CardCounts counts{};
    const bool alone = std::any_of(holds.begin(), holds.end(), [](const auto& hold) { return hold.second.exclusive && !hold.second.let_go; });
    const bool stuck = std::any_of(holds.begin(), holds.end(), [](const auto& hold) { return hold.second.exclusive && hold.second.let_go; });
    const CardUse unheld = alone ? HeldIdle : stuck || lost ? Broken : drained ? Drained : Free;
    for (const auto& [key, hold] : holds) counts[hold.let_go ? Broken : hold.spare ? HeldIdle : Held] += hold.cards.size();  // though one may be gone
    for (const proto::Card& card : info.cards()) {
        if (!busy.contains(card.index())) ++counts[unheld];
    }
    return counts;
}

double Attempt::idle_card_s_at(std::int64_t unix_ms) const {
    const std::int64_t until_ms = let_go_ms == 0 ? unix_ms : std::min(let_go_ms, unix_ms);
    return idle_card_s + static_cast<double>(idle_cards) * static_cast<double>(std::max<std::int64_t>(0, until_ms - idle_since_ms)) / 1000;
}

void Facts::apply_node(const proto::Record& record) {
    if (record.has_node_known()) {
        const auto [place, is_new] = nodes.try_emplace(record.node_known().node().name());
        place->second.info = record.node_known().node();
        if (is_new) accounts.node_added();
        ++nodes_known;
        return recount(place->second);
    }
    const std::string& name = record.has_node_drained() ? record.node_drained().node()
                              : record.has_node_lost()  ? record.node_lost().node()
                                                        : record.node_returned().node();
    Node* node = this->node(name);
    if (node == nullptr) return;
    if (record.has_node_drained()) {
        node->drained = record.node_drained().drained();
        node->drained_by = record.node_drained().who();
        node->drain_note = record.node_drained().note();
        if (!node->drained) node->lemon = 0;  // whoever resumes it answers for it
    } else if (record.has_node_lost()) {
        if (!node->lost) {
            accounts.node_lost();
            node->lost_ms = record.unix_ms();
            node->lost = true;
            node->lemon = node->lemon_at(record.unix_ms()) + 1;
            node->lemon_ms = std::max(node->lemon_ms, record.unix_ms());
        }
        node->lost_reason = record.node_lost().reason();
    } else {
        if (node->lost) accounts.node_back(record.unix_ms() - node->lost_ms);
        node->lost = false;
        node->lost_reason.clear();
    }
    recount(*node);
}

// `weight`: 1 for a failure of the node itself. A lost node was counted when it was lost.
void Facts::blame(const std::string& name, double weight, std::int64_t unix_ms) {
    Node* node = this->node(name);
    if (node == nullptr || node->lost) return;
    node->lemon = node->lemon_at(unix_ms) + weight;
    node->lemon_ms = std::max(node->lemon_ms, unix_ms);
}

void Facts::recount(Node& node) {
    const CardCounts counts = node.count();
    if (counts == node.counted) return;
    accounts.change(node.counted, counts);
    node.counted = counts;
}

void Facts::set_idle(Attempt& attempt, std::uint64_t cards, std::int64_t unix_ms) {
    attempt.idle_card_s = attempt.idle_card_s_at(unix_ms);
    attempt.idle_cards = cards;
    attempt.idle_since_ms = unix_ms;
}

// All spares of the attempt, in place of those before.
void Facts::apply_spares(const proto::SparesHeld& body, std::int64_t unix_ms) {
    Job* job = current(body.id());
    CHECK(job != nullptr, "spares are held by an attempt that is there");
    Attempt& attempt = job->attempt();
    std::uint64_t idle = attempt.idle_cards;
    for (const std::string& name : attempt.spares) {
        const auto& holds = node(name)->holds;
        const auto hold = holds.find(job->key());
        if (hold != holds.end()) idle -= std::min<std::uint64_t>(idle, hold->second.cards.size());
        erase_hold(name, job->key());
    }
    attempt.spares.clear();
    for (const proto::Placement& place : body.spares()) {
        Node* node = this->node(place.node());
        CHECK(node != nullptr && node->holds.empty(), "a spare is a known node that nobody is on");
        Hold& hold = node->holds[job->key()];
        hold.exclusive = hold.spare = true;
        for (const proto::Card& card : node->info.cards()) {
            hold.cards.push_back(card.index());
            node->busy.emplace(card.index(), job->key());
        }
        idle += hold.cards.size();
        attempt.spares.push_back(place.node());
        recount(*node);
    }
    set_idle(attempt, idle, unix_ms);
}

void Facts::apply_reservation(const proto::Record& record) {
    if (record.has_reservation_ended()) {
        reservations.erase(record.reservation_ended().name());
        return;
    }
    std::erase_if(reservations, [&](const auto& one) { return one.second.end_unix_ms() <= record.unix_ms(); });
    reservations[record.reservation_set().reservation().name()] = record.reservation_set().reservation();
}

void Facts::erase_hold(const std::string& node, const AttemptKey& key) {
    Node* at = this->node(node);
    if (at == nullptr) return;
    at->holds.erase(key);
    std::erase_if(at->busy, [&](const auto& busy) { return busy.second == key; });
    recount(*at);
}

// The job keeps nothing of its newest attempt: what is proved empty is free again, what is not stays `cleaning`.
void Facts::let_go(Job& job, std::int64_t unix_ms) {
    if (job.attempts.empty() || job.attempt().let_go_ms != 0) return;
    for (const Part& part : job.attempt().parts) {
        CHECK(part.state != PartState::Held, "a part is let go only after it is gone");
        if (part.state == PartState::Gone) {
            erase_hold(part.place.node(), job.key());
            continue;
        }
        Node* node = this->node(part.place.node());
        const auto hold = node->holds.find(job.key());
        if (hold == node->holds.end()) continue;
        hold->second.let_go = true;
        recount(*node);
    }
    for (const std::string& spare : job.attempt().spares) erase_hold(spare, job.key());
    set_idle(job.attempt(), 0, unix_ms);
    job.attempt().let_go_ms = unix_ms;
}

JobStory story_of(const Job& job, std::int64_t until_ms, const proto::Progress& live) {
    JobStory story;
    story.submitted_ms = job.submitted_ms;
    story.until_ms = until_ms;
    for (const Attempt& attempt : job.attempts) {
        AttemptStory& one = story.attempts.emplace_back();
        one.reserved_ms = attempt.reserved_ms;
        one.launched_ms = attempt.launched_ms;
        one.joined_ms = attempt.joined_ms;
        one.ended_ms = attempt.ended_ms;
        one.restored_step = attempt.restore ? attempt.restore->step() : 0;
        one.stalled_ms = attempt.end.stalled_ms();
        one.cards = attempt.cards();
        one.let_go_ms = attempt.let_go_ms;
        one.idle_card_s = attempt.idle_card_s_at(until_ms);
        one.progress = attempt.ended_ms == 0 ? live : attempt.end.progress();
    }
    return story;
}

}  // namespace gangline::coordinator
