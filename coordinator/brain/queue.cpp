// The order of the queue, what holds a job back besides cards, and how much its team and its array may hold.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/text.h"
#include "coordinator/brain/core.h"

namespace gangline::coordinator {
namespace {

constexpr std::int64_t kUnknownRunMs = 3'600'000;  // of a user who has run nothing

}  // namespace

// From its user's history; never more than its limit.
std::int64_t Brain::State::expected_run_ms(const Job& job) const {
    const auto found = facts.users.find(job.user);
    const History none;
    const History& user = found == facts.users.end() ? none : found->second;
    const auto limit_ms = static_cast<std::int64_t>(job.spec.time_limit_s()) * 1000;
    if (limit_ms != 0) return user.with_limit == 0 ? limit_ms : std::llround(static_cast<double>(limit_ms) * user.of_limit);
    return user.jobs == 0 ? kUnknownRunMs : std::llround(user.run_s * 1000);
}

// Each user's factor, 1 for who used nothing to 0 for who used it all, over the tree of teams and users (shares of siblings):
//
//   effective use(child) = use(child) + (effective use(parent) - use(child)) x its part of its siblings' shares
//   factor(user)         = 2^-(effective use / the product of such parts on its way from the root)
//
// Users of no team, and teams without a parent, are the root's children: their effective use is their use.
// Source: Slurm, Multifactor Priority Plugin, "Fair Share" (classic).
std::map<std::string, double> Brain::State::fair_shares() const {
    struct Branch {
        std::string parent;
        double share = 1;
        double use = 0;
    };
    std::map<std::string, Branch> users;
    std::map<std::string, Branch> teams;
    double all = 0;
    const auto add = [&](const std::string& user, double used) {
        const auto [place, is_new] = users.try_emplace(user);
        if (is_new) {
            if (const Team* team = options.fleet.team_of(user)) place->second.parent = team->name;
        }
        place->second.use += used;
        all += used;
    };
    for (const auto& [name, team] : options.fleet.teams) teams[name] = {team.parent, team.share, 0};
    for (const auto& [name, waiting] : facts.waiting_of_user) add(name, 0);
    for (const auto& [name, user] : facts.users) {
        const double since_s = static_cast<double>(now.unix_ms - user.at_ms) / 1000;
        add(name, user.used_card_s * std::exp2(-std::max(0.0, since_s) / kUseHalfLifeS));
    }
    for (const std::uint64_t id : facts.active) {
        const Job& job = *facts.find(id);
        add(job.user, static_cast<double>(job.attempt().cards()) * static_cast<double>(now.unix_ms - job.attempt().reserved_ms) / 1000);
    }
    std::map<std::string, double> siblings;  // parent -> shares of its children; "" = the root
    for (const auto& [name, user] : users) {
        siblings[user.parent] += user.share;
        for (std::string team = user.parent; !team.empty(); team = teams[team].parent) teams[team].use += user.use;
    }
    for (const auto& [name, team] : teams) siblings[team.parent] += team.share;
    const auto part = [&](const Branch& one) { return one.share / siblings[one.parent]; };
    const auto use_of = [&](const Branch& one) { return all > 0 ? one.use / all : 0; };
    const std::function<double(const Branch&)> effective = [&](const Branch& one) -> double {
        if (one.parent.empty()) return use_of(one);
        return use_of(one) + (effective(teams[one.parent]) - use_of(one)) * part(one);
    };
    const std::function<double(const Branch&)> product = [&](const Branch& one) -> double {
        return part(one) * (one.parent.empty() ? 1 : product(teams[one.parent]));
    };
    std::map<std::string, double> factors;
    for (const auto& [name, user] : users) factors[name] = std::exp2(-effective(user) / product(user));
    return factors;
}

std::vector<Job*> Brain::State::queue_in_order() const {
    std::vector<Job*> order;
    order.reserve(facts.queue.size());
    for (const auto& [key, job] : facts.queue) order.push_back(job);
    const std::map<std::string, double> shares = facts.waiting_of_user.size() > 1 ? fair_shares() : std::map<std::string, double>();
    std::uint64_t cards = 0;
    for (const Node* node : nodes_in_order().nodes) cards += static_cast<std::uint64_t>(node->info.cards_size());
    std::vector<std::pair<double, Job*>> scored;
    scored.reserve(order.size());
    for (Job* job : order) {
        const auto fair = shares.find(job->user);
        const double days = static_cast<double>(now.unix_ms - job->submitted_ms) / 86'400'000;
        const double size = cards == 0 ? 0 : static_cast<double>(facts.needs[job->need].cards()) / static_cast<double>(cards);
        const double brief = job->spec.time_limit_s() == 0 ? 0 : short_bonus(facts.needs[job->need].cards(), static_cast<double>(job->spec.time_limit_s()));
        scored.emplace_back(options.share_weight * (fair == shares.end() ? 0 : fair->second) + options.age_weight_per_day * days + options.size_weight * size + options.short_weight * brief, job);
    }
    std::stable_sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) {
        const auto class_a = a.second->spec.priority();
        const auto class_b = b.second->spec.priority();
        return class_a != class_b ? class_a > class_b : a.first > b.first;
    });
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = scored[i].second;
    return order;
}

namespace {

// Empty: met. `never`: it cannot be met any more.
std::string unmet_by(const DependencyTerm& term, const Job* other, std::int64_t at_ms, bool& never, std::int64_t& wake_ms) {
    if (other == nullptr) return {};  // ended so long ago that it is forgotten
    const bool ended = is_ended(other->state);
    const bool ok = other->state == proto::COMPLETED;
    switch (term.after) {
        case After::Start: {
            const std::int64_t started_ms = !other->attempts.empty() ? other->attempts.front().reserved_ms : ended ? other->ended_ms : 0;
            if (started_ms == 0) return fmt::format("job {} has not started", other->name());
            const std::int64_t due_ms = started_ms + std::int64_t{term.minutes} * 60'000;
            if (at_ms >= due_ms) return {};
            wake_ms = std::min(wake_ms, due_ms);
            return fmt::format("job {} started less than {} minutes ago", other->name(), term.minutes);
        }
        case After::Any: return ended ? "" : fmt::format("job {} has not ended", other->name());
        case After::Corr:
        case After::Ok:
            never = never || (ended && !ok);
            return ok ? "" : ended ? fmt::format("job {} has not completed but is {}", other->name(), proto::JobState_Name(other->state))
                                   : fmt::format("job {} has not ended", other->name());
        case After::NotOk:
            never = never || ok;
            return ended && !ok ? "" : ended ? fmt::format("job {} has completed", other->name()) : fmt::format("job {} has not ended", other->name());
        case After::Singleton: return {};
    }
    return {};
}

}  // namespace

// The elements of an array, or the job itself.
std::vector<const Job*> Brain::State::elements(std::uint64_t id) const {
    const auto array = facts.arrays.find(id);
    std::vector<const Job*> all;
    for (std::uint64_t one = id; one < id + (array == facts.arrays.end() ? 1 : array->second.count); ++one) {
        if (const Job* job = facts.find(one)) all.push_back(job);
    }
    return all;
}

// Its elements' ids and tasks rise together.
const Job* Brain::State::element(std::uint64_t array, std::uint32_t task) const {
    const auto found = facts.arrays.find(array);
    if (found == facts.arrays.end()) return nullptr;
    auto low = facts.jobs.lower_bound(array);
    const auto end = facts.jobs.lower_bound(array + found->second.count);
    std::uint64_t first = array;
    for (std::uint64_t last = array + found->second.count; first < last;) {
        const std::uint64_t middle = first + (last - first) / 2;
        low = facts.jobs.lower_bound(middle);
        if (low == end || low->second.spec.array().task() >= task) {
            last = middle;
        } else {
            first = low->first + 1;
        }
    }
    const Job* job = facts.find(first);
    return job != nullptr && job->spec.has_array() && job->spec.array().job() == array && job->spec.array().task() == task ? job : nullptr;
}

namespace {

std::string unmet_by_array(const DependencyTerm& term, const ArrayTally& array, std::int64_t at_ms, bool& never, std::int64_t& wake_ms) {
    const std::uint32_t failed = array.ended - array.completed;
    const auto some = [&](std::uint32_t count, const char* what) { return fmt::format("{} of the {} jobs of array {} {}", count, array.count, term.job, what); };
    switch (term.after) {
        case After::Start: {
            if (array.started < array.count) return some(array.count - array.started, "have not started");
            const std::int64_t due_ms = array.last_start_ms + std::int64_t{term.minutes} * 60'000;
            if (at_ms >= due_ms) return {};
            wake_ms = std::min(wake_ms, due_ms);
            return fmt::format("array {} started less than {} minutes ago", term.job, term.minutes);
        }
        case After::Any: return array.ended == array.count ? "" : some(array.count - array.ended, "have not ended");
        case After::Corr:
        case After::Ok:
            never = never || failed != 0;
            return array.completed == array.count ? "" : failed != 0 ? some(failed, "have ended without completing") : some(array.count - array.ended, "have not ended");
        case After::NotOk:
            never = never || array.completed != 0;
            return failed == array.count ? "" : array.completed != 0 ? some(array.completed, "have completed") : some(array.count - array.ended, "have not ended");
        case After::Singleton: return {};
    }
    return {};
}

}  // namespace

// An array is met when each of its elements is; for aftercorr the element of the same number counts, where both are arrays. One without a
// partner waits for nothing.
std::string Brain::State::unmet(const DependencyTerm& term, const Job& job, std::int64_t at_ms, bool& never, std::int64_t& wake_ms) const {
    const auto array = facts.arrays.find(term.job);
    if (array == facts.arrays.end()) return unmet_by(term, facts.find(term.job), at_ms, never, wake_ms);
    if (term.task) return unmet_by(term, element(term.job, *term.task), at_ms, never, wake_ms);
    if (term.after == After::Corr && job.spec.has_array()) return unmet_by(term, element(term.job, job.spec.array().task()), at_ms, never, wake_ms);
    return unmet_by_array(term, array->second, at_ms, never, wake_ms);
}

// The first job of this user and name that has not ended; found for all at once, and again when something has changed.
std::uint64_t Brain::State::first_of_name(const Job& job) const {
    if (singletons.version != facts.version) {
        singletons = {facts.version, {}};
        for (const auto& [id, other] : facts.jobs) {
            if (!is_ended(other.state)) singletons.first.emplace(std::pair(other.user, other.spec.name()), id);
        }
    }
    const auto found = singletons.first.find({job.user, job.spec.name()});
    return found == singletons.first.end() ? job.id : found->second;
}

std::string Brain::State::what_it_awaits(const Job& job, std::int64_t at_ms, std::int64_t& wake_ms) const {
    if (job.spec.begin_unix_ms() > at_ms) {
        wake_ms = std::min(wake_ms, job.spec.begin_unix_ms());
        return fmt::format("its begin time (--begin) is in {}", human_duration(static_cast<double>(job.spec.begin_unix_ms() - at_ms) / 1000));
    }
    if (const std::string& name = job.spec.reservation(); !name.empty()) {
        const auto found = facts.reservations.find(name);
        if (found == facts.reservations.end() || found->second.end_unix_ms() <= at_ms) {
            return fmt::format("its reservation {} (--reservation) is over; cancel it, or submit it again without", name);
        }
        if (!may_use(found->second, job.user)) return fmt::format("its reservation {} is not for {} any more", name, job.user);
        if (found->second.start_unix_ms() > at_ms) {
            wake_ms = std::min(wake_ms, found->second.start_unix_ms());
            return fmt::format("its reservation {} begins in {}", name, human_duration(static_cast<double>(found->second.start_unix_ms() - at_ms) / 1000));
        }
    }
    if (!job.dependency || !job.attempts.empty()) return {};  // it was met once
    std::string open;
    bool all_never = true;
    bool one_never = false;
    for (const DependencyTerm& term : job.dependency->terms) {
        bool never = false;
        std::string why;
        if (term.after == After::Singleton) {
            if (const std::uint64_t first = first_of_name(job); first < job.id) why = fmt::format("job {} of the same name has not ended", first);
        } else {
            why = unmet(term, job, at_ms, never, wake_ms);
        }
        if (why.empty() && job.dependency->any) return {};
        all_never = all_never && never;
        one_never = one_never || never;
        if (!why.empty()) open += fmt::format("{}{} ({})", open.empty() ? "" : job.dependency->any ? " or " : ", ", text_of(term), why);
    }
    if (open.empty()) return {};
    const bool lost = job.dependency->any ? all_never : one_never;
    return fmt::format("its dependency {}{}", open, lost ? ": that can never be met now; cancel it, or submit it again without" : "");
}

// --switches=1@WAIT: whether the wait is over.
bool Brain::State::has_waited_for_domain(const Job& job, std::int64_t at_ms, std::int64_t& wake_ms) const {
    if (job.spec.within_wait_s() == 0 || facts.needs[job.need].within == Level::Cluster) return false;
    const std::int64_t until_ms = job.submitted_ms + static_cast<std::int64_t>(job.spec.within_wait_s()) * 1000;
    if (at_ms >= until_ms) return true;
    wake_ms = std::min(wake_ms, until_ms);
    return false;
}

// A job that could not end by its deadline any more is ended unstarted.
bool Brain::State::misses_deadline(Job& job, std::int64_t& wake_ms) {
    if (job.spec.deadline_unix_ms() == 0) return false;
    const std::uint64_t least_s = job.spec.time_min_s() != 0 ? job.spec.time_min_s() : job.spec.time_limit_s();
    const std::int64_t latest_ms = job.spec.deadline_unix_ms() - static_cast<std::int64_t>(least_s) * 1000;
    if (now.unix_ms <= latest_ms) {
        wake_ms = std::min(wake_ms, latest_ms + 1);
        return false;
    }
    finish_job(job, proto::CANCELLED, fmt::format("its deadline ({}) can be met no more", iso_time(job.spec.deadline_unix_ms())));
    return true;
}

// The teams of the cluster file, with what their users' gangs hold now. Returns each team's index.
std::map<std::string, std::int32_t> Brain::State::team_limits(std::vector<HeldLimit>& limits) const {
    std::map<std::string, std::int32_t> index;
    for (const auto& [name, team] : options.fleet.teams) {
        index[name] = static_cast<std::int32_t>(limits.size());
        limits.push_back({.held = 0, .most = team.most_cards.value_or(~0ull)});
    }
    for (const auto& [name, team] : options.fleet.teams) {
        if (!team.parent.empty()) limits[static_cast<std::size_t>(index[name])].parent = index.at(team.parent);
    }
    if (limits.empty()) return index;
    for (const std::uint64_t id : facts.active) {
        const Job& job = *facts.find(id);
        const Team* team = options.fleet.team_of(job.user);
        for (std::int32_t at = team == nullptr ? -1 : index.at(team->name); at >= 0; at = limits[static_cast<std::size_t>(at)].parent) {
            limits[static_cast<std::size_t>(at)].held += job.attempt().cards();
        }
    }
    return index;
}

// The limit of its array (--array=...%N), below its team's; without one its team's.
std::int32_t Brain::State::array_limit(const Job& job, std::int32_t team, std::vector<HeldLimit>& limits, std::map<std::uint64_t, std::int32_t>& known) const {
    if (job.spec.array().most_at_once() == 0) return team;
    const auto [place, is_new] = known.emplace(job.spec.array().job(), static_cast<std::int32_t>(limits.size()));
    if (is_new) {
        const auto& array = job.spec.array();
        std::uint64_t held = 0;
        for (auto id = facts.active.lower_bound(array.job()); id != facts.active.end() && *id < array.job() + array.count(); ++id) ++held;
        limits.push_back({.held = held, .most = array.most_at_once(), .parent = team, .counts_jobs = true});
    }
    return place->second;
}

}  // namespace gangline::coordinator
