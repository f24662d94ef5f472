#pragma once
// A tensor in bounded pieces: each a box that is one run of the row-major order, and read by itself.
//
// Units: elements. Thread rule: one thread an object.

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "checkpoint/reader.h"

namespace gangline::checkpoint::tool {

struct Piece {
    Shape offset;
    Shape extent;
    std::uint64_t first = 0;  // index of its first element in the tensor
    std::uint64_t count = 0;
};

class Pieces {
  public:
    // `most_elements` at least 1.
    Pieces(Shape shape, std::uint64_t most_elements);
    std::optional<Piece> next();

  private:
    Shape shape_;
    std::size_t split_ = 0;    // dimensions before it go one by one, it goes by `rows_`, those behind it are whole
    std::uint64_t rows_ = 1;
    Shape point_;
    std::uint64_t first_ = 0;
    bool is_done_ = false;
};

// A piece for each of these bytes at most; larger where many shards hold parts of each row, so that blocks are read seldom.
std::uint64_t piece_elements(const Manifest& manifest, const TensorRecord& tensor);
// The piece's bytes, little-endian, verified. `bytes` is resized. Errors: as Checkpoint::fill.
Result<void> read_piece(Checkpoint& checkpoint, const TensorRecord& tensor, std::uint32_t rank, const Piece& piece, std::vector<char>& bytes);
// All pieces in order. Errors: as read_piece; those of `each` end it.
Result<void> stream(Checkpoint& checkpoint, const TensorRecord& tensor, std::uint32_t rank,
                    const std::function<Result<void>(std::span<const char>)>& each);
// "[3, 7]" of an element.
Shape position_of(std::uint64_t index, const Shape& shape);

}  // namespace gangline::checkpoint::tool
