#pragma once
// The values of options that have a grammar of their own: ranges of nodes, the tasks of an array, features of nodes, names.
//
// Errors: InvalidArgument that names option, value, what is allowed, and what to write instead.
//
// Thread rule: pure.

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "runner/cli/options.h"

namespace gangline::runner {

inline constexpr std::int64_t kMostRanks = 1'000'000;
inline constexpr std::size_t kMostTasks = 10'000;
inline constexpr std::uint32_t kLargestTask = 4'000'000;

// N, MIN-MAX or MIN-MAX:STEP.
struct NodeRange {
    std::int64_t least = 0;
    std::int64_t most = 0;
    std::int64_t step = 0;                   // 0: none is given
};
Result<NodeRange> parse_node_range(const Given& given);

// sbatch's --array: 0-15, 1,3,5-9, 0-99:4; and %4 behind it.
struct ArrayTasks {
    std::vector<std::uint32_t> tasks;        // ascending, each once
    std::uint32_t step = 1;                  // of a single range
    std::uint32_t most_at_once = 0;          // 0: no limit
};
Result<ArrayTasks> parse_array_tasks(const Given& given);

// Words joined by & and |.
Result<void> check_constraint(const Given& given);

// The name of a reservation: a letter or digit first, then also _ . -; at most 64.
Result<void> check_reservation_name(const std::string& option, const std::string& name);

}  // namespace gangline::runner
