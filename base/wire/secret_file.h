#pragma once
// Files that hold secrets: 0600, ours, in a folder that nobody else may write (R8). The checks are made on the opened
// descriptor, so that a file exchanged between check and use gains nothing.

#include <string>
#include <string_view>

#include "base/result.h"

namespace gangline {

inline constexpr std::size_t kMostSecretFileBytes = 4096;

// Errors: Refused (mode, owner, folder, not a regular file), NotFound, InvalidArgument (too long), Internal.
Result<std::string> read_secret_file(const std::string& path);
// Whole or absent, never over an existing file. Errors: Refused when it exists or the folder is open to others; NoSpace.
Result<void> write_secret_file(const std::string& path, std::string_view content);
// Overwrites the bytes in a way that the compiler keeps, then empties it.
void forget_secret(std::string& secret);

}  // namespace gangline
