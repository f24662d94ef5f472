// scenarios [--rewrite] FOLDER: plays each FOLDER/*.txt on virtual time and compares the transcript with the one that the
// file expects. A file is commands, a line `----`, and the transcript; --rewrite puts the new transcript in (review the
// diff). Exit code 1 when one differs. Commands:
//
//   cluster nodes=N cards=N seed=N      first line                 run for MS
//   submit ranks=N [nodes=N] -- WORDS   programs of world.h        run until state JOB STATE
//   cancel JOB | drain NODE | resume NODE                          run until step JOB STEP
//   kill rank JOB RANK | stop rank JOB RANK                        run until committed JOB STEP
//   kill node N | kill agent N | kill coordinator | start node N | start agent N | start coordinator
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "coordinator/simulate/faults.h"

namespace gangline::simulate {
namespace {

std::uint64_t value_of(const std::vector<std::string>& words, const std::string& name, std::uint64_t otherwise) {
    for (const std::string& word : words) {
        if (word.rfind(name + "=", 0) == 0) return std::stoull(word.substr(name.size() + 1));
    }
    return otherwise;
}

std::uint64_t number(const std::vector<std::string>& words, std::size_t at) { return std::stoull(words.at(at)); }

bool submit(World& world, const std::vector<std::string>& words) {
    const auto dashes = std::find(words.begin(), words.end(), "--");
    if (dashes == words.end() || dashes + 1 == words.end()) return false;
    proto::JobSpec spec = command(static_cast<std::uint32_t>(value_of(words, "ranks", 1)), {dashes + 1, words.end()});
    spec.set_nodes_min(static_cast<std::uint32_t>(value_of(words, "nodes", 0)));
    return world.submit(spec) != 0;
}

bool change(World& world, const std::vector<std::string>& words) {
    proto::Request request;
    if (words[0] == "cancel") {
        request.mutable_cancel()->set_job(number(words, 1));
    } else {
        request.mutable_set_node()->set_node(words.at(1));
        request.mutable_set_node()->set_drain(words[0] == "drain");
    }
    return world.ask(std::move(request)).outcome() == proto::OK;
}

bool kill_or_start(World& world, const std::vector<std::string>& words) {
    const std::string what = words[0] + " " + words.at(1);
    if (what == "kill coordinator") return world.kill_coordinator(), true;
    if (what == "start coordinator") return world.start_coordinator(), true;
    if (what == "kill rank") return world.kill_rank(number(words, 2), static_cast<std::uint32_t>(number(words, 3)), SIGKILL);
    if (what == "stop rank") return world.stop_rank(number(words, 2), static_cast<std::uint32_t>(number(words, 3)));
    const std::string& node = words.at(2);
    if (what == "kill node") return world.kill_node(node), true;
    if (what == "start node") return world.start_node(node), true;
    if (what == "kill agent") return world.kill_agent(node), true;
    if (what == "start agent") return world.start_agent(node), true;
    return false;
}

bool run(World& world, const std::vector<std::string>& words) {
    if (words.at(1) == "for") return world.run_for(milliseconds(number(words, 2))), true;
    const std::string& what = words.at(2);
    const std::uint64_t job = number(words, 3);
    return world.run_until([&] {
        if (what == "state") return proto::JobState_Name(world.view(job).state()) == words.at(4);
        if (what == "step") return world.step_of(job) >= number(words, 4);
        const proto::JobView view = world.view(job);
        return what == "committed" && view.checkpoints_size() != 0 && view.checkpoints(view.checkpoints_size() - 1).step() >= number(words, 4);
    }, seconds(600));
}

bool act(World& world, const std::vector<std::string>& words) {
    if (words[0] == "submit") return submit(world, words);
    if (words[0] == "cancel" || words[0] == "drain" || words[0] == "resume") return change(world, words);
    if (words[0] == "kill" || words[0] == "start" || words[0] == "stop") return kill_or_start(world, words);
    return words[0] == "run" && run(world, words);
}

// The transcript of these commands; its last lines say what did not work.
std::string play(const std::vector<std::string>& commands) {
    std::unique_ptr<World> world;
    std::string wrong;
    for (const std::string& line : commands) {
        std::istringstream stream(line);
        const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
        if (words.empty() || words[0][0] == '#') continue;
        if (world == nullptr) {
            WorldOptions options;
            options.nodes = static_cast<std::uint32_t>(value_of(words, "nodes", 2));
            options.cards = static_cast<std::uint32_t>(value_of(words, "cards", 4));
            options.seed = value_of(words, "seed", 1);
            world = std::make_unique<World>(options);
        } else if (!act(*world, words)) {
            wrong += "did not come true: " + line + "\n";
        }
    }
    std::string text;
    if (world == nullptr) return text;
    for (const std::string& line : world->transcript()) text += line + "\n";
    return text + wrong;
}

bool check_file(const std::filesystem::path& path, bool rewrite) {
    std::ifstream in(path);
    std::vector<std::string> commands;
    std::string line;
    while (std::getline(in, line) && line != "----") commands.push_back(line);
    std::ostringstream rest;
    rest << in.rdbuf();
    const std::string played = play(commands);
    if (played == rest.str()) return true;
    if (rewrite) {
        std::ofstream out(path, std::ios::trunc);
        for (const std::string& one : commands) out << one << "\n";
        out << "----\n" << played;
        return true;
    }
    fmt::print("{}: the transcript differs; it is now:\n{}", path.string(), played);
    return false;
}

}  // namespace
}  // namespace gangline::simulate

int main(int argc, char** argv) {
    const std::vector<std::string> given(argv + 1, argv + argc);
    const bool rewrite = !given.empty() && given.front() == "--rewrite";
    if (given.size() != (rewrite ? 2u : 1u)) {
        std::cerr << "usage: scenarios [--rewrite] FOLDER\n";
        return 2;
    }
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(given.back())) {
        if (entry.path().extension() == ".txt") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    bool all = true;
    for (const auto& file : files) all = gangline::simulate::check_file(file, rewrite) && all;
    fmt::print("{} scenarios, {}\n", files.size(), all ? "all as expected" : "some differ");
    return all && !files.empty() ? 0 : 1;
}
