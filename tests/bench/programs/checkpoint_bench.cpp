// The checkpoint library's own times, for ./bench checkpoint: one JSON object a measurement; times in seconds, rates in bytes a second.
//   checkpoint_bench save FOLDER MIB RANKS ROUNDS     durable saves through the whole path into fresh and into recycled files, raw O_DIRECT beside
//   checkpoint_bench copy MIB ROUNDS                  copies into the image with and without checksums, and the stall of each kind of save
//   checkpoint_bench restore FOLDER MIB ROUNDS        cold restore with verification, raw O_DIRECT read and H5Dread beside; 4 -> 3 and 3 -> 4 ranks
//   checkpoint_bench small FOLDER TENSORS ROUNDS      tensors of 10 kB, H5Dcreate + H5Dwrite and raw beside
//   checkpoint_bench commit FOLDER SHARDS ROUNDS      last shard durable -> checkpoint durable
#include <fcntl.h>
#include <fmt/format.h>
#include <hdf5.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "checkpoint/disk.h"
#include "checkpoint/image.h"
#include "checkpoint/shard.h"
#include "checkpoint/store.h"

namespace {

using namespace gangline;
using namespace gangline::checkpoint;
namespace fs = std::filesystem;

std::map<std::string, std::vector<double>> results;

void note(const std::string& what, double value) { results[what].push_back(value); }

void print_results() {
    for (const auto& [what, values] : results) fmt::print("{{\"what\": \"{}\", \"values\": [{}]}}\n", what, fmt::join(values, ", "));
}

[[noreturn]] void die(const std::string& what) {
    fmt::print(stderr, "checkpoint_bench: {}\n", what);
    std::exit(1);
}

template <class T>
T must(Result<T> result) {
    if (!result) die(result.error().message);
    if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

class Watch {
  public:
    double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count(); }
    double cpu_seconds() const { return cpu_now() - cpu_; }

  private:
    static double cpu_now() {
        rusage use{};
        ::getrusage(RUSAGE_SELF, &use);
        const auto of = [](const timeval& time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6; };
        return of(use.ru_utime) + of(use.ru_stime);
    }
    std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
    double cpu_ = cpu_now();
};

void drop_caches() {
    ::sync();
    const int fd = ::open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && ::write(fd, "3", 1) != 1) die("cannot drop the page cache");
    if (fd >= 0) ::close(fd);
}

// Memory that is touched, and differs from block to block.
std::vector<float> values_of(std::size_t bytes, std::uint32_t seed) {
    std::vector<float> values(bytes / 4);
    std::uint32_t state = seed * 2654435761u + 1;
    for (float& value : values) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<float>(state >> 8);
    }
    return values;
}

// One rank's part of a model of 64 tensors.
struct RankState {
    std::vector<std::vector<float>> memory;
    std::vector<Tensor> tensors;
    ShardImage image;
};

std::unique_ptr<RankState> state_of(std::size_t bytes, std::uint32_t rank, std::uint32_t world, std::size_t count = 64) {
    auto state = std::make_unique<RankState>();
    for (std::size_t i = 0; i < count; ++i) {
        state->memory.push_back(values_of(bytes / count, rank * 1000 + static_cast<std::uint32_t>(i)));
        const std::uint64_t rows = state->memory.back().size() / 1024;
        state->tensors.push_back({fmt::format("layer{:03}/weight", i), DType::F32, Policy::Sliced, {rows * world, 1024}, {rows * rank, 0}, {rows, 1024}, state->memory.back().data()});
    }
    return state;
}

// A whole checkpoint: each rank on a thread, then what the committer does.
struct Saved {
    double seconds = 0;
    double commit_s = 0;
    double cpu_s = 0;
};

Merger merger;  // as the committer keeps one

enum class Copied { During, Before };  // the time

Saved save(const Store& store, std::vector<std::unique_ptr<RankState>>& ranks, std::uint64_t step, Copied copied = Copied::During) {
    const auto world = static_cast<std::uint32_t>(ranks.size());
    const CheckpointId id{step, 1};
    std::vector<Sha256> parts(world);
    const auto begin = [&](std::uint32_t rank) {
        RankState& state = *ranks[rank];
        must(state.image.prepare({7, step, 1, rank, world, state.tensors}));
        must(state.image.begin(step, state.tensors));
    };
    for (std::uint32_t rank = 0; rank < world && copied == Copied::Before; ++rank) {
        begin(rank);
        ranks[rank]->image.wait_copied();
    }
    const Watch watch;
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
        threads.emplace_back([&, rank] {
            RankState& state = *ranks[rank];
            const ShardPlan plan{7, step, 1, rank, world, state.tensors};
            if (copied == Copied::During) begin(rank);
            const Fd folder = must(store.temporary(id));
            const Part part = must(write_image(store.disk(), folder.get(), state.image, plan, store.recycle()));
            parts[rank] = must(store.write_part(id, part)).digest;
        });
    }
    for (std::thread& thread : threads) thread.join();
    const Watch commit;
    const Sealed manifest = must(store.write_manifest(id, parts, merger));
    must(store.publish(id, manifest.digest));
    return {watch.seconds(), commit.seconds(), watch.cpu_seconds()};
}

double raw_write(const std::string& path, const char* bytes, std::size_t size) {
    ::unlink(path.c_str());
    const Watch watch;
    const Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
    if (!fd || ::fallocate(fd.get(), 0, 0, static_cast<off_t>(size)) != 0) die("cannot make " + path);
    const auto writer = real_disk().writer(fd.get(), true);
    for (std::size_t at = 0; at < size; at += kRunBytes) must(writer->write(at, bytes + at, std::min<std::size_t>(kRunBytes, size - at)));
    must(writer->finish());
    if (::fdatasync(fd.get()) != 0) die("fdatasync");
    return watch.seconds();
}

// The disk is not equally fast everywhere: both are first in turn, so that each has the places that the deleted files of the round before left.
template <class A, class B>
void in_turn(int round, const A& a, const B& b) {
    if (round % 2 == 0) a();
    b();
    if (round % 2 != 0) a();
}

double raw_read(const std::string& path, char* memory, std::size_t size) {
    constexpr std::size_t kBytes = 2 << 20;
    constexpr std::size_t kThreads = 4;
    drop_caches();
    const Watch watch;
    const Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    const auto read = [&](std::size_t from) {
        for (std::size_t at = from; at < size; at += kThreads * kBytes) {
            const std::size_t here = std::min(kBytes, size - at);
            if (::pread(fd.get(), memory + at, here, static_cast<off_t>(at)) != static_cast<ssize_t>(here)) die("cannot read " + path);
        }
    };
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < kThreads; ++i) others.emplace_back(read, i * kBytes);
    read(0);
    for (std::thread& other : others) other.join();
    return watch.seconds();
}

char* aligned(std::size_t size) {
    void* memory = nullptr;
    if (::posix_memalign(&memory, 2 << 20, size) != 0) die("no memory");
    (void)::madvise(memory, size, MADV_HUGEPAGE);  // a disk takes large pages with less ado
    std::memset(memory, 1, size);
    return static_cast<char*>(memory);
}

void measure_save(const std::string& folder, std::size_t bytes, std::uint32_t world, int rounds) {
    fs::create_directories(folder);
    std::vector<std::unique_ptr<RankState>> ranks;
    for (std::uint32_t rank = 0; rank < world; ++rank) ranks.push_back(state_of(bytes / world, rank, world));
    char* const raw = aligned(bytes);
    const std::string path = folder + "/raw";
    const Store store = must(Store::open(folder + "/root"));
    std::uint64_t step = 1;
    note("first", save(store, ranks, step).seconds);  // layout and memory with it
    for (int round = 0; round < rounds; ++round) {
        store.empty_pool();
        for (const CheckpointId& id : store.published()) fs::remove_all(folder + "/root/" + folder_name(id));
        ::unlink(path.c_str());
        ::sync();
        Saved fresh;
        in_turn(round, [&] { note("raw", raw_write(path, raw, bytes)); }, [&] { fresh = save(store, ranks, ++step); });
        note("fresh", fresh.seconds);
        note("cpu_s_per_gb", fresh.cpu_s / (static_cast<double>(bytes) / 1e9));
        note("commit", fresh.commit_s);
        (void)save(store, ranks, ++step);
        store.delete_old({7, {step, 1}, {}});  // the one before goes into the pool
        const Saved recycled = save(store, ranks, ++step);
        note("recycled", recycled.seconds);
        note("recycled_cpu_s_per_gb", recycled.cpu_s / (static_cast<double>(bytes) / 1e9));
        note("written_cpu_s_per_gb", save(store, ranks, ++step, Copied::Before).cpu_s / (static_cast<double>(bytes) / 1e9));
    }
    fs::remove_all(folder);
    std::free(raw);
}

void measure_copy(std::size_t bytes, int rounds) {
    auto state = state_of(bytes, 0, 1);
    const ShardPlan plan{7, 1, 1, 0, 1, state->tensors};
    must(state->image.prepare(plan));
    char* const to = aligned(bytes);
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    // All cores, a block at a time, as the image is copied.
    const auto by_all = [&](const auto& one) {
        const Watch watch;
        std::vector<std::thread> others;
        for (unsigned i = 1; i < cores; ++i) others.emplace_back(one, i);
        one(0u);
        for (std::thread& other : others) other.join();
        return watch.seconds();
    };
    for (int round = 0; round < rounds; ++round) {
        const auto each = [&](const auto& copy) {
            return by_all([&](unsigned part) {
                for (std::size_t i = part; i < state->memory.size(); i += cores) copy(to + i * (bytes / 64), state->memory[i].data(), state->memory[i].size() * 4);
            });
        };
        note("copy", each([](char* a, const float* b, std::size_t size) { copy_past_caches(a, b, size); }));
        note("copy_with_crc", each([](char* a, const float* b, std::size_t size) { (void)copy_with_crc32c(a, b, size); }));
        must(state->image.begin(static_cast<std::uint64_t>(round) + 2, state->tensors));
        note("image", by_all([&](unsigned) { state->image.wait_copied(); }));
        const Watch prepared;
        must(state->image.prepare(plan));
        note("prepare_again", prepared.seconds());
    }
    std::free(to);
}

void h5_read(const std::string& path, std::vector<RankState*> into) {
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    for (const Tensor& tensor : into.front()->tensors) {
        const hid_t dataset = H5Dopen2(file, tensor.name.c_str(), H5P_DEFAULT);
        if (H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.data) < 0) die("H5Dread");
        H5Dclose(dataset);
    }
    H5Fclose(file);
}

void measure_restore(const std::string& folder, std::size_t bytes, int rounds) {
    fs::create_directories(folder);
    const Store store = must(Store::open(folder + "/root"));
    std::vector<std::unique_ptr<RankState>> one;
    one.push_back(state_of(bytes, 0, 1));
    (void)save(store, one, 1);
    char* const raw = aligned(bytes);
    (void)raw_write(folder + "/raw", raw, bytes);
    std::map<std::uint32_t, std::uint64_t> step_of;
    for (const std::uint32_t world : {3u, 4u}) {
        std::vector<std::unique_ptr<RankState>> ranks;
        for (std::uint32_t rank = 0; rank < world; ++rank) {  // 48 rows x 1024 a tensor and rank: the global shape divides by 3 and 4
            auto state = std::make_unique<RankState>();
            const std::uint64_t all_rows = bytes / 64 / 4096 / 12 * 12;
            const std::uint64_t rows = all_rows / world;
            for (std::uint32_t i = 0; i < 64; ++i) {
                state->memory.push_back(values_of(rows * 4096, rank * 100 + i));
                state->tensors.push_back({fmt::format("t{:02}", i), DType::F32, Policy::Sliced, {all_rows, 1024}, {rows * rank, 0}, {rows, 1024}, state->memory.back().data()});
            }
            ranks.push_back(std::move(state));
        }
        step_of[world] = 10 + world;
        (void)save(store, ranks, step_of[world]);
    }
    const auto restore_as = [&](std::uint32_t saved, std::uint32_t world) {
        auto state = std::make_unique<RankState>();
        const std::uint64_t all_rows = bytes / 64 / 4096 / 12 * 12;
        const std::uint64_t rows = all_rows / world;
        for (std::uint32_t i = 0; i < 64; ++i) {
            state->memory.push_back(values_of(rows * 4096, i));
            state->tensors.push_back({fmt::format("t{:02}", i), DType::F32, Policy::Sliced, {all_rows, 1024}, {rows, 0}, {rows, 1024}, state->memory.back().data()});
        }
        drop_caches();
        Checkpoint checkpoint = must(store.open_published({step_of[saved], 1}));
        const Watch watch;
        must(checkpoint.restore(state->tensors, 1, world));
        return static_cast<double>(rows * 4096 * 64) / watch.seconds();
    };
    for (int round = 0; round < rounds; ++round) {
        const Watch raw_watch;
        note("raw_read", static_cast<double>(bytes) / raw_read(folder + "/raw", raw, bytes));
        note("raw_read_cpu", raw_watch.cpu_seconds());
        drop_caches();
        {
            Checkpoint checkpoint = must(store.open_published({1, 1}));
            const Watch watch;
            must(checkpoint.restore(one.front()->tensors, 0, 1));
            note("restore", static_cast<double>(bytes) / watch.seconds());
            note("restore_cpu", watch.cpu_seconds());
        }
        drop_caches();
        {
            const Watch watch;
            h5_read(folder + "/root/" + folder_name({1, 1}) + "/" + shard_name(0, 1), {one.front().get()});
            note("h5_read", static_cast<double>(bytes) / watch.seconds());
            note("h5_read_cpu", watch.cpu_seconds());
        }
        note("same_4", restore_as(4, 4));
        note("from_4_to_3", restore_as(4, 3));
        note("same_3", restore_as(3, 3));
        note("from_3_to_4", restore_as(3, 4));
    }
    std::free(raw);
    fs::remove_all(folder);
}

void measure_small(const std::string& folder, std::size_t count, int rounds) {
    fs::create_directories(folder);
    constexpr std::size_t kBytes = 10'004;
    const Store store = must(Store::open(folder + "/root"));
    std::vector<std::unique_ptr<RankState>> one;
    one.push_back(std::make_unique<RankState>());
    for (std::size_t i = 0; i < count; ++i) {
        one.front()->memory.push_back(values_of(kBytes, static_cast<std::uint32_t>(i)));
        one.front()->tensors.push_back({fmt::format("g{:03}/t{:05}", i / 100, i), DType::F32, Policy::Sliced, {kBytes / 4}, {0}, {kBytes / 4}, one.front()->memory.back().data()});
    }
    char* const raw = aligned(count * 12'288);
    const std::size_t raw_bytes = (count * kBytes + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
    const Watch layout;
    (void)save(store, one, 1);
    note("first_save", layout.seconds());
    for (int round = 0; round < rounds; ++round) {
        for (const CheckpointId& id : store.published()) fs::remove_all(folder + "/root/" + folder_name(id));
        ::unlink((folder + "/raw").c_str());
        ::sync();
        const Watch prepare;
        must(one.front()->image.prepare({7, 1, 1, 0, 1, one.front()->tensors}));
        note("prepare_again", prepare.seconds());
        in_turn(round, [&] { note("raw", raw_write(folder + "/raw", raw, raw_bytes)); },
                [&] { note("small", save(store, one, static_cast<std::uint64_t>(round) + 2).seconds); });
        const std::string path = folder + "/plain.h5";
        ::unlink(path.c_str());
        const Watch watch;
        const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
        const hsize_t size = kBytes / 4;
        const hid_t space = H5Screate_simple(1, &size, nullptr);
        for (const Tensor& tensor : one.front()->tensors) {
            std::string name = tensor.name;
            std::replace(name.begin(), name.end(), '/', '_');
            const hid_t dataset = H5Dcreate2(file, name.c_str(), H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
            H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.data);
            H5Dclose(dataset);
        }
        H5Sclose(space);
        H5Fclose(file);
        const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        if (::fdatasync(fd.get()) != 0) die("fdatasync");
        note("h5_write", watch.seconds());
    }
    std::free(raw);
    fs::remove_all(folder);
}

void measure_commit(const std::string& folder, std::uint32_t shards, int rounds) {
    fs::create_directories(folder);
    std::vector<std::unique_ptr<RankState>> ranks;
    for (std::uint32_t rank = 0; rank < shards; ++rank) ranks.push_back(state_of(1 << 20, rank, shards));
    const Store store = must(Store::open(folder + "/root"));
    for (int round = 0; round < rounds; ++round) {
        const Saved saved = save(store, ranks, static_cast<std::uint64_t>(round) + 1);
        if (round != 0) note("commit", saved.commit_s);
        store.delete_old({7, {static_cast<std::uint64_t>(round) + 1, 1}, {}});
    }
    fs::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {
    const auto number = [&](int at) { return at < argc ? std::strtoul(argv[at], nullptr, 10) : 0; };
    const std::string_view what = argc > 1 ? argv[1] : "";
    if (what == "copy") {
        measure_copy(number(2) << 20, static_cast<int>(number(3)));
    } else if (what == "save" && argc == 6) {
        measure_save(argv[2], number(3) << 20, static_cast<std::uint32_t>(number(4)), static_cast<int>(number(5)));
    } else if (what == "restore" && argc == 5) {
        measure_restore(argv[2], number(3) << 20, static_cast<int>(number(4)));
    } else if (what == "small" && argc == 5) {
        measure_small(argv[2], number(3), static_cast<int>(number(4)));
    } else if (what == "commit" && argc == 5) {
        measure_commit(argv[2], static_cast<std::uint32_t>(number(3)), static_cast<int>(number(4)));
    } else {
        fmt::print(stderr, "checkpoint_bench save FOLDER MIB RANKS ROUNDS | copy MIB ROUNDS | restore FOLDER MIB ROUNDS | small FOLDER TENSORS ROUNDS | commit FOLDER SHARDS ROUNDS\n");
        return 2;
    }
    print_results();
    return 0;
}
