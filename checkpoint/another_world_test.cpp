// Each rank's own state in gangs of another size: dealt out anew, given up aloud, or refused.

#include "checkpoint/another_world.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include "base/process.h"
#include "checkpoint/shard.h"
#include "checkpoint/store.h"

namespace gangline::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// What rank `rank` of `world` has: a counter and a list that can be dealt out anew, random state, a timing that may go, and
// a part of what all have together. The list has rank % 3 entries.
struct Own {
    Own(std::uint32_t rank, std::uint32_t world, std::uint64_t seed) : list(rank % 3) {
        counter = seed * 1000 + rank;
        std::iota(list.begin(), list.end(), static_cast<std::uint32_t>(seed * 100 + rank * 10));
        rng.assign(5, static_cast<std::uint8_t>(seed + rank));
        timing = static_cast<double>(seed) + rank / 16.0;
        const std::uint64_t begin = 40ull * rank / world, count = 40ull * (rank + 1) / world - begin;
        slice.resize(count);
        for (std::uint64_t i = 0; i < count; ++i) slice[i] = static_cast<float>(seed + begin + i);
        tensors = {{"data/counter", DType::U64, Policy::Splittable, {}, {}, {}, &counter},
                   {"data/list", DType::U32, Policy::Splittable, {list.size()}, {0}, {list.size()}, list.data()},
                   {"rng", DType::U8, Policy::PerRank, {5}, {0}, {5}, rng.data()},
                   {"timing", DType::F64, Policy::Drop, {}, {}, {}, &timing},
                   {"weights", DType::F32, Policy::Sliced, {40}, {begin}, {count}, slice.data()}};
    }
    Own(const Own&) = delete;
    Own& operator=(const Own&) = delete;
    std::uint64_t counter = 0;
    std::vector<std::uint32_t> list;
    std::vector<std::uint8_t> rng;
    double timing = 0;
    std::vector<float> slice;
    std::vector<Tensor> tensors;
};

class AnotherWorldSize : public ::testing::Test {
  protected:
    AnotherWorldSize() : root_((fs::temp_directory_path() / ("gangline-world-" + random_hex(6))).string()) {}
    ~AnotherWorldSize() override { fs::remove_all(root_); }

    // `tensors_of(rank)`: what that rank tracks; it must live until the call returns.
    template <class TensorsOf>
    Checkpoint write(std::uint32_t world, const TensorsOf& tensors_of) {
        const CheckpointId id{++step_, 1};
        const Store store = Store::open(root_).value();
        std::vector<Sha256> parts;
        for (std::uint32_t rank = 0; rank < world; ++rank) {
            const auto mine = tensors_to_write(tensors_of(rank), rank, world);
            const auto part = write_shard(store.temporary(id)->get(), {7, id.step, id.attempt, rank, world, mine});
            EXPECT_TRUE(part.ok()) << part.error().message;
            parts.push_back(store.write_part(id, part.value()).value().digest);
        }
        const Sealed sealed = store.write_manifest(id, parts).value();
        EXPECT_TRUE(store.publish(id, sealed.digest).ok());
        return store.find(id, sealed.digest).value();
    }
    Checkpoint write_own(std::uint32_t world, std::uint64_t seed) {
        std::vector<std::unique_ptr<Own>> all;
        return write(world, [&](std::uint32_t rank) { return all.emplace_back(std::make_unique<Own>(rank, world, seed))->tensors; });
    }
    // Callbacks that write down what they get.
    AnotherWorld listening() {
        AnotherWorld ways;
        ways.splits["data/counter"] = [this](const Split& split) {
            counters_.clear();
            for (const OldRank& old : split.old) {
                EXPECT_EQ(old.rank, counters_.size());
                EXPECT_EQ(old.shape, Shape{});
                counters_.push_back(old.as<std::uint64_t>()[0]);
            }
            seen_ = {split.rank, split.world};
            return Result<void>();
        };
        ways.splits["data/list"] = [this](const Split& split) {
            lists_.clear();
            for (const OldRank& old : split.old) {
                EXPECT_EQ(old.shape, Shape{old.rank % 3});
                const auto values = old.as<std::uint32_t>();
                lists_.emplace_back(values.begin(), values.end());
            }
            return Result<void>();
        };
        ways.say = [this](const std::string& what) { said_.push_back(what); };
        return ways;
    }

    std::string root_;
    std::uint64_t step_ = 0;
    std::vector<std::uint64_t> counters_;
    std::vector<std::vector<std::uint32_t>> lists_;
    std::pair<std::uint32_t, std::uint32_t> seen_;
    std::vector<std::string> said_;
};

constexpr std::uint32_t kWorlds[] = {1, 2, 3, 4, 5, 8};

TEST_F(AnotherWorldSize, GivesTheSameSizeEverythingBackExactly) {
    for (const std::uint32_t world : kWorlds) {
        Checkpoint checkpoint = write_own(world, world);
        for (std::uint32_t rank = 0; rank < world; ++rank) {
            const Own expected(rank, world, world);
            Own read(rank, world, 77);
            AnotherWorld ways = listening();
            ways.given_up = {"*"};  // asked for another size only
            const auto restored = checkpoint.restore(read.tensors, rank, world, ways);
            ASSERT_TRUE(restored.ok()) << restored.error().message;
            EXPECT_EQ(read.counter, expected.counter);
            EXPECT_EQ(read.list, expected.list);
            EXPECT_EQ(read.rng, expected.rng);
            EXPECT_EQ(read.timing, expected.timing);
            EXPECT_EQ(read.slice, expected.slice);
        }
    }
    EXPECT_TRUE(counters_.empty() && lists_.empty() && said_.empty());
}

TEST_F(AnotherWorldSize, HearsWhatEveryOldRankHadAndSaysWhatItGaveUp) {
    for (const std::uint32_t saved : kWorlds) {
        Checkpoint checkpoint = write_own(saved, saved);
        for (const std::uint32_t world : kWorlds) {
            for (std::uint32_t rank = 0; world != saved && rank < world; ++rank) {
                const Own before(rank, world, 77);
                const Own expected(rank, world, saved);
                Own read(rank, world, 77);
                AnotherWorld ways = listening();
                ways.given_up = {"rng"};
                said_.clear();
                const auto restored = checkpoint.restore(read.tensors, rank, world, ways);
                ASSERT_TRUE(restored.ok()) << restored.error().message;
                EXPECT_EQ(read.slice, expected.slice);
                EXPECT_EQ(read.rng, before.rng);
                EXPECT_EQ(read.timing, before.timing);
                EXPECT_EQ(seen_, std::pair(rank, world));
                ASSERT_EQ(counters_.size(), saved);
                ASSERT_EQ(lists_.size(), saved);
                for (std::uint32_t old = 0; old < saved; ++old) {
                    const Own theirs(old, saved, saved);
                    EXPECT_EQ(counters_[old], theirs.counter);
                    EXPECT_EQ(lists_[old], theirs.list);
                }
                ASSERT_EQ(said_.size(), 1u);
                EXPECT_THAT(said_[0], HasSubstr(fmt::format("is of {} ranks, this gang has {}: not restored, as the program has made them: 'rng', 'timing'", saved, world)));
            }
        }
    }
}

TEST_F(AnotherWorldSize, IsRefusedWithTheWaysOutAndNothingIsTouched) {
    Checkpoint checkpoint = write_own(4, 1);
    for (const std::uint32_t world : {1u, 3u, 5u}) {
        Own read(0, world, 77);
        const auto refused = checkpoint.restore(read.tensors, 0, world, {});
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().code, Code::Refused);
        EXPECT_THAT(refused.error().message, HasSubstr(fmt::format("each of the 4 ranks that saved it has its own 'data/counter', 'data/list', 'rng', and this gang has {}: "
                                                                   "run with 4 ranks; or track them as Splittable", world)));
        EXPECT_THAT(refused.error().message, HasSubstr("or set GANGLINE_RESEED=data/counter,data/list,rng in the job's environment"));
        EXPECT_EQ(read.slice, Own(0, world, 77).slice);
        EXPECT_EQ(read.counter, 77'000u);
    }
    Own read(0, 3, 77);
    AnotherWorld ways = listening();
    ways.given_up = {"data/list"};
    const auto one_left = checkpoint.restore(read.tensors, 0, 3, ways);
    ASSERT_FALSE(one_left.ok());
    EXPECT_THAT(one_left.error().message, HasSubstr("has its own 'rng', and"));
    EXPECT_TRUE(said_.empty());
    ways.given_up = {"*"};
    EXPECT_TRUE(checkpoint.restore(read.tensors, 0, 3, ways).ok());
    EXPECT_EQ(read.counter, 77'000u);
    EXPECT_EQ(read.slice, Own(0, 3, 1).slice);
    ASSERT_EQ(said_.size(), 1u);
    EXPECT_THAT(said_[0], HasSubstr("'data/counter', 'data/list', 'rng', 'timing'"));
}

TEST_F(AnotherWorldSize, NamesManyTensorsShortly) {
    std::vector<std::uint8_t> bytes(40);
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < bytes.size(); ++i) tensors.push_back({fmt::format("rng{:02}", i), DType::U8, Policy::PerRank, {}, {}, {}, &bytes[i]});
    Checkpoint checkpoint = write(2, [&](std::uint32_t) { return tensors; });
    const auto refused = checkpoint.restore(tensors, 0, 1, {});
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, HasSubstr("'rng07' and 32 more"));
    EXPECT_THAT(refused.error().message, HasSubstr("GANGLINE_RESEED='*'"));
}

TEST_F(AnotherWorldSize, GoesByHowTheProgramTracksItNow) {
    Checkpoint checkpoint = write_own(4, 1);
    Own read(1, 2, 77);
    read.tensors[0].policy = Policy::Drop;
    read.tensors[1].policy = Policy::Drop;
    read.tensors[2].policy = Policy::Splittable;
    AnotherWorld ways = listening();
    std::string heard;
    ways.splits["rng"] = [&](const Split& split) {
        for (const OldRank& old : split.old) heard += static_cast<char>('0' + old.as<std::uint8_t>()[4]);
        return Result<void>();
    };
    const auto restored = checkpoint.restore(read.tensors, 1, 2, ways);
    ASSERT_TRUE(restored.ok()) << restored.error().message;
    EXPECT_EQ(heard, "1234");
    EXPECT_TRUE(counters_.empty());
    ASSERT_EQ(said_.size(), 1u);
    EXPECT_THAT(said_[0], HasSubstr("'data/counter', 'data/list', 'timing'"));
    read.tensors[4] = {"weights", DType::F32, Policy::Drop, {20}, {0}, {20}, read.slice.data()};  // what all have together is not each rank's own
    const auto refused = checkpoint.restore(read.tensors, 1, 2, ways);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, HasSubstr("'weights' was saved as sliced and is tracked as drop"));
}

TEST_F(AnotherWorldSize, EndsWithTheWordsOfACallbackThatRefuses) {
    Checkpoint checkpoint = write_own(4, 1);
    Own read(0, 2, 77);
    AnotherWorld ways = listening();
    ways.given_up = {"rng"};
    ways.splits["data/list"] = [](const Split&) { return Result<void>(Error{Code::Damaged, "no list may be longer than 3"}); };
    const auto refused = checkpoint.restore(read.tensors, 0, 2, ways);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::Refused);
    EXPECT_THAT(refused.error().message, HasSubstr("'data/list' out of what 4 ranks had: no list may be longer than 3"));
    EXPECT_TRUE(said_.empty());
}

TEST_F(AnotherWorldSize, HearsNothingOfADamagedShard) {
    Checkpoint checkpoint = write_own(4, 1);
    {
        const std::string shard = fmt::format("{}/{}/{}", root_, folder_name({1, 1}), shard_name(3, 4));
        std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(300);
        file.put('?');
    }
    Own read(0, 2, 77);
    AnotherWorld ways = listening();
    ways.given_up = {"rng"};
    const auto damaged = checkpoint.restore(read.tensors, 0, 2, ways);
    ASSERT_FALSE(damaged.ok());
    EXPECT_EQ(damaged.error().code, Code::Damaged);
    EXPECT_TRUE(counters_.empty() && lists_.empty() && said_.empty());
}

TEST_F(AnotherWorldSize, OpensFewShardsAtOnceOfAWideGang) {
    std::vector<std::uint64_t> values(150);
    std::iota(values.begin(), values.end(), 1000u);
    Checkpoint checkpoint = write(150, [&](std::uint32_t rank) { return std::vector<Tensor>{{"counter", DType::U64, Policy::Splittable, {}, {}, {}, &values[rank]}}; });
    const pid_t child = ::fork();
    if (child == 0) {
        const rlimit limit{200, 200};
        ::setrlimit(RLIMIT_NOFILE, &limit);
        std::uint64_t sum = 0;
        const std::vector<Tensor> wanted{{"counter", DType::U64, Policy::Splittable, {}, {}, {}, &sum}};
        AnotherWorld ways;
        ways.splits["counter"] = [&](const Split& split) {
            for (const OldRank& old : split.old) sum += old.as<std::uint64_t>()[0];
            return Result<void>();
        };
        const auto restored = checkpoint.restore(wanted, 0, 1, ways);
        if (!restored) fmt::print(stderr, "{}\n", restored.error().message);
        ::_exit(restored.ok() && sum == std::accumulate(values.begin(), values.end(), std::uint64_t{0}) ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

// ---- the position in the data stays exact through any sequence of sizes

// How many samples this rank has taken, and which of its own are left, in a buffer of fixed size.
struct Position {
    static constexpr std::uint32_t kMost = 1000;
    std::uint64_t taken = 0;
    std::uint32_t left = 0;
    std::vector<std::uint32_t> samples = std::vector<std::uint32_t>(kMost);

    std::vector<Tensor> tensors() {
        return {{"taken", DType::U64, Policy::Splittable, {}, {}, {}, &taken},
                {"left", DType::U32, Policy::Splittable, {kMost + 1}, {0}, {kMost + 1}, packed()}};
    }
    void* packed() {
        buffer.assign(1, left);
        buffer.insert(buffer.end(), samples.begin(), samples.end());
        return buffer.data();
    }
    void unpack() {
        left = buffer[0];
        std::copy(buffer.begin() + 1, buffer.end(), samples.begin());
    }
    AnotherWorld ways() {
        AnotherWorld ways;
        ways.splits["taken"] = [this](const Split& split) {
            std::uint64_t all = 0;
            for (const OldRank& old : split.old) all += old.as<std::uint64_t>()[0];
            taken = all / split.world + (split.rank < all % split.world ? 1 : 0);
            return Result<void>();
        };
        ways.splits["left"] = [this](const Split& split) {
            std::uint32_t at = 0;
            buffer.assign(kMost + 1, 0);
            for (const OldRank& old : split.old) {
                const auto theirs = old.as<std::uint32_t>();
                for (std::uint32_t i = 0; i < theirs[0]; ++i, ++at) {
                    if (at % split.world == split.rank) buffer[++buffer[0]] = theirs[1 + i];
                }
            }
            return Result<void>();
        };
        return ways;
    }
    std::vector<std::uint32_t> buffer;
};

TEST_F(AnotherWorldSize, NeitherLosesNorRepeatsASampleThroughAnySequenceOfSizes) {
    std::mt19937 random(11);
    std::vector<std::uint32_t> sizes{4, 3, 8};
    for (int i = 0; i < 12; ++i) sizes.push_back(1 + random() % 8);
    std::vector<Position> gang(sizes[0]);
    for (std::uint32_t sample = 0; sample < Position::kMost; ++sample) {
        Position& rank = gang[sample % gang.size()];
        rank.samples[rank.left++] = sample;
    }
    std::vector<std::uint32_t> visited;
    for (std::size_t i = 1; i < sizes.size(); ++i) {
        for (Position& rank : gang) {
            for (auto take = random() % 12; take > 0 && rank.left > 0; --take, ++rank.taken) visited.push_back(rank.samples[--rank.left]);
        }
        Checkpoint checkpoint = write(static_cast<std::uint32_t>(gang.size()), [&](std::uint32_t rank) { return gang[rank].tensors(); });
        gang = std::vector<Position>(sizes[i]);
        std::uint64_t taken = 0;
        std::vector<std::uint32_t> all = visited;
        for (std::uint32_t rank = 0; rank < gang.size(); ++rank) {
            const auto tensors = gang[rank].tensors();
            const auto restored = checkpoint.restore(tensors, rank, sizes[i], gang[rank].ways());
            ASSERT_TRUE(restored.ok()) << restored.error().message;
            gang[rank].unpack();
            taken += gang[rank].taken;
            all.insert(all.end(), gang[rank].samples.begin(), gang[rank].samples.begin() + gang[rank].left);
        }
        EXPECT_EQ(taken, visited.size()) << "after size " << sizes[i - 1] << " to " << sizes[i];
        std::sort(all.begin(), all.end());
        ASSERT_EQ(all.size(), Position::kMost) << "after size " << sizes[i - 1] << " to " << sizes[i];
        for (std::uint32_t sample = 0; sample < Position::kMost; ++sample) ASSERT_EQ(all[sample], sample);
    }
    EXPECT_GT(visited.size(), 100u);
}

}  // namespace
}  // namespace gangline::checkpoint
