// Shards as files: every type, read back by us and by h5py, which knows nothing of us; a full disk; a killed writer.

#include "checkpoint/shard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include <fmt/format.h>

#include "base/process.h"
#include "checkpoint/store.h"

namespace gangline::checkpoint {
namespace {

namespace fs = std::filesystem;

class AShard : public ::testing::Test {
  protected:
    AShard() : root_((fs::temp_directory_path() / ("gangline-shard-" + random_hex(6))).string()) { fs::create_directories(root_); }
    ~AShard() override {
        ::umount2((root_ + "/disk").c_str(), MNT_DETACH);  // where a test has mounted one
        std::error_code ignored;
        fs::remove_all(root_, ignored);
    }
    Fd folder() const { return Fd(::open(root_.c_str(), O_RDONLY | O_DIRECTORY)); }
    std::string root_;
};

template <class T>
Tensor tensor(std::string name, std::vector<T>& values, DType dtype, Shape shape) {
    return {std::move(name), dtype, Policy::Replicated, shape, Shape(shape.size(), 0), shape, values.data()};
}

// One tensor of each type, a scalar, two empty ones, and one over several blocks.
struct Everything {
    std::vector<double> f64{1.5, -2.25, 1e300};
    std::vector<float> f32{0.1f, -7.0f, 3e38f, 0.0f};
    std::vector<std::uint16_t> f16{0x3C00, 0xC000, 0x3555};   // 1, -2, 0.33325
    std::vector<std::uint16_t> bf16{0x3F80, 0xC000, 0x3EAB};  // 1, -2, 0.33398
    std::vector<std::uint8_t> f8{0x38, 0x7E};
    std::vector<std::uint8_t> f8e5m2{0x3C, 0x7B};
    std::vector<std::int64_t> i64{-1, 1ll << 62};
    std::vector<std::int32_t> i32{-5, 6};
    std::vector<std::int16_t> i16{-7, 8};
    std::vector<std::int8_t> i8{-9, 10};
    std::vector<std::uint64_t> u64{~0ull, 3};
    std::vector<std::uint32_t> u32{~0u, 4};
    std::vector<std::uint16_t> u16{65535, 5};
    std::vector<std::uint8_t> u8{255, 6};
    std::vector<std::uint8_t> boolean{1, 0, 1};
    std::vector<double> scalar{42.0};
    std::vector<float> big = std::vector<float>(5'000'000, 0.5f);

    std::vector<Tensor> tensors() {
        big[0] = 1;
        big.back() = 2;
        return {tensor("types/f64", f64, DType::F64, {3}),       tensor("types/f32", f32, DType::F32, {2, 2}),
                tensor("types/f16", f16, DType::F16, {3}),       tensor("types/bf16", bf16, DType::BF16, {3}),
                tensor("types/f8e4m3", f8, DType::F8E4M3, {2}),  tensor("types/f8e5m2", f8e5m2, DType::F8E5M2, {2}),
                tensor("types/i64", i64, DType::I64, {2}),       tensor("types/i32", i32, DType::I32, {2}),
                tensor("types/i16", i16, DType::I16, {2}),       tensor("types/i8", i8, DType::I8, {2}),
                tensor("types/u64", u64, DType::U64, {2}),       tensor("types/u32", u32, DType::U32, {2}),
                tensor("types/u16", u16, DType::U16, {2}),       tensor("types/u8", u8, DType::U8, {2}),
                tensor("types/bool", boolean, DType::Bool, {3}), tensor("scalar", scalar, DType::F64, {}),
                tensor("empty/rows", f32, DType::F32, {0, 4}),   tensor("empty/columns", f32, DType::F32, {4, 0}),
                tensor("layer.0/big", big, DType::F32, {5, 1'000'000})};
    }
};

TEST_F(AShard, HoldsEveryTypeAndShapeAndComesBack) {
    Everything written;
    const auto tensors = written.tensors();
    const auto part = write_shard(folder().get(), {7, 100, 3, 0, 1, tensors});
    ASSERT_TRUE(part.ok()) << part.error().message;
    EXPECT_EQ(part->head.shards[0].size, fs::file_size(root_ + "/shard-00000-of-00001.h5"));
    EXPECT_EQ(part->head.shards[0].block_crcs.size(), (part->head.shards[0].size + kBlockBytes - 1) / kBlockBytes);
    const auto again = parse(encode(*part));
    ASSERT_TRUE(again.ok()) << again.error().message;

    Checkpoint checkpoint(folder(), *again, root_);
    ASSERT_TRUE(checkpoint.verify().ok());
    Everything read;
    auto wanted = read.tensors();
    for (Tensor& one : wanted) std::memset(one.data, 0x55, *elements_of(one.extent) * bytes_of(one.dtype));
    const auto restored = checkpoint.restore(wanted, 0, 1);
    ASSERT_TRUE(restored.ok()) << restored.error().message;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        const std::size_t size = *elements_of(wanted[i].extent) * bytes_of(wanted[i].dtype);
        EXPECT_EQ(std::memcmp(wanted[i].data, tensors[i].data, size), 0) << wanted[i].name;
    }
    std::size_t files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(root_)) ++files;
    EXPECT_EQ(files, 1u);  // no temporary name is left
}

TEST_F(AShard, IsAPlainHdf5FileForH5py) {
    if (::system("/usr/bin/python3 -c 'import h5py' 2>/dev/null") != 0) GTEST_SKIP() << "python3-h5py is not installed";
    Everything written;
    const auto tensors = written.tensors();
    ASSERT_TRUE(write_shard(folder().get(), {7, 100, 3, 1, 4, tensors}).ok());
    std::ofstream(root_ + "/look.py") << R"(
import h5py, sys
import numpy as np
f = h5py.File(sys.argv[1], "r")
assert dict(f.attrs) == {"format_version": 2, "job": 7, "attempt": 3, "rank": 1, "world": 4}, dict(f.attrs)
assert f["gangline_step"][()] == 100
t = f["types"]
def same(name, values, dtype):
    d = t[name]
    assert d.dtype == np.dtype(dtype), (name, d.dtype)
    assert d[()].ravel().tolist() == np.array(values, dtype=dtype).ravel().tolist(), (name, d[()])
same("f64", [1.5, -2.25, 1e300], "f8"); same("f32", [[0.1, -7.0], [3e38, 0.0]], "f4")
same("i64", [-1, 1 << 62], "i8"); same("i32", [-5, 6], "i4"); same("i16", [-7, 8], "i2"); same("i8", [-9, 10], "i1")
same("u64", [2**64 - 1, 3], "u8"); same("u32", [2**32 - 1, 4], "u4"); same("u16", [65535, 5], "u2"); same("u8", [255, 6], "u1")
same("bool", [True, False, True], "?"); same("f8e4m3", [0x38, 0x7E], "u1")
assert t["f16"].dtype == np.float16 and np.allclose(t["f16"][()], [1, -2, 0.33325], atol=1e-4), t["f16"][()]
assert np.allclose(t["bf16"][()].astype("f4"), [1, -2, 0.333984375]), t["bf16"][()]
assert t["bf16"].attrs["dtype"] == b"bfloat16" and t["f8e4m3"].attrs["dtype"] == b"float8_e4m3fn", t["bf16"].attrs["dtype"]
assert f["scalar"].shape == () and f["scalar"][()] == 42.0
assert f["empty/rows"].shape == (0, 4) and f["empty/columns"].shape == (4, 0)
b = f["layer.0/big"]
assert b.shape == (5, 1000000) and b[0, 0] == 1 and b[4, 999999] == 2 and float(b[1:4].sum()) == 1500000.0
assert b.chunks is None and b.id.get_offset() % 4096 == 0
assert b.attrs["global_shape"].tolist() == [5, 1000000] and b.attrs["global_offset"].tolist() == [0, 0] and b.attrs["kind"] == b"replicated"
)";
    const std::string command = fmt::format("/usr/bin/python3 {0}/look.py {0}/shard-00001-of-00004.h5", root_);
    EXPECT_EQ(::system(command.c_str()), 0);
}

TEST_F(AShard, OfManySmallTensorsKeepsThemAll) {
    std::vector<std::array<float, 3>> values(3000);
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = {static_cast<float>(i), 1, 2};
        tensors.push_back({fmt::format("layer.{}/w", i), DType::F32, Policy::Replicated, {3}, {0}, {3}, values[i].data()});
    }
    const auto part = write_shard(folder().get(), {7, 1, 1, 0, 1, tensors});
    ASSERT_TRUE(part.ok()) << part.error().message;
    Checkpoint checkpoint(folder(), parse(encode(*part)).value(), root_);
    for (auto& one : values) one = {};
    ASSERT_TRUE(checkpoint.restore(tensors, 0, 1).ok());
    EXPECT_EQ(values[2999][0], 2999.0f);
}

// By one thread: what is waited for is copied, and nothing else yet but what shares its first and last run.
TEST_F(AShard, IsCopiedOutOfOrderWhereSomebodyWaitsForATensor) {
    constexpr std::size_t kCount = 3 * kRunBytes / 4;
    std::vector<std::uint32_t> a(kCount, 1), b(kCount, 2), c(kCount, 3);
    std::uint32_t scalar = 4;
    const std::vector<Tensor> tensors{tensor("a", a, DType::U32, {kCount}), tensor("b", b, DType::U32, {kCount}), tensor("c", c, DType::U32, {kCount}),
                                      {"empty", DType::U32, Policy::Replicated, {0}, {0}, {0}, nullptr}, {"scalar", DType::U32, Policy::Replicated, {}, {}, {}, &scalar}};
    const ShardPlan plan{7, 1, 1, 0, 1, tensors};
    ShardImage image;
    image.wait_copied(1);  // nothing has begun
    ASSERT_TRUE(image.prepare(plan).ok());
    ASSERT_TRUE(image.begin(1, tensors).ok());
    image.wait_copied(1);
    image.wait_copied(3);
    std::fill(a.begin(), a.end(), 11u);
    std::fill(b.begin(), b.end(), 12u);
    std::fill(c.begin(), c.end(), 13u);
    image.wait_copied(4);
    scalar = 14;
    const auto part = write_image(real_disk(), folder().get(), image, plan);
    ASSERT_TRUE(part.ok()) << part.error().message;
    image.wait_copied(0);
    Checkpoint checkpoint(folder(), parse(encode(*part)).value(), root_);
    EXPECT_TRUE(checkpoint.verify().ok());
    ASSERT_TRUE(checkpoint.restore(tensors, 0, 1).ok());
    EXPECT_EQ(std::count(a.begin(), a.end(), 11u) + std::count(a.begin(), a.end(), 1u), static_cast<std::ptrdiff_t>(kCount));
    EXPECT_GT(std::count(a.begin(), a.end(), 11u), static_cast<std::ptrdiff_t>(kCount / 2)) << "it was to be copied later";
    EXPECT_EQ(std::count(b.begin(), b.end(), 2u), static_cast<std::ptrdiff_t>(kCount)) << "it was waited for";
    EXPECT_GT(std::count(c.begin(), c.end(), 13u), static_cast<std::ptrdiff_t>(kCount / 2));
    EXPECT_EQ(scalar, 4u);
}

// The runner takes a damaged checkpoint out of use; this one is whole.
TEST_F(AShard, ThatCannotBeOpenedForWantOfDescriptorsIsNotCalledDamaged) {
    std::vector<float> values{1, 2, 3};
    const std::vector<Tensor> tensors{tensor("a", values, DType::F32, {3})};
    const auto part = write_shard(folder().get(), {7, 1, 1, 0, 1, tensors});
    ASSERT_TRUE(part.ok()) << part.error().message;
    Checkpoint checkpoint(folder(), parse(encode(*part)).value(), root_);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit few{3, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto refused = checkpoint.restore(tensors, 0, 1);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::Unavailable) << refused.error().message;
    EXPECT_NE(refused.error().message.find("ulimit -n"), std::string::npos) << refused.error().message;
    EXPECT_TRUE(checkpoint.restore(tensors, 0, 1).ok());
}

TEST_F(AShard, WithoutTensorsIsFine) {
    const auto part = write_shard(folder().get(), {7, 1, 1, 0, 1, {}});
    ASSERT_TRUE(part.ok()) << part.error().message;
    Checkpoint checkpoint(folder(), parse(encode(*part)).value(), root_);
    EXPECT_TRUE(checkpoint.verify().ok());
}

TEST_F(AShard, RefusesTensorsThatCannotBeStored) {
    std::vector<float> values(4);
    auto code_of = [&](std::vector<Tensor> tensors) {
        const auto part = write_shard(folder().get(), {7, 1, 1, 0, 1, tensors});
        EXPECT_TRUE(fs::is_empty(root_));
        return part.ok() ? Code::Internal : part.error().code;
    };
    EXPECT_EQ(code_of({tensor("a", values, DType::F32, {4}), tensor("a", values, DType::F32, {4})}), Code::InvalidArgument);
    EXPECT_EQ(code_of({tensor("a", values, DType::F32, {4}), tensor("a/b", values, DType::F32, {4})}), Code::InvalidArgument);
    EXPECT_EQ(code_of({tensor("../a", values, DType::F32, {4})}), Code::InvalidArgument);
    EXPECT_EQ(code_of({{"a", DType::F32, Policy::Sliced, {4}, {2}, {3}, values.data()}}), Code::InvalidArgument);
    EXPECT_EQ(code_of({{"a", DType::F32, Policy::Replicated, {4}, {0}, {2}, values.data()}}), Code::InvalidArgument);
    EXPECT_EQ(code_of({{"a", DType::F32, Policy::Replicated, {4}, {0}, {4}, nullptr}}), Code::InvalidArgument);
    EXPECT_EQ(code_of({{"a", DType::F32, Policy::Replicated, {1ull << 40, 1ull << 40}, {0, 0}, {1ull << 40, 1ull << 40}, values.data()}}), Code::InvalidArgument);
}

TEST_F(AShard, MeetsAFileSizeLimitBeforeAnythingIsWritten) {
    const pid_t child = ::fork();
    if (child == 0) {
        const rlimit limit{1 << 20, 1 << 20};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        std::vector<float> values(1'000'000);
        const std::vector<Tensor> tensors{tensor("a", values, DType::F32, {1'000'000})};
        const auto part = write_shard(folder().get(), {7, 1, 1, 0, 1, tensors});
        ::_exit(!part.ok() && part.error().code == Code::NoSpace && fs::is_empty(root_) ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

TEST_F(AShard, OnAFullDiskFailsEarlyAndLeavesTheOlderCheckpoint) {
    const std::string disk = root_ + "/disk";
    fs::create_directories(disk);
    if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=20m") != 0) GTEST_SKIP() << "NOT TESTED: a full disk needs the right to mount a tmpfs (root)";
    const Store store = Store::open(disk).value();
    std::vector<float> values(2'000'000, 1.0f);
    const std::vector<Tensor> tensors{tensor("a", values, DType::F32, {2'000'000})};
    std::vector<Sealed> kept;
    Result<Part> part = Part{};
    std::uint64_t step = 0;
    while (part.ok() && ++step < 10) {
        const CheckpointId id{step, 1};
        part = write_shard(store.temporary(id)->get(), {7, step, 1, 0, 1, tensors});
        if (!part.ok()) break;
        const auto sealed = store.write_part(id, *part);
        ASSERT_TRUE(sealed.ok());
        const auto manifest = store.write_manifest(id, std::span(&sealed->digest, 1));
        ASSERT_TRUE(manifest.ok()) << manifest.error().message;
        ASSERT_TRUE(store.publish(id, manifest->digest).ok());
        kept.push_back(*manifest);
    }
    ASSERT_EQ(step, 3u) << "two checkpoints of 8 MB fit on a disk of 20";
    EXPECT_EQ(part.error().code, Code::NoSpace) << part.error().message;
    EXPECT_TRUE(fs::is_empty(disk + "/.tmp-step-000000000003-e000001"));
    for (std::uint64_t good = 1; good < step; ++good) {
        auto found = store.find({good, 1}, kept[good - 1].digest);
        ASSERT_TRUE(found.ok());
        EXPECT_TRUE(found->verify().ok());
    }
}

// The child saves without pause and is killed at a random moment. What restore accepts afterwards must hold exactly what
// the step of its name stands for; what was cut short must be refused or absent.
TEST_F(AShard, KilledAtAnyMomentNeverBecomesAWrongCheckpoint) {
    const Store store = Store::open(root_).value();
    std::mt19937_64 random(42);
    std::size_t accepted = 0;
    std::size_t left_behind = 0;
    for (std::uint32_t round = 0; round < 40; ++round) {
        std::vector<std::uint64_t> values(300'000);
        std::vector<Tensor> tensors{tensor("a", values, DType::U64, {300'000})};
        const pid_t child = ::fork();
        if (child == 0) {
            for (std::uint64_t step = 1;; ++step) {
                const CheckpointId id{step, round};
                for (std::size_t i = 0; i < values.size(); ++i) values[i] = step * 1'000'003 + i;
                const auto part = write_shard(store.temporary(id)->get(), {7, step, round, 0, 1, tensors});
                if (!part.ok()) ::_exit(1);
                const auto sealed = store.write_part(id, *part);
                const auto manifest = store.write_manifest(id, std::span(&sealed->digest, 1));
                if (!manifest.ok() || !store.publish(id, manifest->digest).ok()) ::_exit(2);
                store.delete_old({7, id, {}});
            }
        }
        ::usleep(static_cast<useconds_t>(5'000 + random() % 60'000));  // the moment is random, nothing is waited for
        ASSERT_EQ(::kill(child, SIGKILL), 0);
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself with status " << status;
        for (const CheckpointId& id : store.published()) {
            auto found = store.open_published(id);
            ASSERT_TRUE(found.ok()) << found.error().message;
            const auto restored = found->restore(tensors, 0, 1);
            ASSERT_TRUE(restored.ok()) << restored.error().message;
            for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], id.step * 1'000'003 + i);
            ++accepted;
        }
        for (const auto& entry : fs::directory_iterator(root_)) left_behind += entry.path().filename().string().starts_with(".");
        EXPECT_EQ(store.delete_old({7, {1'000'000, round}, {}}), "");
        if (round % 2 == 0) continue;  // the next round takes over its space
        store.empty_pool();
        EXPECT_TRUE(fs::is_empty(root_));
    }
    fmt::print("{} checkpoints accepted, all right; {} left-over folders swept\n", accepted, left_behind);
    EXPECT_GT(left_behind, 0u);
}

// A process may be killed at any moment: a file that had its name all the while would stay there.
TEST_F(AShard, IsLaidOutInAFileThatHasLostItsName) {
    const Fd watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    ASSERT_GE(::inotify_add_watch(watch.get(), "/dev/shm", IN_CREATE | IN_DELETE | IN_CLOSE_WRITE), 0);
    Everything everything;
    ShardImage image;
    ASSERT_TRUE(image.prepare({7, 12, 3, 0, 1, everything.tensors(), {}}).ok());
    ASSERT_FALSE(image.prepare({7, 12, 3, 0, 1, std::vector<Tensor>{tensor("gangline_step/taken", everything.f64, DType::F64, {3})}, {}}).ok());
    const std::string mine = fmt::format("gangline-layout-{}-", ::getpid());
    std::set<std::string> made, nameless, filled;
    alignas(inotify_event) std::array<char, 65536> buffer{};
    for (ssize_t got = 0; (got = ::read(watch.get(), buffer.data(), buffer.size())) > 0;) {
        for (char* at = buffer.data(); at < buffer.data() + got;) {
            const auto* event = reinterpret_cast<const inotify_event*>(at);
            at += sizeof(inotify_event) + event->len;
            if (event->len == 0 || !std::string_view(event->name).starts_with(mine)) continue;
            if ((event->mask & IN_CREATE) != 0) made.insert(event->name);
            if ((event->mask & IN_DELETE) != 0) nameless.insert(event->name);
            if ((event->mask & IN_CLOSE_WRITE) != 0 && nameless.contains(event->name)) filled.insert(event->name);
        }
    }
    EXPECT_FALSE(filled.empty());
    EXPECT_EQ(made, nameless);
}

}  // namespace
}  // namespace gangline::checkpoint
