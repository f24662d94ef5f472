// What saves cost a training loop that keeps all cores busy, for ./bench checkpoint: one JSON object a measurement; times in seconds.
//   training_bench FOLDER MIB small|large ROUNDS     the state lies in small or large pages; each round measures every mode
//
//   stall   save() and fence() together      extra   three steps with a save in the first, less three steps without one
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checksum.h"
#include "runner/worker/gang.h"

namespace {

using namespace gangline;
namespace fs = std::filesystem;

constexpr std::size_t kTensors = 64;
constexpr int kSteps = 3;
constexpr double kStepSeconds = 0.35;

std::map<std::string, std::vector<double>> results;
void note(const std::string& what, double value) { results[what].push_back(value); }

[[noreturn]] void die(const std::string& what) {
    fmt::print(stderr, "training_bench: {}\n", what);
    std::exit(1);
}

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Forward and backward: every core computes on numbers that stay in its cache.
class Training {
  public:
    Training() {
        const std::uint64_t some = 20'000;
        const double begun = now_s();
        compute(some);
        loops_ = static_cast<std::uint64_t>(static_cast<double>(some) * kStepSeconds / (now_s() - begun));
        for (unsigned i = 1; i < cores_; ++i) {
            threads_.emplace_back([this] {
                for (;;) {
                    begins_.arrive_and_wait();
                    if (is_over_) return;
                    compute(loops_);
                    ends_.arrive_and_wait();
                }
            });
        }
    }
    ~Training() {
        is_over_ = true;
        begins_.arrive_and_wait();
        for (std::thread& thread : threads_) thread.join();
    }
    double step() {
        const double begun = now_s();
        begins_.arrive_and_wait();
        compute(loops_);
        ends_.arrive_and_wait();
        return now_s() - begun;
    }

  private:
    static void compute(std::uint64_t loops) {
        std::vector<float> a(1024, 1.0f);
        for (std::uint64_t loop = 0; loop < loops; ++loop) {
            for (float& value : a) value = value * 0.999f + 0.001f;
            asm volatile("" ::"r"(a.data()) : "memory");
        }
    }
    const unsigned cores_ = std::max(1u, std::thread::hardware_concurrency());
    std::uint64_t loops_ = 0;
    std::atomic<bool> is_over_{false};
    std::barrier<> begins_{static_cast<std::ptrdiff_t>(cores_)};
    std::barrier<> ends_{static_cast<std::ptrdiff_t>(cores_)};
    std::vector<std::thread> threads_;
};

struct Mode {
    std::string name;
    SaveMode save = SaveMode::Fenced;
    std::string wish;
    std::unique_ptr<Gang> gang{};
    std::uint64_t saved = 0;
};

std::unique_ptr<Gang> join(const std::string& folder, const Mode& mode, char* state, std::size_t bytes) {
    ::setenv("GANGLINE_CHECKPOINT_DIR", (folder + "/" + mode.name).c_str(), 1);
    ::setenv("GANGLINE_CHECKPOINT_COPY", mode.wish.c_str(), 1);
    ::setenv("GANGLINE_CHECKPOINT_SCRUB", "0", 1);
    ::setenv("TORCHELASTIC_RUN_ID", mode.name.c_str(), 1);
    auto joined = Gang::join();
    if (!joined) die(joined.error().message);
    auto gang = std::make_unique<Gang>(std::move(joined).value());
    for (std::size_t i = 0; i < kTensors; ++i) {
        const auto tracked = gang->track(fmt::format("layer{:02}/weight", i), reinterpret_cast<float*>(state + i * (bytes / kTensors)), {bytes / kTensors / 4});
        if (!tracked) die(tracked.error().message);
    }
    return gang;
}

// All cores, past the caches: what a copy of the state costs at least.
double copy_all(char* to, const char* from, std::size_t bytes) {
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    const double begun = now_s();
    std::vector<std::thread> threads;
    const std::size_t each = bytes / cores / 4096 * 4096;
    for (unsigned i = 0; i < cores; ++i) threads.emplace_back([=] { checkpoint::copy_past_caches(to + i * each, from + i * each, i + 1 == cores ? bytes - i * each : each); });
    for (std::thread& thread : threads) thread.join();
    return now_s() - begun;
}

void save_amid(Mode& mode, Training& training, double plain_step) {
    double total = 0;
    double stall = now_s();
    const Save save = mode.gang->save(++mode.saved, mode.save);
    stall = now_s() - stall;
    total += stall;
    for (int step = 0; step < kSteps; ++step) {
        total += training.step();
        if (step != 0) continue;
        const double fence = now_s();
        mode.gang->fence();
        stall += now_s() - fence;
        total += now_s() - fence;
    }
    if (const auto saved = save.wait(); !saved) die(saved.error().message);
    note("stall_" + mode.name, stall);
    note("extra_" + mode.name, total - kSteps * plain_step);
}

void measure(const std::string& folder, std::size_t bytes, bool in_large_pages, int rounds) {
    fs::create_directories(folder);
    const auto take = [&](bool large) {
        void* memory = nullptr;
        if (::posix_memalign(&memory, 2 << 20, bytes) != 0) die("no memory");
        (void)::madvise(memory, bytes, large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        std::memset(memory, 7, bytes);
        return static_cast<char*>(memory);
    };
    char* const state = take(in_large_pages);
    char* const copy = take(true);
    std::vector<Mode> modes;
    modes.push_back({"blocking", SaveMode::Now, "auto"});
    modes.push_back({"lazy", SaveMode::Fenced, "copy"});
    modes.push_back({"zero_copy", SaveMode::Fenced, "straight"});
    modes.push_back({"auto", SaveMode::Fenced, "auto"});
    for (Mode& mode : modes) mode.gang = join(folder, mode, state, bytes);
    Training training;
    for (Mode& mode : modes) {
        for (int i = 0; i < 4; ++i) save_amid(mode, training, 0);  // layout, memory, retired files, and what the chooser wants to know
    }
    results.clear();
    for (int round = 0; round < rounds; ++round) {
        for (Mode& mode : modes) {
            double plain = 0;
            for (int i = 0; i < kSteps; ++i) plain += training.step();
            note("step", plain / kSteps);
            note("copy", copy_all(copy, state, bytes));
            save_amid(mode, training, plain / kSteps);
        }
    }
    for (Mode& mode : modes) (void)mode.gang->finish();
    modes.clear();
    fs::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        fmt::print(stderr, "training_bench FOLDER MIB small|large ROUNDS\n");
        return 2;
    }
    measure(argv[1], std::strtoul(argv[2], nullptr, 10) << 20, std::string_view(argv[3]) == "large", std::atoi(argv[4]));
    for (const auto& [what, values] : results) fmt::print("{{\"what\": \"{}\", \"values\": [{}]}}\n", what, fmt::join(values, ", "));
    return 0;
}
