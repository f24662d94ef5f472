#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "base/process.h"
#include "runner/cli/verbs.h"

namespace gangline::runner {
namespace {

using testing::HasSubstr;
using testing::Not;

// What bash answers to TAB at the end of `words`, after sourcing the script.
std::string complete(const std::vector<std::string>& words) {
    const std::string folder = testing::TempDir() + "gangline-completion-" + random_hex(4);
    EXPECT_TRUE(make_folders(folder).ok());
    std::ofstream(folder + "/completion") << bash_completion();
    std::string list;
    for (const std::string& word : words) list += " '" + word + "'";
    std::ofstream(folder + "/ask") << "set -u\n. " << folder << "/completion\nCOMP_WORDS=(" << list << ")\nCOMP_CWORD="
                                   << words.size() - 1 << "\n_gangline\nprintf '%s\\n' \"${COMPREPLY[@]-}\"\n";
    FILE* const bash = ::popen(("bash " + folder + "/ask 2>&1").c_str(), "r");
    std::string answer;
    char bytes[4096];
    while (bash != nullptr && std::fgets(bytes, sizeof bytes, bash) != nullptr) answer += bytes;
    EXPECT_EQ(::pclose(bash), 0) << answer;
    EXPECT_TRUE(remove_tree(folder).ok());
    return answer;
}

TEST(Completion, BashCompletesVerbs) {
    EXPECT_EQ(complete({"gangline", "sub"}), "submit\n");
    const std::string all = complete({"gangline", ""});
    for (const Verb& verb : verbs()) EXPECT_THAT(all, HasSubstr(verb.name + "\n"));
    EXPECT_THAT(all, HasSubstr("coordinator\n"));
}

TEST(Completion, BashCompletesAVerbsOwnOptions) {
    EXPECT_THAT(complete({"gangline", "submit", "--ntasks-p"}), HasSubstr("--ntasks-per-node="));
    EXPECT_THAT(complete({"gangline", "logs", "--"}), HasSubstr("--follow\n"));
    EXPECT_THAT(complete({"gangline", "logs", "--"}), Not(HasSubstr("--ntasks")));
    EXPECT_THAT(complete({"gangline", "submit", "--spa"}), HasSubstr("--spares=\n"));
    EXPECT_THAT(complete({"gangline", "reserve", "--m"}), HasSubstr("--maintenance\n"));
    EXPECT_THAT(complete({"gangline", "report", "--cl"}), HasSubstr("--cluster\n"));
    EXPECT_THAT(complete({"gangline", "submit", "--repe"}), Not(HasSubstr("--repeat")));
}

TEST(Completion, BashCompletesTheWordsOfKeysHelpAndCompletion) {
    EXPECT_EQ(complete({"gangline", "completion", "b"}), "bash\n");
    EXPECT_EQ(complete({"gangline", "keys", "pub"}), "public\n");
    EXPECT_EQ(complete({"gangline", "help", "dr"}), "drain\n");
}

}  // namespace
}  // namespace gangline::runner
