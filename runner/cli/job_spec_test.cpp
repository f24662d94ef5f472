#include "runner/cli/job_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gangline::runner {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const Surroundings kHere{"/home/a/job", "/home/a", "a", "/bin/sh", {{"PATH", "/bin"}, {"LANG", "C"}}};

Result<BuiltSpec> build(const std::vector<std::string>& words, const Surroundings& here = kHere) {
    auto parsed = parse_words(job_option_table(), words, WordsStop::AtFirstWord, "");
    if (!parsed) return parsed.error();
    Program program;
    program.argv = {"prog", "x"};
    program.name = "prog";
    return build_job_spec(merge_job_options({parsed->given}), program, here);
}

proto::JobSpec spec_of(const std::vector<std::string>& words) {
    auto built = build(words);
    EXPECT_TRUE(built.ok()) << (built ? "" : built.error().message);
    return built ? built->spec : proto::JobSpec();
}

std::string refusal(const std::vector<std::string>& words) {
    const auto built = build(words);
    return built ? "" : built.error().message;
}

TEST(JobSpec, DefaultsAreOneRankWithOneCardWhereItWasSubmitted) {
    const proto::JobSpec spec = spec_of({});
    EXPECT_EQ(spec.ranks(), 1U);
    EXPECT_FALSE(spec.cards_given());
    EXPECT_EQ(spec.cards_per_rank(), 1U);
    EXPECT_EQ(spec.cwd(), "/home/a/job");
    EXPECT_EQ(spec.name(), "prog");
    EXPECT_EQ(spec.argv_size(), 2);
}

TEST(JobSpec, RanksComeFromTasksOrNodesTimesTasksPerNodeOrCards) {
    EXPECT_EQ(spec_of({"-n", "6"}).ranks(), 6U);
    EXPECT_EQ(spec_of({"-N", "3"}).ranks(), 3U);
    EXPECT_EQ(spec_of({"-N", "2", "--ntasks-per-node=4"}).ranks(), 8U);
    EXPECT_EQ(spec_of({"--ntasks-per-node=4"}).ranks(), 4U);
    EXPECT_EQ(spec_of({"-G", "8", "--gpus-per-task=2"}).ranks(), 4U);
    const proto::JobSpec range = spec_of({"-N", "2-4", "-n", "4"});
    EXPECT_EQ(range.nodes_min(), 2U);
    EXPECT_EQ(range.nodes_max(), 4U);
}

TEST(JobSpec, CardsOfARankComeFromEveryWayOfAsking) {
    EXPECT_EQ(spec_of({"-n", "4", "-G", "8"}).cards_per_rank(), 2U);
    EXPECT_EQ(spec_of({"-n", "4", "--gpus-per-task=3"}).cards_per_rank(), 3U);
    EXPECT_EQ(spec_of({"-N", "2", "--gpus-per-node=8"}).cards_per_rank(), 8U);
    EXPECT_EQ(spec_of({"-N", "2", "--ntasks-per-node=4", "--gres=gpu:8"}).cards_per_rank(), 2U);
    const proto::JobSpec none = spec_of({"--gres=none"});
    EXPECT_TRUE(none.cards_given());
    EXPECT_EQ(none.cards_per_rank(), 0U);
    EXPECT_EQ(spec_of({"--cards-per-rank=0"}).cards_per_rank(), 0U);
    EXPECT_EQ(spec_of({"-N", "2", "--ntasks-per-node=4", "-G", "8", "--gpus-per-node=4"}).cards_per_rank(), 1U);
}

TEST(JobSpec, CardsThatCannotBeDividedAreRefusedWithNumbersThatFit) {
    EXPECT_THAT(refusal({"-n", "4", "-G", "6"}), HasSubstr("ask for 8"));
    EXPECT_THAT(refusal({"-N", "1", "--ntasks-per-node=4", "--gpus-per-node=1"}), HasSubstr("never shared"));
    EXPECT_THAT(refusal({"-n", "4", "-G", "4", "--gpus-per-task=2"}), HasSubstr("leave one out"));
}

TEST(JobSpec, TooManyRanksForTheNodesAreRefused) {
    EXPECT_THAT(refusal({"-N", "2", "--ntasks-per-node=2", "-n", "5"}), HasSubstr("the most is 4"));
}

TEST(JobSpec, MoreNodesThanRanksAreCutWithAWarning) {
    const auto built = build({"-N", "4", "-n", "2"});
    ASSERT_TRUE(built.ok());
    EXPECT_EQ(built->spec.nodes_min(), 2U);
    EXPECT_EQ(built->spec.nodes_max(), 2U);
    ASSERT_EQ(built->warnings.size(), 1U);
}

TEST(JobSpec, BadValuesNameOptionValueAndForm) {
    EXPECT_THAT(refusal({"-t", "soon"}), HasSubstr("--time: 'soon' is not a time: write minutes"));
    EXPECT_THAT(refusal({"--mem=lots"}), HasSubstr("--mem: 'lots'"));
    EXPECT_THAT(refusal({"-N", "4-2"}), HasSubstr("--nodes: '4-2'"));
    EXPECT_THAT(refusal({"-N", "0"}), HasSubstr("--nodes: '0'"));
    EXPECT_THAT(refusal({"-n", "-3"}), HasSubstr("--ntasks: '-3'"));
    EXPECT_THAT(refusal({"--open-mode=x"}), HasSubstr("append or truncate"));
    EXPECT_THAT(refusal({"--grace=5x"}), HasSubstr("--grace: '5x'"));
    EXPECT_THAT(refusal({"-w", "n["}), HasSubstr("--nodelist"));
    EXPECT_THAT(refusal({"-w", "./nodes.txt"}), HasSubstr("--nodelist"));
    EXPECT_THAT(refusal({"--export=1X"}), HasSubstr("--export: '1X'"));
    EXPECT_THAT(refusal({"--retries=-1"}), HasSubstr("--retries"));
}

TEST(JobSpec, LimitsFilesAndPlacesAreCarried) {
    const proto::JobSpec spec = spec_of({"-t", "1:30", "--mem=2G", "-o", "o-%j", "-e", "e-%j", "--open-mode=append", "-D", "sub",
                                         "-w", "n[1-2]", "-x", "n3", "--priority=50", "--nice=20", "-H", "--grace=500ms",
                                         "--progress-timeout=2m", "--retries=3", "--checkpoint-dir=c", "--exclusive",
                                         "--comment=why not", "-c", "2", "-J", "name"});
    EXPECT_EQ(spec.time_limit_s(), 90U);
    EXPECT_EQ(spec.memory_mib_per_node(), 2048U);
    EXPECT_EQ(spec.output(), "o-%j");
    EXPECT_EQ(spec.error(), "e-%j");
    EXPECT_TRUE(spec.append_output());
    EXPECT_EQ(spec.cwd(), "/home/a/job/sub");
    EXPECT_EQ(spec.only_nodes_size(), 2);
    EXPECT_EQ(spec.exclude_nodes(0), "n3");
    EXPECT_EQ(spec.priority(), 30);
    EXPECT_TRUE(spec.hold());
    EXPECT_EQ(spec.grace_ms(), 500U);
    EXPECT_EQ(spec.progress_timeout_ms(), 120'000U);
    EXPECT_EQ(spec.user_retries(), 3U);
    EXPECT_EQ(spec.checkpoint_folder(), "/home/a/job/c");
    EXPECT_TRUE(spec.exclusive());
    EXPECT_EQ(spec.comment(), "why not");
    EXPECT_EQ(spec.cpus_per_rank(), 2U);
    EXPECT_EQ(spec.name(), "name");
}

TEST(JobSpec, UnsupportedOptionsAreKeptInTheSpec) {
    const auto built = build({"--qos=high", "--gres=gpu:a100:1,nvme:1"});
    ASSERT_TRUE(built.ok());
    EXPECT_EQ(built->spec.unsupported_size(), 3);
    EXPECT_EQ(built->warnings.size(), 3U);
}

std::string value_in(const Environment& environment, const std::string& name) {
    const auto found = environment.find(name);
    return found == environment.end() ? "(unset)" : found->second;
}

TEST(ExportedEnvironment, AllNoneAndLists) {
    const Surroundings here{"/", "/home/a", "a", "/bin/sh", {{"PATH", "/x"}, {"A", "1"}, {"B", "2"}}};
    std::vector<std::string> warnings;
    EXPECT_EQ(value_in(*exported_environment("", here, warnings), "A"), "1");
    const auto none = exported_environment("NONE", here, warnings);
    EXPECT_EQ(value_in(*none, "A"), "(unset)");
    EXPECT_EQ(value_in(*none, "HOME"), "/home/a");
    EXPECT_NE(value_in(*none, "PATH"), "/x");
    const auto list = exported_environment("B,C=3", here, warnings);
    EXPECT_EQ(value_in(*list, "A"), "(unset)");
    EXPECT_EQ(value_in(*list, "B"), "2");
    EXPECT_EQ(value_in(*list, "C"), "3");
    EXPECT_EQ(value_in(*exported_environment("ALL,A=9", here, warnings), "A"), "9");
    EXPECT_THAT(warnings, IsEmpty());
    ASSERT_TRUE(exported_environment("NOWHERE", here, warnings).ok());
    EXPECT_EQ(warnings.size(), 1U);
}

TEST(ExportedEnvironment, LimitsHoldToTheByteAndNameTheVariable) {
    std::vector<std::string> warnings;
    Surroundings here{"/", "/", "a", "/bin/sh", {{"BIG", std::string(64 * 1024 - 3, 'x')}}};
    EXPECT_TRUE(exported_environment("ALL", here, warnings).ok());
    here.environment["BIG"] += "x";
    EXPECT_THAT(exported_environment("ALL", here, warnings).error().message, HasSubstr("BIG"));
    EXPECT_TRUE(exported_environment("NONE", here, warnings).ok());
    here.environment.clear();
    for (int i = 0; i < 17; ++i) here.environment["V" + std::to_string(i)] = std::string(63 * 1024, 'x');
    EXPECT_THAT(exported_environment("ALL", here, warnings).error().message, HasSubstr("1048576"));
}

TEST(ExportedEnvironment, OddNamesAreLeftOutAndTold) {
    std::vector<std::string> warnings;
    const Surroundings here{"/", "/", "a", "/bin/sh", {{"BASH_FUNC_module%%", "() { :; }"}, {"OK_1", "1"}}};
    const auto all = exported_environment("ALL", here, warnings);
    EXPECT_EQ(value_in(*all, "OK_1"), "1");
    EXPECT_EQ(all->count("BASH_FUNC_module%%"), 0U);
    ASSERT_EQ(warnings.size(), 1U);
    EXPECT_THAT(warnings[0], HasSubstr("BASH_FUNC_module%%"));
}

TEST(ExportedEnvironment, AJobSubmittedInsideAJobDoesNotInheritItsPlace) {
    std::vector<std::string> warnings;
    const Surroundings here{"/", "/", "a", "/bin/sh",
                            {{"GANGLINE_MARK", "c/n/1.1"}, {"RANK", "3"}, {"PMIX_RANK", "3"}, {"SLURM_JOB_ID", "1"},
                             {"GANGLINE_RESTORE_STEP", "5"}, {"MINE", "1"}}};
    const auto all = exported_environment("ALL", here, warnings);
    EXPECT_EQ(value_in(*all, "MINE"), "1");
    for (const char* const name : {"GANGLINE_MARK", "RANK", "PMIX_RANK", "SLURM_JOB_ID", "GANGLINE_RESTORE_STEP"}) {
        EXPECT_EQ(value_in(*all, name), "(unset)") << name;
    }
}

}  // namespace
}  // namespace gangline::runner
