#pragma once
// `gangline launch [options] prog args` inside a script job, also the program named srun there: starts one step of the
// job through its shepherd, prints what the ranks write, and returns the highest exit code (128 + N for signal N).
//
// Outside a job (no GANGLINE_STEP_SOCKET) it says that a job is needed. Exit codes: 2 usage, 4 no shepherd answers.

namespace gangline::runner {

// argv[0] is the verb ("launch", or "srun"): it names the program in messages.
int launch_main(int argc, char** argv);

}  // namespace gangline::runner
