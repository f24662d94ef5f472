// What two checkpoints differ in.

#include "checkpoint/tool/diff.h"

#include <gmock/gmock.h>

#include <cmath>

#include "checkpoint/tool/pieces.h"
#include "checkpoint/tool/test_folder.h"

namespace gangline::checkpoint::tool {
namespace {

class Differences : public Folder {
  protected:
    Comparison compared() const {
        Opened a = open(kFirst);
        Opened b = open(kSecond);
        auto comparison = compare(a, b);
        EXPECT_TRUE(comparison.ok()) << comparison.error().message;
        return comparison.value();
    }
};

TEST_F(Differences, AreNoneBetweenEqualTensorsOfOtherWorldSizes) {
    write(kFirst, 3);
    write(kSecond, 2);
    const Comparison comparison = compared();
    ASSERT_EQ(comparison.differences.size(), 1u);  // the third rank's own
    EXPECT_EQ(comparison.differences[0].name, "rng");
    EXPECT_EQ(comparison.differences[0].rank, 2u);
    EXPECT_EQ(comparison.differences[0].change, Change::OnlyInA);
    EXPECT_EQ(comparison.equal, 11u);  // nine of all, two ranks' own
}

TEST_F(Differences, NameTheLargestAndWhereItIs) {
    write(kFirst, 3);
    write(kSecond, 2, 1, [](Model& model) {
        for (std::size_t i = 0; i < model.matrix.size(); ++i) {
            if (model.matrix[i] == 1.0f) model.matrix[i] = 0.5f;   // [0, 0]
            if (model.matrix[i] == 43.0f) model.matrix[i] = 40.0f; // [8, 2]
        }
        if (model.rank == 1) model.own[2] += 10;
    });
    const Comparison comparison = compared();
    ASSERT_EQ(comparison.differences.size(), 3u);
    const Difference& matrix = comparison.differences[0];
    EXPECT_EQ(matrix.name, "model/matrix");
    EXPECT_EQ(matrix.differing, 2u);
    EXPECT_EQ(matrix.elements, 60u);
    EXPECT_EQ(matrix.absolute.value, 3);
    EXPECT_EQ(position_of(matrix.absolute.index, matrix.shape), (Shape{8, 2}));
    EXPECT_EQ(matrix.absolute.a, 43);
    EXPECT_EQ(matrix.absolute.b, 40);
    EXPECT_EQ(matrix.relative.value, 0.5);
    EXPECT_EQ(matrix.relative.index, 0u);
    EXPECT_EQ(comparison.differences[1].rank, 1u);
    EXPECT_EQ(comparison.differences[1].absolute.value, 10);
}

TEST_F(Differences, KnowTensorsShapesDtypesAndKindsThatChanged) {
    write(kFirst, 2);
    write(kSecond, 2, 1, [](Model& model) {
        model.of("mask").name = "musk";
        model.of("narrow/f16").dtype = DType::I16;
        Tensor& bf16 = model.of("narrow/bf16");
        bf16.global_shape = bf16.extent = {2};
        model.of("rng").policy = Policy::Replicated;
    });
    const Comparison comparison = compared();
    std::vector<std::string> found;
    for (const Difference& one : comparison.differences) found.push_back(one.name + " " + std::string(name_of(one.change)) + " " + one.a + " " + one.b);
    EXPECT_THAT(found, ::testing::ElementsAre("mask only_in_a  ", "musk only_in_b  ", "narrow/bf16 shape [3] [2]", "narrow/f16 dtype float16 int16",
                                              "rng kind per_rank replicated"));
    EXPECT_EQ(comparison.equal, 6u);
}

TEST(ComparedValues, NaNEqualsNaNAndZeroEqualsMinusZero) {
    const std::vector<float> a{NAN, 0.0f, 1.0f, INFINITY, NAN};
    const std::vector<float> b{-NAN, -0.0f, 1.0f, INFINITY, 2.0f};
    Difference found;
    compare_values(DType::F32, reinterpret_cast<const char*>(a.data()), reinterpret_cast<const char*>(b.data()), a.size(), 100, found);
    EXPECT_EQ(found.differing, 1u);
    EXPECT_EQ(found.absolute.index, 104u);
    EXPECT_TRUE(std::isinf(found.absolute.value) && std::isinf(found.relative.value));
}

TEST(ComparedValues, AreExactForEveryDtype) {
    struct Case {
        DType dtype;
        std::uint64_t a;
        std::uint64_t b;
        double absolute;
    };
    for (const Case& one : {Case{DType::F64, 0x3FF0000000000000, 0x4000000000000000, 1}, {DType::F16, 0x3C00, 0xC000, 3}, {DType::BF16, 0x3F80, 0x4040, 2},
                            {DType::F8E4M3, 0x38, 0x7E, 447}, {DType::F8E5M2, 0x3C, 0x7B, 57343}, {DType::I64, ~0ull, 1, 2}, {DType::U64, ~0ull, ~0ull - 5, 5},
                            {DType::I32, 0xFFFFFFFF, 1, 2}, {DType::U32, 0xFFFFFFFF, 0, 4294967295.0}, {DType::I16, 0x8000, 0x7FFF, 65535},
                            {DType::U16, 0xFFFF, 0, 65535}, {DType::I8, 0x80, 0x7F, 255}, {DType::U8, 0xFF, 0, 255}, {DType::Bool, 1, 0, 1}}) {
        Difference found;
        compare_values(one.dtype, reinterpret_cast<const char*>(&one.a), reinterpret_cast<const char*>(&one.b), 1, 0, found);
        EXPECT_EQ(found.differing, 1u) << name_of(one.dtype);
        EXPECT_EQ(found.absolute.value, one.absolute) << name_of(one.dtype);
    }
}

TEST_F(Differences, EndAtADamagedBlock) {
    write(kFirst);
    write(kSecond);
    flip_byte(path(kSecond, "shard-00001-of-00003.h5"), 200);
    Opened a = open(kFirst);
    Opened b = open(kSecond);
    const auto comparison = compare(a, b);
    ASSERT_FALSE(comparison.ok());
    EXPECT_EQ(comparison.error().code, Code::Damaged);
}

}  // namespace
}  // namespace gangline::checkpoint::tool
