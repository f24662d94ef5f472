#pragma once
// What breaks in a cluster, how often and for how long, read from the text of published tables. Pure: text in, value out.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gangline::simulate {

struct FailureCause {
    std::string name;
    double count = 0;       // how often in the span that the table covers
    std::string symptom;    // crash hang hang_or_slow graceful_stop silent slow node_down
    double swap_share = 0;  // 0..1 of these failures take the node out of use
};

// The table cause,count,symptom_assumed,needs_node_swap_assumed, in the file's order; extra columns do not matter.
// Errors: InvalidArgument by name, line, column and value: a bad number, a share above 1, a symptom that is none of the
//         above, a cause without a name or named twice; also a table without a row or without any count above 0.
Result<std::vector<FailureCause>> read_failure_causes(std::string_view text, std::string_view name);

struct FaultSpan {
    std::uint32_t node = 0;
    double start_days = 0;
    double end_days = -1;  // -1 = never repaired in the trace
    std::string cause;
};

// The table node,event_time_days,event,desc with an event of start or end, as spans by start time. The first open start of
// a node and desc ends first. A start that never ends stays, with end_days = -1; an end that nothing started is left out.
// Both are counted in `notes`, where given; on an error `notes` stays as it was.
// Errors: InvalidArgument by name, line, column and value: a bad number, another event, an empty desc, no row, no span.
Result<std::vector<FaultSpan>> read_fault_trace(std::string_view text, std::string_view name,
                                                std::vector<std::string>* notes = nullptr);

// How long each repaired span took, from the shortest. Units: days.
std::vector<double> repair_days(const std::vector<FaultSpan>& spans);

}  // namespace gangline::simulate
