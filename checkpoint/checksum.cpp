#include "checkpoint/checksum.h"

#include <sodium.h>

#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
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

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(const void* data, std::size_t size, std::uint32_t crc) {
    const char* bytes = static_cast<const char*>(data);
    std::uint64_t value = ~crc;
    for (; size >= 8; size -= 8, bytes += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes, 8);
        value = _mm_crc32_u64(value, word);
    }
    auto low = static_cast<std::uint32_t>(value);
    for (; size > 0; --size, ++bytes) low = _mm_crc32_u8(low, static_cast<std::uint8_t>(*bytes));
    return ~low;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t crc) {
    const auto* bytes = static_cast<const std::uint8_t*>(data);
    crc = ~crc;
    for (std::size_t i = 0; i < size; ++i) crc = (crc >> 8) ^ kTable[(crc ^ bytes[i]) & 0xFFu];
    return ~crc;
}

std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t crc) {
#if defined(__x86_64__)
    static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
    if (has_instruction) return crc32c_sse42(data, size, crc);
#endif
    return crc32c_portable(data, size, crc);
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
