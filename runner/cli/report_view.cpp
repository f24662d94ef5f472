// `report` and `why` as text: bars per cause, what was done and redone, and advice.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "runner/cli/table.h"
#include "runner/cli/views.h"

namespace gangline::runner {
namespace {

constexpr std::size_t kBar = 30;

std::string bar(double share) {
    const double filled = std::clamp(share, 0.0, 1.0) * static_cast<double>(kBar);
    std::size_t full = static_cast<std::size_t>(std::lround(filled));
    if (full == 0 && share > 0.001) full = 1;
    return std::string(full, '#') + std::string(kBar - full, '.');
}

std::string seconds_text(double duration_s) {
    return duration_s < 10 ? fmt::format("{:.2f}s", duration_s) : human_duration(duration_s);
}

}  // namespace

std::string report_text(const proto::Report& report, const Terminal& terminal) {
    const proto::JobView& job = report.job();
    std::string text = fmt::format("Job {} \"{}\" of {}: {}\n", job.id(), one_line(job.name()), job.user(),
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

std::string why_text(const proto::Why& why) {
    std::string text = one_line(why.sentence()) + "\n";
    if (!why.sentence().starts_with("Job ")) {
        text = fmt::format("Job {} is {}: {}", why.job(), state_word(why.state()), text);
    }
    if (why.position() > 0) text += fmt::format("  position {} in the queue\n", why.position());
    for (const std::string& clause : why.clauses()) text += fmt::format("  - {}\n", one_line(clause));
    if (!why.sooner().empty()) text += fmt::format("  sooner: {}\n", one_line(why.sooner()));
    for (const std::string& other : why.relaxed()) {
        if (other != why.sooner()) text += fmt::format("      or: {}\n", one_line(other));
    }
    return text;
}

}  // namespace gangline::runner
