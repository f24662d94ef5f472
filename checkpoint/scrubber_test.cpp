// Reading back on a clock of the test's own: what is read when, what is found, and what is left alone.

#include "checkpoint/scrubber.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include <fmt/format.h>

#include "base/process.h"
#include "checkpoint/shard.h"

namespace gangline::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kMostAtOnce = 1u << 20;

class AScrubber : public ::testing::Test {
  protected:
    AScrubber() : root_((fs::temp_directory_path() / ("gangline-scrub-" + random_hex(6))).string()), store_(Store::open(root_).value()) {}
    ~AScrubber() override { fs::remove_all(root_); }

    // Two shards of somewhat more than two and a half mebibytes each.
    void write(std::uint64_t step, std::uint64_t job = 7) {
        std::vector<Sha256> parts;
        for (std::uint32_t rank = 0; rank < 2; ++rank) {
            std::vector<std::uint64_t> values(330'000);
            std::iota(values.begin(), values.end(), step + rank);
            const std::vector<Tensor> tensors{{"a", DType::U64, Policy::PerRank, {values.size()}, {0}, {values.size()}, values.data()}};
            const auto folder = store_.temporary({step, 1});
            const auto part = write_shard(folder->get(), {job, step, 1, rank, 2, tensors});
            parts.push_back(store_.write_part({step, 1}, part.value())->digest);
        }
        const auto sealed = store_.write_manifest({step, 1}, parts);
        ASSERT_TRUE(store_.publish({step, 1}, sealed->digest).ok());
    }
    std::string file(std::uint64_t step, const std::string& name = "shard-00001-of-00002.h5") const { return root_ + "/" + folder_name({step, 1}) + "/" + name; }
    void flip_bit(std::uint64_t step, std::size_t at) const {
        std::fstream stream(file(step), std::ios::in | std::ios::out | std::ios::binary);
        stream.seekg(static_cast<std::streamoff>(at));
        const char byte = static_cast<char>(stream.get() ^ 0x10);
        stream.seekp(static_cast<std::streamoff>(at));
        stream.put(byte);
        ASSERT_TRUE(stream.good());
    }
    // Runs it until it has nothing to do; its words.
    std::vector<std::string> run(Scrubber& scrubber) {
        std::vector<std::string> said;
        for (int i = 0; i < 200; ++i) {
            const Scrubber::Outcome outcome = scrubber.step(clock_);
            bytes_ += outcome.bytes;
            if (outcome.verified) said.push_back(fmt::format("verified {}", outcome.verified->step));
            if (outcome.tainted) {
                said.push_back(fmt::format("tainted {}", outcome.tainted->id.step));
                what_ = outcome.tainted->what;
                EXPECT_TRUE(store_.set_aside(outcome.tainted->id).ok());
            }
            if (outcome.bytes == 0 && !outcome.verified && !outcome.tainted) return said;
            if (outcome.next <= clock_.steady) continue;
            clock_.unix_ms += to_ms(outcome.next - clock_.steady);
            clock_.steady = outcome.next;
        }
        ADD_FAILURE() << "it never rests";
        return said;
    }
    std::uint64_t total(std::uint64_t step) const { return store_.open_published({step, 1})->manifest().total_bytes(); }

    std::string root_;
    Store store_;
    ScrubOptions options_{.job = 7, .bytes_per_s = 1u << 20};
    Now clock_{TimePoint(seconds(100)), 1'700'000'000'000};
    std::uint64_t bytes_ = 0;
    std::string what_;
};

TEST_F(AScrubber, ReadsEachBlockOnceNewestAndOldestInTurnsAndThenRests) {
    for (const std::uint64_t step : {100u, 150u, 200u}) write(step);
    Scrubber scrubber(store_, options_);
    EXPECT_THAT(run(scrubber), ElementsAre("verified 200", "verified 100", "verified 150"));
    EXPECT_EQ(bytes_, total(100) + total(150) + total(200));
    EXPECT_EQ(store_.marks({150, 1}).verified_unix_s, std::optional(clock_.unix_ms / 1000));
    EXPECT_EQ(scrubber.step(clock_).next, clock_.steady + options_.rest);
    write(300);
    EXPECT_THAT(run(scrubber), ElementsAre("verified 300"));
    Scrubber another(store_, options_);  // of the program's next start
    EXPECT_THAT(run(another), ElementsAre());
    clock_.unix_ms += to_ms(options_.again);
    EXPECT_THAT(run(another), ElementsAre("verified 200", "verified 100", "verified 150", "verified 300"));  // as long ago as they were
}

TEST_F(AScrubber, ReadsNoMoreThanItsBudgetEachSecond) {
    write(100);
    Scrubber scrubber(store_, options_);
    std::uint64_t read = 0;
    const TimePoint begun = clock_.steady;
    while (read < total(100)) {
        const Scrubber::Outcome outcome = scrubber.step(clock_);
        ASSERT_LE(outcome.bytes, kMostAtOnce);
        read += outcome.bytes;
        clock_.steady = std::max(clock_.steady, outcome.next);
        ASSERT_LE(static_cast<double>(read), static_cast<double>(options_.bytes_per_s) * to_seconds(clock_.steady - begun) + static_cast<double>(kMostAtOnce) + 1);
    }
}

TEST_F(AScrubber, FindsAFlippedBitAndSetsThatCheckpointAside) {
    for (const std::uint64_t step : {100u, 200u, 300u}) write(step);
    flip_bit(200, 1'500'000);
    Scrubber scrubber(store_, options_);
    EXPECT_THAT(run(scrubber), ElementsAre("verified 300", "verified 100", "tainted 200"));
    EXPECT_THAT(what_, HasSubstr("shard-00001-of-00002.h5: block 5 (bytes 1310720 to 1572864) does not have its checksum"));
    EXPECT_THAT(store_.published(), ElementsAre(CheckpointId{100, 1}, CheckpointId{300, 1}));
    EXPECT_THAT(store_.aside(), ElementsAre(CheckpointId{200, 1}));
    EXPECT_TRUE(fs::exists(root_ + "/.bad-" + folder_name({200, 1}) + "/MANIFEST"));  // for diagnosis
    EXPECT_EQ(store_.delete_old({7, {300, 1}, {}}), "");
    EXPECT_THAT(store_.aside(), ElementsAre(CheckpointId{200, 1}));
    write(400);
    ASSERT_TRUE(store_.set_aside({400, 1}).ok());
    EXPECT_EQ(store_.delete_old({7, {500, 1}, {}}), "");
    EXPECT_THAT(store_.aside(), ElementsAre(CheckpointId{400, 1}));  // the newest alone
}

TEST_F(AScrubber, FindsWhatIsMissingShortOrAManifestThatIsNotWhole) {
    for (const std::uint64_t step : {100u, 200u, 300u}) write(step);
    fs::remove(file(100));
    fs::resize_file(file(200), fs::file_size(file(200)) - 4096);
    std::ofstream(file(300, "MANIFEST"), std::ios::app) << "x";
    Scrubber scrubber(store_, options_);
    EXPECT_THAT(run(scrubber), ElementsAre("tainted 300", "tainted 100", "tainted 200"));
}

TEST_F(AScrubber, LeavesAloneWhatIsDeletedMeanwhileOrAnothers) {
    write(100, 8);
    write(200);
    Scrubber scrubber(store_, options_);
    ASSERT_GT(scrubber.step(clock_).bytes, 0u);
    EXPECT_EQ(store_.delete_old({7, {900, 1}, {}}), "");  // waits: it is being read
    EXPECT_THAT(store_.published(), ElementsAre(CheckpointId{100, 1}, CheckpointId{200, 1}));
    fs::rename(root_ + "/" + folder_name({200, 1}), root_ + "/.del-" + folder_name({200, 1}));  // another process does not
    fs::resize_file(root_ + "/.del-" + folder_name({200, 1}) + "/shard-00001-of-00002.h5", 0);
    EXPECT_THAT(run(scrubber), ElementsAre());
    EXPECT_THAT(store_.published(), ElementsAre(CheckpointId{100, 1}));
}

TEST_F(AScrubber, LeavesWhatIsToBeDeletedAndGoesOnWithWhatStays) {
    write(100);
    write(200);
    Scrubber scrubber(store_, options_);
    ASSERT_GT(scrubber.step(clock_).bytes, 0u);  // of 200
    scrubber.leave_unless([](const CheckpointId& id) { return id.step == 200; });
    ASSERT_GT(scrubber.step(clock_).bytes, 0u);
    EXPECT_EQ(store_.delete_old({7, {300, 1}, {{100, 1}}}), "");
    EXPECT_THAT(store_.published(), ElementsAre(CheckpointId{100, 1}, CheckpointId{200, 1}));
    scrubber.leave_unless([](const CheckpointId& id) { return id.step == 100; });
    EXPECT_EQ(store_.delete_old({7, {300, 1}, {{100, 1}}}), "");
    EXPECT_THAT(store_.published(), ElementsAre(CheckpointId{100, 1}));
    EXPECT_THAT(run(scrubber), ElementsAre("verified 100"));
}

TEST_F(AScrubber, SaysNothingAgainstACheckpointOfANewerProgram) {
    write(100);
    std::string manifest = encode(store_.open_published({100, 1})->manifest());
    manifest.resize(manifest.size() - 32);
    manifest[8] = 9;  // the version
    std::ofstream(file(100, "MANIFEST"), std::ios::binary) << seal(manifest);
    EXPECT_EQ(store_.open_published({100, 1}).error().code, Code::Refused);
    Scrubber scrubber(store_, options_);
    EXPECT_THAT(run(scrubber), ElementsAre());
    EXPECT_THAT(store_.published(), ElementsAre(CheckpointId{100, 1}));
}

}  // namespace
}  // namespace gangline::checkpoint
