#pragma once
// The progress page: one 4 KiB shared-memory page a rank, written by the worker library without a system call, read by
// the shepherd. The file is made by the shepherd before the rank starts (path in GANGLINE_PROGRESS) on tmpfs.
//
// Writer: the rank alone. All fields are relaxed atomics; `beat` is stored last with release and read first with
// acquire. Units: *_ns nanoseconds since the rank started; doubles are stored as their bits.

#include <atomic>
#include <bit>
#include <cstdint>

namespace gangline {

struct ProgressPage {
    std::atomic<std::uint32_t> magic;      // kProgressMagic once the library has joined
    std::atomic<std::uint32_t> version;
    std::atomic<std::uint32_t> rank;
    std::atomic<std::uint32_t> attempt;
    std::atomic<std::uint64_t> beat;       // rises at every call into the library
    std::atomic<std::uint64_t> step;
    std::atomic<std::uint64_t> total_steps;
    std::atomic<std::uint64_t> first_step; // where this attempt resumed
    std::atomic<std::uint64_t> collective; // sequence number of the last collective entered
    std::atomic<std::uint64_t> samples;    // double bits
    std::atomic<std::uint64_t> flops;      // double bits
    std::atomic<std::uint64_t> loss;       // double bits
    std::atomic<std::uint64_t> step_ns;
    std::atomic<std::uint64_t> data_wait_ns;
    std::atomic<std::uint64_t> communication_ns;
    std::atomic<std::uint64_t> checkpoint_stall_ns;
    std::atomic<std::uint64_t> restore_ns;
    std::atomic<std::uint64_t> finished;   // 1: the library's clean end
    char phase[64];                        // NUL-terminated, rewritten rarely; a torn read shows a torn word, no more
};
static_assert(sizeof(ProgressPage) <= 4096);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

inline constexpr std::uint32_t kProgressMagic = 0x47505047;  // "GPPG"
inline constexpr std::uint32_t kProgressVersion = 1;
inline constexpr std::size_t kProgressBytes = 4096;

}  // namespace gangline
