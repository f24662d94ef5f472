#include "runner/cli/parts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "base/text.h"

namespace gangline::runner {
namespace {

constexpr int kLifelineFd = 3;
constexpr int kReadyFd = 4;

class SpawnSettings {
  public:
    SpawnSettings() {
        ::posix_spawn_file_actions_init(&actions_);
        ::posix_spawnattr_init(&attributes_);
        sigset_t none, standard;
        sigemptyset(&none);
        sigfillset(&standard);
        ::posix_spawnattr_setsigmask(&attributes_, &none);
        ::posix_spawnattr_setsigdefault(&attributes_, &standard);
        ::posix_spawnattr_setflags(&attributes_,
                                   POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    }
    SpawnSettings(const SpawnSettings&) = delete;
    SpawnSettings& operator=(const SpawnSettings&) = delete;
    ~SpawnSettings() {
        ::posix_spawn_file_actions_destroy(&actions_);
        ::posix_spawnattr_destroy(&attributes_);
    }
    void open_as(int fd, const std::string& path, int flags) {
        ::posix_spawn_file_actions_addopen(&actions_, fd, path.c_str(), flags, 0600);
    }
    void use_as(int fd, int source) { ::posix_spawn_file_actions_adddup2(&actions_, source, fd); }
    const posix_spawn_file_actions_t* actions() const { return &actions_; }
    const posix_spawnattr_t* attributes() const { return &attributes_; }

  private:
    posix_spawn_file_actions_t actions_{};
    posix_spawnattr_t attributes_{};
};

// A descriptor above those that a part is given, so that none is overwritten before it is copied.
Result<Fd> out_of_the_way(int fd) {
    Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 10));
    if (!copy) return errno_error("cannot copy a descriptor");
    return copy;
}

// Reads what the part has said. Errors: it ended without saying that it is ready.
Result<void> read_ready(StartedPart& part, const std::string& folder) {
    char bytes[64];
    const ssize_t got = ::read(part.ready.get(), bytes, sizeof bytes);
    if (got > 0 && std::string_view(bytes, static_cast<std::size_t>(got)).starts_with("ready")) {
        part.is_ready = true;
        part.ready.reset();
        return {};
    }
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return {};
    return Error{Code::Internal, fmt::format("{} did not start:{}", part.name, log_tail(folder, part.name))};
}

}  // namespace

std::vector<Part> parts_of(const LocalClusterPlan& plan, bool lifeline) {
    const std::string& folder = plan.folder;
    std::vector<Part> parts;
    parts.push_back({"coordinator",
                     {"coordinator", "--state", folder + "/coordinator", "--cluster", plan.cluster, "--listen-users",
                      plan.users_endpoint, "--listen-nodes", plan.nodes_endpoint, "--authorised",
                      folder + "/coordinator/authorised", "--checkpoint-root", plan.checkpoint_root,
                      "--first-job", std::to_string(plan.first_job)}});
    if (!plan.description.empty()) parts.back().argv.insert(parts.back().argv.end(), {"--cluster-file", plan.description});
    for (const LocalNode& node : plan.nodes) {
        parts.push_back({node.name,
                         {"agent", "--coordinator", plan.nodes_endpoint, "--coordinator-key", plan.coordinator_key,
                          "--key", fmt::format("{}/keys/{}.key", folder, node.name), "--state", fmt::format("{}/{}", plan.node_root, node.name),
                          "--topology", plan.topology, "--node", node.name, "--cards",
                          std::to_string(node.cards), "--address", "127.0.0.1", "--cluster", plan.cluster}});
    }
    for (Part& part : parts) {
        if (lifeline) part.argv.insert(part.argv.end(), {"--lifeline-fd", std::to_string(kLifelineFd)});
        part.argv.insert(part.argv.end(), {"--ready-fd", std::to_string(kReadyFd)});
    }
    return parts;
}

Part clean_part(const LocalClusterPlan& plan, const LocalNode& node) {
    return {node.name + "-clean",
            {"agent", "--clean", "--state", fmt::format("{}/{}", plan.node_root, node.name), "--node", node.name,
             "--cluster", plan.cluster}};
}

Result<StartedPart> start_part(const Part& part, const std::string& folder, int lifeline_fd) {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("cannot make a pipe");
    const Fd write_end(ends[1]);
    StartedPart started;
    started.name = part.name;
    started.ready.reset(ends[0]);
    auto ready = out_of_the_way(write_end.get());
    if (!ready) return ready.error();
    Fd lifeline;
    if (lifeline_fd >= 0) {
        auto copy = out_of_the_way(lifeline_fd);
        if (!copy) return copy.error();
        lifeline = std::move(copy).value();
    }
    SpawnSettings settings;
    settings.open_as(0, "/dev/null", O_RDONLY);
    settings.open_as(1, fmt::format("{}/log/{}.log", folder, part.name), O_WRONLY | O_CREAT | O_APPEND);
    settings.use_as(2, 1);
    if (lifeline) settings.use_as(kLifelineFd, lifeline.get());
    settings.use_as(kReadyFd, ready->get());

    const std::string program = executable_path();
    std::vector<std::string> words = {program};
    words.insert(words.end(), part.argv.begin(), part.argv.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const int error = ::posix_spawn(&started.id.pid, program.c_str(), settings.actions(), settings.attributes(),
                                    argv.data(), environ);
    if (error != 0) {
        errno = error;
        return errno_error(fmt::format("cannot start {} ({})", part.name, program));
    }
    if (const auto stat = process_stat(started.id.pid)) started.id = stat->id;
    return started;
}

Result<void> wait_ready(std::vector<StartedPart>& parts, const std::string& folder, Duration deadline,
                        const std::function<bool()>& interrupted) {
    const TimePoint until = now().steady + deadline;
    while (true) {
        std::vector<pollfd> waiting;
        std::vector<StartedPart*> who;
        for (StartedPart& part : parts) {
            if (part.is_ready) continue;
            waiting.push_back({part.ready.get(), POLLIN, 0});
            who.push_back(&part);
        }
        if (who.empty()) return {};
        const Duration left = until - now().steady;
        if (left <= Duration(0)) {
            return Error{Code::Deadline, fmt::format("{} is not ready after {}:{}", who.front()->name,
                                                     human_duration(to_seconds(deadline)),
                                                     log_tail(folder, who.front()->name))};
        }
        if (interrupted && interrupted()) return Error{Code::Refused, "interrupted"};
        const auto wait_ms = std::min<std::int64_t>(100, to_ms(left) + 1);
        if (::poll(waiting.data(), waiting.size(), static_cast<int>(wait_ms)) <= 0) continue;
        for (std::size_t i = 0; i < who.size(); ++i) {
            if (waiting[i].revents == 0) continue;
            if (const auto read = read_ready(*who[i], folder); !read) return read;
        }
    }
}

std::vector<ProcessId> wait_gone(std::vector<ProcessId> processes, Duration deadline) {
    const TimePoint until = now().steady + deadline;
    while (true) {
        std::erase_if(processes, [](const ProcessId& id) {
            int status = 0;
            return ::waitpid(id.pid, &status, WNOHANG) == id.pid || !is_alive(id);
        });
        const Duration left = until - now().steady;
        if (processes.empty() || left <= Duration(0)) return processes;
        std::vector<Fd> handles;
        std::vector<pollfd> waiting;
        for (const ProcessId& id : processes) {
            handles.push_back(open_process(id.pid));
            waiting.push_back({handles.back().get(), POLLIN, 0});
        }
        ::poll(waiting.data(), waiting.size(), static_cast<int>(std::min<std::int64_t>(200, to_ms(left) + 1)));
    }
}

bool run_part(const Part& part, const std::string& folder, Duration deadline) {
    auto started = start_part(part, folder, -1);
    if (!started) return false;
    const pid_t pid = started->id.pid;
    const Fd handle = open_process(pid);
    pollfd waiting = {handle.get(), POLLIN, 0};
    if (handle) ::poll(&waiting, 1, static_cast<int>(to_ms(deadline)));
    int status = 0;
    if (::waitpid(pid, &status, WNOHANG) == pid) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, &status, 0);
    return false;
}

std::vector<ProcessId> parts_naming(const std::string& folder) {
    std::vector<ProcessId> found;
    const std::string program = executable_path();
    for (const pid_t pid : all_pids()) {
        const auto words = read_file(fmt::format("/proc/{}/cmdline", pid), 1 << 20);
        if (pid == ::getpid() || !words || words->find(folder + "/") == std::string::npos) continue;
        char image[4096];
        const ssize_t size = ::readlink(fmt::format("/proc/{}/exe", pid).c_str(), image, sizeof image);
        // A program that was replaced meanwhile shows as "PATH (deleted)".
        const bool ours = size > 0 && std::string_view(image, static_cast<std::size_t>(size)).starts_with(program);
        const auto stat = process_stat(pid);
        if (ours && stat && stat->state != 'Z') found.push_back(stat->id);
    }
    return found;
}

std::string log_tail(const std::string& folder, const std::string& part) {
    const auto text = read_file(fmt::format("{}/log/{}.log", folder, part), 64 << 20);
    if (!text || text->empty()) return " it said nothing";
    const std::vector<std::string> lines = split(trim(*text), '\n');
    std::string tail;
    for (std::size_t i = lines.size() > 5 ? lines.size() - 5 : 0; i < lines.size(); ++i) tail += "\n  | " + lines[i];
    return tail;
}

}  // namespace gangline::runner
