#include "runner/shepherd/progress_pages.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstring>

#include <fmt/format.h>

#include "base/process.h"
#include "base/progress_page.h"

namespace gangline::runner {
namespace {

constexpr double kNanosecondsASecond = 1e9;

template <class T>
T field(const std::byte* page, std::size_t offset) {
    T value;
    std::memcpy(&value, page + offset, sizeof value);
    return value;
}

// A program's page may hold anything: only numbers come through.
double number(std::uint64_t bits) {
    const auto value = std::bit_cast<double>(bits);
    return std::isfinite(value) ? value : 0;
}

}  // namespace

std::string shared_folder_of(const std::string& cluster, const std::string& node, const proto::AttemptId& id) {
    return fmt::format("/dev/shm/gangline-{}-{}-{}-{}", cluster, node, id.job(), id.attempt());
}

Result<void> make_shared_folder(const std::string& path) {
    if (::mkdir(path.c_str(), 0700) == 0) return {};
    if (errno != EEXIST) return errno_error("cannot make the folder " + path);
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) return errno_error("cannot look at " + path);
    if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) {
        return Error{Code::Refused, fmt::format("{} exists and is not ours (uid {}): delete it", path, info.st_uid)};
    }
    if (auto removed = remove_tree(path); !removed) return removed;
    if (::mkdir(path.c_str(), 0700) != 0) return errno_error("cannot make the folder " + path);
    return {};
}

Result<RankPage> RankPage::create(const std::string& path) {
    RankPage page;
    page.fd_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!page.fd_) return errno_error("cannot make the progress page " + path);
    // Reserved, not only sized: on a full tmpfs the rank's first store would otherwise be a SIGBUS.
    if (const int error = ::posix_fallocate(page.fd_.get(), 0, kProgressBytes); error != 0) {
        errno = error;
        return errno_error("cannot reserve the progress page " + path);
    }
    return page;
}

std::optional<proto::Progress> RankPage::read() const {
    alignas(ProgressPage) std::byte page[sizeof(ProgressPage)];
    if (::pread(fd_.get(), page, sizeof page, 0) != static_cast<ssize_t>(sizeof page)) return std::nullopt;
    using Page = ProgressPage;
    if (field<std::uint32_t>(page, offsetof(Page, magic)) != kProgressMagic) return std::nullopt;
    if (field<std::uint32_t>(page, offsetof(Page, version)) != kProgressVersion) return std::nullopt;
    const auto u64 = [&](std::size_t offset) { return field<std::uint64_t>(page, offset); };
    const auto seconds_at = [&](std::size_t offset) { return static_cast<double>(u64(offset)) / kNanosecondsASecond; };
    proto::Progress progress;
    progress.set_step(u64(offsetof(Page, step)));
    progress.set_total_steps(u64(offsetof(Page, total_steps)));
    progress.set_first_step(u64(offsetof(Page, first_step)));
    progress.set_beat(u64(offsetof(Page, beat)));
    progress.set_samples(number(u64(offsetof(Page, samples))));
    progress.set_flops(number(u64(offsetof(Page, flops))));
    progress.set_loss(number(u64(offsetof(Page, loss))));
    progress.set_data_wait_s(seconds_at(offsetof(Page, data_wait_ns)));
    progress.set_communication_s(seconds_at(offsetof(Page, communication_ns)));
    progress.set_checkpoint_stall_s(seconds_at(offsetof(Page, checkpoint_stall_ns)));
    progress.set_restore_s(seconds_at(offsetof(Page, restore_ns)));
    progress.set_step_s(seconds_at(offsetof(Page, step_ns)));
    const char* phase = reinterpret_cast<const char*>(page + offsetof(Page, phase));
    for (const char* c = phase; c != phase + sizeof(Page::phase) && *c >= 0x20 && *c < 0x7f; ++c) progress.mutable_phase()->push_back(*c);
    return progress;
}

}  // namespace gangline::runner
