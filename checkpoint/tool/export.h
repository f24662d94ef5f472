#pragma once
// A checkpoint as one file of global tensors, for programs that know nothing of Gangline. Streamed in bounded memory; the
// file stands under its name only when it is whole and fsynced.
//
// Source: the safetensors format, https://github.com/huggingface/safetensors#format; NumPy NEP 1 (.npy 1.0); APPNOTE.TXT
//         6.3.3 (ZIP64), members stored.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/tool/new_file.h"
#include "checkpoint/tool/output.h"
#include "checkpoint/tool/place.h"

namespace gangline::checkpoint::tool {

enum class Format { Safetensors, Npz };

struct ExportRequest {
    Format format = Format::Safetensors;
    std::string output;
    std::optional<std::uint32_t> rank;  // whose per-rank tensors go in too
    Existing existing = Existing::Refuse;
};
struct Exported {
    std::uint64_t bytes = 0;
    std::uint64_t tensors = 0;
    std::vector<std::string> notes;  // what was left out, or is stored otherwise
};

// Errors: InvalidArgument; Refused: a name or size that the format cannot hold; Damaged; NoSpace; as NewFile.
Result<Exported> export_checkpoint(Opened& opened, const ExportRequest& request);

// One tensor of the file. The writers get them in name order.
struct Exporting {
    const TensorRecord* tensor = nullptr;
    std::uint32_t rank = 0;
    Shape shape;
    std::uint64_t bytes = 0;
};
Result<void> write_safetensors(Opened& opened, std::vector<Exporting> tensors, NewFile& file, Progress& progress);
Result<void> write_npz(Opened& opened, const std::vector<Exporting>& tensors, NewFile& file, Progress& progress);

}  // namespace gangline::checkpoint::tool
