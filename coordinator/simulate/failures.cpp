#include "coordinator/simulate/failures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "coordinator/simulate/trace.h"

namespace gangline::simulate {
namespace {

constexpr std::array<std::string_view, 7> kSymptoms = {"crash",  "hang", "hang_or_slow", "graceful_stop",
                                                       "silent", "slow", "node_down"};

struct FaultEvent {
    bool is_start = true;
    double at_days = 0;
    std::uint32_t node = 0;
    std::string cause;
};

Result<std::vector<FaultEvent>> read_events(std::string_view text, std::string_view name) {
    enum : std::size_t { Node, At, Event, Cause };
    static const TableLayout layout = {{"node", "event_time_days", "event", "desc"}, {}, ','};
    std::vector<FaultEvent> events;
    const auto done = read_table(text, name, layout, [&](TableRow& row) {
        const std::string_view event = row.text(Event);
        if (event != "start" && event != "end") row.reject(Event, "is neither start nor end");
        if (!row.has(Cause)) row.reject(Cause, "is empty");
        events.push_back({event == "start", row.number(At), row.count(Node), std::string(row.text(Cause))});
    });
    if (!done) return done.error();
    return events;
}

}  // namespace

Result<std::vector<FailureCause>> read_failure_causes(std::string_view text, std::string_view name) {
    enum : std::size_t { Cause, Count, Symptom, SwapShare };
    static const TableLayout layout = {{"cause", "count", "symptom_assumed", "needs_node_swap_assumed"}, {}, ','};
    std::vector<FailureCause> causes;
    std::set<std::string> seen;
    const auto done = read_table(text, name, layout, [&](TableRow& row) {
        FailureCause cause;
        cause.name = row.text(Cause);
        cause.count = row.number(Count);
        cause.symptom = row.text(Symptom);
        cause.swap_share = row.number(SwapShare);
        if (cause.name.empty()) row.reject(Cause, "is empty");
        if (!seen.insert(cause.name).second) row.reject(Cause, "is named twice");
        if (std::find(kSymptoms.begin(), kSymptoms.end(), cause.symptom) == kSymptoms.end()) {
            row.reject(Symptom, fmt::format("is none of {}", fmt::join(kSymptoms, " ")));
        }
        if (cause.swap_share > 1) row.reject(SwapShare, "is a share above 1");
        causes.push_back(std::move(cause));
    });
    if (!done) return done.error();
    if (std::none_of(causes.begin(), causes.end(), [](const FailureCause& cause) { return cause.count > 0; })) {
        return Error{Code::InvalidArgument, fmt::format("{}: column count: no cause has a count above 0", name)};
    }
    return causes;
}

Result<std::vector<FaultSpan>> read_fault_trace(std::string_view text, std::string_view name,
                                                std::vector<std::string>* notes) {
    auto events = read_events(text, name);
    if (!events) return events.error();
    const auto earlier = [](const FaultEvent& a, const FaultEvent& b) { return a.at_days < b.at_days; };
    std::stable_sort(events->begin(), events->end(), earlier);

    std::vector<FaultSpan> spans;
    std::map<std::pair<std::uint32_t, std::string>, std::deque<std::size_t>> open;  // into spans
    std::size_t never_ended = 0;
    std::size_t never_started = 0;
    for (const FaultEvent& event : *events) {
        std::deque<std::size_t>& waiting = open[{event.node, event.cause}];
        if (event.is_start) {
            waiting.push_back(spans.size());
            spans.push_back({event.node, event.at_days, -1, event.cause});
            ++never_ended;
        } else if (waiting.empty()) {
            ++never_started;
        } else {
            spans[waiting.front()].end_days = event.at_days;
            waiting.pop_front();
            --never_ended;
        }
    }
    if (spans.empty()) return Error{Code::InvalidArgument, fmt::format("{}: column event: no row is a start", name)};
    if (notes != nullptr) {
        if (never_ended > 0) notes->push_back(fmt::format("start without an end, never repaired in the trace: {}", never_ended));
        if (never_started > 0) notes->push_back(fmt::format("end without a start, left out: {}", never_started));
    }
    return spans;
}

std::vector<double> repair_days(const std::vector<FaultSpan>& spans) {
    std::vector<double> days;
    for (const FaultSpan& span : spans) {
        if (span.end_days >= 0) days.push_back(span.end_days - span.start_days);
    }
    std::sort(days.begin(), days.end());
    return days;
}

}  // namespace gangline::simulate
