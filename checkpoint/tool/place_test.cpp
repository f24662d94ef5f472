// Which checkpoint is meant, in which state it is, and what verify finds.

#include "checkpoint/tool/place.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "checkpoint/tool/test_folder.h"
#include "checkpoint/tool/verify.h"

namespace gangline::checkpoint::tool {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class Places : public Folder {};

TEST_F(Places, AreFoldersStepFoldersAndSteps) {
    write(kFirst);
    write(kSecond);
    write({200, 2});
    EXPECT_EQ(open_one(place_of(Words{root_ + "/"}).value()).value().id, (CheckpointId{200, 2}));
    EXPECT_EQ(open_one(place_of(Words{path(kFirst) + "/"}).value()).value().id, kFirst);
    EXPECT_EQ(place_of(Words{root_, "200"}).value().only, (CheckpointId{200, 2}));  // of the newest attempt
    EXPECT_EQ(place_of(Words{root_, "step-000000000200-e000001"}).value().only, kSecond);
    EXPECT_EQ(place_of(Words{root_, "300"}).error().code, Code::NotFound);
    EXPECT_EQ(place_of(Words{root_, "newest"}).error().code, Code::InvalidArgument);
    EXPECT_EQ(place_of(Words{root_ + "/none"}).error().code, Code::NotFound);
    EXPECT_FALSE(fs::exists(root_ + "/none"));  // looking makes nothing
    EXPECT_EQ(place_of(Words{path(kFirst), "100"}).error().code, Code::InvalidArgument);
}

TEST_F(Places, OneLevelTooHighAreToldTheJobsFolder) {
    fs::create_directories(root_ + "/job-12");
    EXPECT_THAT(open_one(place()).error().message, HasSubstr("give " + root_ + "/job-12"));
}

TEST_F(Places, AHigherStepOfAnEarlierAttemptIsOlder) {
    write({900, 1});
    write({500, 2});
    EXPECT_EQ(open_one(place()).value().id, (CheckpointId{500, 2}));
    EXPECT_EQ(entries_of(place()).value().back().id, (CheckpointId{500, 2}));
}

TEST_F(Places, SayInWhichStateEachCheckpointIs) {
    for (const std::uint64_t step : {100u, 200u, 300u, 400u, 500u}) write({step, 1});
    flip_byte(path({200, 1}, "MANIFEST"), 40);
    fs::remove(path({300, 1}, "shard-00001-of-00003.h5"));
    fs::rename(path({400, 1}), root_ + "/.tmp-" + folder_name({400, 1}));
    fs::rename(path({500, 1}), root_ + "/.del-" + folder_name({500, 1}));
    fs::create_directories(root_ + "/step-000000000600-e000001.backup");
    write({700, 1});
    ASSERT_TRUE(Store::open(root_)->set_aside({700, 1}).ok());
    const auto entries = entries_of(place()).value();
    ASSERT_EQ(entries.size(), 6u);
    auto state_of = [&](std::uint64_t step) {
        for (const Entry& entry : entries) {
            if (entry.id.step == step) return std::pair(entry.state, entry.why);
        }
        return std::pair(State::Deleting, std::string("missing"));
    };
    EXPECT_EQ(state_of(100).first, State::Durable);
    EXPECT_EQ(state_of(200).first, State::Damaged);
    EXPECT_THAT(state_of(200).second, HasSubstr("SHA-256"));
    EXPECT_EQ(state_of(300).first, State::Damaged);
    EXPECT_THAT(state_of(300).second, HasSubstr("shard-00001-of-00003.h5: No such file"));
    EXPECT_EQ(state_of(400).first, State::Unfinished);
    EXPECT_EQ(state_of(500), std::pair(State::Deleting, std::string()));
    EXPECT_EQ(state_of(700).first, State::Tainted);
    EXPECT_EQ(open_one(place()).value().id, kFirst);
}

TEST_F(Places, NeverFollowLinks) {
    write(kFirst);
    write(kSecond);
    fs::create_directory_symlink(path(kFirst), path({300, 1}));
    EXPECT_EQ(open_checkpoint(place(), {300, 1}).error().code, Code::Damaged);
    fs::rename(path(kSecond, "MANIFEST"), root_ + "/manifest");
    fs::create_symlink(root_ + "/manifest", path(kSecond, "MANIFEST"));
    EXPECT_THAT(open_checkpoint(place(), kSecond).error().message, HasSubstr("symbolic link"));
    const std::string shard = path(kFirst, "shard-00000-of-00003.h5");
    fs::rename(shard, root_ + "/shard");
    fs::create_symlink(root_ + "/shard", shard);
    EXPECT_THAT(check_shards(open(kFirst)).error().message, HasSubstr("not a regular file"));
    Progress progress("", 0);
    const Verdict verdict = verify(open(kFirst), progress);
    ASSERT_EQ(verdict.damaged, 1u);
    EXPECT_THAT(verdict.damages[0].what, HasSubstr("symbolic link"));
}

TEST_F(Places, RefuseAManifestOfHugeCountsOrAnotherStep) {
    write(kFirst);
    std::string body = read(path(kFirst, "MANIFEST"));
    body.resize(body.size() - 32);
    std::string huge = body;
    for (int i = 0; i < 4; ++i) huge[44 + static_cast<std::size_t>(i)] = '\xFF';  // the number of shards
    std::ofstream(path(kFirst, "MANIFEST"), std::ios::binary) << seal(huge);
    EXPECT_THAT(open_checkpoint(place(), kFirst).error().message, HasSubstr("do not fit"));
    std::ofstream(path(kFirst, "MANIFEST"), std::ios::binary) << seal(body);
    EXPECT_TRUE(open_checkpoint(place(), kFirst).ok());
    fs::rename(path(kFirst), path(kSecond));
    EXPECT_EQ(open_checkpoint(place(), kSecond).error().code, Code::Damaged);
}

TEST_F(Places, VerifyNamesEveryDamagedFileAndBlock) {
    write(kFirst);
    Progress progress("", 0);
    const Verdict good = verify(open(kFirst), progress);
    EXPECT_EQ(good.damaged, 0u);
    EXPECT_EQ(good.blocks, 3u);
    EXPECT_EQ(good.bytes, open(kFirst).checkpoint.manifest().total_bytes());
    flip_byte(path(kFirst, "shard-00000-of-00003.h5"), 100);
    fs::resize_file(path(kFirst, "shard-00002-of-00003.h5"), 10);
    const Verdict verdict = verify(open(kFirst), progress);
    ASSERT_EQ(verdict.damages.size(), 2u);
    EXPECT_EQ(verdict.damages[0].file, "shard-00000-of-00003.h5");
    EXPECT_EQ(verdict.damages[0].block, 0u);
    EXPECT_EQ(verdict.damages[1].block, std::nullopt);
    EXPECT_THAT(verdict.damages[1].what, HasSubstr("has 10 bytes"));
}

}  // namespace
}  // namespace gangline::checkpoint::tool
