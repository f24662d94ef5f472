#pragma once
// What a job was asked to be: one table of options, read from four sources, the first that speaks wins.
//
//   command line  >  #GANG/#SBATCH lines of the script  >  environment  >  gangline.conf
//
// Environment: GANGLINE_<OPTION> (GANGLINE_TIME), and sbatch's own SBATCH_ names; GANGLINE_ before SBATCH_. Inside a job
// the variables that describe that job (GANGLINE_JOB_NAME, GANGLINE_CHECKPOINT_DIR, ...) are not options.
// Within a source the last one counts, as for sbatch.
//
// Thread rule: pure.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/protocol/job.pb.h"
#include "base/result.h"
#include "runner/cli/directives.h"
#include "runner/cli/options.h"

namespace gangline::runner {

const OptionTable& job_option_table();

using Environment = std::map<std::string, std::string>;

// One source's options, in order.
Result<std::vector<Given>> job_options_of_script(const ScriptFile& script, const std::string& file_name);
std::vector<Given> job_options_of_environment(const Environment& environment);

// GANGLINE_ variables that mean nothing, in one line with the nearest names; empty: there are none. Ours that are no
// options, those that a job is given, and the test suite's are known.
std::string unknown_variables(const Environment& environment);

// Where no source speaks the option is absent.
struct JobOptions {
    std::map<std::string, Given> chosen;     // by main name
    bool has(const std::string& name) const { return chosen.contains(name); }
    const Given* find(const std::string& name) const;
    // The text given, or empty.
    std::string text(const std::string& name) const;
};

// Sources in order of precedence, first wins.
JobOptions merge_job_options(const std::vector<std::vector<Given>>& sources);

// "--qos=normal (in job.sh line 4) is not supported: there are ..." one line an option, and the options themselves.
struct Unsupported {
    std::vector<std::string> warnings;
    std::vector<std::string> options;
};
Unsupported unsupported_options(const JobOptions& options);

// Whether two words are the same but for capitals.
bool same_letters(std::string_view a, std::string_view b);

// sbatch's way to write cards: "4", "a100:4"; for --gres "gpu", "gpu:4", "gpu:a100:4".
struct Cards {
    std::uint32_t count = 0;
    std::string type;                        // empty: any
    std::vector<std::string> other;          // --gres entries that are not GPUs
};
// Errors: InvalidArgument, also for two types in one list.
Result<Cards> parse_cards(const Given& given);

}  // namespace gangline::runner
