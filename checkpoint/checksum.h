#pragma once
// CRC32C of blocks, SHA-256 of the manifest.
//
// Source: CRC32C is the Castagnoli polynomial 0x1EDC6F41, reflected, as in RFC 3720 B.4; SHA-256 is libsodium's.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gangline::checkpoint {

using Sha256 = std::array<std::uint8_t, 32>;

// `crc` is the checksum of what came before; 0 at the start. The processor's instruction is used where there is one.
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t crc = 0);
// The same without that instruction (for the test that both agree).
std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t crc = 0);
Sha256 sha256(std::string_view bytes);
std::string to_hex(const Sha256& digest);
// False unless `text` is exactly 64 hexadecimal digits.
bool from_hex(std::string_view text, Sha256& digest);

}  // namespace gangline::checkpoint
