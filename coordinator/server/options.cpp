#include "coordinator/server/options.h"

#include <boost/program_options.hpp>

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include <fmt/format.h>

namespace gangline::coordinator {
namespace {

namespace po = boost::program_options;

po::options_description describe(CoordinatorOptions& o) {
    po::options_description all("gangline coordinator: the cluster's brain, one a cluster");
    all.add_options()
        ("state", po::value(&o.state)->value_name("DIR"), "its folder: journal, keys, endpoints.json (made when missing)")
        ("cluster", po::value(&o.cluster)->value_name("NAME")->default_value(o.cluster), "the cluster's name")
        ("listen-users", po::value(&o.listen_users)->value_name("ENDPOINT")->default_value(o.listen_users), "where people connect")
        ("listen-nodes", po::value(&o.listen_nodes)->value_name("ENDPOINT")->default_value(o.listen_nodes), "where agents connect")
        ("authorised", po::value(&o.authorised)->value_name("FILE"), "whose keys are let in (default: DIR/authorised); read again when it changes")
        ("checkpoint-root", po::value(&o.checkpoint_root)->value_name("DIR"), "checkpoints go to DIR/job-ID (default: ~/.gangline/checkpoints)")
        ("heartbeat-ms", po::value(&o.heartbeat_ms)->value_name("MS")->default_value(o.heartbeat_ms), "between an agent's signs of life")
        ("node-timeout-ms", po::value(&o.node_timeout_ms)->value_name("MS")->default_value(o.node_timeout_ms), "silence after which a node is lost")
        ("progress-timeout-ms", po::value(&o.progress_timeout_ms)->value_name("MS")->default_value(o.progress_timeout_ms), "no step for so long: the gang hangs")
        ("grace-ms", po::value(&o.grace_ms)->value_name("MS")->default_value(o.grace_ms), "SIGTERM to SIGKILL")
        ("min-uid", po::value(&o.min_uid)->value_name("UID")->default_value(o.min_uid), "accounts below run no jobs (the coordinator's own may)")
        ("allow-root", po::bool_switch(&o.allow_root), "jobs of root are accepted though the coordinator is not root")
        ("cluster-file", po::value(&o.cluster_file)->value_name("FILE"), "racks, card models, prices, teams (docs/cluster-file.md)")
        ("first-job", po::value(&o.first_job)->value_name("N")->default_value(o.first_job), "the least number that a job gets")
        ("promises", po::value(&o.promises)->value_name("N")->default_value(o.promises), "to how many blocked jobs places are promised; others only fill the holes before them")
        ("no-backfill", po::bool_switch(&o.no_backfill), "nothing starts before a blocked job")
        ("no-preemption", po::bool_switch(&o.no_preemption), "no running gang makes room for a higher priority")
        ("guaranteed-run-ms", po::value(&o.guaranteed_run_ms)->value_name("MS")->default_value(o.guaranteed_run_ms), "a gang runs so long before it can be preempted")
        ("preemption-grace-ms", po::value(&o.preemption_grace_ms)->value_name("MS")->default_value(o.preemption_grace_ms), "to save and stop, for a gang that is preempted")
        ("spares", po::value(&o.spares)->value_name("N|P%|auto")->default_value(o.spares), "whole nodes kept free for gangs that lose one; auto: by the failures that were seen")
        ("placement", po::value(&o.placement)->value_name("pack|spread")->default_value(o.placement), "onto the fullest nodes that fit, or onto the emptiest")
        ("defragment", po::bool_switch(&o.defragment), "move small gangs that have saved lately out of a large one's way")
        ("share-weight", po::value(&o.share_weight)->value_name("W")->default_value(o.share_weight), "of fair share in the order of the queue")
        ("age-weight", po::value(&o.age_weight_per_day)->value_name("W")->default_value(o.age_weight_per_day), "of a day's waiting")
        ("short-weight", po::value(&o.short_weight)->value_name("W")->default_value(o.short_weight), "of a small product of cards and time limit")
        ("size-weight", po::value(&o.size_weight)->value_name("W")->default_value(o.size_weight), "of the gang's part of all cards")
        ("lifeline-fd", po::value(&o.lifeline_fd)->value_name("N"), "exit when this descriptor is closed at the other end")
        ("ready-fd", po::value(&o.ready_fd)->value_name("N"), "write `ready` here when serving")
        ("help,h", po::bool_switch(&o.help), "this text");
    return all;
}

struct Range {
    const char* option;
    std::int64_t value;
    std::int64_t least;
    std::int64_t most;
};

bool is_cluster_name(const std::string& name) {
    const auto is_good = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
    };
    return !name.empty() && name.size() <= 64 && name[0] != '.' && std::all_of(name.begin(), name.end(), is_good);
}

bool is_open(int fd) { return fd < 0 || ::fcntl(fd, F_GETFD) >= 0; }

Error wrong(std::string message) { return {Code::InvalidArgument, std::move(message)}; }

}  // namespace

Result<void> CoordinatorOptions::validate() const {
    if (state.empty()) return wrong("--state is missing: give the coordinator's folder, for example --state /var/lib/gangline");
    if (!is_cluster_name(cluster)) {
        return wrong(fmt::format("--cluster '{}': 1 to 64 letters, digits and _ - . are accepted, not starting with .", cluster));
    }
    for (const auto& [name, endpoint] : {std::pair{"--listen-users", &listen_users}, std::pair{"--listen-nodes", &listen_nodes}}) {
        if (!endpoint->starts_with("tcp://") && !endpoint->starts_with("ipc://")) {
            return wrong(fmt::format("{} '{}': tcp://ADDRESS:PORT (PORT may be *) or ipc://PATH are accepted", name, *endpoint));
        }
    }
    if (!checkpoint_root.empty() && checkpoint_root[0] != '/') {
        return wrong(fmt::format("--checkpoint-root '{}': an absolute path is needed, as jobs run in folders of their own", checkpoint_root));
    }
    const Range ranges[] = {
        {"--heartbeat-ms", heartbeat_ms, 20, 60'000},
        {"--node-timeout-ms", node_timeout_ms, 100, 3'600'000},
        {"--progress-timeout-ms", progress_timeout_ms, 100, 86'400'000},
        {"--grace-ms", grace_ms, 0, 3'600'000},
        {"--min-uid", min_uid, 0, 4'294'967'293},
        {"--promises", promises, 0, 1000},
        {"--guaranteed-run-ms", guaranteed_run_ms, 0, 604'800'000},
        {"--preemption-grace-ms", preemption_grace_ms, 0, 3'600'000},
    };
    for (const Range& range : ranges) {
        if (range.value < range.least || range.value > range.most) {
            return wrong(fmt::format("{} {}: {} to {} are accepted", range.option, range.value, range.least, range.most));
        }
    }
    if (const auto policy = parse_spares(spares); !policy) return policy.error();
    if (placement != "pack" && placement != "spread") return wrong(fmt::format("--placement '{}': pack or spread are accepted", placement));
    for (const auto& [name, weight] : {std::pair{"--share-weight", share_weight}, std::pair{"--age-weight", age_weight_per_day}, std::pair{"--size-weight", size_weight}, std::pair{"--short-weight", short_weight}}) {
        if (!(weight >= 0 && weight <= 1e6)) return wrong(fmt::format("{} {}: 0 to 1000000 are accepted", name, weight));
    }
    if (node_timeout_ms < 2 * heartbeat_ms) {
        return wrong(fmt::format("--node-timeout-ms {}: one lost heartbeat would cost a node; give at least {} (twice --heartbeat-ms)",
                                 node_timeout_ms, 2 * heartbeat_ms));
    }
    if (!is_open(lifeline_fd)) return wrong(fmt::format("--lifeline-fd {}: this descriptor is not open", lifeline_fd));
    if (!is_open(ready_fd)) return wrong(fmt::format("--ready-fd {}: this descriptor is not open", ready_fd));
    return {};
}

Result<SparePolicy> parse_spares(const std::string& text) {
    if (text == "auto") return SparePolicy{SparePolicy::How::Observed, 0};
    const bool percent = text.ends_with('%');
    const char* const end = text.data() + text.size() - (percent ? 1 : 0);
    double amount = 0;
    const auto parsed = std::from_chars(text.data(), end, amount);
    const double most = percent ? 50 : 100'000;
    const bool whole = percent || amount == std::floor(amount);
    if (text.empty() || parsed.ec != std::errc() || parsed.ptr != end || !(amount >= 0 && amount <= most) || !whole) {
        return wrong(fmt::format("--spares '{}': a number of nodes (0 to 100000), a part of the cluster (0% to 50%), or auto are accepted", text));
    }
    return SparePolicy{percent ? SparePolicy::How::Percent : SparePolicy::How::Number, amount};
}

BrainOptions CoordinatorOptions::for_brain() const {
    BrainOptions brain;
    brain.cluster = cluster;
    brain.version = GANGLINE_VERSION;
    brain.heartbeat = milliseconds(heartbeat_ms);
    brain.node_timeout = milliseconds(node_timeout_ms);
    brain.progress_timeout = milliseconds(progress_timeout_ms);
    brain.grace = milliseconds(grace_ms);
    brain.checkpoint_root = checkpoint_root;
    brain.first_job = std::max<std::uint64_t>(1, first_job);
    brain.promises = promises;
    brain.in_order = no_backfill;
    brain.preemption = !no_preemption;
    brain.guaranteed_run = milliseconds(guaranteed_run_ms);
    brain.preemption_grace = milliseconds(preemption_grace_ms);
    brain.spares = parse_spares(spares).value();
    brain.spread = placement == "spread";
    brain.defragment = defragment;
    brain.share_weight = share_weight;
    brain.age_weight_per_day = age_weight_per_day;
    brain.size_weight = size_weight;
    brain.short_weight = short_weight;
    return brain;
}

Result<CoordinatorOptions> parse_options(int argc, const char* const* argv) {
    CoordinatorOptions options;
    try {
        const po::options_description all = describe(options);
        po::variables_map values;
        po::store(po::command_line_parser(argc, argv).options(all).positional({}).style(po::command_line_style::default_style & ~po::command_line_style::allow_guessing).run(), values);
        po::notify(values);
    } catch (const po::error& error) {
        return wrong(fmt::format("{}; `gangline coordinator --help` lists the options", error.what()));
    }
    if (options.help) return options;
    if (auto valid = options.validate(); !valid) return valid.error();
    return options;
}

std::string options_help() {
    CoordinatorOptions defaults;
    std::ostringstream text;
    text << describe(defaults)
         << "\nExample: gangline coordinator --state /var/lib/gangline --listen-users tcp://10.0.0.1:7070 --listen-nodes tcp://10.0.0.1:7071\n";
    return text.str();
}

}  // namespace gangline::coordinator
