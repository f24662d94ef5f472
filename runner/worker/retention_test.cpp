// Which checkpoints of a program stay, and what lies beside them.

#include "checkpoint/marks.h"
#include "runner/worker/place.h"
#include "runner/worker/test_gang.h"

namespace gangline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ItsCheckpoints : public AGang {
  protected:
    std::vector<std::uint64_t> steps() const {
        std::vector<std::uint64_t> found;
        for (const auto& id : checkpoint::Store::open(folder_ + "/job-7").value().published()) found.push_back(id.step);
        return found;
    }
    void pin(std::uint64_t step, std::uint32_t attempt) const {
        const Fd folder(::open(saved(step, attempt).c_str(), O_RDONLY | O_DIRECTORY));
        ASSERT_TRUE(checkpoint::pin(checkpoint::real_disk(), folder.get()).ok());
    }
    void verify(std::uint64_t step, std::uint32_t attempt) const {
        const Fd folder(::open(saved(step, attempt).c_str(), O_RDONLY | O_DIRECTORY));
        ASSERT_TRUE(checkpoint::mark_verified(checkpoint::real_disk(), folder.get(), 12345).ok());
    }
};

TEST_F(ItsCheckpoints, AreToldToTheCoordinatorWithMetricPinsAndProofs) {
    FakeShepherd shepherd(socket_);
    shepherd.keep_every = 10;
    in_gangline(0, 1);
    auto gang = Gang::join().value();
    std::uint64_t state = 1;
    ASSERT_TRUE(gang.track("state", &state, {}).ok());
    const auto save = [&](std::uint64_t step, std::optional<double> metric) {
        EXPECT_TRUE(gang.save(step, {.metric = metric}).wait(kLimit).ok());
        const auto letter = decode_commit(shepherd.wait_for(WorkerKind::Commit).payload);
        EXPECT_TRUE(letter.has_value());
        return letter.value_or(CommitLetter{});
    };
    CommitLetter first = save(10, 0.25);
    EXPECT_EQ(first.metric, std::optional(0.25));
    EXPECT_TRUE(first.marks.empty());
    save(20, {});
    verify(10, 3);
    pin(10, 3);
    verify(20, 3);
    const CommitLetter letter = save(25, std::nullopt);
    EXPECT_FALSE(letter.metric);
    ASSERT_EQ(letter.marks.size(), 2u);
    EXPECT_EQ(letter.marks[0].step, 10u);
    EXPECT_TRUE(letter.marks[0].is_pinned && !letter.marks[0].is_verified);  // the newest verified one is enough
    EXPECT_EQ(letter.marks[1].step, 20u);
    EXPECT_EQ(letter.marks[1].attempt, 3u);
    EXPECT_TRUE(!letter.marks[1].is_pinned && letter.marks[1].is_verified);
    save(26, {});  // the answer names the newest alone, and each tenth
    ASSERT_TRUE(gang.finish(kLimit).ok());
    EXPECT_THAT(steps(), ElementsAre(10, 20, 26));
}

TEST_F(ItsCheckpoints, StayByTheProgramsOwnRuleWhenItIsAlone) {
    set("GANGLINE_KEEP_LAST", "2");
    set("GANGLINE_KEEP_EVERY", "4");
    set("GANGLINE_KEEP_BEST", "1");
    std::uint64_t state = 0;
    const std::vector<double> losses{9, 8, 1, 7, 6, 5, 4, 3, 2, 2};
    const auto run = [&](std::uint64_t from, std::uint64_t to) {
        auto gang = Gang::join().value();
        ASSERT_TRUE(gang.track("state", &state, {}).ok());
        ASSERT_TRUE(gang.restore().ok());
        for (std::uint64_t step = from; step <= to; ++step) {
            ASSERT_TRUE(gang.save(step, {.metric = losses[step - 1]}).wait(kLimit).ok());
            if (step == 6) pin(5, 0);
        }
        ASSERT_TRUE(gang.finish(kLimit).ok());
    };
    run(1, 7);
    EXPECT_THAT(steps(), ElementsAre(3, 4, 5, 6, 7));  // best, every, pinned, last
    run(8, 10);                                        // another program: what was best is read from the manifests
    EXPECT_THAT(steps(), ElementsAre(3, 4, 5, 8, 9, 10));
    std::ifstream rule(folder_ + "/job-7/.retention");
    std::string text;
    std::getline(rule, text);
    EXPECT_EQ(text, "last=2 every=4 best=1 best_is=lower");
}

TEST_F(ItsCheckpoints, HaveAViewBesideTheirShardsUnlessItIsSwitchedOff) {
    std::vector<float> weights(64);
    for (const bool is_on : {true, false}) {
        if (!is_on) set("GANGLINE_CHECKPOINT_VIEW", "0");
        const std::uint64_t step = is_on ? 1 : 2;
        auto gang = Gang::join().value();
        ASSERT_TRUE(gang.track("weights", weights.data(), {64}).ok());
        ASSERT_TRUE(gang.restore().ok());
        gang.save(step);
        ASSERT_TRUE(gang.finish(kLimit).ok());  // waits for it
        EXPECT_EQ(fs::exists(saved(step, 0) + "/view.h5"), is_on);
    }
    auto gang = Gang::join().value();
    ASSERT_TRUE(gang.track("weights", weights.data(), {64}).ok());
    for (std::uint64_t step = 3; step <= 6; ++step) ASSERT_TRUE(gang.save(step).wait(kLimit).ok());
    ASSERT_TRUE(gang.finish(kLimit).ok());
    EXPECT_FALSE(fs::exists(saved(1, 0)));  // a view does not keep its folder from going
}

TEST_F(ItsCheckpoints, AreReadBackAndADamagedOneIsToldAndSetAsideWithoutStoppingAnything) {
    FakeShepherd shepherd(socket_);
    shepherd.keep_every = 10;
    std::vector<std::uint64_t> state(10'000, 5);
    const auto save = [&](std::uint32_t attempt, std::uint64_t step, const std::function<void()>& meanwhile) {
        in_gangline(0, 1, attempt);
        auto gang = Gang::join().value();
        ASSERT_TRUE(gang.track("state", state.data(), {state.size()}).ok());
        ASSERT_TRUE(gang.save(step).wait(kLimit).ok());
        meanwhile();
        ASSERT_TRUE(gang.save(step + 1).wait(kLimit).ok());  // trains on
        ASSERT_TRUE(gang.finish(kLimit).ok());
    };
    save(3, 10, [] {});
    EXPECT_FALSE(checkpoint::Store::open(folder_ + "/job-7")->marks({10, 3}).verified_unix_s);
    {
        std::fstream shard(saved(10, 3) + "/shard-00000-of-00001.h5", std::ios::in | std::ios::out | std::ios::binary);
        shard.seekp(-100, std::ios::end);
        shard.put('x');
    }
    set("GANGLINE_CHECKPOINT_SCRUB", "1000");
    save(4, 20, [&] {
        const Frame found = shepherd.wait_for(WorkerKind::DamagedAtRest);
        EXPECT_EQ(found.header.step, 10u);
        EXPECT_EQ(found.header.attempt, 3u);
        EXPECT_THAT(found.payload, HasSubstr("shard-00000-of-00001.h5: block 0"));
    });
    EXPECT_THAT(steps(), ElementsAre(20, 21));
    EXPECT_TRUE(fs::exists(folder_ + "/job-7/.bad-" + checkpoint::folder_name({10, 3}) + "/MANIFEST"));
}

TEST_F(ItsCheckpoints, ThatWereSetAsideAreNotPassedOverInSilence) {
    std::uint64_t state = 0;
    const auto restore = [&] {
        auto gang = Gang::join().value();
        EXPECT_TRUE(gang.track("state", &state, {}).ok());
        return gang.restore();
    };
    {
        auto gang = Gang::join().value();
        ASSERT_TRUE(gang.track("state", &state, {}).ok());
        for (const std::uint64_t step : {1u, 2u}) ASSERT_TRUE(gang.save(step).wait(kLimit).ok());
        ASSERT_TRUE(gang.finish(kLimit).ok());
    }
    const auto store = checkpoint::Store::open(folder_ + "/job-7");
    ASSERT_TRUE(store->set_aside({2, 0}).ok());
    testing::internal::CaptureStderr();
    EXPECT_EQ(restore().value(), std::optional<std::uint64_t>(1));
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("step 2 was found damaged and set aside: this run goes on from step 1"));
    ASSERT_TRUE(store->set_aside({1, 0}).ok());
    const auto none = restore();
    ASSERT_FALSE(none.ok());
    EXPECT_THAT(none.error().message, HasSubstr("each checkpoint was found damaged"));
}

// At a mebibyte a second this save would take a quarter of a minute; finish() waits for it, so it is not held back any more.
TEST_F(ItsCheckpoints, AreWrittenWithinALimitUntilSomebodyWaits) {
    set("GANGLINE_CHECKPOINT_WRITE_MIB_S", "1");
    std::vector<std::uint64_t> state(2'000'000, 5);
    auto gang = Gang::join().value();
    ASSERT_TRUE(gang.track("state", state.data(), {state.size()}).ok());
    const Save save = gang.save(1);
    EXPECT_FALSE(save.is_done());
    ASSERT_TRUE(gang.finish(kLimit).ok());
    EXPECT_TRUE(save.is_done());
    EXPECT_THAT(steps(), ElementsAre(1));
}

TEST(ARuleOfThePlace, IsReadFromVariablesAndRefusedInWords) {
    const auto place_of = [](std::map<std::string, std::string> variables) {
        return read_place([variables = std::move(variables)](const char* name) { return variables.contains(name) ? variables.at(name).c_str() : nullptr; }, "1");
    };
    EXPECT_EQ(place_of({})->rule, RetentionRule{});
    EXPECT_EQ(place_of({})->scrub_mib_s, 32u);
    EXPECT_EQ(place_of({{"GANGLINE_CHECKPOINT_SCRUB", "0"}})->scrub_mib_s, 0u);
    EXPECT_EQ(place_of({{"GANGLINE_CHECKPOINT_WRITE_MIB_S", "250"}})->write_mib_s, 250u);
    EXPECT_THAT(place_of({{"GANGLINE_CHECKPOINT_SCRUB", "fast"}}).error().message, HasSubstr("GANGLINE_CHECKPOINT_SCRUB='fast' must be a number from 0 to 1000000 (MiB a second"));
    EXPECT_THAT(place_of({{"GANGLINE_CHECKPOINT_WRITE_MIB_S", "-1"}}).error().message, HasSubstr("(0: no limit)"));
    EXPECT_EQ(place_of({{"GANGLINE_KEEP_LAST", "5"}, {"GANGLINE_KEEP_EVERY", "100"}, {"GANGLINE_KEEP_BEST", "2"}, {"GANGLINE_BEST_IS", "higher"}})->rule,
              (RetentionRule{.last = 5, .every = 100, .best = 2, .higher_is_better = true}));
    for (const char* few : {"0", "1"}) {
        EXPECT_THAT(place_of({{"GANGLINE_KEEP_LAST", few}}).error().message, HasSubstr("from 2 to 1000; two checkpoints at least stay"));
    }
    EXPECT_THAT(place_of({{"GANGLINE_KEEP_BEST", "-1"}}).error().message, HasSubstr("GANGLINE_KEEP_BEST='-1'"));
    EXPECT_THAT(place_of({{"GANGLINE_BEST_IS", "best"}}).error().message, HasSubstr("lower or higher"));
}

}  // namespace
}  // namespace gangline
