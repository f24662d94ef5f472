#pragma once
// `gangline agent`: argv[0] is the verb. Returns the process's exit code.

namespace gangline::runner {
int agent_main(int argc, char** argv);
}  // namespace gangline::runner
