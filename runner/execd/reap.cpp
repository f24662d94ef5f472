#include "runner/execd/reap.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <set>

#include "base/handle.h"
#include "base/process.h"
#include "base/text.h"

namespace gangline::runner {
namespace {

constexpr Duration kCgroupLimit = milliseconds(500);

constexpr Duration kSoon = milliseconds(2);
constexpr Duration kLater = milliseconds(50);

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

bool is_populated(const std::string& cgroup) {
    const auto events = read_file(cgroup + "/cgroup.events");
    return events && events->find("populated 1") != std::string::npos;
}

bool is_living(const ProcessStat& stat) { return stat.state != 'Z' && stat.state != 'X'; }

}  // namespace

std::vector<ProcessId> members_of(const ReapScope& scope, const std::vector<ProcessId>& ours) {
    std::set<pid_t> in_cgroup;
    if (!scope.cgroup.empty()) {
        for (const pid_t pid : cgroup_members(scope.cgroup)) in_cgroup.insert(pid);
    }
    const pid_t self = ::getpid();
    std::vector<ProcessId> members;
    for (const pid_t pid : all_pids()) {
        const auto stat = pid == self ? std::nullopt : process_stat(pid);
        if (!stat || !is_living(*stat)) continue;
        const bool is_orphan = scope.orphans && stat->parent == self &&
                               std::find(ours.begin(), ours.end(), stat->id) == ours.end();
        if (is_orphan || in_cgroup.contains(pid) || (!scope.mark.empty() && process_environment(pid, "GANGLINE_MARK") == scope.mark)) {
            members.push_back(stat->id);
        }
    }
    return members;
}

bool Reaping::is_due(TimePoint now) const {
    if (now >= next_look_) return true;
    std::vector<pollfd> ends;
    for (const Fd& death : deaths_) ends.push_back({death.get(), POLLIN, 0});
    return ::poll(ends.data(), ends.size(), 0) > 0;
}

std::optional<std::size_t> Reaping::look(TimePoint now, const std::vector<ProcessId>& ours) {
    deaths_.clear();
    const std::vector<ProcessId> members = members_of(scope_, ours);
    const bool populated = !scope_.cgroup.empty() && is_populated(scope_.cgroup);
    if (members.empty() && !populated) {
        if (++empty_looks_ == 2) return 0;
        next_look_ = now;
        return std::nullopt;
    }
    if (now >= until_) return std::max<std::size_t>(members.size(), 1);
    empty_looks_ = 0;
    if (populated) {
        const Fd all(::open((scope_.cgroup + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
        if (all) (void)!::write(all.get(), "1", 1);
    }
    for (const ProcessId& member : members) {
        if (Fd fd = kill_exactly(member)) deaths_.push_back(std::move(fd));
    }
    next_look_ = std::min(until_, now + (deaths_.empty() ? kSoon : kLater));
    return std::nullopt;
}

void remove_leftovers(const ReapScope& scope, const std::string& shm_name) {
    // A killed process leaves its group a moment after its death: until then the folder is busy.
    const TimePoint until = std::chrono::steady_clock::now() + kCgroupLimit;
    while (!scope.cgroup.empty()) {
        for (const char* part : {"/shepherd", "/ranks"}) ::rmdir((scope.cgroup + part).c_str());
        if (::rmdir(scope.cgroup.c_str()) == 0 || errno != EBUSY || std::chrono::steady_clock::now() > until) break;
        ::poll(nullptr, 0, 1);
    }
    // Its parents (node, cluster, gangline) go with the last attempt below them.
    std::string parent = scope.cgroup.substr(0, scope.cgroup.rfind('/'));
    while (parent.size() > cgroup_root().size() && ::rmdir(parent.c_str()) == 0) parent.erase(parent.rfind('/'));
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
        auto made = make_folders(folder + part);
        for (int i = 0; i < 3 && !made; ++i) made = make_folders(folder + part);  // an empty parent may just have been removed
        if (!made) return made.error();
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
