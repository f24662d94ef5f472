#pragma once
// `gangline simulate`: the replay (replay.h) as a tool for people.

namespace gangline::simulate {

// argv[0] is the verb. Exit code 0, 2 for bad options or files.
int simulate_main(int argc, char** argv);

}  // namespace gangline::simulate
