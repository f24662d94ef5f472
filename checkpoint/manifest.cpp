#include "checkpoint/manifest.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

namespace gangline::checkpoint {
namespace {

constexpr std::string_view kMagic = "GLCKPT\r\n";

template <class Number>
void put(std::string& out, Number value) {
    static_assert(std::endian::native == std::endian::little, "the file's numbers are the machine's");
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out.append(bytes, sizeof value);
}

void put_text(std::string& out, std::string_view text) {
    put(out, static_cast<std::uint32_t>(text.size()));
    out.append(text);
}

void put_shape(std::string& out, const Shape& shape) {
    for (const std::uint64_t value : shape) put(out, value);
}

// Takes from the front of bytes that nobody may trust. After the first failure everything reads as zero and `why` says
// what was wrong where.
class Cursor {
  public:
    explicit Cursor(std::string_view bytes) : bytes_(bytes) {}

    template <class Number>
    Number take(std::string_view what) {
        if (!need(sizeof(Number), what)) return 0;
        Number value = 0;
        std::memcpy(&value, bytes_.data() + at_, sizeof value);
        at_ += sizeof value;
        return value;
    }
    std::string take_text(std::string_view what, std::size_t most) {
        const auto size = take<std::uint32_t>(what);
        if (size > most) fail(fmt::format("{} of {} bytes, at most {} are possible", what, size, most));
        if (!need(size, what)) return {};
        std::string text(bytes_.substr(at_, size));
        at_ += size;
        return text;
    }
    // A count of entries of at least `least_bytes` each: never more than the bytes that are left can hold.
    std::uint32_t take_count(std::string_view what, std::size_t least_bytes) {
        const auto count = take<std::uint32_t>(what);
        if (count > (bytes_.size() - at_) / least_bytes) {
            fail(fmt::format("{} {} do not fit into the {} bytes that are left", count, what, bytes_.size() - at_));
            return 0;
        }
        return is_good() ? count : 0;
    }
    Shape take_shape(std::string_view what, std::size_t dimensions) {
        Shape shape;
        shape.reserve(dimensions);
        for (std::size_t i = 0; i < dimensions && is_good(); ++i) shape.push_back(take<std::uint64_t>(what));
        return shape;
    }
    void fail(std::string why) {
        if (is_good()) why_ = fmt::format("byte {}: {}", at_, why);
    }
    bool is_good() const { return why_.empty(); }
    bool is_at_end() const { return at_ == bytes_.size(); }
    std::string_view rest() const { return bytes_.substr(at_); }
    const std::string& why() const { return why_; }

  private:
    bool need(std::size_t size, std::string_view what) {
        if (is_good() && size > bytes_.size() - at_) fail(fmt::format("the file ends inside {}", what));
        return is_good();
    }

    std::string_view bytes_;
    std::size_t at_ = 0;
    std::string why_;
};

ShardRecord take_shard(Cursor& in, const Manifest& manifest) {
    ShardRecord shard;
    shard.rank = in.take<std::uint32_t>("a shard's rank");
    shard.name = in.take_text("a shard's name", 255);
    shard.size = in.take<std::uint64_t>("a shard's size");
    const std::uint32_t blocks = in.take_count("block checksums", 4);
    shard.block_crcs.reserve(blocks);
    for (std::uint32_t i = 0; i < blocks && in.is_good(); ++i) {
        shard.block_crcs.push_back(in.take<std::uint32_t>("a block checksum"));
    }
    if (!in.is_good()) return shard;
    if (shard.rank >= manifest.world) in.fail(fmt::format("shard of rank {} in a world of {}", shard.rank, manifest.world));
    if (shard.name != shard_name(shard.rank, manifest.world)) in.fail("a shard has a name that is not its rank's");
    const std::uint64_t expected = shard.size / manifest.block_bytes + (shard.size % manifest.block_bytes != 0 ? 1 : 0);
    if (shard.block_crcs.size() != expected) {
        in.fail(fmt::format("{} block checksums for {} blocks of {}", shard.block_crcs.size(), expected, shard.name));
    }
    if (!manifest.shards.empty() && manifest.shards.back().rank >= shard.rank) in.fail("shards are not in rank order");
    return shard;
}

Box take_box(Cursor& in, const Manifest& manifest, const TensorRecord& tensor) {
    const std::size_t dimensions = tensor.global_shape.size();
    Box box;
    box.shard_rank = in.take<std::uint32_t>("a box's shard");
    box.file_offset = in.take<std::uint64_t>("a box's place in its file");
    box.offset = in.take_shape("a box's offset", dimensions);
    box.extent = in.take_shape("a box's extent", dimensions);
    if (!in.is_good()) return box;
    const ShardRecord* shard = manifest.shard_of(box.shard_rank);
    const auto count = elements_of(box.extent);
    if (shard == nullptr) {
        in.fail(fmt::format("tensor '{}' lies in a shard of rank {} that is not listed", tensor.name, box.shard_rank));
        return box;
    }
    const bool is_placed = is_per_rank(tensor.policy) ? box.offset == Shape(dimensions, 0)
                                                            : is_inside(box.offset, box.extent, tensor.global_shape);
    std::uint64_t size = 0;
    if (!count || !is_placed || __builtin_mul_overflow(*count, std::uint64_t{bytes_of(tensor.dtype)}, &size)) {
        in.fail(fmt::format("a box of tensor '{}' does not lie inside its shape {}", tensor.name, to_text(tensor.global_shape)));
        return box;
    }
    if (box.file_offset > shard->size || size > shard->size - box.file_offset) {
        in.fail(fmt::format("a box of tensor '{}' does not lie inside {}", tensor.name, shard->name));
    }
    return box;
}

TensorRecord take_tensor(Cursor& in, const Manifest& manifest) {
    TensorRecord tensor;
    tensor.name = in.take_text("a tensor's name", kMostNameBytes);
    const auto dtype = dtype_of(in.take<std::uint8_t>("a dtype"));
    const auto policy = policy_of(in.take<std::uint8_t>("a policy"));
    const std::size_t dimensions = in.take<std::uint8_t>("a number of dimensions");
    if (!in.is_good()) return tensor;
    if (!dtype || !policy || dimensions > kMostDimensions || !check_name(tensor.name)) {
        in.fail("a tensor with an impossible name, dtype, policy or number of dimensions");
        return tensor;
    }
    tensor.dtype = *dtype;
    tensor.policy = *policy;
    tensor.global_shape = in.take_shape("a shape", dimensions);
    if (in.is_good() && !elements_of(tensor.global_shape)) in.fail("a shape whose number of elements wraps");
    const std::uint32_t boxes = in.take_count("boxes", 12 + 16 * dimensions);
    tensor.boxes.reserve(boxes);
    for (std::uint32_t i = 0; i < boxes && in.is_good(); ++i) tensor.boxes.push_back(take_box(in, manifest, tensor));
    if (!manifest.tensors.empty() && manifest.tensors.back().name >= tensor.name) in.fail("tensors are not in name order");
    return tensor;
}

bool overlaps(const Box& a, const Box& b) {
    for (std::size_t i = 0; i < a.offset.size(); ++i) {
        if (a.offset[i] + a.extent[i] <= b.offset[i] || b.offset[i] + b.extent[i] <= a.offset[i]) return false;
    }
    return *elements_of(a.extent) > 0 && *elements_of(b.extent) > 0;
}

// What keeps the boxes from being exactly the tensor; empty when nothing does.
std::string incomplete_because(const TensorRecord& tensor, std::uint32_t world) {
    if (tensor.policy == Policy::Replicated) {
        for (const Box& box : tensor.boxes) {
            if (box.extent != tensor.global_shape) return "is replicated, but a shard holds only a part of it";
        }
        return tensor.boxes.empty() ? "is in no shard" : "";
    }
    if (is_per_rank(tensor.policy)) {
        for (std::uint32_t rank = 0; rank < world; ++rank) {
            if (tensor.boxes.size() != world || tensor.boxes[rank].shard_rank != rank) {
                return fmt::format("belongs to each rank, but {} of {} ranks have it", tensor.boxes.size(), world);
            }
        }
        return "";
    }
    std::uint64_t covered = 0;
    std::vector<const Box*> sorted;
    for (const Box& box : tensor.boxes) {
        if (__builtin_add_overflow(covered, *elements_of(box.extent), &covered)) return "has boxes that overlap";
        if (*elements_of(box.extent) > 0) sorted.push_back(&box);
    }
    const std::uint64_t expected = *elements_of(tensor.global_shape);
    if (covered != expected) return fmt::format("has {} elements, but its slices hold {}", expected, covered);
    if (tensor.global_shape.empty() || sorted.size() == 1) return "";
    std::sort(sorted.begin(), sorted.end(), [](const Box* a, const Box* b) { return a->offset < b->offset; });
    for (std::size_t i = 0; i < sorted.size(); ++i) {
        const std::uint64_t end = sorted[i]->offset[0] + sorted[i]->extent[0];
        for (std::size_t j = i + 1; j < sorted.size() && sorted[j]->offset[0] < end; ++j) {
            if (overlaps(*sorted[i], *sorted[j])) return "has slices that overlap";
        }
    }
    return "";
}

}  // namespace

std::uint32_t version_for(const std::vector<TensorRecord>& tensors) {
    const bool is_plain = std::all_of(tensors.begin(), tensors.end(), [](const TensorRecord& tensor) { return tensor.policy <= Policy::PerRank; });
    return is_plain ? 1 : 2;
}

std::uint32_t version_for(const Manifest& manifest) { return manifest.metric ? kMeasuredVersion : version_for(manifest.tensors); }

std::uint64_t Manifest::total_bytes() const {
    std::uint64_t total = 0;
    for (const ShardRecord& shard : shards) total += shard.size;
    return total;
}

const ShardRecord* Manifest::shard_of(std::uint32_t rank) const {
    const auto at = std::lower_bound(shards.begin(), shards.end(), rank,
                                     [](const ShardRecord& shard, std::uint32_t value) { return shard.rank < value; });
    return at != shards.end() && at->rank == rank ? &*at : nullptr;
}

const TensorRecord* Manifest::tensor_of(std::string_view name) const {
    const auto at = std::lower_bound(tensors.begin(), tensors.end(), name,
                                     [](const TensorRecord& tensor, std::string_view value) { return tensor.name < value; });
    return at != tensors.end() && at->name == name ? &*at : nullptr;
}

const Shape& shape_of(const TensorRecord& tensor, std::uint32_t rank) {
    return is_per_rank(tensor.policy) ? tensor.boxes.at(rank).extent : tensor.global_shape;
}

std::string shard_name(std::uint32_t rank, std::uint32_t world) { return fmt::format("shard-{:05}-of-{:05}.h5", rank, world); }

std::string seal(std::string body) {
    const Sha256 digest = sha256(body);
    body.append(reinterpret_cast<const char*>(digest.data()), digest.size());
    return body;
}

Sha256 seal_of(std::string_view file) {
    Sha256 digest{};
    if (file.size() >= digest.size()) std::memcpy(digest.data(), file.data() + file.size() - digest.size(), digest.size());
    return digest;
}

bool is_sealed(std::string_view file) { return file.size() >= 32 && sha256(file.substr(0, file.size() - 32)) == seal_of(file); }

namespace {

std::size_t encoded_size(const Manifest& head, std::size_t tensors) {
    std::size_t size = kMagic.size() + 4 + 8 + 8 + 4 + 4 + 8 + (head.metric ? 8 : 0) + 4 + tensors + sizeof(Sha256);
    for (const ShardRecord& shard : head.shards) size += 4 + 4 + shard.name.size() + 8 + 4 + 4 * shard.block_crcs.size();
    return size;
}

std::string encode(const Manifest& head, std::uint32_t version, std::string_view tensors) {
    std::string out;
    out.reserve(encoded_size(head, tensors.size()));
    out += kMagic;
    put(out, version);
    put(out, head.job);
    put(out, head.step);
    put(out, head.attempt);
    put(out, head.world);
    put(out, head.block_bytes);
    if (head.metric) put(out, std::bit_cast<std::uint64_t>(*head.metric));
    put(out, static_cast<std::uint32_t>(head.shards.size()));
    for (const ShardRecord& shard : head.shards) {
        put(out, shard.rank);
        put_text(out, shard.name);
        put(out, shard.size);
        put(out, static_cast<std::uint32_t>(shard.block_crcs.size()));
        for (const std::uint32_t crc : shard.block_crcs) put(out, crc);
    }
    out += tensors;
    return seal(std::move(out));
}

}  // namespace

std::string encode_tensors(const std::vector<TensorRecord>& tensors) {
    std::string out;
    std::size_t size = 4;
    for (const TensorRecord& tensor : tensors) size += 16 + tensor.name.size() + 8 * tensor.global_shape.size() + tensor.boxes.size() * (12 + 16 * tensor.global_shape.size());
    out.reserve(size);
    put(out, static_cast<std::uint32_t>(tensors.size()));
    for (const TensorRecord& tensor : tensors) {
        put_text(out, tensor.name);
        put(out, static_cast<std::uint8_t>(tensor.dtype));
        put(out, static_cast<std::uint8_t>(tensor.policy));
        put(out, static_cast<std::uint8_t>(tensor.global_shape.size()));
        put_shape(out, tensor.global_shape);
        put(out, static_cast<std::uint32_t>(tensor.boxes.size()));
        for (const Box& box : tensor.boxes) {
            put(out, box.shard_rank);
            put(out, box.file_offset);
            put_shape(out, box.offset);
            put_shape(out, box.extent);
        }
    }
    return out;
}

std::string encode(const Manifest& manifest) { return encode(manifest, version_for(manifest), encode_tensors(manifest.tensors)); }
std::string encode(const Part& part) { return encode(part.head, part.head.version, *part.tensors); }
std::size_t encoded_size(const Part& part) { return encoded_size(part.head, part.tensors->size()); }

namespace {

Error damaged(std::string why) { return {Code::Damaged, "manifest: " + std::move(why)}; }

struct Split {
    Manifest head;
    Cursor tensors;  // stands before them
};

Result<Split> split(std::string_view file) {
    if (file.size() < kMagic.size() + 32) return damaged(fmt::format("only {} bytes long", file.size()));
    if (!file.starts_with(kMagic)) return damaged("it does not begin as a manifest does");
    if (!is_sealed(file)) return damaged("its SHA-256 does not match its content");
    Split parsed{{}, Cursor(file.substr(kMagic.size(), file.size() - kMagic.size() - 32))};
    Cursor& in = parsed.tensors;
    Manifest& head = parsed.head;
    head.version = in.take<std::uint32_t>("the version");
    if (head.version == 0) return damaged("version 0");
    if (head.version > kManifestVersion) {
        return Error{Code::Refused, fmt::format("manifest: version {}, this program reads versions 1 to {}", head.version, kManifestVersion)};
    }
    head.job = in.take<std::uint64_t>("the job");
    head.step = in.take<std::uint64_t>("the step");
    head.attempt = in.take<std::uint32_t>("the attempt");
    head.world = in.take<std::uint32_t>("the world");
    head.block_bytes = in.take<std::uint64_t>("the block size");
    if (head.version >= kMeasuredVersion) head.metric = std::bit_cast<double>(in.take<std::uint64_t>("the metric"));
    if (in.is_good() && (head.world == 0 || head.world > kMostWorld)) in.fail("an impossible world size");
    if (in.is_good() && (head.block_bytes < 4096 || head.block_bytes > (1u << 30))) in.fail("an impossible block size");
    const std::uint32_t shards = in.take_count("shards", 20);
    for (std::uint32_t i = 0; i < shards && in.is_good(); ++i) head.shards.push_back(take_shard(in, head));
    if (!in.is_good()) return damaged(in.why());
    return parsed;
}

}  // namespace

Result<Manifest> parse(std::string_view file) {
    auto parsed = split(file);
    if (!parsed) return parsed.error();
    Cursor& in = parsed->tensors;
    Manifest manifest = std::move(parsed->head);
    const std::uint32_t tensors = in.take_count("tensors", 11);
    manifest.tensors.reserve(tensors);
    for (std::uint32_t i = 0; i < tensors && in.is_good(); ++i) manifest.tensors.push_back(take_tensor(in, manifest));
    if (in.is_good() && !in.is_at_end()) in.fail("bytes behind the last tensor");
    if (in.is_good() && manifest.version != version_for(manifest)) in.fail(fmt::format("version {} is not that of its content", manifest.version));
    if (!in.is_good()) return damaged(in.why());
    if (manifest.is_whole()) {
        for (const TensorRecord& tensor : manifest.tensors) {
            const std::string why = incomplete_because(tensor, manifest.world);
            if (!why.empty()) return damaged(fmt::format("tensor '{}' {}", tensor.name, why));
        }
    }
    return manifest;
}

namespace {

// Puts the boxes of one rank's tensors to those of lower ranks. Both ascend by name. Returns what they disagree in; empty when they do not.
std::string add_tensors(std::vector<TensorRecord>& all, std::vector<TensorRecord>& added, std::uint32_t rank) {
    auto at = all.begin();
    std::vector<TensorRecord> fresh;
    for (TensorRecord& tensor : added) {
        while (at != all.end() && at->name < tensor.name) ++at;
        if (at == all.end() || at->name != tensor.name) {
            fresh.push_back(std::move(tensor));
            continue;
        }
        const bool same_shape = is_per_rank(tensor.policy) ? tensor.global_shape.size() == at->global_shape.size() : tensor.global_shape == at->global_shape;
        if (!same_shape || tensor.dtype != at->dtype || tensor.policy != at->policy) {
            return fmt::format("rank {} tracks tensor '{}' as {} {} {}, lower ranks as {} {} {}", rank, tensor.name, name_of(tensor.policy),
                               name_of(tensor.dtype), to_text(tensor.global_shape), name_of(at->policy), name_of(at->dtype), to_text(at->global_shape));
        }
        std::move(tensor.boxes.begin(), tensor.boxes.end(), std::back_inserter(at->boxes));
    }
    if (fresh.empty()) return "";
    const auto known = static_cast<std::ptrdiff_t>(all.size());
    std::move(fresh.begin(), fresh.end(), std::back_inserter(all));
    std::inplace_merge(all.begin(), all.begin() + known, all.end(), [](const TensorRecord& a, const TensorRecord& b) { return a.name < b.name; });
    return "";
}

}  // namespace

Manifest part_of(const Manifest& whole, std::uint32_t rank) {
    Manifest part = whole;
    std::erase_if(part.shards, [&](const ShardRecord& shard) { return shard.rank != rank; });
    for (TensorRecord& tensor : part.tensors) std::erase_if(tensor.boxes, [&](const Box& box) { return box.shard_rank != rank; });
    std::erase_if(part.tensors, [](const TensorRecord& tensor) { return tensor.boxes.empty(); });
    if (rank != 0) part.metric.reset();  // rank 0's alone counts
    part.version = version_for(part);
    return part;
}

Result<Manifest> merge(std::vector<Manifest> parts) {
    auto refuse = [](std::string why) { return Error{Code::InvalidArgument, std::move(why)}; };
    if (parts.empty() || parts.size() != parts[0].world) {
        return refuse(fmt::format("{} parts of a checkpoint of {} ranks", parts.size(), parts.empty() ? 0 : parts[0].world));
    }
    Manifest whole;
    whole.job = parts[0].job;
    whole.step = parts[0].step;
    whole.attempt = parts[0].attempt;
    whole.world = parts[0].world;
    whole.block_bytes = parts[0].block_bytes;
    whole.metric = parts[0].metric;
    for (std::uint32_t rank = 0; rank < parts.size(); ++rank) {
        Manifest& part = parts[rank];
        if (part.shards.size() != 1 || part.shards[0].rank != rank || part.job != whole.job || part.step != whole.step ||
            part.attempt != whole.attempt || part.world != whole.world || part.block_bytes != whole.block_bytes) {
            return refuse(fmt::format("rank {}'s part is of another checkpoint: job {} step {} attempt {} world {}", rank, part.job,
                                      part.step, part.attempt, part.world));
        }
        if (part.metric && rank != 0) return refuse(fmt::format("rank {}'s part has a metric: rank 0's alone counts", rank));
        whole.version = std::max(whole.version, part.version);
        whole.shards.push_back(std::move(part.shards[0]));
        if (std::string why = add_tensors(whole.tensors, part.tensors, rank); !why.empty()) return refuse(std::move(why));
    }
    for (const TensorRecord& tensor : whole.tensors) {
        const std::string why = incomplete_because(tensor, whole.world);
        if (!why.empty()) return refuse(fmt::format("tensor '{}' {}", tensor.name, why));
    }
    return whole;
}

Result<Merger::Whole> Merger::merge(const std::vector<std::string>& part_files) {
    std::vector<Manifest> heads;
    std::vector<Known> now;
    for (const std::string& file : part_files) {
        auto part = split(file);
        if (!part) return part.error();
        now.push_back({part->head.total_bytes(), part->head.block_bytes, sha256(part->tensors.rest())});
        heads.push_back(std::move(part->head));
    }
    if (now != known_) {
        std::vector<Manifest> parts;
        for (const std::string& file : part_files) {
            auto part = parse(file);
            if (!part) return part.error();
            parts.push_back(std::move(*part));
        }
        const auto whole = checkpoint::merge(std::move(parts));
        if (!whole) return whole.error();
        tensors_ = encode_tensors(whole->tensors);
        known_ = std::move(now);
    }
    auto head = checkpoint::merge(std::move(heads));
    if (!head) return head.error();
    std::string file = encode(*head, head->version, tensors_);
    return Whole{std::move(*head), std::move(file)};
}

}  // namespace gangline::checkpoint
