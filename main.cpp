// gangline VERB ...: one executable; the verb picks the part. `gl` and the names of Slurm are links to it.

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/keeper/keeper.h"
#include "checkpoint/tool/verb.h"
#include "coordinator/server/main.h"
#include "coordinator/simulate/verb.h"
#include "runner/agent/main.h"
#include "runner/cli/job_folder.h"
#include "runner/cli/main.h"
#include "runner/execd/main.h"
#include "runner/shepherd/main.h"

namespace {

gangline::Result<gangline::checkpoint::tool::FoundJob> find_job(const std::string& name) {
    const auto job = gangline::runner::find_checkpoints_of(name);
    if (!job) return job.error();
    gangline::checkpoint::tool::FoundJob found{job->folder, {}};
    if (job->replica_step != 0) found.in_memory.push_back({job->job, job->replica_step, job->attempt, job->ranks, true});
    if (job->snapshot_step > job->replica_step) found.in_memory.push_back({job->job, job->snapshot_step, job->attempt, job->ranks, false});
    return found;
}

}  // namespace

int main(int argc, char** argv) {
    std::signal(SIGPIPE, SIG_IGN);
    const std::string_view verb = argc > 1 ? argv[1] : "";
    if (verb == "coordinator") return gangline::coordinator::coordinator_main(argc - 1, argv + 1);
    if (verb == "agent") return gangline::runner::agent_main(argc - 1, argv + 1);
    if (verb == "execd") return gangline::runner::execd_main(argc - 1, argv + 1);
    if (verb == "ckpt") return gangline::checkpoint::tool::ckpt_main(argc - 1, argv + 1, find_job);
    if (verb == "simulate") return gangline::simulate::simulate_main(argc - 1, argv + 1);
    if (verb == "keeper") return gangline::checkpoint::keeper_main(argc - 1, argv + 1);
    if (verb == "shepherd") return gangline::runner::shepherd_main(argc - 1, argv + 1);
    return gangline::runner::cli_main(argc, argv);
}
