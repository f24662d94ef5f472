#pragma once
// Two clocks with two types: a monotonic TimePoint for every deadline, and wall time for people and records.
//
// Brains never read a clock: the shell passes Now. Deadlines use `steady`, which no operator can turn back.
// Units: TimePoint and Duration are nanoseconds; unix_ms is milliseconds since 1970.

#include <chrono>
#include <cstdint>

namespace gangline {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct Now {
    TimePoint steady;
    std::int64_t unix_ms = 0;
};

// For shells only (the tidy test refuses it in brains).
inline Now now() {
    return {std::chrono::steady_clock::now(),
            std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count()};
}

inline double to_seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline std::int64_t to_ms(Duration d) { return std::chrono::duration_cast<milliseconds>(d).count(); }

}  // namespace gangline
