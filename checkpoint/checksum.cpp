#include "checkpoint/checksum.h"

#include <isa-l/crc.h>
#include <sodium.h>

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gangline::checkpoint {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
        std::uint32_t value = i;
        for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1u) != 0 ? 0x82F63B78u : 0u);
        table[i] = value;
    }
    return table;
}
constexpr std::array<std::uint32_t, 256> kTable = make_table();

constexpr std::size_t kPiece = 32 * 1024;  // read for the checksum, it is still in the cache for the copy

#if defined(__x86_64__)
// `to` is aligned to 32 bytes, `size` a multiple of 64.
__attribute__((target("avx"))) void stream(char* to, const char* from, std::size_t size) {
    for (const char* const end = from + size; from != end; from += 64, to += 64) {
        const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to), low);
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), high);
    }
    _mm_sfence();
}
#endif

}  // namespace

std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t crc) {
    const auto* bytes = static_cast<const std::uint8_t*>(data);
    crc = ~crc;
    for (std::size_t i = 0; i < size; ++i) crc = (crc >> 8) ^ kTable[(crc ^ bytes[i]) & 0xFFu];
    return ~crc;
}

// isa-l's state is the complement of the checksum, its length an int.
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t crc) {
    constexpr std::size_t kMost = 1u << 30;
    auto* bytes = static_cast<unsigned char*>(const_cast<void*>(data));  // it is only read
    while (size != 0) {
        const std::size_t here = std::min(size, kMost);
        crc = ~crc32_iscsi(bytes, static_cast<int>(here), ~crc);
        bytes += here;
        size -= here;
    }
    return crc;
}

void copy_past_caches(void* to, const void* from, std::size_t size) {
#if defined(__x86_64__)
    static const bool has_avx = __builtin_cpu_supports("avx") != 0;
    if (has_avx && size >= 1024) {
        auto* place = static_cast<char*>(to);
        const auto* bytes = static_cast<const char*>(from);
        const std::size_t head = (32 - reinterpret_cast<std::uintptr_t>(place) % 32) % 32;
        const std::size_t middle = (size - head) / 64 * 64;
        std::memcpy(place, bytes, head);
        stream(place + head, bytes + head, middle);
        std::memcpy(place + head + middle, bytes + head + middle, size - head - middle);
        return;
    }
#endif
    std::memcpy(to, from, size);
}

std::uint32_t copy_with_crc32c(void* to, const void* from, std::size_t size, std::uint32_t crc) {
    auto* place = static_cast<char*>(to);
    const auto* bytes = static_cast<const char*>(from);
    while (size != 0) {
        const std::size_t here = std::min(size, kPiece);
        crc = crc32c(bytes, here, crc);
        copy_past_caches(place, bytes, here);
        place += here;
        bytes += here;
        size -= here;
    }
    return crc;
}

Sha256 sha256(std::string_view bytes) {
    Sha256 digest{};
    crypto_hash_sha256(digest.data(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    return digest;
}

std::string to_hex(const Sha256& digest) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (const std::uint8_t byte : digest) {
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

bool from_hex(std::string_view text, Sha256& digest) {
    if (text.size() != 2 * digest.size()) return false;
    Sha256 parsed{};
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        int digit = -1;
        if (c >= '0' && c <= '9') digit = c - '0';
        if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
        if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
        if (digit < 0) return false;
        parsed[i / 2] = static_cast<std::uint8_t>(parsed[i / 2] * 16 + digit);
    }
    digest = parsed;
    return true;
}

}  // namespace gangline::checkpoint
