#include "runner/shepherd/rank_process.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include <fmt/format.h>

#include "base/process.h"
#include "base/text.h"

namespace gangline::runner {
namespace {

// All that the child needs, as plain memory.
struct ChildPlan {
    const char* program = nullptr;
    char* const* argv = nullptr;
    char* const* environment = nullptr;
    const char* cwd = nullptr;
    const cpu_set_t* cpus = nullptr;
    const char* oom_score_adj = nullptr;
    int cgroup_procs = -1;  // written to where the kernel could not put the child there at birth
    int input = -1;
    int output = -1;
    int errors = -1;
    int status = -1;
    std::uint32_t number = 0;
    pid_t parent = 0;
};

[[noreturn]] void give_up(const ChildPlan& plan, SpawnStage stage) {
    const SpawnFailure failure{plan.number, stage, errno};
    [[maybe_unused]] const ssize_t written = ::write(plan.status, &failure, sizeof failure);
    ::_exit(127);
}

void write_text(const char* path, const char* text) {
    const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    [[maybe_unused]] const ssize_t written = ::write(fd, text, std::strlen(text));
    ::close(fd);
}

void reset_signals() {
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    for (int number = 1; number < NSIG; ++number) ::sigaction(number, &standard, nullptr);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Async-signal-safe calls only.
[[noreturn]] void become_rank(const ChildPlan& plan) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != plan.parent) ::_exit(127);  // The parent died before that was set.
    if (plan.cgroup_procs >= 0 && ::write(plan.cgroup_procs, "0", 1) != 1) give_up(plan, SpawnStage::Cgroup);
    if (plan.cpus != nullptr) ::sched_setaffinity(0, sizeof(cpu_set_t), plan.cpus);  // A hint; not worth a failure.
    if (plan.oom_score_adj != nullptr) write_text("/proc/self/oom_score_adj", plan.oom_score_adj);
    if (::dup2(plan.input, 0) < 0 || ::dup2(plan.output, 1) < 0 || ::dup2(plan.errors, 2) < 0) {
        give_up(plan, SpawnStage::Descriptors);
    }
    ::syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
    if (::chdir(plan.cwd) != 0) give_up(plan, SpawnStage::Folder);
    ::umask(022);
    reset_signals();
    ::execve(plan.program, plan.argv, plan.environment);
    give_up(plan, SpawnStage::Exec);
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> result;
    result.reserve(texts.size() + 1);
    for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
    result.push_back(nullptr);
    return result;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSharesMemory = false;  // The sanitizers' own memory must not be written by two.
#elif defined(__x86_64__) || defined(__aarch64__)
constexpr bool kSharesMemory = true;
#else
constexpr bool kSharesMemory = false;
#endif

// The bare instruction: the child goes on in the very frame of its parent, so no function may return in between.
inline long clone3_here([[maybe_unused]] clone_args* args) {
#if defined(__x86_64__)
    long result = SYS_clone3;
    asm volatile("syscall" : "+a"(result) : "D"(args), "S"(sizeof *args) : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long number asm("x8") = SYS_clone3;
    register long first asm("x0") = reinterpret_cast<long>(args);
    register long second asm("x1") = sizeof *args;
    asm volatile("svc 0" : "+r"(first) : "r"(number), "r"(second) : "memory", "cc");
    return first;
#else
    return -ENOSYS;
#endif
}

// As vfork: no page table is copied (libpmix and hwloc make it large), and this thread waits until the child has exec'ed.
// Born in its cgroup: moving a process there later makes the kernel wait for a grace period of milliseconds.
[[gnu::noinline]] pid_t start_sharing(const ChildPlan& plan, int cgroup) {
    clone_args args{};
    args.flags = CLONE_VM | CLONE_VFORK | (cgroup >= 0 ? CLONE_INTO_CGROUP : 0);
    args.cgroup = cgroup >= 0 ? static_cast<__u64>(cgroup) : 0;
    args.exit_signal = SIGCHLD;
    const long pid = clone3_here(&args);
    if (pid == 0) become_rank(plan);
    if (pid > 0) return static_cast<pid_t>(pid);
    errno = static_cast<int>(-pid);
    return -1;
}

pid_t start_child(ChildPlan plan, int cgroup, int cgroup_procs) {
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, &before);  // No handler of ours runs in the child.
    pid_t pid = kSharesMemory ? start_sharing(plan, cgroup) : -1;
    if (pid < 0 && (!kSharesMemory || (errno != EAGAIN && errno != ENOMEM))) {
        plan.cgroup_procs = cgroup_procs;  // An older kernel: the child moves itself.
        pid = ::fork();
        if (pid == 0) become_rank(plan);
    }
    const int error = errno;
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    errno = error;
    return pid;
}

struct Pipe {
    Fd read;
    Fd write;
};

Result<Pipe> make_pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("cannot make a pipe", Code::Unavailable);
    Pipe pipe{Fd(ends[0]), Fd(ends[1])};
    if (auto set = set_nonblocking(pipe.read.get()); !set) return set.error();
    return pipe;
}

}  // namespace

Result<Spawned> spawn(const SpawnPlan& plan) {
    auto out = make_pipe();
    if (!out) return out.error();
    auto err = make_pipe();
    if (!err) return err.error();
    const Fd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!input) return errno_error("cannot open /dev/null");
    Fd procs;
    if (plan.cgroup >= 0) procs.reset(::openat(plan.cgroup, "cgroup.procs", O_WRONLY | O_CLOEXEC));

    const std::vector<char*> argv = pointers(plan.argv);
    const std::vector<char*> environment = pointers(plan.environment);
    const std::string oom = plan.oom_score_adj ? std::to_string(*plan.oom_score_adj) : std::string();
    ChildPlan child;
    child.program = plan.program.c_str();
    child.argv = argv.data();
    child.environment = environment.data();
    child.cwd = plan.cwd.c_str();
    child.cpus = plan.cpus ? &*plan.cpus : nullptr;
    child.oom_score_adj = plan.oom_score_adj ? oom.c_str() : nullptr;
    child.input = input.get();
    child.output = out->write.get();
    child.errors = err->write.get();
    child.status = plan.status;
    child.number = plan.number;
    child.parent = ::getpid();

    const pid_t pid = start_child(child, plan.cgroup, procs.get());
    if (pid < 0) return errno_error("cannot start a process", Code::Unavailable);
    ::setpgid(pid, pid);  // As the child does: whoever is first. An early kill of the group must find it.
    Spawned spawned;
    spawned.pid = pid;
    spawned.out = std::move(out->read);
    spawned.err = std::move(err->read);
    return spawned;
}

std::string describe(const SpawnFailure& failure, const SpawnPlan& plan) {
    const char* reason = std::strerror(failure.error);
    switch (failure.stage) {
        case SpawnStage::Cgroup: return fmt::format("cannot enter the attempt's cgroup: {}", reason);
        case SpawnStage::Folder: return fmt::format("cannot change to the folder {}: {}", plan.cwd, reason);
        case SpawnStage::Descriptors: return fmt::format("cannot set up its input and output: {}", reason);
        case SpawnStage::Exec: break;
    }
    if (failure.error == ENOENT) {
        return fmt::format("cannot run {}: it, or the interpreter that its first line names, does not exist", plan.program);
    }
    if (failure.error == ENOEXEC) {
        return fmt::format("cannot run {}: not a program of this machine, and no script that begins with #!", plan.program);
    }
    if (failure.error == E2BIG) return fmt::format("cannot run {}: its arguments and environment are too large", plan.program);
    return fmt::format("cannot run {}: {}", plan.program, reason);
}

Result<std::string> find_program(const std::string& name, const std::string& path, const std::string& cwd) {
    const auto look = [&](const std::string& candidate) -> int {  // 0, or why not
        const std::string at = candidate.front() == '/' ? candidate : cwd + "/" + candidate;
        struct stat info {};
        if (::stat(at.c_str(), &info) != 0) return errno;
        if (!S_ISREG(info.st_mode)) return EISDIR;
        return ::access(at.c_str(), X_OK) == 0 ? 0 : EACCES;
    };
    if (name.empty()) return Error{Code::NotFound, "the command is empty: name a program"};
    if (name.find('/') != std::string::npos) {
        const int why = look(name);
        if (why == 0) return name;
        if (why == EACCES) return Error{Code::Refused, fmt::format("{} is not executable (chmod +x)", name)};
        if (why == EISDIR) return Error{Code::Refused, fmt::format("{} is not a file", name)};
        return Error{Code::NotFound, fmt::format("no such program: {} (from the folder {})", name, cwd)};
    }
    std::string denied;
    for (const std::string& folder : split(path, ':')) {
        const std::string candidate = (folder.empty() ? std::string(".") : folder) + "/" + name;
        const int why = look(candidate);
        if (why == 0) return candidate;
        if (why == EACCES && denied.empty()) denied = candidate;
    }
    if (!denied.empty()) return Error{Code::Refused, fmt::format("{} is not executable (chmod +x)", denied)};
    return Error{Code::NotFound, fmt::format("no such program: {} is in none of the folders of PATH={}", name, path)};
}

}  // namespace gangline::runner
