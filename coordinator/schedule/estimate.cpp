#include "coordinator/schedule/estimate.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace gangline::coordinator {
namespace {

constexpr std::size_t kMostFailedTries = 3;   // at one event: an estimate may miss a hole
constexpr std::size_t kPatientEvents = 16;     // the first job is guarded when it has waited for more; one node's worth is not: it comes round soon

struct Head {
    std::size_t job = 0;      // its place in the queue
    std::uint32_t shape = 0;
    std::uint64_t cards = 0;
    bool operator<(const Head& other) const { return job < other.job; }
};

class Film {
  public:
    Film(Cluster& cluster, const PlanInput& input, Ms now, Plan& plan) : cluster_(cluster), input_(input), now_(now), plan_(plan) {
        for (const Ending& one : input.running) {
            cluster_.set_end(one.gang, one.expected);
            ends_.push({one.expected, one.gang});
        }
        waiting_.resize(input.shapes.size());
        next_.resize(input.shapes.size(), 0);
        for (std::size_t i = 0; i < input.waiting.size(); ++i) {
            const Waiting& job = input.waiting[i];
            if (plan.jobs[i].standing == Standing::Starts) {
                run(job, plan.jobs[i].shares);
            } else if (plan.jobs[i].standing != Standing::OverLimit) {  // when its team or array lets it is not reckoned
                waiting_[job.shape].push_back(i);
            }
        }
        for (std::uint32_t shape = 0; shape < waiting_.size(); ++shape) add_head(shape);
    }

    void play(std::size_t most_events) {
        while (!heads_.empty() && !ends_.empty() && ends_.top().first < kNever && plan_.events < most_events) {
            now_ = ends_.top().first;
            while (!ends_.empty() && ends_.top().first == now_) {
                cluster_.remove(ends_.top().second);
                ends_.pop();
            }
            ++plan_.events;
            dispatch();
        }
    }

  private:
    void add_head(std::uint32_t shape) {
        if (next_[shape] == waiting_[shape].size()) return;
        const Head head{waiting_[shape][next_[shape]], shape, input_.shapes[shape].least_cards()};
        heads_.insert(std::lower_bound(heads_.begin(), heads_.end(), head), head);
    }

    void run(const Waiting& job, Shares shares) {
        const Ms expected = std::min(job.expected, job.limit);
        const Ms end = expected >= kNever ? kNever : now_ + expected;
        ends_.push({end, cluster_.add(input_.shapes[job.shape], std::move(shares), end)});
    }

    bool try_start(const Head& head, bool is_first) {
        const Waiting& job = input_.waiting[head.job];
        const Shape& shape = input_.shapes[head.shape];
        if (!cluster_.may_fit(shape)) return false;
        const Ms expected = std::min(job.expected, job.limit);
        auto shares = cluster_.place_quickly(shape, now_, expected >= kNever ? kNever : now_ + expected, is_first);
        if (!shares) return false;
        plan_.jobs[head.job].expected = now_;
        run(job, std::move(*shares));
        return true;
    }

    void guard(const Head& head) {
        const Waiting& job = input_.waiting[head.job];
        cluster_.forget_promises();
        guarded_ = head.job;
        const auto opening = cluster_.soonest(input_.shapes[head.shape], now_);
        if (!opening) return;
        const Ms expected = std::min(job.expected, job.limit);
        cluster_.promise(input_.shapes[head.shape], opening->shares, opening->from, expected >= kNever ? kNever : opening->from + expected);
    }

    // Every job that can start now, in order.
    void dispatch() {
        std::size_t failed = 0;
        for (std::size_t at = 0; at < heads_.size() && cluster_.free_cards() != 0;) {
            const Head head = heads_[at];
            const bool is_first = at == 0;
            if (head.cards <= cluster_.free_cards() && try_start(head, is_first)) {
                heads_.erase(heads_.begin() + static_cast<std::ptrdiff_t>(at));
                ++next_[head.shape];
                add_head(head.shape);
                if (is_first) {
                    if (guarded_) cluster_.forget_promises();
                    guarded_.reset();
                    blocked_ = 0;
                }
                continue;
            }
            if (is_first && ++blocked_ > kPatientEvents && guarded_ != head.job && head.cards > cluster_.most_cards()) guard(head);
            if (head.cards <= cluster_.free_cards() && ++failed == kMostFailedTries) return;
            ++at;
        }
    }

    Cluster& cluster_;
    const PlanInput& input_;
    Ms now_;
    Plan& plan_;
    using End = std::pair<Ms, std::uint32_t>;
    std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
    std::vector<std::vector<std::size_t>> waiting_;  // by shape, in order
    std::vector<std::size_t> next_;
    std::vector<Head> heads_;                        // the first of each shape, in order
    std::optional<std::size_t> guarded_;
    std::size_t blocked_ = 0;                        // events that the first job has waited for
};

}  // namespace

void estimate(Cluster& cluster, const PlanInput& input, Ms now, const PlanOptions& options, Plan& plan) {
    Film(cluster, input, now, plan).play(options.most_events);
    for (Planned& one : plan.jobs) {
        if (one.standing == Standing::Promised) one.expected = std::min(one.expected, one.start);
    }
}

}  // namespace gangline::coordinator
