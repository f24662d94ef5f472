// Finds the verb, reads its command line, runs it.
#include "runner/cli/main.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "runner/cli/verbs.h"
#if GANGLINE_HAS_LAUNCH
#include "runner/shepherd/launch_client.h"
#endif

namespace gangline::runner {
namespace {

int launch(int argc, char** argv) {
#if GANGLINE_HAS_LAUNCH
    return launch_main(argc, argv);
#else
    static_cast<void>(argc);
    say(fmt::format("{}: this build cannot start steps inside a job", argv[0]));
    return 2;
#endif
}

std::string working_folder() {
    char* const here = ::getcwd(nullptr, 0);
    const std::string folder = here == nullptr ? "/" : here;
    std::free(here);  // NOLINT(cppcoreguidelines-no-malloc)
    return folder;
}

bool asks_for_help(const std::vector<std::string>& words) {
    for (const std::string& word : words) {
        if (word == "--") return false;
        if (word == "--help" || word == "-h") return true;
        if (!word.starts_with('-')) return false;
    }
    return false;
}

int unknown_verb(const std::string& name) {
    std::vector<std::string> known;
    for (const Verb& verb : verbs()) known.push_back(verb.name);
    const std::string near = nearest_name(known, name);
    say(fmt::format("there is no verb '{}'{}: see gangline help", name,
                    near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near)));
    return 2;
}

int run_verb(const Verb& verb, const std::vector<std::string>& words) {
    Line line;
    line.verb = verb.name;
    line.environment = this_environment();
    line.cwd = working_folder();
    if (asks_for_help(words)) {
        print(verb_help(verb));
        return 0;
    }
    auto parsed = parse_words(verb.options, words, verb.stop, "");
    if (!parsed) {
        for (const std::string& word : words) {
            if (word == "--json") line.given.push_back({"json", "", ""});
        }
        Error error = parsed.error();
        error.message += fmt::format("{} see gangline {} --help", error.message.ends_with('?') ? "" : ":", verb.name);
        return fail(line, error);
    }
    line.given = std::move(parsed->given);
    line.words = std::move(parsed->words);
    line.had_dashes = parsed->had_dashes;
    if (line.has("help")) {
        print(verb_help(verb));
        return 0;
    }
    if (verb.needs_config) {
        auto config = read_config(line.environment, line.cwd);
        if (!config) return fail(line, config.error());
        line.config = std::move(config).value();
        line.state = state_folder(line.given, line.environment, line.config);
    }
    return verb.run(line);
}

}  // namespace

int cli_main(int argc, char** argv) {
    const std::string program = argc > 0 ? argv[0] : "gangline";
    if (program.substr(program.rfind('/') + 1) == "srun") return launch(argc, argv);
    const std::string name = argc > 1 ? argv[1] : "";
    if (name == "launch") return launch(argc - 1, argv + 1);
    if (name == "--version" || name == "-V") return run_verb(*find_verb("version"), {});
    if (name.empty() || name == "--help" || name == "-h") {
        print(general_help());
        return name.empty() ? 2 : 0;
    }
    const Verb* const verb = find_verb(name);
    if (verb == nullptr) return unknown_verb(name);
    return run_verb(*verb, std::vector<std::string>(argv + 2, argv + argc));
}

}  // namespace gangline::runner
