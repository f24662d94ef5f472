// Each rank's own state through the worker library, in gangs of other sizes.

#include <numeric>

#include "runner/worker/place.h"
#include "runner/worker/test_gang.h"

namespace gangline {
namespace {

using ::testing::HasSubstr;

// One rank's state: its samples (dealt out anew), its random state (its own), its timing (may go).
struct Rank {
    explicit Rank(Gang joined) : gang(std::move(joined)) {}
    Result<void> track(Policy random_policy = Policy::PerRank) {
        if (auto done = gang.track("samples", &samples, {}, Policy::Splittable, [this](const Split& split) {
                std::uint64_t all = 0;
                for (const auto& old : split.old) all += old.as<std::uint64_t>()[0];
                samples = all / split.world + (split.rank < all % split.world ? 1 : 0);
                return Result<void>();
            }); !done) return done;
        if (auto done = gang.track("rng", &random, {}, random_policy); !done) return done;
        return gang.track("timing", &timing, {}, Policy::Drop);
    }
    Gang gang;
    std::uint64_t samples = 0;
    std::uint32_t random = 5;
    double timing = 0.5;
};

class OwnState : public AGang {
  protected:
    std::vector<std::unique_ptr<Rank>> join(FakeShepherd& shepherd, std::uint32_t size, std::uint32_t attempt) {
        std::vector<std::unique_ptr<Rank>> ranks;
        for (std::uint32_t rank = 0; rank < size; ++rank) {
            in_gangline(rank, size, attempt);
            ranks.push_back(std::make_unique<Rank>(Gang::join().value()));
            shepherd.wait_for(WorkerKind::Join);
        }
        return ranks;
    }
    // All ranks save, and the next gang is to restore that.
    void save(FakeShepherd& shepherd, std::vector<std::unique_ptr<Rank>>& ranks, std::uint64_t step) {
        std::vector<Save> saves;
        for (auto& rank : ranks) saves.push_back(rank->gang.save(step));
        for (const Save& one : saves) {
            const auto outcome = one.wait(kLimit);
            ASSERT_TRUE(outcome.ok()) << outcome.error().message;
        }
        const Frame commit = shepherd.wait_for(WorkerKind::Commit);
        checkpoint::Sha256 sha{};
        std::memcpy(sha.data(), commit.payload.data(), sha.size());
        set("GANGLINE_RESTORE_STEP", std::to_string(step));
        set("GANGLINE_RESTORE_ATTEMPT", std::to_string(ranks[0]->gang.attempt()));
        set("GANGLINE_RESTORE_SHA256", checkpoint::to_hex(sha));
    }
};

TEST_F(OwnState, StaysExactInCountAndIsGivenUpAloudAsTheGangChangesItsSize) {
    FakeShepherd shepherd(socket_);
    set("GANGLINE_RESEED", "rng");
    auto ranks = join(shepherd, 4, 1);
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
        ASSERT_TRUE(ranks[rank]->track().ok());
        ranks[rank]->samples = 1000 + rank;
        ranks[rank]->random = rank;
    }
    save(shepherd, ranks, 10);
    std::uint32_t before = 4;
    std::uint32_t attempt = 1;
    for (const std::uint32_t size : {3u, 8u, 8u}) {
        ranks = join(shepherd, size, ++attempt);
        std::uint64_t all = 0;
        for (std::uint32_t rank = 0; rank < size; ++rank) {
            ASSERT_TRUE(ranks[rank]->track().ok());
            const auto restored = ranks[rank]->gang.restore();
            ASSERT_TRUE(restored.ok()) << restored.error().message;
            EXPECT_EQ(ranks[rank]->random, size == before ? rank : 5u);
            all += ranks[rank]->samples;
            ranks[rank]->random = rank;
        }
        EXPECT_EQ(all, 4006u);
        if (size != before) {
            const std::string said = shepherd.wait_for(WorkerKind::Fault).payload;
            EXPECT_THAT(said, HasSubstr(fmt::format("is of {} ranks, this gang has {}: not restored, as the program has made them: 'rng', 'timing'", before, size)));
        }
        save(shepherd, ranks, 10 * (attempt + 1));
        EXPECT_EQ(shepherd.count(WorkerKind::Fault), 0u);  // once a gang, and not at the same size
        before = size;
    }
}

TEST_F(OwnState, OfAnotherSizeIsRefusedWithoutAWayOut) {
    FakeShepherd shepherd(socket_);
    auto ranks = join(shepherd, 2, 1);
    for (auto& rank : ranks) ASSERT_TRUE(rank->track().ok());
    save(shepherd, ranks, 10);
    ranks = join(shepherd, 1, 2);
    ASSERT_TRUE(ranks[0]->track().ok());
    const auto refused = ranks[0]->gang.restore();
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::Refused);
    EXPECT_THAT(refused.error().message, HasSubstr("GANGLINE_RESEED=rng in the job's environment"));
    EXPECT_EQ(shepherd.count(WorkerKind::Fault), 0u);
}

TEST_F(OwnState, HasACallbackOnlyWhereItIsSplittable) {
    Gang gang = Gang::join().value();
    std::uint32_t value = 0;
    const auto refused = gang.track("value", &value, {}, Policy::Drop, [](const Split&) { return Result<void>(); });
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, HasSubstr("'value'"));
    EXPECT_TRUE(gang.track("value", &value, {}, Policy::Splittable).ok());
}

TEST(TheVariableReseed, IsAListOfNames) {
    const auto names_of = [](const char* text) {
        return read_place([&](const char* name) { return name == std::string("GANGLINE_RESEED") ? text : nullptr; }, "key")->reseed;
    };
    EXPECT_TRUE(names_of(nullptr).empty());
    EXPECT_TRUE(names_of("").empty());
    EXPECT_THAT(names_of("rng,data/left over,"), ::testing::ElementsAre("data/left over", "rng"));
}

}  // namespace
}  // namespace gangline
