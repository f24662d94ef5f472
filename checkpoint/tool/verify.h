#pragma once
// Are a checkpoint's bytes what was written? Every block of every shard is read and compared with its CRC32C.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/tool/output.h"
#include "checkpoint/tool/place.h"

namespace gangline::checkpoint::tool {

struct Damage {
    std::string file;
    std::optional<std::uint64_t> block;  // absent: the whole file
    std::string what;
};
struct Verdict {
    std::uint64_t bytes = 0;
    std::uint64_t blocks = 0;
    std::vector<Damage> damages;  // the first kMostDamages
    std::uint64_t damaged = 0;    // all
};
inline constexpr std::size_t kMostDamages = 100;

// Goes on behind a damaged block: all are counted.
Verdict verify(const Opened& opened, Progress& progress);

}  // namespace gangline::checkpoint::tool
