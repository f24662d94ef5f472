#include "examples/fashion_mnist/dataset.h"

#include <zlib.h>

#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include <fmt/format.h>

namespace fashion_mnist {
namespace {

using gangline::Code;
using gangline::Error;
using gangline::Result;

struct CloseGzip {
    void operator()(gzFile_s* file) const { gzclose(file); }
};

// The content of an IDX file of bytes: big-endian magic (0x08 = bytes, number of dimensions), the dimensions, the data.
Result<std::vector<std::uint8_t>> read_idx(const std::string& path, std::span<const std::uint32_t> inner) {
    const std::unique_ptr<gzFile_s, CloseGzip> file(gzopen(path.c_str(), "rb"));
    if (file == nullptr) {
        return Error{Code::NotFound, fmt::format("cannot open {}; install dataset-fashion-mnist, or give its folder with --data", path)};
    }
    gzbuffer(file.get(), 1u << 18);
    auto number = [&]() -> std::uint32_t {
        unsigned char bytes[4] = {};
        if (gzread(file.get(), bytes, 4) != 4) return 0xFFFFFFFFu;
        return (std::uint32_t{bytes[0]} << 24) | (std::uint32_t{bytes[1]} << 16) | (std::uint32_t{bytes[2]} << 8) | bytes[3];
    };
    const auto damaged = [&] { return Error{Code::Damaged, path + " is not the IDX file that was expected"}; };
    if (number() != 0x0801u + inner.size()) return damaged();
    std::size_t size = number();
    if (size == 0 || size > 10'000'000) return damaged();
    for (const std::uint32_t extent : inner) {
        if (number() != extent) return damaged();
        size *= extent;
    }
    std::vector<std::uint8_t> bytes(size);
    if (gzread(file.get(), bytes.data(), static_cast<unsigned>(size)) != static_cast<int>(size)) return damaged();
    return bytes;
}

}  // namespace

Result<Dataset> load(const std::string& folder, const std::string& prefix) {
    static constexpr std::uint32_t kImage[] = {28, 28};
    auto pixels = read_idx(fmt::format("{}/{}-images-idx3-ubyte.gz", folder, prefix), kImage);
    if (!pixels) return pixels.error();
    auto labels = read_idx(fmt::format("{}/{}-labels-idx1-ubyte.gz", folder, prefix), {});
    if (!labels) return labels.error();
    if (pixels->size() != labels->size() * kPixels) return Error{Code::Damaged, folder + ": as many labels as images are needed"};
    for (const std::uint8_t label : *labels) {
        if (label >= kClasses) return Error{Code::Damaged, fmt::format("{}: label {}, there are {} classes", folder, label, kClasses)};
    }
    return Dataset{std::move(*pixels), std::move(*labels)};
}

std::vector<std::uint32_t> order_of(std::size_t count, std::uint64_t seed, std::uint64_t epoch) {
    std::vector<std::uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    std::mt19937_64 random(seed * 0x9E3779B97F4A7C15ull + epoch);
    for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    return order;
}

}  // namespace fashion_mnist
