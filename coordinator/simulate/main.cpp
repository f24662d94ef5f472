// simulate --seed N --runs M: seeds N .. N+M-1, each twice. Prints what went wrong, and how often each rare path was
// reached. Exit code 1 when anything was wrong. With --verbose the transcript of each seed.
#include <fmt/format.h>

#include <boost/program_options.hpp>
#include <iostream>

#include "coordinator/simulate/faults.h"

int main(int argc, char** argv) {
    namespace options = boost::program_options;
    options::options_description described("simulate: the coordinator's brain on virtual time, with faults from a seed");
    std::uint64_t seed = 1;
    std::uint64_t runs = 100;
    described.add_options()("help,h", "this text")("seed", options::value(&seed), "the first seed")(
        "runs", options::value(&runs), "how many seeds")("verbose,v", "print the transcripts");
    options::variables_map given;
    try {
        options::store(options::parse_command_line(argc, argv, described), given);
        options::notify(given);
    } catch (const options::error& wrong) {
        std::cerr << "simulate: " << wrong.what() << "\n" << described;
        return 2;
    }
    if (given.count("help") != 0) {
        std::cout << described;
        return 0;
    }
    std::map<std::string, std::uint64_t> reached;
    std::uint64_t jobs = 0;
    std::uint64_t bad = 0;
    for (std::uint64_t i = 0; i < runs; ++i) {
        const auto outcome = gangline::simulate::run_seed_twice(seed + i);
        jobs += outcome.jobs;
        for (const auto& [path, times] : outcome.reached) reached[path] += times;
        if (given.count("verbose") != 0) {
            for (const std::string& line : outcome.transcript) fmt::print("{}\n", line);
        }
        for (const std::string& line : outcome.wrong) fmt::print("seed {}: {}\n", seed + i, line);
        if (!outcome.wrong.empty()) ++bad;
    }
    fmt::print("{} seeds, {} jobs, {} seeds went wrong\n", runs, jobs, bad);
    for (const auto& [path, times] : reached) fmt::print("  {:28} {}\n", path, times);
    return bad == 0 ? 0 : 1;
}
