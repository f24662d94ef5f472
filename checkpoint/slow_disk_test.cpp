// The limit of bytes a second: what a bucket says on a clock of the test's own, and that a lifted limit holds nobody.

#include "checkpoint/slow_disk.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/process.h"

namespace gangline::checkpoint {
namespace {

TEST(ATokenBucket, GivesABurstAtOnceAndThenItsRate) {
    TokenBucket bucket(1000, 500);
    TimePoint clock{seconds(10)};
    EXPECT_EQ(bucket.take(500, clock), Duration{0});
    EXPECT_EQ(bucket.take(100, clock), milliseconds(100));
    EXPECT_EQ(bucket.take(900, clock), seconds(1));  // behind the one before
    clock += seconds(1);
    EXPECT_EQ(bucket.take(0, clock), Duration{0});
    EXPECT_EQ(bucket.take(2000, clock), seconds(2));  // more than the burst: all of it is waited for
    clock += seconds(100);
    EXPECT_EQ(bucket.take(500, clock), Duration{0});  // rest earns the burst and no more
    EXPECT_EQ(bucket.take(1, clock), milliseconds(1));
}

TEST(ATokenBucket, NeverLetsMoreThroughThanRateTimesTimeAndTheBurst) {
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
        std::srand(static_cast<unsigned>(seed));
        const auto rate = static_cast<std::uint64_t>(1 + std::rand() % 100'000);
        const auto burst = static_cast<std::uint64_t>(std::rand() % 10'000);
        TokenBucket bucket(rate, burst);
        const TimePoint begun{seconds(1)};
        TimePoint clock = begun;
        double passed = 0;
        for (int i = 0; i < 1000; ++i) {
            const auto bytes = static_cast<std::uint64_t>(std::rand() % 5'000);
            clock += bucket.take(bytes, clock);
            passed += static_cast<double>(bytes);
            ASSERT_LE(passed, static_cast<double>(burst) + static_cast<double>(rate) * to_seconds(clock - begun) + 1);
            clock += milliseconds(std::rand() % 50);
        }
    }
}

// A mebibyte a second would take a minute: whoever stops the program does not wait for it.
TEST(ASlowDisk, WritesOnAtFullSpeedOnceItsLimitIsLifted) {
    const std::string path = (std::filesystem::temp_directory_path() / ("gangline-slow-" + random_hex(6))).string();
    constexpr std::size_t kBlock = 1u << 20;
    constexpr std::size_t kBlocks = 64;
    auto* const memory = static_cast<char*>(std::aligned_alloc(kDiskAlignment, kBlock));
    std::fill(memory, memory + kBlock, 'x');
    SlowDisk disk(kBlock);
    Result<void> written;
    std::thread saving([&] {
        const Fd fd(disk.open_at(AT_FDCWD, path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
        const auto writer = disk.writer(fd.get(), false);
        for (std::size_t i = 0; i < kBlocks && written; ++i) written = writer->write(i * kBlock, memory, kBlock);
        const auto finished = writer->finish();
        if (written) written = finished;
    });
    disk.lift();
    saving.join();
    EXPECT_TRUE(written.ok());
    EXPECT_EQ(std::filesystem::file_size(path), kBlock * kBlocks);
    std::filesystem::remove(path);
    std::free(memory);
}

}  // namespace
}  // namespace gangline::checkpoint
