#pragma once
// The verbs that people type: a table of them, and what each is given.
//
// Thread rule: one process runs one verb.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runner/cli/client.h"
#include "runner/cli/config.h"
#include "runner/cli/job_name.h"
#include "runner/cli/options.h"

namespace gangline::runner {

// What stands on the command line of one verb, and what surrounds it.
struct Line {
    std::string verb;
    std::vector<Given> given;
    std::vector<std::string> words;
    bool had_dashes = false;
    Environment environment;
    std::string cwd;
    ConfigFile config;
    std::string state;                     // the state folder

    bool has(std::string_view option) const { return last_given(given, option) != nullptr; }
    std::string text(std::string_view option) const;
    bool json() const { return has("json"); }
};

struct Verb {
    std::string name;
    std::string usage;                     // "gangline logs [options] JOB"
    std::string summary;                   // one line
    std::string more;                      // what the help says below the options: examples
    OptionTable options;
    WordsStop stop = WordsStop::Never;
    int (*run)(const Line& line) = nullptr;
    bool needs_config = true;              // false: gangline.conf is not read
};
const std::vector<Verb>& verbs();
const Verb* find_verb(std::string_view name);

int run_run(const Line& line);
int run_up(const Line& line);
int run_down(const Line& line);
int run_submit(const Line& line);
int run_queue(const Line& line);
int run_show(const Line& line);
int run_logs(const Line& line);
int run_cancel(const Line& line);
int run_nodes(const Line& line);
int run_drain(const Line& line);           // and resume
int run_reserve(const Line& line);
int run_unreserve(const Line& line);
int run_reservations(const Line& line);
int run_report(const Line& line);
int run_why(const Line& line);
int run_hold(const Line& line);            // and release
int run_keys(const Line& line);
int run_completion(const Line& line);
int run_version(const Line& line);
int run_help(const Line& line);

std::string verb_help(const Verb& verb);
std::string general_help();
// A bash completion script made of the verbs and their options.
std::string bash_completion();

// Says the error (in JSON on standard output with --json) and returns its exit code.
int fail(const Line& line, const Error& error);
// What `submit` says; `tasks` 0: no array.
std::string submitted_text(std::uint64_t job, const proto::JobSpec& spec, std::uint32_t tasks);
void say(std::string_view text);                         // "gangline: text" on standard error
void warn(const std::vector<std::string>& warnings);
void print(std::string_view text);                       // standard output, as it is

// The configured cluster. Errors: Unavailable when none is, and what to do.
Result<std::unique_ptr<Client>> connect(const Line& line);
// A job by its name, or `@`: the last one that this user submitted (of an array, all of it).
Result<JobName> find_job(Client& client, const std::string& word);
// Exactly one word, a job. Errors name the usage.
Result<JobName> the_job(const Line& line, Client& client);

}  // namespace gangline::runner
