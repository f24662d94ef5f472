#pragma once
// Reads an attempt's output log for `gangline logs`: whole records from an offset, bounded.

#include <string>

#include "base/protocol/node.pb.h"

namespace gangline::runner {

// `folder` may be another user's: its output.log must be a plain file of that user and nobody's second name.
proto::LogData read_log(const std::string& folder, const proto::LogRequest& request, bool attempt_ended);

}  // namespace gangline::runner
