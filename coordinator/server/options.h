#pragma once
// The options of `gangline coordinator`, with their defaults. Every refusal names option, value, range and remedy.

#include <cstdint>
#include <string>

#include "base/result.h"
#include "coordinator/brain/brain.h"

namespace gangline::coordinator {

struct CoordinatorOptions {
    std::string state;
    std::string cluster = "local";
    std::string listen_users = "tcp://127.0.0.1:*";
    std::string listen_nodes = "tcp://127.0.0.1:*";
    std::string authorised;                 // empty: <state>/authorised
    std::string checkpoint_root;            // empty: the job's user's HOME/.gangline/checkpoints
    std::int64_t heartbeat_ms = 500;
    std::int64_t node_timeout_ms = 2500;
    std::int64_t progress_timeout_ms = 30'000;
    std::int64_t grace_ms = 5000;
    std::int64_t min_uid = 1000;
    bool allow_root = false;
    std::string cluster_file;               // cluster.toml; empty: none
    std::uint64_t first_job = 1;
    std::uint32_t promises = 8;
    bool no_backfill = false;
    bool no_preemption = false;
    std::int64_t guaranteed_run_ms = 600'000;
    std::int64_t preemption_grace_ms = 30'000;
    std::string spares = "0";               // N, P% or auto
    std::string placement = "pack";         // or spread
    bool defragment = false;
    double share_weight = 1;
    double age_weight_per_day = 0.5;
    double size_weight = 0;
    double short_weight = 1;
    int lifeline_fd = -1;
    int ready_fd = -1;
    bool help = false;

    Result<void> validate() const;
    std::string authorised_path() const { return authorised.empty() ? state + "/authorised" : authorised; }
    BrainOptions for_brain() const;
};

// "3", "2.5%", "auto". Errors: InvalidArgument.
Result<SparePolicy> parse_spares(const std::string& text);

// argv[0] is the verb. Errors: InvalidArgument.
Result<CoordinatorOptions> parse_options(int argc, const char* const* argv);
std::string options_help();

}  // namespace gangline::coordinator
