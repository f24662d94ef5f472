// Every call of a whole save fails once, with every error; comes short; is torn; is the last one before a SIGKILL. Afterwards:
//
//   a save that does not say that it failed restores bit for bit      nothing wrong is accepted      the older checkpoint restores
//   the next save succeeds                                            no descriptor is left          no call waits for ever

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include <fmt/format.h>

#include "checkpoint/faulty_disk.h"
#include "checkpoint/saving_gang.h"

namespace gangline::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::array kEveryError{EIO, ENOSPC, EDQUOT, EFBIG, EINTR, EAGAIN};
constexpr unsigned kLongestSeconds = 60;  // for one save; then SIGALRM ends the test, which names what hung

std::size_t open_descriptors() {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator{}));
}

bool is_soak() { return std::getenv("GANGLINE_SOAK") != nullptr; }

std::array<char, 160> hanging{};
void say_what_hangs(int) {
    (void)!::write(STDERR_FILENO, hanging.data(), ::strnlen(hanging.data(), hanging.size()));
    ::_exit(1);
}

// While it lives, a save that waits for ever ends the test with the fault's name.
class Watchdog {
  public:
    explicit Watchdog(const std::string& what) {
        fmt::format_to_n(hanging.data(), hanging.size() - 1, "hangs: {}\n", what).out[0] = '\0';
        ::signal(SIGALRM, say_what_hangs);
        ::alarm(kLongestSeconds);
    }
    ~Watchdog() { ::alarm(0); }
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;
};

// A folder with two published checkpoints and a pool that holds the shards of a third: every save finds all paths open.
class Faults : public ::testing::Test {
  protected:
    explicit Faults(Blocks blocks = Blocks::Plain, const SavingGang::Size& size = {}) : size_(size), disk_(blocks), gang_(1, size) {}

    struct Files {
        std::size_t published = 0;
        std::size_t pool = 0;
        std::size_t others = 0;
    };
    Files files() const {
        Files found;
        for (const auto& entry : fs::directory_iterator(scratch_.path())) {
            const std::string name = entry.path().filename().string();
            if (name == ".pool") {
                found.pool = static_cast<std::size_t>(std::distance(fs::directory_iterator(entry), fs::directory_iterator{}));
            } else {
                ++(parse_folder_name(name) ? found.published : found.others);
            }
        }
        return found;
    }

    // Saves without faults until the folder is as it was: the next save must succeed, and all that lies about is swept.
    void settle() {
        disk_.heal();
        for (int round = 0; round < 4; ++round) {
            std::vector<CheckpointId> older = store_.published();
            std::erase_if(older, [&](const CheckpointId& id) { return lost_.contains(id); });
            if (older.size() > 1) older.erase(older.begin(), older.end() - 1);
            const auto saved = gang_.save(store_, ++step_, older);
            ASSERT_TRUE(saved.is_published()) << (saved.failed ? saved.failed->message : "not published");
            ASSERT_EQ(saved.problems, "");
            for (const CheckpointId& id : lost_) fs::remove_all(scratch_.path() + "/" + folder_name(id));  // a damaged one is kept until somebody looks at it
            lost_.clear();
            const Files now = files();
            if (now.published == 2 && now.pool == size_.world && now.others == 0) return;
        }
        const Files now = files();
        FAIL() << fmt::format("after four saves without faults {} are published, {} lie in the pool, {} are left over", now.published, now.pool, now.others);
    }

    // What is there now is right, or refused where a tear may be in it.
    void expect_nothing_wrong(const SavingGang::Outcome& saved, std::uint64_t older, bool is_torn) {
        const CheckpointId id = gang_.id(step_);
        auto before = store_.open_published(gang_.id(older));
        ASSERT_TRUE(before.ok()) << "the older checkpoint is lost: " << before.error().message;
        const auto restored = gang_.check(*before, older);
        ASSERT_TRUE(restored.ok()) << "the older checkpoint is lost: " << restored.error().message;
        if (saved.manifest) {
            auto found = store_.find(id, saved.manifest->digest);
            const auto checked = found ? gang_.check(*found, step_) : Result<void>(found.error());
            ASSERT_TRUE(checked.ok() || (is_torn && checked.error().code == Code::Damaged)) << "a saved checkpoint is lost: " << checked.error().message;
            if (!checked) lost_.insert(id);
        }
        const auto published = store_.published();
        ASSERT_TRUE(saved.manifest || !std::count(published.begin(), published.end(), id)) << "a failed save is published";
        ASSERT_TRUE(saved.is_published() || !is_torn || !std::count(published.begin(), published.end(), id)) << "a torn manifest is published";
        for (const CheckpointId& one : published) {
            if (one == id || one.step == older) continue;  // looked at above
            auto found = store_.open_published(one);
            const auto checked = found ? gang_.check(*found, one.step) : Result<void>(found.error());
            ASSERT_TRUE(checked.ok() || lost_.contains(one)) << checked.error().message;
        }
    }

    // One save with this fault. False: it has fewer such calls.
    bool strike(const Fault& fault) {
        const std::uint64_t older = store_.published().back().step;
        const std::size_t descriptors = open_descriptors();
        SavingGang::Outcome saved;
        std::uint64_t struck_before_deletion = 0;
        {
            const Watchdog watchdog(to_text(fault));
            disk_.plan(fault);
            saved = gang_.save(store_, ++step_, {gang_.id(older)}, [&](SavingGang::Done done) {
                if (done == SavingGang::Done::DeleteBegins) struck_before_deletion = disk_.struck();
            });
        }
        const bool has_struck = disk_.struck() != 0;
        disk_.heal();
        EXPECT_EQ(open_descriptors(), descriptors) << to_text(fault);
        expect_nothing_wrong(saved, older, fault.effect == Effect::Torn);
        // Of two fdatasyncs of a recycled file the first comes before its bytes: when it fails, a fresh file is taken.
        const bool is_sync = fault.call == Call::Sync || (fault.call == Call::SyncData && fault.nth % 2 == 0);
        if (is_sync && !is_full(fault) && struck_before_deletion != 0) {  // of a full disk the shard is written again
            EXPECT_FALSE(saved.is_published()) << to_text(fault) << ": durable, it says, and a sync has failed";
        }
        expect_the_right_word(fault, saved);
        settle();
        EXPECT_EQ(open_descriptors(), descriptors) << to_text(fault);
        return has_struck;
    }

    static bool is_full(const Fault& fault) { return fault.error == ENOSPC || fault.error == EDQUOT || fault.error == EFBIG; }

    static void expect_the_right_word(const Fault& fault, const SavingGang::Outcome& saved) {
        const bool is_interrupted = fault.effect == Effect::Fail && (fault.error == EINTR || fault.error == EAGAIN);
        if (fault.call == Call::Write && (is_interrupted || fault.effect == Effect::Short)) {
            EXPECT_TRUE(saved.is_published()) << to_text(fault) << ": the rest was to be written again";
        }
        if (is_full(fault) && saved.failed && (fault.call == Call::Write || fault.call == Call::Block || fault.call == Call::Reserve)) {
            EXPECT_EQ(saved.failed->code, Code::NoSpace) << to_text(fault) << ": " << saved.failed->message;
        }
    }

    std::size_t strike_each(Call call, Effect effect, int error) {
        std::size_t faults = 0;
        for (Fault fault{call, 1, effect, error};; ++fault.nth) {
            SCOPED_TRACE(to_text(fault));
            if (!strike(fault) || HasFailure()) break;
            ++faults;
        }
        return faults;
    }

    void SetUp() override { settle(); }

    ScratchFolder scratch_;
    SavingGang::Size size_;
    FaultyDisk disk_;
    Store store_ = Store::open(scratch_.path(), disk_).value();
    SavingGang gang_;
    std::uint64_t step_ = 0;
    std::set<CheckpointId> lost_;  // torn, and refused
};

TEST_F(Faults, InAnyCallOfASaveLoseThatSaveAtMost) {
    std::size_t faults = 0;
    for (const Call call : kCalls) {
        for (const int error : kEveryError) faults += strike_each(call, Effect::Fail, error);
        if (HasFailure()) return;
    }
    fmt::print("{} faults in single calls\n", faults);
    EXPECT_GT(faults, 200u);
}

TEST_F(Faults, ThatAreOnlyALostAnswerLoseThatSaveAtMost) {
    std::size_t faults = 0;
    for (const Call call : kCalls) faults += strike_each(call, Effect::FailDone, EIO);
    fmt::print("{} lost answers\n", faults);
    EXPECT_GT(faults, 30u);
}

TEST_F(Faults, ThatTearOrShortenAWriteAreMetByTheChecksums) {
    const std::size_t shortened = strike_each(Call::Write, Effect::Short, 0);
    const std::size_t torn = strike_each(Call::Write, Effect::Torn, 0) + strike_each(Call::Block, Effect::Torn, 0);
    fmt::print("{} short writes, {} torn ones\n", shortened, torn);
    EXPECT_GT(shortened, 4u);
    EXPECT_GT(torn, 6u);
}

TEST_F(Faults, ThatComeInSwarmsLoseTheirSavesAtMost) {
    std::uint64_t faults = 0;
    std::size_t published = 0;
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
        SCOPED_TRACE(fmt::format("seed {}", seed));
        const std::uint64_t older = store_.published().back().step;
        const std::size_t descriptors = open_descriptors();
        SavingGang::Outcome saved;
        {
            const Watchdog watchdog(fmt::format("seed {}", seed));
            disk_.plan_at_random(seed, seed % 2 == 0 ? 10 : 40);
            saved = gang_.save(store_, ++step_, {gang_.id(older)});
        }
        faults += disk_.struck();
        published += saved.is_published();
        disk_.heal();
        expect_nothing_wrong(saved, older, false);
        settle();
        ASSERT_EQ(open_descriptors(), descriptors);
        if (HasFailure()) return;
    }
    fmt::print("{} faults in swarms; {} of 100 saves published\n", faults, published);
    EXPECT_GT(faults, 100u);
    EXPECT_GT(published, 0u);
}

TEST_F(Faults, OfTheFsyncBehindALostNameLeaveWhatItNamed) {
    disk_.heal();
    ++step_;
    ASSERT_TRUE(gang_.save(store_, step_, {gang_.id(step_ - 1)}).is_published());
    disk_.plan({Call::Sync, disk_.calls(Call::Sync), Effect::Fail, EIO});  // a save's last one, in delete_old
    ++step_;
    const auto saved = gang_.save(store_, step_, {gang_.id(step_ - 1)});
    ASSERT_TRUE(saved.is_published());
    EXPECT_EQ(disk_.struck(), 1u);
    EXPECT_NE(saved.problems.find("fsync"), std::string::npos) << saved.problems;
    const fs::path doomed = fmt::format("{}/.del-{}", scratch_.path(), folder_name(gang_.id(step_ - 2)));
    ASSERT_TRUE(fs::exists(doomed));
    EXPECT_EQ(std::distance(fs::directory_iterator(doomed), fs::directory_iterator{}), std::ptrdiff_t{size_.world} + 1);
    settle();
    EXPECT_FALSE(fs::exists(doomed));
}

TEST_F(Faults, InMakingTheFolderItselfAreTold) {
    const std::string root = scratch_.path() + "/jobs/7/checkpoints/";
    const std::size_t descriptors = open_descriptors();
    for (const Call call : {Call::MakeFolder, Call::Sync}) {
        for (std::uint64_t nth = 1; nth <= 3; ++nth) {
            disk_.plan({call, nth, Effect::Fail, EIO});
            EXPECT_FALSE(Store::open(root, disk_).ok());
            EXPECT_FALSE(fs::exists(root)) << "it would be taken for durable";
            EXPECT_EQ(open_descriptors(), descriptors);
            disk_.heal();
            EXPECT_TRUE(Store::open(root, disk_).ok());
            fs::remove_all(scratch_.path() + "/jobs");
        }
    }
}

// ---- blocks out of order

class LateBlocks : public Faults {
  protected:
    LateBlocks() : Faults(Blocks::Late, {1, 7 * kRunBytes / 16}) {}  // four runs
};

TEST_F(LateBlocks, AreWaitedForAndARecycledFilesFirstBlockIsTheLast) {
    for (int round = 0; round < 2; ++round) {
        disk_.heal();
        const std::uint64_t older = step_;
        const auto saved = gang_.save(store_, ++step_, {gang_.id(older)});
        ASSERT_TRUE(saved.is_published());
        ASSERT_EQ(disk_.landed().size(), 4u);
        EXPECT_EQ(disk_.landed().back(), 0u) << "the file's head was written while its blocks were still on their way";
        EXPECT_FALSE(std::is_sorted(disk_.landed().begin(), disk_.landed().end() - 1)) << "this test reorders nothing";
        expect_nothing_wrong(saved, older, false);
    }
}

TEST_F(LateBlocks, ThatFailWhenTheyLandAreFailures) {
    for (const Fault& fault : {Fault{Call::Write, 3, Effect::Fail, EIO}, Fault{Call::Write, 5, Effect::Fail, ENOSPC}, Fault{Call::Finish, 2, Effect::Fail, EIO},
                               Fault{Call::Write, 4, Effect::Short, 0}, Fault{Call::Write, 2, Effect::Torn, 0},
                               Fault{Call::Block, 4, Effect::Torn, 0}, Fault{Call::SyncData, 2, Effect::Fail, EIO}}) {
        SCOPED_TRACE(to_text(fault));
        EXPECT_TRUE(strike(fault));
        if (HasFailure()) return;
    }
}

// ---- without a copy

class StraightFaults : public Faults {
  protected:
    StraightFaults() : Faults(Blocks::Plain, {1, 7 * kRunBytes / 16, true}) {}  // three of its four runs lie within the slice
};

TEST_F(StraightFaults, LoseThatSaveAtMost) {
    std::size_t faults = 0;
    for (const Call call : {Call::Write, Call::Block, Call::Finish, Call::SyncData, Call::Sync, Call::Rename}) {
        for (const int error : {EIO, ENOSPC}) faults += strike_each(call, Effect::Fail, error);
        if (HasFailure()) return;
    }
    faults += strike_each(Call::Write, Effect::Short, 0);
    fmt::print("{} faults in saves without a copy\n", faults);
    EXPECT_GT(faults, 50u);
}

// Notes at each write whether the image says that its tensors may be changed.
class WatchingDisk : public FaultyDisk {
  public:
    explicit WatchingDisk(ShardImage& image) : FaultyDisk(Blocks::Late), image_(image) {}
    ssize_t write_at(int fd, const void* bytes, std::size_t size, std::uint64_t place) override {
        (image_.is_free() ? while_free_ : while_held_) += 1;
        return FaultyDisk::write_at(fd, bytes, size, place);
    }
    int while_free_ = 0;
    int while_held_ = 0;

  private:
    ShardImage& image_;
};

TEST(AStraightImage, IsWrittenFromItsTensorsWhichAreFreeOnceTheDiskHasThem) {
    const ScratchFolder scratch;
    std::vector<std::uint64_t, PageAllocator<std::uint64_t>> values(7 * kRunBytes / 16);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = i * 0x9E3779B97F4A7C15u;
    const auto before = values;
    std::uint32_t small = 77;
    const std::vector<Tensor> tensors{{"large", DType::U64, Policy::Sliced, {values.size()}, {0}, {values.size()}, values.data()},
                                      {"small", DType::U32, Policy::Replicated, {}, {}, {}, &small}};
    const ShardPlan plan{7, 9, 1, 0, 1, tensors};
    ShardImage image;
    ASSERT_TRUE(image.prepare(plan).ok());
    ASSERT_GT(image.straight_bytes(tensors), 2 * kRunBytes);
    ASSERT_TRUE(image.begin_straight(9, tensors).ok());
    EXPECT_GE(image.run(1), static_cast<const void*>(values.data()));
    EXPECT_LT(image.run(1), static_cast<const void*>(values.data() + values.size()));
    while (image.copy_one()) {}
    EXPECT_FALSE(image.is_free()) << "the disk has nothing yet";
    WatchingDisk disk(image);
    const Fd folder(::open(scratch.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const auto part = write_image(disk, folder.get(), image, plan);
    ASSERT_TRUE(part.ok()) << part.error().message;
    EXPECT_EQ(disk.while_held_, 4);
    EXPECT_EQ(disk.while_free_, 0);
    image.wait_free();
    std::fill(values.begin(), values.end(), 0);
    EXPECT_FALSE(write_image(disk, folder.get(), image, plan).ok()) << "there is nothing left to write it from";
    Checkpoint checkpoint(Fd(::dup(folder.get())), parse(encode(*part)).value(), scratch.path());
    const auto restored = checkpoint.restore(tensors, 0, 1);
    ASSERT_TRUE(restored.ok()) << restored.error().message;
    EXPECT_EQ(values, before);
}

// The kernel's own ring meets a limit in the middle of its blocks: one comes short, the others fail, and all come back.
TEST(TheBlockWriter, MeetsALimitAmidItsBlocksAndEnds) {
    const ScratchFolder scratch;
    constexpr std::size_t kSize = 65536;
    constexpr std::size_t kMost = 10 * kSize + 3 * kDiskAlignment;
    const std::string path = scratch.path() + "/file";
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(kLongestSeconds);
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{kMost, kMost};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        alignas(kDiskAlignment) static std::array<char, kSize> block;
        block.fill('x');
        Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_DIRECT, 0600));
        const bool is_direct = static_cast<bool>(file);
        if (!file) file = Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
        const auto writer = real_disk().writer(file.get(), is_direct);
        for (std::size_t i = 0; i < 20; ++i) {
            if (!writer->write(i * kSize, block.data(), block.size())) break;
        }
        const auto finished = writer->finish();
        ::_exit(!finished && finished.error().code == Code::NoSpace ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_LE(fs::file_size(path), kMost);
}

TEST(TheBlockWriter, OfAFileThatCannotBeWrittenFailsAndEnds) {
    const ScratchFolder scratch;
    std::ofstream(scratch.path() + "/file") << "old";
    const Fd file(::open((scratch.path() + "/file").c_str(), O_RDONLY | O_CLOEXEC));
    alignas(kDiskAlignment) static std::array<char, kDiskAlignment> block{};
    for (const bool is_direct : {true, false}) {
        const auto writer = real_disk().writer(file.get(), is_direct);
        bool has_failed = false;
        for (std::uint64_t i = 0; i < 20; ++i) has_failed = has_failed || !writer->write(i * kDiskAlignment, block.data(), block.size());
        EXPECT_TRUE(has_failed);
        EXPECT_TRUE(!is_direct || !writer->finish().ok());
    }
    EXPECT_EQ(fs::file_size(scratch.path() + "/file"), 3u);
}

TEST_F(LateBlocks, WithAFlippedBitAreNamedByFileAndBlock) {
    auto found = store_.open_published(gang_.id(step_));
    ASSERT_TRUE(found.ok());
    const ShardRecord shard = found->manifest().shards.at(0);
    const std::string path = fmt::format("{}/{}/{}", scratch_.path(), folder_name(gang_.id(step_)), shard.name);
    std::mt19937_64 random(9);
    const Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(file);
    std::size_t flips = 0;
    for (std::uint64_t block = 0; block < shard.block_crcs.size(); ++block) {
        const std::uint64_t begin = block * kBlockBytes;
        const std::uint64_t size = std::min(kBlockBytes, shard.size - begin);
        for (const std::uint64_t at : {std::uint64_t{0}, size - 1, random() % size, random() % size, random() % size}) {
            const auto place = static_cast<off_t>(begin + at);
            unsigned char was = 0;
            ASSERT_EQ(::pread(file.get(), &was, 1, place), 1);
            const auto flipped = static_cast<unsigned char>(was ^ (1u << random() % 8));
            ASSERT_EQ(::pwrite(file.get(), &flipped, 1, place), 1);
            const auto verified = found->verify();
            ASSERT_FALSE(verified.ok()) << "byte " << begin + at;
            EXPECT_EQ(verified.error().code, Code::Damaged);
            EXPECT_NE(verified.error().message.find(fmt::format("{}: block {} ", path, block)), std::string::npos) << verified.error().message;
            ASSERT_EQ(::pwrite(file.get(), &was, 1, place), 1);
            ++flips;
        }
    }
    EXPECT_TRUE(found->verify().ok());
    fmt::print("{} flipped bits in {} blocks, each named\n", flips, shard.block_crcs.size());
}

TEST_F(Faults, OfASingleBitAreFoundWhereverItLies) {
    auto found = store_.open_published(gang_.id(step_));
    ASSERT_TRUE(found.ok());
    std::mt19937_64 random(10);
    for (int i = 0; i < 400; ++i) {
        const ShardRecord& shard = found->manifest().shards.at(random() % size_.world);
        const std::string path = fmt::format("{}/{}/{}", scratch_.path(), folder_name(gang_.id(step_)), shard.name);
        const Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
        const auto place = static_cast<off_t>(random() % shard.size);
        unsigned char was = 0;
        ASSERT_EQ(::pread(file.get(), &was, 1, place), 1);
        const auto flipped = static_cast<unsigned char>(was ^ (1u << random() % 8));
        ASSERT_EQ(::pwrite(file.get(), &flipped, 1, place), 1);
        const auto verified = found->verify();
        ASSERT_FALSE(verified.ok()) << "byte " << place;
        ASSERT_NE(verified.error().message.find(path + ": block 0 "), std::string::npos) << verified.error().message;
        ASSERT_EQ(::pwrite(file.get(), &was, 1, place), 1);
    }
}

// ---- killed

class Killed : public Faults {
  protected:
    Killed() : Faults(Blocks::Real, {3, 5000}) {}

    // A child saves, many times when asked, and is killed at its nth call. False: it ended by itself.
    bool kill_at(const Fault& fault, std::uint64_t saves, int& status) {
        const pid_t child = ::fork();
        if (child == 0) {
            ::alarm(kLongestSeconds);
            disk_.plan(fault);
            for (std::uint64_t i = 0; i < saves; ++i) {
                const auto older = store_.published();
                const auto saved = gang_.save(store_, ++step_, {older.back()});
                if (!saved.is_published() || !saved.problems.empty()) ::_exit(2);
            }
            ::_exit(0);
        }
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    }

    // What is published holds what its name says; returns how much that is.
    std::size_t expect_all_right(std::uint64_t oldest) {
        const auto published = store_.published();
        EXPECT_FALSE(published.empty());
        EXPECT_TRUE(published.empty() || published.back().step >= oldest) << "the older checkpoint is lost";
        for (const CheckpointId& id : published) {
            auto found = store_.open_published(id);
            const auto checked = found ? gang_.check(*found, id.step) : Result<void>(found.error());
            EXPECT_TRUE(checked.ok()) << checked.error().message;
            step_ = std::max(step_, id.step);
        }
        return published.size();
    }

    std::size_t accepted_ = 0;
    std::size_t left_over_ = 0;
};

TEST_F(Killed, AtEveryCallOfASaveLeaveNothingWrongAndTheNextSaveSweeps) {
    std::size_t points = 0;
    for (const Effect effect : {Effect::Kill, Effect::KillAmid}) {
        for (Fault fault{std::nullopt, 1, effect, 0};; ++fault.nth) {
            SCOPED_TRACE(to_text(fault));
            int status = 0;
            if (!kill_at(fault, 1, status)) {
                ASSERT_EQ(status, 0) << "the child failed by itself";
                settle();
                break;
            }
            ++points;
            accepted_ += expect_all_right(step_);
            left_over_ += files().others;
            if (fault.nth % 2 == 0) ++step_;  // the next save has the killed one's name, or another
            settle();
            if (HasFailure()) return;
        }
    }
    fmt::print("killed at {} points of a save; {} checkpoints accepted, all right; {} left-over folders swept\n", points, accepted_, left_over_);
    EXPECT_GE(points, 100u);
    EXPECT_GT(left_over_, 0u);
}

TEST_F(Killed, AtRandomCallsOfManySavesLeaveNothingWrong) {
    std::mt19937_64 random(is_soak() ? std::random_device{}() : 77);
    const int rounds = is_soak() ? 1500 : 40;
    std::size_t points = 0;
    for (int round = 0; round < rounds; ++round) {
        const Fault fault{std::nullopt, 1 + random() % 400, random() % 2 == 0 ? Effect::Kill : Effect::KillAmid, 0};
        SCOPED_TRACE(to_text(fault));
        int status = 0;
        const std::uint64_t before = step_;
        if (!kill_at(fault, 5, status)) {
            ASSERT_EQ(status, 0) << "the child failed by itself";
        } else {
            ++points;
        }
        accepted_ += expect_all_right(before);
        left_over_ += files().others;
        if (random() % 3 != 0) continue;  // the next child takes over what lies there
        settle();
        if (HasFailure()) return;
    }
    settle();
    fmt::print("killed at {} random points; {} checkpoints accepted, all right; {} left-over folders\n", points, accepted_, left_over_);
}

}  // namespace
}  // namespace gangline::checkpoint
