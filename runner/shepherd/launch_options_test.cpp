#include "runner/shepherd/launch_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gangline::runner {
namespace {

using testing::HasSubstr;

Result<LaunchOptions> parse(const std::vector<std::string>& words) {
    return parse_launch(words, {"PATH=/bin", "HOME=/root", "SLURM_JOB_ID=3", "A=1", "B=2=3"}, "/home/a/job");
}

std::string why(const std::vector<std::string>& words) {
    const auto parsed = parse(words);
    return parsed ? "accepted" : parsed.error().message;
}

std::map<std::string, std::string> environment(const LaunchOptions& options) {
    std::map<std::string, std::string> variables;
    for (const proto::Variable& variable : options.request.environment()) variables[variable.name()] = variable.value();
    return variables;
}

TEST(LaunchOptions, TheFirstPlainWordBeginsTheProgram) {
    const auto parsed = parse({"-n", "4", "-N2", "--ntasks-per-node=2", "-l", "prog", "-n", "9", "--label"});
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->request.ranks(), 4u);
    EXPECT_EQ(parsed->request.nodes(), 2u);
    EXPECT_EQ(parsed->request.ranks_per_node(), 2u);
    EXPECT_TRUE(parsed->request.label());
    EXPECT_THAT(parsed->request.argv(), testing::ElementsAre("prog", "-n", "9", "--label"));
    EXPECT_EQ(parsed->request.cwd(), "/home/a/job");
}

TEST(LaunchOptions, TwoDashesEndTheOptions) {
    const auto parsed = parse({"-n1", "--", "--prog", "--"});
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_THAT(parsed->request.argv(), testing::ElementsAre("--prog", "--"));
}

TEST(LaunchOptions, OptionsOfSrunThatNeedNothingAreAccepted) {
    const auto parsed = parse({"--mpi=pmix", "--exact", "--overlap", "-u", "--gpus", "2", "--gpus-per-task=1", "-G1", "x"});
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_TRUE(parsed->warnings.empty());
}

TEST(LaunchOptions, OptionsWithoutEffectAreNamed) {
    const auto parsed = parse({"--cpu-bind=cores", "x"});
    ASSERT_TRUE(parsed);
    EXPECT_THAT(parsed->warnings, testing::ElementsAre(HasSubstr("--cpu-bind")));
}

TEST(LaunchOptions, KillOnBadExitTakesItsValueOnlyInItsOwnWord) {
    EXPECT_TRUE(parse({"-K", "x"})->request.kill_on_bad_exit());
    EXPECT_TRUE(parse({"--kill-on-bad-exit", "x"})->request.kill_on_bad_exit());
    EXPECT_FALSE(parse({"-K0", "x"})->request.kill_on_bad_exit());
    EXPECT_FALSE(parse({"--kill-on-bad-exit=0", "x"})->request.kill_on_bad_exit());
    EXPECT_FALSE(parse({"x"})->request.kill_on_bad_exit());
    EXPECT_THAT(why({"-K2", "x"}), HasSubstr("give 0 or 1"));
}

TEST(LaunchOptions, BadInputIsNamed) {
    EXPECT_THAT(why({"--nodez=3", "x"}), HasSubstr("unknown option '--nodez=3'"));
    EXPECT_THAT(why({"-n", "0", "x"}), HasSubstr("--ntasks='0': give a whole number from 1"));
    EXPECT_THAT(why({"-n", "two", "x"}), HasSubstr("--ntasks='two'"));
    EXPECT_THAT(why({"-n"}), HasSubstr("needs a value"));
    EXPECT_THAT(why({"-n", "2"}), HasSubstr("which program"));
    EXPECT_THAT(why({"--export=A,,B", "x"}), HasSubstr("--export"));
}

TEST(LaunchOptions, TheWholeEnvironmentGoesAlongUnlessAListSaysOtherwise) {
    EXPECT_EQ(environment(*parse({"x"})).size(), 5u);
    EXPECT_EQ(environment(*parse({"x"})).at("B"), "2=3");
    const auto none = environment(*parse({"--export=NONE", "x"}));
    EXPECT_THAT(none, testing::UnorderedElementsAre(testing::Pair("PATH", "/bin"), testing::Pair("SLURM_JOB_ID", "3")));
    const auto list = environment(*parse({"--export=A,C=x=y", "x"}));
    EXPECT_THAT(list, testing::UnorderedElementsAre(testing::Pair("PATH", "/bin"), testing::Pair("SLURM_JOB_ID", "3"),
                                                    testing::Pair("A", "1"), testing::Pair("C", "x=y")));
    const auto more = environment(*parse({"--export=ALL,A=9", "x"}));
    EXPECT_EQ(more.at("A"), "9");
    EXPECT_EQ(more.at("HOME"), "/root");
}

TEST(LaunchOptions, AFolderIsTakenFromWhereWeAre) {
    EXPECT_EQ(parse({"-D", "sub", "x"})->request.cwd(), "/home/a/job/sub");
    EXPECT_EQ(parse({"--chdir=/tmp", "x"})->request.cwd(), "/tmp");
}

}  // namespace
}  // namespace gangline::runner
