#include "runner/cli/private_cluster.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace gangline::runner {
namespace {

constexpr Duration kStartTime = seconds(20);
constexpr Duration kEndTime = seconds(15);
constexpr std::size_t kLongestSocketPath = sizeof(sockaddr_un::sun_path) - 1;

// A socket below the folder; where its path is too long for one, an abstract one.
std::string local_endpoint(const std::string& folder, const std::string& cluster, const char* whose) {
    const std::string path = fmt::format("{}/{}.sock", folder, whose);
    if (path.size() <= kLongestSocketPath) return "ipc://" + path;
    return fmt::format("ipc://@gangline-{}-{}", cluster, whose);
}

std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    DIR* const entries = ::opendir(folder.c_str());
    if (entries == nullptr) return names;
    while (const dirent* const entry = ::readdir(entries)) names.emplace_back(entry->d_name);
    ::closedir(entries);
    return names;
}

// run-<pid>-<hex>: the pid; 0 when it is not such a name.
pid_t run_of(const std::string& name) {
    if (!name.starts_with("run-")) return 0;
    const std::vector<std::string> fields = split(name, '-');
    pid_t pid = 0;
    if (fields.size() != 3) return 0;
    std::from_chars(fields[1].data(), fields[1].data() + fields[1].size(), pid);
    return pid;
}

}  // namespace

Result<std::unique_ptr<PrivateCluster>> PrivateCluster::start(const std::string& state, std::uint32_t nodes,
                                                              std::uint32_t cards_per_node) {
    std::unique_ptr<PrivateCluster> cluster(new PrivateCluster);
    LocalClusterPlan& plan = cluster->plan_;
    plan.cluster = fmt::format("run-{}-{}", ::getpid(), random_hex(4));
    plan.folder = state + "/" + plan.cluster;
    plan.users_endpoint = local_endpoint(plan.folder, plan.cluster, "users");
    plan.nodes_endpoint = local_endpoint(plan.folder, plan.cluster, "nodes");
    plan.checkpoint_root = plan.folder + "/checkpoints";
    for (std::uint32_t i = 0; i < nodes; ++i) plan.nodes.push_back({fmt::format("n{}", i), cards_per_node});
    if (const auto made = make_cluster_files(plan); !made) return made.error();

    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("cannot make a pipe");
    const Fd reading(ends[0]);
    cluster->lifeline_.reset(ends[1]);
    Pids pids;
    if (const auto self = process_stat(::getpid())) pids["run"] = self->id;
    for (const Part& part : parts_of(plan, true)) {
        auto started = start_part(part, plan.folder, reading.get());
        if (!started) return started.error();
        pids[part.name] = started->id;
        cluster->parts_.push_back(std::move(started).value());
    }
    if (const auto written = write_pids(plan.folder, pids); !written) return written.error();
    return cluster;
}

PrivateCluster::~PrivateCluster() { take_down(); }

Result<ClusterAddress> PrivateCluster::address() const {
    auto keys = read_key_file(plan_.folder + "/client.key");
    if (!keys) return keys.error();
    return ClusterAddress{plan_.users_endpoint, plan_.coordinator_key, std::move(keys).value(), "private cluster"};
}

Result<void> PrivateCluster::wait_ready(const std::function<bool()>& interrupted) {
    return runner::wait_ready(parts_, plan_.folder, kStartTime, interrupted);
}

std::optional<std::string> PrivateCluster::died() const {
    if (is_alive(parts_.front().id)) return std::nullopt;
    return "the private cluster's coordinator has died:" + log_tail(plan_.folder, "coordinator");
}

std::optional<std::string> PrivateCluster::take_down() {
    if (is_down_) return std::nullopt;
    is_down_ = true;
    lifeline_.reset();
    std::vector<ProcessId> all;
    for (const StartedPart& part : parts_) all.push_back(part.id);
    const std::vector<ProcessId> stuck = wait_gone(all, kEndTime);
    std::optional<std::string> trouble;
    if (!stuck.empty()) {
        for (const ProcessId& id : stuck) ::kill(id.pid, SIGKILL);
        wait_gone(stuck, seconds(5));
        for (const LocalNode& node : plan_.nodes) {
            if (!run_part(clean_part(plan_, node), plan_.folder, seconds(10))) {
                trouble = fmt::format("something of node {} could not be ended: see {}/log", node.name, plan_.folder);
            }
        }
    }
    if (!trouble) {
        if (const auto removed = remove_tree(plan_.folder); !removed) trouble = removed.error().message;
    }
    return trouble;
}

void sweep_dead_runs(const std::string& state) {
    for (const std::string& name : names_in(state)) {
        const pid_t pid = run_of(name);
        if (pid <= 0 || pid == ::getpid()) continue;
        LocalClusterPlan plan;
        plan.cluster = name;
        plan.folder = state + "/" + name;
        const Pids pids = read_pids(plan.folder);
        if (pids.empty() && process_stat(pid)) continue;   // it is only starting
        const bool lives = std::any_of(pids.begin(), pids.end(), [](const auto& p) { return is_alive(p.second); });
        if (lives) continue;
        bool clean = true;
        for (const std::string& node : names_in(plan.folder + "/nodes")) {
            if (node.front() == '.') continue;
            clean = run_part(clean_part(plan, {node, 1}), plan.folder, seconds(10)) && clean;
        }
        if (clean) {
            if (const auto removed = remove_tree(plan.folder); !removed) continue;
        }
    }
}

}  // namespace gangline::runner
