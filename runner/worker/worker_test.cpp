// The worker library against a shepherd of the test's own: what it says on its line, and what it makes of the answers.

#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <numeric>

#include "runner/worker/mail.h"
#include "runner/worker/place.h"
#include "runner/worker/test_gang.h"

namespace gangline {
namespace {

TEST_F(AGang, ShowsItsProgressOnThePage) {
    FakeShepherd shepherd(socket_);
    in_gangline(1, 4);
    auto gang = Gang::join();
    ASSERT_TRUE(gang.ok()) << gang.error().message;
    EXPECT_EQ(shepherd.wait_for(WorkerKind::Join).header.rank, 1u);
    EXPECT_EQ(gang->rank(), 1);
    EXPECT_EQ(gang->size(), 4);
    EXPECT_EQ(gang->attempt(), 3u);
    EXPECT_EQ(gang->restarts(), 2u);
    EXPECT_FALSE(gang->is_alone());
    EXPECT_FALSE(gang->restore()->has_value());
    gang->total_steps(50);
    gang->progress(1, {.samples = 8, .flops = 100, .loss = 0.5});
    gang->progress(2, {.samples = 8, .flops = 100, .loss = 0.25});
    { const auto waiting = gang->data_wait(); }
    { const auto talking = gang->communication(); }
    ProgressPage* const shown = map_page(1);
    EXPECT_EQ(shown->magic.load(), kProgressMagic);
    EXPECT_EQ(shown->rank.load(), 1u);
    EXPECT_EQ(shown->attempt.load(), 3u);
    EXPECT_EQ(shown->step.load(), 2u);
    EXPECT_EQ(shown->total_steps.load(), 50u);
    EXPECT_EQ(std::bit_cast<double>(shown->samples.load()), 16.0);
    EXPECT_EQ(std::bit_cast<double>(shown->flops.load()), 200.0);
    EXPECT_EQ(std::bit_cast<double>(shown->loss.load()), 0.25);
    EXPECT_GT(shown->step_ns.load(), 0u);
    EXPECT_GT(shown->data_wait_ns.load(), 0u);
    EXPECT_GT(shown->communication_ns.load(), 0u);
    EXPECT_STREQ(shown->phase, "train");
    const std::uint64_t beat = shown->beat.load();
    {
        const auto phase = gang->phase("eval");
        EXPECT_STREQ(shown->phase, "eval");
    }
    EXPECT_STREQ(shown->phase, "train");
    EXPECT_GT(shown->beat.load(), beat);
    ASSERT_TRUE(gang->finish().ok());
    EXPECT_EQ(shown->finished.load(), 1u);
    shepherd.wait_for(WorkerKind::Finished);
    ::munmap(shown, kProgressBytes);
}

TEST_F(AGang, SavesWhenTheCoordinatorAgreesAndFindsItsStateAgain) {
    FakeShepherd shepherd(socket_);
    in_gangline(0, 1);
    std::string digest;
    {
        auto gang = Gang::join().value();
        std::vector<float> weights{1, 2, 3};
        ASSERT_TRUE(gang.track("weights", weights.data(), {3}).ok());
        EXPECT_FALSE(gang.track("weights", weights.data(), {3}).ok());
        const Save save = gang.save(10);
        weights = {7, 7, 7};  // what was saved is the copy
        ASSERT_TRUE(save.wait(kLimit).ok());
        const Frame commit = shepherd.wait_for(WorkerKind::Commit);
        EXPECT_EQ(commit.header.step, 10u);
        const auto letter = decode_commit(commit.payload);
        ASSERT_TRUE(letter);
        EXPECT_EQ(letter->bytes, fs::file_size(saved(10, 3) + "/shard-00000-of-00001.h5"));
        digest = letter->manifest_sha256;
        EXPECT_FALSE(gang.save(10).wait(kLimit).ok());  // steps must rise
        ASSERT_TRUE(gang.finish(kLimit).ok());
        EXPECT_TRUE(fs::exists(saved(10, 3) + "/MANIFEST"));
    }
    checkpoint::Sha256 sha{};
    std::memcpy(sha.data(), digest.data(), 32);
    in_gangline(0, 1, 4);
    set("GANGLINE_RESTORE_STEP", "10");
    set("GANGLINE_RESTORE_ATTEMPT", "3");
    set("GANGLINE_RESTORE_SHA256", checkpoint::to_hex(sha));
    auto gang = Gang::join().value();
    std::vector<float> weights{0, 0, 0};
    ASSERT_TRUE(gang.track("weights", weights.data(), {3}).ok());
    const auto restored = gang.restore();
    ASSERT_TRUE(restored.ok()) << restored.error().message;
    EXPECT_EQ(*restored, std::optional<std::uint64_t>(10));
    EXPECT_EQ(weights, (std::vector<float>{1, 2, 3}));
    ProgressPage* const shown = map_page(0);
    EXPECT_EQ(shown->first_step.load(), 10u);
    EXPECT_GT(shown->restore_ns.load(), 0u);
    ::munmap(shown, kProgressBytes);
}

TEST_F(AGang, TellsTheRunnerOfADamagedCheckpointAndDoesNotStartAfresh) {
    FakeShepherd shepherd(socket_);
    in_gangline(0, 1);
    set("GANGLINE_RESTORE_STEP", "10");
    set("GANGLINE_RESTORE_ATTEMPT", "2");
    set("GANGLINE_RESTORE_SHA256", std::string(64, 'a'));
    auto gang = Gang::join().value();
    Result<std::optional<std::uint64_t>> restored = std::optional<std::uint64_t>();
    std::thread program([&] { restored = gang.restore(); });
    const Frame damaged = shepherd.wait_for(WorkerKind::Damaged);
    EXPECT_EQ(damaged.header.step, 10u);
    EXPECT_EQ(damaged.header.attempt, 2u);
    EXPECT_NE(damaged.payload.find("missing"), std::string::npos) << damaged.payload;
    const std::uint32_t no_time = 0;
    shepherd.send(0, WorkerKind::StopSoon, 0, 3, std::string_view(reinterpret_cast<const char*>(&no_time), 4));
    program.join();
    ASSERT_FALSE(restored.ok());
    EXPECT_EQ(restored.error().code, Code::Damaged);
}

TEST_F(AGang, HearsThatItWillBeStopped) {
    FakeShepherd shepherd(socket_);
    in_gangline(0, 1);
    auto gang = Gang::join().value();
    shepherd.wait_for(WorkerKind::Join);
    EXPECT_FALSE(gang.should_stop());
    EXPECT_GT(gang.seconds_left(), 1e9);
    const std::uint32_t ms = 60'000;
    shepherd.send(0, WorkerKind::StopSoon, 0, 3, std::string_view(reinterpret_cast<const char*>(&ms), 4));
    const auto limit = std::chrono::steady_clock::now() + kLimit;
    while (!gang.should_stop() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    EXPECT_TRUE(gang.should_stop());
    EXPECT_LE(gang.seconds_left(), 60.0);
    EXPECT_GT(gang.seconds_left(), 30.0);
}

TEST_F(AGang, TellsEveryRankTheOutcomeOfASave) {
    FakeShepherd shepherd(socket_);
    std::vector<Gang> ranks;
    std::vector<std::vector<double>> state(3, std::vector<double>(4));
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
        in_gangline(rank, 3);
        ranks.push_back(Gang::join().value());
        shepherd.wait_for(WorkerKind::Join);
        ASSERT_TRUE(ranks.back().track_slice("slice", state[rank].data(), {12}, {rank * 4ull}, {4}).ok());
    }
    // Rank 0 comes last: letters that reach it before its own first save must not be lost.
    std::vector<Save> saves;
    for (int rank : {2, 1, 0}) saves.push_back(ranks[static_cast<std::size_t>(rank)].save(5));
    for (const Save& save : saves) {
        const auto outcome = save.wait(kLimit);
        EXPECT_TRUE(outcome.ok()) << outcome.error().message;
    }
    EXPECT_TRUE(fs::exists(saved(5, 3) + "/shard-00002-of-00003.h5"));
    shepherd.accepts = false;
    saves.clear();
    for (Gang& gang : ranks) saves.push_back(gang.save(6));
    for (const Save& save : saves) {
        const auto outcome = save.wait(kLimit);
        ASSERT_FALSE(outcome.ok());
        EXPECT_NE(outcome.error().message.find("not now"), std::string::npos) << outcome.error().message;
    }
    const Frame fault = shepherd.wait_for(WorkerKind::Fault);
    EXPECT_NE(fault.payload.find("step 6 was not saved"), std::string::npos) << fault.payload;
    for (Gang& gang : ranks) EXPECT_TRUE(gang.finish(kLimit).ok());
    EXPECT_FALSE(fs::exists(saved(6, 3)));
}

// One rank's failure ends the save while another still writes: what that one brings to disk behind it is nobody's.
TEST_F(AGang, LeavesNothingOfASaveThatFailedOnAnotherRank) {
    for (const std::uint32_t fails : {0u, 1u}) {
        FakeShepherd shepherd(socket_);
        std::vector<Gang> ranks;
        std::vector<std::vector<double>> state{std::vector<double>(1 << 17), std::vector<double>(1 << 17)};
        for (std::uint32_t rank = 0; rank < 2; ++rank) {
            in_gangline(rank, 2, 3 + fails);
            ranks.push_back(Gang::join().value());
            shepherd.wait_for(WorkerKind::Join);
            const char* const name = rank == fails ? "gangline_step/taken" : "state";  // the step's own: no shard can be laid out
            ASSERT_TRUE(ranks.back().track(name, state[rank].data(), {state[rank].size()}, Policy::PerRank).ok());
        }
        for (std::uint64_t step = 1; step <= 20; ++step) {
            std::vector<Save> saves;
            for (const std::uint32_t rank : {step % 2 == 0 ? fails : 1 - fails, step % 2 == 0 ? 1 - fails : fails}) saves.push_back(ranks[rank].save(step));
            for (const Save& save : saves) EXPECT_FALSE(save.wait(kLimit).ok());
        }
        for (Gang& gang : ranks) EXPECT_TRUE(gang.finish(kLimit).ok());
        for (const auto& left : fs::directory_iterator(folder_ + "/job-7")) ADD_FAILURE() << "rank " << fails << " failed, and there is " << left.path();
    }
}

// By the page alone the runner would take a rank that waits for its disk for one that hangs.
TEST_F(AGang, ShowsThatItLivesWhileASaveWaitsForTheOneBefore) {
    FakeShepherd shepherd(socket_);
    in_gangline(0, 1);
    set("GANGLINE_CHECKPOINT_WRITE_MIB_S", "2");
    ProgressPage* const shown = map_page(0);
    auto gang = Gang::join().value();
    std::vector<float> state(3u << 19);  // 6 MiB
    ASSERT_TRUE(gang.track("state", state.data(), {state.size()}).ok());
    const Save first = gang.save(1);
    const std::uint64_t before = shown->beat.load();
    std::atomic<bool> is_back{false};
    std::atomic<std::uint64_t> meanwhile{0};
    std::thread watch([&] {
        while (!is_back) {
            meanwhile = shown->beat.load();
            std::this_thread::sleep_for(milliseconds(5));
        }
    });
    const Save second = gang.save(2);
    is_back = true;
    watch.join();
    EXPECT_GT(meanwhile, before);
    EXPECT_TRUE(first.wait(kLimit).ok());
    ASSERT_TRUE(gang.finish(kLimit).ok());
    EXPECT_TRUE(second.is_done());
    ::munmap(shown, kProgressBytes);
}

TEST_F(AGang, TrainsOnWhenASaveFailsAndSaysWhy) {
    FakeShepherd shepherd(socket_);
    set("GANGLINE_CHECKPOINT_DIR", "/proc/no-such-place");
    std::vector<Gang> ranks;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
        in_gangline(rank, 2);
        ranks.push_back(Gang::join().value());
        shepherd.wait_for(WorkerKind::Join);
    }
    const Save first = ranks[0].save(5);
    const Save second = ranks[1].save(5);
    EXPECT_FALSE(first.wait(kLimit).ok());
    EXPECT_FALSE(second.wait(kLimit).ok());
    EXPECT_NE(shepherd.wait_for(WorkerKind::Fault).payload.find("/proc/no-such-place"), std::string::npos);
    for (Gang& gang : ranks) EXPECT_TRUE(gang.finish(kLimit).ok());
}

TEST_F(AGang, AsksAgainWhenTheCoordinatorWasAwayAndLosesNothing) {
    FakeShepherd shepherd(socket_);
    shepherd.answers = false;
    in_gangline(0, 1);
    auto gang = Gang::join().value();
    std::uint64_t state = 1;
    ASSERT_TRUE(gang.track("state", &state, {}).ok());
    const Save first = gang.save(1);
    shepherd.wait_for(WorkerKind::Commit);
    const Save second = gang.save(2);  // does not wait for the answer
    const Save third = gang.save(3);
    const auto given_way = second.wait(kLimit);
    ASSERT_FALSE(given_way.ok());
    EXPECT_NE(given_way.error().message.find("step 3 was ready"), std::string::npos) << given_way.error().message;
    EXPECT_FALSE(first.is_done());
    const Frame again = shepherd.wait_for(WorkerKind::Commit);
    EXPECT_EQ(again.header.step, 1u);
    shepherd.answers = true;
    shepherd.answer(again, true, "");
    EXPECT_TRUE(first.wait(kLimit).ok());
    EXPECT_TRUE(third.wait(kLimit).ok());
    ASSERT_TRUE(gang.finish(kLimit).ok());
    EXPECT_TRUE(fs::exists(saved(3, 3)));
}

TEST_F(AGang, WithoutItsShepherdIsRefusedInWords) {
    in_gangline(0, 1);
    const auto gang = Gang::join();
    ASSERT_FALSE(gang.ok());
    EXPECT_EQ(gang.error().code, Code::Unavailable);
    EXPECT_NE(gang.error().message.find(socket_), std::string::npos) << gang.error().message;
    std::ofstream(page(0)) << "short";
    FakeShepherd shepherd(socket_);
    const auto second = Gang::join();
    ASSERT_FALSE(second.ok());
    EXPECT_NE(second.error().message.find("page-0"), std::string::npos) << second.error().message;
}

TEST_F(AGang, AFencedSaveHoldsTheStateAsItWasWhateverComesAfterTheFence) {
    std::vector<std::uint64_t> state(3'000'000, 1);
    {
        auto gang = Gang::join().value();
        ASSERT_TRUE(gang.track("state", state.data(), {state.size()}).ok());
        for (std::uint64_t step = 1; step <= 5; ++step) {
            const Save save = gang.save(step, SaveMode::Fenced);
            gang.fence();
            std::fill(state.begin(), state.end(), step + 1);
            if (step == 5) {
                ASSERT_TRUE(save.wait(kLimit).ok());
            }
        }
        gang.fence();
        ASSERT_TRUE(gang.finish(kLimit).ok());
    }
    auto gang = Gang::join().value();
    ASSERT_TRUE(gang.track("state", state.data(), {state.size()}).ok());
    EXPECT_EQ(**gang.restore(), 5u);
    EXPECT_EQ(std::count(state.begin(), state.end(), 5u), 3'000'000);
}

// As an optimizer does it that changes one tensor after the other.
TEST_F(AGang, AFenceOfOneTensorIsEnoughToChangeThatOne) {
    constexpr std::size_t kTensors = 7;
    std::vector<std::vector<std::uint64_t>> state(kTensors);
    for (std::size_t i = 1; i < kTensors; ++i) state[i].assign(100'000 * i * i, 0);  // the first is empty
    const auto track_all = [&](Gang& gang) {
        for (std::size_t i = 0; i < kTensors; ++i) ASSERT_TRUE(gang.track(fmt::format("t{}", i), state[i].data(), {state[i].size()}).ok());
    };
    {
        auto gang = Gang::join().value();
        track_all(gang);
        ASSERT_TRUE(gang.fence("t1").ok());  // before any save
        EXPECT_EQ(gang.fence("t9").error().code, Code::InvalidArgument);
        for (std::uint64_t step = 1; step <= 6; ++step) {
            const Save save = gang.save(step, SaveMode::Fenced);
            for (std::size_t i = 0; i < kTensors; ++i) {
                const std::size_t which = (i * 3 + step) % kTensors;
                ASSERT_TRUE(gang.fence(fmt::format("t{}", which)).ok());
                std::fill(state[which].begin(), state[which].end(), step);
            }
            const auto saved = save.wait(kLimit);
            ASSERT_TRUE(saved.ok()) << saved.error().message;
        }
        ASSERT_TRUE(gang.finish(kLimit).ok());
    }
    auto gang = Gang::join().value();
    track_all(gang);
    EXPECT_EQ(**gang.restore(), 6u);
    for (std::size_t i = 0; i < kTensors; ++i) EXPECT_EQ(std::count(state[i].begin(), state[i].end(), 5u), static_cast<std::ptrdiff_t>(state[i].size())) << i;
}

TEST_F(AGang, AFenceBehindASaveThatCouldNotBeLaidOutReturns) {
    std::vector<std::uint64_t> small(400'000), large(4'000'000);
    auto gang = Gang::join().value();
    ASSERT_TRUE(gang.track("small", small.data(), {small.size()}).ok());
    ASSERT_TRUE(gang.save(1).wait(kLimit).ok());
    ASSERT_TRUE(gang.track("large", large.data(), {large.size()}).ok());
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit little{8u << 20, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
    const Save save = gang.save(2, SaveMode::Fenced);
    gang.fence();
    EXPECT_TRUE(gang.fence("large").ok());
    const auto saved = save.wait(kLimit);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_FALSE(saved.ok());
    EXPECT_TRUE(gang.save(3).wait(kLimit).ok());
}

TEST_F(AGang, SavesByItselfAsOftenAsThatIsBest) {
    ::setenv("GANGLINE_MTBF_S", "1", 1);
    std::uint64_t state = 0;
    auto gang = Gang::join().value();
    ASSERT_TRUE(gang.track("state", &state, {}).ok());
    EXPECT_FALSE(gang.should_save(1)) << "it has just begun";
    EXPECT_NE(gang.save_interval().find("a failure is expected each"), std::string::npos) << gang.save_interval();
    ::unsetenv("GANGLINE_MTBF_S");
}

TEST_F(AGang, AloneKeepsThreeCheckpointsAndGoesOnFromTheNewest) {
    std::uint64_t state = 0;
    {
        auto gang = Gang::join().value();
        EXPECT_TRUE(gang.is_alone());
        EXPECT_EQ(gang.size(), 1);
        ASSERT_TRUE(gang.track("state", &state, {}).ok());
        EXPECT_FALSE(gang.restore()->has_value());
        for (std::uint64_t step = 1; step <= 6; ++step) {
            state = step * 100;
            ASSERT_TRUE(gang.save(step).wait(kLimit).ok());
        }
        ASSERT_TRUE(gang.finish(kLimit).ok());
    }
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ + "/job-7")) {
        if (!entry.path().filename().string().starts_with(".")) names.push_back(entry.path().filename().string());
    }
    EXPECT_THAT(names, ::testing::UnorderedElementsAre("step-000000000004-e000000", "step-000000000005-e000000", "step-000000000006-e000000"));
    {
        auto gang = Gang::join().value();
        ASSERT_TRUE(gang.track("state", &state, {}).ok());
        const auto refused = gang.save(2).wait(kLimit);  // started afresh beside older state: nothing is overwritten or outlived
        ASSERT_FALSE(refused.ok());
        EXPECT_NE(refused.error().message.find("already holds a checkpoint of step 6"), std::string::npos) << refused.error().message;
    }
    auto gang = Gang::join().value();
    state = 0;
    ASSERT_TRUE(gang.track("state", &state, {}).ok());
    EXPECT_EQ(gang.restore().value(), std::optional<std::uint64_t>(6));
    EXPECT_EQ(state, 600u);
    fs::resize_file(saved(6, 0) + "/MANIFEST", 20);
    const auto damaged = gang.restore();
    ASSERT_FALSE(damaged.ok());
    EXPECT_EQ(damaged.error().code, Code::Damaged);
    EXPECT_NE(damaged.error().message.find("delete"), std::string::npos) << damaged.error().message;
}

// What one rank of three does; 0 when all went well.
int save_and_restore_alone(std::uint32_t rank) {
    auto gang = Gang::join();
    if (!gang.ok()) return 1;
    auto own = static_cast<std::uint8_t>(rank);
    if (!gang->track("own", &own, {}, Policy::PerRank).ok()) return 2;
    if (!gang->save(4).wait(kLimit).ok()) return 3;
    own = 99;
    const auto step = gang->restore();
    if (!step.ok() || *step != 4u || own != rank) return 4;
    return gang->finish(kLimit).ok() ? 0 : 5;
}

TEST_F(AGang, AloneOfSeveralRanksCommitsThroughRankZero) {
    set("SLURM_JOB_ID", "test-" + random_hex(6));
    set("OMPI_COMM_WORLD_SIZE", "3");
    std::vector<pid_t> children;
    for (std::uint32_t rank : {2u, 1u, 0u}) {
        const pid_t child = ::fork();
        if (child == 0) {
            ::setenv("OMPI_COMM_WORLD_RANK", std::to_string(rank).c_str(), 1);
            ::_exit(save_and_restore_alone(rank));
        }
        children.push_back(child);
    }
    for (const pid_t child : children) {
        int status = -1;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
    }
}

// Steps of a millisecond until three saves are through; the steps that were saved go to `file`.
int save_when_due(std::uint32_t rank, const std::string& file) {
    std::uint64_t state = 0;
    auto gang = Gang::join();
    if (!gang.ok() || !gang->track("state", &state, {}).ok()) return 1;
    std::ofstream saved(fmt::format("{}-{}", file, rank));
    int count = 0;
    for (std::uint64_t step = 1; step < 30'000 && count < 3; ++step) {
        ::usleep(1000);  // a step's work
        state = step;
        if (!gang->should_save(step)) continue;
        ++count;
        saved << step << "\n";
        if (!gang->save(step).wait(kLimit).ok()) return 2;
    }
    return gang->finish(kLimit).ok() && count == 3 ? 0 : 3;
}

TEST_F(AGang, AllRanksSaveTheSameStepsWhenTheyAreDue) {
    set("OMPI_COMM_WORLD_SIZE", "3");
    set("GANGLINE_MTBF_S", "1");
    std::vector<pid_t> children;
    for (std::uint32_t rank : {2u, 1u, 0u}) {
        const pid_t child = ::fork();
        if (child == 0) {
            ::setenv("OMPI_COMM_WORLD_RANK", std::to_string(rank).c_str(), 1);
            ::_exit(save_when_due(rank, folder_ + "/saved"));
        }
        children.push_back(child);
    }
    for (const pid_t child : children) {
        int status = -1;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
    }
    const auto steps = [&](std::uint32_t rank) { return read_file(fmt::format("{}/saved-{}", folder_, rank), 4096).value(); };
    EXPECT_EQ(steps(0), steps(1));
    EXPECT_EQ(steps(0), steps(2));
}

TEST_F(AGang, ThatHearsTooLateWhichStepIsSavedSaysSoAndTheNextOneIsSaved) {
    FakeShepherd shepherd(socket_);
    std::vector<Gang> ranks;
    std::vector<double> state(4);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
        in_gangline(rank, 2);
        ranks.push_back(Gang::join().value());
        shepherd.wait_for(WorkerKind::Join);
        ASSERT_TRUE(ranks.back().track("w", state.data(), {4}).ok());
    }
    const auto expect_missed = [&](std::uint64_t step) {
        const auto outcome = ranks[0].save(step).wait(kLimit);
        ASSERT_FALSE(outcome.ok());
        EXPECT_NE(outcome.error().message.find(fmt::format("rank 1: it heard too late that step {} was to be saved", step)), std::string::npos) << outcome.error().message;
    };
    const auto announce = [&](std::uint64_t step) { shepherd.send(1, WorkerKind::Relay, step, 3, std::string{static_cast<char>(Mail::SaveAt), 'D'}); };
    EXPECT_FALSE(ranks[1].should_save(11));
    announce(10);
    expect_missed(10);
    announce(11);  // it may ask again at this step; but it asks at a later one
    for (std::uint64_t step = 12; shepherd.count(WorkerKind::Relay) < 3 && step < 20'000; ++step) {
        EXPECT_FALSE(ranks[1].should_save(step));
        std::this_thread::sleep_for(milliseconds(1));  // NOLINT: until the letter is there
    }
    expect_missed(11);
    const Save next = ranks[0].save(30'000);
    EXPECT_TRUE(ranks[1].save(30'000).wait(kLimit).ok());
    EXPECT_TRUE(next.wait(kLimit).ok());
    announce(20'000);  // the last step it asks for, and then it ends
    EXPECT_TRUE(ranks[1].finish(kLimit).ok());
}

// How long the calls of a training loop take: printed, not asserted.
TEST_F(AGang, TakesLittleTimeForProgress) {
    auto gang = Gang::join().value();
    constexpr int kCalls = 1'000'000;
    auto time = [&](const char* what, auto&& call) {
        const auto begun = std::chrono::steady_clock::now();
        for (int i = 0; i < kCalls; ++i) call(static_cast<std::uint64_t>(i));
        const double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begun).count() / kCalls;
        fmt::print("{} {:.0f} ns\n", what, ns);
    };
    time("progress()", [&](std::uint64_t step) { gang.progress(step, {.samples = 1, .loss = 1}); });
    time("data_wait()", [&](std::uint64_t) { const auto waiting = gang.data_wait(); });
    time("should_stop()", [&](std::uint64_t) { (void)gang.should_stop(); });
}

Result<Place> place_of(const std::map<std::string, std::string>& variables) {
    return read_place([&](const char* name) { return variables.contains(name) ? variables.at(name).c_str() : nullptr; }, "key");
}

TEST(APlace, IsReadFromTheRunnersVariables) {
    const std::map<std::string, std::string> good{{"GANGLINE_WORKER_SOCKET", "s"}, {"GANGLINE_JOB_ID", "7"}, {"GANGLINE_ATTEMPT", "3"},
                                                  {"GANGLINE_CHECKPOINT_DIR", "/c/job-7"}, {"RANK", "2"}, {"WORLD_SIZE", "4"}};
    const auto place = place_of(good);
    ASSERT_TRUE(place.ok()) << place.error().message;
    EXPECT_EQ(place->rank, 2u);
    EXPECT_EQ(place->job, 7u);
    EXPECT_EQ(place->checkpoint_folder, "/c/job-7");
    EXPECT_FALSE(place->restore.has_value());
    auto shared = good;
    shared["GANGLINE_CHECKPOINT_DIR"] = "/mine/";  // two jobs in one folder are kept apart
    EXPECT_EQ(place_of(shared)->checkpoint_folder, "/mine/job-7");
    for (const auto& [name, value] : std::map<std::string, std::string>{{"RANK", "4"}, {"RANK", "-1"}, {"WORLD_SIZE", "0"}, {"WORLD_SIZE", "x"},
                                                                        {"GANGLINE_ATTEMPT", "1.5"}, {"GANGLINE_JOB_ID", ""},
                                                                        {"GANGLINE_RESTORE_STEP", "5"}}) {
        auto bad = good;
        bad[name] = value;
        const auto refused = place_of(bad);
        ASSERT_FALSE(refused.ok()) << name;
        EXPECT_NE(refused.error().message.find(name == "GANGLINE_RESTORE_STEP" ? "SHA256" : name), std::string::npos) << refused.error().message;
    }
}

TEST(APlace, KnowsWhomToAskForKeepers) {
    std::map<std::string, std::string> given{{"GANGLINE_WORKER_SOCKET", "s"}, {"GANGLINE_JOB_ID", "7"}, {"GANGLINE_ATTEMPT", "2"}, {"GANGLINE_CHECKPOINT_DIR", "/c"},
                                             {"RANK", "2"}, {"WORLD_SIZE", "4"}, {"GANGLINE_RESTORE_STEP", "5"}, {"GANGLINE_RESTORE_ATTEMPT", "1"},
                                             {"GANGLINE_RESTORE_SHA256", "memory"}, {"GANGLINE_REPLICA_RANK", "3"}, {"GANGLINE_RESTORE_FROM", "0-7@0+3,8-15@2"}};
    const auto place = place_of(given);
    ASSERT_TRUE(place.ok()) << place.error().message;
    EXPECT_EQ(place->replica_rank, 3u);
    ASSERT_EQ(place->snapshots_from.size(), 2u);
    EXPECT_EQ(place->snapshots_from[0].last, 7u);
    EXPECT_EQ(place->snapshots_from[0].ranks, (std::vector<std::uint32_t>{0, 3}));
    EXPECT_EQ(place->snapshots_from[1].first, 8u);
    given["GANGLINE_CHECKPOINT_REPLICAS"] = "0";
    EXPECT_FALSE(place_of(given)->replica_rank);
    for (const char* const bad : {"0-7", "0@1", "a-7@1", "0-7@x", "0-7@1+", "-@"}) {
        given["GANGLINE_RESTORE_FROM"] = bad;
        const auto refused = place_of(given);
        ASSERT_FALSE(refused.ok()) << bad;
        EXPECT_NE(refused.error().message.find("GANGLINE_RESTORE_FROM"), std::string::npos);
    }
}

TEST(APlace, OutsideGanglineIsThatOfMpiOrOfTheUsualVariables) {
    EXPECT_EQ(place_of({})->size, 1u);
    EXPECT_EQ(place_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}})->rank, 1u);
    const auto mpi = place_of({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"PMIX_NAMESPACE", "77"}});
    EXPECT_EQ(mpi->rank, 3u);
    EXPECT_EQ(mpi->worker_socket, "gangline-alone-77");
    EXPECT_EQ(mpi->checkpoint_folder, "gangline-checkpoints");
    EXPECT_FALSE(place_of({{"RANK", "1"}}).ok());
}

}  // namespace
}  // namespace gangline
