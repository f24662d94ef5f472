#include "coordinator/server/authorised.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include <fmt/format.h>

#include "base/process.h"

namespace gangline::coordinator {
namespace {

const std::string kKeyA = new_key_pair().public_key;
const std::string kKeyB = new_key_pair().public_key;
// Z85 has '#' among its characters, though no key begins with it.
const std::string kHashKey = "0####0####0####0####0####0####0####0####";

TEST(Authorised, ReadsNodesUsersRolesAndComments) {
    const auto read = parse_authorised(fmt::format("# people\n\nuser alice admin {}   # her laptop\n  node  n0 -\t{}\n#node n1 - x\nuser bob user {} # b",
                                                   kKeyA, kKeyB, kHashKey),
                                       "f");
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_EQ(read->size(), 3U);
    EXPECT_EQ((*read)[0].name, "alice");
    EXPECT_EQ((*read)[0].role, Role::Admin);
    EXPECT_EQ((*read)[0].public_key, kKeyA);
    EXPECT_EQ((*read)[1].kind, PrincipalKind::Node);
    EXPECT_EQ((*read)[1].role, Role::None);
    EXPECT_EQ((*read)[2].public_key, kHashKey);
}

TEST(Authorised, ANameMayHaveTwoKeysButAKeyOneName) {
    EXPECT_TRUE(parse_authorised(fmt::format("user a user {}\nuser a user {}\n", kKeyA, kKeyB), "f"));
    const auto twice = parse_authorised(fmt::format("user a user {}\nuser b admin {}\n", kKeyA, kKeyA), "f");
    ASSERT_FALSE(twice);
    EXPECT_NE(twice.error().message.find("f:2: the key of line 1 again"), std::string::npos) << twice.error().message;
}

TEST(Authorised, NamesTheLineAndWhatIsWrongWithIt) {
    const std::pair<std::string, std::string> cases[] = {
        {"user alice root " + kKeyA, "role 'root'"},      {"user alice " + kKeyA, "3 words"},
        {"node n0 admin " + kKeyA, "nodes have no role"}, {"group g user " + kKeyA, "kind 'group'"},
        {"user alice user short", "key 'short'"},         {"user ../x user " + kKeyA, "name '../x'"},
        {"user -x user " + kKeyA, "name '-x'"},           {"node n0 - " + kKeyA + " more", "5 words"},
        {"user " + std::string(65, 'a') + " user " + kKeyA, "at most 64"},
    };
    for (const auto& [line, words] : cases) {
        const auto read = parse_authorised("\n" + line, "keys");
        ASSERT_FALSE(read) << line;
        EXPECT_EQ(read.error().code, Code::InvalidArgument);
        EXPECT_NE(read.error().message.find("keys:2: "), std::string::npos) << read.error().message;
        EXPECT_NE(read.error().message.find(words), std::string::npos) << read.error().message;
    }
}

class AuthorisedFile : public ::testing::Test {
  protected:
    void SetUp() override {
        char name[] = "/tmp/gangline-authorised-XXXXXX";
        ASSERT_NE(::mkdtemp(name), nullptr);
        folder_ = name;
        path_ = folder_ + "/authorised";
        ASSERT_TRUE(write_file_atomically(path_, "user alice admin " + kKeyA + "\n"));
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::string folder_;
    std::string path_;
};

TEST_F(AuthorisedFile, ThatOthersMayWriteGrantsNothing) {
    EXPECT_TRUE(read_authorised(path_));
    for (const mode_t mode : {0664U, 0646U, 0666U}) {
        ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
        EXPECT_EQ(read_authorised(path_).error().code, Code::Refused);
    }
    EXPECT_EQ(read_authorised(folder_).error().code, Code::Refused);
    EXPECT_EQ(read_authorised(folder_ + "/absent").error().code, Code::NotFound);
}

TEST_F(AuthorisedFile, IsSeenToChangeWhenItIsReplacedMadeOrDeleted) {
    FileWatch watch(path_);
    EXPECT_FALSE(watch.has_changed());
    ASSERT_TRUE(write_file_atomically(path_, "user alice admin " + kKeyA + "\n"));  // same size
    EXPECT_TRUE(watch.has_changed());
    EXPECT_FALSE(watch.has_changed());
    std::filesystem::remove(path_);
    EXPECT_TRUE(watch.has_changed());
    EXPECT_FALSE(watch.has_changed());
    ASSERT_TRUE(write_file_atomically(path_, "\n"));
    EXPECT_TRUE(watch.has_changed());
}

}  // namespace
}  // namespace gangline::coordinator
