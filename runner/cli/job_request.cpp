#include "runner/cli/job_request.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/process.h"
#include "base/text.h"
#include "runner/cli/job_spec.h"
#include "runner/cli/json.h"
#include "runner/cli/user.h"

namespace gangline::runner {
namespace {

constexpr std::size_t kMostScript = 2 << 20;

bool is_folder(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

Result<std::string> read_standard_input() {
    std::string text;
    char bytes[65536];
    while (text.size() <= kMostScript) {
        const ssize_t got = ::read(0, bytes, sizeof bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno_error("cannot read the script from standard input");
        if (got == 0) return text;
        text.append(bytes, static_cast<std::size_t>(got));
    }
    return Error{Code::InvalidArgument, fmt::format("the script on standard input is larger than {} bytes", kMostScript)};
}

struct Source {
    Program program;
    ScriptFile script;
    std::string file_name;       // of the script, as it was written
    bool is_script = false;
};

Error nothing_to_run(const Line& line) {
    return {Code::InvalidArgument, fmt::format("nothing to run: write gangline {} [options] -- PROGRAM ARGUMENTS, or a job "
                                               "script: gangline {} [options] SCRIPT ARGUMENTS",
                                               line.verb, line.verb)};
}

Result<std::string> read_script_file(const std::string& file, const std::string& cwd) {
    const std::string path = file.front() == '/' ? file : cwd + "/" + file;
    struct stat info {};
    if (is_folder(path)) {
        return Error{Code::InvalidArgument, fmt::format("{} is a folder: name a job script, or write -- PROGRAM", file)};
    }
    if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
        return Error{Code::InvalidArgument, fmt::format("{} is not a file: name a job script, or write -- PROGRAM", file)};
    }
    auto text = read_file(path, 64 << 20);
    if (text) return text;
    if (text.error().code == Code::NotFound) {
        return Error{Code::InvalidArgument, fmt::format("no such job script: {} (to start a program write: -- {})", file,
                                                        shell_quote(file))};
    }
    return Error{Code::InvalidArgument, text.error().message};
}

Result<Source> read_source(const Line& line) {
    Source source;
    if (line.has("wrap")) {
        if (!line.words.empty()) {
            return Error{Code::InvalidArgument, fmt::format("--wrap is the whole job: '{}' cannot stand beside it",
                                                            line.words.front())};
        }
        source.program.script = "#!/bin/sh\n" + line.text("wrap") + "\n";
        source.program.name = "wrap";
        return source;
    }
    if (line.had_dashes) {
        if (line.words.empty() || line.words.front().empty()) return nothing_to_run(line);
        source.program.argv = line.words;
        source.program.name = name_of(line.words.front());
        return source;
    }
    Result<std::string> text = std::string();
    if (line.words.empty()) {
        if (::isatty(0) == 1) return nothing_to_run(line);
        text = read_standard_input();
        if (text && text->empty()) return nothing_to_run(line);
        source.file_name = "standard input";
        source.program.name = "stdin";
    } else {
        source.file_name = line.words.front();
        if (source.file_name.empty()) return nothing_to_run(line);
        source.program.name = name_of(source.file_name);
        source.program.script_args.assign(line.words.begin() + 1, line.words.end());
        text = read_script_file(source.file_name, line.cwd);
    }
    if (!text) return text.error();
    auto script = read_directives(*text, source.file_name);
    if (!script) return script.error();
    source.script = std::move(script).value();
    source.program.script = source.script.text;
    source.is_script = true;
    return source;
}

bool is_program(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

std::string path_of(const proto::JobSpec& spec) {
    for (const proto::Variable& variable : spec.environment()) {
        if (variable.name() == "PATH") return variable.value();
    }
    return "/usr/local/bin:/usr/bin:/bin";
}

// By PATH when it is a bare name, else in the job's folder.
bool can_start(const proto::JobSpec& spec, const std::string& name) {
    if (name.find('/') != std::string::npos) return is_program(name.front() == '/' ? name : spec.cwd() + "/" + name);
    for (const std::string& folder : split(path_of(spec), ':')) {
        if (is_program((folder.empty() ? spec.cwd() : folder) + "/" + name)) return true;
    }
    return false;
}

// ": write -- python3 train.py" for a Python file, else `other`.
std::string how_to_start(const std::string& name, const char* other) {
    return name.ends_with(".py") ? fmt::format(": write -- python3 {}", shell_quote(name)) : std::string(other);
}

// Can argv[0] be started, by the job's PATH and folder? Errors: the sentence why not.
Result<void> check_program(const proto::JobSpec& spec) {
    if (spec.argv_size() == 0) return {};
    const std::string& name = spec.argv(0);
    if (name.find('/') != std::string::npos) {
        const std::string path = name.front() == '/' ? name : spec.cwd() + "/" + name;
        if (is_program(path)) return {};
        if (is_folder(path)) return Error{Code::InvalidArgument, path + " is a folder, not a program"};
        if (::access(path.c_str(), F_OK) != 0) return Error{Code::InvalidArgument, "no such program: " + path};
        return Error{Code::InvalidArgument,
                     path + " is not a program" + how_to_start(name, ": chmod +x it, or name its interpreter")};
    }
    if (can_start(spec, name)) return {};
    const bool is_here = ::access((spec.cwd() + "/" + name).c_str(), F_OK) == 0;
    return Error{Code::InvalidArgument,
                 fmt::format("no such program in the job's PATH: {}{}", name, is_here ? how_to_start(name, "") : "")};
}

// A script's #! line that this machine cannot follow, in words; empty: it can.
std::string missing_interpreter(const proto::JobSpec& spec, const std::string& file_name) {
    const std::string_view line = std::string_view(spec.script()).substr(0, spec.script().find('\n'));
    if (!line.starts_with("#!")) return {};
    std::vector<std::string> words;
    for (const std::string& word : split(trim(line.substr(2)), ' ')) {
        if (!word.empty()) words.push_back(word);
    }
    if (words.empty()) return fmt::format("{} line 1: #! names no interpreter", file_name);
    std::string interpreter = words.front();
    if (can_start(spec, interpreter) && name_of(interpreter) == "env" && words.size() == 2 && words[1].front() != '-') {
        interpreter = words[1];
    }
    if (can_start(spec, interpreter)) return {};
    return fmt::format("{} line 1: the interpreter {} is not on this machine", file_name, interpreter);
}

Result<void> check_folder(const proto::JobSpec& spec) {
    if (is_folder(spec.cwd())) return {};
    return Error{Code::InvalidArgument, fmt::format("--chdir: {} is not a folder", spec.cwd())};
}

// The node that writes may have another disk, or the job's script may make the folder: said, not refused.
void warn_of_missing_folders(const proto::JobSpec& spec, std::vector<std::string>& warnings) {
    const std::string output = missing_folder(spec.output(), spec.cwd()), error = missing_folder(spec.error(), spec.cwd());
    const auto say_missing = [&](const char* option, const std::string& folder) {
        warnings.push_back(fmt::format("--{}: there is no folder {} on this machine: the job cannot start on a node that has none either",
                                       option, folder));
    };
    if (!output.empty()) say_missing("output", output);
    if (!error.empty() && error != output) say_missing("error", error);
}

}  // namespace

std::string missing_folder(const std::string& pattern, const std::string& cwd) {
    const std::string known = pattern.substr(0, pattern.find('%'));
    const std::size_t slash = known.rfind('/');
    if (slash == std::string::npos || slash == 0) return {};
    const std::string folder = known.starts_with('/') ? known.substr(0, slash) : cwd + "/" + known.substr(0, slash);
    return is_folder(folder) ? "" : folder;
}

bool flag_of(const JobRequest& request, const char* name) { return request.options.has(name); }

int check_only(const Line& line, Client& client, const JobRequest& request) {
    proto::Request question;
    *question.mutable_submit()->mutable_spec() = request.spec;
    question.mutable_submit()->set_test_only(true);
    const auto response = client.ask(question);
    if (!response) return fail(line, response.error());
    const std::string words = response->message().empty() ? "the request is good; nothing was submitted"
                                                          : response->message();
    if (line.json()) {
        print(json_document("test_only", words));
    } else {
        say(words);
    }
    return 0;
}

Result<JobRequest> read_job_request(const Line& line, Where where) {
    auto source = read_source(line);
    if (!source) return source.error();
    std::vector<Given> directives;
    if (source->is_script) {
        auto read = job_options_of_script(source->script, source->file_name);
        if (!read) return read.error();
        directives = std::move(read).value();
    }
    JobRequest request;
    request.options = merge_job_options({line.given, directives, job_options_of_environment(line.environment),
                                         line.config.job_options});
    const ThisUser user = this_user();
    Surroundings here{line.cwd, home_folder(line.environment), user.name, user.shell, line.environment, now().unix_ms / 1000};
    auto built = build_job_spec(request.options, source->program, here);
    if (!built) return built.error();
    request.spec = std::move(built->spec);
    request.warnings = source->script.warnings;
    for (const std::string& warning : {unknown_variables(line.environment),
                                       missing_interpreter(request.spec, source->file_name)}) {
        if (!warning.empty()) request.warnings.push_back(warning);
    }
    request.warnings.insert(request.warnings.end(), built->warnings.begin(), built->warnings.end());
    for (const auto& check : {check_folder, check_program}) {
        const auto good = check(request.spec);
        if (good) continue;
        if (where == Where::ThisMachine) return good.error();
        request.warnings.push_back(good.error().message + " on this machine");
    }
    warn_of_missing_folders(request.spec, request.warnings);
    request.spec.set_idempotency_key(random_hex(16));
    return request;
}

}  // namespace gangline::runner
