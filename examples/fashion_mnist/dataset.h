#pragma once
// Fashion-MNIST as Debian packages it (dataset-fashion-mnist): IDX files, gzip-compressed. 28 x 28 grey images, 10 classes.
// Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST" (2017); the IDX format is that of MNIST.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace fashion_mnist {

inline constexpr std::size_t kPixels = 28 * 28;
inline constexpr std::size_t kClasses = 10;

struct Dataset {
    std::vector<std::uint8_t> pixels;  // [count][kPixels]
    std::vector<std::uint8_t> labels;  // [count]
    std::size_t count() const { return labels.size(); }
};

// `prefix` is "train" or "t10k". Errors: NotFound or Damaged, with the file's name.
gangline::Result<Dataset> load(const std::string& folder, const std::string& prefix);

// The order in which an epoch visits `count` samples: a function of seed and epoch alone.
std::vector<std::uint32_t> order_of(std::size_t count, std::uint64_t seed, std::uint64_t epoch);

}  // namespace fashion_mnist
