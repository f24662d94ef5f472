#pragma once
// One pass of the scheduler: who starts now and where, who is promised what from when on, and when everybody else may expect to
// start. A pure function of the cluster, the queue in its order, and the time.
//
//   now        each job in order: it starts if it fits without delaying a promise made before it in this pass (backfill); the first
//              `promises` jobs that do not fit get a promise each: places and the earliest time at which they are free,
//              reckoned with time limits. A job that cannot start hides nobody: equal shapes are passed over at no cost.
//   later      the same on the clock of the plan, with expected instead of longest run times, the first blocked job guarded: an
//              estimate for every job, without promise.
//
// A job without a time limit may run for ever: it never starts on promised places, and nobody can be promised its own. Behind such
// jobs an overdue one has nodes kept free for it instead.

#include <cstdint>
#include <vector>

#include "coordinator/schedule/cluster.h"

namespace gangline::coordinator {

struct PlanOptions {
    std::uint32_t promises = 8;   // to how many blocked jobs; 1 = EASY backfill
    bool in_order = false;        // nothing starts before a blocked job (no backfill at all)
    bool estimates = true;
    std::size_t most_events = 400'000;  // of the estimate; jobs beyond have none
};

struct Waiting {
    std::uint64_t job = 0;
    std::uint32_t shape = 0;      // index into PlanInput::shapes
    Ms limit = kNever;            // longest run time
    Ms expected = kNever;         // what history says, at most `limit`
    Ms least = 0;                 // --time-min: a limit cut down to this is better than waiting; 0 = never cut
    bool overdue = false;         // passed over so long that nodes are kept free for it, though nobody knows until when
    std::uint32_t avoid = 0;      // index into PlanInput::avoid
    std::int32_t limit_of = -1;   // its array, or its team: index into PlanInput::limits; -1 = none
    const Shares* claim = nullptr;  // places that others were told to leave for it: it starts on them or nowhere before they are free
};

// Whose cards (or jobs: the elements of an array) are counted together; what a team holds, its parent holds too. Counted on while the
// pass goes: several jobs that fit one by one do not pass the limit together.
struct HeldLimit {
    std::uint64_t held = 0;
    std::uint64_t most = ~0ull;
    std::int32_t parent = -1;     // index into PlanInput::limits
    bool counts_jobs = false;
};

struct Ending {
    std::uint64_t job = 0;
    std::uint32_t gang = 0;       // of the cluster
    Ms expected = kNever;         // when it is thought to end; never later than what the cluster was told
};

struct PlanInput {
    std::vector<Shape> shapes;
    std::vector<std::vector<std::uint32_t>> avoid = {{}};  // sorted node numbers; the first list is empty
    std::vector<HeldLimit> limits;
    std::vector<Waiting> waiting;                          // in the order of the queue
    std::vector<Ending> running;
};

enum class Standing : std::uint8_t {
    Starts,     // now, on `shares`
    Promised,   // on `shares` at `start` at the latest, if all time limits hold
    Kept,       // overdue: `shares` take nobody new; when they will be free nobody knows
    Behind,     // there is room, but for a promise to another: see `behind`
    Reserved,   // there is room, but a reservation begins before it could end
    OverLimit,  // its array, its team, or a parent of it, holds as much as it may: see `over`
    NoRoom,     // not enough is free for it
};

struct Planned {
    Standing standing = Standing::NoRoom;
    Ms start = kNever;            // Starts: now. Promised: at the latest
    Ms expected = kNever;         // when it may expect to start; kNever: cannot be told
    Ms limit = kNever;            // granted; less than asked for only with `least`
    std::int32_t over = -1;       // index into PlanInput::limits
    std::uint64_t behind = 0;     // a job whose promise, or place in the order, is in the way
    Shares shares;
};

struct Plan {
    std::vector<Planned> jobs;    // as PlanInput::waiting
    std::size_t starts = 0;
    std::size_t events = 0;       // of the estimate
};

// Part of the order of the queue: 1 for a job that asks for next to nothing, towards 0 for card-days. In a day's wait at
// age_weight_per_day = 0.5 a long job makes up half of it, so nobody starves.
double short_bonus(std::uint64_t cards, double limit_s);

// `cluster` becomes what it is after the starts, with the promises.
Plan make_plan(Cluster& cluster, const PlanInput& input, Ms now, const PlanOptions& options);

}  // namespace gangline::coordinator
