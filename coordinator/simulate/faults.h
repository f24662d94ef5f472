#pragma once
// One seed, one story: a cluster, its jobs, and everything that can go wrong, drawn at random.
//
// Safety phase: processes, machines and connections die and come back. Liveness phase: faults stop, every job must end and
// every card must be free. The same seed tells the same story, word for word.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/simulate/world.h"

namespace gangline::simulate {

struct Outcome {
    std::vector<std::string> wrong;               // empty: all is well
    std::vector<std::string> transcript;
    std::map<std::string, std::uint64_t> reached; // rare paths and how often
    std::uint64_t jobs = 0;
};

Outcome run_seed(std::uint64_t seed, PlantedBug bug = PlantedBug::None);
// Twice: the transcripts must be equal.
Outcome run_seed_twice(std::uint64_t seed);

proto::JobSpec command(std::uint32_t ranks, std::vector<std::string> argv);

}  // namespace gangline::simulate
