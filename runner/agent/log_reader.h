#pragma once
// Reads an attempt's output log for `gangline logs`: whole records from an offset, bounded.

#include <string>

#include "base/protocol/node.pb.h"

namespace gangline::runner {

proto::LogData read_log(const std::string& path, const proto::LogRequest& request, bool attempt_ended);

}  // namespace gangline::runner
