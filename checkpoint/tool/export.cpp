#include "checkpoint/tool/export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "checkpoint/tool/pieces.h"

namespace gangline::checkpoint::tool {
namespace {

constexpr std::size_t kMostNamed = 8;

// "rng, sampler and 3 more"
std::string listed(const std::vector<std::string>& names) {
    const std::vector<std::string> first(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMostNamed)));
    std::string text = fmt::format("{}", fmt::join(first, ", "));
    if (names.size() > kMostNamed) text += fmt::format(" and {} more", names.size() - kMostNamed);
    return plain(text);
}

bool is_without_numpy_type(DType dtype) { return dtype == DType::BF16 || dtype == DType::F8E4M3 || dtype == DType::F8E5M2; }

}  // namespace

Result<Exported> export_checkpoint(Opened& opened, const ExportRequest& request) {
    const Manifest& manifest = opened.checkpoint.manifest();
    if (request.rank && *request.rank >= manifest.world) {
        return Error{Code::InvalidArgument, fmt::format("--rank {}: 0 to {} are possible, {} was saved by {} ranks", *request.rank, manifest.world - 1,
                                                        opened.path, manifest.world)};
    }
    if (auto checked = check_shards(opened); !checked) return checked.error();
    Exported exported;
    std::vector<Exporting> tensors;
    std::vector<std::string> left_out;
    std::vector<std::string> as_bits;
    for (const TensorRecord& tensor : manifest.tensors) {
        if (is_per_rank(tensor.policy) && !request.rank) {
            left_out.push_back(tensor.name);
            continue;
        }
        const std::uint32_t rank = request.rank.value_or(0);
        const Shape& shape = shape_of(tensor, rank);
        const std::uint64_t bytes = bytes_of(tensor.dtype, shape);
        if (__builtin_add_overflow(exported.bytes, bytes, &exported.bytes) || exported.bytes > (1ull << 62)) {
            return Error{Code::Refused, fmt::format("{}: tensor '{}' makes the file larger than any disk", opened.path, plain(tensor.name))};
        }
        if (!is_utf8(tensor.name)) return Error{Code::Refused, fmt::format("tensor '{}': its name is not UTF-8, these formats ask for it", plain(tensor.name))};
        if (is_without_numpy_type(tensor.dtype)) as_bits.push_back(tensor.name);
        tensors.push_back({&tensor, rank, shape, bytes});
    }
    if (!left_out.empty()) exported.notes.push_back(fmt::format("left out, as each rank has its own: {}; --rank N includes those of rank N", listed(left_out)));
    if (request.format == Format::Npz && !as_bits.empty()) {
        exported.notes.push_back(fmt::format("NumPy has no bfloat16 and no float8: their bits are stored as uint16 and uint8: {}", listed(as_bits)));
    }
    exported.tensors = tensors.size();
    auto file = NewFile::create(request.output, request.existing);
    if (!file) return file.error();
    if (auto reserved = file->reserve(exported.bytes); !reserved) return reserved.error();
    {
        Progress progress("writing", exported.bytes);
        const auto written = request.format == Format::Npz ? write_npz(opened, tensors, *file, progress)
                                                           : write_safetensors(opened, tensors, *file, progress);
        if (!written) return written.error();
    }
    exported.bytes = file->size();
    if (auto published = file->publish(); !published) return published.error();
    return exported;
}

}  // namespace gangline::checkpoint::tool
