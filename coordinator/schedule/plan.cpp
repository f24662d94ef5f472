#include "coordinator/schedule/plan.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "coordinator/schedule/estimate.h"

namespace gangline::coordinator {
namespace {

Ms after(Ms now, Ms duration) { return duration >= kNever ? kNever : now + duration; }

class Pass {
  public:
    Pass(Cluster& cluster, const PlanInput& input, Ms now, const PlanOptions& options)
        : cluster_(cluster), input_(input), now_(now), options_(options), shapes_(input.shapes.size()), limits_(input.limits) {}

    void run(Plan& plan) {
        for (const Waiting& job : input_.waiting) {
            if (job.claim != nullptr) cluster_.promise(input_.shapes[job.shape], *job.claim, now_, kNever);
        }
        for (std::size_t i = 0; i < input_.waiting.size(); ++i) {
            Planned& planned = plan.jobs[i];
            const Waiting& job = input_.waiting[i];
            if (first_blocked_ != 0 && options_.in_order) {
                planned.behind = first_blocked_;
                continue;
            }
            const Shape& shape = input_.shapes[job.shape];
            if (const std::int32_t over = limit_in_the_way(job, shape.least_cards()); over >= 0) {  // no hole in the queue is kept for it
                planned.standing = Standing::OverLimit;
                planned.over = over;
                continue;
            }
            if (shape.elastic && limit_in_the_way(job, shape.cards()) >= 0) {
                consider(job, within_limits(job, shape), planned);
            } else {
                consider(job, shape, planned);
            }
            if (planned.standing == Standing::Starts) {
                ++plan.starts;
                continue;
            }
            if (first_blocked_ == 0) first_blocked_ = job.job;
            if (job.claim != nullptr) {
                planned.standing = Standing::Kept;
                planned.shares = *job.claim;
            } else if (promised_ < options_.promises) {
                promise(job, planned);
            }
        }
    }

  private:
    struct ShapeState {
        bool no_room = false;          // for as long as this pass lasts: what is free only shrinks
        Ms too_long = kNever + 1;      // a limit that did not fit before the promises; longer ones do not either
        std::uint64_t behind = 0;
    };

    // The first that the job, with so many cards, would pass; -1: none.
    std::int32_t limit_in_the_way(const Waiting& job, std::uint64_t cards) const {
        for (std::int32_t at = job.limit_of; at >= 0; at = limits_[static_cast<std::size_t>(at)].parent) {
            const HeldLimit& limit = limits_[static_cast<std::size_t>(at)];
            if (limit.held + (limit.counts_jobs ? 1 : cards) > limit.most) return at;
        }
        return -1;
    }

    // An elastic gang of as many nodes as its limits leave it; the fewest are within them.
    Shape within_limits(const Waiting& job, Shape shape) const {
        const std::uint64_t of_node = std::uint64_t{shape.ranks_per_node} * shape.cards_per_rank;
        while (shape.nodes_max >= shape.nodes_min + shape.nodes_step && limit_in_the_way(job, shape.nodes_max * of_node) >= 0) {
            shape.nodes_max -= shape.nodes_step;
        }
        return shape;
    }

    void consider(const Waiting& job, const Shape& shape, Planned& planned) {
        ShapeState& state = shapes_[job.shape];
        if (job.claim != nullptr) {
            const bool free = std::all_of(job.claim->begin(), job.claim->end(), [&](const Share& share) {
                return cluster_.lack(shape, share.node, share.ranks, now_, after(now_, job.limit)) == Cluster::Lack::Nothing;
            });
            return free ? start(job, shape, planned, *job.claim, job.limit) : void();
        }
        const Ms shortest = job.least == 0 ? job.limit : std::min(job.least, job.limit);
        if (state.no_room || !cluster_.may_fit(shape)) {
            state.no_room = true;
            return;
        }
        if (shortest >= state.too_long) return stand_back(state, planned);
        const auto& avoid = input_.avoid[job.avoid];
        const Ms hole = std::clamp(cluster_.first_promise() - now_, shortest, job.limit);
        for (const Ms limit : {job.limit, hole, shortest}) {
            if (auto shares = cluster_.place(shape, now_, after(now_, limit), avoid)) {
                const Ms granted = limit == job.limit ? limit : std::clamp(cluster_.longest(shape, *shares, now_) - now_, limit, job.limit);
                return start(job, shape, planned, std::move(*shares), granted);
            }
            if (limit == shortest) break;
        }
        const bool may_be_later = promised_ != 0 || cluster_.has_windows();
        if (!may_be_later || !cluster_.place_ignoring_promises(shape)) {
            state.no_room = true;
            return;
        }
        state.too_long = shortest;
        state.behind = cluster_.has_windows() && !cluster_.place_ignoring_promises(shape, now_, after(now_, shortest)) ? 0 : last_promised_;
        stand_back(state, planned);
    }

    static void stand_back(const ShapeState& state, Planned& planned) {
        planned.standing = state.behind == 0 ? Standing::Reserved : Standing::Behind;
        planned.behind = state.behind;
    }

    void start(const Waiting& job, const Shape& shape, Planned& planned, Shares shares, Ms limit) {
        planned.standing = Standing::Starts;
        planned.start = planned.expected = now_;
        planned.limit = limit;
        cluster_.add(shape, shares, after(now_, limit));
        for (std::int32_t at = job.limit_of; at >= 0; at = limits_[static_cast<std::size_t>(at)].parent) {
            HeldLimit& held = limits_[static_cast<std::size_t>(at)];
            held.held += held.counts_jobs ? 1 : std::uint64_t{ranks_of(shares)} * shape.cards_per_rank;
        }
        planned.shares = std::move(shares);
    }

    void promise(const Waiting& job, Planned& planned) {
        const Shape& shape = input_.shapes[job.shape];
        auto opening = cluster_.earliest(shape, now_, job.limit);
        if (!opening) {  // it waits for what may never end, or for nodes that are away
            const auto kept = job.overdue ? cluster_.soonest_of_any(shape, now_) : std::nullopt;
            return kept ? keep(job, planned, *kept) : void();
        }
        planned.standing = Standing::Promised;
        planned.start = opening->from;
        planned.limit = job.limit;
        cluster_.promise(shape, opening->shares, opening->from, after(opening->from, job.limit));
        planned.shares = std::move(opening->shares);
        last_promised_ = job.job;
        ++promised_;
    }

    void keep(const Waiting& job, Planned& planned, const Shares& places) {
        planned.standing = Standing::Kept;
        cluster_.promise(input_.shapes[job.shape], places, now_, kNever);
        planned.shares = places;
        last_promised_ = job.job;
        ++promised_;
    }

    Cluster& cluster_;
    const PlanInput& input_;
    const Ms now_;
    const PlanOptions& options_;
    std::vector<ShapeState> shapes_;
    std::vector<HeldLimit> limits_;
    std::uint64_t first_blocked_ = 0;
    std::uint64_t last_promised_ = 0;
    std::uint32_t promised_ = 0;
};

}  // namespace

double short_bonus(std::uint64_t cards, double limit_s) {
    const double card_hours = static_cast<double>(cards) * limit_s / 3600;
    return 1 / (1 + card_hours / 4);
}

Plan make_plan(Cluster& cluster, const PlanInput& input, Ms now, const PlanOptions& options) {
    Plan plan;
    plan.jobs.resize(input.waiting.size());
    if (!options.estimates) {
        Pass(cluster, input, now, options).run(plan);
        return plan;
    }
    Cluster later = cluster;
    Pass(cluster, input, now, options).run(plan);
    estimate(later, input, now, options, plan);
    return plan;
}

}  // namespace gangline::coordinator
