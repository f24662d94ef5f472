#include "coordinator/server/options.h"

#include <gtest/gtest.h>

#include <vector>

namespace gangline::coordinator {
namespace {

Result<CoordinatorOptions> parse(std::vector<const char*> words) {
    words.insert(words.begin(), "coordinator");
    return parse_options(static_cast<int>(words.size()), words.data());
}

TEST(CoordinatorOptions, HaveTheContractsDefaults) {
    const auto options = parse({"--state", "/s"});
    ASSERT_TRUE(options) << options.error().message;
    EXPECT_EQ(options->listen_users, "tcp://127.0.0.1:*");
    EXPECT_EQ(options->authorised_path(), "/s/authorised");
    const BrainOptions brain = options->for_brain();
    EXPECT_EQ(brain.heartbeat, milliseconds(500));
    EXPECT_EQ(brain.node_timeout, milliseconds(2500));
    EXPECT_EQ(brain.progress_timeout, seconds(30));
    EXPECT_EQ(brain.grace, seconds(5));
    EXPECT_EQ(brain.cluster, "local");
}

TEST(CoordinatorOptions, AreTakenWithOrWithoutAnEqualsSign) {
    const auto options = parse({"--state=/s", "--cluster", "lab", "--heartbeat-ms=100", "--node-timeout-ms", "300", "--allow-root"});
    ASSERT_TRUE(options) << options.error().message;
    EXPECT_EQ(options->cluster, "lab");
    EXPECT_EQ(options->heartbeat_ms, 100);
    EXPECT_TRUE(options->allow_root);
}

TEST(CoordinatorOptions, AreRefusedWithTheirNameValueAndRange) {
    const std::pair<std::vector<const char*>, std::vector<const char*>> cases[] = {
        {{}, {"--state is missing"}},
        {{"--state", "/s", "--heartbeat-ms", "fast"}, {"fast", "heartbeat-ms"}},
        {{"--state", "/s", "--heartbeat-ms", "5"}, {"--heartbeat-ms 5", "20 to 60000"}},
        {{"--state", "/s", "--node-timeout-ms", "600"}, {"--node-timeout-ms 600", "at least 1000"}},
        {{"--state", "/s", "--grace-ms", "-1"}, {"grace-ms"}},
        {{"--state", "/s", "--cluster", "a/b"}, {"--cluster 'a/b'"}},
        {{"--state", "/s", "--listen-users", "localhost:1"}, {"--listen-users 'localhost:1'", "tcp://"}},
        {{"--state", "/s", "--checkpoint-root", "x"}, {"--checkpoint-root 'x'", "absolute"}},
        {{"--state", "/s", "--ready-fd", "987"}, {"--ready-fd 987", "not open"}},
        {{"--state", "/s", "--colour", "red"}, {"colour", "--help"}},
        {{"--state", "/s", "--clus", "x"}, {"clus"}},
        {{"--state", "/s", "stray"}, {"--help"}},
        {{"--state"}, {"state"}},
    };
    for (const auto& [words, expected] : cases) {
        const auto options = parse(words);
        ASSERT_FALSE(options) << expected.front();
        EXPECT_EQ(options.error().code, Code::InvalidArgument);
        for (const char* part : expected) EXPECT_NE(options.error().message.find(part), std::string::npos) << options.error().message;
    }
}

TEST(CoordinatorOptions, AreAllInTheHelp) {
    const std::string help = options_help();
    for (const char* option : {"--state", "--listen-users", "--authorised", "--node-timeout-ms", "--lifeline-fd", "Example:"}) {
        EXPECT_NE(help.find(option), std::string::npos) << option;
    }
}

}  // namespace
}  // namespace gangline::coordinator
