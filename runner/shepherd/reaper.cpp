#include "runner/shepherd/reaper.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>

#include <fmt/format.h>

#include "base/process.h"

namespace gangline::runner {
namespace {

// At most `most` bytes of a file of /proc or of a cgroup.
std::string read_at(int folder, const char* name, std::size_t most) {
    const Fd fd(::openat(folder, name, O_RDONLY | O_CLOEXEC));
    std::string text;
    char chunk[4096];
    while (fd && text.size() < most) {
        const ssize_t n = ::read(fd.get(), chunk, std::min(sizeof chunk, most - text.size()));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        text.append(chunk, static_cast<std::size_t>(n));
    }
    return text;
}

bool write_at(int folder, const char* name, const std::string& text) {
    const Fd fd(::openat(folder, name, O_WRONLY | O_CLOEXEC));
    return fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Numbers between blanks or line ends.
std::vector<pid_t> numbers(const std::string& text) {
    std::vector<pid_t> result;
    const char* at = text.data();
    const char* end = at + text.size();
    while (at != end) {
        pid_t number = 0;
        const auto parsed = std::from_chars(at, end, number);
        if (parsed.ec == std::errc()) result.push_back(number);
        at = parsed.ec == std::errc() ? parsed.ptr : at + 1;
    }
    return result;
}

std::vector<pid_t> folder_numbers(const char* path) {
    std::vector<pid_t> result;
    DIR* folder = ::opendir(path);
    if (folder == nullptr) return result;
    while (const dirent* entry = ::readdir(folder)) {
        pid_t number = 0;
        const char* end = entry->d_name + std::strlen(entry->d_name);
        const auto parsed = std::from_chars(entry->d_name, end, number);
        if (parsed.ec == std::errc() && parsed.ptr == end) result.push_back(number);
    }
    ::closedir(folder);
    return result;
}

constexpr std::size_t kMostProcs = 1u << 20;

// Children by /proc/self/task/TID/children; where the kernel has no such file, by everybody's parent.
std::vector<pid_t> children() {
    std::vector<pid_t> result;
    bool has_file = false;
    for (const pid_t thread : folder_numbers("/proc/self/task")) {
        const std::string path = fmt::format("/proc/self/task/{}/children", thread);
        has_file = has_file || ::access(path.c_str(), R_OK) == 0;
        for (const pid_t child : numbers(read_at(AT_FDCWD, path.c_str(), kMostProcs))) result.push_back(child);
    }
    if (has_file) return result;
    for (const pid_t pid : all_pids()) {
        const auto stat = process_stat(pid);
        if (stat && stat->parent == ::getpid()) result.push_back(pid);
    }
    return result;
}

}  // namespace

std::string writable_cgroup_root() {
    for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
        const std::string controllers = std::string(root) + "/cgroup.controllers";
        if (::access(controllers.c_str(), F_OK) == 0) return ::access(root, W_OK) == 0 ? root : "";
    }
    return "";
}

Result<RankCgroup> RankCgroup::create(const std::string& attempt_folder) {
    RankCgroup group;
    group.path_ = attempt_folder + "/ranks";
    // Again: another shepherd may just have removed an empty parent of it.
    auto made = make_folders(group.path_);
    for (int i = 0; i < 3 && !made; ++i) made = make_folders(group.path_);
    if (!made) return Error{Code::Unavailable, made.error().message};
    group.folder_.reset(::open(group.path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!group.folder_ || ::faccessat(group.folder_.get(), "cgroup.procs", W_OK, 0) != 0) {
        return Error{Code::Unavailable, group.path_ + " is no cgroup that we may write"};
    }
    return group;
}

void RankCgroup::kill() const {
    if (write_at(folder_.get(), "cgroup.kill", "1")) return;
    for (const pid_t pid : numbers(read_at(folder_.get(), "cgroup.procs", kMostProcs))) ::kill(pid, SIGKILL);
}

bool RankCgroup::is_empty() const {
    return read_at(folder_.get(), "cgroup.events", 4096).find("populated 1") == std::string::npos;
}

Result<void> RankCgroup::limit_memory(std::uint64_t bytes) const {
    if (!write_at(folder_.get(), "memory.max", std::to_string(bytes))) {
        return Error{Code::Unavailable, "the memory controller is not delegated to " + path_};
    }
    write_at(folder_.get(), "memory.oom.group", "1");  // A gang of which one rank is killed is lost anyway.
    return {};
}

std::uint64_t RankCgroup::killed_for_memory() const {
    const std::string events = read_at(folder_.get(), "memory.events", 4096);
    const std::string_view name = "oom_kill ";
    const std::size_t at = events.starts_with(name) ? 0 : events.find("\n" + std::string(name));
    if (at == std::string::npos) return 0;
    const char* first = events.data() + events.find(' ', at) + 1;
    std::uint64_t count = 0;
    std::from_chars(first, events.data() + events.size(), count);
    return count;
}

void RankCgroup::remove() const {
    std::string path = path_;
    // <root>/gangline/<cluster>/<node>/<job>.<attempt>/ranks: the kernel refuses what is not empty.
    for (int level = 0; level < 5 && ::rmdir(path.c_str()) == 0; ++level) path = path.substr(0, path.rfind('/'));
}

std::size_t kill_children() {
    const std::vector<pid_t> all = children();
    const pid_t own_group = ::getpgrp();
    for (const pid_t child : all) {
        const pid_t group = ::getpgid(child);
        if (group == child && group != own_group) ::kill(-group, SIGKILL);
        ::kill(child, SIGKILL);
    }
    return all.size();
}

std::vector<pid_t> marked_processes(const std::string& mark) {
    std::vector<pid_t> result;
    const Fd proc(::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!proc) return result;
    const std::string wanted = "GANGLINE_MARK=" + mark;
    for (const pid_t pid : folder_numbers("/proc")) {
        if (pid == ::getpid()) continue;
        const std::string path = std::to_string(pid) + "/environ";
        std::string text = read_at(proc.get(), path.c_str(), 2048);  // The mark comes first, as a rule.
        if (text.size() == 2048) text = read_at(proc.get(), path.c_str(), 2u << 20);
        for (std::size_t at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) {
            const bool begins = at == 0 || text[at - 1] == '\0';
            const std::size_t end = at + wanted.size();
            if (begins && (end == text.size() || text[end] == '\0')) {
                result.push_back(pid);
                break;
            }
        }
    }
    return result;
}

}  // namespace gangline::runner
