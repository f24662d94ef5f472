#include "runner/cli/job_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runner/cli/config.h"

namespace gangline::runner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(JobOptions, CommandLineBeatsScriptBeatsEnvironmentBeatsConfiguration) {
    const JobOptions options = merge_job_options({{{"time", "1", ""}},
                                                  {{"time", "2", "in job.sh line 2"}, {"nodes", "2", "in job.sh line 3"}},
                                                  {{"nodes", "3", "in GANGLINE_NODES"}, {"mem", "3", "in GANGLINE_MEM"}},
                                                  {{"mem", "4", "in gangline.conf line 1"}, {"ntasks", "4", ""}}});
    EXPECT_EQ(options.text("time"), "1");
    EXPECT_EQ(options.text("nodes"), "2");
    EXPECT_EQ(options.text("mem"), "3");
    EXPECT_EQ(options.text("ntasks"), "4");
    EXPECT_FALSE(options.has("hold"));
}

TEST(JobOptions, TheLastOneOfASourceCounts) {
    EXPECT_EQ(merge_job_options({{{"time", "1", ""}, {"time", "2", ""}}}).text("time"), "2");
}

TEST(JobOptions, RequeueAndNoRequeueShutEachOtherOut) {
    const JobOptions later = merge_job_options({{{"requeue", "", ""}, {"no-requeue", "", ""}}});
    EXPECT_TRUE(later.has("no-requeue"));
    EXPECT_FALSE(later.has("requeue"));
    const JobOptions higher = merge_job_options({{{"requeue", "", ""}}, {{"no-requeue", "", ""}}});
    EXPECT_TRUE(higher.has("requeue"));
    EXPECT_FALSE(higher.has("no-requeue"));
}

TEST(JobOptions, VariablesThatMeanNothingAreNamedInOneLine) {
    EXPECT_EQ(unknown_variables({{"GANGLINE_TIEM", "5"}, {"GANGLINE_XYZZY", "1"}, {"PATH", "/bin"}}),
              "no option of gangline, without effect: GANGLINE_TIEM (did you mean GANGLINE_TIME?), GANGLINE_XYZZY");
    EXPECT_EQ(unknown_variables({{"GANGLINE_TIME", "5"}, {"GANGLINE_RANKS", "2"}, {"GANGLINE_PARTITION", "x"},
                                 {"GANGLINE_STATE", "/s"}, {"GANGLINE_JOB_ID", "7"}, {"GANGLINE_RESTORE_STEP", "3"}, {"GANGLINE_CHECKPOINT_RECYCLE", "0"},
                                 {"GANGLINE_KEEP_LAST", "4"}, {"GANGLINE_RESEED", "rng"}}),
              "");
}

TEST(JobOptions, TheEnvironmentSpeaksByOurNamesAndBySbatchs) {
    const auto given = job_options_of_environment({{"SBATCH_TIMELIMIT", "5"},
                                                   {"GANGLINE_TIME", "6"},
                                                   {"GANGLINE_NTASKS_PER_NODE", "2"},
                                                   {"SBATCH_PARTITION", "gpu"},
                                                   {"GANGLINE_HOLD", "0"},
                                                   {"SBATCH_EXCLUSIVE", ""},
                                                   {"TIME", "7"}});
    const JobOptions options = merge_job_options({given});
    EXPECT_EQ(options.text("time"), "6");
    EXPECT_EQ(options.text("ntasks-per-node"), "2");
    EXPECT_EQ(options.text("partition"), "gpu");
    EXPECT_FALSE(options.has("hold"));
    EXPECT_TRUE(options.has("exclusive"));
    EXPECT_EQ(merge_job_options({job_options_of_environment({{"GANGLINE_KEEP_BEST", "2"}})}).text("keep-best"), "2");
    EXPECT_EQ(options.find("time")->where, "in GANGLINE_TIME");
}

TEST(JobOptions, InsideAJobItsOwnNameAndCheckpointsAreNotOptions) {
    const Environment inside = {{"GANGLINE_MARK", "c/n0/1.1"},
                                {"GANGLINE_JOB_NAME", "outer"},
                                {"GANGLINE_CHECKPOINT_DIR", "/x"},
                                {"GANGLINE_KEEP_LAST", "9"},
                                {"GANGLINE_TIME", "5"}};
    const JobOptions options = merge_job_options({job_options_of_environment(inside)});
    EXPECT_FALSE(options.has("job-name"));
    EXPECT_FALSE(options.has("checkpoint-dir"));
    EXPECT_FALSE(options.has("keep-last"));
    EXPECT_TRUE(options.has("time"));
}

TEST(JobOptions, WhatIsNotSupportedIsNamedWithWhatHappensInstead) {
    const JobOptions options =
        merge_job_options({{{"qos", "high", "in job.sh line 4"}, {"no-kill", "", ""}, {"time", "5", ""}}});
    const Unsupported unsupported = unsupported_options(options);
    EXPECT_THAT(unsupported.options, ElementsAre("--no-kill", "--qos=high"));
    ASSERT_EQ(unsupported.warnings.size(), 2U);
    EXPECT_THAT(unsupported.warnings[1], HasSubstr("--qos=high (in job.sh line 4) is not supported: there are no"));
}

TEST(JobOptions, PlacesAndArraysAreSupportedByTheirVariablesToo) {
    const Environment environment = {{"SBATCH_CONSTRAINT", "ib"}, {"SBATCH_RESERVATION", "course"}, {"SBATCH_SPREAD_JOB", ""},
                                     {"SBATCH_ARRAY_INX", "0-3"}, {"GANGLINE_SPARES", "1"}, {"GANGLINE_SEGMENT", "2"}};
    const JobOptions options = merge_job_options({{{"constraint", "nvme", ""}}, job_options_of_environment(environment)});
    EXPECT_EQ(options.text("constraint"), "nvme");
    EXPECT_EQ(options.text("reservation"), "course");
    EXPECT_TRUE(options.has("spread-job"));
    EXPECT_EQ(options.text("array"), "0-3");
    EXPECT_EQ(options.text("spares"), "1");
    EXPECT_EQ(options.text("segment"), "2");
    EXPECT_THAT(unsupported_options(options).warnings, IsEmpty());
    EXPECT_EQ(unknown_variables({{"GANGLINE_ARRAY_TASK", "3"}}), "");
}

TEST(JobOptions, EveryUnsupportedOptionSaysWhatHappensInstead) {
    for (const OptionInfo& option : job_option_table()) EXPECT_FALSE(option.words.empty()) << option.name;
}

TEST(JobOptions, DirectivesCarryFileAndLine) {
    const auto script = read_directives("#!/bin/sh\n#SBATCH -N 2 --time=5\n#GANG --retries=1\n", "job.sh");
    const auto given = job_options_of_script(*script, "job.sh");
    ASSERT_EQ(given->size(), 3U);
    EXPECT_EQ((*given)[2].where, "in job.sh line 3");
    const auto bad = read_directives("#!/bin/sh\n#SBATCH --tiem=5\n", "job.sh");
    EXPECT_EQ(job_options_of_script(*bad, "job.sh").error().message,
              "unknown option '--tiem' (in job.sh line 2): did you mean --time?");
    const auto word = read_directives("#!/bin/sh\n#SBATCH -N 2 four\n", "job.sh");
    EXPECT_THAT(job_options_of_script(*word, "job.sh").error().message, HasSubstr("'four' (in job.sh line 2)"));
}

TEST(Cards, AreReadInAllOfSbatchsWays) {
    EXPECT_EQ(parse_cards({"gpus", "4", ""})->count, 4U);
    EXPECT_EQ(parse_cards({"gpus", "a100:4", ""})->type, "a100");
    EXPECT_EQ(parse_cards({"gres", "gpu", ""})->count, 1U);
    EXPECT_EQ(parse_cards({"gres", "gpu:2", ""})->count, 2U);
    EXPECT_EQ(parse_cards({"gres", "gpu:h100:8", ""})->count, 8U);
    EXPECT_EQ(parse_cards({"gres", "gpu:2(S:0-1)", ""})->count, 2U);
    EXPECT_EQ(parse_cards({"gres", "none", ""})->count, 0U);
    EXPECT_THAT(parse_cards({"gres", "nvme:1,gpu:1", ""})->other, ElementsAre("nvme:1"));
    EXPECT_EQ(parse_cards({"gpus", "h100:4,H100:2", ""})->count, 6U);
    EXPECT_FALSE(parse_cards({"gpus", "h100:4,a100:2", ""}).ok());
    EXPECT_FALSE(parse_cards({"gpus", "many", ""}).ok());
    EXPECT_FALSE(parse_cards({"gpus", "", ""}).ok());
    EXPECT_FALSE(parse_cards({"gres", "gpu:a:b:c", ""}).ok());
    EXPECT_FALSE(parse_cards({"gpus", "99999999999999999999", ""}).ok());
}

TEST(Config, HasJobOptionsAndTheClusterByName) {
    const auto config = parse_config(
        "# a remark\ncoordinator = tcp://h:1\n[submit]\ntime = \"1:00\"\nntasks_per_node=2\nhold = no\n[agent]\nanything = 1\n",
        "gangline.conf");
    ASSERT_TRUE(config.ok());
    EXPECT_EQ(config->client.at("coordinator").value, "tcp://h:1");
    ASSERT_EQ(config->job_options.size(), 2U);
    EXPECT_EQ(config->job_options[0].value, "1:00");
    EXPECT_EQ(config->job_options[1].name, "ntasks-per-node");
    EXPECT_EQ(config->job_options[1].where, "in gangline.conf line 5");
}

TEST(Config, UnknownNamesAndSectionsAreRefusedWithTheirLine) {
    EXPECT_EQ(parse_config("tiem = 5\n", "g.conf").error().message,
              "unknown name 'tiem' (in g.conf line 1): did you mean time?");
    EXPECT_THAT(parse_config("\n[sumbit]\n", "g.conf").error().message, HasSubstr("g.conf line 2"));
    EXPECT_THAT(parse_config("time =\n", "g.conf").error().message, HasSubstr("needs a value"));
    EXPECT_THAT(parse_config("", "g.conf")->job_options, IsEmpty());
}

}  // namespace
}  // namespace gangline::runner
