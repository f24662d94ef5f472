// What a submit must be, and what can never run. A bad request is USAGE, one that no node could ever hold is REFUSED.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/text.h"
#include "coordinator/brain/core.h"
#include "coordinator/brain/retention.h"

namespace gangline::coordinator {
namespace {

constexpr std::uint32_t kMostRanks = 65'536;
constexpr std::uint32_t kMostSpares = 1024;
constexpr int kMostTasks = 10'000;
constexpr std::size_t kMostSpecBytes = 2u << 20;

bool is_absolute(const std::string& path) { return !path.empty() && path.front() == '/'; }

std::string what_is_wrong_with_array(const proto::JobSpec& spec) {
    if (spec.array_tasks().empty()) return spec.has_array() && spec.array().count() != 0 ? "--array: it has no task" : "";
    if (spec.array_tasks_size() > kMostTasks) return fmt::format("--array: {} tasks; at most {} are taken", spec.array_tasks_size(), kMostTasks);
    if (!std::is_sorted(spec.array_tasks().begin(), spec.array_tasks().end(), std::less_equal<>())) return "--array: its tasks rise, and none comes twice";
    return {};
}

std::string what_is_wrong_with_retention(const proto::Retention& retention) {
    if (retention.last() == 1 || retention.last() > kMostKept) {
        return fmt::format("--keep-last {}: {} to {} are accepted; two at least, since the newest may turn out damaged", retention.last(), kLeastLast, kMostKept);
    }
    if (retention.every() > kMostEvery) return fmt::format("--keep-every {}: 0 to {} steps are accepted", retention.every(), kMostEvery);
    if (retention.best() > kMostKept) return fmt::format("--keep-best {}: 0 to {} are accepted", retention.best(), kMostKept);
    return {};
}

// Empty: good. Otherwise the option, its value, the range.
std::string what_is_wrong(const proto::JobSpec& spec) {
    if (spec.argv().empty() == spec.script().empty()) return "give either a command (after --) or a script, not both";
    if (!spec.argv().empty() && spec.argv(0).empty()) return "the command's name is empty";
    if (spec.ranks() < 1 || spec.ranks() > kMostRanks) {
        return fmt::format("--ranks {}: a gang has 1 to {} ranks", spec.ranks(), kMostRanks);
    }
    if (spec.nodes_min() > spec.ranks()) {
        return fmt::format("--nodes {}: more nodes than the {} ranks; ask for at most {}", spec.nodes_min(), spec.ranks(),
                           spec.ranks());
    }
    if (spec.nodes_max() != 0 && spec.nodes_min() > spec.nodes_max()) {
        return fmt::format("--nodes {}-{}: the smaller number comes first", spec.nodes_min(), spec.nodes_max());
    }
    if (spec.ranks_per_node() != 0) {
        const std::uint32_t nodes = (spec.ranks() + spec.ranks_per_node() - 1) / spec.ranks_per_node();
        if (nodes < spec.nodes_min() || (spec.nodes_max() != 0 && nodes > spec.nodes_max())) {
            return fmt::format("--ntasks-per-node {}: {} ranks make {} nodes, but --nodes asks for {}{}", spec.ranks_per_node(),
                               spec.ranks(), nodes, spec.nodes_min(),
                               spec.nodes_max() == 0 ? " or more" : fmt::format(" to {}", spec.nodes_max()));
        }
    }
    if (std::uint64_t{spec.ranks()} * spec.cards_per_rank() > std::uint64_t{kMostRanks} * 64) {
        return fmt::format("{} cards a rank: too many", spec.cards_per_rank());
    }
    if (!spec.within().empty() && spec.within() != "rack" && spec.within() != "block") {
        return fmt::format("within '{}': write rack or block", spec.within());
    }
    if (spec.time_min_s() != 0 && (spec.time_limit_s() == 0 || spec.time_min_s() > spec.time_limit_s())) {
        return fmt::format("--time-min {} s: give a --time that is longer", spec.time_min_s());
    }
    if (spec.elastic() && (spec.ranks_per_node() == 0 || spec.nodes_max() == 0 || spec.ranks() != spec.nodes_max() * spec.ranks_per_node())) {
        return "--nodes MIN-MAX: an elastic gang has the same number of ranks on each node";
    }
    if (spec.elastic() && (spec.nodes_min() == 0 || (spec.nodes_max() - spec.nodes_min()) % std::max(1u, spec.nodes_step()) != 0)) {
        return fmt::format("--nodes {}-{}:{}: from the least number to the most it goes in whole steps", spec.nodes_min(), spec.nodes_max(), spec.nodes_step());
    }
    if (spec.segment() > 1 && (spec.nodes_min() == 0 || spec.nodes_min() % spec.segment() != 0 || (spec.elastic() && spec.nodes_step() % spec.segment() != 0))) {
        return fmt::format("--segment {}: --nodes must be a multiple of it{}", spec.segment(), spec.elastic() ? ", and its step" : "");
    }
    if (spec.spares() > kMostSpares) return fmt::format("--spares {}: 0 to {} are accepted", spec.spares(), kMostSpares);
    if (const auto constraint = parse_constraint(spec.constraint()); !constraint) return constraint.error().message;
    if (const std::string wrong = what_is_wrong_with_array(spec); !wrong.empty()) return wrong;
    if (const auto dependency = parse_dependency(spec.dependency()); !dependency) return dependency.error().message;
    if (!is_absolute(spec.cwd())) return fmt::format("--chdir '{}': give an absolute folder", spec.cwd());
    if (!spec.checkpoint_folder().empty() && !is_absolute(spec.checkpoint_folder())) {
        return fmt::format("--checkpoint-dir '{}': give an absolute folder", spec.checkpoint_folder());
    }
    if (const std::string wrong = what_is_wrong_with_retention(spec.retention()); !wrong.empty()) return wrong;
    if (spec.ByteSizeLong() > kMostSpecBytes) {
        return fmt::format("the job is {} bytes with its environment and script; at most {} are taken", spec.ByteSizeLong(),
                           kMostSpecBytes);
    }
    return {};
}

}  // namespace

// The clause that rules the job out on all known nodes, were they whole and healthy. Empty: it may run some day.
std::string Brain::State::never_fits(const proto::JobSpec& spec) const {
    if (facts.nodes.empty()) return {};  // a cluster that is just coming up
    const Need need = need_of(spec);
    for (const std::string& name : need.only) {
        if (facts.node(name) == nullptr) {
            std::string known;
            for (const auto& [node, one] : facts.nodes) known += (known.empty() ? "" : ", ") + node;
            return fmt::format("--nodelist names {}, which is unknown; known nodes: {}", name, known);
        }
    }
    const Roster& order = nodes_in_order();
    if (const auto gang = order.empty->place_ignoring_promises(shape_for(need.smallest()))) {
        const std::uint32_t spares = spares_wanted();
        if (spares == 0 || gang->size() + spares <= order.names.size()) return {};
        return fmt::format("it needs {} of {} nodes, and the coordinator keeps {} as spares (--spares)", gang->size(), order.names.size(), spares);
    }
    const auto its_own = facts.reservations.find(need.reservation);
    std::vector<Offer> offers;
    for (std::size_t i = 0; i < order.names.size(); ++i) {
        if (its_own != facts.reservations.end() && std::find(its_own->second.nodes().begin(), its_own->second.nodes().end(), order.names[i]) == its_own->second.nodes().end()) continue;
        offers.push_back(whole_offer(order.nodes[i]->info));
        describe(offers.back(), i);
    }
    return misfit(need, offers);
}

void Brain::State::submit(const FromUser& event) {
    const proto::Submit& request = event.request.submit();
    const proto::JobSpec& spec = request.spec();
    if (const std::string wrong = what_is_wrong(spec); !wrong.empty()) return reply(event, proto::USAGE, wrong);
    if (spec.priority() > 0 && !event.who.is_operator) {
        return reply(event, proto::REFUSED, fmt::format("--priority {}: only operators raise a job above 0; lower it as you like", spec.priority()));
    }
    if (!spec.idempotency_key().empty()) {
        if (const auto earlier = facts.submitted_with(event.who.user, spec.idempotency_key())) {
            return reply(event, proto::OK, fmt::format("submitted before as job {}", *earlier), *earlier);
        }
    }
    if (const auto dependency = parse_dependency(spec.dependency())) {
        for (const DependencyTerm& term : dependency->terms) {
            const bool is_there = term.task ? element(term.job, *term.task) != nullptr : facts.find(term.job) != nullptr || facts.arrays.contains(term.job);
            if (term.after == After::Singleton || is_there || (term.job <= facts.last_job && term.after == After::Any)) continue;
            return reply(event, proto::REFUSED, fmt::format("--dependency {}: there is no job {}{}", text_of(term), term.job, term.task ? fmt::format("_{}", *term.task) : ""));
        }
    }
    if (!spec.reservation().empty()) {
        const auto found = facts.reservations.find(spec.reservation());
        if (found == facts.reservations.end() || found->second.end_unix_ms() <= now.unix_ms) {
            return reply(event, proto::REFUSED, fmt::format("--reservation {}: there is none of this name; gangline reservations lists them", spec.reservation()));
        }
        if (!may_use(found->second, event.who.user)) {
            return reply(event, proto::REFUSED, fmt::format("--reservation {}: it is not for {}", spec.reservation(), event.who.user));
        }
    }
    if (spec.deadline_unix_ms() != 0 && now.unix_ms + static_cast<std::int64_t>(spec.time_limit_s()) * 1000 > spec.deadline_unix_ms()) {
        return reply(event, proto::REFUSED, fmt::format("--deadline {}: it is over before the job could end", iso_time(spec.deadline_unix_ms())));
    }
    if (const std::string clause = never_fits(spec); !clause.empty()) {
        return reply(event, proto::REFUSED, "this can never run here: " + clause);
    }
    const auto waiting = facts.waiting_of_user.find(event.who.user);
    if (waiting != facts.waiting_of_user.end() && waiting->second + static_cast<std::uint64_t>(spec.array_tasks_size()) >= options.most_queued_per_user) {
        return reply(event, proto::REFUSED, fmt::format("{} has {} jobs queued; at most {} are taken", event.who.user,
                                                        waiting->second, options.most_queued_per_user));
    }
    if (request.test_only()) {
        const auto gang = place(need_of(spec), offers());
        if (!gang) return reply(event, proto::OK, "it is well formed and would wait for cards now");
        std::string nodes;
        for (const proto::Placement& one : *gang) nodes += (nodes.empty() ? "" : ", ") + one.node();
        return reply(event, proto::OK, "it is well formed and would start now on " + nodes);
    }
    proto::Record submitted;
    proto::JobSubmitted& body = *submitted.mutable_job_submitted();
    body.set_job(std::max(facts.last_job + 1, options.first_job));
    body.set_user(event.who.user);
    body.set_uid(event.who.uid);
    body.set_gid(event.who.gid);
    for (const std::uint32_t group : event.who.groups) body.add_groups(group);
    body.set_home(event.who.home);
    *body.mutable_spec() = spec;
    if (spec.array_tasks().empty()) {
        body.mutable_spec()->clear_array();
    } else {
        proto::ArrayElement& array = *body.mutable_spec()->mutable_array();
        array.set_count(static_cast<std::uint32_t>(spec.array_tasks_size()));
        array.set_least(spec.array_tasks(0));
        array.set_most(spec.array_tasks(spec.array_tasks_size() - 1));
        array.set_step(std::max(1u, array.step()));
    }
    const std::uint64_t first = body.job();
    record(std::move(submitted));
    place_wanted = true;
    reply(event, proto::OK, "", first);
    std::get<Reply>(others.back()).response.set_tasks(static_cast<std::uint32_t>(spec.array_tasks_size()));
}

}  // namespace gangline::coordinator
