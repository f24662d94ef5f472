#pragma once
// Removes a tree of folders, those that stand side by side at the same time: removing one may wait for the disk.
//
// Never follows a symbolic link. Missing is fine. Thread rule: starts threads and joins them.

#include <string>

#include "base/result.h"

namespace gangline::runner {

Result<void> remove_folder(const std::string& path);

}  // namespace gangline::runner
