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

int main(int argc, char** argv) {
    std::signal(SIGPIPE, SIG_IGN);
    const std::string_view verb = argc > 1 ? argv[1] : "";
    if (verb == "coordinator") return gangline::coordinator::coordinator_main(argc - 1, argv + 1);
    if (verb == "agent") return gangline::runner::agent_main(argc - 1, argv + 1);
    if (verb == "execd") return gangline::runner::execd_main(argc - 1, argv + 1);
    if (verb == "ckpt") return gangline::checkpoint::tool::ckpt_main(argc - 1, argv + 1, gangline::runner::checkpoint_folder_of);
    if (verb == "simulate") return gangline::simulate::simulate_main(argc - 1, argv + 1);
    if (verb == "keeper") return gangline::checkpoint::keeper_main(argc - 1, argv + 1);
    if (verb == "shepherd") return gangline::runner::shepherd_main(argc - 1, argv + 1);
    return gangline::runner::cli_main(argc, argv);
}
