#include "checkpoint/tool/diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include <fmt/format.h>

#include "checkpoint/tool/number.h"
#include "checkpoint/tool/pieces.h"

namespace gangline::checkpoint::tool {
namespace {

constexpr std::uint64_t kRunBytes = 4096;  // equal runs of this length are passed over at once

void keep_largest(Largest& largest, long double value, std::uint64_t index, long double a, long double b) {
    if (!(static_cast<double>(value) > largest.value)) return;
    largest = {static_cast<double>(value), index, static_cast<double>(a), static_cast<double>(b)};
}

void compare_one(long double a, long double b, std::uint64_t index, Difference& into) {
    if (a == b || (std::isnan(a) && std::isnan(b))) return;
    ++into.differing;
    const bool is_finite = std::isfinite(a) && std::isfinite(b);
    const long double absolute = is_finite ? std::fabs(a - b) : HUGE_VALL;
    keep_largest(into.absolute, absolute, index, a, b);
    keep_largest(into.relative, is_finite ? absolute / std::max(std::fabs(a), std::fabs(b)) : HUGE_VALL, index, a, b);
}


class Comparer {
  public:
    Comparer(Opened& a, Opened& b, Comparison& into, Progress& progress) : a_(a), b_(b), into_(into), progress_(progress) {}

    Result<void> tensor(const std::string& name) {
        const TensorRecord* const a = a_.checkpoint.manifest().tensor_of(name);
        const TensorRecord* const b = b_.checkpoint.manifest().tensor_of(name);
        Difference found;
        found.name = name;
        if (a == nullptr || b == nullptr) return only(found, a != nullptr);
        if (is_per_rank(a->policy) != is_per_rank(b->policy)) {
            return changed(found, Change::Kind, std::string(checkpoint::name_of(a->policy)), std::string(checkpoint::name_of(b->policy)));
        }
        if (a->dtype != b->dtype) {
            return changed(found, Change::Dtype, std::string(checkpoint::name_of(a->dtype)), std::string(checkpoint::name_of(b->dtype)));
        }
        if (!is_per_rank(a->policy)) return values(found, *a, *b, 0);
        for (std::uint32_t rank = 0; rank < std::max(a->boxes.size(), b->boxes.size()); ++rank) {
            found.rank = rank;
            const bool is_in_a = rank < a->boxes.size();
            const bool is_in_both = is_in_a && rank < b->boxes.size();
            if (auto done = is_in_both ? values(found, *a, *b, rank) : only(found, is_in_a); !done) return done;
        }
        return {};
    }

  private:
    Result<void> only(Difference found, bool is_in_a) {
        found.change = is_in_a ? Change::OnlyInA : Change::OnlyInB;
        into_.differences.push_back(std::move(found));
        return {};
    }
    Result<void> changed(Difference found, Change change, std::string a, std::string b) {
        found.change = change;
        found.a = std::move(a);
        found.b = std::move(b);
        into_.differences.push_back(std::move(found));
        return {};
    }
    Result<void> values(Difference found, const TensorRecord& a, const TensorRecord& b, std::uint32_t rank) {
        const Shape& shape = shape_of(a, rank);
        if (shape != shape_of(b, rank)) return changed(found, Change::Shape, to_text(shape), to_text(shape_of(b, rank)));
        found.shape = shape;
        found.elements = *elements_of(shape);
        Pieces pieces(shape, std::max(piece_elements(a_.checkpoint.manifest(), a), piece_elements(b_.checkpoint.manifest(), b)));
        while (const auto piece = pieces.next()) {
            if (auto read = read_piece(a_.checkpoint, a, rank, *piece, left_); !read) return read;
            if (auto read = read_piece(b_.checkpoint, b, rank, *piece, right_); !read) return read;
            compare_values(a.dtype, left_.data(), right_.data(), piece->count, piece->first, found);
            progress_.add(left_.size() + right_.size());
        }
        if (found.differing == 0) ++into_.equal;
        if (found.differing != 0) into_.differences.push_back(std::move(found));
        return {};
    }

    Opened& a_;
    Opened& b_;
    Comparison& into_;
    Progress& progress_;
    std::vector<char> left_;
    std::vector<char> right_;
};

}  // namespace

std::string_view name_of(Change change) {
    switch (change) {
        case Change::OnlyInA: return "only_in_a";
        case Change::OnlyInB: return "only_in_b";
        case Change::Kind: return "kind";
        case Change::Dtype: return "dtype";
        case Change::Shape: return "shape";
        case Change::Values: return "values";
    }
    return "?";
}

void compare_values(DType dtype, const char* a, const char* b, std::uint64_t count, std::uint64_t first, Difference& into) {
    const std::uint64_t width = bytes_of(dtype);
    const std::uint64_t run = kRunBytes / width;
    for (std::uint64_t begin = 0; begin < count; begin += run) {
        const std::uint64_t end = std::min(count, begin + run);
        if (std::memcmp(a + begin * width, b + begin * width, static_cast<std::size_t>((end - begin) * width)) == 0) continue;
        for (std::uint64_t i = begin; i < end; ++i) {
            const char* const left = a + i * width;
            const char* const right = b + i * width;
            if (std::memcmp(left, right, static_cast<std::size_t>(width)) == 0) continue;
            compare_one(number_at(dtype, left), number_at(dtype, right), first + i, into);
        }
    }
}

Result<Comparison> compare(Opened& a, Opened& b) {
    std::set<std::string> names;
    for (const Opened* side : {&a, &b}) {
        for (const TensorRecord& tensor : side->checkpoint.manifest().tensors) names.insert(tensor.name);
    }
    Comparison comparison;
    Progress progress("comparing", a.checkpoint.manifest().total_bytes() + b.checkpoint.manifest().total_bytes());
    Comparer comparer(a, b, comparison, progress);
    for (const std::string& name : names) {
        if (auto compared = comparer.tensor(name); !compared) return compared.error();
    }
    return comparison;
}

}  // namespace gangline::checkpoint::tool
