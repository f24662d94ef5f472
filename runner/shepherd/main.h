#pragma once
// `gangline shepherd`: argv[0] is the verb. Returns the process's exit code.

namespace gangline::runner {
int shepherd_main(int argc, char** argv);
}  // namespace gangline::runner
