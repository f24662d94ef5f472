#include "runner/worker/priority.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gangline {
namespace {

// ioprio_set(2) has no wrapper in the C library.
constexpr int kThisThread = 1;  // IOPRIO_WHO_PROCESS with number 0
constexpr int kClassShift = 13;
constexpr int kBestEffort = 2;
constexpr int kIdle = 3;
constexpr int kLastOfEight = 7;
constexpr int kNicest = 19;

void set_io_class(int io_class, int level) { (void)::syscall(SYS_ioprio_set, kThisThread, 0, io_class << kClassShift | level); }

}  // namespace

void only_when_idle() {
    (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNicest);
    set_io_class(kIdle, 0);
}

void behind_others_on_disk() { set_io_class(kBestEffort, kLastOfEight); }

}  // namespace gangline
