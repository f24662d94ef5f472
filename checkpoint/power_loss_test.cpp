// A machine loses its power at any moment of several saves: whatever of the unsynced its disk has kept, the promises hold.
//
//   write_manifest has returned   the coordinator may have journalled it: it is found by its digest, and right
//   publish has returned          it is listed, and right
//   delete_old has begun on it    it may be gone, or damaged for those who know its digest
//   any published folder          opens, verifies, and is right: it loses its name before anything else

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/recording_disk.h"
#include "checkpoint/saving_gang.h"

namespace gangline::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_soak() { return std::getenv("GANGLINE_SOAK") != nullptr; }

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

// The number of changes at which each promise began.
struct Life {
    Sealed manifest;
    std::size_t committed = kNever;
    std::size_t published = kNever;
    std::size_t deleted = kNever;
};

class PowerLoss : public ::testing::Test {
  protected:
    PowerLoss() {
        fs::create_directories(scratch_.path() + "/disk");
        disk_ = std::make_unique<RecordingDisk>(scratch_.path() + "/disk");
    }

    static constexpr const char* kRoot = "/jobs/7/checkpoints";  // made by Store::open
    Store open_recorded() { return Store::open(scratch_.path() + "/disk" + kRoot, *disk_).value(); }

    void save(const Store& store, SavingGang& gang, std::uint64_t step, const std::vector<CheckpointId>& keep) {
        const CheckpointId id = gang.id(step);
        const auto saved = gang.save(store, step, keep, [&](SavingGang::Done done) {
            Life& life = lives_[id];
            const std::size_t now = disk_->changes();
            if (done == SavingGang::Done::Manifest) life.committed = now;
            if (done == SavingGang::Done::Publish) life.published = now;
            if (done != SavingGang::Done::DeleteBegins) return;
            for (auto& [other, its] : lives_) {
                if (other != id && std::find(keep.begin(), keep.end(), other) == keep.end()) its.deleted = std::min(its.deleted, now);
            }
        });
        ASSERT_TRUE(saved.is_published());
        ASSERT_EQ(saved.problems, "");
        lives_[id].manifest = *saved.manifest;
    }

    // A folder in which the machine comes up again, for as long as the object lives.
    struct Rebuilt {
        Rebuilt(const RecordingDisk& disk, std::size_t cut, std::uint64_t seed, const std::string& path_) : path(path_) {
            fs::create_directories(path);
            disk.rebuild(cut, seed, path);
        }
        ~Rebuilt() { fs::remove_all(path); }
        Rebuilt(const Rebuilt&) = delete;
        Rebuilt& operator=(const Rebuilt&) = delete;
        std::string path;
    };
    Rebuilt rebuilt(std::size_t cut, std::uint64_t seed) const { return {*disk_, cut, seed, scratch_.path() + "/rebuilt"}; }

    // Nothing when all promises hold.
    std::string broken_promise(const Store& store, std::size_t cut, SavingGang& gang) const {
        const auto published = store.published();
        for (const auto& [id, life] : lives_) {
            const bool is_listed = std::count(published.begin(), published.end(), id) != 0;
            if (!is_listed && life.published <= cut && life.deleted > cut) return folder_name(id) + " was published and is not there";
            if (!is_listed) continue;
            auto found = store.open_published(id);
            const auto checked = found ? gang.check(*found, id.step) : Result<void>(found.error());
            if (!checked) return fmt::format("{} is published, and {}", folder_name(id), checked.error().message);
        }
        for (const auto& [id, life] : lives_) {  // may publish
            if (life.committed > cut) continue;
            auto found = store.find(id, life.manifest.digest);
            const auto checked = found ? gang.check(*found, id.step) : Result<void>(found.error());
            const bool may_be_gone = life.deleted <= cut && !found && found.error().code == Code::Damaged;
            if (!checked && !may_be_gone) return fmt::format("{} was committed: {}", folder_name(id), checked.error().message);
        }
        return "";
    }

    // The next attempt saves into what is there, and sweeps what lies about.
    void expect_the_next_attempt_saves(const Store& store) {
        const std::uint64_t step = 1000;
        const auto before = store.published();
        const auto saved = next_.save(store, step, before);
        ASSERT_TRUE(saved.is_published()) << (saved.failed ? saved.failed->message : saved.not_published->message);
        EXPECT_EQ(saved.problems, "");
        auto found = store.find(next_.id(step), saved.manifest->digest);
        ASSERT_TRUE(found.ok()) << found.error().message;
        const auto checked = next_.check(*found, step);
        EXPECT_TRUE(checked.ok()) << checked.error().message;
        for (const auto& entry : fs::directory_iterator(store.root())) {
            const std::string name = entry.path().filename().string();
            EXPECT_FALSE(name.starts_with(".tmp-") || name.starts_with(".del-")) << name << " is left over";
        }
    }

    // Every `stride`th cut, so many seeds at each.
    void lose_power_everywhere(SavingGang& gang, std::size_t stride, std::uint64_t seeds) {
        std::size_t losses = 0;
        for (std::size_t cut = 0; cut <= disk_->changes(); cut += stride) {
            for (std::uint64_t seed = 0; seed < seeds; ++seed, ++losses) {
                SCOPED_TRACE(fmt::format("cut {} (before: {}), seed {}", cut, disk_->describe(cut), seed));
                const Rebuilt machine = rebuilt(cut, seed);
                const auto store = Store::open(machine.path + kRoot);
                ASSERT_TRUE(store.ok()) << store.error().message;
                EXPECT_EQ(broken_promise(*store, cut, gang), "");
                if (losses % 5 == 0) expect_the_next_attempt_saves(*store);
                if (HasFailure()) return;
            }
        }
        fmt::print("power lost {} times, at one of {} of {} changes\n", losses, stride, disk_->changes());
    }

    ScratchFolder scratch_;
    std::unique_ptr<RecordingDisk> disk_;
    std::map<CheckpointId, Life> lives_;
    SavingGang next_{9, {2, 3000}};
};

TEST_F(PowerLoss, AtAnyMomentOfThreeSavesKeepsWhatWasPromised) {
    SavingGang gang(1, {2, 3000});
    {
        const Store store = open_recorded();
        save(store, gang, 1, {});
        save(store, gang, 2, {});  // the first is retired
        save(store, gang, 3, {});  // into whose space this is written
    }
    lose_power_everywhere(gang, 1, is_soak() ? 60 : 4);
}

TEST_F(PowerLoss, AroundADeadGangsHalfSaveKeepsWhatWasPromised) {
    SavingGang gang(1, {2, 3000});
    SavingGang after(2, {2, 3000});
    {
        const Store store = open_recorded();
        save(store, gang, 1, {});
        save(store, gang, 2, {gang.id(1)});
        save(store, gang, 3, {gang.id(2)});
        gang.die_after_ranks(store, 4, 1);
        save(store, gang, 4, {gang.id(3)});  // the same name again
        gang.die_after_ranks(store, 5, 2);
        save(store, after, 5, {gang.id(4)});
    }
    lose_power_everywhere(gang, is_soak() ? 1 : 4, is_soak() ? 30 : 3);
}

// Of a program that runs alone and starts afresh: the step is there already, from an older run.
TEST_F(PowerLoss, WhileACheckpointIsExchangedKeepsTheOldOrTheNew) {
    SavingGang gang(0, {2, 3000});
    const CheckpointId id = gang.id(1);
    std::array<std::uint64_t, 2> values{1, 50};
    std::array<std::size_t, 2> published{};
    std::array<Sha256, 2> digests{};
    {
        const Store store = open_recorded();
        for (std::size_t i = 0; i < 2; ++i) {
            const auto parts = gang.write_parts(store, 1, values[i]);
            ASSERT_TRUE(parts.ok());
            const auto manifest = store.write_manifest(id, *parts);
            ASSERT_TRUE(manifest.ok());
            digests[i] = manifest->digest;
            ASSERT_TRUE(store.publish(id, manifest->digest, IfThere::Exchange).ok());
            published[i] = disk_->changes();
        }
    }
    for (std::size_t cut = published[0]; cut <= disk_->changes(); ++cut) {
        for (std::uint64_t seed = 0; seed < 6; ++seed) {
            SCOPED_TRACE(fmt::format("cut {} (before: {}), seed {}", cut, disk_->describe(cut), seed));
            const Rebuilt machine = rebuilt(cut, seed);
            const Store store = Store::open(machine.path + kRoot).value();
            auto found = store.open_published(id);
            ASSERT_TRUE(found.ok()) << found.error().message;
            const Sha256 digest = seal_of(encode(found->manifest()));
            ASSERT_TRUE(digest == digests[1] || (digest == digests[0] && cut < published[1]));
            const auto checked = gang.check(*found, digest == digests[1] ? values[1] : values[0]);
            ASSERT_TRUE(checked.ok()) << checked.error().message;
        }
    }
}

// Each fsync of a save is there for a reason: without it some loss of power breaks a promise. A few are there twice.
TEST_F(PowerLoss, IsSurvivedBecauseOfTheFsyncs) {
    SavingGang gang(1, {2, 3000});
    {
        const Store store = open_recorded();
        save(store, gang, 1, {});
        save(store, gang, 2, {});
        save(store, gang, 3, {});
    }
    std::size_t syncs = 0;
    std::size_t needed = 0;
    // From the deletion of the first, whose space the third takes, to the publication of the third.
    for (std::size_t sync = lives_[gang.id(2)].published; sync < lives_[gang.id(3)].published; ++sync) {
        if (!disk_->is_sync(sync)) continue;
        ++syncs;
        disk_->forget(sync);
        std::string broken;
        for (std::size_t cut = sync + 1; broken.empty() && cut <= disk_->changes(); ++cut) {
            for (std::uint64_t seed = 0; broken.empty() && seed < 3; ++seed) {
                const Rebuilt machine = rebuilt(cut, seed);
                broken = broken_promise(Store::open(machine.path + kRoot).value(), cut, gang);
            }
        }
        needed += !broken.empty();
        disk_->remember(sync);
    }
    fmt::print("{} of {} fsyncs of a save are needed by the promises\n", needed, syncs);
    EXPECT_GE(needed, 7u);
}

// The model itself must be able to lose what was not synced, or the tests above prove nothing.
TEST_F(PowerLoss, OfARenameWithoutFsyncMayLoseNameOrBytes) {
    const std::string base = scratch_.path() + "/disk";
    const std::string payload(10'000, 'x');
    {
        const Fd folder(::open(base.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        const Fd file(disk_->open_at(folder.get(), "new", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
        ASSERT_TRUE(write_all_at(*disk_, file.get(), payload.data(), payload.size(), 0, "it").ok());
        ASSERT_EQ(disk_->rename_at(folder.get(), "new", folder.get(), "final", 0), 0);
    }
    bool is_missing = false;
    bool is_torn = false;
    bool is_whole = false;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        const Rebuilt machine = rebuilt(disk_->changes(), seed);
        const fs::path path = machine.path + "/final";
        if (!fs::exists(path)) {
            is_missing = true;
        } else {
            std::ifstream stream(path, std::ios::binary);
            const std::string content{std::istreambuf_iterator<char>(stream), {}};
            (content == payload ? is_whole : is_torn) = true;
        }
    }
    EXPECT_TRUE(is_missing);
    EXPECT_TRUE(is_torn);
    EXPECT_TRUE(is_whole);
}

}  // namespace
}  // namespace gangline::checkpoint
