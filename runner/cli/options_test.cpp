#include "runner/cli/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "runner/cli/job_options.h"
#include "runner/cli/verbs.h"

namespace gangline::runner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ParsedWords parse(const std::vector<std::string>& words) {
    auto parsed = parse_words(job_option_table(), words, WordsStop::AtFirstWord, "");
    EXPECT_TRUE(parsed.ok()) << (parsed ? "" : parsed.error().message);
    return parsed ? *parsed : ParsedWords{};
}

std::string refusal(const std::vector<std::string>& words) {
    const auto parsed = parse_words(job_option_table(), words, WordsStop::AtFirstWord, "in job.sh line 4");
    return parsed ? "" : parsed.error().message;
}

TEST(Options, AllSpellingsOfAValueAreTheSame) {
    for (const std::vector<std::string>& words : {std::vector<std::string>{"-n4"}, {"-n", "4"}, {"--ntasks=4"},
                                                  {"--ntasks", "4"}, {"--ranks=4"}, {"-n=4"}}) {
        const ParsedWords parsed = parse(words);
        ASSERT_EQ(parsed.given.size(), 1U) << words[0];
        EXPECT_EQ(parsed.given[0].name, "ntasks");
        EXPECT_EQ(parsed.given[0].value, "4");
    }
}

TEST(Options, OptionsEndAtTheScriptAndItsArgumentsAreLeftAlone) {
    const ParsedWords parsed = parse({"-N", "2", "job.sh", "-n", "5", "--", "x"});
    EXPECT_EQ(parsed.given.size(), 1U);
    EXPECT_THAT(parsed.words, ElementsAre("job.sh", "-n", "5", "--", "x"));
    EXPECT_FALSE(parsed.had_dashes);
}

TEST(Options, DashesBeginTheProgram) {
    const ParsedWords parsed = parse({"--hold", "--", "prog", "--hold"});
    EXPECT_THAT(parsed.words, ElementsAre("prog", "--hold"));
    EXPECT_TRUE(parsed.had_dashes);
}

TEST(Options, AnOptionalValueStandsOnlyBehindAnEqualsSign) {
    const ParsedWords parsed = parse({"--exclusive", "job.sh"});
    EXPECT_EQ(parsed.given[0].value, "");
    EXPECT_THAT(parsed.words, ElementsAre("job.sh"));
    EXPECT_EQ(parse({"--exclusive=user"}).given[0].value, "user");
}

TEST(Options, LettersWithoutValuesCanBeStrungTogether) {
    const ParsedWords parsed = parse({"-HWn", "3"});
    ASSERT_EQ(parsed.given.size(), 3U);
    EXPECT_EQ(parsed.given[2].value, "3");
}

TEST(Options, ANegativeNumberIsAValue) { EXPECT_EQ(parse({"--priority", "-5"}).given[0].value, "-5"); }

TEST(Options, AnUnknownOptionNamesThePlaceAndTheNearestName) {
    EXPECT_EQ(refusal({"--nodez=2"}), "unknown option '--nodez' (in job.sh line 4): did you mean --nodes?");
    EXPECT_THAT(refusal({"--ntask=2"}), HasSubstr("--ntasks"));
    EXPECT_EQ(refusal({"--completely-else"}), "unknown option '--completely-else' (in job.sh line 4)");
    EXPECT_THAT(refusal({"-z"}), HasSubstr("'-z'"));
}

TEST(Options, OnlyANearAndSupportedNameIsSuggested) {
    EXPECT_EQ(nearest_name({"qos", "nodes"}, "foo"), "");
    EXPECT_EQ(nearest_name({"nodes", "ntasks"}, "nodse"), "nodes");
    EXPECT_EQ(nearest_name({"checkpoint-dir"}, "checkpoint"), "checkpoint-dir");
    EXPECT_EQ(refusal({"--partitions=a"}), "unknown option '--partitions' (in job.sh line 4)");
}

TEST(Options, AnErrorNamesTheOptionAsItWasTyped) {
    const ParsedWords parsed = parse({"--ranks", "four"});
    EXPECT_EQ(parsed.given[0].name, "ntasks");
    EXPECT_THAT(whole_number(parsed.given[0], 1, 20).error().message, HasSubstr("--ranks: 'four' is not"));
}

TEST(Options, MissingAndUnwantedValuesAreNamed) {
    EXPECT_THAT(refusal({"--time"}), HasSubstr("--time needs a value"));
    EXPECT_THAT(refusal({"--time="}), HasSubstr("--time needs a value"));
    EXPECT_THAT(refusal({"-t"}), HasSubstr("--time needs a value"));
    EXPECT_THAT(refusal({"--hold=yes"}), HasSubstr("--hold takes no value, but 'yes'"));
}

TEST(Options, WholeNumbersNameTheirRange) {
    EXPECT_EQ(*whole_number({"ntasks", "12", ""}, 1, 20), 12);
    EXPECT_EQ(whole_number({"ntasks", "x", "in job.sh line 3"}, 1, 20).error().message,
              "--ntasks (in job.sh line 3): 'x' is not a whole number from 1 to 20");
    EXPECT_FALSE(whole_number({"ntasks", "21", ""}, 1, 20).ok());
    EXPECT_FALSE(whole_number({"ntasks", "1 ", ""}, 1, 20).ok());
}

TEST(Options, NoVerbHasANameOrALetterTwice) {
    for (const Verb& verb : verbs()) {
        std::set<std::string> names;
        std::set<char> letters;
        for (const OptionInfo& option : verb.options) {
            EXPECT_TRUE(names.insert(option.name).second) << verb.name << " --" << option.name;
            if (option.letter != 0) {
                EXPECT_TRUE(letters.insert(option.letter).second) << verb.name << " -" << option.letter;
            }
        }
    }
}

TEST(Options, TheHelpOfEveryVerbNamesItsOptionsAndAnExample) {
    for (const Verb& verb : verbs()) {
        const std::string help = verb_help(verb);
        EXPECT_THAT(help, HasSubstr("usage: gangline " + verb.name));
        for (const OptionInfo& option : verb.options) {
            if (option.supported) {
                EXPECT_THAT(help, HasSubstr("--" + option.name)) << verb.name;
            }
        }
        if (verb.name != "help" && verb.name != "version") {
            EXPECT_THAT(help, HasSubstr("Examples:")) << verb.name;
        }
        EXPECT_THAT(general_help(), HasSubstr("  " + verb.name + " "));
    }
}

}  // namespace
}  // namespace gangline::runner
