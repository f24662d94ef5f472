// What stays: each need by itself, and what holds in any history.

#include "base/retention.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <random>

namespace gangline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<KeptCheckpoint> steps(std::initializer_list<std::uint64_t> all) {
    std::vector<KeptCheckpoint> made;
    for (const std::uint64_t step : all) made.push_back({.step = step});
    return made;
}

std::vector<std::string> words(const std::vector<KeptCheckpoint>& all, const RetentionRule& rule) {
    std::vector<std::string> said;
    for (const Needs& one : needs_of(all, rule)) said.push_back(one.words());
    return said;
}

TEST(Retention, KeepsTheNewestAndNeverFewerThanTwo) {
    EXPECT_THAT(words(steps({10, 20, 30, 40, 50}), {.last = 3}), ElementsAre("", "", "last", "last", "last"));
    EXPECT_THAT(words(steps({10, 20, 30}), {.last = 0}), ElementsAre("", "last", "last"));
    EXPECT_THAT(words(steps({10}), {.last = 3}), ElementsAre("last"));
    EXPECT_THAT(words({}, {}), ElementsAre());
}

TEST(Retention, KeepsMultiplesForEver) {
    EXPECT_THAT(words(steps({50, 100, 150, 200, 250, 260}), {.last = 2, .every = 100}), ElementsAre("", "every", "", "every", "last", "last"));
}

TEST(Retention, KeepsTheBestByMetricOfEqualsTheNewer) {
    auto all = steps({1, 2, 3, 4, 5, 6, 7});
    const double kNan = std::numeric_limits<double>::quiet_NaN();
    const std::vector<std::optional<double>> metrics{0.5, 0.1, 0.1, -INFINITY, kNan, std::nullopt, 9.0};
    for (std::size_t i = 0; i < all.size(); ++i) all[i].metric = metrics[i];
    EXPECT_THAT(words(all, {.last = 2, .best = 1}), ElementsAre("", "", "best", "", "", "last", "last"));
    EXPECT_THAT(words(all, {.last = 2, .best = 2, .higher_is_better = true}), ElementsAre("best", "", "", "", "", "last", "last, best"));
    all[2].is_damaged = true;
    EXPECT_THAT(words(all, {.last = 2, .best = 1}), ElementsAre("", "best", "", "", "", "last", "last"));
}

TEST(Retention, ADamagedOneTakesNobodysPlace) {
    auto all = steps({10, 20, 30, 40});
    all[3].is_damaged = all[1].is_damaged = true;
    EXPECT_THAT(words(all, {.last = 2}), ElementsAre("last", "", "last", ""));
    all[1].is_pinned = true;
    EXPECT_THAT(words(all, {.last = 2, .every = 10}), ElementsAre("last, every", "pinned", "last, every", ""));
}

TEST(Retention, KeepsTheNewestVerifiedOneAndAsManyBesidesAsTheLast) {
    auto all = steps({1, 2, 3, 4, 5, 6, 7, 8, 9});
    EXPECT_THAT(words(all, {.last = 2}), ElementsAre("", "", "", "", "", "", "", "last", "last"));  // none verified: no more is kept
    all[0].is_verified = all[1].is_verified = true;
    EXPECT_THAT(words(all, {.last = 2}), ElementsAre("", "verified", "", "", "", "unverified", "unverified", "last", "last"));
    all[7].is_verified = true;
    EXPECT_THAT(words(all, {.last = 2}), ElementsAre("", "", "", "", "", "", "", "last, verified", "last"));
    all[7].is_damaged = true;
    EXPECT_THAT(words(all, {.last = 2}), ElementsAre("", "verified", "", "", "unverified", "unverified", "last", "", "last"));
}

TEST(Retention, KeepsWhatIsRestoredAndWhatIsPinned) {
    auto all = steps({1, 2, 3, 4});
    all[0].is_restored = true;
    all[1].is_pinned = true;
    EXPECT_THAT(words(all, {.last = 2}), ElementsAre("restore", "pinned", "last", "last"));
}

// A job's life: saves, damage, scrubs, pins; what nobody needs is deleted after each save.
TEST(Retention, NeverDeletesTheLastGoodOnesInAnyHistory) {
    for (std::uint64_t seed = 1; seed <= 400; ++seed) {
        std::mt19937_64 random(seed);
        const auto chance = [&](unsigned percent) { return random() % 100 < percent; };
        const RetentionRule rule{.last = static_cast<std::uint32_t>(random() % 6), .every = random() % 4 == 0 ? 0 : 1 + random() % 50, .best = static_cast<std::uint32_t>(random() % 4), .higher_is_better = chance(50)};
        const std::size_t last = std::max<std::size_t>(rule.last, 2);
        std::vector<KeptCheckpoint> there;
        std::vector<double> all_good;  // metrics of all that were ever saved and not found damaged
        std::uint64_t step = 0;
        for (int save = 0; save < 60; ++save) {
            for (KeptCheckpoint& one : there) {
                if (!one.is_damaged && chance(2)) {
                    one.is_damaged = true;
                    if (one.metric) std::erase(all_good, *one.metric);
                }
                if (!one.is_damaged && chance(10)) one.is_verified = true;
                if (chance(2)) one.is_pinned = !one.is_pinned;
                one.is_restored = chance(2);
            }
            KeptCheckpoint fresh{.step = step += 1 + random() % 7};
            if (chance(80)) fresh.metric = static_cast<double>(random() % 1'000'000'007);
            if (fresh.metric) all_good.push_back(*fresh.metric);
            there.push_back(fresh);
            const std::vector<Needs> needs = needs_of(there, rule);
            const auto good = static_cast<std::size_t>(std::count_if(there.begin(), there.end(), [](const auto& one) { return !one.is_damaged; }));
            std::vector<KeptCheckpoint> kept;
            std::size_t newest = 0;
            std::size_t rolling = 0;
            for (std::size_t i = 0; i < there.size(); ++i) {
                if (!needs[i].any()) {
                    ASSERT_FALSE(there[i].is_pinned);
                    ASSERT_FALSE(!there[i].is_damaged && rule.every != 0 && there[i].step % rule.every == 0);
                    ASSERT_FALSE(!there[i].is_damaged && there[i].is_restored);
                    continue;
                }
                kept.push_back(there[i]);
                newest += needs[i].has(Needs::Last);
                rolling += needs[i].has(Needs::Unverified) || needs[i].has(Needs::Verified);
            }
            ASSERT_EQ(newest, std::min(good, last)) << "seed " << seed;  // and so never the last good one
            ASSERT_TRUE(needs.back().has(Needs::Last));
            ASSERT_LE(rolling, last + 1);
            std::vector<double> best = all_good;
            std::sort(best.begin(), best.end());
            if (rule.higher_is_better) std::reverse(best.begin(), best.end());
            best.resize(std::min<std::size_t>(best.size(), rule.best));
            // A damaged one that had been the best may have let a second best go before: those are kept from then on.
            std::size_t found = 0;
            for (std::size_t i = 0; i < there.size(); ++i) found += needs[i].has(Needs::Best);
            ASSERT_LE(found, rule.best);
            if (!best.empty()) {
                const bool was_ever_damaged = std::any_of(there.begin(), there.end(), [](const auto& one) { return one.is_damaged; });
                const bool is_there = std::any_of(kept.begin(), kept.end(), [&](const auto& one) { return !one.is_damaged && one.metric == best[0]; });
                ASSERT_TRUE(is_there || was_ever_damaged) << "seed " << seed;
            }
            for (const KeptCheckpoint& one : there) {
                if (one.is_damaged && !one.is_pinned) kept.push_back(one);  // remembered, as the coordinator does
            }
            std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
            there = kept;
        }
    }
}

TEST(Retention, ARuleIsTextAndBack) {
    const RetentionRule rule{.last = 5, .every = 1000, .best = 2, .higher_is_better = true};
    EXPECT_EQ(to_text(rule), "last=5 every=1000 best=2 best_is=higher");
    EXPECT_EQ(parse_retention_rule(to_text(rule) + "\n").value(), rule);
    EXPECT_EQ(parse_retention_rule(to_text(RetentionRule{})).value(), RetentionRule{});
    for (const char* wrong : {"", "last=1", "last=0", "last=1001", "every=-1", "best=x", "best_is=best", "last", "more=3", "last=3 last="}) {
        EXPECT_EQ(parse_retention_rule(wrong).error().code, Code::InvalidArgument) << wrong;
    }
}

}  // namespace
}  // namespace gangline
