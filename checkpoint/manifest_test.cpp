#include "checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace gangline::checkpoint {
namespace {

Manifest part(std::uint32_t rank, std::uint32_t world) {
    Manifest manifest;
    manifest.job = 7;
    manifest.step = 100;
    manifest.attempt = 3;
    manifest.world = world;
    manifest.block_bytes = 8u << 20;
    manifest.shards.push_back({rank, shard_name(rank, world), 20'000'000, {1, 2, 3}});
    manifest.tensors.push_back({"model/sliced", DType::F32, Policy::Sliced, {world * 10, 4},
                                {Box{rank, 4096, {rank * 10, 0}, {10, 4}}}});
    manifest.tensors.push_back({"rng", DType::U8, Policy::PerRank, {5}, {Box{rank, 8192, {0}, {5}}}});
    if (rank == 0) manifest.tensors.push_back({"step", DType::I64, Policy::Replicated, {}, {Box{rank, 9000, {}, {}}}});
    return manifest;
}

Manifest whole(std::uint32_t world) {
    std::vector<Manifest> parts;
    for (std::uint32_t rank = 0; rank < world; ++rank) parts.push_back(part(rank, world));
    return merge(parts).value();
}

TEST(AManifest, ComesBackAsItWasWritten) {
    const Manifest written = whole(3);
    const std::string file = encode(written);
    const auto read = parse(file);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(encode(*read), file);
    EXPECT_EQ(read->job, 7u);
    EXPECT_EQ(read->step, 100u);
    EXPECT_EQ(read->attempt, 3u);
    EXPECT_TRUE(read->is_whole());
    EXPECT_EQ(read->total_bytes(), 60'000'000u);
    ASSERT_NE(read->tensor_of("model/sliced"), nullptr);
    EXPECT_EQ(read->tensor_of("model/sliced")->boxes.size(), 3u);
    EXPECT_EQ(read->tensor_of("absent"), nullptr);
    ASSERT_NE(read->shard_of(2), nullptr);
    EXPECT_EQ(read->shard_of(2)->block_crcs, (std::vector<std::uint32_t>{1, 2, 3}));
}

TEST(AManifest, CarriesTheMetricOfRankZeroAndIsTheOldFormWithoutOne) {
    const auto merged = [](std::optional<double> zero, std::optional<double> one) {
        std::vector<Manifest> parts{part(0, 2), part(1, 2)};
        parts[0].metric = zero;
        parts[1].metric = one;
        for (Manifest& each : parts) each.version = version_for(each);
        return merge(std::move(parts));
    };
    EXPECT_EQ(encode(merged({}, {}).value()), encode(whole(2)));
    EXPECT_EQ(encode(whole(2))[8], 1);
    EXPECT_EQ(merged({}, 7).error().code, Code::InvalidArgument);
    const std::string file = encode(merged(-0.125, {}).value());
    EXPECT_EQ(file[8], 3);
    EXPECT_EQ(file.size(), encode(whole(2)).size() + 8);
    const auto read = parse(file);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->metric, std::optional(-0.125));
    EXPECT_EQ(encode(*read), file);
    // The committer's way: parts' files, of which the tensors are merged once.
    Merger merger;
    for (const std::optional<double> metric : {std::optional<double>(2.5), std::optional<double>(), std::optional<double>(-1.0)}) {
        Manifest zero = part(0, 2);
        zero.metric = metric;
        const auto made = merger.merge({encode(zero), encode(part(1, 2))});
        ASSERT_TRUE(made.ok()) << made.error().message;
        EXPECT_EQ(made->head.metric, metric);
        EXPECT_EQ(parse(made->file)->metric, metric);
    }
}

TEST(AManifest, IsRefusedWhenItIsCutAnywhere) {
    const std::string file = encode(whole(2));
    for (std::size_t size = 0; size < file.size(); ++size) {
        const auto read = parse(std::string_view(file).substr(0, size));
        ASSERT_FALSE(read.ok()) << size;
        EXPECT_EQ(read.error().code, Code::Damaged);
        // The same with a seal that fits: the parser itself must notice, or read a shorter sane file.
        (void)parse(seal(file.substr(0, size)));
    }
}

TEST(AManifest, IsRefusedWhenAnyBitIsFlipped) {
    const std::string file = encode(whole(2));
    for (std::size_t bit = 0; bit < 8 * file.size(); bit += 3) {
        std::string flipped = file;
        flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
        EXPECT_FALSE(parse(flipped).ok()) << bit;
    }
}

TEST(AManifest, WithAGoodSealIsStillCheckedFieldByField) {
    const std::string file = encode(whole(2));
    const std::string body = file.substr(0, file.size() - 32);
    std::mt19937_64 random(11);
    int refused = 0;
    for (int i = 0; i < 20'000; ++i) {
        std::string changed = body;
        const std::size_t changes = 1 + random() % 4;
        for (std::size_t j = 0; j < changes; ++j) {
            static constexpr char kNasty[] = {'\xff', '\x7f', '\x80', 0, 1};
            changed[8 + random() % (changed.size() - 8)] = random() % 2 == 0 ? kNasty[random() % 5] : static_cast<char>(random());
        }
        const std::string sealed = seal(changed);
        const auto read = parse(sealed);
        if (!read.ok()) {
            ++refused;
            const bool is_another_version = changed.compare(8, 4, body, 8, 4) != 0;
            EXPECT_EQ(read.error().code, is_another_version && read.error().code != Code::Damaged ? Code::Refused : Code::Damaged);
            continue;
        }
        EXPECT_EQ(encode(*read), sealed);  // what is accepted means exactly these bytes
        for (const TensorRecord& tensor : read->tensors) {
            for (const Box& box : tensor.boxes) {
                const std::uint64_t size = *elements_of(box.extent) * bytes_of(tensor.dtype);
                ASSERT_LE(box.file_offset + size, read->shard_of(box.shard_rank)->size);
            }
        }
    }
    EXPECT_GT(refused, 10'000);
}

std::string with_number(std::string body, std::size_t at, std::uint64_t value, std::size_t size) {
    std::memcpy(body.data() + at, &value, size);
    return seal(std::move(body));
}

TEST(AManifest, DoesNotBelieveSizesThatWrap) {
    Manifest one = part(0, 1);
    const std::string file = encode(one);
    const std::string body = file.substr(0, file.size() - 32);
    const std::size_t shards = 8 + 4 + 8 + 8 + 4 + 4 + 8;
    EXPECT_FALSE(parse(with_number(body, shards, 0xFFFFFFFFu, 4)).ok());           // number of shards
    EXPECT_FALSE(parse(with_number(body, shards + 8, 0xFFFFFFF0u, 4)).ok());       // length of a name
    const std::size_t size = shards + 4 + 4 + 4 + one.shards[0].name.size();
    EXPECT_FALSE(parse(with_number(body, size, ~std::uint64_t{0}, 8)).ok());       // size of the shard
    EXPECT_FALSE(parse(with_number(body, size + 8, 0x40000001u, 4)).ok());         // number of checksums, times 4 wraps
    one.tensors[0].boxes[0].file_offset = ~std::uint64_t{0} - 3;                   // offset + size wraps
    EXPECT_FALSE(parse(encode(one)).ok());
    one = part(0, 1);
    one.tensors[0].global_shape = {1ull << 63, 4};                                 // the product wraps to 0
    one.tensors[0].boxes[0].extent = {1ull << 63, 4};
    EXPECT_FALSE(parse(encode(one)).ok());
    one = part(0, 1);
    one.tensors[0].boxes[0].offset = {~std::uint64_t{0}, 0};                       // offset + extent wraps
    EXPECT_FALSE(parse(encode(one)).ok());
}

TEST(AManifest, OfAnotherVersionOrOfNothingIsRefused) {
    std::string body = encode(whole(1));
    body.resize(body.size() - 32);
    body[8] = 9;
    const auto read = parse(seal(body));
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, Code::Refused);
    EXPECT_NE(read.error().message.find("version 9"), std::string::npos) << read.error().message;
    EXPECT_FALSE(parse("").ok());
    EXPECT_FALSE(parse(seal("")).ok());
    EXPECT_FALSE(parse(seal("GLCKPT\r\n")).ok());
    EXPECT_FALSE(parse(encode(whole(1)) + "x").ok());
}

// Programs that know version 1 alone refuse version 2 by its number, and read whatever says nothing that they do not know.
TEST(AManifest, HasTheLowestVersionThatHasWordsForItsTensors) {
    const auto version_of = [](const std::string& file) { return static_cast<int>(file[8]); };
    Manifest one = whole(2);
    EXPECT_EQ(version_of(encode(one)), 1);
    for (const Policy policy : {Policy::Splittable, Policy::Drop}) {
        one.tensors[1].policy = policy;
        const std::string file = encode(one);
        EXPECT_EQ(version_of(file), 2);
        const auto read = parse(file);
        ASSERT_TRUE(read.ok()) << read.error().message;
        EXPECT_EQ(read->tensors[1].policy, policy);
        EXPECT_EQ(encode(*read), file);
        std::string body = file.substr(0, file.size() - 32);
        body[8] = 1;
        EXPECT_FALSE(parse(seal(body)).ok()) << "version 1 knows no such policy";
    }
    std::string body = encode(whole(2));
    body.resize(body.size() - 32);
    body[8] = 2;
    EXPECT_FALSE(parse(seal(body)).ok()) << "nothing in it is of version 2";
    EXPECT_EQ(policy_of(5), Policy::Drop);
    EXPECT_EQ(policy_of(6), std::nullopt);
    one.tensors[1].policy = static_cast<Policy>(6);
    EXPECT_FALSE(parse(encode(one)).ok());
}

TEST(AManifest, OfSplittableOrDroppedStateHasABoxOfEachRank) {
    for (const Policy policy : {Policy::Splittable, Policy::Drop}) {
        std::vector<Manifest> parts{part(0, 2), part(1, 2)};
        for (Manifest& one : parts) one.tensors[1].policy = policy;
        parts[1].tensors[1].global_shape = parts[1].tensors[1].boxes[0].extent = {9};  // each of its own shape
        ASSERT_TRUE(merge(parts).ok()) << merge(parts).error().message;
        EXPECT_TRUE(parse(encode(*merge(parts))).ok());
        parts[1].tensors.erase(parts[1].tensors.begin() + 1);
        ASSERT_FALSE(merge(parts).ok());
        EXPECT_NE(merge(parts).error().message.find("'rng'"), std::string::npos);
    }
}

TEST(Merging, RefusesRanksThatDisagree) {
    std::vector<Manifest> parts{part(0, 2), part(1, 2)};
    ASSERT_TRUE(merge(parts).ok());
    parts[1].tensors[0].dtype = DType::F64;
    auto merged = merge(parts);
    ASSERT_FALSE(merged.ok());
    EXPECT_NE(merged.error().message.find("model/sliced"), std::string::npos);
    EXPECT_NE(merged.error().message.find("rank 1"), std::string::npos);
    parts[1] = part(1, 2);
    parts[1].step = 101;
    EXPECT_FALSE(merge(parts).ok());
    EXPECT_FALSE(merge({parts[0]}).ok());
}

TEST(Merging, RefusesSlicesThatDoNotTileTheirTensor) {
    std::vector<Manifest> parts{part(0, 2), part(1, 2)};
    parts[1].tensors[0].boxes[0] = Box{1, 4096, {9, 0}, {10, 4}};  // row 9 twice, row 19 never
    auto merged = merge(parts);
    ASSERT_FALSE(merged.ok());
    EXPECT_NE(merged.error().message.find("overlap"), std::string::npos) << merged.error().message;
    parts[1].tensors[0].boxes[0] = Box{1, 4096, {10, 0}, {9, 4}};
    merged = merge(parts);
    ASSERT_FALSE(merged.ok());
    EXPECT_NE(merged.error().message.find("hold 76"), std::string::npos) << merged.error().message;
    parts[1] = part(1, 2);
    parts[1].tensors.erase(parts[1].tensors.begin() + 1);  // rank 1 has no random state
    merged = merge(parts);
    ASSERT_FALSE(merged.ok());
    EXPECT_NE(merged.error().message.find("'rng'"), std::string::npos) << merged.error().message;
}

std::vector<std::string> files_of(const std::vector<Manifest>& parts) {
    std::vector<std::string> files;
    for (const Manifest& one : parts) files.push_back(encode(one));
    return files;
}

// However often, and whatever has changed since the time before.
TEST(APart, HasTheSizeThatIsForetold) {
    Manifest one = part(1, 3);
    one.version = version_for(one.tensors);
    const Part its{one, std::make_shared<const std::string>(encode_tensors(one.tensors))};
    EXPECT_EQ(encode(its), encode(one));
    EXPECT_EQ(encoded_size(its), encode(one).size());
}

TEST(AMerger, WritesWhatMergingAnewWrites) {
    Merger merger;
    std::vector<Manifest> parts{part(0, 3), part(1, 3), part(2, 3)};
    const auto expect_the_same = [&](const char* when) {
        const auto merged = merger.merge(files_of(parts));
        ASSERT_TRUE(merged.ok()) << when << ": " << merged.error().message;
        EXPECT_EQ(merged->file, encode(merge(parts).value())) << when;
        EXPECT_EQ(merged->head.shards.size(), parts.size());
    };
    expect_the_same("the first save");
    for (Manifest& one : parts) {
        one.step = 200;
        one.shards[0].block_crcs[1] += one.shards[0].rank + 5;
    }
    expect_the_same("the next one");
    parts[1].tensors[1].global_shape = {6};
    parts[1].tensors[1].boxes[0].extent = {6};
    expect_the_same("another shape");
    parts.pop_back();
    for (std::uint32_t rank = 0; rank < 2; ++rank) parts[rank] = part(rank, 2);
    expect_the_same("another world");
}

TEST(AMerger, RefusesWhatMergingAnewRefuses) {
    Merger merger;
    std::vector<Manifest> parts{part(0, 2), part(1, 2)};
    ASSERT_TRUE(merger.merge(files_of(parts)).ok());
    parts[1].step = 101;
    EXPECT_EQ(merger.merge(files_of(parts)).error().code, Code::InvalidArgument);
    parts[1] = part(1, 2);
    parts[1].shards[0].size = 8192;  // too short for its tensors, which are as before
    parts[1].shards[0].block_crcs = {1};
    EXPECT_EQ(merger.merge(files_of(parts)).error().code, Code::Damaged);
    parts[1] = part(1, 2);
    parts[1].tensors.pop_back();
    EXPECT_FALSE(merger.merge(files_of(parts)).ok());
    parts[1] = part(1, 2);
    std::vector<std::string> files = files_of(parts);
    files[0][60] ^= 1;
    EXPECT_EQ(merger.merge(files).error().code, Code::Damaged);
    EXPECT_FALSE(merger.merge({files[1]}).ok());
    EXPECT_TRUE(merger.merge(files_of(parts)).ok());
}

TEST(Checksums, AgreeWithTheirPublishedVectors) {
    EXPECT_EQ(crc32c("123456789", 9), 0xE3069283u);
    EXPECT_EQ(crc32c_portable("123456789", 9), 0xE3069283u);
    const std::string zeros(32, '\0');
    EXPECT_EQ(crc32c(zeros.data(), 32), 0x8A9136AAu);  // RFC 3720 B.4
    std::string bytes;
    for (int i = 0; i < 1000; ++i) bytes += static_cast<char>(i * 7);
    EXPECT_EQ(crc32c(bytes.data(), bytes.size()), crc32c_portable(bytes.data(), bytes.size()));
    EXPECT_EQ(crc32c(bytes.data() + 13, 987, crc32c(bytes.data(), 13)), crc32c(bytes.data(), bytes.size()));
    EXPECT_EQ(to_hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    Sha256 digest{};
    EXPECT_TRUE(from_hex(to_hex(sha256("abc")), digest));
    EXPECT_EQ(digest, sha256("abc"));
    EXPECT_FALSE(from_hex("ab", digest));
    EXPECT_FALSE(from_hex(std::string(64, 'g'), digest));
}

// Of any length and any alignment, with whatever came before, and not a byte beside the copy.
TEST(Checksums, OfACopyAreThoseOfTheBytesAndTheCopyIsThem) {
    std::mt19937 random(3);
    std::vector<std::uint8_t> from(200'000);
    for (std::uint8_t& byte : from) byte = static_cast<std::uint8_t>(random());
    std::vector<std::uint8_t> to(from.size() + 200);
    for (int round = 0; round < 2000; ++round) {
        const std::size_t size = round < 1500 ? static_cast<std::size_t>(round) : random() % 190'000;
        const std::size_t at = random() % 70;
        const std::size_t place = 1 + random() % 70;
        const std::uint32_t before = static_cast<std::uint32_t>(random());
        std::fill(to.begin(), to.end(), std::uint8_t{0xA5});
        ASSERT_EQ(copy_with_crc32c(to.data() + place, from.data() + at, size, before), crc32c_portable(from.data() + at, size, before)) << size;
        ASSERT_EQ(std::memcmp(to.data() + place, from.data() + at, size), 0) << size;
        ASSERT_EQ(to[place - 1], 0xA5);
        ASSERT_EQ(to[place + size], 0xA5);
    }
}

TEST(Checksums, ByTheProcessorsInstructionsAreThoseByTheLibrary) {
    std::string bytes;
    for (int i = 0; i < 300; ++i) {
        ASSERT_EQ(sha256(bytes), sha256_portable(bytes)) << i;
        bytes += static_cast<char>(i * 7);
    }
    bytes.append(100'003, 'x');
    EXPECT_EQ(sha256(bytes), sha256_portable(bytes));
}

TEST(TensorNames, AreSegmentsBetweenSlashes) {
    for (const char* good : {"a", "model/layer.0.weight", "x y", "a/b/c"}) EXPECT_TRUE(check_name(good).ok()) << good;
    for (const char* bad : {"", "/a", "a/", "a//b", ".", "a/../b", "./a"}) EXPECT_FALSE(check_name(bad).ok()) << bad;
    EXPECT_FALSE(check_name(std::string(2000, 'x')).ok());
    EXPECT_FALSE(check_name(std::string_view("a\0b", 3)).ok());
}

TEST(AManifest, GivesEachRanksPartBackAsItWas) {
    std::vector<Manifest> parts{part(0, 3), part(1, 3), part(2, 3)};
    for (const std::optional<double> metric : {std::optional<double>(), std::optional<double>(0.5)}) {
        parts[0].metric = metric;
        const auto all = merge(parts);
        ASSERT_TRUE(all.ok()) << all.error().message;
        for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(encode(part_of(*all, rank)), encode(parts[rank]));
    }
}

}  // namespace
}  // namespace gangline::checkpoint
