#pragma once
// People's verbs: argv[0] is the program's own name (gangline, gl, srun, ...), argv[1] the verb.

namespace gangline::runner {
int cli_main(int argc, char** argv);
}  // namespace gangline::runner
