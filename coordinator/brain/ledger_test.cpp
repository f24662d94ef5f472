#include "coordinator/brain/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace gangline::coordinator {
namespace {

using testing::Contains;
using testing::HasSubstr;

double cause(const Ledger& ledger, const std::string& name) {
    for (const LedgerCause& one : ledger.causes) {
        if (one.name == name) return one.wall_s;
    }
    ADD_FAILURE() << "no cause " << name;
    return 0;
}

double sum(const Ledger& ledger) {
    return std::accumulate(ledger.causes.begin(), ledger.causes.end(), 0.0,
                           [](double total, const LedgerCause& one) { return total + one.wall_s; });
}

proto::Progress steps(std::uint64_t first, std::uint64_t last, double step_s) {
    proto::Progress progress;
    progress.set_beat(1);
    progress.set_first_step(first);
    progress.set_step(last);
    progress.set_step_s(step_s);
    return progress;
}

// Two attempts: 100 steps, of which 60 were committed; then from step 60 to 100 again and on to 200.
JobStory story() {
    JobStory story;
    story.submitted_ms = 0;
    story.until_ms = 40'000;
    AttemptStory first{.reserved_ms = 2'000, .launched_ms = 3'000, .joined_ms = 4'000, .ended_ms = 16'000, .cards = 4};
    first.progress = steps(0, 100, 10);
    first.progress.set_data_wait_s(2);
    first.stalled_ms = 1'000;
    AttemptStory second{.reserved_ms = 18'000, .launched_ms = 19'000, .joined_ms = 20'000, .ended_ms = 40'000, .restored_step = 60, .cards = 4};
    second.progress = steps(60, 200, 14);
    second.progress.set_restore_s(3);
    second.progress.set_communication_s(4);
    story.attempts = {first, second};
    return story;
}

TEST(Ledger, CausesAddUpToTheWallClock) {
    const Ledger ledger = make_ledger(story());
    EXPECT_DOUBLE_EQ(ledger.wall_s, 38);
    EXPECT_NEAR(sum(ledger), ledger.wall_s, 1e-9);
    EXPECT_NEAR(ledger.card_s, 4 * 38, 1e-9);
    EXPECT_DOUBLE_EQ(ledger.queue_wait_s, 2);
}

TEST(Ledger, StepsThatALaterAttemptDidAgainAreRedo) {
    const Ledger ledger = make_ledger(story());
    EXPECT_EQ(ledger.steps, 200u);
    EXPECT_EQ(ledger.steps_redone, 40u);
    EXPECT_NEAR(cause(ledger, "redo"), 4, 1e-9);
    EXPECT_NEAR(cause(ledger, "data-wait"), 2 * 0.6, 1e-9);
    EXPECT_NEAR(cause(ledger, "compute"), (10 - 4 - 1.2) + (14 - 4), 1e-9);
    EXPECT_NEAR(ledger.effective_training_time, (10 - 4 - 1.2 + 14) / 38, 1e-9);
}

TEST(Ledger, PhasesHaveTheirOwnCauses) {
    const Ledger ledger = make_ledger(story());
    EXPECT_NEAR(cause(ledger, "prepare"), 2, 1e-9);
    EXPECT_NEAR(cause(ledger, "join"), 1 + 1, 1e-9);
    EXPECT_NEAR(cause(ledger, "restore"), 3, 1e-9);
    EXPECT_NEAR(cause(ledger, "hang"), 1, 1e-9);
    EXPECT_NEAR(cause(ledger, "recovery"), 2, 1e-9);
}

TEST(Ledger, AnEarlierRestoreMakesAllLaterAttemptsRedoFromThere) {
    JobStory damaged = story();
    AttemptStory third{.reserved_ms = 40'000, .launched_ms = 41'000, .joined_ms = 41'000, .ended_ms = 60'000, .restored_step = 20, .cards = 4};
    third.progress = steps(20, 50, 15);
    damaged.attempts.push_back(third);
    damaged.until_ms = 60'000;
    const Ledger ledger = make_ledger(damaged);
    EXPECT_EQ(ledger.steps_redone, 80u + 140u);
    EXPECT_NEAR(sum(ledger), ledger.wall_s, 1e-9);
}

TEST(Ledger, ImpossibleNumbersFromAPageNeverExceedTheClock) {
    JobStory lies = story();
    lies.attempts[0].progress.set_step_s(1e9);
    lies.attempts[1].progress.set_restore_s(1e9);
    lies.attempts[1].progress.set_data_wait_s(-5);
    const Ledger ledger = make_ledger(lies);
    EXPECT_NEAR(sum(ledger), ledger.wall_s, 1e-9);
    for (const LedgerCause& one : ledger.causes) EXPECT_GE(one.wall_s, 0) << one.name;
}

TEST(Ledger, AProgramWithoutStepsIsToldHowToGetThem) {
    JobStory plain{.submitted_ms = 0, .until_ms = 10'000, .attempts = {{.reserved_ms = 1'000, .launched_ms = 2'000, .cards = 1}}};
    const Ledger ledger = make_ledger(plain);
    EXPECT_EQ(ledger.effective_training_time, -1);
    EXPECT_NEAR(cause(ledger, "other"), 8, 1e-9);
    EXPECT_THAT(ledger.notes, Contains(HasSubstr("reports no steps")));
}

TEST(Ledger, AQueuedJobHasOnlyItsWait) {
    const Ledger ledger = make_ledger({.submitted_ms = 1'000, .until_ms = 4'000, .attempts = {}});
    EXPECT_DOUBLE_EQ(ledger.queue_wait_s, 3);
    EXPECT_DOUBLE_EQ(ledger.wall_s, 0);
    EXPECT_EQ(ledger.effective_training_time, -1);
}

}  // namespace
}  // namespace gangline::coordinator
