#pragma once
// What a checkpoint is made of: named tensors, of which each rank holds all, a box, or its own.
//
//   Replicated   every rank holds the same values; one rank writes them, any world size reads them
//   Sliced       the ranks' boxes tile the global shape; any world size reads any box
//   PerRank      each rank's own, of its own shape (random state, ...); a world of another size is refused
//   Splittable   each rank's own; in a world of another size the program makes its own out of what all ranks had
//   Drop         each rank's own; in a world of another size it stays as the program made it, and that is said
//
// What becomes of the last three in a world of another size is another_world.h.
//
// Units: shapes, offsets and extents count elements, outermost dimension first (row-major).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gangline::checkpoint {

enum class DType : std::uint8_t {
    F64 = 1, F32, F16, BF16, F8E4M3, F8E5M2, I64, I32, I16, I8, U64, U32, U16, U8, Bool,
};
enum class Policy : std::uint8_t { Replicated = 1, Sliced, PerRank, Splittable, Drop };
// One box a rank, each of its own shape; not a part of something global.
constexpr bool is_per_rank(Policy policy) { return policy != Policy::Replicated && policy != Policy::Sliced; }

std::size_t bytes_of(DType dtype);
std::string_view name_of(DType dtype);   // "float32", "bfloat16", "float8_e4m3fn", "bool", ...
std::string_view name_of(Policy policy);
std::optional<DType> dtype_of(std::uint8_t code);
std::optional<Policy> policy_of(std::uint8_t code);

using Shape = std::vector<std::uint64_t>;
inline constexpr std::size_t kMostDimensions = 32;
inline constexpr std::size_t kMostNameBytes = 1024;

// The product of the extents; 1 for a scalar; nothing when it exceeds 2^62.
std::optional<std::uint64_t> elements_of(const Shape& shape);
std::string to_text(const Shape& shape);  // "[2, 3]"

// One rank's view of one tensor: `extent` elements at `offset` of `global_shape`, contiguous at `data`.
struct Tensor {
    std::string name;
    DType dtype = DType::F32;
    Policy policy = Policy::Replicated;
    Shape global_shape;
    Shape offset;
    Shape extent;
    void* data = nullptr;
};

// Errors: InvalidArgument that names the tensor and what is wrong with its name, shape, box or pointer.
Result<void> check_tensor(const Tensor& tensor);
// A path of plain segments: no empty one, no "." or "..", no NUL.
Result<void> check_name(std::string_view name);
// True when [offset, offset + extent) lies inside `shape`, without wrapping.
bool is_inside(const Shape& offset, const Shape& extent, const Shape& shape);

}  // namespace gangline::checkpoint
