#pragma once
// One table of options per verb, and what is made of it: the help, the parser, the completion, the job file's directives.
//
//   OptionTable -> Boost.Program_options description -> help text
//       |  '--> parse_words(): a command line, or the words of a directive
//       '-----> completion bash
//
// Words are read as sbatch reads them: options end at the first plain word (what follows belongs to the program) and at
// `--`; `-n4`, `-n 4`, `--ntasks=4` and `--ntasks 4` are the same; an option with an optional value takes it only after
// `=`. A name is never guessed from its beginning: an unknown one is an error that suggests the nearest.
//
// Thread rule: pure.

#include <boost/program_options.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gangline::runner {

enum class Takes { Nothing, Value, Maybe };

struct OptionInfo {
    std::string name;            // long name, without the dashes
    char letter = 0;             // 0: no short form
    Takes takes = Takes::Nothing;
    std::string value_name;      // in the help: N, TIME, FILE
    std::string words;           // what it does; for an option that is not supported, what happens instead
    std::string sbatch_variable; // the environment variable that sbatch reads for it; empty: none
    bool supported = true;
    std::string alias_of;        // this is another name of that option
};
using OptionTable = std::vector<OptionInfo>;

// One option as it was given, by its main name, and where: "on the command line", "in job.sh line 4".
struct Given {
    std::string name;
    std::string value;
    std::string where;
    std::string typed = {};              // the name that was written, where it is another name of the option
};

struct ParsedWords {
    std::vector<Given> given;            // in order
    std::vector<std::string> words;      // from the first plain word on; behind `--` when it was there
    bool had_dashes = false;             // `--` ended the options
};

enum class WordsStop {
    AtFirstWord,   // sbatch's way: what follows the script's name belongs to the script
    Never,         // options and words in any order, until `--`
};

// Errors: InvalidArgument that names the option and where it stands.
Result<ParsedWords> parse_words(const OptionTable& table, const std::vector<std::string>& words, WordsStop stop,
                                const std::string& where);

// nullptr: no such option. By long name, or by letter.
const OptionInfo* find_option(const OptionTable& table, std::string_view name);
const OptionInfo* find_option(const OptionTable& table, char letter);
// The known name that is nearest to `name`: at most two edits and less than half of its letters, or `name` (three letters
// or more) begins it. Empty when none is near.
std::string nearest_name(const std::vector<std::string>& known, std::string_view name);
// "unknown option '--nodez' (in job.sh line 3): did you mean --nodes?" Only supported options are suggested.
Error unknown_option(const OptionTable& table, const std::string& shown, const std::string& where);

// The same table as Boost.Program_options has it; the unsupported are left out of the help.
boost::program_options::options_description describe(const OptionTable& table, const std::string& caption);
std::string options_help(const OptionTable& table, const std::string& caption);

// The last one given by this name; nullptr: not given.
const Given* last_given(const std::vector<Given>& given, std::string_view name);
// "--time (in job.sh line 4)" for messages.
std::string shown(const Given& given);
// A whole number within [least, most]. Errors: InvalidArgument that names option, value and range.
Result<std::int64_t> whole_number(const Given& given, std::int64_t least, std::int64_t most);

}  // namespace gangline::runner
