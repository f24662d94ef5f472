// Whole checkpoints on a real file system: written by several ranks, published, read back, damaged, resharded.

#include "checkpoint/store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include "base/process.h"
#include "checkpoint/shard.h"

namespace gangline::checkpoint {
namespace {

namespace fs = std::filesystem;

class Checkpoints : public ::testing::Test {
  protected:
    Checkpoints() : root_((fs::temp_directory_path() / ("gangline-store-" + random_hex(6))).string()) {}
    ~Checkpoints() override { fs::remove_all(root_); }

    Store store() const { return Store::open(root_).value(); }
    std::string root_;
};

// A model of one sliced matrix [12][5], one replicated vector [7], a scalar, and 3 bytes of each rank's own.
struct Model {
    explicit Model(std::uint32_t rank_, std::uint32_t world_) : rank(rank_), world(world_) {
        const std::uint64_t begin = 12 * std::uint64_t{rank} / world;
        const std::uint64_t end = 12 * (std::uint64_t{rank} + 1) / world;
        slice.resize((end - begin) * 5);
        tensors.push_back({"model/matrix", DType::F32, Policy::Sliced, {12, 5}, {begin, 0}, {end - begin, 5}, slice.data()});
        tensors.push_back({"model/vector", DType::F64, Policy::Replicated, {7}, {0}, {7}, vector.data()});
        tensors.push_back({"position", DType::U64, Policy::Replicated, {}, {}, {}, &position});
    }
    void add_rank_state() { tensors.push_back({"rng", DType::U8, Policy::PerRank, {3}, {0}, {3}, own.data()}); }
    void fill(float seed) {
        const std::uint64_t begin = tensors[0].offset[0] * 5;
        for (std::size_t i = 0; i < slice.size(); ++i) slice[i] = seed + static_cast<float>(begin + i);
        for (std::size_t i = 0; i < vector.size(); ++i) vector[i] = static_cast<double>(seed) * 2 + static_cast<double>(i);
        position = static_cast<std::uint64_t>(seed) * 3;
        for (std::size_t i = 0; i < own.size(); ++i) own[i] = static_cast<std::uint8_t>(rank * 10 + i);
    }
    std::uint32_t rank;
    std::uint32_t world;
    std::vector<float> slice;
    std::vector<double> vector = std::vector<double>(7);
    std::uint64_t position = 0;
    std::vector<std::uint8_t> own = std::vector<std::uint8_t>(3);
    std::vector<Tensor> tensors;
};

enum class With { Nothing, RankState };

Result<Sealed> write_all_ranks(const Store& store, const CheckpointId& id, std::uint32_t world, float seed, With with = With::Nothing,
                               std::uint64_t job = 7) {
    std::vector<Sha256> parts;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
        Model model(rank, world);
        if (with == With::RankState) model.add_rank_state();
        model.fill(seed);
        auto folder = store.temporary(id);
        if (!folder) return folder.error();
        const auto mine = tensors_to_write(model.tensors, rank, world);
        auto part = write_shard(folder->get(), {job, id.step, id.attempt, rank, world, mine});
        if (!part) return part.error();
        auto sealed = store.write_part(id, *part);
        if (!sealed) return sealed.error();
        parts.push_back(sealed->digest);
    }
    return store.write_manifest(id, parts);
}

void expect_holds(Result<Checkpoint>& found, std::uint32_t world, float seed, With with = With::Nothing) {
    ASSERT_TRUE(found.ok()) << found.error().message;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
        Model read(rank, world);
        Model expected(rank, world);
        if (with == With::RankState) read.add_rank_state();
        expected.fill(seed);
        const auto restored = found->restore(read.tensors, rank, world);
        ASSERT_TRUE(restored.ok()) << restored.error().message;
        EXPECT_EQ(read.slice, expected.slice) << "rank " << rank << " of " << world;
        EXPECT_EQ(read.vector, expected.vector);
        EXPECT_EQ(read.position, expected.position);
        if (with == With::RankState) {
            EXPECT_EQ(read.own, expected.own);
        }
    }
}

void flip_byte(const std::string& path, std::size_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
    ASSERT_TRUE(file.good()) << path;
}

TEST_F(Checkpoints, ComeBackBitByBitAtEveryWorldSize) {
    const Store here = store();
    for (const std::uint32_t written : {1u, 2u, 3u, 4u, 5u}) {
        const CheckpointId id{100, written};
        const auto sealed = write_all_ranks(here, id, written, 40.0f + static_cast<float>(written));
        ASSERT_TRUE(sealed.ok()) << sealed.error().message;
        ASSERT_TRUE(here.publish(id, sealed->digest).ok());
        for (const std::uint32_t read : {1u, 2u, 3u, 4u, 5u, 12u}) {
            auto found = here.find(id, sealed->digest);
            expect_holds(found, read, 40.0f + static_cast<float>(written));
        }
    }
}

TEST_F(Checkpoints, PutTwoDimensionalBoxesTogether) {
    const Store here = store();
    const CheckpointId id{5, 1};
    std::vector<std::int32_t> full(6 * 8 * 2);
    std::iota(full.begin(), full.end(), 0);
    auto box_of = [&](const Shape& offset, const Shape& extent) {
        std::vector<std::int32_t> values;
        for (std::uint64_t i = 0; i < extent[0]; ++i)
            for (std::uint64_t j = 0; j < extent[1]; ++j)
                for (std::uint64_t k = 0; k < extent[2]; ++k)
                    values.push_back(full[((offset[0] + i) * 8 + offset[1] + j) * 2 + offset[2] + k]);
        return values;
    };
    std::vector<Sha256> parts;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {  // a 2 x 2 grid of blocks
        const Shape offset{rank / 2 * 3ull, rank % 2 * 5ull, 0};
        const Shape extent{3, rank % 2 == 0 ? 5ull : 3ull, 2};
        auto values = box_of(offset, extent);
        const Tensor tensor{"grid", DType::I32, Policy::Sliced, {6, 8, 2}, offset, extent, values.data()};
        const auto part = write_shard(here.temporary(id)->get(), {7, 5, 1, rank, 4, std::span(&tensor, 1)});
        ASSERT_TRUE(part.ok()) << part.error().message;
        parts.push_back(here.write_part(id, *part)->digest);
    }
    const auto sealed = here.write_manifest(id, parts);
    ASSERT_TRUE(sealed.ok()) << sealed.error().message;
    auto found = here.find(id, sealed->digest);
    ASSERT_TRUE(found.ok());
    for (const auto& [offset, extent] : std::vector<std::pair<Shape, Shape>>{
             {{0, 0, 0}, {6, 8, 2}}, {{2, 4, 0}, {2, 2, 2}}, {{1, 0, 1}, {4, 8, 1}}, {{0, 7, 0}, {6, 1, 2}}, {{2, 3, 1}, {1, 4, 1}}, {{3, 3, 0}, {0, 2, 2}}}) {
        const auto expected = box_of(offset, extent);
        std::vector<std::int32_t> read(expected.size(), -1);
        const Tensor tensor{"grid", DType::I32, Policy::Sliced, {6, 8, 2}, offset, extent, read.data()};
        const auto restored = found->restore(std::span(&tensor, 1), 0, 1);
        ASSERT_TRUE(restored.ok()) << restored.error().message;
        EXPECT_EQ(read, expected) << to_text(offset) << to_text(extent);
    }
}

// Of several blocks a shard, whose rows reach the tensors in the pass that checks them: boxes that overlap, at any address, and a strided one.
TEST_F(Checkpoints, FillBoxesThatOverlapFromManyBlocks) {
    const Store here = store();
    const CheckpointId id{5, 1};
    constexpr std::uint64_t kRows = 300;  // of each of three ranks
    constexpr std::uint64_t kColumns = 4999;
    const auto value_at = [](std::uint64_t row, std::uint64_t column) { return static_cast<std::uint8_t>(row * 31 + column * 7 + column / 256); };
    std::vector<Sha256> parts;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
        std::vector<std::uint8_t> rows;
        for (std::uint64_t i = 0; i < kRows * kColumns; ++i) rows.push_back(value_at(rank * kRows + i / kColumns, i % kColumns));
        std::vector<float> small(70, static_cast<float>(rank));
        const std::vector<Tensor> tensors{{"grid", DType::U8, Policy::Sliced, {3 * kRows, kColumns}, {rank * kRows, 0}, {kRows, kColumns}, rows.data()},
                                          {"small", DType::F32, Policy::PerRank, {70}, {0}, {70}, small.data()}};
        const auto part = write_shard(here.temporary(id)->get(), {7, 5, 1, rank, 3, tensors});
        ASSERT_TRUE(part.ok()) << part.error().message;
        ASSERT_GT(part->head.shards[0].block_crcs.size(), 4u);
        parts.push_back(here.write_part(id, *part)->digest);
    }
    const auto sealed = here.write_manifest(id, parts);
    ASSERT_TRUE(sealed.ok());
    auto found = here.find(id, sealed->digest);
    ASSERT_TRUE(found.ok());
    std::vector<std::vector<std::uint8_t>> memory;
    std::vector<Tensor> wanted;
    for (const auto& [offset, extent] : std::vector<std::pair<Shape, Shape>>{
             {{0, 0}, {3 * kRows, kColumns}}, {{100, 0}, {450, kColumns}}, {{299, 0}, {2, kColumns}}, {{10, 77}, {880, 300}}, {{899, 4998}, {1, 1}}, {{550, 0}, {1, kColumns}}}) {
        const std::size_t shift = memory.size();
        memory.emplace_back(extent[0] * extent[1] + shift + 1, std::uint8_t{0xA5});
        wanted.push_back({"grid", DType::U8, Policy::Sliced, {3 * kRows, kColumns}, offset, extent, memory.back().data() + shift});
    }
    std::vector<float> small(70);
    wanted.push_back({"small", DType::F32, Policy::PerRank, {70}, {0}, {70}, small.data()});
    const auto filled = found->fill(wanted, 2);
    ASSERT_TRUE(filled.ok()) << filled.error().message;
    EXPECT_EQ(small, std::vector<float>(70, 2.0f));
    for (std::size_t i = 0; i < memory.size(); ++i) {
        const auto* values = static_cast<const std::uint8_t*>(wanted[i].data);
        std::size_t wrong = 0;
        for (std::uint64_t row = 0; row < wanted[i].extent[0]; ++row) {
            for (std::uint64_t column = 0; column < wanted[i].extent[1]; ++column) {
                wrong += *values++ != value_at(wanted[i].offset[0] + row, wanted[i].offset[1] + column);
            }
        }
        EXPECT_EQ(wrong, 0u) << to_text(wanted[i].offset) << to_text(wanted[i].extent);
        EXPECT_EQ(memory[i].back(), 0xA5);
    }
}

TEST_F(Checkpoints, RefuseAnotherWorldSizeForStateOfEachRank) {
    const Store here = store();
    const auto sealed = write_all_ranks(here, {9, 1}, 3, 1.0f, With::RankState);
    ASSERT_TRUE(sealed.ok());
    auto found = here.find({9, 1}, sealed->digest);
    expect_holds(found, 3, 1.0f, With::RankState);
    Model other(0, 2);
    other.add_rank_state();
    const auto refused = found->restore(other.tensors, 0, 2);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::Refused);
    EXPECT_NE(refused.error().message.find("'rng'"), std::string::npos);
    EXPECT_NE(refused.error().message.find("run with 3 ranks"), std::string::npos) << refused.error().message;
}

TEST_F(Checkpoints, RefuseAProgramThatTracksOtherTensors) {
    const Store here = store();
    const auto sealed = write_all_ranks(here, {9, 1}, 2, 1.0f);
    auto found = here.find({9, 1}, sealed->digest);
    Model missing(0, 2);
    missing.tensors.pop_back();
    EXPECT_EQ(found->restore(missing.tensors, 0, 2).error().code, Code::Refused);
    Model extra(0, 2);
    extra.add_rank_state();
    EXPECT_EQ(found->restore(extra.tensors, 0, 2).error().code, Code::Refused);
    Model typed(0, 2);
    typed.tensors[1].dtype = DType::I64;
    EXPECT_EQ(found->restore(typed.tensors, 0, 2).error().code, Code::Refused);
}

TEST_F(Checkpoints, AreRolledForwardWhenTheRenameWasLost) {
    const Store here = store();
    const auto sealed = write_all_ranks(here, {300, 2}, 2, 3.0f);
    ASSERT_TRUE(sealed.ok());
    EXPECT_TRUE(here.published().empty());
    Sha256 other = sealed->digest;
    other[0] ^= 1;
    EXPECT_EQ(here.find({300, 2}, other).error().code, Code::Damaged);  // a temporary folder counts only by its digest
    EXPECT_TRUE(here.published().empty());
    auto found = here.find({300, 2}, sealed->digest);
    expect_holds(found, 2, 3.0f);
    EXPECT_EQ(here.published(), (std::vector<CheckpointId>{{300, 2}}));
    EXPECT_FALSE(fs::exists(root_ + "/.tmp-step-000000000300-e000002"));
    EXPECT_TRUE(here.publish({300, 2}, sealed->digest).ok());  // the committer's own rename, late
}

TEST_F(Checkpoints, ArePublishedOnlyByTheirDigest) {
    const Store here = store();
    const auto first = write_all_ranks(here, {300, 2}, 2, 3.0f);
    ASSERT_TRUE(first.ok());
    Sha256 other = first->digest;
    other[0] ^= 1;
    EXPECT_EQ(here.publish({300, 2}, other).error().code, Code::Damaged);
    EXPECT_TRUE(here.published().empty());
    ASSERT_TRUE(here.publish({300, 2}, first->digest).ok());
    const auto second = write_all_ranks(here, {300, 2}, 2, 4.0f);  // a program that starts afresh
    ASSERT_TRUE(second.ok());
    EXPECT_FALSE(here.publish({300, 2}, second->digest).ok());
    for (int round = 0; round < 2; ++round) {
        ASSERT_TRUE(here.publish({300, 2}, second->digest, IfThere::Exchange).ok());
        auto found = here.find({300, 2}, second->digest);
        expect_holds(found, 2, 4.0f);
        EXPECT_FALSE(fs::exists(root_ + "/.tmp-step-000000000300-e000002"));
    }
    EXPECT_EQ(here.publish({300, 2}, first->digest, IfThere::Exchange).error().code, Code::Damaged);
    EXPECT_EQ(here.publish({301, 2}, first->digest).error().code, Code::Damaged);
}

TEST_F(Checkpoints, AreRolledForwardByManyRanksAtOnce) {
    const Store here = store();
    for (std::uint64_t round = 1; round <= 10; ++round) {
        const auto sealed = write_all_ranks(here, {round, 1}, 2, 1.0f);
        ASSERT_TRUE(sealed.ok());
        std::vector<pid_t> children;
        for (int i = 0; i < 6; ++i) {
            const pid_t child = ::fork();
            if (child == 0) ::_exit(here.find({round, 1}, sealed->digest).ok() ? 0 : 1);
            children.push_back(child);
        }
        for (const pid_t child : children) {
            int status = -1;
            ASSERT_EQ(::waitpid(child, &status, 0), child);
            EXPECT_EQ(status, 0);
        }
    }
}

TEST_F(Checkpoints, ThatAreMissingOrCutAreDamagedAndNotAFreshStart) {
    const Store here = store();
    const auto sealed = write_all_ranks(here, {300, 2}, 2, 3.0f);
    ASSERT_TRUE(here.publish({300, 2}, sealed->digest).ok());
    const std::string folder = root_ + "/step-000000000300-e000002";
    EXPECT_EQ(here.find({301, 2}, sealed->digest).error().code, Code::Damaged);
    fs::resize_file(folder + "/shard-00001-of-00002.h5", 5000);
    auto found = here.find({300, 2}, sealed->digest);
    ASSERT_TRUE(found.ok());
    Model model(1, 2);
    const auto cut = found->restore(model.tensors, 1, 2);
    ASSERT_FALSE(cut.ok());
    EXPECT_EQ(cut.error().code, Code::Damaged);
    EXPECT_NE(cut.error().message.find("shard-00001-of-00002.h5 has 5000 bytes"), std::string::npos) << cut.error().message;
    fs::remove(folder + "/MANIFEST");
    EXPECT_EQ(here.find({300, 2}, sealed->digest).error().code, Code::Damaged);
    EXPECT_EQ(here.open_published({300, 2}).error().code, Code::Damaged);
}

TEST_F(Checkpoints, WithAFlippedByteAreDetectedAndTheFileAndBlockAreNamed) {
    const Store here = store();
    const auto sealed = write_all_ranks(here, {1, 1}, 2, 3.0f);
    ASSERT_TRUE(here.publish({1, 1}, sealed->digest).ok());
    const std::string folder = root_ + "/step-000000000001-e000001/";
    std::mt19937_64 random(5);
    for (int i = 0; i < 40; ++i) {
        const std::string path = folder + shard_name(static_cast<std::uint32_t>(i % 2), 2);
        const std::size_t at = random() % fs::file_size(path);
        flip_byte(path, at);
        auto found = here.find({1, 1}, sealed->digest);
        ASSERT_TRUE(found.ok());
        const auto verified = found->verify();
        ASSERT_FALSE(verified.ok()) << "byte " << at;
        EXPECT_EQ(verified.error().code, Code::Damaged);
        EXPECT_NE(verified.error().message.find(path + ": block 0"), std::string::npos) << verified.error().message;
        flip_byte(path, at);
        auto whole_again = here.find({1, 1}, sealed->digest);
        ASSERT_TRUE(whole_again->verify().ok());
    }
    for (std::size_t at = 0; at < fs::file_size(folder + "MANIFEST"); at += 7) {
        flip_byte(folder + "MANIFEST", at);
        EXPECT_EQ(here.find({1, 1}, sealed->digest).error().code, Code::Damaged) << at;
        flip_byte(folder + "MANIFEST", at);
    }
    EXPECT_TRUE(here.find({1, 1}, sealed->digest).ok());
}

TEST_F(Checkpoints, AreNotReadThroughSymbolicLinks) {
    const Store here = store();
    const auto sealed = write_all_ranks(here, {1, 1}, 1, 3.0f);
    ASSERT_TRUE(here.publish({1, 1}, sealed->digest).ok());
    const std::string folder = root_ + "/step-000000000001-e000001";
    fs::rename(folder, root_ + "/elsewhere");
    fs::create_directory_symlink(root_ + "/elsewhere", folder);
    EXPECT_EQ(here.find({1, 1}, sealed->digest).error().code, Code::Damaged);
    fs::create_directory_symlink(root_ + "/elsewhere", root_ + "/.tmp-step-000000000002-e000001");
    EXPECT_FALSE(here.temporary({2, 1}).ok());
    EXPECT_EQ(here.find({2, 1}, sealed->digest).error().code, Code::Damaged);
    fs::remove(folder);
    fs::rename(root_ + "/elsewhere", folder);
    fs::rename(folder + "/" + shard_name(0, 1), root_ + "/shard");
    fs::create_symlink(root_ + "/shard", folder + "/" + shard_name(0, 1));
    auto found = here.find({1, 1}, sealed->digest);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->verify().error().code, Code::Damaged);
}

TEST_F(Checkpoints, ThatAreOldAreDeletedAndNothingElseIs) {
    const Store here = store();
    for (const CheckpointId id : {CheckpointId{100, 1}, {200, 1}, {300, 1}, {250, 2}, {350, 2}, {999, 3}}) {
        const auto sealed = write_all_ranks(here, id, 1, 1.0f);
        ASSERT_TRUE(here.publish(id, sealed->digest).ok());
    }
    const auto foreign = write_all_ranks(here, {50, 1}, 1, 1.0f, With::Nothing, 8);  // another job's
    ASSERT_TRUE(here.publish({50, 1}, foreign->digest).ok());
    ASSERT_TRUE(write_all_ranks(here, {310, 1}, 1, 1.0f).ok());  // temporary, of an earlier attempt
    ASSERT_TRUE(write_all_ranks(here, {320, 1}, 1, 1.0f).ok());  // the same, but committed: it is in the list
    ASSERT_TRUE(write_all_ranks(here, {340, 2}, 1, 1.0f).ok());  // of this attempt, older
    ASSERT_TRUE(write_all_ranks(here, {400, 2}, 1, 1.0f).ok());  // of this attempt, under way
    for (const char* name : {"notes", "step-1", "step-000000000100-e000001.backup", ".tmp-mine"}) fs::create_directories(root_ + "/" + name);
    fs::create_directories(root_ + "/.del-step-000000000007-e000001");
    EXPECT_EQ(here.delete_old({7, {350, 2}, {{350, 2}, {250, 2}, {320, 1}}}), "");
    EXPECT_EQ(here.published(), (std::vector<CheckpointId>{{50, 1}, {250, 2}, {350, 2}, {999, 3}}));
    for (const char* name : {"notes", "step-1", "step-000000000100-e000001.backup", ".tmp-mine", ".tmp-step-000000000320-e000001", ".tmp-step-000000000400-e000002"}) {
        EXPECT_TRUE(fs::exists(root_ + "/" + name)) << name;
    }
    for (const char* name : {".tmp-step-000000000310-e000001", ".tmp-step-000000000340-e000002", ".del-step-000000000007-e000001"}) {
        EXPECT_FALSE(fs::exists(root_ + "/" + name)) << name;
    }
}

TEST_F(Checkpoints, ThatAreReadPinnedOrMultiplesStay) {
    const Store here = store();
    for (const std::uint64_t step : {100u, 150u, 200u, 250u, 300u}) {
        const auto sealed = write_all_ranks(here, {step, 1}, 1, 1.0f);
        ASSERT_TRUE(here.publish({step, 1}, sealed->digest).ok());
    }
    ASSERT_TRUE(write_all_ranks(here, {20, 1}, 1, 1.0f).ok());  // left behind: no multiple makes a checkpoint of it
    const Fd folder(::open((root_ + "/step-000000000150-e000001").c_str(), O_RDONLY | O_DIRECTORY));
    ASSERT_TRUE(pin(real_disk(), folder.get()).ok());
    {
        const auto reading = here.open_published({250, 1});
        ASSERT_TRUE(reading.ok());
        EXPECT_EQ(here.delete_old({.job = 7, .newest = {300, 1}, .keep = {}, .recycles = true, .every = 100}), "");
        EXPECT_EQ(here.published(), (std::vector<CheckpointId>{{100, 1}, {150, 1}, {200, 1}, {250, 1}, {300, 1}}));
        EXPECT_FALSE(fs::exists(root_ + "/.tmp-step-000000000020-e000001"));
    }
    EXPECT_EQ(here.delete_old({.job = 7, .newest = {300, 1}, .keep = {}, .recycles = true, .every = 200}), "");
    EXPECT_EQ(here.published(), (std::vector<CheckpointId>{{150, 1}, {200, 1}, {300, 1}}));
}

TEST_F(Checkpoints, AreVerifiedInTheirOwnFolderAndNotInACopy) {
    const Store here = store();
    const auto sealed = write_all_ranks(here, {1, 1}, 1, 1.0f);
    ASSERT_TRUE(here.publish({1, 1}, sealed->digest).ok());
    const std::string path = root_ + "/" + folder_name({1, 1});
    EXPECT_FALSE(here.marks({1, 1}).verified_unix_s);
    for (const std::int64_t when : {17, 1'700'000'000}) {
        const Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY));
        ASSERT_TRUE(mark_verified(real_disk(), folder.get(), when).ok());
        EXPECT_EQ(here.marks({1, 1}).verified_unix_s, std::optional<std::int64_t>(when));
    }
    fs::copy(path, root_ + "/" + folder_name({2, 1}));
    EXPECT_FALSE(here.marks({2, 1}).verified_unix_s);
    fs::rename(path, root_ + "/" + folder_name({3, 1}));
    EXPECT_TRUE(here.marks({3, 1}).verified_unix_s);
    std::ofstream(root_ + "/" + folder_name({3, 1}) + "/.verified") << "garbage";
    EXPECT_FALSE(here.marks({3, 1}).verified_unix_s);
    EXPECT_FALSE(here.marks({9, 1}).is_pinned);
}

TEST_F(Checkpoints, AreNotMadeOfPartsThatNobodyAnnounced) {
    const Store here = store();
    ASSERT_TRUE(write_all_ranks(here, {1, 1}, 2, 1.0f).ok());
    Model model(0, 1);
    const auto folder = here.temporary({2, 1});
    const auto part = write_shard(folder->get(), {7, 2, 1, 0, 1, model.tensors});
    ASSERT_TRUE(part.ok());
    const auto sealed = here.write_part({2, 1}, *part);
    Sha256 other = sealed->digest;
    other[3] ^= 1;
    EXPECT_FALSE(here.write_manifest({2, 1}, std::span(&other, 1)).ok());
    EXPECT_TRUE(here.write_manifest({2, 1}, std::span(&sealed->digest, 1)).ok());
}

TEST_F(Checkpoints, OfAStaleTemporaryFolderAreWrittenAnew) {
    const Store here = store();
    ASSERT_TRUE(write_all_ranks(here, {10, 0}, 3, 1.0f).ok());  // a dead run of three ranks
    const auto sealed = write_all_ranks(here, {10, 0}, 2, 2.0f);
    ASSERT_TRUE(sealed.ok());
    ASSERT_TRUE(here.publish({10, 0}, sealed->digest).ok());
    auto found = here.find({10, 0}, sealed->digest);
    expect_holds(found, 2, 2.0f);
    std::size_t files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(root_ + "/step-000000000010-e000000")) ++files;
    EXPECT_EQ(files, 3u);  // two shards and the manifest
}

TEST(FolderNames, AreReadBackOnlyInTheirOneForm) {
    EXPECT_EQ(folder_name({1200, 3}), "step-000000001200-e000003");
    EXPECT_EQ(parse_folder_name("step-000000001200-e000003"), (CheckpointId{1200, 3}));
    for (const char* bad : {"step-1200-e3", "step-000000001200-e000003.backup", "step-000000001200", "xstep-000000001200-e000003",
                            "step- 00000001200-e000003", "step--00000001200-e000003", ""}) {
        EXPECT_FALSE(parse_folder_name(bad).has_value()) << bad;
    }
}

TEST(ACheckpointFolder, ThatCannotBeMadeIsNamed) {
    const auto store = Store::open("/proc/nowhere/checkpoints");
    ASSERT_FALSE(store.ok());
    EXPECT_NE(store.error().message.find("/proc/nowhere/checkpoints"), std::string::npos);
}

}  // namespace
}  // namespace gangline::checkpoint
