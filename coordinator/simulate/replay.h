#pragma once
// A cluster, its jobs and its faults on virtual time, with the scheduler that the coordinator uses: "what if I buy two more racks,
// keep three spares, save every minute?"
//
//   jobs      of a trace, or one gang that trains for the whole span
//   faults    per node a Poisson process; cause and symptom drawn from a table; a lemon node draws more often; repair times drawn
//             from measured ones, or exponential
//   recovery  detect -> stop -> (swap) -> prepare -> launch -> join -> restore -> warm up: seconds from a phases file, where what
//             grows with the gang is a + b log2(nodes)
//   snapshots every `memory_every_s` with a stall, kept in memory and on a peer; a fault costs what was done since the last one
//
// Every card-second of the cluster has one cause; they add up to cards x span. Pure: same options and seed, same result.
// Source for the checks: the renewal form of Daly (Future Generation Computer Systems 22, 2006):
//   wall per useful t = M e^(R/M) (e^((t+d)/M) - 1).

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "coordinator/simulate/failures.h"
#include "coordinator/simulate/trace.h"

namespace gangline::simulate {

// Seconds of one phase of recovery: base + per_doubling * log2(nodes of the gang).
struct Phase {
    double base_s = 0;
    double per_doubling_s = 0;
    std::string source;

    double of(std::uint32_t nodes) const;
};

struct Phases {
    std::map<std::string, double> detect_s = {};  // by symptom
    double undetected_s = 0;                      // silent faults: how far back the last verified state is
    Phase stop, swap, prepare, launch, join, restore, warm_up;
    double graceful_s = 0;                        // a planned stop: checkpoint, move; nothing is lost

    // All phases after detection. `swapped`: a node is replaced.
    double recovery_s(std::uint32_t nodes, bool swapped) const;
};

// JSON as in docs/simulator/phases.json. Errors: InvalidArgument naming the key.
Result<Phases> parse_phases(std::string_view json, std::string_view name);

enum class Policy { Fifo, Easy, BestFit, Gangline };
// Errors: InvalidArgument with the names.
Result<Policy> parse_policy(std::string_view name);
std::string_view name_of(Policy policy);

struct ReplayOptions {
    std::uint32_t nodes = 16;
    std::uint32_t cards_per_node = 8;
    std::uint32_t nodes_per_rack = 16;
    std::uint32_t racks_per_block = 16;
    Policy policy = Policy::Gangline;
    std::uint32_t promises = 8;          // of Policy::Gangline
    double short_weight = 1;             // of Policy::Gangline: see brain.h
    double limit_factor = 2;             // a job's time limit where the trace has none: so much times its run time
    double span_s = 0;                   // end of the replay; 0 = when the last job has ended
    std::uint32_t whole_cluster_job = 0; // nodes of the one gang that trains for all of the span; 0 = jobs of a trace
    bool elastic = false;                // a gang without a node to replace goes on with fewer
    // faults
    double faults_per_1000_node_days = 0;
    double lemon_nodes = 0;              // part of all nodes ...
    double lemon_faults = 0;             // ... that draws this part of all faults
    double repair_mean_s = 86400;        // exponential, when `repairs_days` is empty
    std::vector<double> repair_days;     // drawn from
    std::vector<FailureCause> causes;    // empty: all are crashes that need no swap
    double rack_faults_per_rack_year = 0;
    // snapshots
    double memory_every_s = 60;
    double memory_stall_s = 0.2;
    Phases phases;
    std::uint64_t seed = 1;
};

struct SizeClass {
    std::string name;       // "1", "2-8", ...
    std::size_t jobs = 0;
    double mean_wait_s = 0;
    double p95_wait_s = 0;
};

struct ReplayResult {
    double span_s = 0;
    std::size_t jobs = 0;
    std::size_t finished = 0;
    double mean_wait_s = 0;
    double median_wait_s = 0;
    double p95_wait_s = 0;
    std::vector<SizeClass> sizes;
    double allocated = 0;                // card-seconds held / owned until the last submit (the span where there is no trace)
    double useful = 0;                   // of cards x span
    double ett = 0;                      // of the cards that jobs held or waited for: useful / (all but free, broken)
    double worst_stretch_s = 0;          // longest time without useful work of a running gang
    std::uint64_t faults = 0;            // that hit a gang
    std::uint64_t swaps = 0;
    std::uint64_t shrinks = 0;
    double waited_for_node_s = 0;
    double stranded = 0;                 // mean part of free cards on nodes that are neither empty nor full
    std::map<std::string, double> causes;            // card-seconds by cause; sum = cards x span
    std::vector<std::pair<double, double>> used;     // (s, part of cards held), coarse
    std::size_t passes = 0;
};

Result<ReplayResult> replay(const ReplayOptions& options, const std::vector<TraceJob>& jobs);

// Useful part of the time of a gang that fails every `mtbf_s` on average and then needs `recovery_s`. Source: above.
double renewal_ett(double mtbf_s, double recovery_s, double every_s, double stall_s);

}  // namespace gangline::simulate
