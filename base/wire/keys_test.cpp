#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/process.h"
#include "base/wire/secret_file.h"
#include "base/wire/wire.h"

namespace gangline {
namespace {

class KeyFile : public ::testing::Test {
  protected:
    void SetUp() override {
        char name[] = "/tmp/gangline-keys-XXXXXX";
        ASSERT_NE(::mkdtemp(name), nullptr);
        folder_ = name;
        path_ = folder_ + "/key";
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    void put(std::string_view content, mode_t mode) {
        ::unlink(path_.c_str());
        const Fd fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        ASSERT_TRUE(write_all(fd.get(), content));
        ASSERT_EQ(::fchmod(fd.get(), mode), 0);
    }
    std::string folder_;
    std::string path_;
};

TEST_F(KeyFile, IsReadBackAsItWasWritten) {
    const KeyPair keys = new_key_pair();
    ASSERT_TRUE(write_key_file(path_, keys, "node n0"));
    const auto read = read_key_file(path_);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->public_key, keys.public_key);
    EXPECT_EQ(read->secret_key, keys.secret_key);
    EXPECT_EQ(*public_key_of(keys.secret_key), keys.public_key);
}

TEST_F(KeyFile, IsMadeForItsOwnerAlone) {
    const mode_t before = ::umask(0);
    ASSERT_TRUE(write_key_file(path_, new_key_pair(), "x"));
    ::umask(before);
    struct stat about = {};
    ASSERT_EQ(::stat(path_.c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 07777U, 0600U);
    EXPECT_EQ(about.st_nlink, 1U);
}

TEST_F(KeyFile, IsNeverOverwritten) {
    ASSERT_TRUE(write_key_file(path_, new_key_pair(), "first"));
    const auto again = write_key_file(path_, new_key_pair(), "second");
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, Code::Refused);
    EXPECT_NE(read_file(path_)->find("# first"), std::string::npos);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()), 1);
}

TEST_F(KeyFile, IsRefusedWhenAnybodyElseMayReadOrWriteIt) {
    for (const mode_t mode : {0640U, 0620U, 0610U, 0604U, 0602U, 0601U, 0666U, 0777U}) {
        put("secret x\n", mode);
        const auto read = read_key_file(path_);
        ASSERT_FALSE(read) << std::oct << mode;
        EXPECT_EQ(read.error().code, Code::Refused) << read.error().message;
        EXPECT_NE(read.error().message.find("chmod 600"), std::string::npos);
    }
}

TEST_F(KeyFile, IsRefusedInAFolderThatOthersMayWrite) {
    ASSERT_TRUE(write_key_file(path_, new_key_pair(), "x"));
    ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
    EXPECT_EQ(read_key_file(path_).error().code, Code::Refused);
    EXPECT_EQ(write_key_file(path_ + "2", new_key_pair(), "x").error().code, Code::Refused);
}

TEST_F(KeyFile, IsRefusedWhenItIsALinkOrAFifoOrAnothersFile) {
    ASSERT_TRUE(write_key_file(path_, new_key_pair(), "x"));
    ASSERT_EQ(::symlink(path_.c_str(), (folder_ + "/link").c_str()), 0);
    EXPECT_FALSE(read_key_file(folder_ + "/link"));
    ASSERT_EQ(::mkfifo((folder_ + "/fifo").c_str(), 0600), 0);
    EXPECT_EQ(read_key_file(folder_ + "/fifo").error().code, Code::Refused);
    EXPECT_EQ(read_key_file(folder_ + "/absent").error().code, Code::NotFound);
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
    ASSERT_EQ(::chown(path_.c_str(), 65534, 65534), 0);
    EXPECT_EQ(read_key_file(path_).error().code, Code::Refused);
}

TEST_F(KeyFile, WithoutASaneSecretIsAnErrorThatNamesTheFile) {
    const std::string other = new_key_pair().public_key;
    for (const std::string& content :
         {std::string(), std::string("secret short\n"), std::string("public ") + other + "\nsecret " + new_key_pair().secret_key,
          std::string(5000, 'x')}) {
        put(content, 0600);
        const auto read = read_key_file(path_);
        ASSERT_FALSE(read);
        EXPECT_EQ(read.error().code, Code::InvalidArgument);
        EXPECT_NE(read.error().message.find(path_), std::string::npos);
    }
}

Principal user(const std::string& name, Role role, const std::string& key) {
    return {.kind = PrincipalKind::User, .name = name, .role = role, .public_key = key};
}

TEST(KeyTable, GivesEachKeyARowThatIsNeverReused) {
    KeyTable table;
    const auto a = table.add(user("a", Role::User, "ka"));
    table.remove(a);
    const auto b = table.add(user("a", Role::User, "ka"));
    EXPECT_NE(a, b);
    EXPECT_FALSE(table.by_row(a));
    EXPECT_EQ(table.by_key("ka")->row, b);
    EXPECT_EQ(table.size(), 1U);
}

TEST(KeyTable, ReplaceKeepsRowsOfKeysThatStayAndDropsTheRest) {
    KeyTable table;
    const auto a = table.add(user("a", Role::User, "ka"));
    const auto b = table.add(user("b", Role::User, "kb"));
    const auto shepherd = table.add({.kind = PrincipalKind::Shepherd, .name = "n0", .public_key = "ks", .job = 1, .attempt = 1});
    table.replace(PrincipalKind::Node, PrincipalKind::User, {user("a", Role::Admin, "ka"), user("c", Role::User, "kc")});
    EXPECT_EQ(table.by_row(a)->role, Role::Admin);
    EXPECT_FALSE(table.by_row(b));
    EXPECT_FALSE(table.by_key("kb"));
    EXPECT_EQ(table.by_key("kc")->name, "c");
    EXPECT_TRUE(table.by_row(shepherd));
    EXPECT_EQ(table.size(), 3U);
}

TEST(KeyTable, AKeyThatNowStandsForSomebodyElseGetsANewRow) {
    KeyTable table;
    const auto a = table.add(user("a", Role::User, "ka"));
    table.replace(PrincipalKind::Node, PrincipalKind::User, {user("mallory", Role::User, "ka")});
    EXPECT_FALSE(table.by_row(a));
    EXPECT_EQ(table.by_key("ka")->name, "mallory");
}

TEST(KeyTable, TheSameKeyTwiceCountsOnceAndNeverTakesAShepherds) {
    KeyTable table;
    const auto shepherd = table.add({.kind = PrincipalKind::Shepherd, .name = "n0", .public_key = "ks"});
    table.replace(PrincipalKind::Node, PrincipalKind::User,
                  {user("a", Role::User, "ka"), user("b", Role::Admin, "ka"), user("c", Role::Admin, "ks")});
    EXPECT_EQ(table.by_key("ka")->name, "a");
    EXPECT_EQ(table.by_key("ks")->row, shepherd);
    EXPECT_EQ(table.size(), 2U);
}

}  // namespace
}  // namespace gangline
