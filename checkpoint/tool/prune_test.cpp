// What prune keeps, and how it deletes.

#include "checkpoint/tool/prune.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>

#include "checkpoint/tool/test_folder.h"

namespace gangline::checkpoint::tool {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Entry entry(std::uint64_t step, std::uint32_t attempt = 1, State state = State::Durable, std::uint64_t job = 7) {
    Entry made;
    made.id = {step, attempt};
    made.name = folder_name(made.id);
    made.state = state;
    made.job = job;
    made.changed_unix_s = 1000;
    return made;
}

std::vector<std::uint64_t> deleted(const std::vector<Entry>& entries, const PruneRule& rule, std::int64_t now_s = 1000) {
    std::vector<std::uint64_t> steps;
    for (const Choice& choice : choose(entries, rule, now_s)) {
        if (choice.is_deleted) steps.push_back(choice.entry.id.step);
    }
    return steps;
}

TEST(PruneChoice, KeepsTheNewestAndTheFirstOfEachRange) {
    const std::vector<Entry> all{entry(100), entry(200), entry(300), entry(400), entry(500)};
    EXPECT_THAT(deleted(all, {2, 0}), ElementsAre(100, 200, 300));
    EXPECT_THAT(deleted(all, {1, 200}), ElementsAre(300));  // 100, 200 and 400 are the first of theirs
    EXPECT_THAT(deleted(all, {9, 0}), ElementsAre());
}

TEST(PruneChoice, CountsNewestByAttemptAndEachJobByItself) {
    EXPECT_THAT(deleted({entry(900, 1), entry(500, 2)}, {1, 0}), ElementsAre(900));
    EXPECT_THAT(deleted({entry(100, 1, State::Durable, 7), entry(100, 1, State::Durable, 8), entry(200, 1, State::Durable, 8)}, {1, 0}), ElementsAre(100));
    EXPECT_THAT(deleted({entry(100, 1), entry(100, 2), entry(150, 2)}, {1, 1000}), ElementsAre(100));
}

TEST(PruneChoice, NeverCountsNorTouchesDamagedOnes) {
    EXPECT_THAT(deleted({entry(100), entry(200), entry(300, 1, State::Damaged), entry(400, 1, State::Damaged)}, {1, 0}), ElementsAre(100));
}

TEST(PruneChoice, LeavesATemporaryFolderThatIsYoungOrMayBeCommitted) {
    Entry left = entry(300, 1, State::Unfinished);
    EXPECT_THAT(deleted({entry(100), left}, {1, 0}, 1000 + kTemporaryRestSeconds - 1), ElementsAre());
    EXPECT_THAT(deleted({entry(100), left}, {1, 0}, 1000 + kTemporaryRestSeconds), ElementsAre(300));
    left.has_manifest = true;
    EXPECT_THAT(deleted({entry(100), left}, {1, 0}, 1'000'000), ElementsAre());
    EXPECT_THAT(deleted({entry(100), entry(200, 1, State::Deleting)}, {1, 0}), ElementsAre(200));
}

class Pruned : public Folder {};

TEST_F(Pruned, AFolderGoesAsAWholeAlsoOverTheRestOfAnEarlierDeletion) {
    write(kFirst);
    write(kSecond);
    fs::create_directories(root_ + "/.del-" + folder_name(kFirst));
    std::ofstream(root_ + "/.del-" + folder_name(kFirst) + "/rest") << "x";
    const auto removed = remove(place(), folder_name(kFirst));
    ASSERT_TRUE(removed.ok()) << removed.error().message;
    const auto left = entries_of(place()).value();
    ASSERT_EQ(left.size(), 1u);
    EXPECT_EQ(left[0].id, kSecond);
}

TEST_F(Pruned, AFolderThatIsReadStays) {
    write(kFirst);
    {
        const Opened reading = open(kFirst);
        const auto removed = remove(place(), folder_name(kFirst));
        ASSERT_FALSE(removed.ok());
        EXPECT_EQ(removed.error().code, Code::Refused);
        EXPECT_EQ(entries_of(place()).value()[0].state, State::Durable);
    }
    const Fd deleting(::open(path(kFirst).c_str(), O_RDONLY | O_DIRECTORY));
    ASSERT_EQ(::flock(deleting.get(), LOCK_EX), 0);
    EXPECT_THAT(open_checkpoint(place(), kFirst).error().message, HasSubstr("is being deleted"));
}

TEST_F(Pruned, ALinkInTheFoldersPlaceIsNotFollowed) {
    write(kFirst);
    fs::create_directory_symlink(path(kFirst), path(kSecond));
    EXPECT_FALSE(remove(place(), folder_name(kSecond)).ok());
    EXPECT_TRUE(fs::exists(path(kFirst, "MANIFEST")));
}

}  // namespace
}  // namespace gangline::checkpoint::tool
