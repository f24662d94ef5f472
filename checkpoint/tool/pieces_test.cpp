// Tensors cut into pieces, and single elements as numbers.

#include "checkpoint/tool/pieces.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "checkpoint/tool/number.h"
#include "checkpoint/tool/test_folder.h"

namespace gangline::checkpoint::tool {
namespace {

TEST(PiecesOfATensor, TileItInRowMajorOrderAndNeverExceedTheLimit) {
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{7}, Shape{3, 5}, Shape{2, 3, 4}, Shape{4, 1, 6}, Shape{5, 2, 1}}) {
        for (const std::uint64_t most : {1u, 2u, 5u, 7u, 24u, 1000u}) {
            Pieces pieces(shape, most);
            std::uint64_t at = 0;
            while (const auto piece = pieces.next()) {
                EXPECT_EQ(piece->first, at);
                EXPECT_EQ(position_of(at, shape), piece->offset) << to_text(shape) << " by " << most;
                EXPECT_LE(piece->count, most);
                EXPECT_EQ(*elements_of(piece->extent), piece->count);
                EXPECT_TRUE(is_inside(piece->offset, piece->extent, shape));
                at += piece->count;
            }
            EXPECT_EQ(at, *elements_of(shape)) << to_text(shape) << " by " << most;
        }
    }
    EXPECT_FALSE(Pieces({0, 4}, 8).next());
    EXPECT_FALSE(Pieces({4, 0}, 8).next());
}

TEST(NumbersOfElements, AreExactForEveryDtype) {
    auto number = [](DType dtype, std::uint64_t bits) {
        char bytes[8];
        std::memcpy(bytes, &bits, 8);
        return number_at(dtype, bytes);
    };
    EXPECT_EQ(number(DType::F16, 0x3C00), 1);
    EXPECT_EQ(number(DType::F16, 0x0001), std::ldexp(1.0L, -24));
    EXPECT_EQ(number(DType::F16, 0xFBFF), -65504);
    EXPECT_TRUE(std::isinf(number(DType::F16, 0x7C00)));
    EXPECT_EQ(number(DType::BF16, 0xC000), -2);
    EXPECT_TRUE(std::isnan(number(DType::BF16, 0x7FC0)));
    EXPECT_EQ(number(DType::F8E4M3, 0x7E), 448);
    EXPECT_EQ(number(DType::F8E4M3, 0x01), std::ldexp(1.0L, -9));
    EXPECT_TRUE(std::isnan(number(DType::F8E4M3, 0xFF)));
    EXPECT_EQ(number(DType::F8E5M2, 0x7B), 57344);
    EXPECT_TRUE(std::isinf(number(DType::F8E5M2, 0xFC)));
    EXPECT_TRUE(std::isnan(number(DType::F8E5M2, 0x7D)));
    EXPECT_EQ(number(DType::U64, ~0ull) - number(DType::U64, ~0ull - 1), 1);
    EXPECT_EQ(number(DType::I64, 1ull << 63), -std::ldexp(1.0L, 63));
    EXPECT_EQ(number(DType::I8, 0xFF), -1);
    EXPECT_EQ(number(DType::Bool, 1), 1);
}

class Filling : public Folder {};

TEST_F(Filling, GivesAnyBoxOfWhatManyRanksWrote) {
    write(kFirst, 3);
    Opened opened = open(kFirst);
    std::vector<float> rows(15);
    std::uint32_t own = 0;
    const std::vector<Tensor> wanted{{"model/matrix", DType::F32, Policy::Sliced, {12, 5}, {3, 0}, {3, 5}, rows.data()},
                                     {"rng", DType::U32, Policy::PerRank, {3}, {1}, {1}, &own}};
    ASSERT_TRUE(opened.checkpoint.fill(wanted, 2).ok());
    for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], static_cast<float>(16 + i));
    EXPECT_EQ(own, 3u);
}

TEST_F(Filling, RefusesWhatIsNotThereBeforeItWrites) {
    write(kFirst, 3);
    Opened opened = open(kFirst);
    std::vector<float> rows(15, -1.0f);
    auto message = [&](Tensor tensor, std::uint32_t rank) {
        const Tensor good{"model/matrix", DType::F32, Policy::Sliced, {12, 5}, {3, 0}, {3, 5}, rows.data()};
        const std::vector<Tensor> both{good, std::move(tensor)};
        const auto filled = opened.checkpoint.fill(both, rank);
        EXPECT_EQ(rows[0], -1.0f);
        return filled ? "" : filled.error().message;
    };
    EXPECT_THAT(message({"model/none", DType::F32, Policy::Sliced, {}, {}, {}, rows.data()}, 0), ::testing::HasSubstr("it has no tensor"));
    EXPECT_THAT(message({"rng", DType::F32, Policy::PerRank, {3}, {0}, {3}, rows.data()}, 0), ::testing::HasSubstr("was saved as uint32"));
    EXPECT_THAT(message({"rng", DType::U32, Policy::PerRank, {3}, {0}, {3}, rows.data()}, 3), ::testing::HasSubstr("there is no rank 3"));
    EXPECT_THAT(message({"rng", DType::U32, Policy::PerRank, {3}, {2}, {2}, rows.data()}, 0), ::testing::HasSubstr("no box of [2] at [2]"));
}

}  // namespace
}  // namespace gangline::checkpoint::tool
