#pragma once
// Small honest wrappers over the kernel's process and file calls that more than one folder needs.
//
// Thread rule: all are safe from any thread. Nothing here waits without a deadline.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/handle.h"
#include "base/result.h"
#include "base/time.h"

namespace gangline {

// A process named so that a reused pid cannot be mistaken for it: pid plus start time (clock ticks since boot,
// /proc/PID/stat field 22).
struct ProcessId {
    pid_t pid = 0;
    std::uint64_t start_ticks = 0;
    friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

struct ProcessStat {
    ProcessId id;
    pid_t parent = 0;
    pid_t session = 0;
    char state = '?';  // R S D Z T t X, as in proc(5)
};

// /proc/PID/stat; nothing when the process is gone.
std::optional<ProcessStat> process_stat(pid_t pid);
std::vector<pid_t> all_pids();
// A process's pidfd, readable when it is dead; none: it is gone.
Fd open_process(pid_t pid);
// SIGKILL to exactly this process (start_ticks 0: to whoever has the pid). Its pidfd, readable when it is dead; none: it was gone.
Fd kill_exactly(const ProcessId& id);
// Until all of these pidfds are readable. False: not all in this time.
bool wait_dead(const std::vector<Fd>& processes, Duration limit);
// The value of NAME in /proc/PID/environ; nothing when unreadable or unset.
std::optional<std::string> process_environment(pid_t pid, std::string_view name);

// Reads a whole file. Errors: NotFound; Internal; InvalidArgument when larger than limit_bytes.
Result<std::string> read_file(const std::string& path, std::size_t limit_bytes = 64u << 20);
// Writes under a temporary name, fsyncs, renames over `path`, fsyncs the folder. Errors: NoSpace, Internal; `path` is
// then as it was. `mode` is exact (no umask).
Result<void> write_file_atomically(const std::string& path, std::string_view content, mode_t mode = 0644);
Result<void> make_folders(const std::string& path, mode_t mode = 0755);
// One folder in one that is there; being there already is fine. For whoever may be late: a tree that was removed is not made again.
Result<void> make_folder(const std::string& path, mode_t mode);
// Deletes a tree without following a symbolic link; missing is fine.
Result<void> remove_tree(const std::string& path);
// Writes all bytes. Errors: NoSpace (ENOSPC, EDQUOT, EFBIG), Internal.
Result<void> write_all(int fd, std::string_view bytes);
Result<void> set_nonblocking(int fd);
// The folder of the running executable (to find what is installed beside it), and its own path.
std::string executable_path();
std::string host_name();
std::string boot_id();  // /proc/sys/kernel/random/boot_id
// 2 * bytes hexadecimal digits from the kernel's generator.
std::string random_hex(std::size_t bytes);

}  // namespace gangline
