// The scheduler's and the brain's own times, for ./bench scheduler: one JSON object a measurement, times in seconds.
//   scheduler_bench pass NODES QUEUED ROUNDS    a whole pass of the brain, estimates included, as after a submit
//   scheduler_bench events NODES QUEUED SECONDS 1 % of the queued jobs change a second, in batches of 50 ms
//   scheduler_bench place NODES CARDS ROUNDS    one gang of whole nodes on an empty cluster
//   scheduler_bench why NODES QUEUED ROUNDS     an answer of `why`
//   scheduler_bench fragments NODES ROUNDS      parts of nodes come and go: nodes that whole-node gangs cannot use, beside first fit's
//   scheduler_bench memory JOBS                 bytes a queued job needs beyond its text
#include <fmt/format.h>
#include <malloc.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "coordinator/brain/brain.h"
#include "coordinator/schedule/plan.h"

namespace {

using namespace gangline;
using coordinator::Brain;

double seconds_since(std::chrono::steady_clock::time_point start) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }

void print(const char* what, const std::vector<double>& values) { fmt::print("{{\"what\": \"{}\", \"values\": [{}]}}\n", what, fmt::join(values, ", ")); }

// A cluster that is full, with a long queue: sizes and limits as on a shared one, most jobs small, most card-hours large.
class Busy {
  public:
    Busy(std::uint32_t nodes, std::uint32_t queued) : nodes_(nodes), brain_(options()) {
        now_.unix_ms = 1'800'000'000'000;
        now_.steady = TimePoint(seconds(3'600'000));
        brain_.step(coordinator::TookOffice{1, "bench"}, now_);
        std::vector<coordinator::Event> hellos;
        for (std::uint32_t i = 0; i < nodes; ++i) hellos.emplace_back(hello(i));
        brain_.step(hellos, now_);
        fill();
        for (std::uint32_t i = 0; i < queued; ++i) submit(draw_ranks(), false);
        pass();
    }

    // A pass with estimates: their time has come round again.
    double pass() {
        advance(11);
        coordinator::FromUser event = request(draw_ranks());
        const auto start = std::chrono::steady_clock::now();
        brain_.step(event, now_);
        return seconds_since(start);
    }

    // Submits and cancels that arrive within 50 ms, in one step.
    double batch(std::uint32_t changes) {
        advance(0.05);
        std::vector<coordinator::Event> events;
        for (std::uint32_t i = 0; i < changes / 2; ++i) {
            events.emplace_back(request(draw_ranks()));
            coordinator::FromUser cancel = request(1);
            cancel.request.mutable_cancel()->set_job(first_queued_ + random_() % queued_);
            events.emplace_back(std::move(cancel));
        }
        const auto start = std::chrono::steady_clock::now();
        brain_.step(events, now_);
        return seconds_since(start);
    }

    double why() {
        proto::Request question;
        question.mutable_why_job()->set_job(first_queued_ + random_() % queued_);
        const auto start = std::chrono::steady_clock::now();
        coordinator::Caller who;
        who.user = "bench";
        const proto::Response answer = brain_.answer(who, question, now_);
        return answer.why().sentence().empty() ? 1e9 : seconds_since(start);
    }

  private:
    static coordinator::BrainOptions options() {
        coordinator::BrainOptions chosen;
        chosen.node_timeout = seconds(1'000'000'000);
        chosen.most_queued_per_user = 10'000'000;
        return chosen;
    }

    coordinator::FromNode hello(std::uint32_t index) const {
        proto::NodeMessage message;
        proto::NodeInfo& info = *message.mutable_hello()->mutable_node();
        info.set_name(fmt::format("n{}", index));
        info.set_cpus(96);
        info.set_memory_mib(1 << 20);
        info.set_rack(fmt::format("r{}", index / 16));
        for (std::uint32_t card = 0; card < 8; ++card) info.add_cards()->set_index(card);
        return {info.name(), std::move(message), false};
    }

    std::uint32_t draw_ranks() {
        static constexpr std::uint32_t kSizes[] = {1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 8, 16, 16, 32, 64, 128, 256, 512, 1024};
        return std::min(kSizes[random_() % std::size(kSizes)], nodes_ * 4);
    }

    coordinator::FromUser request(std::uint32_t ranks) {
        coordinator::FromUser event;
        event.tag = ++tag_;
        event.who.user = "bench";
        event.who.is_operator = true;
        proto::JobSpec& spec = *event.request.mutable_submit()->mutable_spec();
        spec.add_argv("train");
        spec.set_cwd("/");
        spec.set_ranks(ranks);
        if (ranks > 8) spec.set_ranks_per_node(8);
        spec.set_cpus_per_rank(1 + static_cast<std::uint32_t>(random_() % 10));
        spec.set_time_limit_s(600 + random_() % 172'800);
        return event;
    }

    void submit(std::uint32_t ranks, bool runs) {
        const coordinator::FromUser event = request(ranks);
        proto::Record record;
        record.set_unix_ms(now_.unix_ms - 1000);
        proto::JobSubmitted& body = *record.mutable_job_submitted();
        body.set_job(++last_);
        body.set_user("bench");
        *body.mutable_spec() = event.request.submit().spec();
        brain_.replay(std::move(record));
        if (runs) return;
        if (queued_ == 0) first_queued_ = last_;
        ++queued_;
    }

    void fill() {
        std::uint32_t node = 0;
        while (node < nodes_) {
            const std::uint32_t wanted = std::max(1u, draw_ranks() / 8);
            const std::uint32_t count = std::min(wanted, nodes_ - node);
            submit(count * 8, true);
            proto::Record reserved;
            reserved.set_unix_ms(now_.unix_ms - 1000);
            proto::GangReserved& body = *reserved.mutable_gang_reserved();
            body.mutable_id()->set_job(last_);
            body.mutable_id()->set_attempt(1);
            for (std::uint32_t i = 0; i < count; ++i) {
                proto::Placement& place = *body.add_gang();
                place.set_node(fmt::format("n{}", node + i));
                place.set_first_rank(i * 8);
                place.set_rank_count(8);
                for (std::uint32_t card = 0; card < 8; ++card) place.add_cards(card);
            }
            brain_.replay(reserved);
            node += count;
        }
    }

    void advance(double seconds_on) {
        now_.unix_ms += static_cast<std::int64_t>(seconds_on * 1000);
        now_.steady += milliseconds(static_cast<std::int64_t>(seconds_on * 1000));
    }

    std::mt19937_64 random_{1};
    std::uint32_t nodes_;
    Brain brain_;
    Now now_;
    std::uint64_t last_ = 0;
    std::uint64_t tag_ = 0;
    std::uint64_t first_queued_ = 0;
    std::uint64_t queued_ = 0;
};

void measure_place(std::uint32_t nodes, std::uint32_t cards, std::uint32_t rounds) {
    std::vector<coordinator::NodeSeed> seeds(nodes);
    for (std::uint32_t i = 0; i < nodes; ++i) seeds[i] = {.all = {8, 96, 1 << 20}, .block = i / 256, .rack = i / 16};
    const coordinator::Cluster cluster(seeds);
    const coordinator::Shape shape{.ranks = cards, .ranks_per_node = 8};
    std::vector<double> ours;
    std::vector<double> scan;
    for (std::uint32_t i = 0; i < rounds; ++i) {
        auto start = std::chrono::steady_clock::now();
        const auto shares = cluster.place(shape, 0, coordinator::kNever);
        ours.push_back(shares ? seconds_since(start) : 1e9);
        start = std::chrono::steady_clock::now();
        volatile std::uint64_t free = 0;  // the least that any placement must read: what each node has free
        for (std::uint32_t node = 0; node < nodes; ++node) free = free + cluster.free(node).cards;
        scan.push_back(seconds_since(start));
    }
    print("place", ours);
    print("scan", scan);
}

// Gangs of 1, 2 and 4 cards fill 60 % of the cards and come and go in any order. Partly used nodes, as multiples of the fewest that could hold
// what is used: the scheduler's own, the first node with room, and the emptiest node.
void measure_fragments(std::uint32_t nodes, std::uint32_t rounds) {
    using coordinator::Shares;
    std::vector<coordinator::NodeSeed> seeds(nodes);
    for (std::uint32_t i = 0; i < nodes; ++i) seeds[i] = {.all = {8, 96, 1 << 20}, .block = i / 256, .rack = i / 16};
    enum Policy { Ours, FirstFit, Spread, Policies };
    static constexpr const char* kNames[] = {"ours", "first_fit", "spread"};
    static constexpr std::uint32_t kSizes[] = {1, 1, 1, 2, 2, 4};
    for (int policy = 0; policy < Policies; ++policy) {
        std::mt19937 random(1);
        coordinator::Cluster cluster(seeds);
        std::vector<std::pair<std::uint32_t, std::uint32_t>> gangs;  // number, cards
        std::uint32_t used = 0;
        std::vector<double> partial;
        for (std::uint32_t round = 0; round < rounds * 100; ++round) {
            while (used < nodes * 8 * 6 / 10) {
                const std::uint32_t cards = kSizes[random() % std::size(kSizes)];
                coordinator::Shape shape{.ranks = cards, .nodes_min = 1, .nodes_max = 1};
                shape.spread = policy == Spread;
                std::optional<Shares> place;
                if (policy == FirstFit) {
                    for (std::uint32_t node = 0; node < nodes && !place; ++node) {
                        if (cluster.free(node).cards >= cards) place = Shares{{node, cards}};
                    }
                } else {
                    place = cluster.place(shape, 0, coordinator::kNever);
                }
                gangs.emplace_back(cluster.add(shape, *place, coordinator::kNever), cards);
                used += cards;
            }
            for (int i = 0; i < 20; ++i) {
                std::swap(gangs[random() % gangs.size()], gangs.back());
                cluster.remove(gangs.back().first);
                used -= gangs.back().second;
                gangs.pop_back();
            }
            if (round % 100 != 99) continue;
            const double least = std::ceil(used / 8.0);
            partial.push_back((nodes - cluster.whole_free_nodes()) / least);
        }
        print(kNames[policy], partial);
    }
}

std::size_t in_use() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

void measure_memory(std::uint32_t jobs) {
    Brain brain{coordinator::BrainOptions{}};
    std::size_t text = 0;
    const std::size_t before = in_use();
    for (std::uint32_t i = 0; i < jobs; ++i) {
        proto::Record record;
        proto::JobSubmitted& body = *record.mutable_job_submitted();
        body.set_job(i + 1);
        body.set_user("bench");
        body.mutable_spec()->add_argv("/home/bench/train");
        body.mutable_spec()->set_name("train");
        body.mutable_spec()->set_cwd("/home/bench");
        body.mutable_spec()->set_ranks(1 + i % 64);
        body.mutable_spec()->set_time_limit_s(3600);
        text += body.ByteSizeLong();
        brain.replay(std::move(record));
    }
    print("bytes_a_job", {static_cast<double>(in_use() - before - text) / jobs});
    print("text_a_job", {static_cast<double>(text) / jobs});
}

}  // namespace

int main(int argc, char** argv) {
    const auto number = [&](int at) { return at < argc ? static_cast<std::uint32_t>(std::strtoul(argv[at], nullptr, 10)) : 0; };
    const std::string_view what = argc > 1 ? argv[1] : "";
    if (what == "place") {
        measure_place(number(2), number(3), number(4));
    } else if (what == "fragments") {
        measure_fragments(number(2), number(3));
    } else if (what == "memory") {
        measure_memory(number(2));
    } else if (what == "pass" || what == "why" || what == "events") {
        Busy busy(number(2), number(3));
        std::vector<double> values;
        const std::uint32_t rounds = what == "events" ? number(4) * 20 : number(4);
        for (std::uint32_t i = 0; i < rounds; ++i) {
            values.push_back(what == "pass" ? busy.pass() : what == "why" ? busy.why() : busy.batch(std::max(2u, number(3) / 100 / 20)));
        }
        print(what == "events" ? "batch" : what.data(), values);
    } else {
        fmt::print(stderr, "scheduler_bench pass|events|why NODES QUEUED ROUNDS, place NODES CARDS ROUNDS, fragments NODES ROUNDS, memory JOBS\n");
        return 2;
    }
    return 0;
}
