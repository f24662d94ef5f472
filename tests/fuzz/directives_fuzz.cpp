// A job script from anybody: it is refused with words, or its directives have sane lines.

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "runner/cli/directives.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto script = gangline::runner::read_directives(text, "job.sh");
    if (!script.ok()) {
        CHECK(!script.error().message.empty(), "a refusal says why");
        return 0;
    }
    const auto lines = static_cast<long>(std::count(text.begin(), text.end(), '\n')) + 1;
    for (const auto& directive : script->directives) {
        CHECK(directive.line >= 1 && directive.line <= lines, "a directive stands in the script");
    }
    CHECK(script->text.find('\0') == std::string::npos, "a script is text");
    return 0;
}
