#pragma once
// Reading a checkpoint back, at the same or another world size.
//
// Bytes are found by the manifest alone; the HDF5 library does not parse them. Every block is verified in the same pass that brings its bytes to
// the tensors. A wanted box is put together from all boxes that it intersects, whoever wrote them.
//
//   pieces   what a wanted tensor and a stored box share: rows that are contiguous in both, by ascending bytes of the shard
//   blocks   each block that a piece lies in is read once, with its neighbours, by one of a few threads; all pieces take their rows out of it.
//            (Reading straight into tensors was slower: their pages are small, and seldom as O_DIRECT wants them. docs/benchmarks.md, B8)
//
// Cold blocks are read with O_DIRECT, those in the page cache from there. Thread rule: one thread an object (it starts its own).

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/handle.h"
#include "base/result.h"
#include "checkpoint/another_world.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor.h"

namespace gangline::checkpoint {

// A shard's bytes in memory that a keeper holds (a memfd), mapped for reading; they are verified as a file's are.
class ShardMemory {
  public:
    // Errors: Damaged: there are not so many bytes.
    static Result<ShardMemory> map(const Fd& memory, std::uint64_t size);
    ShardMemory(ShardMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
    ShardMemory& operator=(ShardMemory&&) = delete;
    ~ShardMemory();
    const char* data() const { return data_; }
    std::uint64_t size() const { return size_; }

  private:
    ShardMemory(const char* data, std::uint64_t size) : data_(data), size_(size) {}
    const char* data_;
    std::uint64_t size_;
};

// A shard's bytes as they come from elsewhere.
class ShardStream {
  public:
    virtual ~ShardStream() = default;
    // From ascending places, each byte once at most. Errors: Unavailable: nothing more will come.
    virtual Result<void> read(std::uint64_t begin, char* to, std::uint64_t size) = 0;
};

class Checkpoint {
  public:
    // `folder` holds the shards; `place` is its path in messages. While the object lives no shard of it is recycled.
    Checkpoint(Fd folder, Manifest manifest, std::string place);

    const Manifest& manifest() const { return manifest_; }
    const std::string& place() const { return place_; }
    int folder() const { return folder_.get(); }
    // This rank's shard is read from here; blocks that do not have their checksum come from its file.
    void use_memory(std::uint32_t rank, ShardMemory memory) { memory_.emplace(rank, std::move(memory)); }
    // Asked for each shard that is read and has no memory here, one after the other: a stream, or nothing. What does not come right comes from the file.
    using FindStream = std::function<std::unique_ptr<ShardStream>(const ShardRecord& shard)>;
    void find_stream(FindStream find) { find_stream_ = std::move(find); }
    // Called by the reading threads each time that they have got on.
    void while_reading(std::function<void()> call) { while_reading_ = std::move(call); }
    // What was wrong with such memory, in words; empty: nothing.
    const std::string& memory_problems() const { return memory_problems_; }

    // Fills all tensors of one rank. Strict: the checkpoint has exactly these names, with these types and shapes.
    // Each rank's own state: in a world of the same size as it was saved, otherwise as `ways` says.
    // Errors: Refused with a remedy (other tensors, or another world and per-rank state): nothing has been written, unless a callback refused.
    //         Damaged, naming file and block: tensors hold parts of the checkpoint and of what is not; do not train on.
    Result<void> restore(std::span<const Tensor> wanted, std::uint32_t rank, std::uint32_t world, const AnotherWorld& ways = {});
    // Fills these tensors only, each a box of what is stored; `rank` says whose, of per-rank ones. Errors: as restore.
    Result<void> fill(std::span<const Tensor> wanted, std::uint32_t rank);
    // Reads and checks every block of every shard. `progress` hears how many bytes are done, from any thread. Errors: Damaged.
    Result<void> verify(const std::function<void(std::uint64_t done)>& progress = {});

  private:
    struct File {
        Fd cached;
        Fd direct;  // nothing where the file system has no O_DIRECT
        std::optional<ShardMemory> mapped;
        bool is_cached(std::uint64_t begin, std::uint64_t bytes) const;  // the page cache has all of it
    };
    // Rows of `run` bytes, by ascending places in the shard.
    struct Piece {
        std::uint64_t file_offset = 0;  // of the first row
        char* data = nullptr;
        std::uint64_t run = 0;
        std::uint64_t rows = 1;
        Shape counts;                   // of the outer dimensions, outermost first; their product is `rows`
        Shape file_strides;             // bytes
        Shape data_strides;
    };
    struct Work {  // blocks side by side, read at once
        const ShardRecord* shard = nullptr;
        std::uint64_t block = 0;
        std::uint64_t blocks = 1;
        std::vector<std::uint32_t> pieces;  // that have bytes in them, ascending
    };
    struct Range {  // of a shard
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
    };

    struct Feed {  // of the shard that is being read
        const ShardRecord* shard = nullptr;
        std::unique_ptr<ShardStream> stream;
    };

    Result<void> check(std::span<const Tensor> wanted) const;
    Result<void> deal_out(std::span<const Tensor> split, std::uint32_t rank, std::uint32_t world, const AnotherWorld& ways);
    Result<void> check_one(const Tensor& tensor, const TensorRecord* stored) const;
    Result<void> open_file(const ShardRecord& shard);
    void add_piece(const Tensor& wanted, const Box& box);
    void add_pieces(const Tensor& wanted, const TensorRecord& stored, std::uint32_t rank);
    static std::uint64_t first_row_behind(const Piece& piece, std::uint64_t begin);
    static bool has_bytes_in(const Piece& piece, std::uint64_t begin, std::uint64_t end);
    void copy_rows(const Piece& piece, const Range& range, const char* bytes) const;
    std::uint64_t most_blocks() const;
    Range range_of(const Work& work) const;
    const std::vector<Piece>& pieces_of(const ShardRecord& shard) const;
    void add_work(std::vector<Work>& work, const ShardRecord& shard, std::uint64_t block, const std::vector<std::uint32_t>& pieces) const;
    Result<void> read_range(const ShardRecord& shard, const Range& range, char* memory) const;
    std::uint32_t take_block(const ShardRecord& shard, const std::vector<std::uint32_t>& pieces, const Range& range, const char* bytes) const;
    std::optional<Range> take_blocks(const Work& work, const char* bytes) const;
    bool take_from_stream(Feed& feed, const Work& work, char* buffer) const;
    Result<void> perform(const Work& work, char* buffer, bool is_in_buffer, std::string& problem) const;
    Result<void> run(const std::vector<Work>& work, const std::function<void(std::uint64_t)>& progress);
    Result<void> run_pieces();

    Fd folder_;
    Manifest manifest_;
    std::string place_;
    std::map<std::uint32_t, File> files_;  // by rank
    std::map<std::uint32_t, ShardMemory> memory_;  // by rank
    FindStream find_stream_;
    std::string memory_problems_;
    std::function<void()> while_reading_;
    std::map<std::uint32_t, std::vector<Piece>> pieces_;  // by rank of the shard
};

}  // namespace gangline::checkpoint
