#include "coordinator/schedule/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gangline::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

constexpr std::string_view kWhole = R"(currency = "USD"

[cards.H100]
memory_mib = 81559
price_per_hour = 2.5
billing = "node"
peak_flops = { bf16 = 989e12, fp8 = 1979e12 }

[cards.A100]

[[rack]]
name = "r1"
block = "b1"
nodes = "n[001-003]"
cards = "H100"
features = ["nvme", "ib"]

[[rack]]
name = "r2"
nodes = "k7"

[[nodes]]
names = "m[1-2]"
cards = "A100"
features = ["old"]

[teams.research]
quota_cards = 96

[teams.vision]
parent = "research"
users = ["ana", "ben@site.org"]
quota_cards = 64
most_cards = 128
share = 2.0
)";

Fleet parsed(std::string_view toml) {
    auto fleet = parse_fleet(toml);
    EXPECT_TRUE(fleet.ok()) << (fleet.ok() ? "" : fleet.error().message);
    return fleet.ok() ? std::move(fleet).value() : Fleet{};
}

// The refusal's sentence; empty when the text was accepted.
std::string refusal(std::string_view toml) {
    const auto fleet = parse_fleet(toml);
    if (fleet.ok()) return "";
    EXPECT_EQ(fleet.error().code, Code::InvalidArgument);
    return fleet.error().message;
}

TEST(ClusterFile, AnEmptyFileIsAClusterWithoutDescription) {
    const Fleet fleet = parsed("");
    EXPECT_EQ(fleet.currency, "EUR");
    EXPECT_THAT(fleet.nodes, IsEmpty());
    EXPECT_THAT(fleet.models, IsEmpty());
    EXPECT_THAT(fleet.teams, IsEmpty());
}

TEST(ClusterFile, CardsCarryMemoryPriceBillingAndPeaks) {
    const Fleet fleet = parsed(kWhole);
    EXPECT_EQ(fleet.currency, "USD");
    ASSERT_THAT(fleet.models, UnorderedElementsAre(Key("H100"), Key("A100")));
    const CardModel& card = fleet.models.at("H100");
    EXPECT_EQ(card.name, "H100");
    EXPECT_EQ(card.memory_mib, 81559u);
    EXPECT_EQ(card.price_per_hour, 2.5);
    EXPECT_EQ(card.billing, Billing::Node);
    EXPECT_THAT(card.peak_flops, UnorderedElementsAre(Pair("bf16", 989e12), Pair("fp8", 1979e12)));
}

TEST(ClusterFile, WhatACardDoesNotSayHasItsDefault) {
    const Fleet fleet = parsed(kWhole);
    const CardModel& card = fleet.models.at("A100");
    EXPECT_EQ(card.memory_mib, 0u);
    EXPECT_EQ(card.price_per_hour, 0);
    EXPECT_EQ(card.billing, Billing::Card);
    EXPECT_THAT(card.peak_flops, IsEmpty());
}

TEST(ClusterFile, NodesStandWhereTheirRackStands) {
    const Fleet fleet = parsed(kWhole);
    EXPECT_THAT(fleet.nodes, UnorderedElementsAre(Key("n001"), Key("n002"), Key("n003"), Key("k7"), Key("m1"), Key("m2")));
    const DescribedNode& racked = fleet.nodes.at("n002");
    EXPECT_EQ(racked.name, "n002");
    EXPECT_EQ(racked.block, "b1");
    EXPECT_EQ(racked.rack, "r1");
    EXPECT_EQ(racked.card_model, "H100");
    EXPECT_THAT(racked.features, ElementsAre("nvme", "ib"));
    EXPECT_EQ(fleet.nodes.at("k7").rack, "r2");
    EXPECT_EQ(fleet.nodes.at("k7").block, "");
    EXPECT_EQ(fleet.nodes.at("k7").card_model, "");
    EXPECT_EQ(fleet.nodes.at("m2").rack, "");
    EXPECT_EQ(fleet.nodes.at("m2").card_model, "A100");
    EXPECT_THAT(fleet.nodes.at("m2").features, ElementsAre("old"));
}

TEST(ClusterFile, ARackMayBeDescribedInPartsWithDifferentCards) {
    const Fleet fleet = parsed(R"([cards.H100]
[cards.A100]
[[rack]]
name = "r1"
block = "b1"
nodes = "n1"
cards = "H100"
[[rack]]
name = "r1"
block = "b1"
nodes = "n2"
cards = "A100"
)");
    EXPECT_EQ(fleet.nodes.at("n1").card_model, "H100");
    EXPECT_EQ(fleet.nodes.at("n2").card_model, "A100");
    EXPECT_EQ(fleet.nodes.at("n2").rack, "r1");
}

TEST(ClusterFile, TeamsKeepTheirUsersAndLimits) {
    const Fleet fleet = parsed(kWhole);
    const Team& vision = fleet.teams.at("vision");
    EXPECT_EQ(vision.name, "vision");
    EXPECT_EQ(vision.parent, "research");
    EXPECT_THAT(vision.users, ElementsAre("ana", "ben@site.org"));
    EXPECT_EQ(vision.quota_cards, 64u);
    EXPECT_EQ(vision.most_cards, 128u);
    EXPECT_EQ(vision.share, 2.0);
    const Team& research = fleet.teams.at("research");
    EXPECT_EQ(research.parent, "");
    EXPECT_EQ(research.most_cards, std::nullopt);
    EXPECT_EQ(research.share, 1.0);
}

TEST(ClusterFile, AUserIsFoundInTheirTeamAndAStrangerInNone) {
    const Fleet fleet = parsed(kWhole);
    ASSERT_NE(fleet.team_of("ben@site.org"), nullptr);
    EXPECT_EQ(fleet.team_of("ben@site.org")->name, "vision");
    EXPECT_EQ(fleet.team_of("eve"), nullptr);
}

TEST(ClusterFile, NumbersMayBeWrittenWithoutAPoint) {
    const Fleet fleet = parsed("[cards.X]\nprice_per_hour = 3\npeak_flops = { bf16 = 5 }\n[teams.t]\nshare = 2\n");
    EXPECT_EQ(fleet.models.at("X").price_per_hour, 3.0);
    EXPECT_EQ(fleet.models.at("X").peak_flops.at("bf16"), 5.0);
    EXPECT_EQ(fleet.teams.at("t").share, 2.0);
}

TEST(ClusterFileRefusal, OfBrokenTomlNamesTheLine) {
    EXPECT_THAT(refusal("currency = \"EUR\"\n\n[cards.H100\n"), AllOf(StartsWith("line 3"), HasSubstr("not TOML")));
    EXPECT_THAT(refusal("currency = \"EUR\"\ncurrency = \"USD\"\n"), StartsWith("line 2"));
    EXPECT_THAT(refusal("currency = \"\xff\xfe\"\n"), StartsWith("line 1"));
    for (const char* header : {"[\\x]", "[[=]]", "[,]", "[ #]", "[a.\\x]"}) {
        EXPECT_THAT(refusal(header), StartsWith("line 1")) << header;
    }
}

TEST(ClusterFileRefusal, OfAnUnknownKeyNamesItItsLineTheAllowedAndTheNearest) {
    EXPECT_THAT(refusal("\n[teams.vision]\nquota_card = 5\n"),
                AllOf(StartsWith("line 3: teams.vision.quota_card: unknown key"),
                      HasSubstr("allowed here: most_cards, parent, quota_cards, share, users"),
                      HasSubstr("did you mean \"quota_cards\"?")));
    EXPECT_THAT(refusal("curency = \"EUR\"\n"), AllOf(StartsWith("line 1"), HasSubstr("did you mean \"currency\"?")));
    EXPECT_THAT(refusal("[[racks]]\nname = \"r\"\n"), AllOf(StartsWith("line 1"), HasSubstr("did you mean \"rack\"?")));
    EXPECT_THAT(refusal("[cards.X]\nprice = 3\n"),
                AllOf(StartsWith("line 2"), HasSubstr("allowed"), Not(HasSubstr("did you mean"))));
    EXPECT_THAT(refusal("[[rack]]\nname = \"r\"\nnodes = \"n\"\ncard = \"X\"\n"),
                AllOf(StartsWith("line 4"), HasSubstr("\"cards\"?")));
    EXPECT_THAT(refusal("[[nodes]]\nname = \"n\"\n"), HasSubstr("did you mean \"names\"?"));
    EXPECT_THAT(refusal("[teams.a.b]\nshare = 1\n"), HasSubstr("teams.a.b: unknown key"));
}

TEST(ClusterFileRefusal, ReportsTheMistakeNearestTheTop) {
    EXPECT_THAT(refusal("[teams.t]\nshare = 0\n[cards.X]\nmemory_mib = -1\n"), StartsWith("line 2"));
    EXPECT_THAT(refusal("[cards.X]\nmemory_mib = -1\n[teams.t]\nshare = 0\n"), StartsWith("line 2"));
}

TEST(ClusterFileRefusal, OfANodeDescribedTwiceNamesBothLines) {
    EXPECT_THAT(refusal("[[rack]]\nname = \"r\"\nnodes = \"n[1-3]\"\n[[nodes]]\nnames = \"m1,n2\"\n"),
                AllOf(StartsWith("line 5: nodes.names: node \"n2\""), HasSubstr("first on line 3")));
}

TEST(ClusterFileRefusal, OfARackInTwoBlocksNamesBoth) {
    EXPECT_THAT(refusal("[[rack]]\nname = \"r\"\nblock = \"a\"\nnodes = \"n1\"\n"
                        "[[rack]]\nname = \"r\"\nblock = \"b\"\nnodes = \"n2\"\n"),
                AllOf(StartsWith("line 5"), HasSubstr("block \"b\""), HasSubstr("block \"a\""), HasSubstr("line 1")));
    EXPECT_THAT(refusal("[[rack]]\nname = \"r\"\nblock = \"a\"\nnodes = \"n1\"\n[[rack]]\nname = \"r\"\nnodes = \"n2\"\n"),
                AllOf(StartsWith("line 5"), HasSubstr("no block")));
    EXPECT_THAT(refusal("[[rack]]\nname = \"r\"\nblock = \"a\"\nnodes = \"n1\"\n"
                        "[[rack]]\nname = \"r\"\nblock = \"\"\nnodes = \"n2\"\n"),
                AllOf(StartsWith("line 7"), HasSubstr("empty")));
}

TEST(ClusterFileRefusal, OfAnUnknownCardModelSuggestsTheNearest) {
    EXPECT_THAT(refusal("[cards.H100]\n[[rack]]\nname = \"r\"\nnodes = \"n\"\ncards = \"H10\"\n"),
                AllOf(StartsWith("line 5: rack.cards: \"H10\""), HasSubstr("did you mean \"H100\"?")));
    EXPECT_THAT(refusal("[[nodes]]\nnames = \"n\"\ncards = \"H100\"\n"), AllOf(StartsWith("line 3"), HasSubstr("[cards.H100]")));
}

TEST(ClusterFileRefusal, OfAnUnknownParentNamesTheTeams) {
    EXPECT_THAT(refusal("[teams.research]\n[teams.vision]\nparent = \"reserch\"\n"),
                AllOf(StartsWith("line 3: teams.vision.parent"), HasSubstr("research, vision"),
                      HasSubstr("did you mean \"research\"?")));
}

TEST(ClusterFileRefusal, OfACycleOfTeamsWalksIt) {
    EXPECT_THAT(refusal("[teams.a]\nparent = \"b\"\n[teams.b]\nparent = \"c\"\n"
                        "[teams.c]\nparent = \"a\"\n[teams.x]\nparent = \"a\"\n"),
                AllOf(StartsWith("line 2"), HasSubstr("a -> b -> c -> a")));
    EXPECT_THAT(refusal("[teams.a]\nparent = \"a\"\n"), HasSubstr("a -> a"));
}

TEST(ClusterFileRefusal, OfAUserInTwoTeamsNamesBoth) {
    EXPECT_THAT(refusal("[teams.a]\nusers = [\"ana\"]\n[teams.b]\nusers = [\"ben\",\n\"ana\"]\n"),
                AllOf(StartsWith("line 5"), HasSubstr("\"ana\""), HasSubstr("\"a\" (line 2)"), HasSubstr("\"b\" (line 5)")));
    EXPECT_THAT(refusal("[teams.a]\nusers = [\"ana\", \"ana\"]\n"), HasSubstr("named once"));
}

TEST(ClusterFileRefusal, OfNumbersThatAreNegativeOrNotFinite) {
    for (const char* value : {"-1", "-0.5", "inf", "-inf", "nan", "\"2\"", "true"}) {
        EXPECT_THAT(refusal(std::string("[cards.X]\nprice_per_hour = ") + value + "\n"),
                    AllOf(StartsWith("line 2: cards.X.price_per_hour"), HasSubstr("not negative")));
        EXPECT_THAT(refusal(std::string("[cards.X]\npeak_flops = { bf16 = ") + value + " }\n"),
                    StartsWith("line 2: cards.X.peak_flops.bf16"));
        EXPECT_THAT(refusal(std::string("[cards.X]\nmemory_mib = ") + value + "\n"), StartsWith("line 2: cards.X.memory_mib"));
        EXPECT_THAT(refusal(std::string("[teams.t]\nquota_cards = ") + value + "\n"), StartsWith("line 2: teams.t.quota_cards"));
        EXPECT_THAT(refusal(std::string("[teams.t]\nmost_cards = ") + value + "\n"), StartsWith("line 2: teams.t.most_cards"));
        EXPECT_THAT(refusal(std::string("[teams.t]\nshare = ") + value + "\n"), AllOf(StartsWith("line 2"), HasSubstr("above 0")));
    }
    EXPECT_THAT(refusal("[teams.t]\nshare = 0\n"), HasSubstr("above 0"));
    EXPECT_THAT(refusal("[teams.t]\nquota_cards = 64.0\n"), HasSubstr("whole number"));
}

TEST(ClusterFileRefusal, OfAQuotaAboveTheMost) {
    EXPECT_THAT(refusal("[teams.t]\nquota_cards = 9\nmost_cards = 8\n"),
                AllOf(StartsWith("line 2"), HasSubstr("9"), HasSubstr("8")));
    EXPECT_EQ(refusal("[teams.t]\nquota_cards = 8\nmost_cards = 8\n"), "");
}

TEST(ClusterFileRefusal, OfChildrenPromisedMoreThanTheirParent) {
    const std::string children =
        "[teams.a]\nparent = \"p\"\nquota_cards = 6\n"
        "[teams.b]\nparent = \"p\"\nquota_cards = 5\n[teams.p]\n";
    EXPECT_THAT(refusal(children + "quota_cards = 10\n"), AllOf(StartsWith("line 8: teams.p.quota_cards: 10"), HasSubstr("11")));
    EXPECT_EQ(refusal(children + "quota_cards = 11\n"), "");
    EXPECT_EQ(refusal(children), "");
}

TEST(ClusterFileRefusal, SeesPromisesThroughATeamWithoutAQuota) {
    EXPECT_THAT(refusal("[teams.top]\nquota_cards = 4\n[teams.mid]\nparent = \"top\"\n"
                        "[teams.low]\nparent = \"mid\"\nquota_cards = 5\n"),
                AllOf(StartsWith("line 2: teams.top.quota_cards"), HasSubstr("5")));
}

TEST(ClusterFileRefusal, OfQuotasWhoseSumWouldWrapAround) {
    std::string teams = "[teams.p]\nquota_cards = 10\n";
    for (const char* name : {"a", "b", "c"}) {
        teams += std::string("[teams.") + name + "]\nparent = \"p\"\nquota_cards = 9223372036854775807\n";
    }
    EXPECT_THAT(refusal(teams), StartsWith("line 2: teams.p.quota_cards"));
}

TEST(ClusterFileRefusal, OfEmptyAndStrangeNames) {
    EXPECT_THAT(refusal("[teams.\"\"]\n"), AllOf(StartsWith("line 1"), HasSubstr("empty")));
    EXPECT_THAT(refusal("[cards.\"H 100\"]\n"), AllOf(StartsWith("line 1"), HasSubstr("\"H 100\" is not a name")));
    EXPECT_THAT(refusal("[[rack]]\nname = \"\"\nnodes = \"n\"\n"), AllOf(StartsWith("line 2"), HasSubstr("empty")));
    EXPECT_THAT(refusal("[[rack]]\nname = \"r\"\nblock = \"a/b\"\nnodes = \"n\"\n"),
                AllOf(StartsWith("line 3"), HasSubstr("a/b")));
    EXPECT_THAT(refusal("[[rack]]\nname = \"r\"\nnodes = \"n\"\nfeatures = [\"a@b\"]\n"), StartsWith("line 4"));
    EXPECT_THAT(refusal("[teams.t]\nusers = [\"a b\"]\n"), AllOf(StartsWith("line 2"), HasSubstr("'@'")));
    EXPECT_THAT(refusal("[teams.t]\nusers = [\"\"]\n"), HasSubstr("empty"));
    EXPECT_THAT(refusal("[teams.t]\nparent = \"\"\n"), AllOf(StartsWith("line 2"), HasSubstr("empty")));
    EXPECT_THAT(refusal("currency = \"\"\n"), HasSubstr("empty"));
    EXPECT_THAT(refusal("[cards.X]\npeak_flops = { \"b f\" = 1 }\n"), StartsWith("line 2"));
    EXPECT_THAT(refusal("[teams.\"a\\nb\"]\n"), Not(HasSubstr("\n")));
}

TEST(ClusterFileRefusal, OfTheWrongKindSaysWhatToWrite) {
    EXPECT_THAT(refusal("currency = 5\n"), AllOf(StartsWith("line 1"), HasSubstr("currency = \"...\"")));
    EXPECT_THAT(refusal("[rack]\nname = \"r\"\n"), HasSubstr("write [[rack]]"));
    EXPECT_THAT(refusal("rack = [1]\n"), HasSubstr("write [[rack]]"));
    EXPECT_THAT(refusal("nodes = \"n1\"\n"), HasSubstr("write [[nodes]]"));
    EXPECT_THAT(refusal("[[cards]]\n"), HasSubstr("write [cards.NAME]"));
    EXPECT_THAT(refusal("[cards]\nH100 = 5\n"), HasSubstr("write [cards.H100]"));
    EXPECT_THAT(refusal("[teams.t]\nusers = \"ana\"\n"), HasSubstr("users = [\"...\"]"));
    EXPECT_THAT(refusal("[teams.t]\nusers = [5]\n"), HasSubstr("5 is not text"));
    EXPECT_THAT(refusal("[cards.X]\nbilling = \"rack\"\n"), AllOf(HasSubstr("\"rack\""), HasSubstr("\"card\" or \"node\"")));
    EXPECT_THAT(refusal("[cards.X]\npeak_flops = 5\n"), HasSubstr("peak_flops = { bf16 = 989e12 }"));
    EXPECT_THAT(refusal("[cards.X]\nmemory_mib = 1979-05-27\n"), HasSubstr("a date or a time"));
}

TEST(ClusterFileRefusal, OfARackWithoutNameOrNodes) {
    EXPECT_THAT(refusal("\n[[rack]]\nnodes = \"n\"\n"), AllOf(StartsWith("line 2"), HasSubstr("name is missing")));
    EXPECT_THAT(refusal("[[rack]]\nname = \"r\"\n"), AllOf(StartsWith("line 1"), HasSubstr("nodes is missing")));
    EXPECT_THAT(refusal("[[nodes]]\n"), HasSubstr("names is missing"));
}

TEST(ClusterFileRefusal, OfABadHostListNamesLineAndPlace) {
    EXPECT_THAT(refusal("[[rack]]\nname = \"r\"\nnodes = \"n[3-1]\"\n"), AllOf(StartsWith("line 3: rack.nodes"), HasSubstr("3-1")));
    EXPECT_THAT(refusal("[[nodes]]\nnames = \"\"\n"), StartsWith("line 2: nodes.names"));
}

TEST(ClusterFileRefusal, OfKeysNestedWithoutEndIsCheap) {
    std::string deep = "a";
    for (int i = 0; i < 1'000'000; ++i) deep += ".a";
    EXPECT_THAT(refusal("\n" + deep + " = 1\n"), AllOf(StartsWith("line 2"), HasSubstr("parts")));
    EXPECT_THAT(refusal("x = " + std::string(1'000'000, '[') + "\n"), StartsWith("line 1"));
    EXPECT_EQ(refusal("# ...................................................................\n"), "");
}

TEST(ClusterFileRefusal, NeverBreaksOnAFileCutAnywhere) {
    for (std::size_t length = 0; length < kWhole.size(); ++length) {
        const std::string message = refusal(kWhole.substr(0, length));
        EXPECT_THAT(message, AnyOf(IsEmpty(), StartsWith("line "))) << length;
    }
}

}  // namespace
}  // namespace gangline::coordinator
