// What saves cost a training loop that keeps all cores busy, for ./bench checkpoint: one JSON object a measurement; times in seconds, memory in bytes.
//   training_bench steps FOLDER MIB small|large ROUNDS     the state lies in small or large pages; each round measures every way of saving
//   training_bench memory FOLDER MIB SAVES                 what saving takes of memory, and how it grows
//
//   stall   save() and fence() together
//   extra   the steps from save() until the checkpoint counts, less as many without a save: the mean of those before and behind
//   cpu     processor time of the whole process in those steps, less that of as many without: other work on the machine hardly changes it
#include <fcntl.h>
#include <fmt/format.h>
#include <hdf5.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/handle.h"
#include "checkpoint/checksum.h"
#include "runner/worker/gang.h"

namespace {

using namespace gangline;
namespace fs = std::filesystem;

constexpr std::size_t kTensors = 16;
constexpr int kSteps = 2;      // at least, and as many without a save
constexpr int kMostSteps = 60;
constexpr double kStepSeconds = 1.0;
constexpr int kWarmUps = 4;    // layout, memory, retired files, and what the chooser wants to know

std::map<std::string, std::vector<double>> results;
void note(const std::string& what, double value) { results[what].push_back(value); }

[[noreturn]] void die(const std::string& what) {
    fmt::print(stderr, "training_bench: {}\n", what);
    std::_Exit(1);  // threads that train are left behind
}

double cpu_now_s() {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Forward and backward: every core has a thread of its own, which computes; the caller's only waits. Each operation needs the one before, so that a
// step is as long whatever shares the physical core with it, and longer by what is taken of its processor's time: that is what is measured here.
class Training {
  public:
    Training() {
        for (unsigned i = 0; i < cores_; ++i) {
            threads_.emplace_back([this, i] {
                cpu_set_t core;
                CPU_ZERO(&core);
                CPU_SET(i, &core);
                (void)::pthread_setaffinity_np(::pthread_self(), sizeof core, &core);  // refused: wherever it is put
                for (;;) {
                    begins_.arrive_and_wait();
                    if (is_over_) return;
                    compute(loops_);
                    ends_.arrive_and_wait();
                }
            });
        }
        // The shortest of some: other work on the machine makes a step longer, never shorter.
        constexpr std::uint64_t kSome = 20'000'000;
        loops_ = kSome;
        double least = step();
        for (int i = 0; i < 7; ++i) least = std::min(least, step());
        loops_ = static_cast<std::uint64_t>(static_cast<double>(kSome) * kStepSeconds / least);
    }
    ~Training() {
        is_over_ = true;
        begins_.arrive_and_wait();
        for (std::thread& thread : threads_) thread.join();
    }
    double step() {
        const double begun = now_s();
        begins_.arrive_and_wait();
        ends_.arrive_and_wait();
        return now_s() - begun;
    }
    struct Plain {  // a step
        double seconds = 0;
        double cpu_s = 0;
    };
    Plain steps() {
        const double begun = now_s();
        const double cpu = cpu_now_s();
        for (int i = 0; i < kSteps; ++i) (void)step();
        return {(now_s() - begun) / kSteps, (cpu_now_s() - cpu) / kSteps};
    }

  private:
    static void compute(std::uint64_t loops) {
        std::uint64_t value = loops;
        for (std::uint64_t i = 0; i < loops; ++i) {
            value = value * 6364136223846793005u + 1442695040888963407u;
            asm volatile("" : "+r"(value));
        }
    }
    const unsigned cores_ = std::max(1u, std::thread::hardware_concurrency());
    std::uint64_t loops_ = 0;  // changed between steps alone
    std::atomic<bool> is_over_{false};
    std::barrier<> begins_{static_cast<std::ptrdiff_t>(cores_) + 1};
    std::barrier<> ends_{static_cast<std::ptrdiff_t>(cores_) + 1};
    std::vector<std::thread> threads_;
};

struct State {
    State(std::size_t size, bool large) : bytes(size) {
        void* memory = nullptr;
        if (::posix_memalign(&memory, 2 << 20, bytes) != 0) die("no memory");
        (void)::madvise(memory, bytes, large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        std::memset(memory, 7, bytes);
        data = static_cast<char*>(memory);
    }
    ~State() { std::free(data); }
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    std::size_t each() const { return bytes / kTensors; }
    float* tensor(std::size_t i) const { return reinterpret_cast<float*>(data + i * each()); }

    std::size_t bytes;
    char* data;
};

// All cores, past the caches: what a copy of the state costs at least.
double copy_all(const State& to, const State& from) {
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    const double begun = now_s();
    std::vector<std::thread> threads;
    const std::size_t each = from.bytes / cores / 4096 * 4096;
    for (unsigned i = 0; i < cores; ++i) {
        threads.emplace_back([&, i] { checkpoint::copy_past_caches(to.data + i * each, from.data + i * each, i + 1 == cores ? from.bytes - i * each : each); });
    }
    for (std::thread& thread : threads) thread.join();
    return now_s() - begun;
}

// One way of saving amid the training.
struct Way {
    std::string name;
    std::function<void()> begin;
    std::function<void()> fence;
    std::function<bool()> is_over;
};

struct Cost {
    double stall = 0;
    double seconds = 0;
    double cpu_s = 0;
    int steps = 0;
};

Cost save_amid(const Way& way, Training& training) {
    Cost cost;
    const double cpu = cpu_now_s();
    double begun = now_s();
    way.begin();
    cost.stall = cost.seconds = now_s() - begun;
    while (cost.steps < kSteps || !way.is_over()) {
        if (cost.steps == kMostSteps) die(way.name + ": the save does not end");
        cost.seconds += training.step();
        if (cost.steps++ != 0) continue;
        begun = now_s();
        way.fence();
        cost.stall += now_s() - begun;
        cost.seconds += now_s() - begun;
    }
    cost.cpu_s = cpu_now_s() - cpu;
    return cost;
}

std::shared_ptr<Gang> join(const std::string& folder, const std::string& name, const char* copies, const State& state) {
    ::setenv("GANGLINE_CHECKPOINT_DIR", (folder + "/" + name).c_str(), 1);
    ::setenv("GANGLINE_CHECKPOINT_COPY", copies, 1);
    ::setenv("GANGLINE_CHECKPOINT_SCRUB", "0", 1);
    ::setenv("TORCHELASTIC_RUN_ID", name.c_str(), 1);
    auto joined = Gang::join();
    if (!joined) die(joined.error().message);
    auto gang = std::make_shared<Gang>(std::move(joined).value());
    for (std::size_t i = 0; i < kTensors; ++i) {
        const auto tracked = gang->track(fmt::format("layer{:02}/weight", i), state.tensor(i), {state.each() / sizeof(float)});
        if (!tracked) die(tracked.error().message);
    }
    return gang;
}

Way way_of(const std::string& name, const std::shared_ptr<Gang>& gang, SaveMode mode) {
    struct Run {
        std::uint64_t step = 0;
        std::unique_ptr<Save> save{};
    };
    auto run = std::make_shared<Run>();
    return {name, [=] { run->save = std::make_unique<Save>(gang->save(++run->step, mode)); }, [=] { gang->fence(); },
            [=] {
                if (!run->save->is_done()) return false;
                if (const auto saved = run->save->wait(); !saved) die(saved.error().message);
                return true;
            }};
}

// What a program does by itself: a copy by all cores, and a thread with the HDF5 library.
class H5Writer {
  public:
    H5Writer(std::string path, const State& state, const State& copy) : path_(std::move(path)), state_(state), copy_(copy) {}
    ~H5Writer() {
        if (thread_.joinable()) thread_.join();
    }
    void begin() {
        if (thread_.joinable()) thread_.join();
        ::unlink(path_.c_str());
        copy_all(copy_, state_);
        is_over_ = false;
        thread_ = std::thread([this] {
            write();
            is_over_ = true;
        });
    }
    bool is_over() const { return is_over_; }

  private:
    void write() const {
        const hid_t file = H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
        const hsize_t size = copy_.each() / sizeof(float);
        const hid_t space = H5Screate_simple(1, &size, nullptr);
        for (std::size_t i = 0; i < kTensors; ++i) {
            const hid_t dataset = H5Dcreate2(file, fmt::format("t{:02}", i).c_str(), H5T_NATIVE_FLOAT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
            if (H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, copy_.tensor(i)) < 0) die("H5Dwrite");
            H5Dclose(dataset);
        }
        H5Sclose(space);
        H5Fclose(file);
        const Fd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
        if (::fdatasync(fd.get()) != 0) die("fdatasync");
    }

    const std::string path_;
    const State& state_;
    const State& copy_;
    std::atomic<bool> is_over_{true};
    std::thread thread_;
};

void measure_steps(const std::string& folder, std::size_t bytes, bool in_large_pages, int rounds) {
    fs::create_directories(folder);
    const State state(bytes, in_large_pages);
    const State copy(bytes, true);
    std::map<std::string, std::shared_ptr<Gang>> gangs;
    std::vector<Way> ways;
    const auto add = [&](const std::string& name, const char* copies, SaveMode mode) {
        gangs[name] = join(folder, name, copies, state);
        ways.push_back(way_of(name, gangs[name], mode));
    };
    add("blocking", "auto", SaveMode::Now);
    add("lazy", "copy", SaveMode::Fenced);
    add("zero_copy", "straight", SaveMode::Fenced);
    add("auto", "auto", SaveMode::Fenced);
    H5Writer h5(folder + "/plain.h5", state, copy);
    ways.push_back({"h5_write", [&] { h5.begin(); }, [] {}, [&] { return h5.is_over(); }});
    Training training;
    for (const Way& way : ways) {
        for (int i = 0; i < (way.name == "h5_write" ? 1 : kWarmUps); ++i) (void)save_amid(way, training);
    }
    Training::Plain before = training.steps();
    for (int round = 0; round < rounds; ++round) {
        note("copy", copy_all(copy, state));
        for (std::size_t i = 0; i < ways.size(); ++i) {
            const Way& way = ways[(i + static_cast<std::size_t>(round)) % ways.size()];  // each is first in turn
            const Cost cost = save_amid(way, training);
            const Training::Plain behind = training.steps();
            note("step", behind.seconds);
            note("stall_" + way.name, cost.stall);
            note("extra_" + way.name, cost.seconds - cost.steps * (before.seconds + behind.seconds) / 2);
            note("cpu_" + way.name, cost.cpu_s - cost.steps * (before.cpu_s + behind.cpu_s) / 2);
            before = behind;
        }
    }
    for (const auto& [name, gang] : gangs) (void)gang->finish();
    ways.clear();
    gangs.clear();
    fs::remove_all(folder);
}

double kilobytes_of(const std::string& name) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with(name + ":")) return std::strtod(line.c_str() + name.size() + 1, nullptr);
    }
    die("no " + name + " in /proc/self/status");
}

void measure_memory(const std::string& folder, std::size_t bytes, int saves) {
    fs::create_directories(folder);
    const State state(bytes, true);
    const auto gang = join(folder, "memory", "auto", state);
    std::uint64_t step = 0;
    const auto save = [&](int times) {
        for (int i = 0; i < times; ++i) {
            ++step;
            const Save one = gang->save(step, step % 2 == 0 ? SaveMode::Fenced : SaveMode::Now);
            gang->fence();
            if (const auto saved = one.wait(); !saved) die(saved.error().message);
        }
    };
    std::ofstream("/proc/self/clear_refs") << 5;  // the peak from here on
    const double before = kilobytes_of("VmRSS");
    save(50);  // until the allocator has what it wants
    const double first = kilobytes_of("RssAnon");
    save(saves);
    note("growth", (kilobytes_of("RssAnon") - first) * 1024);
    note("peak", (kilobytes_of("VmHWM") - before) * 1024);
    note("state", static_cast<double>(bytes));
    (void)gang->finish();
    fs::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {
    const std::string_view what = argc > 1 ? argv[1] : "";
    if (what == "steps" && argc == 6) {
        measure_steps(argv[2], std::strtoul(argv[3], nullptr, 10) << 20, std::string_view(argv[4]) == "large", std::atoi(argv[5]));
    } else if (what == "memory" && argc == 5) {
        measure_memory(argv[2], std::strtoul(argv[3], nullptr, 10) << 20, std::atoi(argv[4]));
    } else {
        fmt::print(stderr, "training_bench steps FOLDER MIB small|large ROUNDS | memory FOLDER MIB SAVES\n");
        return 2;
    }
    for (const auto& [name, values] : results) fmt::print("{{\"what\": \"{}\", \"values\": [{}]}}\n", name, fmt::join(values, ", "));
    return 0;
}
