#include "coordinator/simulate/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <queue>
#include <random>

#include "base/check.h"
#include "coordinator/schedule/plan.h"

namespace gangline::simulate {
namespace {

using coordinator::Cluster;
using coordinator::kNever;
using coordinator::Ms;
using coordinator::Shape;
using coordinator::Share;
using coordinator::Shares;

constexpr double kSampleS = 600;  // between points of ReplayResult::used

Ms to_ms(double seconds) { return seconds >= 9e15 ? kNever : static_cast<Ms>(std::llround(seconds * 1000)); }

enum class What { Submit, End, Fault, Resume, NodeBack, RackFault };

struct Event {
    double at_s = 0;
    std::uint64_t order = 0;
    What what = What::Submit;
    std::uint32_t who = 0;         // job, node or rack
    std::uint32_t generation = 0;  // of the job: an older one is nobody's
    bool operator>(const Event& other) const { return std::pair(at_s, order) > std::pair(other.at_s, other.order); }
};

struct Run {
    TraceJob trace;
    Shape shape;
    std::uint32_t generation = 0;
    bool waiting = false;
    bool running = false;
    bool done = false;
    bool recovering = false;  // or starting: no useful work yet
    double started_s = -1;
    double left_s = 0;        // useful seconds at full width
    double since_s = 0;       // useful again since
    double unproductive_s = 0;  // when useful work last stopped; for the worst stretch
    double width = 1;         // part of its nodes
    std::uint32_t gang = 0;
    Shares shares;
    std::uint32_t lost_nodes = 0;
};

class Replay {
  public:
    Replay(const ReplayOptions& options, const std::vector<TraceJob>& jobs)
        : options_(options), random_(options.seed), cluster_(seeds(options)) {
        cards_ = static_cast<double>(options.nodes) * options.cards_per_node;
        node_open_.assign(options.nodes, true);
        lemons_ = static_cast<std::uint32_t>(std::lround(options.lemon_nodes * options.nodes));
        for (const TraceJob& job : jobs) {
            last_submit_s_ = std::max(last_submit_s_, job.submit_s);
            add_job(job);
        }
        if (options.whole_cluster_job != 0) add_training();
        if (options.rack_faults_per_rack_year > 0) {
            racks_ = (options.nodes + options.nodes_per_rack - 1) / options.nodes_per_rack;
            for (std::uint32_t rack = 0; rack < racks_; ++rack) push(rack_fault_in(), What::RackFault, rack, 0);
        }
    }

    ReplayResult run() {
        while (!events_.empty()) {
            const Event event = events_.top();
            if (options_.span_s > 0 && event.at_s > options_.span_s) break;
            if (unfinished_ == 0 && event.what != What::NodeBack) break;
            events_.pop();
            advance(event.at_s);
            handle(event);
            if (events_.empty() || events_.top().at_s > now_s_) pass();
        }
        finish();
        return std::move(result_);
    }

  private:
    static std::vector<coordinator::NodeSeed> seeds(const ReplayOptions& options) {
        std::vector<coordinator::NodeSeed> list(options.nodes);
        for (std::uint32_t i = 0; i < options.nodes; ++i) {
            list[i].all = {options.cards_per_node, 1u << 20, std::uint64_t{1} << 40};
            list[i].rack = i / options.nodes_per_rack;
            list[i].block = list[i].rack / options.racks_per_block;
        }
        return list;
    }

    // ---- jobs

    void add_job(const TraceJob& trace) {
        Run run;
        run.trace = trace;
        run.left_s = trace.duration_s;
        run.shape.ranks = trace.cards;
        if (trace.nodes != 0 && trace.cards % trace.nodes == 0) {
            run.shape.ranks_per_node = trace.cards / trace.nodes;
        } else if (trace.cards > options_.cards_per_node && trace.cards % options_.cards_per_node == 0) {
            run.shape.ranks_per_node = options_.cards_per_node;
        }
        push(trace.submit_s, What::Submit, static_cast<std::uint32_t>(runs_.size()), 0);
        runs_.push_back(std::move(run));
        ++unfinished_;
    }

    void add_training() {
        TraceJob job;
        job.cards = options_.whole_cluster_job * options_.cards_per_node;
        job.nodes = options_.whole_cluster_job;
        job.duration_s = 1e12;
        add_job(job);
    }

    double limit_s(const Run& run) const {
        return run.trace.limit_s > 0 ? std::max(run.trace.limit_s, run.trace.duration_s) : run.trace.duration_s * options_.limit_factor;
    }

    // ---- time

    void push(double at_s, What what, std::uint32_t who, std::uint32_t generation) { events_.push({at_s, next_order_++, what, who, generation}); }

    void charge(const char* cause, double card_s) { result_.causes[cause] += card_s; }

    void advance(double to_s) {
        const double dt = to_s - now_s_;
        if (dt > 0) {
            const double held = static_cast<double>(held_cards_);
            held_card_s_ += held * dt;
            if (to_s <= last_submit_s_) held_until_last_ += held * dt;
            // What a gang misses is the gang's, be the node broken or just back.
            const double broken = static_cast<double>(broken_ - std::min(broken_, missing_)) * options_.cards_per_node;
            charge("broken", broken * dt);
            const double free = cards_ - held - broken;
            charge("free", free * dt);
            stranded_ += stranded_now_ * dt;
            if (result_.used.empty() || to_s - result_.used.back().first > kSampleS) result_.used.emplace_back(to_s, held / cards_);
        }
        now_s_ = to_s;
    }

    std::uint32_t width_nodes(const Run& run) const { return static_cast<std::uint32_t>(run.shares.size()); }
    double cards_of(const Run& run) const { return static_cast<double>(run.trace.cards); }

    // ---- events

    void handle(const Event& event) {
        switch (event.what) {
            case What::Submit:
                runs_[event.who].waiting = true;
                queue_.push_back(event.who);
                dirty_ = true;
                return;
            case What::End:
                return runs_[event.who].generation == event.generation ? end(runs_[event.who]) : void();
            case What::Fault:
                return runs_[event.who].generation == event.generation ? fault(event.who) : void();
            case What::Resume:
                return runs_[event.who].generation == event.generation ? resume(event.who) : void();
            case What::NodeBack: return node_back(event.who);
            case What::RackFault: return rack_fault(event.who);
        }
    }

    void start(std::uint32_t index, Shares shares) {
        Run& run = runs_[index];
        run.waiting = false;
        run.running = true;
        run.started_s = now_s_;
        run.shares = std::move(shares);
        held_cards_ += run.trace.cards;
        waits_.emplace_back(run.trace.cards, now_s_ - run.trace.submit_s);
        run.unproductive_s = now_s_;
        run.recovering = true;
        const Phases& phases = options_.phases;
        const double start_up_s = phases.prepare.of(width_nodes(run)) + phases.launch.of(width_nodes(run)) + phases.join.of(width_nodes(run));
        charge("start-up", start_up_s * cards_of(run));
        ++run.generation;
        push(now_s_ + start_up_s, What::Resume, index, run.generation);
    }

    // Useful work goes on from here: when does it end, and when is it hit next?
    void resume(std::uint32_t index) {
        Run& run = runs_[index];
        result_.worst_stretch_s = std::max(result_.worst_stretch_s, run.trace.duration_s < 1e11 && run.unproductive_s == run.started_s ? 0 : now_s_ - run.unproductive_s);
        run.since_s = now_s_;
        run.recovering = false;
        ++run.generation;
        const double useful = run.left_s / run.width;
        const double saves = options_.memory_every_s > 0 ? std::floor(useful / options_.memory_every_s) : 0;
        push(now_s_ + useful + saves * options_.memory_stall_s, What::End, index, run.generation);
        const double rate = options_.faults_per_1000_node_days / 1000 / 86400 * static_cast<double>(run.shares.size());
        if (rate > 0) push(now_s_ + exponential(1 / rate), What::Fault, index, run.generation);
    }

    // What was done since the last resume: kept and lost useful seconds, and the stalls.
    struct Done {
        double useful_s = 0;
        double stall_s = 0;
        double since_save_s = 0;  // useful ones that only memory of the dead has
    };
    Done done_until(const Run& run, double at_s) const {
        Done done;
        const double elapsed = at_s - run.since_s;
        const double every = options_.memory_every_s;
        if (every <= 0) {
            done.useful_s = done.since_save_s = elapsed;
            return done;
        }
        const double cycle = every + options_.memory_stall_s;
        const double cycles = std::floor(elapsed / cycle);
        const double rest = elapsed - cycles * cycle;
        done.since_save_s = std::min(rest, every);
        done.useful_s = cycles * every + done.since_save_s;
        done.stall_s = elapsed - done.useful_s;
        return done;
    }

    void end(Run& run) {
        const Done done = done_until(run, now_s_);
        account(run, done, 0);
        leave(run);
        run.done = true;
        --unfinished_;
        ++result_.finished;
    }

    void account(Run& run, const Done& done, double lost_s) {
        const double kept = done.useful_s - lost_s;
        charge("compute", kept * cards_of(run) * run.width);
        charge("redo", lost_s * cards_of(run) * run.width);
        charge("degraded-width", done.useful_s * cards_of(run) * (1 - run.width));
        charge("checkpoint-stall", done.stall_s * cards_of(run));
        run.left_s -= kept * run.width;
    }

    void leave(Run& run) {
        cluster_.remove(run.gang);
        held_cards_ -= run.trace.cards;
        missing_ -= run.lost_nodes;
        run.lost_nodes = 0;
        run.running = false;
        ++run.generation;
        dirty_ = true;
    }

    void fault(std::uint32_t index) {
        Run& run = runs_[index];
        ++result_.faults;
        run.recovering = true;
        const FailureCause cause = draw_cause();
        std::string symptom = cause.symptom;
        if (symptom == "hang_or_slow") symptom = random_() % 2 == 0 ? "hang" : "slow";
        const Done done = done_until(run, now_s_);
        const double detect_s = options_.phases.detect_s.contains(symptom) ? options_.phases.detect_s.at(symptom) : 0;
        double lost_s = symptom == "graceful_stop" ? 0 : done.since_save_s;
        if (symptom == "silent") lost_s = std::min(done.useful_s, options_.phases.undetected_s);
        account(run, done, lost_s);
        run.unproductive_s = now_s_ - lost_s;
        const bool swap = chance(cause.swap_share);
        const double recover_s = symptom == "graceful_stop" ? options_.phases.graceful_s + options_.phases.recovery_s(width_nodes(run), swap)
                                                            : options_.phases.recovery_s(width_nodes(run), swap);
        charge(symptom == "hang" || symptom == "slow" ? "hang" : "detect", detect_s * cards_of(run));
        charge("recovery", recover_s * cards_of(run));
        ++run.generation;
        if (!swap) return push(now_s_ + detect_s + recover_s, What::Resume, index, run.generation);
        break_node(run, draw_node(run));
        if (replace_lost(run)) return push(now_s_ + detect_s + recover_s, What::Resume, index, run.generation);
        if (options_.elastic) {
            ++result_.shrinks;
            run.width = static_cast<double>(run.shares.size()) / static_cast<double>(run.shares.size() + run.lost_nodes);
            return push(now_s_ + detect_s + recover_s, What::Resume, index, run.generation);
        }
        short_.push_back({index, now_s_, recover_s + detect_s});
    }

    // The node goes to repair; the gang keeps the rest.
    void break_node(Run& run, std::uint32_t node) {
        cluster_.remove(run.gang);
        const auto share = std::find_if(run.shares.begin(), run.shares.end(), [&](const Share& one) { return one.node == node; });
        lost_ranks_ = share->ranks;
        run.shares.erase(share);
        ++run.lost_nodes;
        ++missing_;
        run.gang = cluster_.add(run.shape, run.shares, kNever);
        close_node(node);
    }

    void close_node(std::uint32_t node) {
        cluster_.set_open(node, false);
        node_open_[node] = false;
        ++broken_;
        push(now_s_ + repair_s(), What::NodeBack, node, 0);
    }

    bool replace_lost(Run& run) {
        while (run.lost_nodes != 0) {
            Shape one = run.shape;
            one.ranks = run.shape.ranks_per_node != 0 ? run.shape.ranks_per_node : lost_ranks_;
            one.ranks_per_node = one.ranks;
            const auto spare = cluster_.place(one, to_ms(now_s_), kNever);
            if (!spare) return false;
            ++result_.swaps;
            cluster_.remove(run.gang);
            run.shares.push_back(spare->front());
            std::sort(run.shares.begin(), run.shares.end(), [](const Share& a, const Share& b) { return a.node < b.node; });
            run.gang = cluster_.add(run.shape, run.shares, kNever);
            --run.lost_nodes;
            --missing_;
        }
        run.width = 1;
        return true;
    }

    void node_back(std::uint32_t node) {
        cluster_.set_open(node, true);
        node_open_[node] = true;
        --broken_;
        dirty_ = true;
        for (std::size_t i = 0; i < short_.size(); ++i) {
            Run& run = runs_[short_[i].job];
            if (!replace_lost(run)) continue;
            const double waited = now_s_ - short_[i].since_s;
            result_.waited_for_node_s += waited;
            charge("wait-for-node", waited * cards_of(run));
            push(now_s_ + short_[i].recover_s, What::Resume, short_[i].job, ++run.generation);
            short_.erase(short_.begin() + static_cast<std::ptrdiff_t>(i));
            return;
        }
        if (!options_.elastic) return;
        for (std::uint32_t index = 0; index < runs_.size() && options_.whole_cluster_job != 0; ++index) {  // it grows at its next save
            Run& run = runs_[index];
            if (!run.running || run.lost_nodes == 0) continue;
            if (run.recovering) return;  // the next node that comes back finds it
            account(run, done_until(run, now_s_), 0);
            run.recovering = true;
            run.unproductive_s = now_s_;
            if (!replace_lost(run)) run.width = static_cast<double>(run.shares.size()) / static_cast<double>(run.shares.size() + run.lost_nodes);
            const double recover_s = options_.phases.recovery_s(width_nodes(run), true);
            charge("recovery", recover_s * cards_of(run));
            push(now_s_ + recover_s, What::Resume, index, ++run.generation);
            return;
        }
    }

    // All of a rack fails at once: each gang on it is hit, free nodes break too.
    void rack_fault(std::uint32_t rack) {
        push(now_s_ + rack_fault_in(), What::RackFault, rack, 0);
        const std::uint32_t first = rack * options_.nodes_per_rack;
        const std::uint32_t end = std::min(options_.nodes, first + options_.nodes_per_rack);
        for (std::uint32_t index = 0; index < runs_.size(); ++index) {
            Run& run = runs_[index];
            if (!run.running) continue;
            std::vector<std::uint32_t> hit;
            for (const Share& share : run.shares) {
                if (share.node >= first && share.node < end) hit.push_back(share.node);
            }
            if (hit.empty() || run.recovering) continue;
            ++result_.faults;
            run.recovering = true;
            const Done done = done_until(run, now_s_);
            const double lost_s = std::min(done.useful_s, std::max(done.since_save_s, options_.phases.undetected_s));  // its peers' copies may be gone
            account(run, done, lost_s);
            run.unproductive_s = now_s_ - lost_s;
            for (const std::uint32_t node : hit) break_node(run, node);
            const double detect_s = options_.phases.detect_s.contains("node_down") ? options_.phases.detect_s.at("node_down") : 0;
            const double recover_s = options_.phases.recovery_s(width_nodes(run) + run.lost_nodes, true);
            charge("detect", detect_s * cards_of(run));
            charge("recovery", recover_s * cards_of(run));
            ++run.generation;
            if (replace_lost(run)) {
                push(now_s_ + detect_s + recover_s, What::Resume, index, run.generation);
            } else if (options_.elastic && !run.shares.empty()) {
                ++result_.shrinks;
                run.width = static_cast<double>(run.shares.size()) / static_cast<double>(run.shares.size() + run.lost_nodes);
                push(now_s_ + detect_s + recover_s, What::Resume, index, run.generation);
            } else {
                short_.push_back({index, now_s_, detect_s + recover_s});
            }
        }
        for (std::uint32_t node = first; node < end; ++node) {
            if (node_open_[node] && cluster_.free(node).cards == options_.cards_per_node) close_node(node);
        }
    }

    // ---- chance

    double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
    bool chance(double probability) { return uniform() < probability; }
    double exponential(double mean) { return -mean * std::log1p(-uniform()); }
    double rack_fault_in() { return exponential(365.0 * 86400 / options_.rack_faults_per_rack_year); }

    double repair_s() {
        if (options_.repair_days.empty()) return exponential(options_.repair_mean_s);
        return options_.repair_days[random_() % options_.repair_days.size()] * 86400;
    }

    FailureCause draw_cause() {
        if (options_.causes.empty()) return {"fault", 1, "crash", 0};
        double sum = 0;
        for (const FailureCause& cause : options_.causes) sum += cause.count;
        double at = uniform() * sum;
        for (const FailureCause& cause : options_.causes) {
            if (at < cause.count) return cause;
            at -= cause.count;
        }
        return options_.causes.back();
    }

    // Lemons are the first nodes of the cluster's numbering, spread by a fixed stride.
    bool is_lemon(std::uint32_t node) const { return lemons_ != 0 && node % std::max(1u, options_.nodes / lemons_) == 0; }

    std::uint32_t draw_node(const Run& run) {
        if (lemons_ != 0 && chance(options_.lemon_faults)) {
            std::vector<std::uint32_t> here;
            for (const Share& share : run.shares) {
                if (is_lemon(share.node)) here.push_back(share.node);
            }
            if (!here.empty()) return here[random_() % here.size()];
        }
        return run.shares[random_() % run.shares.size()].node;
    }

    // ---- the scheduler

    void pass() {
        if (!dirty_ || queue_.empty()) return;
        dirty_ = false;
        ++result_.passes;
        order_queue();
        coordinator::PlanInput input;
        std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> shapes;
        for (const std::uint32_t index : queue_) {
            const Run& run = runs_[index];
            const auto [shape, is_new] = shapes.emplace(std::pair(run.shape.ranks, run.shape.ranks_per_node), static_cast<std::uint32_t>(input.shapes.size()));
            if (is_new) input.shapes.push_back(run.shape);
            input.waiting.push_back({.job = index + 1u, .shape = shape->second, .limit = to_ms(limit_s(run)), .expected = to_ms(run.trace.duration_s)});
        }
        coordinator::PlanOptions plan_options;
        plan_options.estimates = false;
        plan_options.in_order = options_.policy == Policy::Fifo;
        plan_options.promises = options_.policy == Policy::Gangline ? options_.promises : options_.policy == Policy::Easy ? 1 : 0;
        Cluster planned = cluster_;
        const coordinator::Plan plan = make_plan(planned, input, to_ms(now_s_), plan_options);
        std::vector<std::uint32_t> still;
        for (std::size_t i = 0; i < queue_.size(); ++i) {
            if (plan.jobs[i].standing != coordinator::Standing::Starts) {
                still.push_back(queue_[i]);
                continue;
            }
            Run& run = runs_[queue_[i]];
            run.gang = cluster_.add(run.shape, plan.jobs[i].shares, to_ms(now_s_ + limit_s(run)));
            start(queue_[i], plan.jobs[i].shares);
        }
        queue_ = std::move(still);
        measure_stranded();
    }

    // Gangline's own order: age, and a bonus for what is short for its size (the brain's score, one user).
    void order_queue() {
        if (options_.policy != Policy::Gangline || options_.short_weight == 0) return;
        const auto score = [&](std::uint32_t index) {
            const Run& run = runs_[index];
            return coordinator::short_bonus(run.trace.cards, limit_s(run)) * options_.short_weight + (now_s_ - run.trace.submit_s) / 86400 * 0.5;
        };
        std::stable_sort(queue_.begin(), queue_.end(), [&](std::uint32_t a, std::uint32_t b) { return score(a) > score(b); });
    }

    void measure_stranded() {
        std::uint64_t stranded = 0;
        for (std::uint32_t node = 0; node < options_.nodes; ++node) {
            const std::uint32_t free = cluster_.free(node).cards;
            if (node_open_[node] && free != 0 && free != options_.cards_per_node) stranded += free;
        }
        stranded_now_ = cluster_.free_cards() == 0 ? 0 : static_cast<double>(stranded) / static_cast<double>(cluster_.free_cards());
    }

    // ---- the end

    void finish() {
        const double end_s = options_.span_s > 0 ? options_.span_s : now_s_;
        advance(end_s);
        for (const Short& one : short_) charge("wait-for-node", (now_s_ - one.since_s - one.recover_s) * cards_of(runs_[one.job]));
        for (Run& run : runs_) {
            if (!run.running) continue;
            if (run.recovering) {
                result_.worst_stretch_s = std::max(result_.worst_stretch_s, now_s_ - run.unproductive_s);
            } else {
                account(run, done_until(run, now_s_), 0);
            }
        }
        result_.span_s = end_s;
        result_.jobs = runs_.size();
        sum_waits();
        const double owned = cards_ * end_s;
        result_.useful = owned > 0 ? result_.causes["compute"] / owned : 0;
        const double until = options_.whole_cluster_job != 0 ? end_s : last_submit_s_;
        result_.allocated = until > 0 ? (options_.whole_cluster_job != 0 ? held_card_s_ : held_until_last_) / (cards_ * until) : 0;
        result_.ett = held_card_s_ > 0 ? result_.causes["compute"] / held_card_s_ : 0;
        result_.stranded = end_s > 0 ? stranded_ / end_s : 0;
        double sum = 0;
        for (const auto& [name, card_s] : result_.causes) sum += card_s;
        result_.causes["not accounted"] = owned - sum;
    }

    void sum_waits() {
        static constexpr std::array<std::pair<std::uint32_t, const char*>, 6> kClasses = {{{1, "1"}, {8, "2-8"}, {32, "9-32"}, {128, "33-128"}, {512, "129-512"}, {~0u, "more"}}};
        std::map<std::size_t, std::vector<double>> by_class;
        std::vector<double> all;
        for (const auto& [cards, wait] : waits_) {
            std::size_t at = 0;
            while (cards > kClasses[at].first) ++at;
            by_class[at].push_back(wait);
            all.push_back(wait);
        }
        for (const Run& run : runs_) {
            if (run.waiting) all.push_back(now_s_ - run.trace.submit_s);
        }
        const auto mean = [](const std::vector<double>& list) {
            double sum = 0;
            for (const double one : list) sum += one;
            return list.empty() ? 0 : sum / static_cast<double>(list.size());
        };
        const auto quantile = [](std::vector<double>& list, double q) {
            if (list.empty()) return 0.0;
            std::sort(list.begin(), list.end());
            return list[std::min(list.size() - 1, static_cast<std::size_t>(q * static_cast<double>(list.size())))];
        };
        for (auto& [at, list] : by_class) result_.sizes.push_back({kClasses[at].second, list.size(), mean(list), quantile(list, 0.95)});
        result_.mean_wait_s = mean(all);
        result_.median_wait_s = quantile(all, 0.5);
        result_.p95_wait_s = quantile(all, 0.95);
    }

    struct Short {
        std::uint32_t job = 0;
        double since_s = 0;
        double recover_s = 0;
    };

    const ReplayOptions options_;
    std::mt19937_64 random_;
    Cluster cluster_;
    double cards_ = 0;
    std::vector<Run> runs_;
    std::vector<std::uint32_t> queue_;
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::uint64_t next_order_ = 0;
    std::size_t unfinished_ = 0;
    double now_s_ = 0;
    double last_submit_s_ = 0;
    bool dirty_ = false;
    std::uint64_t held_cards_ = 0;
    double held_card_s_ = 0;
    double held_until_last_ = 0;
    std::uint32_t broken_ = 0;
    std::uint32_t missing_ = 0;  // broken nodes that a gang still counts as its own
    std::uint32_t racks_ = 0;
    std::uint32_t lemons_ = 0;
    std::uint32_t lost_ranks_ = 0;
    std::vector<bool> node_open_;
    std::vector<Short> short_;
    std::vector<std::pair<std::uint32_t, double>> waits_;
    double stranded_ = 0;
    double stranded_now_ = 0;
    ReplayResult result_;
};

}  // namespace

Result<ReplayResult> replay(const ReplayOptions& options, const std::vector<TraceJob>& jobs) {
    if (options.nodes == 0 || options.cards_per_node == 0) return Error{Code::InvalidArgument, "a cluster has at least one node of one card"};
    if (options.nodes > 100'000 || options.cards_per_node > 64) return Error{Code::InvalidArgument, "at most 100000 nodes of 64 cards are simulated"};
    if (options.whole_cluster_job > options.nodes) {
        return Error{Code::InvalidArgument, fmt::format("the gang of {} nodes does not fit on {}", options.whole_cluster_job, options.nodes)};
    }
    if (options.whole_cluster_job != 0 && options.span_s <= 0) return Error{Code::InvalidArgument, "a gang that trains on needs a span (--days)"};
    if (options.whole_cluster_job == 0 && jobs.empty()) return Error{Code::InvalidArgument, "no jobs: give a trace, or a gang (--train NODES)"};
    const std::uint64_t cards = std::uint64_t{options.nodes} * options.cards_per_node;
    for (const TraceJob& job : jobs) {
        if (job.cards > cards) {
            return Error{Code::InvalidArgument, fmt::format("job {} asks for {} cards; the cluster has {}: give more --nodes", job.number, job.cards, cards)};
        }
    }
    return Replay(options, jobs).run();
}

}  // namespace gangline::simulate
