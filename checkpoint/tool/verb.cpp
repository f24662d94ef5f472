#include "checkpoint/tool/verb.h"

#include <algorithm>
#include <boost/program_options.hpp>
#include <csignal>
#include <iterator>
#include <sstream>

#include <fmt/format.h>

#include "checkpoint/tool/commands.h"
#include "checkpoint/tool/output.h"

namespace gangline::checkpoint::tool {
namespace {

namespace po = boost::program_options;

struct Command {
    const char* name;
    const char* places;
    const char* summary;
    std::size_t least_words;
    std::size_t most_words;
    void (*options)(po::options_description&, Request&);
    Result<int> (*run)(const Request&);
    const char* examples;
};

void no_options(po::options_description&, Request&) {}

void verify_options(po::options_description& all, Request& r) { all.add_options()("all", po::bool_switch(&r.all), "every checkpoint of the folder"); }

void view_options(po::options_description& all, Request& r) {
    all.add_options()("output,o", po::value(&r.output)->value_name("FILE"), "write it there (default: view.h5 beside the shards)")
        ("force", po::bool_switch(&r.force), "replace the file that is there");
}

void export_options(po::options_description& all, Request& r) {
    all.add_options()("format", po::value(&r.format)->value_name("NAME")->default_value(r.format), "safetensors or npz")
        ("output,o", po::value(&r.output)->value_name("FILE"), "write it there")
        ("rank", po::value(&r.rank)->value_name("N"), "per-rank tensors too, those of rank N")
        ("force", po::bool_switch(&r.force), "replace the file that is there");
}

void prune_options(po::options_description& all, Request& r) {
    all.add_options()("keep", po::value(&r.keep)->value_name("N"), "the newest N of each job stay (1 at least)")
        ("every", po::value(&r.every)->value_name("STEPS"), "besides, the first in each range of so many steps stays")
        ("dry-run", po::bool_switch(&r.dry_run), "only show what would be deleted")
        ("yes,y", po::bool_switch(&r.yes), "do not ask");
}

constexpr Command kCommands[] = {
    {"ls", "PLACE [STEP]", "the checkpoints of a folder, newest last", 1, 2, no_options, run_list,
     "  gangline ckpt ls /data/checkpoints/job-12\n  gangline ckpt ls 12          of job 12\n"},
    {"show", "PLACE [STEP]", "one checkpoint: totals, and each tensor", 1, 2, no_options, run_show,
     "  gangline ckpt show 12            the newest of job 12\n  gangline ckpt show checkpoints 1200\n"
     "  gangline ckpt show checkpoints/step-000000001200-e000003 --json\n"},
    {"verify", "PLACE [STEP]", "read every block and compare its checksum", 1, 2, verify_options, run_verify,
     "  gangline ckpt verify checkpoints 1200 && cp -r checkpoints/step-000000001200-e000003 /archive\n  gangline ckpt verify --all 12\n\n"
     "Exit code 0: good, 1: damaged (file and block are named).\n"},
    {"diff", "A B | PLACE STEP STEP | PLACE STEP PLACE STEP", "in what two checkpoints differ", 2, 4, no_options, run_diff,
     "  gangline ckpt diff checkpoints 1200 1300\n  gangline ckpt diff 12 13          the newest of two jobs\n\n"
     "Values are compared as numbers: NaN equals NaN, 0 equals -0. Exit code 0: equal, 1: different.\n"},
    {"view", "PLACE [STEP]", "an HDF5 file that shows each tensor whole, over the shards", 1, 2, view_options, run_view,
     "  gangline ckpt view checkpoints 1200 && h5dump -d /model/weight checkpoints/step-000000001200-e000003/view.h5\n"
     "  gangline ckpt view 12 --output job12.h5\n\n"
     "No tensor is copied. Where a shard is missing, HDF5 gives NaN for floats and 0 for other numbers.\n"},
    {"export", "PLACE [STEP] --output FILE", "all tensors as one safetensors or npz file", 1, 2, export_options, run_export,
     "  gangline ckpt export 12 --output model.safetensors\n  gangline ckpt export checkpoints 1200 --format npz --rank 0 --output all.npz\n"},
    {"pin", "PLACE [STEP]", "keep a checkpoint until it is unpinned", 1, 2, no_options, run_pin,
     "  gangline ckpt pin 12 1200\n  gangline ckpt pin checkpoints/step-000000001200-e000003\n\n"
     "Neither the gang's own deletion nor prune takes it then.\n"},
    {"unpin", "PLACE [STEP]", "let a pinned checkpoint go again", 1, 2, no_options, run_unpin, "  gangline ckpt unpin 12 1200\n"},
    {"prune", "PLACE --keep N", "delete old checkpoints", 1, 1, prune_options, run_prune,
     "  gangline ckpt prune checkpoints --keep 3 --dry-run\n  gangline ckpt prune checkpoints --keep 3 --every 10000 --yes\n\n"
     "Damaged and pinned checkpoints, foreign names and what a save may still be writing are never touched. A job that runs\n"
     "falls back to an older checkpoint when the one it knows is gone: keep 2 or more of such a job.\n"},
};

constexpr const char* kPlaces =
    "PLACE is a checkpoint folder, one of its step folders, or a job as the cluster names it (12, 12_5, @; a folder of\n"
    "that name is written ./12). STEP picks one of a folder; without it the newest durable one serves.\n";

po::options_description describe(const Command& command, Request& request) {
    po::options_description all("Options");
    command.options(all, request);
    all.add_options()("json", po::bool_switch(&request.json), "answer in JSON")("help,h", po::bool_switch(&request.help), "this text");
    return all;
}

std::string help_of(const Command& command) {
    Request defaults;
    std::ostringstream options;
    options << describe(command, defaults);
    return fmt::format("usage: gangline ckpt {} {} [options]\n\n{}\n\n{}\n{}\nExamples:\n{}", command.name, command.places, command.summary, kPlaces,
                       options.str(), command.examples);
}

std::string general_help() {
    std::string text = "usage: gangline ckpt COMMAND PLACE [options]\n\nCheckpoints: look, prove, compare, hand on, clear away.\n\n";
    for (const Command& command : kCommands) text += fmt::format("  {:<8} {}\n", command.name, command.summary);
    return text + "\n" + kPlaces +
           "\n`gangline ckpt COMMAND --help` explains one. Exit codes: 0 done, 1 damaged or different, 2 wrong usage, 3 refused.\n\n"
           "Examples:\n  gangline ckpt ls checkpoints\n  gangline ckpt verify 12\n  gangline ckpt export 12 --output model.safetensors\n";
}

Result<Request> parse(const Command& command, const std::vector<std::string>& words) {
    Request request;
    const std::string see = fmt::format("see gangline ckpt {} --help", command.name);
    try {
        po::options_description all = describe(command, request);
        all.add_options()("place", po::value(&request.words));
        po::positional_options_description places;
        places.add("place", -1);
        po::variables_map values;
        const int style = po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
        po::store(po::command_line_parser(words).options(all).positional(places).style(style).run(), values);
        po::notify(values);
    } catch (const po::error& error) {
        return Error{Code::InvalidArgument, fmt::format("{}: {}", error.what(), see)};
    }
    if (!request.help && (request.words.size() < command.least_words || request.words.size() > command.most_words)) {
        return Error{Code::InvalidArgument, fmt::format("{} places are given, write gangline ckpt {} {}: {}", request.words.size(), command.name, command.places, see)};
    }
    return request;
}

bool is_job(const std::string& word) {
    return word == "@" || (!word.empty() && word[0] != '_' && word.find_first_not_of("0123456789_") == std::string::npos);
}

// Jobs become their folders. Behind a folder a number is a step; of two words of diff both are places.
Result<void> find_jobs(const Command& command, Request& request, const FindJob& find) {
    for (std::size_t i = 0; i < request.words.size(); ++i) {
        const bool is_place = i == 0 || (command.most_words == 4 && (request.words.size() == 2 || (request.words.size() == 4 && i == 2)));
        std::string& word = request.words[i];
        if (!is_place || !is_job(word)) continue;
        if (!find) return Error{Code::InvalidArgument, fmt::format("'{}': jobs cannot be named here, give a folder (./{} if that is one)", word, word)};
        auto found = find(word);
        if (!found) return Error{found.error().code, fmt::format("job {}: {} (a folder of that name is written ./{})", word, found.error().message, word)};
        word = std::move(found->folder);
        if (i == 0) request.in_memory = std::move(found->in_memory);
    }
    return {};
}

int exit_code_of(const Command& command, const Error& error) {
    const bool is_diff = command.most_words == 4;
    switch (error.code) {
        case Code::InvalidArgument: return 2;
        case Code::Refused:
        case Code::NotFound: return 3;
        case Code::Unavailable:
        case Code::Deadline: return 4;
        case Code::NoSpace:
        case Code::Damaged:
        case Code::Internal: return is_diff ? 3 : 1;
    }
    return 1;
}

int run(const Command& command, const std::vector<std::string>& words, const FindJob& find) {
    auto request = parse(command, words);
    if (request && request->help) {
        fmt::print("{}", help_of(command));
        return 0;
    }
    Result<void> found = request ? find_jobs(command, *request, find) : Result<void>(request.error());
    const Result<int> done = found ? command.run(*request) : Result<int>(found.error());
    if (done) return *done;
    const int code = exit_code_of(command, done.error());
    const bool is_json = request ? request->json : std::find(words.begin(), words.end(), "--json") != words.end();
    if (is_json) fmt::print("{}", document("error", {{"exit_code", code}, {"message", done.error().message}}));
    if (!is_json) fmt::print(stderr, "gangline ckpt {}: {}\n", command.name, plain(done.error().message));
    return code;
}

}  // namespace

int ckpt_main(int argc, char** argv, const FindJob& find) {
    std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error with words
    const std::string name = argc > 1 ? argv[1] : "";
    if (name.empty() || name == "--help" || name == "-h" || name == "help") {
        fmt::print("{}", general_help());
        return name.empty() ? 2 : 0;
    }
    const auto* const command = std::find_if(std::begin(kCommands), std::end(kCommands), [&](const Command& one) { return name == one.name; });
    if (command == std::end(kCommands)) {
        fmt::print(stderr, "gangline ckpt: there is no command '{}': ls, show, verify, diff, view, export and prune are possible; see gangline ckpt --help\n", plain(name));
        return 2;
    }
    return run(*command, std::vector<std::string>(argv + 2, argv + argc), find);
}

}  // namespace gangline::checkpoint::tool
