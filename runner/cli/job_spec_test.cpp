#include "runner/cli/job_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/process.h"
#include "runner/cli/job_request.h"
#include "runner/cli/parts.h"

namespace gangline::runner {
namespace {

using testing::ElementsAre;
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
    EXPECT_EQ(built->spec.unsupported_size(), 2);
    EXPECT_EQ(built->warnings.size(), 2U);
}

TEST(ElasticGang, IsARangeOfNodesWhereNothingElseGivesTheRanks) {
    const proto::JobSpec plain = spec_of({"-N", "2-4"});
    EXPECT_TRUE(plain.elastic());
    EXPECT_EQ(plain.ranks(), 4U);
    EXPECT_EQ(plain.ranks_per_node(), 1U);
    EXPECT_EQ(plain.nodes_min(), 2U);
    EXPECT_EQ(plain.nodes_max(), 4U);
    EXPECT_EQ(plain.nodes_step(), 0U);
    const proto::JobSpec stepped = spec_of({"-N", "4-16:4", "--ntasks-per-node=8", "--gpus-per-node=8"});
    EXPECT_TRUE(stepped.elastic());
    EXPECT_EQ(stepped.ranks(), 128U);
    EXPECT_EQ(stepped.ranks_per_node(), 8U);
    EXPECT_EQ(stepped.nodes_step(), 4U);
    EXPECT_EQ(stepped.cards_per_rank(), 1U);
    EXPECT_EQ(spec_of({"-N", "2-4", "--gpus-per-task=2"}).cards_per_rank(), 2U);
}

TEST(ElasticGang, IsNoneWhereTheRanksAreGivenOrTheRangeIsOneSize) {
    for (const char* const option : {"--ntasks=4", "--ranks=4"}) {
        const proto::JobSpec spec = spec_of({"-N", "2-4", option});
        EXPECT_FALSE(spec.elastic());
        EXPECT_EQ(spec.ranks(), 4U);
        EXPECT_EQ(spec.ranks_per_node(), 0U);
    }
    const proto::JobSpec by_cards = spec_of({"-N", "2-4", "--gpus=8", "--gpus-per-task=2"});
    EXPECT_FALSE(by_cards.elastic());
    EXPECT_EQ(by_cards.ranks(), 4U);
    EXPECT_FALSE(spec_of({"-N", "3-3"}).elastic());
    EXPECT_FALSE(spec_of({"-N", "3"}).elastic());
}

TEST(ElasticGang, ATotalOfCardsOrAStepThatMeansNothingIsRefusedWithWhatToWrite) {
    EXPECT_EQ(refusal({"-N", "2-4", "--gpus=8"}),
              "--gpus: '8' is a total, but the gang has 2 to 4 nodes: ask by --gpus-per-node or --gpus-per-task");
    EXPECT_THAT(refusal({"-N", "2-4:2", "-n", "4"}), HasSubstr("the step of '2-4:2' is for an elastic gang, but --ntasks fixes"));
    EXPECT_THAT(refusal({"-N", "2-4:2", "-G", "8", "--gpus-per-task=2"}), HasSubstr("--gpus with --gpus-per-task fixes"));
    EXPECT_THAT(refusal({"-N", "2-8:4"}), HasSubstr("write 2-6:4 or 2-10:4"));
    EXPECT_THAT(refusal({"-N", "1-1000000", "--ntasks-per-node=8"}), HasSubstr("the most is 1000000"));
}

TEST(JobSpec, SparesAreWholeNodesUpToALimit) {
    EXPECT_EQ(spec_of({"--spares=2"}).spares(), 2U);
    EXPECT_EQ(spec_of({"--spares=1024"}).spares(), 1024U);
    EXPECT_EQ(spec_of({}).spares(), 0U);
    EXPECT_EQ(refusal({"--spares=1025"}), "--spares: '1025' is not a whole number from 0 to 1024");
    EXPECT_THAT(refusal({"--spares=-1"}), HasSubstr("--spares: '-1'"));
}

TEST(JobSpec, SegmentsAreWholeGroupsAtBothEndsOfARange) {
    EXPECT_EQ(spec_of({"-N", "8", "--segment=4"}).segment(), 4U);
    EXPECT_EQ(spec_of({"-N", "4-8", "-n", "8", "--segment=4"}).segment(), 4U);
    EXPECT_EQ(refusal({"-N", "6", "--segment=4"}), "--segment: 6 nodes cannot be made of groups of 4: ask for --nodes 4 or 8");
    EXPECT_EQ(refusal({"-N", "1", "--segment=4"}), "--segment: 1 node cannot be made of groups of 4: ask for --nodes 4");
    EXPECT_THAT(refusal({"-N", "4-6", "--segment=4"}), HasSubstr("6 nodes cannot"));
    EXPECT_THAT(refusal({"-n", "8", "--segment=4"}), HasSubstr("need --nodes with a multiple of 4"));
    EXPECT_THAT(refusal({"-N", "4", "--segment=0"}), HasSubstr("--segment: '0'"));
}

TEST(JobSpec, AnElasticGangGrowsByWholeSegments) {
    EXPECT_EQ(spec_of({"-N", "4-12", "--segment=4"}).nodes_step(), 4U);
    EXPECT_EQ(spec_of({"-N", "4-12:8", "--segment=4"}).nodes_step(), 8U);
    EXPECT_EQ(spec_of({"-N", "4-12", "--segment=1"}).nodes_step(), 0U);
    EXPECT_THAT(refusal({"-N", "4-12:2", "--segment=4"}), HasSubstr("steps of 2 nodes are not whole groups of 4"));
}

TEST(JobSpec, FeaturesReservationAndSpreadAreCarried) {
    const auto built = build({"-C", "nvme&ib", "--reservation=course", "--spread-job"});
    ASSERT_TRUE(built.ok());
    EXPECT_EQ(built->spec.constraint(), "nvme&ib");
    EXPECT_EQ(built->spec.reservation(), "course");
    EXPECT_TRUE(built->spec.spread());
    EXPECT_THAT(built->warnings, IsEmpty());
    EXPECT_EQ(built->spec.unsupported_size(), 0);
    EXPECT_THAT(refusal({"-C", "[a|b]"}), HasSubstr("--constraint: '[a|b]' has brackets"));
    EXPECT_THAT(refusal({"--reservation=a,b"}), HasSubstr("--reservation: 'a,b' is not the name of one reservation"));
}

TEST(CardModel, IsTheTypeThatAnyOptionNames) {
    for (const char* const option : {"--gpus=h100:4", "--gpus-per-node=h100:4", "--gpus-per-task=h100:4", "--cards-per-rank=h100:4", "--gres=gpu:h100:4"}) {
        const auto built = build({option});
        ASSERT_TRUE(built.ok()) << option;
        EXPECT_EQ(built->spec.card_model(), "h100") << option;
        EXPECT_EQ(built->spec.cards_per_rank(), 4U) << option;
        EXPECT_THAT(built->warnings, IsEmpty()) << option;
    }
    EXPECT_EQ(spec_of({"--gpus=4"}).card_model(), "");
    EXPECT_EQ(spec_of({"--gpus=h100:0"}).card_model(), "");
    EXPECT_EQ(spec_of({"-n", "2", "--gpus=h100:4", "--gpus-per-task=2"}).card_model(), "h100");
    EXPECT_EQ(spec_of({"-n", "2", "--gpus=H100:4", "--gpus-per-task=h100:2"}).card_model(), "h100");
}

TEST(CardModel, TwoTypesAreRefusedWithBothNames) {
    EXPECT_EQ(refusal({"-n", "2", "--gpus=h100:4", "--gpus-per-task=a100:2"}),
              "--gpus: the type 'h100' is not 'a100' of --gpus-per-task: a gang has cards of one type, leave one out");
    EXPECT_THAT(refusal({"--gres=gpu:h100:4,gpu:a100:2"}), HasSubstr("names two types of cards, h100 and a100"));
    EXPECT_THAT(refusal({"--gpus=:4"}), HasSubstr("is not a number of cards"));
}

TEST(JobArray, IsItsTasksAndWhatEachElementIsToKnow) {
    const proto::JobSpec spec = spec_of({"--array=2-10:4%2"});
    EXPECT_THAT(spec.array_tasks(), ElementsAre(2U, 6U, 10U));
    EXPECT_EQ(spec.array().count(), 3U);
    EXPECT_EQ(spec.array().least(), 2U);
    EXPECT_EQ(spec.array().most(), 10U);
    EXPECT_EQ(spec.array().step(), 4U);
    EXPECT_EQ(spec.array().most_at_once(), 2U);
    EXPECT_EQ(spec.array().job(), 0U);
    EXPECT_EQ(spec.array().task(), 0U);
    EXPECT_FALSE(spec_of({}).has_array());
    EXPECT_THAT(refusal({"--array=5-1"}), HasSubstr("--array: '5-1'"));
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

TEST(JobRequest, AFolderThatIsNotThereIsFoundAsFarAsItsNameIsKnown) {
    const std::string here = testing::TempDir() + "gangline-output-" + random_hex(4);
    ASSERT_TRUE(make_folders(here + "/logs").ok());
    for (const char* const good : {"", "%j.out", "logs/%x-%j.out", "logs/%x/out", "%x/out", "/dev/null", "/x.out"}) EXPECT_EQ(missing_folder(good, here), "") << good;
    EXPECT_EQ(missing_folder(here + "/logs/a.out", "/"), "");
    EXPECT_EQ(missing_folder("log/%j.out", here), here + "/log");
    EXPECT_EQ(missing_folder("logs/day/%j/out", here), here + "/logs/day");
    EXPECT_TRUE(remove_tree(here).ok());
}

TEST(LocalCluster, GivesItsClusterFileToTheCoordinatorAlsoWhenItIsStartedAgain) {
    LocalClusterPlan plan;
    plan.folder = testing::TempDir() + "gangline-plan-" + random_hex(4);
    ASSERT_TRUE(make_folders(plan.folder).ok());
    plan.cluster = "local-1";
    plan.users_endpoint = plan.nodes_endpoint = "tcp://127.0.0.1:1";
    plan.coordinator_key = std::string(40, 'k');
    plan.nodes = {{"n0", 4}};
    const auto words = [&](const LocalClusterPlan& one) { return parts_of(one, false).front().argv; };
    EXPECT_THAT(words(plan), testing::Not(testing::Contains("--cluster-file")));
    plan.description = "/etc/gangline/cluster.toml";
    ASSERT_TRUE(write_plan(plan).ok());
    const auto kept = read_plan(plan.folder);
    ASSERT_TRUE(kept.ok());
    EXPECT_THAT(words(*kept), testing::IsSupersetOf({"--cluster-file", "/etc/gangline/cluster.toml"}));
    EXPECT_TRUE(remove_tree(plan.folder).ok());
}

TEST(JobSpec, SaysWhichCheckpointsStay) {
    EXPECT_FALSE(spec_of({}).has_retention());
    const proto::JobSpec spec = spec_of({"--keep-last=5", "--keep-every", "1000", "--keep-best=2", "--best-is=higher"});
    EXPECT_EQ(spec.retention().last(), 5U);
    EXPECT_EQ(spec.retention().every(), 1000U);
    EXPECT_EQ(spec.retention().best(), 2U);
    EXPECT_TRUE(spec.retention().higher_is_better());
    for (const char* few : {"--keep-last=0", "--keep-last=1"}) {
        EXPECT_THAT(refusal({few}), HasSubstr("2"));
        EXPECT_THAT(refusal({few}), HasSubstr("the newest may turn out damaged"));
    }
    EXPECT_THAT(refusal({"--keep-best=-1"}), HasSubstr("--keep-best"));
    EXPECT_THAT(refusal({"--best-is=best"}), HasSubstr("neither lower nor higher"));
}

}  // namespace
}  // namespace gangline::runner
