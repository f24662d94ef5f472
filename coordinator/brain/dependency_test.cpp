#include "coordinator/brain/dependency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gangline::coordinator {
namespace {

using testing::HasSubstr;

std::string back(const Dependency& dependency) {
    std::string text;
    for (const DependencyTerm& term : dependency.terms) text += (text.empty() ? "" : dependency.any ? "?" : ",") + text_of(term);
    return text;
}

TEST(Dependency, IsReadAsSbatchWritesIt) {
    EXPECT_EQ(back(*parse_dependency("afterok:7:8,afterany:9")), "afterok:7,afterok:8,afterany:9");
    EXPECT_EQ(back(*parse_dependency("afternotok:7?singleton")), "afternotok:7?singleton");
    EXPECT_EQ(back(*parse_dependency("after:7+30")), "after:7+30");
    EXPECT_EQ(back(*parse_dependency("afterok:12_5:13,after:12_0+2")), "afterok:12_5,afterok:13,after:12_0+2");
    EXPECT_EQ(back(*parse_dependency("aftercorr:7")), "aftercorr:7");
    EXPECT_TRUE(parse_dependency("")->terms.empty());
}

TEST(Dependency, WhatIsWrongIsNamedWithWhatMayStandThere) {
    for (const char* text : {"afterok", "afterok:", "afterok:x", "afterok:0", "before:7", "singleton:7", "afterok:7_", "afterok:_7", "afterok:7_x", "afterok:7+5", "after:7+", ",", "afterok:7,", "afterok:7,afterany:8?after:9", "afterok:-1", "afterok:99999999999999999999"}) {
        const auto parsed = parse_dependency(text);
        ASSERT_FALSE(parsed) << text;
        EXPECT_THAT(parsed.error().message, HasSubstr("--dependency")) << text;
        EXPECT_THAT(parsed.error().message, HasSubstr("afterok:12:13")) << text;
    }
}

}  // namespace
}  // namespace gangline::coordinator
