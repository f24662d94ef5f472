#pragma once
// What lies beside a checkpoint's files in its folder. No restore reads it; only the pin counts, and only against deletion.
//
//   .pinned     a person wants this checkpoint to stay; empty
//   .verified   all of it was read back and found whole: "<seconds since 1970> <inode of the folder>", so that a copy, whose bytes
//               nobody has read back, does not pass for verified
//
// Thread rule: pure functions over a folder.

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "checkpoint/disk.h"

namespace gangline::checkpoint {

inline constexpr const char* kPinName = ".pinned";
inline constexpr const char* kVerifiedName = ".verified";

struct Marks {
    bool is_pinned = false;
    std::optional<std::int64_t> verified_unix_s;
};
Marks marks_of(int folder);
bool is_pinned(int folder);
// Durable when it returns. Errors: NoSpace, Internal.
Result<void> pin(Disk& disk, int folder);
Result<void> unpin(Disk& disk, int folder);
// May be lost with the machine's power: then it is read back once more.
Result<void> mark_verified(Disk& disk, int folder, std::int64_t unix_s);

}  // namespace gangline::checkpoint
