#include "coordinator/simulate/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "coordinator/simulate/failures.h"

namespace gangline::simulate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

Trace good_trace(std::string_view text) {
    auto trace = read_trace(text, "jobs.csv");
    if (!trace) {
        ADD_FAILURE() << trace.error().message;
        return {};
    }
    return std::move(trace).value();
}

template <class T>
std::string refusal(const Result<T>& read) {
    if (read.ok()) return "read without an error";
    EXPECT_EQ(read.error().code, Code::InvalidArgument);
    return read.error().message;
}

std::string trace_error(std::string_view text) { return refusal(read_trace(text, "jobs.csv")); }

// A Philly trace whose second row is `row`.
std::string philly(const std::string& row) { return "submit_s,duration_s,num_gpus,vc\n124,62,1,11cb48\n" + row + "\n"; }

TEST(TraceFormats, PhillyJobsAreSortedAndTheEarliestStandsAtZero) {
    const Trace trace = good_trace("submit_s,duration_s,num_gpus,vc\n714,66.5,8,ed69ec\n124,62,1,11cb48\n");
    EXPECT_EQ(trace.format, "philly");
    ASSERT_THAT(trace.jobs, SizeIs(2));
    EXPECT_EQ(trace.jobs[0].submit_s, 0);
    EXPECT_EQ(trace.jobs[0].number, 2U);
    EXPECT_EQ(trace.jobs[0].team, "11cb48");
    EXPECT_EQ(trace.jobs[1].submit_s, 590);
    EXPECT_EQ(trace.jobs[1].duration_s, 66.5);
    EXPECT_EQ(trace.jobs[1].cards, 8U);
    EXPECT_EQ(trace.jobs[1].nodes, 0U);
    EXPECT_EQ(trace.jobs[1].limit_s, 0);
    EXPECT_THAT(trace.notes, IsEmpty());
}

TEST(TraceFormats, PhillyStatesAddsUpTheIntervalsAlsoOfRowsThatAreSkipped) {
    const Trace trace = good_trace(
        "user,gpu_num,cpu_num,node_num,interval,run_time,new_status\n"
        "1,1,0,1,5,1389243,Killed\n2,8,0,4,100,0,Failed\n3,16,0,2,20,66336,Pass\n");
    EXPECT_EQ(trace.format, "philly-states");
    ASSERT_THAT(trace.jobs, SizeIs(2));
    EXPECT_EQ(trace.jobs[1].submit_s, 120);
    EXPECT_EQ(trace.jobs[1].number, 3U);
    EXPECT_EQ(trace.jobs[1].user, "3");
    EXPECT_EQ(trace.jobs[1].nodes, 2U);
    EXPECT_EQ(trace.jobs[1].state, "Pass");
    EXPECT_THAT(trace.notes, ElementsAre("1 row skipped: zero duration"));
}

TEST(TraceFormats, ElasticflowIsReadWithAndWithoutItsSyntheticColumns) {
    const Trace raw = good_trace("job_id,submission_time,duration,num_gpu\n965d744f,1932025,2429,64");
    EXPECT_EQ(raw.format, "elasticflow-raw");
    const Trace synthetic = good_trace(
        "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
        "965d744f,1932025,45775,resnet50,1933904,256,64,2429\n");
    EXPECT_EQ(synthetic.format, "elasticflow-ef");
    for (const Trace& trace : {raw, synthetic}) {
        ASSERT_THAT(trace.jobs, SizeIs(1));
        EXPECT_EQ(trace.jobs[0].cards, 64U);
        EXPECT_EQ(trace.jobs[0].duration_s, 2429);
        EXPECT_EQ(trace.jobs[0].submit_s, 0);
    }
}

TEST(TraceFormats, OpenbPodsRunFromScheduledToDeletedAndSharesOfCardsAreNoted) {
    const Trace trace = good_trace(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "openb-pod-0000,12000,16384,1,1000,V100M16|V100M32,LS,Running,10,250,50\n"
        "openb-pod-0001,6000,12288,1,460,,LS,Failed,20,90,30\n"
        "openb-pod-0002,6000,12288,0,0,,LS,Running,30,90,30\n"
        "openb-pod-0003,6000,12288,8,1000,,LS,Pending,40,90,\n");
    EXPECT_EQ(trace.format, "alibaba-openb");
    ASSERT_THAT(trace.jobs, SizeIs(2));
    EXPECT_EQ(trace.jobs[0].duration_s, 200);
    EXPECT_EQ(trace.jobs[1].submit_s, 10);
    EXPECT_EQ(trace.jobs[1].state, "Failed");
    EXPECT_THAT(trace.notes, ElementsAre("1 row skipped: never scheduled", "1 row skipped: zero cards",
                                         "1 row: a part of a card, counted as a whole one"));
}

TEST(TraceFormats, SacctIsReadInAnyColumnOrderWithoutItsSteps) {
    const Trace trace = good_trace(
        "User|State|Submit|JobName|ReqTRES|AllocTRES|ElapsedRaw|JobID|Account|NNodes|TimelimitRaw\n"
        "ada|COMPLETED|2024-03-01T00:00:10|train|billing=1,gres/gpu=16|cpu=9,gres/gpu:h100=16,gres/gpu=16|3600|71|vision|2|120\n"
        "|COMPLETED|2024-03-01T00:00:10|batch||cpu=9,gres/gpu=8|3600|71.batch|vision|1|\n"
        "bob|CANCELLED by 1000|2024-02-29T23:59:50|eval|gres/gpu:a100=3,gres/gpu:h100=1||60|70|speech|1|UNLIMITED\n"
        "bob|COMPLETED|2024-03-01T00:00:10|plot|cpu=1|cpu=1|60|72|speech|1|10\n"
        "bob|RUNNING|2024-03-01T00:01:10|long|gres/gpu=1|gres/gpu=1|60|73|speech|1|10\n");
    EXPECT_EQ(trace.format, "sacct");
    ASSERT_THAT(trace.jobs, SizeIs(3));
    EXPECT_EQ(trace.jobs[0].number, 70U);
    EXPECT_EQ(trace.jobs[0].cards, 4U);
    EXPECT_EQ(trace.jobs[0].state, "CANCELLED");
    EXPECT_EQ(trace.jobs[0].limit_s, 0);
    EXPECT_EQ(trace.jobs[1].number, 71U);
    EXPECT_EQ(trace.jobs[1].submit_s, 20);
    EXPECT_EQ(trace.jobs[1].cards, 16U);
    EXPECT_EQ(trace.jobs[1].nodes, 2U);
    EXPECT_EQ(trace.jobs[1].limit_s, 7200);
    EXPECT_EQ(trace.jobs[1].user, "ada");
    EXPECT_EQ(trace.jobs[1].team, "vision");
    EXPECT_THAT(trace.notes, ElementsAre("1 row skipped: steps of jobs", "1 row skipped: zero cards",
                                         "1 row: had not ended: the time until the report stands as the duration"));
}

TEST(TraceFormats, SacctTakesStartAndEndForElapsedAndTheOldGresForTres) {
    const Trace trace = good_trace(
        "JobIDRaw|JobID|Submit|Start|End|AllocGRES|\n"
        "90|90_1|2024-12-31T23:00:00|2024-12-31T23:59:00|2025-01-01T00:01:00|gpu:h100:8(IDX:0,2-7),mps:3|\n"
        "91|90_2|1735686000|2024-12-31T23:59:00|2025-01-01T00:01:00|gres:gpu:2|\n"
        "92|90_3|2024-12-31T23:00:00|2024-12-31T23:59:00|2025-01-01T00:01:00|gpu:h100|\n"
        "93|93|2024-12-31T23:00:00|Unknown|Unknown|gpu:1|\n");
    ASSERT_THAT(trace.jobs, SizeIs(3));
    EXPECT_EQ(trace.jobs[0].number, 90U);
    EXPECT_EQ(trace.jobs[0].duration_s, 120);
    EXPECT_EQ(trace.jobs[0].cards, 8U);
    EXPECT_EQ(trace.jobs[1].submit_s, 0);
    EXPECT_EQ(trace.jobs[1].cards, 2U);
    EXPECT_EQ(trace.jobs[2].cards, 1U);
    EXPECT_THAT(trace.notes, ElementsAre("1 row skipped: no start or no end"));
}

TEST(TraceFormats, SacctNumbersJobsByRowWhenTheIdsOfTwoAreTheSame) {
    const Trace trace = good_trace(
        "JobID|Submit|ElapsedRaw|AllocTRES\n7|2024-03-01T00:00:00|5|gres/gpu=1\n7|2024-03-01T00:00:09|5|gres/gpu=1\n");
    ASSERT_THAT(trace.jobs, SizeIs(2));
    EXPECT_EQ(trace.jobs[0].number, 1U);
    EXPECT_EQ(trace.jobs[1].number, 2U);
    EXPECT_THAT(trace.notes, ElementsAre(HasSubstr("numbered by their rows")));
}

TEST(TraceFormats, SacctThatCannotBeReplayedSaysWhichColumnsItLacks) {
    EXPECT_THAT(trace_error("JobID|Submit|AllocTRES\n1|2024-03-01T00:00:00|gres/gpu=1\n"),
                AllOf(HasSubstr("ElapsedRaw, nor Start and End"), HasSubstr("JobID|Submit|AllocTRES")));
    EXPECT_THAT(trace_error("JobID|Submit|ElapsedRaw\n1|2024-03-01T00:00:00|5\n"), HasSubstr("ReqTRES, AllocTRES or AllocGRES"));
    const std::string header = "JobID|Submit|Start|End|AllocTRES\n";
    EXPECT_EQ(trace_error(header + "1|2024-02-30T00:00:00|Unknown|Unknown|gres/gpu=1\n"),
              "jobs.csv line 2, column Submit: '2024-02-30T00:00:00' is not a time such as 2026-11-30T07:32:37");
    EXPECT_THAT(trace_error(header + "1|2024-02-01T00:00:00|2024-02-01T00:00:09|2024-02-01T00:00:08|gres/gpu=1\n"),
                HasSubstr("line 2, column End: '2024-02-01T00:00:08' lies before Start"));
    EXPECT_THAT(trace_error(header + "1|2024-02-01T00:00:00|2024-02-01T00:00:08|2024-02-01T00:00:09|gres/gpu=-1\n"),
                HasSubstr("column AllocTRES: 'gres/gpu=-1' is negative"));
}

TEST(TraceText, ByteOrderMarkCarriageReturnsBlankLinesAndTrailingBlanksDoNotMatter) {
    const Trace trace = good_trace(
        "\xEF\xBB\xBFsubmit_s,duration_s,num_gpus,vc\r\n124,62, 1 ,\"11,b\"\r\n\r\n714,66,2,x\r\n\r\n");
    ASSERT_THAT(trace.jobs, SizeIs(2));
    EXPECT_EQ(trace.jobs[0].team, "11,b");
    EXPECT_EQ(trace.jobs[1].team, "x");
}

TEST(TraceText, UnknownHeaderIsNamedWithTheKnownFormats) {
    EXPECT_THAT(trace_error("when,who\n1,2\n"),
                AllOf(StartsWith("jobs.csv: unknown header 'when,who'"), HasSubstr("philly (submit_s,duration_s,num_gpus,vc)"),
                      HasSubstr("philly-states"), HasSubstr("elasticflow-raw"), HasSubstr("elasticflow-ef"),
                      HasSubstr("sacct"), HasSubstr("alibaba-openb")));
}

TEST(TraceText, EmptyFilesHeadersAloneAndBytesAreRefused) {
    EXPECT_EQ(trace_error(""), "jobs.csv: is empty");
    EXPECT_EQ(trace_error("\xEF\xBB\xBF\r\n"), "jobs.csv: is empty");
    EXPECT_EQ(trace_error("submit_s,duration_s,num_gpus,vc"), "jobs.csv: has a header and no rows");
    EXPECT_EQ(trace_error(philly(std::string("1,2,\0,a", 7))), "jobs.csv line 3: has a NUL byte: this is not a text file");
    EXPECT_EQ(trace_error("submit_s,duration_s,num_gpus,vc,vc\n1,2,3,a,b\n"), "jobs.csv: has the column vc twice");
    EXPECT_EQ(trace_error("submit_s,duration_s,num_gpus,vc\n1,0,3,a\n2,5,0,a\n"),
              "jobs.csv: no row can be replayed: 1 row skipped: zero cards; 1 row skipped: zero duration");
}

TEST(TraceText, BadNumbersAreNamedByLineColumnAndValue) {
    EXPECT_EQ(trace_error(philly("-1,62,1,a")), "jobs.csv line 3, column submit_s: '-1' is negative");
    EXPECT_EQ(trace_error(philly("1,abc,1,a")), "jobs.csv line 3, column duration_s: 'abc' is not a number");
    EXPECT_EQ(trace_error(philly("1,,1,a")), "jobs.csv line 3, column duration_s: '' is not a number");
    EXPECT_EQ(trace_error(philly("1,nan,1,a")), "jobs.csv line 3, column duration_s: 'nan' is not a number");
    EXPECT_EQ(trace_error(philly("1,6 2,1,a")), "jobs.csv line 3, column duration_s: '6 2' is not a number");
    EXPECT_THAT(trace_error(philly("1,inf,1,a")), HasSubstr("column duration_s: 'inf' is out of range"));
    EXPECT_THAT(trace_error(philly("1,1e400,1,a")), HasSubstr("column duration_s: '1e400' is out of range"));
    EXPECT_THAT(trace_error(philly("1e13,1,1,a")), HasSubstr("column submit_s: '1e13' is out of range: the largest"));
    EXPECT_EQ(trace_error(philly("1,62,1.5,a")), "jobs.csv line 3, column num_gpus: '1.5' is not a whole number");
    EXPECT_THAT(trace_error(philly("1,62,5000000000,a")), HasSubstr("column num_gpus: '5000000000' is out of range"));
}

TEST(TraceText, RowsOfAnotherWidthAreNamedByLine) {
    EXPECT_EQ(trace_error(philly("1,62,1")), "jobs.csv line 3: has 3 columns where the header has 4: '1,62,1'");
    EXPECT_EQ(trace_error(philly("\n1,62,1,a,b")), "jobs.csv line 4: has 5 columns where the header has 4: '1,62,1,a,b'");
    EXPECT_EQ(trace_error(philly("1,62,1,\"a")), "jobs.csv line 3: has a quote that is not closed");
    EXPECT_THAT(trace_error("JobID|Submit|ElapsedRaw|AllocTRES\n7|2024-03-01T00:00:00|5\n"),
                HasSubstr("line 2: has 3 columns where the header has 4"));
}

TEST(FailureCauses, AreReadInTheFilesOrder) {
    const auto causes = read_failure_causes(
        "cause,count,symptom_assumed,needs_node_swap_assumed\n"
        "faulty_gpu,148,crash,1\nswitch_cable,35,hang_or_slow,0.5\n",
        "f.csv");
    ASSERT_TRUE(causes.ok()) << causes.error().message;
    ASSERT_THAT(*causes, SizeIs(2));
    EXPECT_EQ((*causes)[1].name, "switch_cable");
    EXPECT_EQ((*causes)[1].count, 35);
    EXPECT_EQ((*causes)[1].symptom, "hang_or_slow");
    EXPECT_EQ((*causes)[1].swap_share, 0.5);
}

TEST(FailureCauses, BadRowsAreNamed) {
    const auto error_of = [](const std::string& rows) {
        return refusal(read_failure_causes("cause,count,symptom_assumed,needs_node_swap_assumed\n" + rows, "f.csv"));
    };
    EXPECT_EQ(error_of("gpu,1,crash,1.5\n"), "f.csv line 2, column needs_node_swap_assumed: '1.5' is a share above 1");
    EXPECT_THAT(error_of("gpu,1,sleepy,1\n"), HasSubstr("line 2, column symptom_assumed: 'sleepy' is none of crash hang"));
    EXPECT_EQ(error_of("gpu,1,crash,1\ngpu,1,crash,1\n"), "f.csv line 3, column cause: 'gpu' is named twice");
    EXPECT_EQ(error_of(",1,crash,1\n"), "f.csv line 2, column cause: '' is empty");
    EXPECT_EQ(error_of("gpu,-1,crash,1\n"), "f.csv line 2, column count: '-1' is negative");
    EXPECT_EQ(error_of("gpu,0,crash,1\n"), "f.csv: column count: no cause has a count above 0");
    EXPECT_EQ(error_of(""), "f.csv: has a header and no rows");
    EXPECT_EQ(refusal(read_failure_causes("cause,count\ngpu,1\n", "f.csv")),
              "f.csv: has no column symptom_assumed; its header is 'cause,count'");
}

TEST(FaultTrace, PairsStartsAndEndsOfOneNodeAndCauseInOrderAndNotesTheRest) {
    std::vector<std::string> notes;
    const auto spans = read_fault_trace(
        "node,event_time_days,event,level,class,desc\n"
        "4,1,end,Hardware Failure,GPU,lost\n"
        "0,2,start,Hardware Failure,GPU,lost\n0,3,start,Hardware Failure,GPU,lost\n1,3.5,start,Hardware Failure,GPU,lost\n"
        "0,4,start,Hardware Failure,NIC,flap\n0,5,end,Hardware Failure,GPU,lost\n0,5.5,end,Hardware Failure,GPU,lost\n"
        "1,3.75,end,Hardware Failure,GPU,lost\n",
        "t.csv", &notes);
    ASSERT_TRUE(spans.ok()) << spans.error().message;
    ASSERT_THAT(*spans, SizeIs(4));
    EXPECT_EQ((*spans)[0].end_days, 5);
    EXPECT_EQ((*spans)[1].end_days, 5.5);
    EXPECT_EQ((*spans)[2].node, 1U);
    EXPECT_EQ((*spans)[3].end_days, -1);
    EXPECT_EQ((*spans)[3].cause, "flap");
    EXPECT_THAT(repair_days(*spans), ElementsAre(0.25, 2.5, 3));
    EXPECT_THAT(notes, ElementsAre("start without an end, never repaired in the trace: 1", "end without a start, left out: 1"));
}

TEST(FaultTrace, BadRowsAreNamed) {
    const auto error_of = [](const std::string& rows) {
        return refusal(read_fault_trace("node,event_time_days,event,level,class,desc\n" + rows, "t.csv"));
    };
    EXPECT_EQ(error_of("0,1,begin,a,b,c\n"), "t.csv line 2, column event: 'begin' is neither start nor end");
    EXPECT_EQ(error_of("x,1,start,a,b,c\n"), "t.csv line 2, column node: 'x' is not a number");
    EXPECT_EQ(error_of("0,-1,start,a,b,c\n"), "t.csv line 2, column event_time_days: '-1' is negative");
    EXPECT_EQ(error_of("0,1,start,a,b,\n"), "t.csv line 2, column desc: '' is empty");
    EXPECT_EQ(error_of("0,1,end,a,b,c\n"), "t.csv: column event: no row is a start");
}

class PublishedData : public ::testing::Test {
  protected:
    void SetUp() override {
        const char* folder = std::getenv("GANGLINE_DATA");
        if (folder == nullptr) GTEST_SKIP() << "GANGLINE_DATA names no folder with traces/ and failures/";
        folder_ = folder;
    }
    std::string read(const std::string& path) const {
        std::ifstream file(folder_ + "/" + path, std::ios::binary);
        EXPECT_TRUE(file.good()) << folder_ << "/" << path;
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    }

  private:
    std::string folder_;
};

struct Published {
    std::string path, format;
    std::size_t rows, skipped;
};

TEST_F(PublishedData, EveryTraceHasTheRowsThatItsReadmeCounts) {
    const std::vector<Published> files = {
        {"philly/philly_2017-10-16_14d.csv", "philly", 21933, 0},
        {"philly/philly_8plus_all.csv", "philly", 1932, 0},
        {"philly/philly_15k_states.csv", "philly-states", 15000, 0},
        {"elasticflow/raw_cluster01.csv", "elasticflow-raw", 1595, 0},
        {"elasticflow/raw_cluster02.csv", "elasticflow-raw", 5778, 0},
        {"elasticflow/raw_cluster03.csv", "elasticflow-raw", 3011, 0},
        {"elasticflow/raw_cluster06.csv", "elasticflow-raw", 2396, 0},
        {"elasticflow/ef_cluster01.csv", "elasticflow-ef", 1595, 0},
        {"elasticflow/ef_195job.csv", "elasticflow-ef", 195, 0},
        {"alibaba/openb_pod_list_gpuspec33.csv", "alibaba-openb", 8152, 1949},
    };
    for (const Published& file : files) {
        const auto trace = read_trace(read("traces/" + file.path), file.path);
        ASSERT_TRUE(trace.ok()) << trace.error().message;
        EXPECT_EQ(trace->format, file.format) << file.path;
        EXPECT_EQ(trace->jobs.size() + file.skipped, file.rows) << file.path;
        std::size_t skipped = 0;
        for (const std::string& note : trace->notes) {
            if (note.find(" skipped: ") != std::string::npos) skipped += std::stoul(note);
        }
        EXPECT_EQ(skipped, file.skipped) << file.path;
        EXPECT_EQ(trace->jobs.front().submit_s, 0) << file.path;
    }
}

TEST_F(PublishedData, TheFourteenDaysOfPhillyHoldTheirGpuHours) {
    const auto trace = read_trace(read("traces/philly/philly_2017-10-16_14d.csv"), "philly");
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    double hours = 0;
    for (const TraceJob& job : trace->jobs) hours += job.cards * job.duration_s / 3600;
    EXPECT_NEAR(hours, 230853, 1);
}

TEST_F(PublishedData, TheStepfunFaultsAreAllPairs) {
    std::vector<std::string> notes;
    const auto spans = read_fault_trace(read("traces/stepfun/fault_trace.csv"), "fault_trace.csv", &notes);
    ASSERT_TRUE(spans.ok()) << spans.error().message;
    EXPECT_THAT(*spans, SizeIs(584));
    EXPECT_THAT(notes, IsEmpty());
    EXPECT_THAT(repair_days(*spans), SizeIs(584));
}

TEST_F(PublishedData, TheLlamaCausesAreAllThere) {
    const auto causes = read_failure_causes(read("failures/llama3.csv"), "llama3.csv");
    ASSERT_TRUE(causes.ok()) << causes.error().message;
    EXPECT_THAT(*causes, SizeIs(19));
}

}  // namespace
}  // namespace gangline::simulate
