#pragma once
// Which of a job's checkpoints stay: base/retention.h over what the journal says. Pure.

#include <vector>

#include "base/retention.h"
#include "coordinator/brain/facts.h"

namespace gangline::coordinator {

// As the job asks; `last`: where it does not say how many.
RetentionRule rule_of(const proto::JobSpec& spec, std::uint32_t last);
// Of each of job.checkpoints, in their order.
std::vector<Needs> needs_of(const Job& job, const RetentionRule& rule);
// Writes into the record of a new checkpoint what is known of the others (marks), and which of them nobody needs beside it (gone).
void decide_retention(const Job& job, const RetentionRule& rule, const proto::CommitRequest& request, proto::CheckpointCommitted& body);

}  // namespace gangline::coordinator
