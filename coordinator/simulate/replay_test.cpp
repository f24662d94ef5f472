#include "coordinator/simulate/replay.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "coordinator/simulate/default_phases.h"
#include "coordinator/simulate/summary.h"
#include "coordinator/simulate/verb.h"

namespace gangline::simulate {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kDay = 86400;

// One gang, crashes only, a recovery that always takes so long.
ReplayOptions training(std::uint32_t nodes, double mtbf_s, double recovery_s, double every_s, double stall_s) {
    ReplayOptions options;
    options.nodes = options.whole_cluster_job = nodes;
    options.faults_per_1000_node_days = 1000 * kDay / mtbf_s / nodes;
    options.memory_every_s = every_s;
    options.memory_stall_s = stall_s;
    options.phases.warm_up = {recovery_s, 0, "test"};
    return options;
}

double mean_ett(ReplayOptions options, int seeds) {
    double sum = 0;
    for (int i = 0; i < seeds; ++i) {
        options.seed = static_cast<std::uint64_t>(i) + 1;
        sum += replay(options, {})->ett / seeds;
    }
    return sum;
}

TEST(Replay, AgreesWithTheRenewalFormulaWithinOnePercentWhereLossesAreSmall) {
    for (const double recovery_s : {30.0, 60.0, 300.0}) {
        for (const double every_s : {30.0, 60.0, 300.0, 900.0}) {
            ReplayOptions options = training(2048, 3.09 * 3600, recovery_s, every_s, 0.2);
            options.span_s = 400 * kDay;
            const double expected = renewal_ett(3.09 * 3600, recovery_s, every_s, 0.2);
            EXPECT_NEAR(mean_ett(options, 4), expected, 0.01 * expected) << recovery_s << ' ' << every_s;
        }
    }
}

// RSC-1's rate, 16,384 cards, five minutes between checkpoints and to restart: 0.93 in Meta's study (arXiv 2410.21680).
TEST(Replay, AgreesWithMetasCase) {
    ReplayOptions options = training(2048, kDay / (2048 * 6.5e-3), 300, 300, 0);
    options.span_s = 300 * kDay;
    EXPECT_NEAR(mean_ett(options, 4), 0.93, 0.01);
}

TEST(Replay, TheSameSeedTellsTheSameStoryAndAnotherADifferentOne) {
    ReplayOptions options = training(64, 3600, 60, 60, 0.2);
    options.span_s = 10 * kDay;
    const auto first = *replay(options, {});
    const auto again = *replay(options, {});
    EXPECT_EQ(first.causes, again.causes);
    EXPECT_EQ(first.faults, again.faults);
    options.seed = 2;
    EXPECT_NE(replay(options, {})->causes, first.causes);
}

void expect_accounted(const ReplayOptions& options, const ReplayResult& result) {
    const double owned = static_cast<double>(options.nodes) * options.cards_per_node * result.span_s;
    double sum = 0;
    for (const auto& [name, card_s] : result.causes) {
        if (name == "not accounted") continue;
        EXPECT_GE(card_s, -1e-6 * owned) << name;
        sum += card_s;
    }
    EXPECT_NEAR(sum, owned, 1e-3 * owned);
}

TEST(Replay, EveryCardSecondHasOneCauseWithBrokenNodesSparesAndElasticGangsToo) {
    for (const bool elastic : {false, true}) {
        for (const std::uint32_t spares : {0u, 2u}) {
            ReplayOptions options = training(64, 4 * 3600, 60, 60, 0.2);
            options.nodes = 64 + spares;
            options.span_s = 60 * kDay;
            options.elastic = elastic;
            options.causes = {{"gpu", 5, "crash", 1}, {"hang", 1, "hang", 0}, {"sdc", 1, "silent", 1}, {"planned", 1, "graceful_stop", 0}};
            options.phases.detect_s = {{"hang", 30}};
            options.phases.undetected_s = 300;
            options.repair_mean_s = kDay;
            options.lemon_nodes = 0.05;
            options.lemon_faults = 0.24;
            const auto result = replay(options, {});
            ASSERT_TRUE(result);
            expect_accounted(options, *result);
            EXPECT_GT(result->faults, 50u);
            EXPECT_TRUE(elastic ? result->waited_for_node_s == 0 : result->shrinks == 0);
        }
    }
}

TEST(Replay, SparesAreWorthTheirMoneyWhenRepairsAreSlow) {
    ReplayOptions options = training(64, 6 * 3600, 60, 60, 0.2);
    options.span_s = 60 * kDay;
    options.causes = {{"gpu", 1, "crash", 1}};
    options.repair_mean_s = 12 * 3600;
    const double none = mean_ett(options, 3);
    options.nodes = 70;
    const double six = mean_ett(options, 3);
    EXPECT_GT(six, none + 0.05);
    EXPECT_GT(six, 0.98);
}

std::vector<TraceJob> burst() {
    std::vector<TraceJob> jobs;
    for (std::uint64_t i = 1; i <= 60; ++i) {
        jobs.push_back({.number = i, .submit_s = static_cast<double>(i), .duration_s = i % 7 == 0 ? 20000.0 : 600.0, .cards = i % 5 == 0 ? 32u : 1u + static_cast<std::uint32_t>(i % 4)});
    }
    return jobs;
}

TEST(Replay, EachPolicyRunsEveryJobOnceAndAccountsForIt) {
    for (const Policy policy : {Policy::Fifo, Policy::Easy, Policy::BestFit, Policy::Gangline}) {
        ReplayOptions options;
        options.nodes = 4;
        options.policy = policy;
        const auto result = replay(options, burst());
        ASSERT_TRUE(result);
        EXPECT_EQ(result->finished, 60u) << name_of(policy);
        expect_accounted(options, *result);
        double work = 0;
        for (const TraceJob& job : burst()) work += job.duration_s * job.cards;
        EXPECT_NEAR(result->causes.at("compute"), work, 1e-6 * work);
    }
}

TEST(Replay, WhatCannotBeIsRefusedWithWords) {
    ReplayOptions options;
    EXPECT_THAT(replay(options, {}).error().message, HasSubstr("--train"));
    EXPECT_THAT(replay(options, {{.number = 7, .duration_s = 1, .cards = 1000}}).error().message, HasSubstr("job 7 asks for 1000 cards"));
    options.whole_cluster_job = 99;
    EXPECT_THAT(replay(options, {}).error().message, HasSubstr("does not fit"));
}

TEST(PhasesFile, TheDocumentedOneIsReadAndEveryFigureHasASource) {
    const auto phases = parse_phases(kDefaultPhases, "default");
    ASSERT_TRUE(phases) << phases.error().message;
    EXPECT_GT(phases->recovery_s(2048, true), phases->recovery_s(2, true));
    for (const Phase* phase : {&phases->stop, &phases->swap, &phases->prepare, &phases->launch, &phases->join, &phases->restore, &phases->warm_up}) {
        EXPECT_FALSE(phase->source.empty());
    }
}

TEST(PhasesFile, WhatIsWrongIsNamed) {
    EXPECT_THAT(parse_phases("[]", "f").error().message, HasSubstr("f: not a JSON object"));
    EXPECT_THAT(parse_phases(R"({"stop": {"base_s": -1, "source": "x"}})", "f").error().message, HasSubstr("'stop'"));
    EXPECT_THAT(parse_phases(R"({"stop": {"base_s": 1}})", "f").error().message, HasSubstr("source"));
    EXPECT_THAT(parse_phases(R"({"halt": {"base_s": 1, "source": "x"}})", "f").error().message, HasSubstr("not known"));
    EXPECT_THAT(parse_phases(R"({"detect_s": {"crash": "soon"}})", "f").error().message, HasSubstr("detect_s.crash"));
}

TEST(Summary, ThePageIsWholeAndItsDataCannotEndTheScript) {
    ReplayOptions options;
    options.nodes = 4;
    Series series{"gangline", {*replay(options, burst())}};
    const std::string page = summary_html(options, {series, series}, {"</script><b>"}, "/* chart */");
    EXPECT_THAT(page, HasSubstr("/* chart */"));
    EXPECT_EQ(page.find("</script><b>"), std::string::npos);
    EXPECT_THAT(page, testing::EndsWith("</html>\n"));
    EXPECT_EQ(summary_json(options, {series, series}, {})["differences"][0]["mean_wait_s"]["mean"], 0);
}

TEST(Summary, TheIntervalOfAMeanIsTheNormalOne) {
    const Spread one = spread_of({1, 2, 3, 4, 5});
    EXPECT_EQ(one.mean, 3);
    EXPECT_NEAR(one.half_width, 1.96 * std::sqrt(2.5 / 5), 1e-12);
    EXPECT_EQ(spread_of({7}).half_width, 0);
}

// What the verb answers to these words: standard output, then standard error.
std::pair<std::string, std::string> simulate(std::vector<std::string> words) {
    words.insert(words.begin(), "simulate");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    simulate_main(static_cast<int>(argv.size()), argv.data());
    std::fflush(stdout);
    std::string out = testing::internal::GetCapturedStdout();
    return {out, testing::internal::GetCapturedStderr()};
}

TEST(SimulateVerb, ItsHelpShowsNumbersAsPeopleWriteThem) {
    const std::string help = simulate({"--help"}).first;
    EXPECT_THAT(help, HasSubstr("(=0.2)"));
    EXPECT_THAT(help, Not(HasSubstr("0000000")));
}

TEST(SimulateVerb, WarnsWhenSparesAreComparedAndNoFaultLosesANode) {
    const std::vector<std::string> words = {"--train", "8", "--days", "2", "--faults", "50", "--spares", "2"};
    const auto with = [&](std::vector<std::string> more) {
        more.insert(more.begin(), words.begin(), words.end());
        return simulate(more).first;
    };
    EXPECT_THAT(with({}), HasSubstr("warning: no fault loses a node, so --spares changes nothing"));
    EXPECT_THAT(with({}), HasSubstr("1 job runs throughout"));
    EXPECT_THAT(with({}), Not(HasSubstr("-0.000")));
    EXPECT_THAT(with({"--node-loss", "0.3"}), Not(HasSubstr("warning")));
    EXPECT_THAT(with({"--rack-faults", "1"}), Not(HasSubstr("warning")));
}

TEST(SimulateVerb, ATableOfCausesMaySayYesAndNo) {
    const std::string file = testing::TempDir() + "gangline-causes.csv";
    const auto answer = [&](const std::string& lost) {
        std::ofstream(file) << "cause,count,symptom_assumed,needs_node_swap_assumed\n\"card, or link\",6,crash," << lost << "\nswitch,1,hang,no\n";
        return simulate({"--train", "8", "--days", "2", "--faults", "50", "--seeds", "2", "--causes", file, "--json"});
    };
    const auto swaps = [&](const std::string& lost) { return nlohmann::json::parse(answer(lost).first)["series"][0]["swaps"].get<int>(); };
    EXPECT_GT(swaps("1"), 0);
    for (const char* const word : {"yes", " True ", "YES"}) EXPECT_EQ(swaps(word), swaps("1")) << word;
    for (const char* const word : {"no", "false", "0"}) EXPECT_EQ(swaps(word), 0) << word;
    for (const char* const word : {"maybe", "2", "-1", ""}) {
        EXPECT_THAT(answer(word).second, HasSubstr(fmt::format("gangline-causes.csv line 2, column needs_node_swap_assumed: '{}' does not say whether the node is lost: write yes, no,", word)));
    }
    std::remove(file.c_str());
}

TEST(SimulateVerb, DifferencesAreToldInTheUnitsOfThePage) {
    ReplayResult first, second;
    first.mean_wait_s = 50'000;
    second.mean_wait_s = 2'000;
    second.ett = 0.5;
    const std::string text = summary_text({}, {{"easy", {first}}, {"gangline", {second}}}, {});
    EXPECT_THAT(text, testing::ContainsRegex("mean wait in the queue +-13h 20m\n"));
    EXPECT_THAT(text, testing::ContainsRegex("effective training time of what was held +\\+50.00 points\n"));
    EXPECT_THAT(text, testing::ContainsRegex("from the first submit to the last end +0.0s\n"));
}

}  // namespace
}  // namespace gangline::simulate
