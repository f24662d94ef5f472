#include "checkpoint/checksum.h"

#include <isa-l/crc.h>
#include <sodium.h>

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
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
bool has_avx() {
    static const bool has = __builtin_cpu_supports("avx") != 0;
    return has;
}
bool has_chains() {
    static const bool has = has_avx() && __builtin_cpu_supports("sse4.2") != 0 && __builtin_cpu_supports("pclmul") != 0;
    return has;
}
bool has_sha() {
    static const bool has = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        return __builtin_cpu_supports("sse4.1") != 0 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_SHA) != 0;
    }();
    return has;
}

// Bytes to the next place that a streaming store takes.
std::size_t bytes_to_alignment(const char* to) { return (32 - reinterpret_cast<std::uintptr_t>(to) % 32) % 32; }

// `to` is aligned to 32 bytes.
__attribute__((target("avx"))) inline void stream_line(char* to, const char* from) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), high);
}

// `to` is aligned to 32 bytes, `size` a multiple of 64.
__attribute__((target("avx"))) void stream(char* to, const char* from, std::size_t size) {
    for (const char* const end = from + size; from != end; from += 64, to += 64) stream_line(to, from);
    _mm_sfence();
}

// ---- the copy with its checksum, in one pass
//
//   |--chain 0--|--chain 1--|--chain 2--|--chain 3--|   kChain bytes each: the instruction waits 3 cycles for its own result, not for another's
//
// A state behind n further bytes is the state times x^(8n) modulo the polynomial. The instruction itself multiplies by x^32, and the product of
// reflected numbers lacks another factor of x.

constexpr std::size_t kChain = 128;
constexpr std::size_t kStride = 4 * kChain;

// x^exponent modulo the polynomial, reflected, for a carry-less product.
constexpr long long power_of_x(std::size_t exponent) {
    std::uint32_t value = 0x80000000u;
    for (; exponent != 0; --exponent) value = (value >> 1) ^ ((value & 1u) != 0 ? 0x82F63B78u : 0u);
    return static_cast<long long>(std::uint64_t{value} << 1);
}

template <std::size_t kBytes>
__attribute__((target("sse4.2,pclmul"))) inline std::uint32_t behind(std::uint64_t state) {
    static constexpr long long kPower = power_of_x(8 * kBytes - 32);
    const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(state)), _mm_cvtsi64_si128(kPower), 0);
    return static_cast<std::uint32_t>(_mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(product))));
}

__attribute__((target("sse4.2"))) inline std::uint64_t chain_on(std::uint64_t state, const char* from) {
    std::uint64_t word = 0;
    std::memcpy(&word, from, sizeof word);
    return _mm_crc32_u64(state, word);
}

// `to` is aligned to 32 bytes, `size` a multiple of kStride; takes and returns the state, the checksum's complement.
__attribute__((target("avx,sse4.2,pclmul"))) std::uint32_t stream_with_state(char* to, const char* from, std::size_t size, std::uint32_t state) {
    for (const char* const end = from + size; from != end; from += kStride, to += kStride) {
        std::uint64_t a = state;
        std::uint64_t b = 0;
        std::uint64_t c = 0;
        std::uint64_t d = 0;
        for (std::size_t line = 0; line < kChain; line += 64) {
            for (std::size_t chain = 0; chain < kStride; chain += kChain) stream_line(to + chain + line, from + chain + line);
            for (std::size_t at = line; at < line + 64; at += 8) {
                a = chain_on(a, from + at);
                b = chain_on(b, from + kChain + at);
                c = chain_on(c, from + 2 * kChain + at);
                d = chain_on(d, from + 3 * kChain + at);
            }
        }
        state = behind<3 * kChain>(a) ^ behind<2 * kChain>(b) ^ behind<kChain>(c) ^ static_cast<std::uint32_t>(d);
    }
    _mm_sfence();
    return state;
}

// ---- SHA-256

constexpr std::array<std::uint32_t, 64> kRounds{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74,
    0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d,
    0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e,
    0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5,
    0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using ShaState = std::array<std::uint32_t, 8>;  // a to h

// `size` is a multiple of 64. The instructions keep a, b, e, f in one register and c, d, g, h in another, the first one highest.
__attribute__((target("sha,sse4.1,ssse3"))) void sha256_blocks(ShaState& state, const char* from, std::size_t size) {
    const auto word = [&](std::size_t i) { return static_cast<int>(state[i]); };
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i abef = _mm_set_epi32(word(0), word(1), word(4), word(5));
    __m128i cdgh = _mm_set_epi32(word(2), word(3), word(6), word(7));
    for (const char* const end = from + size; from != end; from += 64) {
        const __m128i abef_before = abef;
        const __m128i cdgh_before = cdgh;
        __m128i words[4];
#pragma GCC unroll 16
        for (std::size_t four = 0; four < 16; ++four) {
            __m128i& now = words[four % 4];
            const __m128i& last = words[(four + 3) % 4];
            if (four < 4) {
                now = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * four)), big_endian);
            } else {
                now = _mm_add_epi32(_mm_sha256msg1_epu32(now, words[(four + 1) % 4]), _mm_alignr_epi8(last, words[(four + 2) % 4], 4));
                now = _mm_sha256msg2_epu32(now, last);
            }
            const __m128i sum = _mm_add_epi32(now, _mm_loadu_si128(reinterpret_cast<const __m128i*>(&kRounds[4 * four])));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    alignas(16) std::array<std::uint32_t, 4> high;
    alignas(16) std::array<std::uint32_t, 4> low;
    _mm_store_si128(reinterpret_cast<__m128i*>(high.data()), abef);
    _mm_store_si128(reinterpret_cast<__m128i*>(low.data()), cdgh);
    state = {high[3], high[2], low[3], low[2], high[1], high[0], low[1], low[0]};
}

Sha256 sha256_by_instructions(std::string_view bytes) {
    ShaState state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const std::size_t whole = bytes.size() / 64 * 64;
    sha256_blocks(state, bytes.data(), whole);
    std::array<char, 128> end{};  // the rest, one bit, zeros, and the length in bits
    const std::string_view rest = bytes.substr(whole);
    std::copy(rest.begin(), rest.end(), end.begin());
    end[rest.size()] = static_cast<char>(0x80);
    const std::size_t size = rest.size() < 56 ? 64 : 128;
    for (std::size_t i = 0; i < 8; ++i) end[size - 1 - i] = static_cast<char>((std::uint64_t{bytes.size()} * 8) >> (8 * i));
    sha256_blocks(state, end.data(), size);
    Sha256 digest{};
    for (std::size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
    return digest;
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
    if (size >= 1024 && has_avx()) {
        auto* place = static_cast<char*>(to);
        const auto* bytes = static_cast<const char*>(from);
        const std::size_t head = bytes_to_alignment(place);
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
#if defined(__x86_64__)
    if (size >= 2 * kStride && has_chains()) {
        const std::size_t head = bytes_to_alignment(place);
        const std::size_t middle = (size - head) / kStride * kStride;
        crc = crc32c(bytes, head, crc);
        std::memcpy(place, bytes, head);
        crc = ~stream_with_state(place + head, bytes + head, middle, ~crc);
        place += head + middle;
        bytes += head + middle;
        size -= head + middle;
    }
#endif
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

Sha256 sha256_portable(std::string_view bytes) {
    Sha256 digest{};
    crypto_hash_sha256(digest.data(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    return digest;
}

Sha256 sha256(std::string_view bytes) {
#if defined(__x86_64__)
    if (has_sha()) return sha256_by_instructions(bytes);
#endif
    return sha256_portable(bytes);
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
