#pragma once
// Which checkpoints may go, and their deletion. Deciding is pure; deleting renames first, so nothing is ever half there.
//
// Kept of each job: the newest N durable ones, and with --every STEPS the first durable one in each range of so many steps.
// Never touched: names that are not exactly Store's, damaged checkpoints (a person looks at them), a temporary folder
// that has a MANIFEST (it may be committed) or was changed within the hour, what is pinned, and whatever somebody reads (flock).

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/tool/place.h"

namespace gangline::checkpoint::tool {

struct PruneRule {
    std::uint64_t keep = 0;   // at least 1
    std::uint64_t every = 0;  // steps; 0: none besides
};
inline constexpr std::int64_t kTemporaryRestSeconds = 3600;

struct Choice {
    Entry entry;
    bool is_deleted = false;
    std::string why;
};

// In the order of `entries`. Units: now_unix_s is wall time.
std::vector<Choice> choose(const std::vector<Entry>& entries, const PruneRule& rule, std::int64_t now_unix_s);
// Deletes one folder. Errors: Refused: it is read by another; Internal, with what could not be deleted.
Result<void> remove(const Place& place, const std::string& name);

}  // namespace gangline::checkpoint::tool
