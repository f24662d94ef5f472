#include "coordinator/brain/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.h"

namespace gangline::coordinator {

const std::array<CauseWords, kCauses> kCauseWords = {{
    {"prepare", "cards proved empty, shepherds started"},
    {"join", "launched, until every rank had joined"},
    {"restore", "reading a checkpoint"},
    {"compute", "useful: computing steps of the final history"},
    {"data-wait", "steps that waited for data"},
    {"communication", "steps that exchanged between ranks"},
    {"checkpoint-stall", "steps that waited for a checkpoint"},
    {"redo", "steps that were lost and done again"},
    {"hang", "nothing moved, before that was noticed"},
    {"recovery", "stopping, back-off and waiting for cards after a failure"},
    {"other", "running, but no step reported: start-up, evaluation, clean-up"},
    {"idle-held", "held, but no rank's: the rest of whole nodes, spares"},
}};

namespace {

double between(std::int64_t from_ms, std::int64_t to_ms) { return std::max<double>(0, static_cast<double>(to_ms - from_ms) / 1000); }

// Takes at most what is left: causes never add up to more than the clock.
double take(double& left, double wanted) {
    const double taken = std::clamp(wanted, 0.0, left);
    left -= taken;
    return taken;
}

using Times = std::array<double, kCauses>;

struct Split {
    Times times{};
    std::uint64_t redone = 0;
};

// The steps' time by what they did; `kept` of `done` steps are in the final history.
void split_steps(double steps_s, const proto::Progress& progress, double kept_part, Times& times) {
    times[Redo] += steps_s * (1 - kept_part);
    double useful = steps_s * kept_part;
    const double scale = progress.step_s() > 0 ? useful / progress.step_s() : 0;
    times[DataWait] += take(useful, progress.data_wait_s() * scale);
    times[Communication] += take(useful, progress.communication_s() * scale);
    times[CheckpointStall] += take(useful, progress.checkpoint_stall_s() * scale);
    times[Compute] += useful;
}

// One attempt, from its reservation to `until_ms`; later attempts resumed from `kept_to` at the earliest.
Split split_attempt(const AttemptStory& attempt, std::int64_t until_ms, std::optional<std::uint64_t> kept_to) {
    Split split;
    double left = between(attempt.reserved_ms, until_ms);
    const std::int64_t ended_ms = attempt.ended_ms == 0 ? until_ms : std::min(attempt.ended_ms, until_ms);
    split.times[Recovery] = take(left, between(ended_ms, until_ms));
    const std::int64_t launched_ms = attempt.launched_ms == 0 ? ended_ms : std::min(attempt.launched_ms, ended_ms);
    split.times[Prepare] = take(left, between(attempt.reserved_ms, launched_ms));
    split.times[Hang] = take(left, static_cast<double>(attempt.stalled_ms) / 1000);
    const proto::Progress& progress = attempt.progress;
    const double steps_s = take(left, progress.step_s());
    split.times[Restore] = take(left, progress.restore_s());
    if (attempt.launched_ms != 0 && attempt.joined_ms != 0) {
        split.times[Join] = take(left, between(attempt.launched_ms, attempt.joined_ms));
    }
    split.times[Other] = left;
    const std::uint64_t first = std::max(progress.first_step(), attempt.restored_step);
    const std::uint64_t done = progress.step() > first ? progress.step() - first : 0;
    std::uint64_t kept = done;
    if (kept_to) kept = *kept_to > first ? std::min(done, *kept_to - first) : 0;
    split.redone = done - kept;
    const double kept_part = done == 0 ? 1 : static_cast<double>(kept) / static_cast<double>(done);
    split_steps(steps_s, progress, kept_part, split.times);
    return split;
}

void advise(Ledger& ledger, const Times& times, bool reports_steps) {
    const auto part = [&](Cause name) { return ledger.wall_s > 0 ? times[name] / ledger.wall_s : 0; };
    const auto percent = [&](Cause name) { return fmt::format("{:.0f} %", 100 * part(name)); };
    if (!reports_steps) {
        ledger.notes.push_back("the program reports no steps: with the worker library (or its progress page) the time is split further");
    }
    if (part(DataWait) > 0.1) {
        ledger.notes.push_back(percent(DataWait) + " of the time waited for data: more loader workers, or data on a faster disk");
    }
    if (part(CheckpointStall) > 0.05) {
        ledger.notes.push_back(percent(CheckpointStall) + " of the time waited for checkpoints: save less often, or to a faster disk");
    }
    if (part(Redo) > 0.05) {
        ledger.notes.push_back(percent(Redo) + " of the time did lost steps again: save more often");
    }
    if (part(Communication) > 0.4) {
        ledger.notes.push_back(percent(Communication) + " of the time exchanged between ranks: larger batches, or fewer nodes");
    }
    if (part(Hang) > 0.05) {
        ledger.notes.push_back(percent(Hang) + " of the time nothing moved: a shorter --progress-timeout would notice it sooner");
    }
    if (part(Recovery) > 0.1) {
        ledger.notes.push_back(percent(Recovery) + " of the time went into recovery: see the causes in `show`");
    }
}

}  // namespace

Ledger make_ledger(const JobStory& story) {
    Ledger ledger;
    if (story.attempts.empty()) {
        ledger.queue_wait_s = between(story.submitted_ms, story.until_ms);
        return ledger;
    }
    ledger.queue_wait_s = between(story.submitted_ms, story.attempts.front().reserved_ms);
    ledger.wall_s = between(story.attempts.front().reserved_ms, story.until_ms);
    Times wall{};
    Times cards{};
    bool reports_steps = false;
    std::optional<std::uint64_t> kept_to;  // walked backwards: the earliest step that any later attempt resumed from
    for (std::size_t i = story.attempts.size(); i-- > 0;) {
        const AttemptStory& attempt = story.attempts[i];
        const std::int64_t until_ms = i + 1 == story.attempts.size() ? story.until_ms : story.attempts[i + 1].reserved_ms;
        const Split split = split_attempt(attempt, until_ms, kept_to);
        ledger.steps_redone += split.redone;
        for (std::size_t name = 0; name < kCauses; ++name) {
            wall[name] += split.times[name];
            cards[name] += split.times[name] * static_cast<double>(attempt.cards);
        }
        if (attempt.let_go_ms != 0) {
            const double without_s = std::min(split.times[Recovery], between(attempt.let_go_ms, until_ms));
            cards[Recovery] -= without_s * static_cast<double>(attempt.cards);
        }
        cards[IdleHeld] += attempt.idle_card_s;
        reports_steps = reports_steps || attempt.progress.step() != 0;
        kept_to = std::min(kept_to.value_or(attempt.restored_step), attempt.restored_step);
    }
    const AttemptStory& last = story.attempts.back();
    ledger.steps = std::max(last.progress.step(), last.restored_step);
    for (std::size_t name = 0; name < kCauses; ++name) {
        ledger.causes.push_back({kCauseWords[name].name, wall[name], cards[name], kCauseWords[name].words});
        ledger.card_s += cards[name];
    }
    if (reports_steps && ledger.wall_s > 0) {
        ledger.effective_training_time = (wall[Compute] + wall[Communication]) / ledger.wall_s;
    }
    advise(ledger, wall, reports_steps);
    return ledger;
}

}  // namespace gangline::coordinator
