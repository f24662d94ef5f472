#include "runner/cli/job_folder.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "runner/cli/verbs.h"

namespace gangline::runner {

namespace {

JobCheckpoints checkpoints_of(const proto::JobView& job) {
    JobCheckpoints found{job.checkpoint_folder(), job.id(), job.attempt(), static_cast<std::uint32_t>(job.rank_views_size()), 0, 0};
    if (job.rank_views_size() == 0) return found;
    found.snapshot_step = found.replica_step = std::numeric_limits<std::uint64_t>::max();
    for (const proto::RankView& rank : job.rank_views()) {
        found.snapshot_step = std::min<std::uint64_t>(found.snapshot_step, rank.snapshot_step());
        found.replica_step = std::min<std::uint64_t>(found.replica_step, rank.replica_step());
    }
    for (const proto::CheckpointView& one : job.checkpoints()) {
        if (one.step() >= found.snapshot_step) found.snapshot_step = 0;
        if (one.step() >= found.replica_step) found.replica_step = 0;
    }
    return found;
}

}  // namespace

Result<JobCheckpoints> find_checkpoints_of(const std::string& job) {
    Line line;
    line.verb = "ckpt";
    line.environment = this_environment();
    std::error_code ignored;
    line.cwd = std::filesystem::current_path(ignored).string();
    auto config = read_config(line.environment, line.cwd);
    if (!config) return config.error();
    line.config = std::move(config).value();
    line.state = state_folder(line.given, line.environment, line.config);
    const auto client = connect(line);
    if (!client) return client.error();
    const auto name = find_job(**client, job);
    if (!name) return name.error();
    proto::Request request;
    request.mutable_show_job()->set_job(name->job);
    set_task(request, *name);
    const auto response = (*client)->ask(request);
    if (!response) return response.error();
    if (response->jobs_size() == 0) return Error{Code::NotFound, "the coordinator knows no such job"};
    if (response->jobs(0).checkpoint_folder().empty()) return Error{Code::NotFound, "the coordinator does not say where its checkpoints are"};
    return checkpoints_of(response->jobs(0));
}

}  // namespace gangline::runner
