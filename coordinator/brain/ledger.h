#pragma once
// Where a job's wall clock went. Pure: the story of its attempts in, causes that add up to the wall clock out.
//
//   |-- prepare --|-- join --|-- restore --|-- steps --|-- hang --|-- recovery --| next attempt ...
//    reserved      launched   joined                    (stalled)  ended
//
// Steps that a later attempt did again are `redo`; the rest of the steps' time is compute, data-wait, communication and
// checkpoint-stall. What no page explains is `other`. Effective training time = (compute + communication) / wall.
//
// Card-seconds are the gang's cards x the same times for as long as it held them (it gives them up when it goes back to the queue), and
// idle-held: cards that were its alone but no rank's (the rest of whole nodes, spares).
// Units: *_ms milliseconds since 1970, *_s seconds.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/protocol/job.pb.h"

namespace gangline::coordinator {

enum Cause : std::size_t { Prepare, Join, Restore, Compute, DataWait, Communication, CheckpointStall, Redo, Hang, Recovery, Other, IdleHeld, kCauses };

struct CauseWords {
    const char* name;
    const char* words;
};
extern const std::array<CauseWords, kCauses> kCauseWords;

struct AttemptStory {
    std::int64_t reserved_ms = 0;
    std::int64_t launched_ms = 0;  // 0 = never
    std::int64_t joined_ms = 0;    // 0 = never
    std::int64_t ended_ms = 0;     // 0 = not yet
    std::uint64_t restored_step = 0;
    std::uint64_t stalled_ms = 0;  // nothing moved before the end
    std::uint64_t cards = 0;
    std::int64_t let_go_ms = 0;    // its cards were given up; 0 = they are held until the next attempt, or to the end
    double idle_card_s = 0;        // held beside them
    proto::Progress progress = {}; // of the slowest rank, as last heard
};

struct JobStory {
    std::int64_t submitted_ms = 0;
    std::int64_t until_ms = 0;     // its end, or now
    std::vector<AttemptStory> attempts = {};
};

struct LedgerCause {
    std::string name;
    double wall_s = 0;
    double card_s = 0;
    std::string words;
};

struct Ledger {
    double queue_wait_s = 0;
    double wall_s = 0;
    double card_s = 0;
    std::vector<LedgerCause> causes;         // in the order of an attempt's life; none is negative
    double effective_training_time = -1;     // -1: no steps were reported
    std::uint64_t steps = 0;
    std::uint64_t steps_redone = 0;
    std::vector<std::string> notes;
};

Ledger make_ledger(const JobStory& story);

}  // namespace gangline::coordinator
