#pragma once
// `gangline coordinator`: argv[0] is the verb. Returns the process's exit code.

namespace gangline::coordinator {
int coordinator_main(int argc, char** argv);
}  // namespace gangline::coordinator
