#pragma once
// What becomes of each rank's own state when a gang of another size restores it. A gang of the same size gets it back exactly.
//
//   PerRank      refused, with a way out: the user names the tensor, and it is given up
//   Splittable   the program's callback makes this rank's out of what every rank had; without a callback as PerRank
//   Drop         given up
//
// What is given up stays as the program has made it, and is said.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>

#include "base/check.h"
#include "base/result.h"
#include "checkpoint/tensor.h"

namespace gangline::checkpoint {

// What one rank of the gang that saved had under a name.
struct OldRank {
    std::uint32_t rank = 0;
    Shape shape;
    std::span<const std::byte> bytes;  // row-major

    template <class T>
    std::span<const T> as() const {
        CHECK(bytes.size() == sizeof(T) * elements_of(shape).value_or(0), "the type is the tensor's");
        return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
    }
};
struct Split {
    std::span<const OldRank> old;  // of every rank that saved, ascending; valid during the call
    std::uint32_t rank = 0;        // this one
    std::uint32_t world = 1;       // the gang's size now
};
// Fills this rank's state; it knows where that lies. An error refuses the restore with its words.
using SplitCallback = std::function<Result<void>(const Split&)>;

struct AnotherWorld {
    std::map<std::string, SplitCallback, std::less<>> splits;  // by tensor
    std::set<std::string, std::less<>> given_up;               // tensors that the user names; "*": all
    std::function<void(const std::string&)> say;               // hears what was given up

    bool gives_up(const Tensor& tensor) const { return tensor.policy == Policy::Drop || given_up.contains(tensor.name) || given_up.contains("*"); }
    const SplitCallback* split_of(const Tensor& tensor) const {
        const auto found = splits.find(tensor.name);
        return tensor.policy == Policy::Splittable && found != splits.end() && found->second ? &found->second : nullptr;
    }
};

}  // namespace gangline::checkpoint
