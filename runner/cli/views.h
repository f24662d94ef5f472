#pragma once
// The coordinator's answers as text for people: the queue, one job's story, the nodes, the report, the reasons.
//
// Thread rule: pure; `now_ms` is wall time, for ages.

#include <cstdint>
#include <string>
#include <vector>

#include "base/protocol/user.pb.h"
#include "runner/cli/terminal.h"

namespace gangline::runner {

using JobViews = google::protobuf::RepeatedPtrField<proto::JobView>;
using NodeViews = google::protobuf::RepeatedPtrField<proto::NodeView>;

std::string state_word(proto::JobState state);     // "running", "timed out"
Tone state_tone(proto::JobState state);
bool has_ended(proto::JobState state);
// "step 300/1200 loss 0.4100 55.2 steps/s eta 16s"; empty when the program reports no steps.
std::string progress_words(const proto::JobView& job);
// The exit code that `run` and `submit --wait` end with: never 0 for a job that did not complete.
int exit_code_of(const proto::JobView& job);

std::string span_between(std::int64_t from_ms, std::int64_t to_ms);      // "1m 03s"; "-" when `from_ms` is 0
std::string nodes_of(const google::protobuf::RepeatedPtrField<proto::Placement>& gang);
// "5-199", "0-96:4,98" with a step of 4: as --array has it.
std::string ranges_of(std::vector<std::uint32_t> numbers, std::uint32_t step);

// Waiting tasks of one array that wait for the same thing are one line: 10_[5-199]. The user is shown where there are several.
enum class QueueOf { AllUsers, OneUser };
std::string queue_text(const JobViews& jobs, const Terminal& terminal, std::int64_t now_ms, QueueOf whose = QueueOf::AllUsers);
// All that have not ended, and at most so many that have.
JobViews with_most_ended(const JobViews& jobs, std::uint32_t most);
// How many of the array's tasks among `jobs` are done, failed, running, waiting; empty when there are none.
std::string array_text(const JobViews& jobs, std::uint64_t array);
std::string job_text(const proto::JobView& job, const Terminal& terminal, std::int64_t now_ms);
std::string nodes_text(const NodeViews& nodes, const Terminal& terminal, std::int64_t now_ms);
std::string report_text(const proto::Report& report, const Terminal& terminal);
// Where else a job might have gone, and why it did not; empty when nothing is known.
std::string passed_over_text(const google::protobuf::RepeatedPtrField<std::string>& lines);

// What surrounds a cluster's report: who asks, for whom, and what was cut.
struct ReportReader {
    bool sees_all = false;               // an operator
    std::string name;
    std::string asked_for;               // --user; empty: everybody
    std::size_t jobs_left_out = 0;
};
inline constexpr int kMostReportedJobs = 20;     // the coordinator's answer has so many, the largest
std::string cluster_report_text(const proto::ClusterReport& report, const ReportReader& reader, const Terminal& terminal);
// `name`: how the job was named.
std::string why_text(const proto::Why& why, const std::string& name, std::int64_t now_ms);

}  // namespace gangline::runner
