#pragma once
// In what do two checkpoints differ? Tensor by tensor, in bounded memory, whatever the number of ranks that wrote them.
//
// Values are compared as numbers: NaN equals NaN, 0 equals -0. Per-rank tensors are compared rank by rank.
//   absolute = |a - b|     relative = |a - b| / max(|a|, |b|)     both infinite where one side is NaN or infinite

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/tool/output.h"
#include "checkpoint/tool/place.h"

namespace gangline::checkpoint::tool {

enum class Change { OnlyInA, OnlyInB, Kind, Dtype, Shape, Values };
std::string_view name_of(Change change);

struct Largest {
    double value = 0;
    std::uint64_t index = 0;
    double a = 0;
    double b = 0;
};
struct Difference {
    std::string name;
    std::optional<std::uint32_t> rank;  // of a per-rank tensor
    Change change = Change::Values;
    std::string a;  // Kind, Dtype, Shape: what each side has
    std::string b;
    Shape shape;    // Values, and what is behind it
    std::uint64_t elements = 0;
    std::uint64_t differing = 0;
    Largest absolute;
    Largest relative;
};
struct Comparison {
    std::vector<Difference> differences;
    std::uint64_t equal = 0;  // tensors; each rank's own counts
};

// Errors: Damaged.
Result<Comparison> compare(Opened& a, Opened& b);

// Counts and largest differences of two runs of elements, the first of which has this index in the tensor.
void compare_values(DType dtype, const char* a, const char* b, std::uint64_t count, std::uint64_t first, Difference& into);

}  // namespace gangline::checkpoint::tool
