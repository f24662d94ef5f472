#include "runner/cli/private_cluster.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <thread>

#include "base/text.h"
#include "base/time.h"
#include "runner/cli/remove_folder.h"

namespace gangline::runner {
namespace {

constexpr Duration kStartTime = seconds(20);
constexpr Duration kEndTime = seconds(15);
constexpr Duration kRemoveTime = seconds(3);
constexpr const char* kMemory = "/dev/shm";

std::string memory_folder(const std::string& cluster) { return fmt::format("{}/gangline-{}", kMemory, cluster); }

// A new folder of ours alone in shared memory; false where there is none.
bool make_memory_folder(const std::string& path) { return ::mkdir(path.c_str(), 0700) == 0; }

std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    DIR* const entries = ::opendir(folder.c_str());
    if (entries == nullptr) return names;
    while (const dirent* const entry = ::readdir(entries)) {
        if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    }
    ::closedir(entries);
    return names;
}

// run-<pid>-<hex>: the pid; 0 when it is not such a name.
pid_t run_of(const std::string& name) {
    const std::vector<std::string> fields = split(name, '-');
    pid_t pid = 0;
    if (fields.size() != 3 || fields[0] != "run") return 0;
    std::from_chars(fields[1].data(), fields[1].data() + fields[1].size(), pid);
    return pid;
}

// An agent that was killed leaves shepherds that may still write: they end as soon as they find out.
Result<void> remove_until(const std::string& folder, TimePoint until) {
    while (true) {
        auto removed = remove_folder(folder);
        if (removed || now().steady >= until) return removed;
        std::this_thread::sleep_for(milliseconds(5));
    }
}

// The janitor's life: waits for a word or for the end of its line; without a word it waits for the parts, and cleans up.
[[noreturn]] void be_janitor(int line, const std::vector<ProcessId>& parts, const std::vector<std::string>& folders) {
    char word = 0;
    ssize_t got = 0;
    while ((got = ::read(line, &word, 1)) < 0 && errno == EINTR) {
    }
    if (got <= 0) {
        std::vector<ProcessId> stuck = wait_gone(parts, kEndTime);
        for (const std::string& folder : folders) {
            for (const ProcessId& id : parts_naming(folder)) stuck.push_back(id);
        }
        for (const ProcessId& id : stuck) ::kill(id.pid, SIGKILL);
        if (wait_gone(stuck, seconds(5)).empty()) {
            for (const std::string& folder : folders) static_cast<void>(remove_folder(folder).ok());
        }
    }
    ::_exit(0);
}

}  // namespace

Result<std::unique_ptr<PrivateCluster>> PrivateCluster::start(const std::string& state, std::uint32_t nodes,
                                                              std::uint32_t cards_per_node) {
    std::unique_ptr<PrivateCluster> cluster(new PrivateCluster);
    LocalClusterPlan& plan = cluster->plan_;
    plan.cluster = fmt::format("run-{}-{}", ::getpid(), random_hex(4));
    cluster->disk_folder_ = state + "/" + plan.cluster;
    if (const auto made = make_folders(cluster->disk_folder_, 0700); !made) return made.error();
    const std::string memory = memory_folder(plan.cluster);
    plan.folder = make_memory_folder(memory) ? memory : cluster->disk_folder_;
    plan.node_root = cluster->disk_folder_;
    plan.topology = state + "/topology.xml";
    plan.users_endpoint = fmt::format("ipc://{}/users.sock", plan.folder);
    plan.nodes_endpoint = fmt::format("ipc://{}/nodes.sock", plan.folder);
    plan.checkpoint_root = cluster->disk_folder_ + "/checkpoints";
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
    if (const auto begun = cluster->start_janitor(); !begun) return begun.error();
    return cluster;
}

Result<void> PrivateCluster::start_janitor() {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("cannot make a pipe");
    const Fd reading(ends[0]);
    janitor_line_.reset(ends[1]);
    std::vector<ProcessId> parts;
    for (const StartedPart& part : parts_) parts.push_back(part.id);
    const pid_t pid = ::fork();
    if (pid < 0) return errno_error("cannot fork");
    if (pid > 0) {
        janitor_ = pid;
        return {};
    }
    // It must hold nothing of its parent's: neither the writing ends, nor the pipes of whoever reads our output.
    const int line = ::dup2(reading.get(), 3);
    ::setsid();
    ::close_range(4, ~0U, 0);
    const int nothing = ::open("/dev/null", O_RDWR);
    for (const int fd : {0, 1, 2}) ::dup2(nothing, fd);
    ::close(nothing);
    be_janitor(line, parts, {plan_.folder, disk_folder_});
}

void PrivateCluster::dismiss_janitor() {
    if (janitor_ <= 0) return;
    static_cast<void>(write_all(janitor_line_.get(), "q").ok());
    ::waitpid(janitor_, nullptr, 0);   // it ends at once: it only waits for this word
    janitor_ = 0;
}

PrivateCluster::~PrivateCluster() { take_down(); }

Result<ClusterAddress> PrivateCluster::address() const {
    auto keys = read_key_file(plan_.folder + "/client.key");
    if (!keys) return keys.error();
    return ClusterAddress{plan_.users_endpoint, plan_.coordinator_key, std::move(keys).value(), "private cluster"};
}

std::string PrivateCluster::options_to_reach() const {
    return fmt::format(" --coordinator {} --coordinator-key {} --key {}", shell_quote(plan_.users_endpoint),
                       shell_quote(plan_.coordinator_key), shell_quote(plan_.folder + "/client.key"));
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
    dismiss_janitor();
    if (trouble) return trouble;
    for (const std::string& folder : {plan_.folder, disk_folder_}) {
        if (const auto removed = remove_until(folder, now().steady + kRemoveTime); !removed) trouble = removed.error().message;
    }
    return trouble;
}

void sweep_dead_runs(const std::string& state) {
    for (const std::string& name : names_in(state)) {
        const pid_t pid = run_of(name);
        if (pid <= 0 || pid == ::getpid()) continue;
        LocalClusterPlan plan;
        plan.cluster = name;
        plan.node_root = state + "/" + name;
        const std::string memory = memory_folder(name);
        plan.folder = ::access(memory.c_str(), F_OK) == 0 ? memory : plan.node_root;
        const Pids pids = read_pids(plan.folder);
        if (pids.empty() && process_stat(pid)) continue;   // it is only starting
        const bool lives = std::any_of(pids.begin(), pids.end(), [](const auto& p) { return is_alive(p.second); });
        if (lives) continue;
        bool clean = true;
        for (const auto& [part, id] : pids) {
            if (part == "run" || part == "coordinator") continue;
            clean = run_part(clean_part(plan, {part, 1}), plan.folder, seconds(10)) && clean;
        }
        if (!clean) continue;
        static_cast<void>(remove_folder(plan.folder).ok());     // what stays is tried again by the next start
        static_cast<void>(remove_folder(plan.node_root).ok());
    }
}

}  // namespace gangline::runner
