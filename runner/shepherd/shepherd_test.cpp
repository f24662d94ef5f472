// A real shepherd on one node, from Prepare to its exit.
#include "runner/shepherd/shepherd_test_driver.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <thread>

#include "base/text.h"
#include "runner/shepherd/reaper.h"

namespace gangline::runner {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Shepherd, ARankFindsItsPlaceInTheEnvironment) {
    TestShepherd shepherd;
    shepherd.set_variable("MINE", "kept");
    shepherd.set_variable("SLURM_JOB_ID", "99");
    shepherd.set_variable("PMIX_RANK", "99");
    shepherd.set_variable("OMPI_MCA_foo", "bar");
    shepherd.shell(2, "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR $SLURM_JOB_ID $SLURM_PROCID "
                      "$SLURM_TASKS_PER_NODE $MINE $OMPI_MCA_foo $GANGLINE_MARK $GANGLINE_RESTORE_STEP $GANGLINE_RESTORE_SHA256 $CUDA_VISIBLE_DEVICES; "
                      "echo port $MASTER_PORT; pwd; test -s $GANGLINE_PROGRESS && echo page");
    shepherd.place(2, 4);
    shepherd.restore.emplace();
    shepherd.restore->set_step(12);
    shepherd.restore->set_attempt(1);
    shepherd.restore->set_manifest_sha256("\xab\x01");
    shepherd.run();
    EXPECT_THAT(shepherd.output(0), HasSubstr("0/2 0/2 0 127.0.0.1 7 0 2 kept bar " + shepherd.mark() + " 12 ab01 0,1\n"));
    EXPECT_THAT(shepherd.output(1), HasSubstr("1/2 1/2 0 127.0.0.1 7 1 2 kept bar " + shepherd.mark() + " 12 ab01 2,3\n"));
    EXPECT_THAT(shepherd.output(1), HasSubstr(fmt::format("port {}\n{}/work\npage\n", shepherd.report.master_port(), shepherd.folder)));
    EXPECT_EQ(shepherd.report.failure(), "") << shepherd.story();
    EXPECT_EQ(shepherd.rank(0).exit_code(), 0);
    shepherd.send_release();
    EXPECT_TRUE(shepherd.wait_exit());
}

TEST(Shepherd, ASingleRankHasNoMarkOfALauncher) {
    TestShepherd shepherd;
    shepherd.shell(1, "env");
    shepherd.run();
    EXPECT_THAT(shepherd.output(), HasSubstr("WORLD_SIZE=1\n"));
    EXPECT_THAT(shepherd.output(), Not(HasSubstr("JSM_JSRUN_PORT")));
    EXPECT_THAT(shepherd.output(), Not(HasSubstr("SLURM_STEP_ID")));
    EXPECT_THAT(shepherd.output(), Not(HasSubstr("PMIX_")));
}

TEST(Shepherd, ExitCodesAndSignalsAreReportedWithTheLastLines) {
    TestShepherd shepherd;
    shepherd.shell(3, "i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); done; "
                      "case $RANK in 0) echo bad >&2; exit 5;; 1) kill -SEGV $$;; esac");
    shepherd.run();
    ASSERT_EQ(shepherd.report.ranks_size(), 3);
    EXPECT_EQ(shepherd.rank(0).exit_code(), 5);
    EXPECT_THAT(shepherd.rank(0).last_lines(), HasSubstr("line 39"));
    EXPECT_THAT(shepherd.rank(0).last_lines(), HasSubstr("bad"));
    EXPECT_THAT(shepherd.rank(0).last_lines(), Not(HasSubstr("line 10\n")));
    EXPECT_EQ(shepherd.rank(1).signal(), SIGSEGV);
    EXPECT_EQ(shepherd.rank(2).exit_code(), 0);
    EXPECT_EQ(shepherd.rank(2).last_lines(), "");
    EXPECT_EQ(shepherd.output(0, OutputStream::Err), "bad\n");
}

TEST(Shepherd, WhatCannotRunIsFoundBeforeAnythingStartsAndIsTheUsers) {
    const auto refused = [](const std::function<void(TestShepherd&)>& spoil) {
        TestShepherd shepherd;
        shepherd.shell(2, "true");
        spoil(shepherd);
        shepherd.start();
        shepherd.send_prepare();
        EXPECT_TRUE(shepherd.wait_phase(proto::ATTEMPT_GONE)) << shepherd.story();
        EXPECT_TRUE(shepherd.report.failure_is_users()) << shepherd.story();
        return shepherd.report;
    };
    const auto missing = refused([](TestShepherd& s) { s.spec().set_argv(0, "no-such-program-here"); });
    EXPECT_THAT(missing.failure(), HasSubstr("no such program: no-such-program-here"));
    ASSERT_EQ(missing.ranks_size(), 2);
    EXPECT_EQ(missing.ranks(1).exit_code(), 127);
    EXPECT_THAT(refused([](TestShepherd& s) { s.spec().set_argv(0, "/etc/passwd"); }).failure(), HasSubstr("not executable"));
    EXPECT_THAT(refused([](TestShepherd& s) { s.spec().set_cwd("/no/such/folder"); }).failure(), HasSubstr("/no/such/folder"));
    EXPECT_THAT(refused([](TestShepherd& s) { s.spec().set_output("/no/such/folder/%j.out"); }).failure(), HasSubstr("/no/such/folder/7.out"));
    EXPECT_THAT(refused([](TestShepherd& s) {
        EXPECT_EQ(::mkfifo(s.work("fifo").c_str(), 0600), 0);
        s.spec().set_output("fifo");
    }).failure(), HasSubstr("fifo"));
    EXPECT_THAT(refused([](TestShepherd& s) { s.set_variable("2BAD", "x"); }).failure(), HasSubstr("'2BAD'"));
    EXPECT_THAT(refused([](TestShepherd& s) { s.set_variable("BIG", std::string(65 * 1024, 'x')); }).failure(), HasSubstr("BIG"));
    EXPECT_THAT(refused([](TestShepherd& s) {
        s.spec().clear_argv();
        s.spec().set_script("echo hello\n");
    }).failure(), HasSubstr("#!"));
}

TEST(Shepherd, AProgramThatTheKernelRefusesIsExplained) {
    TestShepherd shepherd;
    shepherd.shell(1, "true");
    ASSERT_TRUE(write_file_atomically(shepherd.work("prog"), "#!/no/such/interpreter\n", 0755).ok());
    shepherd.spec().clear_argv();
    shepherd.spec().add_argv("./prog");
    shepherd.run();
    EXPECT_THAT(shepherd.report.failure(), HasSubstr("the interpreter that its first line names"));
    EXPECT_TRUE(shepherd.report.failure_is_users());
    EXPECT_EQ(shepherd.rank(0).exit_code(), 127);
}

TEST(Shepherd, AScriptRunsOnceWithItsArgumentsAndTheStepToolsInItsPath) {
    TestShepherd shepherd;
    shepherd.place(3, 3);
    shepherd.spec().set_script("#!/bin/sh\necho \"$1-$2\" $SLURM_NTASKS \"rank=$RANK\" $CUDA_VISIBLE_DEVICES\ncommand -v srun\n"
                               "test -n \"$GANGLINE_STEP_SOCKET\" && echo steps\nexit 3\n");
    shepherd.spec().add_script_args("a b");
    shepherd.spec().add_script_args("c");
    shepherd.run();
    EXPECT_TRUE(shepherd.report.script_ended());
    ASSERT_EQ(shepherd.report.ranks_size(), 1);
    EXPECT_EQ(shepherd.rank(0).exit_code(), 3);
    EXPECT_THAT(shepherd.output(), HasSubstr("a b-c 3 rank= 0,1,2\n" + shepherd.spool() + "/bin/srun\nsteps\n"));
}

TEST(Shepherd, OutputGoesToTheFilesThatThePatternsName) {
    TestShepherd shepherd;
    shepherd.shell(2, "echo out $RANK; echo err $RANK >&2");
    shepherd.spec().set_output("%x-%j-%2t.out");
    shepherd.spec().set_error("all.err");
    ASSERT_TRUE(write_file_atomically(shepherd.work("all.err"), "old\n", 0644).ok());
    shepherd.run();
    EXPECT_EQ(*read_file(shepherd.work("test-7-00.out")), "out 0\n") << shepherd.story();
    EXPECT_EQ(*read_file(shepherd.work("test-7-01.out")), "out 1\n");
    const std::string errors = *read_file(shepherd.work("all.err"));
    EXPECT_TRUE(errors == "err 0\nerr 1\n" || errors == "err 1\nerr 0\n") << errors;
}

TEST(Shepherd, ARestartedAttemptAppends) {
    TestShepherd shepherd;
    shepherd.shell(1, "echo new");
    shepherd.spec().set_output("out");
    shepherd.prepare.set_restarts(1);
    ASSERT_TRUE(write_file_atomically(shepherd.work("out"), "old\n", 0644).ok());
    shepherd.run();
    EXPECT_EQ(*read_file(shepherd.work("out")), "old\nnew\n");
}

TEST(Shepherd, RanksThatShareAFileWriteWholeLines) {
    TestShepherd shepherd;
    shepherd.shell(4, "i=0; while [ $i -lt 200 ]; do printf %s aaaaaaaaaa; echo bbbbbbbbbb$RANK; i=$((i+1)); done; printf unfinished");
    shepherd.spec().set_output("all");
    shepherd.run();
    const std::string text = *read_file(shepherd.work("all"));
    std::size_t whole = 0;
    for (const std::string& line : split(text, '\n')) whole += line.starts_with("aaaaaaaaaabbbbbbbbbb") && line.size() == 21;
    EXPECT_GE(whole, 796u);  // Only a line right behind an unfinished one has more.
    EXPECT_EQ(TestShepherd::count(text, "unfinished"), 4u);
    EXPECT_EQ(TestShepherd::count(text, "bbbbbbbbbb"), 800u);
}

TEST(Shepherd, MuchOutputOfARankThatEndsAtOnceIsAllThere) {
    TestShepherd shepherd;
    shepherd.shell(1, "head -c 3000000 /dev/zero | tr '\\0' x");
    shepherd.spec().set_output("big");
    shepherd.run();
    EXPECT_EQ(shepherd.output().size(), 3'000'000u);
    EXPECT_EQ(read_file(shepherd.work("big"))->size(), 3'000'000u);
}

constexpr const char* kHardToKill =
    "trap '' TERM; (setsid sh -c 'trap \"\" TERM; echo daemon; (sleep 1000 & sleep 1000) & exec sleep 1000' &) ; "
    "(trap '' TERM; sleep 1000 &) ; ";

TEST(Shepherd, NothingIsLeftOfARankThatIgnoresSigtermAndForksDaemons) {
    TestShepherd shepherd;
    shepherd.shell(2, std::string(kHardToKill) + "echo ready; sleep 1000");
    shepherd.launch();
    ASSERT_TRUE(shepherd.wait_output("ready", 2)) << shepherd.story();
    ASSERT_TRUE(shepherd.wait_output("daemon", 2)) << shepherd.story();
    EXPECT_GE(marked_processes(shepherd.mark()).size(), 8u);
    shepherd.send_stop(50);
    ASSERT_TRUE(shepherd.wait_phase(proto::ATTEMPT_GONE)) << shepherd.story();
    EXPECT_TRUE(marked_processes(shepherd.mark()).empty());
    EXPECT_EQ(shepherd.rank(0).signal(), SIGKILL);
    struct stat info {};
    EXPECT_NE(::stat(shepherd.shared_folder().c_str(), &info), 0);
}

TEST(Shepherd, NothingIsLeftBehindARankThatHasEndedByItself) {
    TestShepherd shepherd;
    shepherd.shell(2, std::string(kHardToKill) + "exit 0");
    shepherd.run();
    EXPECT_TRUE(marked_processes(shepherd.mark()).empty());
    EXPECT_EQ(shepherd.rank(1).exit_code(), 0);
    EXPECT_EQ(shepherd.rank(1).signal(), 0);
    EXPECT_EQ(shepherd.report.failure(), "");
}

TEST(Shepherd, GraceLetsARankEndByItself) {
    TestShepherd shepherd;
    shepherd.shell(2, "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
    shepherd.launch();
    ASSERT_TRUE(shepherd.wait_output("ready", 2)) << shepherd.story();
    shepherd.send_stop(20'000);
    ASSERT_TRUE(shepherd.wait_phase(proto::ATTEMPT_GONE)) << shepherd.story();
    EXPECT_EQ(TestShepherd::count(shepherd.output(), "saved"), 2u);
    EXPECT_EQ(shepherd.rank(0).exit_code(), 0);
}

TEST(Shepherd, AShorterStopOvertakesALongerOneAndAStoppedProcessDiesToo) {
    TestShepherd shepherd;
    shepherd.shell(1, "trap '' TERM; echo ready; kill -STOP $$; while :; do sleep 0.01; done");
    shepherd.launch();
    ASSERT_TRUE(shepherd.wait_output("ready"));
    shepherd.send_stop(600'000);
    ASSERT_TRUE(shepherd.wait_phase(proto::ATTEMPT_STOPPING));
    shepherd.send_stop(0);
    ASSERT_TRUE(shepherd.wait_phase(proto::ATTEMPT_GONE)) << shepherd.story();
    EXPECT_EQ(shepherd.rank(0).signal(), SIGKILL);
}

TEST(Shepherd, AStopBeforeTheLaunchIsTheEnd) {
    TestShepherd shepherd;
    shepherd.shell(4, "echo never");
    shepherd.start();
    shepherd.send_prepare();
    ASSERT_TRUE(shepherd.wait_phase(proto::ATTEMPT_PREPARED));
    shepherd.send_stop(5000);
    ASSERT_TRUE(shepherd.wait_phase(proto::ATTEMPT_GONE));
    shepherd.send_launch();
    shepherd.send_release();
    EXPECT_TRUE(shepherd.wait_exit());
    EXPECT_EQ(shepherd.output(), "");
}

TEST(Shepherd, OrdersThatComeTwiceDoNothingMore) {
    TestShepherd shepherd;
    shepherd.shell(1, "echo once; read line < fifo");
    ASSERT_EQ(::mkfifo(shepherd.work("fifo").c_str(), 0600), 0);
    shepherd.launch();
    ASSERT_TRUE(shepherd.wait_output("once"));
    const pid_t before = shepherd.rank(0).pid();
    shepherd.send_prepare();
    shepherd.send_launch();
    const auto revision = shepherd.report.revision();
    ASSERT_TRUE(shepherd.wait([&] { return shepherd.report.revision() > revision; }));
    EXPECT_EQ(shepherd.rank(0).pid(), before);
    EXPECT_EQ(TestShepherd::count(shepherd.output(), "once"), 1u);
    shepherd.send_stop(0);
    ASSERT_TRUE(shepherd.wait_phase(proto::ATTEMPT_GONE));
}

TEST(Shepherd, AnAgentThatComesBackHearsEverythingAndTheRanksNoticeNothing) {
    TestShepherd shepherd;
    shepherd.shell(2, "echo ready; read line < fifo; echo end");
    ASSERT_EQ(::mkfifo(shepherd.work("fifo").c_str(), 0600), 0);
    shepherd.launch();
    ASSERT_TRUE(shepherd.wait_output("ready", 2));
    const proto::AttemptReport before = shepherd.report;
    shepherd.disconnect();
    shepherd.report.Clear();
    shepherd.connect();
    ASSERT_TRUE(shepherd.wait_phase(proto::ATTEMPT_RUNNING));
    EXPECT_EQ(shepherd.rank(1).pid(), before.ranks(1).pid());
    EXPECT_GT(shepherd.report.revision(), before.revision());
    // A second agent takes over while the first is still connected.
    shepherd.report.Clear();
    shepherd.connect();
    proto::ToShepherd identity;
    identity.mutable_identity()->set_node("n0");
    shepherd.send(identity);
    ASSERT_TRUE(shepherd.wait([&] { return !shepherd.news.empty() && shepherd.report.has_id(); }));
    EXPECT_EQ(shepherd.news[0].ready().pid(), shepherd.pid());
    EXPECT_EQ(shepherd.news[0].ready().id().job(), 7u);
    shepherd.send_stop(0);
    ASSERT_TRUE(shepherd.wait_phase(proto::ATTEMPT_GONE)) << shepherd.story();
}

TEST(Shepherd, ARankRunsOnItsCardsShareOfTheProcessors) {
    const auto units = static_cast<std::uint32_t>(std::thread::hardware_concurrency());
    if (units < 2) GTEST_SKIP() << "NOT TESTED: one processor cannot be shared";
    TestShepherd shepherd;
    shepherd.cards = 2;
    shepherd.shell(1, "nproc");
    shepherd.place(1, 1);
    shepherd.prepare.mutable_gang(0)->set_address("192.0.2.1");  // On a loopback address nobody is bound.
    shepherd.run();
    EXPECT_EQ(shepherd.output(), fmt::format("{}\n", units / 2)) << shepherd.story();
}

TEST(Shepherd, WordsThatAreNoUtf8DoNotSpoilTheReport) {
    TestShepherd shepherd;
    shepherd.shell(1, "true");
    shepherd.spec().set_argv(0, "./prog");
    ASSERT_TRUE(write_file_atomically(shepherd.work("prog"), "#!/bin/sh\nprintf '\\377\\376 bad'; exit 9\n", 0755).ok());
    shepherd.run();
    EXPECT_EQ(shepherd.rank(0).last_lines(), "?? bad");
}

TEST(Shepherd, ASpareTakesTheJobThatItIsGiven) {
    TestShepherd shepherd;
    shepherd.shell(2, "echo $PMIX_RANK");
    shepherd.start(true);
    proto::ToShepherd identity;
    identity.mutable_identity()->set_spool_folder("7-1");
    shepherd.send(identity);
    ASSERT_TRUE(shepherd.wait([&] { return !shepherd.news.empty(); }));
    EXPECT_EQ(shepherd.news[0].ready().id().job(), 0u);
    shepherd.run();
    EXPECT_EQ(shepherd.output(0), "0\n") << shepherd.story();
    EXPECT_EQ(shepherd.output(1), "1\n");
}

TEST(Shepherd, ASpareThatIsNotNeededQuits) {
    TestShepherd shepherd;
    shepherd.start(true);
    proto::ToShepherd quit;
    quit.mutable_quit();
    shepherd.send(quit);
    EXPECT_TRUE(shepherd.wait_exit());
}

}  // namespace
}  // namespace gangline::runner
