#include "coordinator/simulate/faults.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <csignal>

namespace gangline::simulate {
namespace {

// What a job must come to, whatever happens to the cluster.
struct Expected {
    bool may_fail = false;
    bool may_be_cancelled = false;
};

class Story {
  public:
    Story(std::uint64_t seed, PlantedBug bug) : random_(seed), world_(draw(seed, bug)) {}

    Outcome tell() {
        const std::uint64_t chapters = 10 + random_.below(20);
        for (std::uint64_t i = 0; i < 2 + random_.below(4); ++i) submit();
        for (std::uint64_t i = 0; i < chapters; ++i) {
            world_.run_for(random_.between(milliseconds(20), milliseconds(1500)));
            happen();
            look();
        }
        world_.stop_faults();
        world_.run_for(seconds(1));
        for (std::uint32_t i = 0; i < world_.options().nodes; ++i) set_drain(name(i), false);
        Outcome outcome;
        const TimePoint patience = world_.now() + seconds(1800);
        bool ended = false;
        while (!(ended = world_.unfinished().empty()) && world_.now() < patience) world_.run_for(milliseconds(200));
        outcome.wrong = world_.violations();
        if (!ended) {
            for (const std::string& line : world_.unfinished()) outcome.wrong.push_back("at the end: " + line);
            for (const std::uint64_t job : world_.promised()) {
                if (world_.view(job).state() >= proto::COMPLETED) continue;
                proto::Request why;
                why.mutable_why_job()->set_job(job);
                const proto::Response answer = world_.answer(why);
                for (const std::string& clause : answer.why().clauses()) outcome.wrong.push_back(fmt::format("job {} waits: {}", job, clause));
            }
        }
        judge(outcome);
        outcome.transcript = world_.transcript();
        outcome.reached = world_.reached();
        for (const auto& [state, times] : seen_) outcome.reached[state] += times;
        if (off_ != 0) outcome.wrong.push_back("a report's causes do not add up to its wall clock");
        if (ledger_off_ != 0) outcome.wrong.push_back("the cluster's causes do not add up to its cards");
        outcome.jobs = world_.promised().size();
        return outcome;
    }

  private:
    WorldOptions draw(std::uint64_t seed, PlantedBug bug) {
        WorldOptions options;
        options.seed = seed * 7919 + 17;
        options.nodes = static_cast<std::uint32_t>(2 + random_.below(4));
        options.cards = static_cast<std::uint32_t>(1 + random_.below(4));
        options.brain.progress_timeout = seconds(4);
        options.brain.prepare_timeout = seconds(5);
        options.brain.stop_timeout = seconds(5);
        options.brain.grace = seconds(1);
        options.brain.keep_reserved = random_.chance(0.5) ? seconds(2) : seconds(30);
        options.brain.guaranteed_run = std::array{seconds(0), seconds(2), seconds(600)}[random_.below(3)];
        options.brain.preemption_grace = std::array{milliseconds(0), milliseconds(500), milliseconds(3000)}[random_.below(3)];
        options.brain.promises = static_cast<std::uint32_t>(random_.below(4));
        options.brain.defragment = random_.chance(0.5);
        options.brain.spread = random_.chance(0.2);
        if (random_.chance(0.2)) options.brain.spares = {coordinator::SparePolicy::How::Number, 1};
        options.check_replay_every = 1 + random_.below(40);
        options.coordinator_dies = random_.chance(0.5) ? 0.004 : 0;
        options.checkpoint_rots = random_.chance(0.3) ? 0.1 : 0;
        options.found_at_rest = options.checkpoint_rots == 0 ? 0 : 0.2;
        options.echo = random_.chance(0.5) ? 0.7 : 0;
        options.most_delay = random_.chance(0.5) ? milliseconds(1) : milliseconds(20);
        options.repeats = random_.chance(0.4) ? 0.02 : 0;
        options.bug = bug;
        return options;
    }

    std::string name(std::uint64_t i) const { return fmt::format("n{}", i); }
    std::string some_node() { return name(random_.below(world_.options().nodes)); }

    std::uint64_t some_job() {
        const auto& jobs = world_.promised();
        if (jobs.empty()) return 0;
        return *std::next(jobs.begin(), static_cast<std::ptrdiff_t>(random_.below(jobs.size())));
    }

    void submit() {
        const std::uint32_t all = world_.options().nodes * world_.options().cards;
        const auto ranks = static_cast<std::uint32_t>(1 + random_.below(all));
        std::vector<std::string> argv;
        Expected expected;
        switch (random_.below(6)) {
            case 0: argv = {"true"}; break;
            case 1: argv = {"sleep", fmt::format("ms={}", 100 + random_.below(4000))}; break;
            case 2:
                argv = {"train", "steps=60", "every=10", "step_ms=60", "fail_rank=0", fmt::format("fail_step={}", 1 + random_.below(50))};
                expected.may_fail = true;
                break;
            default:
                argv = {"train", fmt::format("steps={}", 20 + random_.below(100)), fmt::format("every={}", 5 + random_.below(20)),
                        fmt::format("step_ms={}", 40 + random_.below(100))};
        }
        proto::JobSpec spec = command(ranks, argv);
        spec.set_priority(static_cast<std::int32_t>(random_.below(3)));
        Random own(world_.promised().size() * 31 + ranks);  // other draws stay as they are
        spec.mutable_retention()->set_last(std::array{0u, 2u, 5u}[own.below(3)]);
        spec.mutable_retention()->set_every(own.chance(0.3) ? 20 : 0);
        spec.mutable_retention()->set_best(static_cast<std::uint32_t>(own.below(3)));
        if (random_.chance(0.5)) spec.set_time_limit_s(3600 + random_.below(7200));
        if (random_.chance(0.15) && some_job() != 0) spec.set_dependency(fmt::format("afterany:{}", some_job()));
        if (random_.chance(0.1)) spec.set_within("rack");
        if (random_.chance(0.3)) spec.set_nodes_min(1 + static_cast<std::uint32_t>(random_.below(std::min(ranks, world_.options().nodes))));
        if (random_.chance(0.15)) {
            const auto most = static_cast<std::uint32_t>(1 + random_.below(world_.options().nodes));
            spec.set_elastic(true);
            spec.set_ranks_per_node(static_cast<std::uint32_t>(1 + random_.below(world_.options().cards)));
            spec.set_nodes_min(1);
            spec.set_nodes_max(most);
            spec.set_ranks(most * spec.ranks_per_node());
        }
        if (random_.chance(0.15)) spec.set_spares(1);
        if (random_.chance(0.1)) {
            for (std::uint32_t task = 0; task < 2 + random_.below(3); ++task) spec.add_array_tasks(task * 2);
            spec.mutable_array()->set_most_at_once(static_cast<std::uint32_t>(random_.below(3)));
        }
        if (world_.options().checkpoint_rots > 0) expected.may_fail = true;
        const std::uint64_t job = world_.submit(spec);
        for (int i = 0; job != 0 && i < std::max(1, spec.array_tasks_size()); ++i) expected_[job + static_cast<std::uint64_t>(i)] = expected;
    }

    // A few seconds of a node for nobody, or for one user.
    void reserve() {
        proto::Request request;
        proto::Reservation& one = *request.mutable_set_reservation()->mutable_reservation();
        one.set_name(fmt::format("r{}", random_.below(4)));
        one.add_nodes(some_node());
        const std::int64_t now_ms = world_.unix_ms() + to_ms(random_.between(Duration{0}, seconds(5)));
        one.set_start_unix_ms(now_ms);
        one.set_end_unix_ms(now_ms + to_ms(random_.between(seconds(1), seconds(20))));
        one.set_maintenance(random_.chance(0.7));
        if (!one.maintenance()) one.add_users("bob");
        if (random_.chance(0.2)) request.mutable_set_reservation()->set_end(true);
        world_.ask(std::move(request));
    }

    void set_drain(const std::string& node, bool drain) {
        proto::Request request;
        request.mutable_set_node()->set_node(node);
        request.mutable_set_node()->set_drain(drain);
        world_.ask(std::move(request));
    }

    void happen() {
        World& world = world_;
        const std::string node = some_node();
        const std::uint64_t job = some_job();
        switch (random_.below(15)) {
            case 13: reserve(); break;
            case 0: submit(); break;
            case 1:
            case 2: world.kill_rank(job, static_cast<std::uint32_t>(random_.below(4)), SIGKILL); break;
            case 3: world.stop_rank(job, static_cast<std::uint32_t>(random_.below(4))); break;
            case 4:
            case 5: kill_agent(node); break;
            case 6: kill_node(node); break;
            case 7:
            case 8: world.cut(node, random_.between(milliseconds(10), seconds(6))); break;
            case 9:
                if (!world.coordinator_up()) break;
                world.kill_coordinator();
                later(random_.between(milliseconds(10), seconds(5)), [&world] { world.start_coordinator(); });
                break;
            case 10: {
                const proto::JobView shown = world.view(job);
                if (shown.gang_size() != 0) world.kill_shepherd(shown.gang(0).node(), {job, shown.attempt()});
                break;
            }
            case 11: {
                if (job == 0 || random_.chance(0.5)) break;
                expected_[job].may_be_cancelled = true;
                proto::Request request;
                request.mutable_cancel()->set_job(job);
                const proto::JobView shown = world.view(job);
                if (shown.array().job() == job) {  // its id means all of it
                    for (std::uint64_t one = job; one < job + shown.array().count(); ++one) expected_[one].may_be_cancelled = true;
                }
                world.ask(std::move(request));
                break;
            }
            case 12: set_drain(node, random_.chance(0.5)); break;
            default:
                world.node(node).mute_prepare = true;
                later(random_.between(seconds(1), seconds(8)), [&world, node] { world.node(node).mute_prepare = false; });
        }
    }

    // What only the read-only verbs show.
    void look() {
        if (!world_.coordinator_up()) return;
        proto::Request request;
        request.mutable_list_nodes();
        const proto::Response nodes = world_.answer(request);
        for (const proto::NodeView& node : nodes.nodes()) seen_[node.state()] += 1;
        request.mutable_report_cluster();
        const proto::Response cluster = world_.answer(request);
        double cards_s = 0;
        for (const proto::Cause& cause : cluster.cluster_report().causes()) {
            cards_s += cause.card_s();
            if (cause.card_s() < -1e-6) ++off_;
        }
        const double owned_s = cluster.cluster_report().owned_card_s();
        if (std::abs(cards_s - owned_s) > 1e-3 * owned_s) ++ledger_off_;
        for (const std::uint64_t job : world_.promised()) {
            request.mutable_why_job()->set_job(job);
            world_.answer(request);
            request.mutable_report_job()->set_job(job);
            const proto::Response answer = world_.answer(request);
            double sum = 0;
            for (const proto::Cause& cause : answer.report().causes()) sum += cause.wall_s();
            if (std::abs(sum - answer.report().wall_s()) > 1e-6 && answer.report().causes_size() != 0) ++off_;
        }
    }

    void kill_agent(const std::string& node) {
        world_.kill_agent(node);
        later(random_.between(milliseconds(50), seconds(6)), [this, node] { world_.start_agent(node); });
    }
    void kill_node(const std::string& node) {
        world_.kill_node(node);
        later(random_.between(seconds(1), random_.chance(0.15) ? seconds(90) : seconds(15)), [this, node] { world_.start_node(node); });
    }
    void later(Duration delay, std::function<void()> what) { world_.later(delay, std::move(what)); }

    void judge(Outcome& outcome) {
        for (const auto& [job, expected] : expected_) {
            const proto::JobView shown = world_.view(job);
            const bool looped = shown.state() == proto::FAILED && shown.reason().find("a crash loop") != std::string::npos;
            const bool fine = looped || shown.state() == proto::COMPLETED || (shown.state() == proto::FAILED && expected.may_fail) ||
                              (shown.state() == proto::CANCELLED && expected.may_be_cancelled);
            if (!fine) outcome.wrong.push_back(fmt::format("job {} is {}: {}", job, proto::JobState_Name(shown.state()), shown.reason()));
        }
    }

    Random random_;
    World world_;
    std::map<std::uint64_t, Expected> expected_;
    std::map<std::string, std::uint64_t> seen_;  // node states
    std::uint64_t off_ = 0;
    std::uint64_t ledger_off_ = 0;
};

}  // namespace

proto::JobSpec command(std::uint32_t ranks, std::vector<std::string> argv) {
    proto::JobSpec spec;
    spec.set_name(argv.front());
    for (std::string& word : argv) spec.add_argv(std::move(word));
    spec.set_cwd("/tmp");
    spec.set_ranks(ranks);
    return spec;
}

Outcome run_seed(std::uint64_t seed, PlantedBug bug) { return Story(seed, bug).tell(); }

Outcome run_seed_twice(std::uint64_t seed) {
    Outcome first = run_seed(seed);
    const Outcome second = run_seed(seed);
    if (first.transcript != second.transcript) first.wrong.push_back("the same seed told two stories");
    return first;
}

}  // namespace gangline::simulate
