#pragma once
// CRC32C of blocks, alone or in the same pass as a copy; SHA-256 of the manifest.
//
// Source: CRC32C is the Castagnoli polynomial 0x1EDC6F41, reflected, as in RFC 3720 B.4: alone computed by isa-l, with a copy here, by four chains
// of the processor's own instruction that are joined by multiplication (Gopal et al., Fast CRC Computation for iSCSI Polynomial, Intel 2011).
// SHA-256 is FIPS 180-4: by the processor's instructions where it has them, else libsodium's.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gangline::checkpoint {

using Sha256 = std::array<std::uint8_t, 32>;

// `crc` is the checksum of what came before; 0 at the start.
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t crc = 0);
// Copies the bytes to `to`, past the caches, and returns the same. The ranges do not overlap.
std::uint32_t copy_with_crc32c(void* to, const void* from, std::size_t size, std::uint32_t crc = 0);
// The copy alone.
void copy_past_caches(void* to, const void* from, std::size_t size);
// crc32c by a table, byte by byte (for the test that both agree).
std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t crc = 0);
Sha256 sha256(std::string_view bytes);
// The same by libsodium alone (for the test that both agree).
Sha256 sha256_portable(std::string_view bytes);
std::string to_hex(const Sha256& digest);
// False unless `text` is exactly 64 hexadecimal digits.
bool from_hex(std::string_view text, Sha256& digest);

}  // namespace gangline::checkpoint
