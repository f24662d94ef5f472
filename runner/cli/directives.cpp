#include "runner/cli/directives.h"

#include <fmt/format.h>

#include "base/text.h"

namespace gangline::runner {
namespace {

constexpr std::string_view kMarks[] = {"#SBATCH", "#GANG"};

// The text behind the mark when `line` begins with one that is followed by a blank or nothing.
bool behind_mark(std::string_view line, std::string_view& rest) {
    for (const std::string_view mark : kMarks) {
        if (!line.starts_with(mark)) continue;
        rest = line.substr(mark.size());
        if (rest.empty() || rest.front() == ' ' || rest.front() == '\t') return true;
    }
    return false;
}

}  // namespace

Result<std::vector<std::string>> shell_words(std::string_view text) {
    std::vector<std::string> words;
    std::string word;
    bool inside = false;   // a word has begun, perhaps an empty one by quotes
    char quote = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (quote != 0) {
            if (c == quote) {
                quote = 0;
            } else if (c == '\\' && quote == '"' && i + 1 < text.size()) {
                word += text[++i];
            } else {
                word += c;
            }
        } else if (c == '\'' || c == '"') {
            quote = c;
            inside = true;
        } else if (c == '\\' && i + 1 < text.size()) {
            word += text[++i];
            inside = true;
        } else if (c == ' ' || c == '\t') {
            if (inside) words.push_back(std::move(word));
            word.clear();
            inside = false;
        } else if (c == '#' && !inside) {
            break;
        } else {
            word += c;
            inside = true;
        }
    }
    if (quote != 0) return Error{Code::InvalidArgument, fmt::format("the quote {} is not closed", quote)};
    if (inside) words.push_back(std::move(word));
    return words;
}

Result<ScriptFile> read_directives(std::string_view text, const std::string& file_name) {
    ScriptFile script;
    if (text.starts_with("\xEF\xBB\xBF")) {
        text.remove_prefix(3);
        script.warnings.push_back(fmt::format("{}: the byte-order mark at its beginning is taken off", file_name));
    }
    if (text.starts_with("\x7f" "ELF") || text.find('\0') != std::string_view::npos) {
        return Error{Code::InvalidArgument,
                     fmt::format("{} is a program, not a script: write -- {}", file_name, shell_quote(file_name))};
    }
    if (!text.starts_with("#!")) {
        std::string text_of_error = fmt::format(
            "{} line 1: a job script begins with #! and its interpreter, for example #!/bin/bash", file_name);
        if (file_name.ends_with(".py")) text_of_error += fmt::format("; to start it as it is write: -- python3 {}", shell_quote(file_name));
        return Error{Code::InvalidArgument, text_of_error};
    }
    bool commands_begun = false;
    bool dos_lines = false;
    int number = 0;
    while (!text.empty()) {
        const std::size_t end = text.find('\n');
        std::string_view line = text.substr(0, end);
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
        ++number;
        if (line.ends_with('\r')) {
            line.remove_suffix(1);
            dos_lines = true;
        }
        script.text.append(line);
        if (end != std::string_view::npos) script.text += '\n';

        const std::string_view bare = trim(line);
        std::string_view rest;
        if (behind_mark(line, rest)) {
            if (commands_begun) {
                script.warnings.push_back(fmt::format(
                    "{} line {}: '{}' has no effect: it stands after the first command", file_name, number, bare));
                continue;
            }
            auto words = shell_words(rest);
            if (!words) {
                return Error{Code::InvalidArgument,
                             fmt::format("{} line {}: {}: {}", file_name, number, words.error().message, bare)};
            }
            script.directives.push_back({number, std::move(words).value()});
        } else if (!commands_begun && behind_mark(bare, rest)) {
            script.warnings.push_back(fmt::format(
                "{} line {}: '{}' has no effect: a directive begins in the first column", file_name, number, bare));
        } else if (!bare.empty() && bare.front() != '#') {
            commands_begun = true;
        }
    }
    if (dos_lines) {
        script.warnings.push_back(fmt::format("{} has DOS line ends (CR LF): the job gets it without them", file_name));
    }
    return script;
}

}  // namespace gangline::runner
