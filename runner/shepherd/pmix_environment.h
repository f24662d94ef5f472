#pragma once
// Environment variables that steer Open MPI and PMIx: what a rank gets, and what neither a rank nor the server may inherit.
//
// Thread rule: clean_own_environment only before threads start; the rest is pure (mpi_interface reads the interfaces).

#include <string>
#include <string_view>
#include <vector>

#include "runner/shepherd/pmix_server.h"

namespace gangline::runner {

// Set by another launcher (mpirun, srun, flux) for its own ranks: such a variable would lead ours to that launcher.
// A user's OMPI_MCA_* settings are none.
bool is_launcher_variable(std::string_view name);

// Takes every launcher variable, and SLURM_*, out of this process's own environment.
void clean_own_environment();

// `base` without launcher variables, then the settings that are missing in it. JSM_JSRUN_PORT is always set: without a launcher's
// mark Open MPI 4.1 ignores the PMIx server, and each rank is silently alone, "rank 0 of 1".
std::vector<std::string> mpi_environment(const std::vector<std::string>& base, const MpiSettings& settings);

// The name of the interface that has `address`; empty when none has (Open MPI then chooses by itself).
std::string interface_of(const std::string& address);

// Ranks reach their server over the loopback interface; while it is down MPI_Init hangs without a word.
bool is_loopback_up();

}  // namespace gangline::runner
