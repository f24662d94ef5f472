#include "runner/cli/directives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gangline::runner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ScriptFile read(const std::string& text) {
    auto script = read_directives(text, "job.sh");
    EXPECT_TRUE(script.ok()) << (script ? "" : script.error().message);
    return script ? *script : ScriptFile{};
}

std::string refusal(const std::string& text) {
    const auto script = read_directives(text, "job.sh");
    return script ? "" : script.error().message;
}

TEST(Directives, GangAndSbatchLinesBeforeTheFirstCommandCountWithTheirLineNumbers) {
    const ScriptFile script = read("#!/bin/bash\n# a remark\n#SBATCH --nodes=2 -n 4\n\n#GANG --retries 3\n#SBATCH -t 10\necho\n");
    ASSERT_EQ(script.directives.size(), 3U);
    EXPECT_EQ(script.directives[0].line, 3);
    EXPECT_THAT(script.directives[0].words, ElementsAre("--nodes=2", "-n", "4"));
    EXPECT_EQ(script.directives[1].line, 5);
    EXPECT_THAT(script.directives[1].words, ElementsAre("--retries", "3"));
    EXPECT_EQ(script.directives[2].line, 6);
    EXPECT_THAT(script.warnings, IsEmpty());
}

TEST(Directives, DisabledLinesAreComments) {
    const ScriptFile script = read(
        "#!/bin/bash\n##SBATCH --a\n# SBATCH --b\n####SBATCH --c\n#sbatch --d\n# #SBATCH --e\n#SBATCHX --f\n#SBATCH --g\n");
    ASSERT_EQ(script.directives.size(), 1U);
    EXPECT_THAT(script.directives[0].words, ElementsAre("--g"));
    EXPECT_THAT(script.warnings, IsEmpty());
}

TEST(Directives, LinesAfterTheFirstCommandHaveNoEffectAndAreTold) {
    const ScriptFile script = read("#!/bin/bash\necho one\n#SBATCH --ntasks=4\n");
    EXPECT_THAT(script.directives, IsEmpty());
    ASSERT_EQ(script.warnings.size(), 1U);
    EXPECT_THAT(script.warnings[0], HasSubstr("job.sh line 3"));
    EXPECT_THAT(script.warnings[0], HasSubstr("after the first command"));
}

TEST(Directives, AnIndentedDirectiveHasNoEffectAndIsTold) {
    const ScriptFile script = read("#!/bin/bash\n  #SBATCH --ntasks=4\n#SBATCH -n 2\n");
    ASSERT_EQ(script.directives.size(), 1U);
    ASSERT_EQ(script.warnings.size(), 1U);
    EXPECT_THAT(script.warnings[0], HasSubstr("job.sh line 2"));
}

TEST(Directives, QuotesTabsAndRemarksAreReadAsAShellDoes) {
    const ScriptFile script = read(
        "#!/bin/bash\n#SBATCH\t--comment=\"two words # no remark\" -J 'a b'   # the remark -n 5\n#SBATCH --job-name=x#y\n");
    ASSERT_EQ(script.directives.size(), 2U);
    EXPECT_THAT(script.directives[0].words, ElementsAre("--comment=two words # no remark", "-J", "a b"));
    EXPECT_THAT(script.directives[1].words, ElementsAre("--job-name=x#y"));
}

TEST(Directives, ByteOrderMarkAndDosLineEndsAreTakenOffAndTold) {
    const ScriptFile script = read("\xEF\xBB\xBF#!/bin/bash\r\n#SBATCH --time=5\r\necho\r\n");
    ASSERT_EQ(script.directives.size(), 1U);
    EXPECT_THAT(script.directives[0].words, ElementsAre("--time=5"));
    EXPECT_EQ(script.text, "#!/bin/bash\n#SBATCH --time=5\necho\n");
    EXPECT_EQ(script.warnings.size(), 2U);
}

TEST(Directives, TheTextIsKeptToTheByte) {
    const std::string text = "#!/bin/bash\n#SBATCH -n 2\n\n  echo  \t\nlast line without an end";
    EXPECT_EQ(read(text).text, text);
}

TEST(Directives, WhatIsNoScriptIsRefusedInWords) {
    EXPECT_THAT(refusal("echo\n"), HasSubstr("#!"));
    EXPECT_THAT(refusal(std::string("\x7f" "ELF\0\0", 6)), HasSubstr("write -- job.sh"));
    EXPECT_THAT(refusal("#!/bin/sh\n#SBATCH --comment=\"open\necho\n"), HasSubstr("job.sh line 2"));
    EXPECT_THAT(refusal(""), HasSubstr("#!"));
}

TEST(ShellWords, EmptyQuotesMakeAWordAndABackslashKeepsTheNextLetter) {
    EXPECT_THAT(*shell_words("a '' \"\" b\\ c \"d\\\"e\""), ElementsAre("a", "", "", "b c", "d\"e"));
    EXPECT_FALSE(shell_words("'open").ok());
}

}  // namespace
}  // namespace gangline::runner
