#include "runner/execd/reap.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <set>

#include "base/handle.h"
#include "base/process.h"
#include "base/text.h"

namespace gangline::runner {
namespace {

std::vector<pid_t> cgroup_members(const std::string& cgroup) {
    std::vector<pid_t> pids;
    for (const char* part : {"", "/ranks", "/shepherd"}) {
        const auto text = read_file(cgroup + part + "/cgroup.procs");
        if (!text) continue;
        for (const std::string& line : split(*text, '\n')) {
            if (!line.empty()) pids.push_back(static_cast<pid_t>(std::strtol(line.c_str(), nullptr, 10)));
        }
    }
    return pids;
}

// SIGKILL to exactly this process: a reused pid has another start time.
Fd kill_exactly(const ProcessId& id) {
    Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, id.pid, 0)));
    const auto stat = process_stat(id.pid);
    if (!fd || !stat || stat->id != id) return Fd();
    ::syscall(SYS_pidfd_send_signal, fd.get(), SIGKILL, nullptr, 0);
    return fd;
}

}  // namespace

std::vector<pid_t> members_of(const ReapScope& scope) {
    std::set<pid_t> members;
    if (!scope.cgroup.empty()) {
        for (const pid_t pid : cgroup_members(scope.cgroup)) members.insert(pid);
    }
    for (const pid_t pid : all_pids()) {
        if (!scope.mark.empty() && process_environment(pid, "GANGLINE_MARK") == scope.mark) members.insert(pid);
    }
    std::vector<pid_t> living;
    for (const pid_t pid : members) {
        const auto stat = process_stat(pid);
        if (pid != ::getpid() && stat && stat->state != 'Z' && stat->state != 'X') living.push_back(pid);
    }
    return living;
}

std::size_t kill_until_gone(const ReapScope& scope, Duration limit) {
    const TimePoint until = std::chrono::steady_clock::now() + limit;
    for (;;) {
        const std::vector<pid_t> members = members_of(scope);
        if (members.empty()) return 0;
        if (!scope.cgroup.empty()) {
            const Fd all(::open((scope.cgroup + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
            if (all) (void)!::write(all.get(), "1", 1);
        }
        std::vector<Fd> ends;
        for (const pid_t pid : members) {
            const auto stat = process_stat(pid);
            if (!stat) continue;
            if (Fd fd = kill_exactly(stat->id)) ends.push_back(std::move(fd));
        }
        for (const Fd& end : ends) {
            pollfd wait{end.get(), POLLIN, 0};
            const auto left = to_ms(until - std::chrono::steady_clock::now());
            if (left > 0) ::poll(&wait, 1, static_cast<int>(left));
        }
        if (std::chrono::steady_clock::now() >= until) return members_of(scope).size();
    }
}

void remove_leftovers(const ReapScope& scope, const std::string& shm_name) {
    if (!scope.cgroup.empty()) {
        for (const char* part : {"/shepherd", "/ranks", ""}) ::rmdir((scope.cgroup + part).c_str());
    }
    (void)remove_tree("/dev/shm/" + shm_name);
}

std::string cgroup_root() {
    for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
        if (::access((std::string(root) + "/cgroup.controllers").c_str(), F_OK) == 0) return root;
    }
    return "";
}

Result<std::string> enter_new_cgroup(const std::string& name, uid_t uid, gid_t gid) {
    const std::string root = cgroup_root();
    if (root.empty()) return Error{Code::Unavailable, "there is no cgroup v2 here"};
    const std::string folder = root + "/" + name;
    for (const char* part : {"/shepherd", "/ranks"}) {
        if (auto made = make_folders(folder + part); !made) return made.error();
    }
    // The common ancestor's list must be writable too for a process to move between the two (cgroups(7), delegation).
    for (const char* file : {"", "/cgroup.procs", "/shepherd", "/shepherd/cgroup.procs", "/ranks", "/ranks/cgroup.procs", "/ranks/cgroup.kill"}) {
        (void)!::chown((folder + file).c_str(), uid, gid);
    }
    const Fd procs(::open((folder + "/shepherd/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
    if (!procs || ::write(procs.get(), "0", 1) != 1) return errno_error("cannot enter the cgroup " + folder);
    return folder;
}

}  // namespace gangline::runner
