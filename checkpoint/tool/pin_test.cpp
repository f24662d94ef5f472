// Pins and who needs a checkpoint, as `ckpt` shows and respects them.

#include "checkpoint/tool/pin.h"

#include <gmock/gmock.h>
#include <sys/file.h>

#include "checkpoint/tool/needed.h"
#include "checkpoint/tool/prune.h"
#include "checkpoint/tool/test_folder.h"

namespace gangline::checkpoint::tool {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class Pinned : public Folder {
  protected:
    std::vector<std::string> words() const { return needed_by(place(), entries_of(place()).value()); }
};

TEST_F(Pinned, NeitherPruneNorTheGangsDeletionTakesIt) {
    for (const std::uint64_t step : {100u, 200u, 300u}) write({step, 1});
    ASSERT_TRUE(pin(place(), kFirst).ok());
    EXPECT_TRUE(entries_of(place()).value()[0].marks.is_pinned);
    for (const Choice& choice : choose(entries_of(place()).value(), {1, 0}, 0)) EXPECT_EQ(choice.is_deleted, choice.entry.id == kSecond) << choice.why;
    EXPECT_EQ(remove(place(), folder_name(kFirst)).error().code, Code::Refused);
    const Store store = Store::open(root_).value();
    EXPECT_EQ(store.delete_old({7, {300, 1}, {}}), "");
    EXPECT_THAT(store.published(), ElementsAre(kFirst, CheckpointId{300, 1}));
    EXPECT_TRUE(open(kFirst).checkpoint.verify().ok());

    ASSERT_TRUE(unpin(place(), kFirst).ok());
    ASSERT_TRUE(unpin(place(), kFirst).ok());  // as often as one likes
    EXPECT_EQ(store.delete_old({7, {300, 1}, {}}), "");
    EXPECT_THAT(store.published(), ElementsAre(CheckpointId{300, 1}));
    EXPECT_EQ(pin(place(), kFirst).error().code, Code::NotFound);
}

TEST_F(Pinned, OneThatWasPinnedWhileItLostItsNameGetsItBack) {
    for (const std::uint64_t step : {100u, 200u, 300u}) write({step, 1});
    const Store store = Store::open(root_).value();
    for (const CheckpointId& id : {kFirst, kSecond}) {
        ASSERT_TRUE(pin(place(), id).ok());
        fs::rename(path(id), root_ + "/.del-" + folder_name(id));
    }
    fs::remove(root_ + "/.del-" + folder_name(kSecond) + "/MANIFEST");  // its deletion had gone on: too late
    EXPECT_EQ(store.delete_old({7, {300, 1}, {}}), "");
    EXPECT_THAT(store.published(), ElementsAre(kFirst, CheckpointId{300, 1}));
    EXPECT_TRUE(open(kFirst).checkpoint.verify().ok());
    EXPECT_FALSE(fs::exists(root_ + "/.del-" + folder_name(kSecond)));
}

TEST_F(Pinned, EachCheckpointSaysWhoNeedsIt) {
    for (const std::uint64_t step : {100u, 200u, 300u, 400u, 500u}) write({step, 1});
    EXPECT_THAT(words(), ElementsAre("", "", "", "", ""));  // nobody has left a rule
    const Store store = Store::open(root_).value();
    ASSERT_TRUE(store.write_rule({.last = 2, .every = 300}).ok());
    ASSERT_TRUE(pin(place(), kFirst).ok());
    EXPECT_THAT(words(), ElementsAre("pinned", "", "every", "last", "last"));
    const Opened reading = open(kSecond);
    EXPECT_THAT(words(), ElementsAre("pinned", "read", "every", "last", "last"));
}

}  // namespace
}  // namespace gangline::checkpoint::tool
