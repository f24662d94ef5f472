#include "checkpoint/tool/pieces.h"

#include <algorithm>

#include "base/check.h"

namespace gangline::checkpoint::tool {
namespace {

constexpr std::uint64_t kLeastBytes = 16u << 20;
constexpr std::uint64_t kMostBytes = 128u << 20;

}  // namespace

Pieces::Pieces(Shape shape, std::uint64_t most_elements) : shape_(std::move(shape)), point_(shape_.size(), 0) {
    CHECK(most_elements > 0, "a piece holds something");
    is_done_ = elements_of(shape_).value_or(0) == 0;
    if (is_done_ || shape_.empty()) return;
    std::uint64_t inner = 1;
    split_ = shape_.size() - 1;
    while (split_ > 0 && shape_[split_] <= most_elements / inner) inner *= shape_[split_--];
    rows_ = std::clamp<std::uint64_t>(most_elements / inner, 1, shape_[split_]);
}

std::optional<Piece> Pieces::next() {
    if (is_done_) return std::nullopt;
    Piece piece{point_, shape_, first_, 1};
    if (shape_.empty()) {
        is_done_ = true;
        return piece;
    }
    for (std::size_t i = 0; i < split_; ++i) piece.extent[i] = 1;
    piece.extent[split_] = std::min(rows_, shape_[split_] - point_[split_]);
    for (const std::uint64_t extent : piece.extent) piece.count *= extent;
    first_ += piece.count;
    point_[split_] += piece.extent[split_];
    for (std::size_t i = split_; point_[i] == shape_[i]; --i) {
        if (i == 0) {
            is_done_ = true;
            break;
        }
        point_[i] = 0;
        ++point_[i - 1];
    }
    return piece;
}

std::uint64_t piece_elements(const Manifest& manifest, const TensorRecord& tensor) {
    const std::uint64_t blocks = manifest.block_bytes * std::min<std::uint64_t>(tensor.boxes.size(), 1024);
    return std::clamp(blocks, kLeastBytes, kMostBytes) / bytes_of(tensor.dtype);
}

Result<void> read_piece(Checkpoint& checkpoint, const TensorRecord& tensor, std::uint32_t rank, const Piece& piece, std::vector<char>& bytes) {
    bytes.resize(static_cast<std::size_t>(piece.count * bytes_of(tensor.dtype)));
    const Tensor wanted{tensor.name, tensor.dtype, tensor.policy, shape_of(tensor, rank), piece.offset, piece.extent, bytes.data()};
    return checkpoint.fill(std::span(&wanted, 1), rank);
}

Result<void> stream(Checkpoint& checkpoint, const TensorRecord& tensor, std::uint32_t rank,
                    const std::function<Result<void>(std::span<const char>)>& each) {
    Pieces pieces(shape_of(tensor, rank), piece_elements(checkpoint.manifest(), tensor));
    std::vector<char> bytes;
    while (const auto piece = pieces.next()) {
        if (auto read = read_piece(checkpoint, tensor, rank, *piece, bytes); !read) return read;
        if (auto done = each(bytes); !done) return done;
    }
    return {};
}

Shape position_of(std::uint64_t index, const Shape& shape) {
    Shape position(shape.size());
    for (std::size_t i = shape.size(); i > 0; --i) {
        position[i - 1] = index % shape[i - 1];
        index /= shape[i - 1];
    }
    return position;
}

}  // namespace gangline::checkpoint::tool
