#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "runner/cli/views.h"

namespace gangline::runner {
namespace {

using testing::HasSubstr;
using testing::Not;

void add_cause(google::protobuf::RepeatedPtrField<proto::Cause>& causes, const std::string& name, double card_hours) {
    proto::Cause& cause = *causes.Add();
    cause.set_name(name);
    cause.set_card_s(card_hours * 3600);
}

proto::ClusterReport some_report() {
    proto::ClusterReport report;
    report.set_until_unix_ms(3'600'000);
    report.set_owned_card_s(200 * 3600);
    report.set_allocated(0.75);
    report.set_useful(0.6);
    add_cause(*report.mutable_causes(), "compute", 100);
    add_cause(*report.mutable_causes(), "idle", 50);
    add_cause(*report.mutable_causes(), "nothing", 0);
    proto::Account& team = *report.add_teams();
    team.set_name("vision");
    team.set_card_s(150 * 3600);
    add_cause(*team.mutable_causes(), "compute", 100);
    add_cause(*team.mutable_causes(), "communication", 20);
    add_cause(*team.mutable_causes(), "restart", 30);
    *report.add_users() = team;
    report.mutable_users(0)->set_name("alice");
    *report.add_jobs() = team;
    report.mutable_jobs(0)->set_name("12_5");
    return report;
}

TEST(ClusterReport, TellsThePeriodTheCausesAndTheAccounts) {
    const std::string text = cluster_report_text(some_report(), {});
    EXPECT_THAT(text, HasSubstr("The cluster from 1970-01-01T00:00:00Z to 1970-01-01T01:00:00Z: 200.00 card-hours owned\n"));
    EXPECT_THAT(text, HasSubstr("held by jobs 75.0 %, useful 60.0 %\n"));
    EXPECT_THAT(text, HasSubstr("compute      100.00    50.0 %  ###############..............."));
    EXPECT_THAT(text, Not(HasSubstr("nothing")));
    EXPECT_THAT(text, HasSubstr("Teams\n"));
    EXPECT_THAT(text, HasSubstr("vision      150.00    75.0 %  80.0 %\n"));
    EXPECT_THAT(text, HasSubstr("Users\n"));
    EXPECT_THAT(text, HasSubstr("Jobs\n"));
    EXPECT_THAT(text, HasSubstr("12_5"));
    EXPECT_THAT(text, Not(HasSubstr("COST")));
}

TEST(ClusterReport, TellsTheCostWherePricesAreNamed) {
    proto::ClusterReport report = some_report();
    report.mutable_users(0)->set_cost(375.5);
    report.set_currency("EUR");
    const std::string text = cluster_report_text(report, {});
    EXPECT_THAT(text, HasSubstr("USEFUL        COST\n"));
    EXPECT_THAT(text, HasSubstr("375.50 EUR\n"));
}

TEST(ClusterReport, OfASmallClusterHasMoreDigitsAndOfNothingNoTables) {
    proto::ClusterReport report;
    report.set_owned_card_s(36);
    const std::string text = cluster_report_text(report, {});
    EXPECT_THAT(text, HasSubstr("0.0100 card-hours owned"));
    EXPECT_THAT(text, Not(HasSubstr("CARD-HOURS")));
}

TEST(ClusterReport, FitsANarrowWindow) {
    proto::ClusterReport report = some_report();
    report.mutable_causes(0)->set_words("useful: computing steps of the final history");
    report.mutable_users(0)->set_name("somebody-with-a-name-that-is-rather-long-for-a-name");
    bool in_tables = false;
    for (const std::string& line : split(cluster_report_text(report, {false, false, 80}), '\n')) {
        in_tables = in_tables || line.starts_with("Where");
        EXPECT_TRUE(!in_tables || line.size() <= 80U) << line;
    }
}

TEST(Report, TellsTheCostOfAJobWherePricesAreNamed) {
    proto::Report report;
    report.set_wall_s(10);
    EXPECT_THAT(report_text(report, {}), Not(HasSubstr("cost")));
    report.set_cost(12.349);
    EXPECT_THAT(report_text(report, {}), HasSubstr("  cost 12.35\n"));
    report.set_currency("EUR");
    EXPECT_THAT(report_text(report, {}), HasSubstr("  cost 12.35 EUR\n"));
}

}  // namespace
}  // namespace gangline::runner
