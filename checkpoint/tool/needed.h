#pragma once
// Why each checkpoint of a folder stays: by the rule that its gang has left there (.retention), pins, and who reads it now.

#include <string>
#include <vector>

#include "checkpoint/tool/place.h"

namespace gangline::checkpoint::tool {

// Of each entry, in their order: "last, best"; empty: nobody needs it, or the rule is not known. "read": somebody on this machine reads it.
std::vector<std::string> needed_by(const Place& place, const std::vector<Entry>& entries);

}  // namespace gangline::checkpoint::tool
