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
    const std::string text = cluster_report_text(some_report(), {}, {});
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
    const std::string text = cluster_report_text(report, {}, {});
    EXPECT_THAT(text, HasSubstr("USEFUL        COST\n"));
    EXPECT_THAT(text, HasSubstr("375.50 EUR\n"));
}

TEST(ClusterReport, OfASmallClusterHasMoreDigitsAndOfNothingNoTables) {
    proto::ClusterReport report;
    report.set_owned_card_s(36);
    const std::string text = cluster_report_text(report, {}, {});
    EXPECT_THAT(text, HasSubstr("0.0100 card-hours owned"));
    EXPECT_THAT(text, Not(HasSubstr("CARD-HOURS")));
}

TEST(ClusterReport, FitsANarrowWindow) {
    proto::ClusterReport report = some_report();
    report.mutable_causes(0)->set_words("useful: computing steps of the final history");
    report.mutable_users(0)->set_name("somebody-with-a-name-that-is-rather-long-for-a-name");
    bool in_tables = false;
    for (const std::string& line : split(cluster_report_text(report, {}, {false, false, 80}), '\n')) {
        in_tables = in_tables || line.starts_with("Where");
        EXPECT_TRUE(!in_tables || line.size() <= 80U) << line;
    }
}

TEST(ClusterReport, TellsWhatAllUsersCostToWhoSeesAllOfThem) {
    proto::ClusterReport report = some_report();
    report.mutable_users(0)->set_cost(375.5);
    *report.add_users() = report.users(0);
    report.set_currency("EUR");
    EXPECT_THAT(cluster_report_text(report, {true, "olga", "", 0}, {}), HasSubstr("  all users: 751.00 EUR\n"));
    EXPECT_THAT(cluster_report_text(report, {false, "alice", "", 0}, {}), Not(HasSubstr("all users")));
    EXPECT_THAT(cluster_report_text(report, {true, "olga", "alice", 0}, {}), Not(HasSubstr("all users")));
}

TEST(ClusterReport, SaysHowManyJobsWereLeftOut) {
    EXPECT_THAT(cluster_report_text(some_report(), {}, {}), Not(HasSubstr("more")));
    EXPECT_THAT(cluster_report_text(some_report(), {true, "olga", "", 7}, {}), HasSubstr("  ... and 7 more, smaller ones\n"));
}

TEST(ClusterReport, OfAUserWithoutUseSaysWhy) {
    proto::ClusterReport report = some_report();
    report.clear_users();
    EXPECT_THAT(cluster_report_text(report, {true, "olga", "ben", 0}, {}), HasSubstr("ben has used nothing, or is not known here\n"));
    EXPECT_THAT(cluster_report_text(report, {false, "ben", "ben", 0}, {}), HasSubstr("ben has used nothing"));
    EXPECT_THAT(cluster_report_text(report, {false, "alice", "ben", 0}, {}), HasSubstr("The use of ben is shown to operators, and to ben alone\n"));
}

TEST(ClusterReport, SaysWhyNothingIsUsefulAndDrawsNoBarOfNothing) {
    proto::ClusterReport report;
    report.set_owned_card_s(100 * 3600);
    report.set_allocated(0.5);
    add_cause(*report.mutable_causes(), "other", 49.7);
    add_cause(*report.mutable_causes(), "join", 0.3);
    add_cause(*report.mutable_causes(), "restore", 0.0001);
    const std::string text = cluster_report_text(report, {}, {});
    EXPECT_THAT(text, HasSubstr("useful 0.0 %: programs report no steps\n"));
    EXPECT_THAT(text, HasSubstr("0.30     0.3 %  .............................."));
    EXPECT_THAT(text, HasSubstr("restore           -     0.0 %"));
    EXPECT_THAT(cluster_report_text(some_report(), {}, {}), Not(HasSubstr("no steps")));
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
