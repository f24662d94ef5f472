// safetensors: u64 length of the header, the header (JSON, padded with blanks to 8 bytes), the tensors without gaps.
// Wide elements come first, so that each tensor stands at a multiple of its element's size.

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/tool/export.h"
#include "checkpoint/tool/pieces.h"

namespace gangline::checkpoint::tool {
namespace {

constexpr std::size_t kMostHeaderBytes = 100'000'000;  // what its readers accept

const char* type_name(DType dtype) {
    switch (dtype) {
        case DType::F64: return "F64";
        case DType::F32: return "F32";
        case DType::F16: return "F16";
        case DType::BF16: return "BF16";
        case DType::F8E4M3: return "F8_E4M3";
        case DType::F8E5M2: return "F8_E5M2";
        case DType::I64: return "I64";
        case DType::I32: return "I32";
        case DType::I16: return "I16";
        case DType::I8: return "I8";
        case DType::U64: return "U64";
        case DType::U32: return "U32";
        case DType::U16: return "U16";
        case DType::U8: return "U8";
        case DType::Bool: return "BOOL";
    }
    return "?";
}

std::string little_endian(std::uint64_t value) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i));
    return bytes;
}

}  // namespace

Result<void> write_safetensors(Opened& opened, std::vector<Exporting> tensors, NewFile& file, Progress& progress) {
    std::stable_sort(tensors.begin(), tensors.end(), [](const Exporting& a, const Exporting& b) {
        return checkpoint::bytes_of(a.tensor->dtype) > checkpoint::bytes_of(b.tensor->dtype);
    });
    const Manifest& manifest = opened.checkpoint.manifest();
    Json header;
    header["__metadata__"] = {{"format", "pt"}, {"written_by", "gangline"}, {"job", std::to_string(manifest.job)},
                              {"step", std::to_string(manifest.step)}, {"attempt", std::to_string(manifest.attempt)}};
    std::uint64_t at = 0;
    for (const Exporting& one : tensors) {
        if (one.tensor->name == "__metadata__") return Error{Code::Refused, "tensor '__metadata__': safetensors keeps that name for itself; use --format npz"};
        header[one.tensor->name] = {{"dtype", type_name(one.tensor->dtype)}, {"shape", one.shape}, {"data_offsets", {at, at + one.bytes}}};
        at += one.bytes;
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    if (text.size() > kMostHeaderBytes) {
        return Error{Code::Refused, fmt::format("the header of {} tensors has {} bytes, readers of safetensors accept {}; use --format npz", tensors.size(),
                                                text.size(), kMostHeaderBytes)};
    }
    if (auto written = file.write(little_endian(text.size()) + text); !written) return written;
    for (const Exporting& one : tensors) {
        auto written = stream(opened.checkpoint, *one.tensor, one.rank, [&](std::span<const char> bytes) {
            progress.add(bytes.size());
            return file.write({bytes.data(), bytes.size()});
        });
        if (!written) return written;
    }
    return {};
}

}  // namespace gangline::checkpoint::tool
