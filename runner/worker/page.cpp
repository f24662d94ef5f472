#include "runner/worker/page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/handle.h"

namespace gangline {
namespace {

void put(std::atomic<std::uint64_t>& place, std::uint64_t value) { place.store(value, std::memory_order_relaxed); }
void put(std::atomic<std::uint64_t>& place, double value) { put(place, std::bit_cast<std::uint64_t>(value)); }

}  // namespace

void Page::Unmap::operator()(ProgressPage* page) const { ::munmap(page, kProgressBytes); }

Result<Page> Page::open(const std::string& path, std::uint32_t rank, std::uint32_t attempt) {
    void* memory = MAP_FAILED;
    if (path.empty()) {
        memory = ::mmap(nullptr, kProgressBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    } else {
        const Fd fd(::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
        struct stat status {};
        if (!fd || ::fstat(fd.get(), &status) != 0) return errno_error("cannot open the progress page " + path, Code::Unavailable);
        if (status.st_size < static_cast<off_t>(kProgressBytes)) {  // touching it would be SIGBUS
            return Error{Code::Unavailable, fmt::format("the progress page {} has {} bytes, not {}", path, status.st_size, kProgressBytes)};
        }
        memory = ::mmap(nullptr, kProgressBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    }
    if (memory == MAP_FAILED) return errno_error("cannot map the progress page " + path, Code::Unavailable);
    auto* page = static_cast<ProgressPage*>(memory);
    page->rank.store(rank, std::memory_order_relaxed);
    page->attempt.store(attempt, std::memory_order_relaxed);
    page->version.store(kProgressVersion, std::memory_order_relaxed);
    page->magic.store(kProgressMagic, std::memory_order_release);
    Page result(page);
    result.set_phase("join");
    return result;
}

void Page::beat() { page_->beat.store(page_->beat.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

void Page::step(std::uint64_t step, double samples, double flops, double loss, TimePoint now) {
    samples_ += samples;
    flops_ += flops;
    put(page_->step, step);
    put(page_->samples, samples_);
    put(page_->flops, flops_);
    put(page_->loss, loss);
    if (step_begun_ != TimePoint{}) {
        const auto spent = static_cast<std::uint64_t>((now - step_begun_).count());
        put(page_->step_ns, page_->step_ns.load(std::memory_order_relaxed) + spent);
    }
    step_begun_ = now;
    beat();
}

void Page::set(Counter counter, std::uint64_t value) {
    put((*page_).*counter, value);
    beat();
}

void Page::add(Counter counter, Duration time) {
    std::atomic<std::uint64_t>& place = (*page_).*counter;
    put(place, place.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), 0)));
    beat();
}

void Page::set_phase(std::string_view phase) {
    const std::size_t size = std::min(phase.size(), sizeof page_->phase - 1);
    std::memcpy(page_->phase, phase.data(), size);
    std::memset(page_->phase + size, 0, sizeof page_->phase - size);
    beat();
}

}  // namespace gangline
