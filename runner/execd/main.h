#pragma once
// `gangline execd`: argv[0] is the verb. Returns the process's exit code.

namespace gangline::runner {
int execd_main(int argc, char** argv);
}  // namespace gangline::runner
