// npz: a ZIP64 of stored .npy members. A member's CRC-32 is known only behind its data, and then put into its header.

#include <zlib.h>

#include <fmt/format.h>

#include "checkpoint/tool/export.h"
#include "checkpoint/tool/pieces.h"

namespace gangline::checkpoint::tool {
namespace {

constexpr std::uint16_t kVersion = 45;         // ZIP64
constexpr std::uint16_t kUtf8Names = 1u << 11;
constexpr std::uint16_t kDate = (0u << 9) | (1u << 5) | 1u;  // 1980-01-01: the same tensors, the same file
constexpr std::uint64_t kCrcPlace = 14;        // in a member's header
constexpr std::uint32_t kInExtra = 0xFFFFFFFFu;

const char* numpy_type(DType dtype) {
    switch (dtype) {
        case DType::F64: return "<f8";
        case DType::F32: return "<f4";
        case DType::F16: return "<f2";
        case DType::BF16: return "<u2";
        case DType::F8E4M3:
        case DType::F8E5M2: return "|u1";
        case DType::I64: return "<i8";
        case DType::I32: return "<i4";
        case DType::I16: return "<i2";
        case DType::I8: return "|i1";
        case DType::U64: return "<u8";
        case DType::U32: return "<u4";
        case DType::U16: return "<u2";
        case DType::U8: return "|u1";
        case DType::Bool: return "|b1";
    }
    return "?";
}

template <class Number>
void put(std::string& out, Number value) {
    for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
}

struct Member {
    std::string name;
    std::uint64_t place = 0;
    std::uint64_t size = 0;
    std::uint32_t crc = 0;
};

std::string npy_header(const Exporting& one) {
    std::string shape;
    for (const std::uint64_t extent : one.shape) shape += fmt::format("{},{}", extent, one.shape.size() == 1 ? "" : " ");
    if (one.shape.size() > 1) shape.resize(shape.size() - 2);
    std::string words = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", numpy_type(one.tensor->dtype), shape);
    const std::size_t whole = (10 + words.size() + 1 + 63) / 64 * 64;
    words.resize(whole - 11, ' ');
    std::string header("\x93NUMPY\x01\x00", 8);
    put(header, static_cast<std::uint16_t>(words.size() + 1));
    return header + words + "\n";
}

// What a member's header and its entry in the directory share: from the version that is needed to the length of the name.
void put_common(std::string& out, const Member& member) {
    put(out, kVersion);
    put(out, kUtf8Names);
    put(out, std::uint16_t{0});  // stored
    put(out, std::uint16_t{0});
    put(out, kDate);
    put(out, member.crc);
    put(out, kInExtra);
    put(out, kInExtra);
    put(out, static_cast<std::uint16_t>(member.name.size()));
}

std::string member_header(const Member& member) {
    std::string out("PK\x03\x04", 4);
    put_common(out, member);
    put(out, std::uint16_t{20});
    out += member.name;
    put(out, std::uint16_t{1});
    put(out, std::uint16_t{16});
    put(out, member.size);
    put(out, member.size);
    return out;
}

std::string directory_entry(const Member& member) {
    std::string out("PK\x01\x02", 4);
    put(out, static_cast<std::uint16_t>(3u << 8 | kVersion));  // made on Unix
    put_common(out, member);
    put(out, std::uint16_t{28});
    put(out, std::uint16_t{0});                    // no comment
    put(out, std::uint16_t{0});                    // first disk
    put(out, std::uint16_t{0});
    put(out, std::uint32_t{0100644u << 16});
    put(out, kInExtra);
    out += member.name;
    put(out, std::uint16_t{1});
    put(out, std::uint16_t{24});
    put(out, member.size);
    put(out, member.size);
    put(out, member.place);
    return out;
}

std::string end_of_directory(std::uint64_t members, std::uint64_t begin, std::uint64_t end) {
    std::string out("PK\x06\x06", 4);
    put(out, std::uint64_t{44});
    put(out, static_cast<std::uint16_t>(3u << 8 | kVersion));
    put(out, kVersion);
    put(out, std::uint32_t{0});
    put(out, std::uint32_t{0});
    put(out, members);
    put(out, members);
    put(out, end - begin);
    put(out, begin);
    out += std::string("PK\x06\x07", 4);
    put(out, std::uint32_t{0});
    put(out, end);
    put(out, std::uint32_t{1});
    out += std::string("PK\x05\x06", 4);
    put(out, std::uint16_t{0});
    put(out, std::uint16_t{0});
    put(out, std::uint16_t{0xFFFF});
    put(out, std::uint16_t{0xFFFF});
    put(out, kInExtra);
    put(out, kInExtra);
    put(out, std::uint16_t{0});
    return out;
}

std::uint32_t crc_of(std::uint32_t crc, const char* data, std::size_t size) {
    return static_cast<std::uint32_t>(::crc32_z(crc, reinterpret_cast<const Bytef*>(data), size));
}

}  // namespace

Result<void> write_npz(Opened& opened, const std::vector<Exporting>& tensors, NewFile& file, Progress& progress) {
    std::vector<Member> members;
    for (const Exporting& one : tensors) {
        const std::string header = npy_header(one);
        Member member{one.tensor->name + ".npy", file.size(), header.size() + one.bytes, crc_of(0, header.data(), header.size())};
        if (auto written = file.write(member_header(member) + header); !written) return written;
        auto streamed = stream(opened.checkpoint, *one.tensor, one.rank, [&](std::span<const char> bytes) {
            member.crc = crc_of(member.crc, bytes.data(), bytes.size());
            progress.add(bytes.size());
            return file.write({bytes.data(), bytes.size()});
        });
        if (!streamed) return streamed;
        std::string crc;
        put(crc, member.crc);
        if (auto written = file.write_at(crc, member.place + kCrcPlace); !written) return written;
        members.push_back(std::move(member));
    }
    const std::uint64_t begin = file.size();
    for (const Member& member : members) {
        if (auto written = file.write(directory_entry(member)); !written) return written;
    }
    return file.write(end_of_directory(members.size(), begin, file.size()));
}

}  // namespace gangline::checkpoint::tool
