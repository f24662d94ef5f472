#include "base/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

namespace gangline {

void check_failed(const char* file, int line, const char* condition, const std::string& why) {
    fmt::print(stderr, "gangline: bug at {}:{}: {} does not hold: {}\n", file, line, condition, why);
    std::abort();
}

Error errno_error(const std::string& what, Code code) {
    const int error = errno;
    if (error == ENOSPC || error == EDQUOT || error == EFBIG) code = Code::NoSpace;
    if (error == ENOENT && code == Code::Internal) code = Code::NotFound;
    return {code, fmt::format("{}: {}", what, std::strerror(error))};
}

Result<std::string> read_file(const std::string& path, std::size_t limit_bytes) {
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return errno_error("cannot open " + path);
    std::string content;
    char buffer[16384];
    for (;;) {
        const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno_error("cannot read " + path);
        if (n == 0) return content;
        content.append(buffer, static_cast<std::size_t>(n));
        if (content.size() > limit_bytes) {
            return Error{Code::InvalidArgument, fmt::format("{} is larger than {} bytes", path, limit_bytes)};
        }
    }
}

Result<void> write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t n = ::write(fd, bytes.data(), bytes.size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno_error("cannot write");
        bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return {};
}

Result<void> write_file_atomically(const std::string& path, std::string_view content, mode_t mode) {
    const std::filesystem::path target(path);
    const std::string folder = target.has_parent_path() ? target.parent_path().string() : ".";
    const std::string temporary = fmt::format("{}/.{}.{}", folder, target.filename().string(), random_hex(6));
    auto fail = [&](Error error) -> Result<void> {
        ::unlink(temporary.c_str());
        return error;
    };
    const Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd) return errno_error("cannot create " + temporary);
    if (auto written = write_all(fd.get(), content); !written) return fail(written.error());
    if (::fchmod(fd.get(), mode) != 0) return fail(errno_error("cannot set the mode of " + temporary));
    if (::fsync(fd.get()) != 0) return fail(errno_error("cannot fsync " + temporary));
    if (::rename(temporary.c_str(), path.c_str()) != 0) return fail(errno_error("cannot rename to " + path));
    const Fd parent(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!parent || ::fsync(parent.get()) != 0) return errno_error("cannot fsync " + folder);
    return {};
}

Result<void> make_folders(const std::string& path, mode_t mode) {
    std::error_code error;
    const std::filesystem::path target(path);
    if (std::filesystem::is_directory(target, error)) return {};
    if (target.has_parent_path() && target.parent_path() != target) {
        if (auto made = make_folders(target.parent_path().string(), 0755); !made) return made;
    }
    return make_folder(path, mode);
}

Result<void> make_folder(const std::string& path, mode_t mode) {
    if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) return errno_error("cannot make the folder " + path);
    return {};
}

Result<void> remove_tree(const std::string& path) {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return Error{Code::Internal, fmt::format("cannot delete {}: {}", path, error.message())};
    return {};
}

Result<void> set_nonblocking(int fd) {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return errno_error("cannot set O_NONBLOCK");
    return {};
}

std::optional<ProcessStat> process_stat(pid_t pid) {
    const auto text = read_file(fmt::format("/proc/{}/stat", pid));
    if (!text) return std::nullopt;
    // The command may hold blanks and brackets; the fields start behind its last ')'.
    const std::size_t end = text->rfind(')');
    if (end == std::string::npos || end + 2 >= text->size()) return std::nullopt;
    ProcessStat stat;
    stat.id.pid = pid;
    int session = 0;
    int parent = 0;
    unsigned long long start = 0;
    const int fields = std::sscanf(text->c_str() + end + 2,
                                   "%c %d %*d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                                   &stat.state, &parent, &session, &start);
    if (fields != 4) return std::nullopt;
    stat.parent = parent;
    stat.session = session;
    stat.id.start_ticks = start;
    return stat;
}

Fd open_process(pid_t pid) { return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

Fd kill_exactly(const ProcessId& id) {
    if (id.pid <= 0) return Fd();
    Fd process = open_process(id.pid);
    const auto stat = process_stat(id.pid);
    if (!process || !stat || (id.start_ticks != 0 && stat->id != id)) return Fd();
    ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
    return process;
}

bool wait_dead(const std::vector<Fd>& processes, Duration limit) {
    const TimePoint until = now().steady + limit;
    for (const Fd& process : processes) {
        pollfd death{process.get(), POLLIN, 0};
        while (::poll(&death, 1, static_cast<int>(std::max<std::int64_t>(0, to_ms(until - now().steady)))) <= 0) {
            if (now().steady >= until) return false;
        }
    }
    return true;
}

std::vector<pid_t> all_pids() {
    std::vector<pid_t> pids;
    DIR* folder = ::opendir("/proc");
    if (folder == nullptr) return pids;
    while (const dirent* entry = ::readdir(folder)) {
        pid_t pid = 0;
        const char* end = entry->d_name + std::strlen(entry->d_name);
        const auto parsed = std::from_chars(entry->d_name, end, pid);
        if (parsed.ec == std::errc() && parsed.ptr == end) pids.push_back(pid);
    }
    ::closedir(folder);
    return pids;
}

std::optional<std::string> process_environment(pid_t pid, std::string_view name) {
    const auto text = read_file(fmt::format("/proc/{}/environ", pid));
    if (!text) return std::nullopt;
    std::string_view rest = *text;
    while (!rest.empty()) {
        const std::string_view entry = rest.substr(0, rest.find('\0'));
        if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
            return std::string(entry.substr(name.size() + 1));
        }
        rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    }
    return std::nullopt;
}

std::string executable_path() {
    std::error_code error;
    return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

std::string host_name() {
    char name[256] = {};
    if (::gethostname(name, sizeof name - 1) != 0) return "localhost";
    return name;
}

std::string boot_id() {
    auto text = read_file("/proc/sys/kernel/random/boot_id");
    if (!text) return "unknown";
    while (!text->empty() && text->back() == '\n') text->pop_back();
    return *text;
}

std::string random_hex(std::size_t bytes) {
    std::string raw(bytes, '\0');
    std::size_t filled = 0;
    while (filled < bytes) {
        const ssize_t n = ::getrandom(raw.data() + filled, bytes - filled, 0);
        if (n > 0) filled += static_cast<std::size_t>(n);
    }
    std::string hex;
    for (const char c : raw) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
    return hex;
}

}  // namespace gangline
