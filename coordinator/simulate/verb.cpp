#include "coordinator/simulate/verb.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/process.h"
#include "base/text.h"
#include "coordinator/simulate/default_phases.h"
#include "coordinator/simulate/summary.h"

namespace gangline::simulate {
namespace {

namespace po = boost::program_options;

constexpr std::size_t kMostFile = 1u << 30;
constexpr const char* kChartJs = "/usr/share/javascript/chart.js/chart.min.js";

struct Options {
    ReplayOptions replay;
    std::uint32_t spares = 0;
    double days = 0;
    std::string trace;
    std::string policy = "gangline";
    std::string compare;
    std::string causes;
    double node_loss = 0;
    std::string repairs;
    double repair_hours = 24;
    std::string phases;
    std::string lemons;
    std::uint32_t seeds = 1;
    double jitter_s = 60;
    std::string html;
    std::string chart_js = kChartJs;
    bool json = false;
    bool help = false;
};

// A number whose default is shown as people write it.
auto* decimal(double& value, const char* name) { return po::value(&value)->value_name(name)->default_value(value, fmt::format("{}", value)); }

po::options_description describe(Options& o) {
    po::options_description all("gangline simulate: a cluster, its jobs and its faults on virtual time, with the real scheduler");
    all.add_options()
        ("trace", po::value(&o.trace)->value_name("FILE"), "jobs: a published trace (Philly, ElasticFlow, openb) or `sacct -P` output")
        ("train", po::value(&o.replay.whole_cluster_job)->value_name("NODES"), "instead: one gang of so many nodes that trains for --days")
        ("days", po::value(&o.days)->value_name("D"), "end of the simulation (default: when the last job has ended)")
        ("nodes", po::value(&o.replay.nodes)->value_name("N"), "nodes of the cluster (default: as --train asks, else 16)")
        ("spares", po::value(&o.spares)->value_name("N"), "so many nodes more")
        ("cards", po::value(&o.replay.cards_per_node)->value_name("N")->default_value(o.replay.cards_per_node), "cards on a node")
        ("nodes-per-rack", po::value(&o.replay.nodes_per_rack)->value_name("N")->default_value(o.replay.nodes_per_rack), "")
        ("racks-per-block", po::value(&o.replay.racks_per_block)->value_name("N")->default_value(o.replay.racks_per_block), "")
        ("policy", po::value(&o.policy)->value_name("NAME")->default_value(o.policy), "gangline, easy, bestfit or fifo")
        ("compare", po::value(&o.compare)->value_name("A,B"), "several policies on the same seeds, and the difference to the first")
        ("limit-factor", decimal(o.replay.limit_factor, "F"), "time limit / run time where the trace has no limit")
        ("faults", decimal(o.replay.faults_per_1000_node_days, "R"), "per 1000 node-days")
        ("causes", po::value(&o.causes)->value_name("FILE"), "cause,count,symptom_assumed,needs_node_swap_assumed (0 to 1, yes or no; default: crashes, no node lost)")
        ("node-loss", decimal(o.node_loss, "P"), "without --causes: so much of the faults take the node down, 0 to 1; spares are for these")
        ("repairs", po::value(&o.repairs)->value_name("FILE"), "repair times drawn from a fault trace (node,event_time_days,event,...,desc)")
        ("repair-hours", decimal(o.repair_hours, "H"), "else: mean of an exponential")
        ("lemons", po::value(&o.lemons)->value_name("NODES:FAULTS"), "part of the nodes that has part of the faults, as 0.05:0.24")
        ("rack-faults", decimal(o.replay.rack_faults_per_rack_year, "R"), "of a whole rack at once, per rack and year")
        ("snapshot-every", decimal(o.replay.memory_every_s, "S"), "seconds between snapshots in memory")
        ("snapshot-stall", decimal(o.replay.memory_stall_s, "S"), "seconds that each stops the gang")
        ("elastic", po::bool_switch(&o.replay.elastic), "without a node to replace, go on with fewer")
        ("phases", po::value(&o.phases)->value_name("FILE"), "seconds of the phases of recovery (default: docs/simulator/phases.json)")
        ("seeds", po::value(&o.seeds)->value_name("N")->default_value(o.seeds), "runs, each with its own chance")
        ("seed", po::value(&o.replay.seed)->value_name("N")->default_value(o.replay.seed), "the first")
        ("jitter", decimal(o.jitter_s, "S"), "with several seeds: submit times are moved by up to so much")
        ("html", po::value(&o.html)->value_name("FILE"), "write a page with plots")
        ("chart-js", po::value(&o.chart_js)->value_name("FILE")->default_value(o.chart_js), "Chart.js, for --html (package libjs-chart.js)")
        ("json", po::bool_switch(&o.json), "answer in JSON")
        ("help,h", po::bool_switch(&o.help), "this text");
    return all;
}

constexpr const char* kExamples =
    "\nExamples:\n"
    "  Which policy for our jobs?       gangline simulate --trace jobs.csv --nodes 64 --compare easy,gangline --seeds 10\n"
    "  Three spares or six?             gangline simulate --train 256 --days 30 --faults 4.2 --node-loss 0.3 --repair-hours 72 --spares 3 --seeds 20\n"
    "  Save every minute or every ten?  gangline simulate --train 256 --days 30 --faults 4.2 --snapshot-every 600 --seeds 20\n"
    "Traces of your own: sacct -aXP -S 2026-01-01 -o JobID,User,Account,Submit,ElapsedRaw,TimelimitRaw,AllocTRES,NNodes,State > jobs.csv\n";

Error wrong(std::string message) { return {Code::InvalidArgument, std::move(message)}; }

Result<Options> parse(int argc, char** argv) {
    Options options;
    options.replay.nodes = 0;
    try {
        const po::options_description all = describe(options);
        po::variables_map values;
        po::store(po::command_line_parser(argc, argv).options(all).positional({}).style(po::command_line_style::default_style & ~po::command_line_style::allow_guessing).run(), values);
        po::notify(values);
    } catch (const po::error& error) {
        return wrong(fmt::format("{}; `gangline simulate --help` lists the options", error.what()));
    }
    return options;
}

Result<void> check(const Options& o) {
    struct Range {
        const char* option;
        double value;
        double least;
        double most;
    };
    const Range ranges[] = {{"--days", o.days, 0, 36500}, {"--limit-factor", o.replay.limit_factor, 1, 1e6}, {"--faults", o.replay.faults_per_1000_node_days, 0, 1e5},
                            {"--node-loss", o.node_loss, 0, 1}, {"--repair-hours", o.repair_hours, 0.01, 1e6}, {"--snapshot-every", o.replay.memory_every_s, 0, 1e9}, {"--snapshot-stall", o.replay.memory_stall_s, 0, 1e6},
                            {"--rack-faults", o.replay.rack_faults_per_rack_year, 0, 1e4}, {"--jitter", o.jitter_s, 0, 1e9}, {"--seeds", static_cast<double>(o.seeds), 1, 10000},
                            {"--nodes-per-rack", static_cast<double>(o.replay.nodes_per_rack), 1, 1e5}, {"--racks-per-block", static_cast<double>(o.replay.racks_per_block), 1, 1e5}};
    for (const Range& range : ranges) {
        if (!(range.value >= range.least && range.value <= range.most)) return wrong(fmt::format("{} {}: {} to {} are accepted", range.option, range.value, range.least, range.most));
    }
    if (o.trace.empty() == (o.replay.whole_cluster_job == 0)) return wrong("give either --trace FILE or --train NODES");
    if (!o.causes.empty() && o.node_loss > 0) return wrong("--node-loss and --causes: leave one out; the file's last column says which causes cost a node");
    if (o.replay.whole_cluster_job != 0 && o.days == 0) return wrong("--train: say for how long: --days D");
    return {};
}

Result<std::string> read(const std::string& option, const std::string& path) {
    auto text = read_file(path, kMostFile);
    if (!text) return wrong(fmt::format("{} {}: {}", option, path, text.error().message));
    return text;
}

// The cells of a CSV line, quotes and blanks around them as they are.
std::vector<std::string> cells_of(std::string_view line) {
    std::vector<std::string> cells(1);
    bool quoted = false;
    for (const char c : line) {
        if (c == '"') quoted = !quoted;
        if (c == ',' && !quoted) {
            cells.emplace_back();
        } else {
            cells.back() += c;
        }
    }
    return cells;
}

// A share as people write it; empty where it is none.
std::string share_word(std::string_view cell) {
    std::string word;
    for (const char c : trim(cell)) word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (word == "yes" || word == "true") return "1";
    if (word == "no" || word == "false") return "0";
    double share = -1;
    const auto parsed = std::from_chars(word.data(), word.data() + word.size(), share);
    return parsed.ec == std::errc() && parsed.ptr == word.data() + word.size() && share >= 0 && share <= 1 ? word : "";
}

// The table of causes with numbers where yes and no were written. Errors: by line and value.
Result<std::string> with_shares(const std::string& text, const std::string& path) {
    constexpr std::string_view kColumn = "needs_node_swap_assumed";
    std::vector<std::string> lines = split(text, '\n');
    const std::vector<std::string> head = cells_of(trim(lines.front()));
    const auto column = static_cast<std::size_t>(std::find_if(head.begin(), head.end(), [&](const std::string& cell) { return trim(cell) == kColumn; }) - head.begin());
    for (std::size_t i = 1; column < head.size() && i < lines.size(); ++i) {
        std::vector<std::string> cells = cells_of(trim(lines[i]));
        if (cells.size() != head.size()) continue;      // told by who reads the table
        const std::string share = share_word(cells[column]);
        if (share.empty()) {
            return wrong(fmt::format("--causes: {} line {}, column {}: '{}' does not say whether the node is lost: write yes, no, or a part of these faults from 0 to 1", path, i + 1, kColumn,
                                     cells[column]));
        }
        cells[column] = share;
        lines[i] = fmt::format("{}", fmt::join(cells, ","));
    }
    return fmt::format("{}", fmt::join(lines, "\n"));
}

Result<void> load_causes(Options& o, std::vector<std::string>& notes) {
    if (!o.causes.empty()) {
        const auto text = read("--causes", o.causes);
        if (!text) return text.error();
        const auto table = with_shares(*text, o.causes);
        if (!table) return table.error();
        auto causes = read_failure_causes(*table, o.causes);
        if (!causes) return wrong("--causes: " + causes.error().message);
        o.replay.causes = *causes;
    } else if (o.node_loss > 0) {
        o.replay.causes = {{"crash", 1 - o.node_loss, "crash", 0}, {"node lost", o.node_loss, "node_down", 1}};
        notes.push_back(fmt::format("faults: {:.4g} % take the node down, the others are crashes (--node-loss)", 100 * o.node_loss));
    }
    const bool loses_nodes = o.replay.rack_faults_per_rack_year > 0 ||
                             (o.replay.faults_per_1000_node_days > 0 &&
                              std::any_of(o.replay.causes.begin(), o.replay.causes.end(), [](const FailureCause& one) { return one.count > 0 && one.swap_share > 0; }));
    if (o.spares > 0 && !loses_nodes) notes.emplace_back("warning: no fault loses a node, so --spares changes nothing: give --faults with --node-loss or --causes, or --rack-faults");
    return {};
}

// Files into options. Notes for the report go to `notes`.
Result<std::vector<TraceJob>> load(Options& o, std::vector<std::string>& notes) {
    std::string phases = kDefaultPhases;
    if (!o.phases.empty()) {
        auto text = read("--phases", o.phases);
        if (!text) return text.error();
        phases = *text;
    }
    auto parsed = parse_phases(phases, o.phases.empty() ? "docs/simulator/phases.json" : o.phases);
    if (!parsed) return wrong("--phases: " + parsed.error().message);
    o.replay.phases = *parsed;
    notes.push_back("phases of recovery: " + (o.phases.empty() ? std::string("docs/simulator/phases.json (measured and assumed figures, with their sources)") : o.phases));
    if (auto good = load_causes(o, notes); !good) return good.error();
    if (!o.repairs.empty()) {
        const auto text = read("--repairs", o.repairs);
        if (!text) return text.error();
        const auto spans = read_fault_trace(*text, o.repairs, &notes);
        if (!spans) return wrong("--repairs: " + spans.error().message);
        o.replay.repair_days = repair_days(*spans);
        if (o.replay.repair_days.empty()) return wrong(fmt::format("--repairs {}: no repair in it has an end", o.repairs));
    }
    o.replay.repair_mean_s = o.repair_hours * 3600;
    if (!o.lemons.empty() && (std::sscanf(o.lemons.c_str(), "%lf:%lf", &o.replay.lemon_nodes, &o.replay.lemon_faults) != 2 || !(o.replay.lemon_nodes > 0 && o.replay.lemon_nodes < 1) ||
                              !(o.replay.lemon_faults >= 0 && o.replay.lemon_faults <= 1))) {
        return wrong(fmt::format("--lemons '{}': two parts between 0 and 1, as 0.05:0.24", o.lemons));
    }
    if (o.trace.empty()) return std::vector<TraceJob>{};
    const auto text = read("--trace", o.trace);
    if (!text) return text.error();
    auto trace = read_trace(*text, o.trace);
    if (!trace) return wrong("--trace: " + trace.error().message);
    notes.push_back(fmt::format("{} jobs, read as {}", trace->jobs.size(), trace->format));
    for (const std::string& note : trace->notes) notes.push_back(note);
    return std::move(trace->jobs);
}

std::vector<TraceJob> moved(std::vector<TraceJob> jobs, double jitter_s, std::uint64_t seed) {
    std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
    for (TraceJob& job : jobs) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        job.submit_s += jitter_s * static_cast<double>(state >> 11) * 0x1p-53;
    }
    std::stable_sort(jobs.begin(), jobs.end(), [](const TraceJob& a, const TraceJob& b) { return a.submit_s < b.submit_s; });
    return jobs;
}

Result<void> run(Options& o) {
    if (auto good = check(o); !good) return good;
    std::vector<std::string> notes;
    auto jobs = load(o, notes);
    if (!jobs) return jobs.error();
    if (o.replay.nodes == 0) o.replay.nodes = std::max(16u, o.replay.whole_cluster_job);
    o.replay.nodes += o.spares;
    o.replay.span_s = o.days * 86400;
    std::string chart_js;
    if (!o.html.empty()) {
        auto text = read("--chart-js", o.chart_js);
        if (!text) return wrong(text.error().message + ": --html needs Chart.js (package libjs-chart.js)");
        chart_js = std::move(*text);
    }
    std::vector<Series> all;
    for (const std::string& name : split(o.compare.empty() ? o.policy : o.compare, ',')) {
        const auto policy = parse_policy(name);
        if (!policy) return wrong((o.compare.empty() ? "--policy: " : "--compare: ") + policy.error().message);
        Series series{name, {}};
        for (std::uint32_t i = 0; i < o.seeds; ++i) {
            ReplayOptions one = o.replay;
            one.policy = *policy;
            one.seed = o.replay.seed + i;
            auto result = replay(one, o.seeds == 1 ? *jobs : moved(*jobs, o.jitter_s, one.seed));
            if (!result) return result.error();
            series.results.push_back(std::move(*result));
        }
        all.push_back(std::move(series));
    }
    if (!o.html.empty()) {
        if (auto written = write_file_atomically(o.html, summary_html(o.replay, all, notes, chart_js)); !written) return wrong(fmt::format("--html: {}", written.error().message));
        notes.push_back("page: " + o.html);
    }
    fmt::print("{}", o.json ? summary_json(o.replay, all, notes).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n" : summary_text(o.replay, all, notes));
    return {};
}

}  // namespace

int simulate_main(int argc, char** argv) {
    auto options = parse(argc, argv);
    if (options && options->help) {
        Options defaults;
        std::ostringstream text;
        text << describe(defaults) << kExamples;
        fmt::print("{}", text.str());
        return 0;
    }
    const auto done = options ? run(*options) : Result<void>(options.error());
    if (done) return 0;
    fmt::print(stderr, "gangline simulate: {}\n", done.error().message);
    return 2;
}

}  // namespace gangline::simulate
