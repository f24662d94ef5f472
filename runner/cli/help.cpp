// help, version, completion: all made of the table of verbs.
#include <fmt/format.h>

#include "runner/cli/json.h"
#include "runner/cli/verbs.h"

namespace gangline::runner {
namespace {

struct Machine {
    const char* name;
    const char* words;
};
constexpr Machine kOtherVerbs[] = {
    {"launch", "inside a job script: start ranks (`srun` is the same program)"},
    {"ckpt", "look into checkpoints: ls, show, verify, diff, view, export, prune"},
    {"simulate", "what if: a cluster, its jobs and faults on virtual time"},
    {"coordinator", "the cluster's brain, as a daemon"},
    {"agent", "a node's side, as a daemon"},
    {"execd", "starts shepherds as their users (root, where several users share nodes)"},
};

// Words of a verb that take one of a few values, for the completion.
std::string option_words(const Verb& verb) {
    std::string words;
    for (const OptionInfo& option : verb.options) {
        if (!option.supported) continue;
        words += fmt::format("--{}{} ", option.name, option.takes == Takes::Value ? "=" : "");
        if (option.letter != 0) words += fmt::format("-{} ", option.letter);
    }
    if (!words.empty()) words.pop_back();
    return words;
}

// "Accepted with a warning: --account, ..." folded to lines of at most 100 columns; empty when there are none.
std::string unsupported_text(const Verb& verb) {
    std::string text, line = " ";
    for (const OptionInfo& option : verb.options) {
        if (option.supported || option.words.empty() || find_option(job_option_table(), option.name) == nullptr) continue;
        if (line.size() + option.name.size() + 4 > 100) {
            text += line + "\n";
            line = " ";
        }
        line += " --" + option.name;
    }
    if (line == " ") return {};
    return "\nsbatch's options that are accepted but not supported (a warning says what happens instead):\n" + text + line +
           "\n";
}

}  // namespace

std::string verb_help(const Verb& verb) {
    std::string text = fmt::format("usage: {}\n\n{}.\n", verb.usage, verb.summary);
    text[text.find("\n\n") + 2] = static_cast<char>(std::toupper(static_cast<unsigned char>(verb.summary.front())));
    text += "\n" + options_help(verb.options, "Options");
    text += unsupported_text(verb);
    if (!verb.more.empty()) text += "\n" + verb.more;
    return text;
}

std::string general_help() {
    std::string text = "usage: gangline VERB [options]\n\nRuns batch training jobs on gangs of cards: whole or not at all.\n\n";
    for (const Verb& verb : verbs()) text += fmt::format("  {:<12} {}\n", verb.name, verb.summary);
    text += "\nParts of a cluster and of a job:\n";
    for (const Machine& other : kOtherVerbs) text += fmt::format("  {:<12} {}\n", other.name, other.words);
    text += "\n`gangline VERB --help` explains a verb. Exit codes: 0 done, 2 wrong usage, 3 refused, 4 not reachable;\n"
            "`run` and `submit --wait` exit with the job's own.\n\n"
            "First steps:\n"
            "  gangline run --ranks 4 -- ./program       a job on this machine, nothing to set up\n"
            "  gangline up --nodes 2 --cards 4           a cluster on this machine that stays\n"
            "  gangline submit job.sh                    queue a job; then: gangline show @\n";
    return text;
}

std::string bash_completion() {
    std::string names, cases;
    for (const Verb& verb : verbs()) {
        names += verb.name + " ";
        cases += fmt::format("        {}) words=\"{}\" ;;\n", verb.name, option_words(verb));
    }
    for (const Machine& other : kOtherVerbs) names += std::string(other.name) + " ";
    names.pop_back();
    return "# bash completion of gangline; source it, or put it into /etc/bash_completion.d\n"
           "_gangline() {\n"
           "    local current=\"${COMP_WORDS[COMP_CWORD]}\" verb=\"${COMP_WORDS[1]}\" words=\"\"\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
           "        COMPREPLY=($(compgen -W \"" + names + " --help --version\" -- \"$current\"))\n"
           "        return\n"
           "    fi\n"
           "    case \"$verb\" in\n" + cases +
           "    esac\n"
           "    case \"$verb\" in\n"
           "        help) words=\"" + names + "\" ;;\n"
           "        completion) words=\"bash\" ;;\n"
           "        keys) [ \"$COMP_CWORD\" -eq 2 ] && words=\"new public $words\" ;;\n"
           "    esac\n"
           "    case \"$current\" in\n"
           "        -*) COMPREPLY=($(compgen -W \"$words\" -- \"$current\")) ;;\n"
           "        *)\n"
           "            case \"$verb\" in\n"
           "                help|completion|keys) COMPREPLY=($(compgen -W \"$words\" -- \"$current\")) ;;\n"
           "            esac\n"
           "            [ ${#COMPREPLY[@]} -eq 0 ] && COMPREPLY=($(compgen -f -- \"$current\"))\n"
           "            ;;\n"
           "    esac\n"
           "    [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace 2>/dev/null\n"
           "    return 0\n"
           "}\n"
           "complete -F _gangline gangline gl\n";
}

int run_help(const Line& line) {
    if (line.words.empty()) {
        print(general_help());
        return 0;
    }
    const Verb* const verb = find_verb(line.words.front());
    if (verb == nullptr) {
        return fail(line, {Code::InvalidArgument, fmt::format("there is no verb '{}': see gangline help", line.words.front())});
    }
    print(verb_help(*verb));
    return 0;
}

int run_version(const Line& line) {
    print(line.json() ? json_document("version", GANGLINE_VERSION) : std::string("gangline " GANGLINE_VERSION "\n"));
    return 0;
}

int run_completion(const Line& line) {
    if (line.words.size() != 1 || line.words.front() != "bash") {
        return fail(line, {Code::InvalidArgument, "write gangline completion bash: other shells are not served"});
    }
    print(bash_completion());
    return 0;
}

}  // namespace gangline::runner
