#include "runner/shepherd/launch_options.h"

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "base/text.h"

namespace gangline::runner {
namespace {

namespace po = boost::program_options;

constexpr std::uint32_t kMost = 1u << 20;

po::options_description visible_options() {
    po::options_description options("Options", 110, 60);
    // clang-format off
    options.add_options()
        ("help,h", "this text")
        ("ntasks,n", po::value<std::string>()->value_name("N"), "ranks to start (default: all of the job)")
        ("nodes,N", po::value<std::string>()->value_name("N"), "on how many of the job's nodes (default: all, as far as there are ranks)")
        ("ntasks-per-node", po::value<std::string>()->value_name("N"), "ranks on each node (default: as the job has them); fewer than the "
            "job has: each gets its share of all cards of the node")
        ("cpus-per-task,c", po::value<std::string>()->value_name("N"), "CPUs for each rank (default: as the job has them)")
        ("label,l", "begin each line of output with its rank: \"3: \"")
        ("kill-on-bad-exit,K", po::value<std::string>()->implicit_value("1")->value_name("0|1"), "stop the step when a rank exits with another code than 0")
        ("chdir,D", po::value<std::string>()->value_name("DIR"), "folder to start in (default: the present one)")
        ("export", po::value<std::string>()->value_name("LIST"), "ALL (default), NONE, or NAME,NAME=value,...: variables that ranks get; "
            "PATH, SLURM_* and GANGLINE_* always go along");
    // clang-format on
    return options;
}

// srun's options that a step of ours fulfils by itself: MPI is always served, steps share, output is never held back, and
// cards come with the ranks.
po::options_description accepted_options() {
    po::options_description options;
    // clang-format off
    options.add_options()
        ("mpi", po::value<std::string>())("exact", "")("overlap", "")("unbuffered,u", "")("quiet,Q", "")
        ("gpus,G", po::value<std::string>())("gpus-per-node", po::value<std::string>())("gpus-per-task", po::value<std::string>())
        ("gpus-per-socket", po::value<std::string>())("gpu-bind", po::value<std::string>())("gres", po::value<std::string>());
    // clang-format on
    return options;
}

// srun's options that change nothing here: named in a warning.
const char* const kWithoutEffect[] = {"cpu-bind",   "mem",       "mem-per-cpu", "mem-per-gpu",   "distribution", "job-name", "time",
                                      "wait",       "partition", "account",     "ntasks-per-gpu", "threads-per-core",     "hint"};

po::options_description ineffective_options() {
    po::options_description options;
    for (const char* name : kWithoutEffect) options.add_options()(name, po::value<std::string>());
    options.add_options()("exclusive", "")("verbose,v", "");
    return options;
}

po::options_description all_options() {
    po::options_description options;
    options.add(visible_options()).add(accepted_options()).add(ineffective_options());
    return options;
}

// How many words the option at words[i] takes, itself included; 0: unknown. -K takes its value only as part of its word.
std::size_t words_of_option(const po::options_description& options, const std::string& word) {
    const bool is_long = word.substr(0, 2) == "--";
    const auto equals = word.find('=');
    const std::string name = is_long ? word.substr(2, equals == std::string::npos ? equals : equals - 2) : word.substr(0, 2);
    const po::option_description* option = options.find_nothrow(name, false);
    if (option == nullptr) return 0;
    const bool takes_value = option->semantic()->max_tokens() > 0;
    const bool value_is_optional = option->semantic()->min_tokens() == 0;
    const bool has_value = is_long ? equals != std::string::npos : word.size() > 2;
    return takes_value && !value_is_optional && !has_value ? 2 : 1;
}

// Where the program begins; words before it are options.
Result<std::size_t> find_program(const po::options_description& options, const std::vector<std::string>& words) {
    std::size_t i = 0;
    while (i < words.size()) {
        const std::string& word = words[i];
        if (word == "--") return i;
        if (word.size() < 2 || word[0] != '-') return i;
        const std::size_t taken = words_of_option(options, word);
        if (taken == 0) {
            return Error{Code::InvalidArgument, fmt::format("unknown option '{}' (options of the program come after its name; see --help)", word)};
        }
        if (i + taken > words.size()) return Error{Code::InvalidArgument, fmt::format("option '{}' needs a value", word)};
        i += taken;
    }
    return i;
}

Result<std::uint32_t> number(const po::variables_map& given, const char* name) {
    if (given.count(name) == 0) return 0u;
    std::string text = given[name].as<std::string>();
    // srun's --nodes=least-most: a step has all of its nodes at hand, so the most counts.
    if (const auto dash = text.find('-'); dash != std::string::npos && dash > 0 && std::string_view(name) == "nodes") {
        text = text.substr(dash + 1);
    }
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value == 0 || value > kMost) {
        return Error{Code::InvalidArgument, fmt::format("--{}='{}': give a whole number from 1 to {}", name, text, kMost)};
    }
    return value;
}

bool always_exported(std::string_view name) {
    return name == "PATH" || name.substr(0, 6) == "SLURM_" || name.substr(0, 9) == "GANGLINE_";
}

Result<void> export_environment(const std::string& list, const std::vector<std::string>& environment, proto::StepRequest& request) {
    bool all = list.empty();
    std::set<std::string> names;
    std::vector<std::string> extra;
    for (const std::string& item : list.empty() ? std::vector<std::string>() : split(list, ',')) {
        const auto equals = item.find('=');
        if (item == "ALL") {
            all = true;
        } else if (item == "NONE" || item == "NIL") {
            continue;
        } else if (item.empty() || equals == 0) {
            return Error{Code::InvalidArgument, fmt::format("--export='{}': give ALL, NONE, or NAME or NAME=value, separated by commas", list)};
        } else if (equals == std::string::npos) {
            names.insert(item);
        } else {
            extra.push_back(item);
            names.erase(item.substr(0, equals));
        }
    }
    const auto add = [&](const std::string& variable) {
        const auto equals = variable.find('=');
        if (equals == 0 || equals == std::string::npos) return;
        proto::Variable& copy = *request.add_environment();
        copy.set_name(variable.substr(0, equals));
        copy.set_value(variable.substr(equals + 1));
    };
    const auto is_set_anew = [&](const std::string& name) {
        return std::any_of(extra.begin(), extra.end(), [&](const std::string& item) { return item.substr(0, item.find('=')) == name; });
    };
    for (const std::string& variable : environment) {
        const std::string name = variable.substr(0, variable.find('='));
        if ((all || names.count(name) != 0 || always_exported(name)) && !is_set_anew(name)) add(variable);
    }
    for (const std::string& variable : extra) add(variable);
    return {};
}

Result<void> fill_numbers(const po::variables_map& given, proto::StepRequest& request) {
    const auto ranks = number(given, "ntasks");
    if (!ranks) return ranks.error();
    const auto nodes = number(given, "nodes");
    if (!nodes) return nodes.error();
    const auto per_node = number(given, "ntasks-per-node");
    if (!per_node) return per_node.error();
    const auto cpus = number(given, "cpus-per-task");
    if (!cpus) return cpus.error();
    request.set_ranks(*ranks);
    request.set_nodes(*nodes);
    request.set_ranks_per_node(*per_node);
    request.set_cpus_per_rank(*cpus);
    if (given.count("kill-on-bad-exit") != 0) {
        const auto& value = given["kill-on-bad-exit"].as<std::string>();
        if (value != "0" && value != "1") {
            return Error{Code::InvalidArgument, fmt::format("--kill-on-bad-exit='{}': give 0 or 1", value)};
        }
        request.set_kill_on_bad_exit(value == "1");
    }
    return {};
}

}  // namespace

Result<LaunchOptions> parse_launch(const std::vector<std::string>& words, const std::vector<std::string>& environment,
                                   const std::string& cwd) {
    const po::options_description options = all_options();
    const auto program = find_program(options, words);
    if (!program) return program.error();
    po::variables_map given;
    try {
        using po::command_line_style::style_t;
        const int style = po::command_line_style::unix_style & ~style_t::allow_guessing & ~style_t::allow_sticky;
        const std::vector<std::string> own(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(*program));
        po::parsed_options parsed = po::command_line_parser(own).options(options).style(style).run();
        // As with srun, the last one counts.
        std::map<std::string, po::option> last;
        for (po::option& option : parsed.options) last[option.string_key] = std::move(option);
        parsed.options.clear();
        for (auto& [name, option] : last) parsed.options.push_back(std::move(option));
        po::store(parsed, given);
    } catch (const po::error& error) {
        return Error{Code::InvalidArgument, error.what()};
    }
    LaunchOptions result;
    if (given.count("help") != 0) {
        result.help = true;
        return result;
    }
    if (auto filled = fill_numbers(given, result.request); !filled) return filled.error();
    for (std::size_t i = *program; i < words.size(); ++i) {
        if (i != *program || words[i] != "--") result.request.add_argv(words[i]);
    }
    if (result.request.argv().empty() || result.request.argv(0).empty()) {
        return Error{Code::InvalidArgument, "which program? Give it behind the options (see --help)"};
    }
    std::string folder = given.count("chdir") != 0 ? given["chdir"].as<std::string>() : cwd;
    if (folder.empty() || folder[0] != '/') folder = cwd + "/" + folder;
    result.request.set_cwd(folder);
    result.request.set_label(given.count("label") != 0);
    const std::string list = given.count("export") != 0 ? given["export"].as<std::string>() : "ALL";
    if (auto exported = export_environment(list, environment, result.request); !exported) return exported.error();
    for (const char* name : kWithoutEffect) {
        if (given.count(name) != 0) result.warnings.push_back(fmt::format("--{} has no effect on a step", name));
    }
    return result;
}

std::string launch_help(const std::string& program) {
    std::ostringstream text;
    text << "Usage: " << program << " [options] program [arguments]\n\n"
         << "Inside a job script: starts ranks of the program on the job's nodes, waits for all of them, and returns the\n"
         << "highest exit code (128 + N for signal N). MPI programs need no mpirun. May run in the background, several at once.\n\n"
         << visible_options() << "\nExamples:\n  " << program << " python3 train.py --epochs 3\n  " << program
         << " -n 1 ./prepare-data\n  " << program << " --ntasks-per-node=1 torchrun --nproc-per-node=4 train.py\n";
    return text.str();
}

}  // namespace gangline::runner
