#include "runner/shepherd/environment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "base/text.h"
#include "runner/shepherd/pmix_environment.h"

namespace gangline::runner {
namespace {

constexpr const char* kUsualPath = "/usr/local/bin:/usr/bin:/bin";

using Variables = std::map<std::string, std::string>;
using Given = google::protobuf::RepeatedPtrField<proto::Variable>;

bool is_name(std::string_view name) {
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
    for (const char c : name) {
        const bool fits = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
        if (!fits) return false;
    }
    return true;
}

// Another launcher's, or of the job in which this one was submitted.
bool is_foreign(std::string_view name) {
    for (const char* ours : {"GANGLINE_RESTORE_", "GANGLINE_REPLICA_RANK", "GANGLINE_STEP_SOCKET", "GANGLINE_WORKER_SOCKET", "GANGLINE_PROGRESS",
                             "GANGLINE_MARK", "GANGLINE_ARRAY_TASK", "SLURM_", "SLURMD_"}) {
        if (name.starts_with(ours)) return true;
    }
    return is_launcher_variable(name);
}

// Ranks a node, compressed as Slurm does: "2(x3),1".
std::string tasks_per_node(const std::vector<proto::Placement>& gang) {
    std::string text;
    for (std::size_t i = 0; i < gang.size();) {
        std::size_t same = i + 1;
        while (same < gang.size() && gang[same].rank_count() == gang[i].rank_count()) ++same;
        if (!text.empty()) text += ',';
        text += std::to_string(gang[i].rank_count());
        if (same - i > 1) text += fmt::format("(x{})", same - i);
        i = same;
    }
    return text;
}

std::string joined(const std::vector<std::uint32_t>& numbers) { return fmt::format("{}", fmt::join(numbers, ",")); }

std::vector<std::uint32_t> all_cards(const proto::Placement& place) { return {place.cards().begin(), place.cards().end()}; }

Variables cleaned(const Given& given) {
    Variables variables;
    for (const proto::Variable& variable : given) {
        if (is_name(variable.name()) && !is_foreign(variable.name())) variables[variable.name()] = variable.value();
    }
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "CUDA_VISIBLE_DEVICES"}) {
        variables.erase(name);
    }
    if (variables.count("PATH") == 0) variables["PATH"] = kUsualPath;
    return variables;
}

std::string hexadecimal(const std::string& bytes) {
    std::string text;
    for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
    return text;
}

void add_gangline(Variables& variables, const EnvironmentOfNode& node) {
    const proto::Prepare& prepare = *node.prepare;
    const std::string& name = node.gang[node.node_index].node();
    variables["GANGLINE_JOB_ID"] = std::to_string(prepare.id().job());
    variables["GANGLINE_JOB_NAME"] = prepare.spec().name();
    variables["GANGLINE_ATTEMPT"] = std::to_string(prepare.id().attempt());
    variables["GANGLINE_RESTART_COUNT"] = std::to_string(prepare.restarts());
    variables["GANGLINE_NODE"] = name;
    variables["GANGLINE_CHECKPOINT_DIR"] = prepare.checkpoint_folder();
    if (!node.step_socket.empty()) variables["GANGLINE_STEP_SOCKET"] = node.step_socket;
    if (!node.launch->has_restore()) return;
    const proto::RestorePoint& restore = node.launch->restore();
    variables["GANGLINE_RESTORE_STEP"] = std::to_string(restore.step());
    variables["GANGLINE_RESTORE_ATTEMPT"] = std::to_string(restore.attempt());
    variables["GANGLINE_RESTORE_SHA256"] = restore.in_memory() ? "memory" : hexadecimal(restore.manifest_sha256());
}

// The first rank that the gang has on the node at this index of the job's gang.
std::optional<std::uint32_t> first_rank_at(const EnvironmentOfNode& node, std::uint32_t node_index) {
    if (node_index >= static_cast<std::uint32_t>(node.prepare->gang_size())) return std::nullopt;
    const std::string& name = node.prepare->gang(static_cast<int>(node_index)).node();
    const auto found = std::find_if(node.gang.begin(), node.gang.end(), [&](const proto::Placement& one) { return one.node() == name && one.rank_count() > 0; });
    if (found == node.gang.end()) return std::nullopt;
    return found->first_rank();
}

// Whose keepers hold copies of this node's snapshots, and who may have those to start from: the ranks to ask.
void add_keepers(Variables& variables, const EnvironmentOfNode& node) {
    const std::string& here = node.gang[node.node_index].node();
    for (int i = 0; i < node.prepare->gang_size(); ++i) {
        const proto::Placement& place = node.prepare->gang(i);
        if (place.node() != here || place.replica_peer() == static_cast<std::uint32_t>(i)) continue;
        if (const auto peer = first_rank_at(node, place.replica_peer())) variables["GANGLINE_REPLICA_RANK"] = std::to_string(*peer);
    }
    if (!node.launch->has_restore()) return;
    std::string from;
    for (const proto::SnapshotsAt& one : node.launch->snapshots()) {
        std::vector<std::uint32_t> ranks;
        for (const std::uint32_t index : one.node_indexes()) {
            if (const auto rank = first_rank_at(node, index)) ranks.push_back(*rank);
        }
        if (ranks.empty() || one.rank_count() == 0) continue;
        from += fmt::format("{}{}-{}@{}", from.empty() ? "" : ",", one.first_rank(), one.first_rank() + one.rank_count() - 1, fmt::join(ranks, "+"));
    }
    if (!from.empty() && from.size() <= kMostVariableBytes) variables["GANGLINE_RESTORE_FROM"] = from;
}

void add_array(Variables& variables, const proto::ArrayElement& array) {
    if (array.count() == 0) return;
    variables["SLURM_ARRAY_JOB_ID"] = std::to_string(array.job());
    variables["SLURM_ARRAY_TASK_ID"] = variables["GANGLINE_ARRAY_TASK"] = std::to_string(array.task());
    variables["SLURM_ARRAY_TASK_COUNT"] = std::to_string(array.count());
    variables["SLURM_ARRAY_TASK_MIN"] = std::to_string(array.least());
    variables["SLURM_ARRAY_TASK_MAX"] = std::to_string(array.most());
    variables["SLURM_ARRAY_TASK_STEP"] = std::to_string(array.step());
}

void add_slurm(Variables& variables, const EnvironmentOfNode& node) {
    const proto::Prepare& prepare = *node.prepare;
    const proto::JobSpec& spec = prepare.spec();
    const proto::Placement& here = node.gang[node.node_index];
    std::vector<std::string> names;
    for (const proto::Placement& place : prepare.gang()) names.push_back(place.node());
    const std::string nodes = compress_node_list(names);
    variables["SLURM_JOB_ID"] = variables["SLURM_JOBID"] = std::to_string(prepare.id().job());
    variables["SLURM_JOB_NAME"] = spec.name();
    variables["SLURM_JOB_NODELIST"] = variables["SLURM_NODELIST"] = nodes;
    variables["SLURM_JOB_NUM_NODES"] = variables["SLURM_NNODES"] = std::to_string(names.size());
    variables["SLURM_NTASKS"] = variables["SLURM_NPROCS"] = std::to_string(world_size(node.gang));
    variables["SLURM_NODEID"] = std::to_string(node.node_index);
    variables["SLURMD_NODENAME"] = here.node();
    variables["SLURM_TASKS_PER_NODE"] = tasks_per_node(node.gang);
    if (spec.ranks_per_node() != 0) variables["SLURM_NTASKS_PER_NODE"] = std::to_string(spec.ranks_per_node());
    if (spec.cpus_per_rank() != 0) variables["SLURM_CPUS_PER_TASK"] = std::to_string(spec.cpus_per_rank());
    variables["SLURM_CPUS_ON_NODE"] = std::to_string(node.cpus_on_node);
    if (here.cards_size() != 0) {
        variables["SLURM_GPUS_ON_NODE"] = std::to_string(here.cards_size());
        variables["SLURM_JOB_GPUS"] = joined(all_cards(here));
    }
    add_array(variables, spec.array());
    variables["SLURM_RESTART_COUNT"] = std::to_string(prepare.restarts());
    variables["SLURM_SUBMIT_DIR"] = spec.cwd();
    variables["SLURM_JOB_USER"] = prepare.user();
}

void add_master(Variables& variables, const EnvironmentOfNode& node) {
    const std::string& address = node.gang[0].address();
    variables["MASTER_ADDR"] = address.empty() ? "127.0.0.1" : address;
    variables["MASTER_PORT"] = std::to_string(node.launch->master_port());
}

void add_tools(Variables& variables, const EnvironmentOfNode& node) {
    if (!node.tools_folder.empty()) variables["PATH"] = node.tools_folder + ":" + variables["PATH"];
}

// The mark first: it is what the last search for left-over processes looks for.
std::vector<std::string> flattened(const Variables& variables, const std::string& mark) {
    std::vector<std::string> result;
    result.reserve(variables.size() + 1);
    result.push_back("GANGLINE_MARK=" + mark);
    for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
    return result;
}

std::string mark_here(const EnvironmentOfNode& node) {
    return mark_of(node.cluster, node.gang[node.node_index].node(), node.prepare->id());
}

}  // namespace

Result<void> check_environment(const Given& environment) {
    std::size_t total = 0;
    for (const proto::Variable& variable : environment) {
        const std::string shown = variable.name().substr(0, 64);
        if (!is_name(variable.name())) {
            return Error{Code::InvalidArgument,
                         fmt::format("environment: '{}' is not a name (letters, digits and _, no digit first)", shown)};
        }
        const std::size_t bytes = variable.name().size() + 1 + variable.value().size();
        if (bytes > kMostVariableBytes) {
            return Error{Code::InvalidArgument, fmt::format("environment: {} has {} bytes; {} are the most. Pass it in a file",
                                                            shown, bytes, kMostVariableBytes)};
        }
        if (variable.value().find('\0') != std::string::npos) {
            return Error{Code::InvalidArgument, fmt::format("environment: {} holds a zero byte", shown)};
        }
        total += bytes + 1;
    }
    if (total > kMostEnvironmentBytes) {
        return Error{Code::InvalidArgument,
                     fmt::format("environment: {} bytes in all; {} are the most. Export fewer variables (--export)", total,
                                 kMostEnvironmentBytes)};
    }
    return {};
}

std::string progress_path(const std::string& folder, std::uint32_t step_id, std::uint32_t rank) {
    return fmt::format("{}/progress-{}-{}", folder, step_id, rank);
}

std::uint32_t world_size(const std::vector<proto::Placement>& gang) {
    std::uint32_t ranks = 0;
    for (const proto::Placement& place : gang) ranks += place.rank_count();
    return ranks;
}

std::vector<std::uint32_t> cards_of(const proto::Placement& place, std::uint32_t local) {
    const std::vector<std::uint32_t> cards = all_cards(place);
    const std::size_t each = place.rank_count() == 0 ? 0 : cards.size() / place.rank_count();
    const std::size_t first = each * local;
    if (each == 0 || first + each > cards.size()) return {};
    return {cards.begin() + static_cast<std::ptrdiff_t>(first), cards.begin() + static_cast<std::ptrdiff_t>(first + each)};
}

std::string mark_of(const std::string& cluster, const std::string& node, const proto::AttemptId& id) {
    return fmt::format("{}/{}/{}.{}", cluster, node, id.job(), id.attempt());
}

std::vector<std::string> rank_environment(const EnvironmentOfNode& node, const Given& given, std::uint32_t local) {
    const proto::Placement& here = node.gang[node.node_index];
    const std::uint32_t rank = here.first_rank() + local;
    Variables variables = cleaned(given);
    add_slurm(variables, node);
    add_gangline(variables, node);
    add_keepers(variables, node);
    add_master(variables, node);
    add_tools(variables, node);
    variables["RANK"] = variables["SLURM_PROCID"] = std::to_string(rank);
    variables["WORLD_SIZE"] = std::to_string(world_size(node.gang));
    // A single rank has no PMIx server; Open MPI would start a daemon beside it, whose death would be the rank's.
    if (world_size(node.gang) == 1) variables.emplace("OMPI_MCA_ess_singleton_isolated", "1");
    variables["LOCAL_RANK"] = variables["SLURM_LOCALID"] = std::to_string(local);
    variables["LOCAL_WORLD_SIZE"] = std::to_string(here.rank_count());
    variables["NODE_RANK"] = std::to_string(node.node_index);
    variables["CUDA_VISIBLE_DEVICES"] = joined(cards_of(here, local));
    // With it Open MPI 4.1 looks for a PMIx server, which a single rank does not have.
    if (world_size(node.gang) > 1) variables["SLURM_STEP_ID"] = std::to_string(node.step_id);
    variables["GANGLINE_WORKER_SOCKET"] = node.worker_socket;
    variables["GANGLINE_PROGRESS"] = progress_path(node.progress_folder, node.step_id, rank);
    return flattened(variables, mark_here(node));
}

std::vector<std::string> script_environment(const EnvironmentOfNode& node) {
    Variables variables = cleaned(node.prepare->spec().environment());
    add_slurm(variables, node);
    add_gangline(variables, node);
    add_master(variables, node);
    add_tools(variables, node);
    variables["SLURM_PROCID"] = variables["SLURM_LOCALID"] = "0";
    variables["CUDA_VISIBLE_DEVICES"] = joined(all_cards(node.gang[node.node_index]));
    return flattened(variables, mark_here(node));
}

std::string value_in(const std::vector<std::string>& environment, const std::string& name) {
    for (const std::string& variable : environment) {
        if (variable.size() > name.size() && variable.starts_with(name) && variable[name.size()] == '=') {
            return variable.substr(name.size() + 1);
        }
    }
    return {};
}

}  // namespace gangline::runner
