// What the coordinator keeps of a job's checkpoints, and what a record of it does on replay.

#include "coordinator/brain/retention.h"

#include <gmock/gmock.h>

namespace gangline::coordinator {
namespace {

using ::testing::ElementsAre;

class AJobsCheckpoints : public ::testing::Test {
  protected:
    AJobsCheckpoints() {
        proto::Record submitted;
        submitted.mutable_job_submitted()->set_job(1);
        proto::JobSpec& spec = *submitted.mutable_job_submitted()->mutable_spec();
        spec.add_argv("train");
        spec.set_ranks(1);
        spec.mutable_retention()->set_last(2);
        spec.mutable_retention()->set_best(1);
        facts.apply(submitted);
        reserve(1);
    }
    void reserve(std::uint32_t attempt) {
        proto::Record reserved;
        reserved.mutable_gang_reserved()->mutable_id()->set_job(1);
        reserved.mutable_gang_reserved()->mutable_id()->set_attempt(attempt);
        if (const Checkpoint* newest = job().newest_good()) *reserved.mutable_gang_reserved()->mutable_restore() = newest->point;
        facts.apply(reserved);
    }
    void end_attempt(std::uint32_t attempt) {
        proto::Record ending;
        proto::AttemptEnding& body = *ending.mutable_attempt_ending();
        body.mutable_id()->set_job(1);
        body.mutable_id()->set_attempt(attempt);
        body.set_next(proto::RESTART);
        facts.apply(ending);
    }
    proto::CheckpointCommitted commit(std::uint64_t step, std::optional<double> metric = {}, std::vector<proto::CheckpointMark> marks = {}) {
        proto::CommitRequest request;
        request.set_step(step);
        if (metric) request.set_metric(*metric);
        for (const proto::CheckpointMark& mark : marks) *request.add_marks() = mark;
        proto::Record record;
        proto::CheckpointCommitted& body = *record.mutable_checkpoint_committed();
        body.mutable_id()->set_job(1);
        body.mutable_id()->set_attempt(job().attempt().number);
        body.set_step(step);
        if (metric) body.set_metric(*metric);
        decide_retention(job(), rule(), request, body);
        facts.apply(record);
        return body;
    }
    static proto::CheckpointMark mark(std::uint64_t step, bool pinned, bool verified) {
        proto::CheckpointMark made;
        made.set_step(step);
        made.set_attempt(1);
        made.set_pinned(pinned);
        made.set_verified(verified);
        return made;
    }
    void damage(std::uint64_t step) {
        proto::Record record;
        record.mutable_checkpoint_found_damaged()->mutable_id()->set_job(1);
        record.mutable_checkpoint_found_damaged()->mutable_checkpoint()->set_step(step);
        record.mutable_checkpoint_found_damaged()->mutable_checkpoint()->set_attempt(1);
        facts.apply(record);
    }
    Job& job() { return *facts.find(1); }
    RetentionRule rule() { return rule_of(job().spec, 3); }
    std::vector<std::string> story() {
        std::vector<std::string> lines;
        const std::vector<Needs> needs = needs_of(job(), rule());
        for (std::size_t i = 0; i < needs.size(); ++i) lines.push_back(std::to_string(job().checkpoints[i].point.step()) + ": " + needs[i].words());
        return lines;
    }
    Facts facts;
};

TEST_F(AJobsCheckpoints, GoWhenNobodyNeedsThemAndTheRecordNamesThem) {
    commit(10, 0.5);
    commit(20, 0.9);
    EXPECT_EQ(commit(30, 0.8).gone_size(), 0);  // 10 is the best
    EXPECT_THAT(story(), ElementsAre("10: best", "20: last", "30: last"));
    const auto body = commit(40, 0.1);
    ASSERT_EQ(body.gone_size(), 2);
    EXPECT_EQ(body.gone(0).step(), 10u);
    EXPECT_EQ(body.gone(1).step(), 20u);
    EXPECT_THAT(story(), ElementsAre("30: last", "40: last, best"));
}

TEST_F(AJobsCheckpoints, PinsComeAndGoWithEachCommitAndProofsStay) {
    commit(10);
    commit(20);
    commit(30, {}, {mark(10, true, true), mark(99, true, true)});  // 99 nobody knows
    EXPECT_THAT(story(), ElementsAre("10: verified, pinned", "20: last", "30: last"));
    commit(40, {}, {mark(10, true, false)});
    EXPECT_THAT(story(), ElementsAre("10: verified, pinned", "20: unverified", "30: last", "40: last"));
    commit(50, {}, {mark(40, false, true)});
    EXPECT_THAT(story(), ElementsAre("40: last, verified", "50: last"));
}

TEST_F(AJobsCheckpoints, ADamagedOneIsRememberedButNotCounted) {
    commit(10);
    commit(20);
    damage(20);
    EXPECT_EQ(commit(30).gone_size(), 0);
    EXPECT_THAT(story(), ElementsAre("10: last", "20: ", "30: last"));
    EXPECT_FALSE(job().has_lost_its_checkpoints());
    damage(10);
    damage(30);
    EXPECT_TRUE(job().has_lost_its_checkpoints());
}

TEST_F(AJobsCheckpoints, WhatAnAttemptStartedFromStaysUntilItHasSaved) {
    commit(10);
    end_attempt(1);
    reserve(2);
    EXPECT_THAT(story(), ElementsAre("10: last, restore"));
    commit(20);
    EXPECT_THAT(story(), ElementsAre("10: last", "20: last"));
}

TEST_F(AJobsCheckpoints, ARecordOfAnOlderCoordinatorKeepsTheNewest) {
    for (const std::uint64_t step : {10u, 20u, 30u}) {
        proto::Record record;
        record.mutable_checkpoint_committed()->mutable_id()->set_job(1);
        record.mutable_checkpoint_committed()->mutable_id()->set_attempt(1);
        record.mutable_checkpoint_committed()->set_step(step);
        record.mutable_checkpoint_committed()->set_keep(2);
        facts.apply(record);
    }
    EXPECT_THAT(story(), ElementsAre("20: last", "30: last"));
}

TEST(ARuleOfAJob, IsItsOwnOrTheDefault) {
    proto::JobSpec spec;
    EXPECT_EQ(rule_of(spec, 3), RetentionRule{});
    spec.mutable_retention()->set_last(7);
    spec.mutable_retention()->set_every(1000);
    spec.mutable_retention()->set_best(2);
    spec.mutable_retention()->set_higher_is_better(true);
    EXPECT_EQ(rule_of(spec, 3), (RetentionRule{.last = 7, .every = 1000, .best = 2, .higher_is_better = true}));
}

}  // namespace
}  // namespace gangline::coordinator
