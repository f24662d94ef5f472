#pragma once
// A job's life as one table: which state follows which, on which signal. The enum is proto::JobState; nothing doubles it.
//
//              Placed          Launched            Joined
//     QUEUED ---------> RESERVED -----> PREPARING -----> RUNNING
//      ^  |                ^ |Restart/End   |Restart/End    | Restart/End, Completed
//      |  |Cancelled       | v              v               v
//      |  |         Placed | RECOVERING <---+---> STOPPING  COMPLETED
//      |  |                +----'  |  |   End        ^  |
//      |  '--> CANCELLED           |  '--------------'  '--> COMPLETED, FAILED, CANCELLED, TIMED_OUT
//      '------ Requeued -----------'
//
// RESERVED: cards are held, the nodes prove them empty. PREPARING: the ranks are launched and join. RECOVERING: the
// attempt has failed; its cards stay the job's. STOPPING: the end is decided; the nodes empty their cards.

#include <optional>

#include "base/protocol/user.pb.h"

namespace gangline::coordinator {

enum class JobSignal { Placed, Launched, Joined, Restart, End, Requeued, Completed, Failed, Cancelled, TimedOut };

// Nothing: the signal means nothing in this state.
std::optional<proto::JobState> next_state(proto::JobState from, JobSignal signal);
// The signal that ends a job with this outcome.
JobSignal ending_signal(proto::JobState outcome);

inline bool is_ended(proto::JobState state) { return state >= proto::COMPLETED; }
// Ranks may be running.
inline bool is_launched(proto::JobState state) { return state == proto::PREPARING || state == proto::RUNNING; }
// It holds cards for an attempt whose end is not decided.
inline bool is_live(proto::JobState state) { return state == proto::RESERVED || is_launched(state); }
// The end of its attempt is decided and its nodes are being emptied, or are empty.
inline bool is_ending(proto::JobState state) { return state == proto::RECOVERING || state == proto::STOPPING; }

}  // namespace gangline::coordinator
