// Manifests come from disks. Whatever the bytes: parse refuses, or gives what encodes back to the same bytes.
// A mutated body is sealed anew as well, so that the mutations reach the parser behind the SHA-256.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "checkpoint/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace gangline::checkpoint;
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    (void)parse(bytes);
    const std::string sealed = seal(std::string(bytes.substr(0, size < 32 ? size : size - 32)));
    if (const auto manifest = parse(sealed); manifest.ok()) {
        CHECK(encode(*manifest) == sealed, "what parses encodes back to the same bytes");
    }
    return 0;
}
