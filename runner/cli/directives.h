#pragma once
// The #GANG and #SBATCH lines of a job script, as words with their line numbers.
//
// As sbatch reads them: a directive begins in the first column, in capitals, before the first line that is neither blank
// nor a comment; words are split as a shell does (quotes, backslash); a word that begins with # starts a remark.
// `##SBATCH` and `# SBATCH` are comments. What only looks like a directive and has no effect is told, with its line.
// A byte-order mark and DOS line ends are taken off, and told.
//
// Thread rule: pure.

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gangline::runner {

struct Directive {
    int line = 0;                      // from 1
    std::vector<std::string> words;
};

struct ScriptFile {
    std::string text;                  // what will run: without byte-order mark and carriage returns
    std::vector<Directive> directives;
    std::vector<std::string> warnings;
};

// Errors: InvalidArgument, naming file and line: an open quote; no `#!` in the first line; a NUL byte; a binary.
Result<ScriptFile> read_directives(std::string_view text, const std::string& file_name);

// A shell's words, without expansion. Errors: InvalidArgument (an open quote).
Result<std::vector<std::string>> shell_words(std::string_view text);

}  // namespace gangline::runner
