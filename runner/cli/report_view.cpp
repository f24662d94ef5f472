// `report`, `report --cluster` and `why` as text: bars per cause, what was done and redone, accounts, and advice.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "runner/cli/job_name.h"
#include "runner/cli/table.h"
#include "runner/cli/views.h"

namespace gangline::runner {
namespace {

constexpr std::size_t kBar = 30;

std::string bar(double share) {
    const auto full = static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(kBar)));
    return std::string(full, '#') + std::string(kBar - full, '.');
}

double share_of(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string cost_text(double cost, const std::string& currency) {
    return fmt::format("{:.2f}{}{}", cost, currency.empty() ? "" : " ", currency);
}

// Small clusters need the digits.
std::string card_hours(double card_s, double owned_card_s) {
    const double hours = owned_card_s / 3600;
    const std::string text = fmt::format("{:.{}f}", card_s / 3600, hours >= 1000 ? 0 : hours >= 1 ? 2 : 4);
    return text.find_first_of("123456789") == std::string::npos ? "-" : text;
}

// What computed or exchanged for steps of the final history.
template <class Causes>
double useful_card_s(const Causes& causes) {
    double sum = 0;
    for (const proto::Cause& cause : causes) {
        if (cause.name() == "compute" || cause.name() == "communication") sum += cause.card_s();
    }
    return sum;
}

using Accounts = google::protobuf::RepeatedPtrField<proto::Account>;

std::string accounts_text(const char* title, const char* who, const Accounts& accounts, const proto::ClusterReport& report,
                          const Terminal& terminal) {
    if (accounts.empty()) return {};
    const bool has_cost = std::any_of(accounts.begin(), accounts.end(), [](const proto::Account& one) { return one.cost() > 0; });
    std::vector<Column> columns = {{who, Column::Align::Left, 8}, {"CARD-HOURS", Column::Align::Right, 0},
                                   {"OF OWNED", Column::Align::Right, 0}, {"USEFUL", Column::Align::Right, 0}};
    if (has_cost) columns.push_back({"COST", Column::Align::Right, 0});
    Table table(columns);
    for (const proto::Account& one : accounts) {
        std::vector<Cell> row = {one.name(), card_hours(one.card_s(), report.owned_card_s()),
                                 percent(share_of(one.card_s(), report.owned_card_s())),
                                 percent(share_of(useful_card_s(one.causes()), one.card_s()))};
        if (has_cost) row.emplace_back(cost_text(one.cost(), report.currency()));
        table.add(std::move(row));
    }
    return std::string(title) + "\n" + table.text(terminal, 2);
}

double held_card_s(const proto::ClusterReport& report) { return report.allocated() * report.owned_card_s(); }

// The users that the reader sees; their sum where these are all.
std::string users_text(const proto::ClusterReport& report, const ReportReader& reader, const Terminal& terminal) {
    std::string text = accounts_text("Users", "USER", report.users(), report, terminal);
    if (!reader.asked_for.empty() && report.users().empty()) {
        text = !reader.sees_all && reader.asked_for != reader.name
                   ? fmt::format("The use of {} is shown to operators, and to {} alone\n", one_line(reader.asked_for), one_line(reader.asked_for))
                   : fmt::format("{} has used nothing, or is not known here\n", one_line(reader.asked_for));
    }
    double cost = 0;
    for (const proto::Account& one : report.users()) cost += one.cost();
    if (reader.sees_all && reader.asked_for.empty() && cost > 0) text += fmt::format("  all users: {}\n", cost_text(cost, one_line(report.currency())));
    return text;
}

std::string seconds_text(double duration_s) {
    return duration_s < 10 ? fmt::format("{:.2f}s", duration_s) : human_duration(duration_s);
}

}  // namespace

std::string passed_over_text(const google::protobuf::RepeatedPtrField<std::string>& lines) {
    std::string text = lines.empty() ? "" : "Passed over\n";
    for (const std::string& line : lines) text += fmt::format("  - {}\n", one_line(line));
    return text;
}

std::string report_text(const proto::Report& report, const Terminal& terminal) {
    const proto::JobView& job = report.job();
    std::string text = fmt::format("Job {} \"{}\" of {}: {}\n", name_of(job), one_line(job.name()), job.user(),
                                   toned(terminal, state_tone(job.state()), state_word(job.state())));
    text += fmt::format("  {} from its first reservation{}, after {} in the queue; {} on {} cards\n",
                        seconds_text(report.wall_s()), has_ended(job.state()) ? " to its end" : " until now",
                        seconds_text(report.queue_wait_s()), fmt::format("{:.0f} card-seconds", report.card_seconds()),
                        job.ranks() * std::max(1U, job.spec().cards_per_rank()));
    if (report.effective_training_time() >= 0) {
        text += fmt::format("  effective training time {:.1f} %\n", 100 * report.effective_training_time());
    }
    if (report.steps() > 0) {
        text += fmt::format("  {} steps in the final history, {} redone\n", report.steps(), report.steps_redone());
    }
    if (report.cost() != 0) text += fmt::format("  cost {}\n", cost_text(report.cost(), one_line(report.currency())));
    Table table({{"CAUSE", Column::Align::Left, 0}, {"TIME", Column::Align::Right, 0}, {"SHARE", Column::Align::Right, 0},
                 {"", Column::Align::Left, 0}, {"", Column::Align::Left, 10}});
    for (const proto::Cause& cause : report.causes()) {
        const double share = report.wall_s() > 0 ? cause.wall_s() / report.wall_s() : 0;
        if (cause.wall_s() <= 0) continue;
        const bool useful = cause.name().starts_with("compute");
        table.add({cause.name(), seconds_text(cause.wall_s()), fmt::format("{:.1f} %", 100 * share),
                   Cell(bar(share), useful ? Tone::Good : Tone::Busy), cause.words()});
    }
    if (!table.empty()) text += "Where the time went\n" + table.text(terminal, 2);
    std::string ends;
    for (const proto::AttemptView& attempt : job.attempts()) {
        if (attempt.cause().empty() || attempt.kind() == proto::NO_FAULT) continue;
        ends += fmt::format("  attempt {}: {}\n", attempt.attempt(), one_line(attempt.cause()));
    }
    text += fmt::format("Restarts: {}\n{}", job.restarts(), ends);
    if (report.notes_size() > 0) text += "Notes\n";
    for (const std::string& note : report.notes()) text += fmt::format("  - {}\n", one_line(note));
    return text;
}

std::string cluster_report_text(const proto::ClusterReport& report, const ReportReader& reader, const Terminal& terminal) {
    const double owned = report.owned_card_s();
    std::string text = fmt::format("The cluster from {} to {}: {} card-hours owned\n", iso_time(report.since_unix_ms()),
                                   iso_time(report.until_unix_ms()), owned > 0 ? card_hours(owned, owned) : "0");
    const bool no_steps = held_card_s(report) > 0 && useful_card_s(report.causes()) == 0;
    text += fmt::format("  held by jobs {}, useful {}{}\n", percent(report.allocated()), percent(report.useful()),
                        no_steps ? ": programs report no steps" : "");
    Table table({{"CAUSE", Column::Align::Left, 0}, {"CARD-HOURS", Column::Align::Right, 0}, {"OF OWNED", Column::Align::Right, 0},
                 {"", Column::Align::Left, 0}, {"", Column::Align::Left, 10}});
    for (const proto::Cause& cause : report.causes()) {
        if (cause.card_s() <= 0) continue;
        const double share = share_of(cause.card_s(), owned);
        const bool useful = cause.name() == "compute" || cause.name() == "communication";
        table.add({cause.name(), card_hours(cause.card_s(), owned), percent(share), Cell(bar(share), useful ? Tone::Good : Tone::Busy),
                   cause.words()});
    }
    if (!table.empty()) text += "Where the card-hours went\n" + table.text(terminal, 2);
    text += accounts_text("Teams", "TEAM", report.teams(), report, terminal);
    text += users_text(report, reader, terminal);
    text += accounts_text("Jobs", "JOB", report.jobs(), report, terminal);
    if (reader.jobs_left_out > 0) text += fmt::format("  ... and {} more, smaller ones\n", reader.jobs_left_out);
    return text;
}

std::string why_text(const proto::Why& why, const std::string& name, std::int64_t now_ms) {
    std::string text = one_line(why.sentence()) + "\n";
    if (!why.sentence().starts_with("Job ")) {
        text = fmt::format("Job {} is {}: {}", name, state_word(why.state()), text);
    }
    if (why.position() > 0) text += fmt::format("  position {} in the queue\n", why.position());
    for (const std::string& clause : why.clauses()) text += fmt::format("  - {}\n", one_line(clause));
    const bool is_told = std::any_of(why.clauses().begin(), why.clauses().end(),
                                     [](const std::string& clause) { return clause.starts_with("it may expect to start"); });
    if (why.expected_unix_ms() > now_ms && !is_told) {
        text += fmt::format("  - it may expect to start at about {} (in {})\n", iso_time(why.expected_unix_ms()),
                            span_between(now_ms, why.expected_unix_ms()));
    }
    std::vector<std::string> sooner;
    if (!why.sooner().empty()) sooner.push_back(why.sooner());
    for (const std::string& other : why.relaxed()) {
        if (other != why.sooner()) sooner.push_back(other);
    }
    for (const std::string& one : sooner) text += fmt::format("  {} {}\n", &one == &sooner.front() ? "sooner:" : "    or:", one_line(one));
    text += passed_over_text(why.passed_over());
    return text;
}

}  // namespace gangline::runner
