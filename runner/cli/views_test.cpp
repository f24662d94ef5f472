#include "runner/cli/views.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "runner/cli/attach.h"
#include "runner/cli/json.h"
#include "runner/cli/table.h"
#include "runner/cli/verbs.h"

namespace gangline::runner {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Table, ColumnsAreAsWideAsTheirTextAndNumbersStandRight) {
    Table table({{"JOB", Column::Align::Right, 0}, {"NAME", Column::Align::Left, 0}});
    table.add({"7", "train"});
    table.add({"12345", "x"});
    EXPECT_EQ(table.text({}), "  JOB  NAME\n    7  train\n12345  x\n");
}

TEST(Table, ElasticColumnsGiveWayToTheWindow) {
    Table table({{"JOB", Column::Align::Right, 0}, {"NAME", Column::Align::Left, 6}, {"WHY", Column::Align::Left, 6}});
    table.add({"1", "a-rather-long-name", "waits for 4 cards on n1, which are held by job 3"});
    const Terminal narrow{false, false, 30};
    for (const std::string& line : split(table.text(narrow), '\n')) EXPECT_LE(line.size(), 30U) << line;
    EXPECT_THAT(table.text(narrow), HasSubstr("..."));
    EXPECT_THAT(table.text({}), HasSubstr("held by job 3"));
}

TEST(Table, AColumnThatIsOnlyThereWhereFilledIsLeftOutElse) {
    const std::vector<Column> columns = {{"JOB", Column::Align::Right, 0}, {"STEP", Column::Align::Right, 0, Column::Shown::WhereFilled},
                                         {"NOTE", Column::Align::Left, 6, Column::Shown::WhereFilled}};
    Table table(columns);
    table.add({"1", "-", ""});
    table.add({"2", "", "-"});
    EXPECT_EQ(table.text({}), "JOB\n  1\n  2\n");
    table.add({"3", "7", ""});
    EXPECT_EQ(table.text({}), "JOB  STEP\n  1     -\n  2\n  3     7\n");
}

TEST(Table, TheLastColumnToGiveWayKeepsItsTextWhileOthersCan) {
    Table table({{"NAME", Column::Align::Left, 6}, {"REASON", Column::Align::Left, 6, Column::Shown::Always, Column::Gives::Last}});
    table.add({"a-rather-long-name", "waits for 4 cards"});
    EXPECT_THAT(table.text({false, false, 26}), HasSubstr("a-ra...  waits for 4 cards\n"));
    EXPECT_THAT(table.text({false, false, 20}), HasSubstr("a-r...  waits for...\n"));
}

TEST(Table, ColourIsOnlyThereWhereTheTerminalHasIt) {
    Table table({{"S", Column::Align::Left, 0}});
    table.add({Cell("bad", Tone::Bad)});
    EXPECT_THAT(table.text({false, false, 0}), Not(HasSubstr("\x1b")));
    EXPECT_THAT(table.text({true, true, 80}), HasSubstr("\x1b[31mbad"));
}

TEST(Terminal, FittedTextIsCutByLettersAndHasNoControlCharacters) {
    EXPECT_EQ(fitted("abcdef", 6), "abcdef");
    EXPECT_EQ(fitted("abcdefg", 6), "abc...");
    EXPECT_EQ(fitted("\xC3\xA4\xC3\xB6\xC3\xBC", 3), "\xC3\xA4\xC3\xB6\xC3\xBC");
    EXPECT_EQ(one_line("a\nb\x1b[31m"), "a b?[31m");
}

TEST(Json, HasEveryFieldByItsNameWithNumbersAndHex) {
    proto::JobView job;
    job.set_id(1ULL << 60);
    job.set_state(proto::RUNNING);
    job.add_attempts()->mutable_restored()->set_manifest_sha256(std::string("\x00\xff", 2));
    const auto json = to_json(job);
    EXPECT_EQ(json["id"].get<std::uint64_t>(), 1ULL << 60);
    EXPECT_TRUE(json["id"].is_number_integer());
    EXPECT_EQ(json["state"], "RUNNING");
    EXPECT_EQ(json["name"], "");
    EXPECT_TRUE(json["progress"].is_null());
    EXPECT_EQ(json["attempts"][0]["restored"]["manifest_sha256"], "00ff");
    EXPECT_EQ(json["eta_s"], 0.0);
    job.add_checkpoints()->set_metric(0.5);
    job.add_checkpoints();
    EXPECT_EQ(to_json(job)["checkpoints"][0]["metric"], 0.5);
    EXPECT_TRUE(to_json(job)["checkpoints"][1]["metric"].is_null());
}

TEST(Json, DocumentsCarryTheSchemaFirstAndErrorsToo) {
    EXPECT_EQ(json_document("job", 7), "{\n  \"schema\": \"gangline/1\",\n  \"job\": 7\n}\n");
    const auto error = nlohmann::json::parse(json_error(3, "no \"such\" job"));
    EXPECT_EQ(error["error"]["exit_code"], 3);
    EXPECT_EQ(error["error"]["message"], "no \"such\" job");
}

proto::JobView running_job() {
    proto::JobView job;
    job.set_id(7);
    job.set_name("train");
    job.set_user("alice");
    job.set_state(proto::RUNNING);
    job.set_ranks(4);
    job.set_restarts(1);
    job.set_attempt(2);
    job.set_submitted_unix_ms(1000);
    job.set_started_unix_ms(2000);
    job.mutable_progress()->set_step(300);
    job.mutable_progress()->set_total_steps(1200);
    job.mutable_progress()->set_loss(0.41);
    job.set_steps_per_s(55.2);
    job.set_eta_s(16.3);
    job.add_gang()->set_node("n0");
    job.add_gang()->set_node("n1");
    proto::AttemptView& first = *job.add_attempts();
    first.set_attempt(1);
    first.set_cause("rank 2 on n1 was killed by SIGKILL");
    first.set_kind(proto::INFRASTRUCTURE);
    first.set_last_lines("step 250\nbye");
    proto::AttemptView& second = *job.add_attempts();
    second.set_attempt(2);
    second.mutable_restored()->set_step(200);
    job.add_faults("disk full: 4096 bytes of log wait");
    return job;
}

TEST(Views, ProgressIsOneLineOfNumbers) {
    EXPECT_EQ(progress_words(running_job()), "step 300/1200 loss 0.41 55.2 steps/s eta 16s");
    EXPECT_EQ(progress_words(proto::JobView()), "");
}

TEST(Views, TheQueueHasAHeaderAndARowAJob) {
    JobViews jobs;
    *jobs.Add() = running_job();
    const std::string text = queue_text(jobs, {}, 62'000);
    EXPECT_THAT(text, HasSubstr("JOB  NAME"));
    EXPECT_THAT(text, HasSubstr("running"));
    EXPECT_THAT(text, HasSubstr("n[0-1]"));
    EXPECT_THAT(text, HasSubstr("300/1200"));
    EXPECT_THAT(text, HasSubstr("1m 00s"));
}

TEST(Views, AStoryTellsAttemptsWithTheirCausesAndFaults) {
    const std::string text = job_text(running_job(), {}, 62'000);
    EXPECT_THAT(text, HasSubstr("Job 7 \"train\" of alice: running"));
    EXPECT_THAT(text, HasSubstr("rank 2 on n1 was killed by SIGKILL"));
    EXPECT_THAT(text, HasSubstr("| bye"));
    EXPECT_THAT(text, HasSubstr("- disk full"));
}

TEST(Views, AFailureIsOneCauseWithItsLastLines) {
    proto::JobView job = running_job();
    EXPECT_EQ(exit_code_of(job), 1);
    job.set_state(proto::FAILED);
    job.set_exit_code(3);
    job.mutable_attempts(1)->set_cause("rank 1 on n0 exited with code 3");
    job.mutable_attempts(1)->set_last_lines("Traceback\nValueError: no\n");
    const std::string words = failure_words(job);
    EXPECT_THAT(words, HasSubstr("job 7 failed: rank 1 on n0 exited with code 3"));
    EXPECT_THAT(words, HasSubstr("\n  | ValueError: no"));
    EXPECT_EQ(exit_code_of(job), 3);
    job.set_state(proto::COMPLETED);
    EXPECT_EQ(failure_words(job), "");
}

TEST(Views, TheReportDrawsABarACause) {
    proto::Report report;
    *report.mutable_job() = running_job();
    report.set_wall_s(10);
    report.set_effective_training_time(0.8);
    report.set_steps(1200);
    report.set_steps_redone(35);
    proto::Cause& compute = *report.add_causes();
    compute.set_name("compute");
    compute.set_wall_s(8);
    proto::Cause& restart = *report.add_causes();
    restart.set_name("restart");
    restart.set_wall_s(2);
    report.add_notes("save more often");
    const std::string text = report_text(report, {});
    EXPECT_THAT(text, HasSubstr("effective training time 80.0 %"));
    EXPECT_THAT(text, HasSubstr("80.0 %  ########################......"));
    EXPECT_THAT(text, HasSubstr("1200 steps in the final history, 35 redone"));
    EXPECT_THAT(text, HasSubstr("attempt 1: rank 2 on n1"));
    EXPECT_THAT(text, HasSubstr("- save more often"));
}

TEST(Views, WhyIsASentenceWithItsClauses) {
    proto::Why why;
    why.set_job(9);
    why.set_sentence("it needs 8 cards, 5 are free");
    why.add_clauses("3 cards are held by job 7");
    why.set_sooner("ask for 5 cards");
    why.set_position(2);
    EXPECT_EQ(why_text(why, "9", 0), "Job 9 is queued: it needs 8 cards, 5 are free\n  position 2 in the queue\n"
                             "  - 3 cards are held by job 7\n  sooner: ask for 5 cards\n");
}

TEST(Views, WhyTellsEachDemandThatCouldBeRelaxedAndTheEstimateBesideAPromise) {
    proto::Why why;
    why.set_sentence("Job train waits: it needs 8 cards.");
    why.set_sooner("--ranks 5 would fit now");
    for (const char* const one : {"--ranks 5 would fit now", "without --switches it would start now", "with less --mem it would start now"}) why.add_relaxed(one);
    why.set_promised_unix_ms(7'200'000);
    why.set_expected_unix_ms(3'600'000);
    const std::string text = why_text(why, "9", 1'800'000);
    EXPECT_THAT(text, HasSubstr("  - it may expect to start at about 1970-01-01T01:00:00Z (in 30m 00s)\n"));
    EXPECT_THAT(text, HasSubstr("  sooner: --ranks 5 would fit now\n      or: without --switches it would start now\n      or: with less --mem it would start now\n"));
    why.clear_sooner();
    EXPECT_THAT(why_text(why, "9", 1'800'000), HasSubstr("  sooner: --ranks 5 would fit now\n      or: without"));
    why.add_clauses("it may expect to start at about 1970-01-01T01:00:00Z (in 30m 00s)");
    EXPECT_EQ(split(why_text(why, "9", 1'800'000), '\n').size(), 6U) << "the coordinator has told the estimate";
}

TEST(Views, AScriptIsShownByItsLineOrByItsNameAndFirstLine) {
    proto::JobView job = running_job();
    const auto command = [&](const std::string& script) {
        job.mutable_spec()->set_script(script);
        const std::string text = job_text(job, {}, 5000);
        const std::size_t at = text.find("  command     ");
        return at == std::string::npos ? "" : text.substr(at + 14, text.find('\n', at) - at - 14);
    };
    EXPECT_EQ(command("#!/bin/sh\nsleep 60 && hostname\n"), "sleep 60 && hostname");
    job.set_name("job.sh");
    EXPECT_EQ(command("#!/bin/bash\n#SBATCH -n 4\n\ncd /data\nsrun ./train\n"), "script job.sh: cd /data ...");
    job.mutable_spec()->add_script_args("a b");
    EXPECT_EQ(command("#!/bin/sh\n./train\n"), "script job.sh 'a b': ./train");
    EXPECT_EQ(command("#!/bin/sh\n# nothing\n"), "script job.sh 'a b'");
}

TEST(Views, WhyAndShowTellWhatWasPassedOver) {
    proto::Why why;
    why.set_state(proto::RUNNING);
    why.set_sentence("it is in rack r1");
    why.add_passed_over("rack r2: 3 of 4 nodes are free");
    EXPECT_EQ(why_text(why, "12_5", 0), "Job 12_5 is running: it is in rack r1\nPassed over\n  - rack r2: 3 of 4 nodes are free\n");
    proto::JobView job = running_job();
    EXPECT_THAT(job_text(job, {}, 5000), Not(HasSubstr("Passed over")));
    job.add_passed_over("rack r2: 3 of 4 nodes are free");
    EXPECT_THAT(job_text(job, {}, 5000), HasSubstr("Passed over\n  - rack r2: 3 of 4 nodes are free\n"));
}

TEST(Views, AnElementOfAnArrayIsNamedByItsTask) {
    proto::JobView job = running_job();
    job.set_id(17);
    proto::ArrayElement& array = *job.mutable_array();
    array.set_job(12);
    array.set_task(5);
    array.set_count(8);
    array.set_most(7);
    array.set_most_at_once(2);
    job.mutable_spec()->set_cwd("/w");
    job.mutable_spec()->set_output("%A_%a-%j.out");
    JobViews jobs;
    *jobs.Add() = job;
    EXPECT_THAT(queue_text(jobs, {}, 62'000), HasSubstr("12_5  train"));
    const std::string text = job_text(job, {}, 62'000);
    EXPECT_THAT(text, HasSubstr("Job 12_5 \"train\""));
    EXPECT_THAT(text, HasSubstr("task 5 of 8 tasks, 0 to 7, at most 2 at once\n"));
    EXPECT_THAT(text, HasSubstr("/w/12_5-17.out\n"));
    job.set_state(proto::FAILED);
    EXPECT_THAT(failure_words(job), HasSubstr("job 12_5 failed"));
}

TEST(Views, AStoryTellsSparesElasticityAndWhatIsAskedOfTheNodes) {
    proto::JobView job = running_job();
    for (const char* const node : {"n8", "n9"}) job.add_spares(node);
    proto::JobSpec& spec = *job.mutable_spec();
    spec.set_elastic(true);
    spec.set_nodes_min(2);
    spec.set_nodes_max(8);
    spec.set_nodes_step(2);
    spec.set_cards_per_rank(2);
    spec.set_card_model("h100");
    spec.set_constraint("nvme&ib");
    spec.set_reservation("course");
    spec.set_segment(2);
    spec.set_spares(2);
    const std::string text = job_text(job, {}, 62'000);
    EXPECT_THAT(text, HasSubstr("4 ranks on n[0-1], 2 h100 cards each; elastic, 2 to 8 nodes in steps of 2\n"));
    EXPECT_THAT(text, HasSubstr("  spares      n[8-9]\n"));
    EXPECT_THAT(text, HasSubstr("  asks for    nvme&ib, the reservation course, groups of 2 nodes in a rack each, 2 spare nodes\n"));
}

TEST(Views, ANodesNoteHasItsFailuresAndItsReservation) {
    NodeViews nodes;
    proto::NodeView& node = *nodes.Add();
    node.mutable_node()->set_name("n1");
    node.set_state("drained");
    node.set_note("fan is loud");
    node.set_set_by("ops");
    node.set_lemon_words("3 failures in two days");
    node.set_reservation("course");
    EXPECT_THAT(nodes_text(nodes, {}, 0), HasSubstr("fan is loud (by ops); 3 failures in two days; reservation course\n"));
    const Terminal narrow{false, false, 90};
    for (const std::string& line : split(nodes_text(nodes, narrow, 0), '\n')) EXPECT_LE(line.size(), 90U) << line;
    node.clear_note();
    node.clear_lemon_words();
    node.clear_set_by();
    EXPECT_THAT(nodes_text(nodes, {}, 0), Not(HasSubstr(";")));
}

TEST(Views, ASubmitOfAnArrayTellsItsTasks) {
    proto::JobSpec spec;
    EXPECT_EQ(submitted_text(12, spec, 0), "Submitted batch job 12\n");
    spec.mutable_array()->set_most(15);
    EXPECT_EQ(submitted_text(12, spec, 16), "Submitted batch job 12: an array of 16 tasks, 12_0 to 12_15\n");
}

TEST(Views, TheOutputIsShownAsTheFileThatItIs) {
    proto::JobView job = running_job();
    job.mutable_spec()->set_cwd("/home/alice");
    job.mutable_spec()->set_output("%x-%j-%N-%t.out");
    job.mutable_spec()->set_error("/tmp/%u-%A.err");
    EXPECT_THAT(job_text(job, {}, 5000), HasSubstr("/home/alice/train-7-%N-%t.out\n"));
    EXPECT_THAT(job_text(job, {}, 5000), HasSubstr("/tmp/alice-7.err\n"));
    job.mutable_spec()->set_script("#!/bin/sh\n");      // it writes from one node
    for (const char* const node : {"n4", "n5"}) job.mutable_attempts(1)->add_gang()->set_node(node);
    EXPECT_THAT(job_text(job, {}, 5000), HasSubstr("/home/alice/train-7-n4-0.out\n"));
}

TEST(Views, AJobSaysWhoNeedsEachCheckpoint) {
    proto::JobView job = running_job();
    proto::CheckpointView& old = *job.add_checkpoints();
    old.set_step(100);
    old.set_metric(0.25);
    old.set_needed_by("best, pinned");
    proto::CheckpointView& bad = *job.add_checkpoints();
    bad.set_step(200);
    bad.set_damaged(true);
    bad.set_note("checksum differs");
    const std::string text = job_text(job, {}, 62'000);
    EXPECT_THAT(text, HasSubstr("METRIC"));
    EXPECT_THAT(text, HasSubstr("0.25  best, pinned"));
    EXPECT_THAT(text, HasSubstr("damaged: checksum differs"));
    job.mutable_checkpoints(0)->clear_metric();
    EXPECT_THAT(job_text(job, {}, 62'000), Not(HasSubstr("METRIC")));
}

}  // namespace
}  // namespace gangline::runner
