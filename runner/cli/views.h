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

std::string queue_text(const JobViews& jobs, const Terminal& terminal, std::int64_t now_ms);
std::string job_text(const proto::JobView& job, const Terminal& terminal, std::int64_t now_ms);
std::string nodes_text(const NodeViews& nodes, const Terminal& terminal, std::int64_t now_ms);
std::string report_text(const proto::Report& report, const Terminal& terminal);
// Where else a job might have gone, and why it did not; empty when nothing is known.
std::string passed_over_text(const google::protobuf::RepeatedPtrField<std::string>& lines);
std::string cluster_report_text(const proto::ClusterReport& report, const Terminal& terminal);
// `name`: how the job was named.
std::string why_text(const proto::Why& why, const std::string& name);

}  // namespace gangline::runner
