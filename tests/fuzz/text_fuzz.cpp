// What people type: time limits, sizes, node lists, patterns. A parse either fails or gives what compresses and expands back.

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    if (const auto limit = gangline::parse_time_limit(text); limit.ok()) {
        CHECK(limit->count() >= 0, "a time limit is not negative");
    }
    (void)gangline::parse_memory_mib(text);
    if (const auto names = gangline::expand_node_list(text); names.ok()) {
        CHECK(names->size() <= 65536, "a node list is bounded");
        if (text.find('[') == std::string_view::npos || text.find(']') == std::string_view::npos) return 0;
        const auto again = gangline::expand_node_list(gangline::compress_node_list(*names));
        const bool clean = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789[],-") == std::string_view::npos;
        if (clean) CHECK(again.ok() && *again == *names, "compress and expand are inverse");
    }
    (void)gangline::expand_pattern(text, {{'j', "12"}, {'x', "name"}});
    (void)gangline::shell_quote(text);
    return 0;
}
