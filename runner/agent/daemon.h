#pragma once
// The agent's shell: one poll loop round AgentBrain. It blocks nowhere: shepherds are started by execd, logs are read in
// bounded pieces, and every connection is non-blocking.
//
// Thread rule: one thread (and ZeroMQ's own).

#include <memory>
#include <string>

#include "base/result.h"
#include "base/wire/wire.h"
#include "runner/agent/agent_brain.h"

namespace gangline::runner {

struct DaemonOptions {
    AgentOptions brain;
    std::string state;
    std::string spool;             // where execd keeps the spools
    std::string coordinator;       // tcp://host:port; empty with `clean`
    std::string coordinator_key;
    KeyPair keys;
    std::string execd_socket;      // multi-user: abstract socket of the execd; empty: our own child
    int lifeline_fd = -1;
    int ready_fd = -1;
    int claim_fd = -1;             // of claim_node; -1: none
    bool clean = false;            // no network: end what an earlier agent left, then exit
};

// Serves until told to leave. Returns the exit code.
Result<int> run_agent(const DaemonOptions& options);

}  // namespace gangline::runner
