#include "base/text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

namespace gangline {
namespace {

TEST(TimeLimit, ReadsEveryFormOfSbatch) {
    const std::pair<const char*, int> cases[] = {
        {"10", 600}, {"1:30", 90}, {"01:02:03", 3723}, {"2-3", 2 * 86400 + 3 * 3600},
        {"1-00:30", 86400 + 1800}, {"1-01:00:05", 86400 + 3605}, {"UNLIMITED", 0}, {"infinite", 0},
    };
    for (const auto& [text, expected] : cases) {
        const auto parsed = parse_time_limit(text);
        ASSERT_TRUE(parsed.ok()) << text;
        EXPECT_EQ(parsed->count(), expected) << text;
    }
}

TEST(TimeLimit, NamesTheFormsWhenItCannotRead) {
    for (const char* text : {"", "abc", "1:2:3:4", "-5", "1h", "1:-2", "99999999999999999999"}) {
        const auto parsed = parse_time_limit(text);
        ASSERT_FALSE(parsed.ok()) << text;
        EXPECT_NE(parsed.error().message.find("HH:MM:SS"), std::string::npos);
    }
}

TEST(Memory, HasSbatchsUnits) {
    EXPECT_EQ(*parse_memory_mib("512"), 512u);
    EXPECT_EQ(*parse_memory_mib("4G"), 4096u);
    EXPECT_EQ(*parse_memory_mib("2048K"), 2u);
    EXPECT_EQ(*parse_memory_mib("1T"), 1048576u);
    EXPECT_FALSE(parse_memory_mib("4X").ok());
    EXPECT_FALSE(parse_memory_mib("").ok());
}

TEST(NodeList, ExpandsAndCompresses) {
    const std::vector<std::string> names = {"gpu001", "gpu002", "gpu003", "gpu007", "login"};
    EXPECT_EQ(*expand_node_list("gpu[001-003,007],login"), names);
    EXPECT_EQ(compress_node_list(names), "gpu[001-003,007],login");
    EXPECT_EQ(compress_node_list({"n1"}), "n1");
    EXPECT_FALSE(expand_node_list("gpu[1-").ok());
    EXPECT_FALSE(expand_node_list("gpu[5-1]").ok());
    EXPECT_FALSE(expand_node_list("a[0-60000][0-60000]").ok());
}

TEST(Pattern, FillsInSbatchsLettersWithPadding) {
    const std::map<char, std::string> values = {{'j', "12"}, {'t', "3"}, {'x', "train"}};
    EXPECT_EQ(expand_pattern("%x-%j.out", values), "train-12.out");
    EXPECT_EQ(expand_pattern("%4t/%%/%q", values), "0003/%/%q");
}

TEST(Words, AreQuotedOnlyWhenAShellNeedsIt) {
    EXPECT_EQ(shell_quote("plain-word.txt"), "plain-word.txt");
    EXPECT_EQ(shell_quote("it's"), "'it'\\''s'");
    EXPECT_EQ(signal_name(9), "SIGKILL");
}

TEST(Names, NumbersInThemCountAsNumbers) {
    std::vector<std::string> names = {"n10", "n2", "n1", "rack2-n1", "rack10-n1", "n01", "m3", "n"};
    std::sort(names.begin(), names.end(), natural_less);
    EXPECT_EQ(names, (std::vector<std::string>{"m3", "n", "n01", "n1", "n2", "n10", "rack2-n1", "rack10-n1"}));
    for (const std::string& a : names) {
        EXPECT_FALSE(natural_less(a, a));
        for (const std::string& b : names) EXPECT_FALSE(natural_less(a, b) && natural_less(b, a)) << a << ' ' << b;
    }
}

TEST(When, IsReadAsSbatchReadsIt) {
    ::setenv("TZ", "UTC", 1);
    ::tzset();
    const std::int64_t now = 1'764'504'000;  // 2025-11-30T12:00:00Z
    EXPECT_EQ(*parse_when("now", now), now);
    EXPECT_EQ(*parse_when("now+60", now), now + 60);
    EXPECT_EQ(*parse_when("now+2hours", now), now + 7200);
    EXPECT_EQ(*parse_when("now+1day", now), now + 86400);
    EXPECT_EQ(*parse_when("13:30", now), now + 5400);
    EXPECT_EQ(*parse_when("11:00", now), now + 23 * 3600) << "the next one is tomorrow's";
    EXPECT_EQ(*parse_when("2025-12-01", now), now + 43200);
    EXPECT_EQ(*parse_when("2025-12-01T01:02:03", now), now + 43200 + 3723);
    EXPECT_EQ(*parse_when("12/01/25", now), now + 43200);
    EXPECT_EQ(*parse_when("midnight", now), now + 43200);
    EXPECT_EQ(*parse_when("tomorrow", now), now + 43200);
    for (const char* bad : {"", "soon", "25:00", "12:60", "2025-13-01", "2025-12-01T", "now+", "now+x", "now+5years", "now-5", "12"}) {
        EXPECT_FALSE(parse_when(bad, now)) << bad;
    }
}

TEST(Utf8, TakesWholeCharactersInTheirShortestForm) {
    for (const char* good : {"", "abc", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "a\xc3\xa9z"}) EXPECT_TRUE(is_utf8(good)) << good;
    for (const char* bad : {"\xff", "\xc3", "a\xc3", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80", "\xe2\x82"}) EXPECT_FALSE(is_utf8(bad));
}

}  // namespace
}  // namespace gangline
