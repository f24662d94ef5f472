#pragma once
// What the output goes to: a terminal or not, how wide, with colour or not (NO_COLOR, TERM=dumb).

#include <cstddef>
#include <string>
#include <string_view>

namespace gangline::runner {

struct Terminal {
    bool is_terminal = false;
    bool has_colour = false;
    std::size_t width = 0;       // columns; 0: unlimited (not a terminal, and no COLUMNS)
};
Terminal terminal_of(int fd);

enum class Tone { Plain, Good, Busy, Bad, Faint, Strong };
// `text` in the tone's colour where the terminal has any.
std::string toned(const Terminal& terminal, Tone tone, std::string_view text);

// Columns that a terminal uses for it: UTF-8 code points (wide letters count as one).
std::size_t columns_of(std::string_view text);
// At most `width` columns; what is cut ends in "...". Control characters are replaced by '?'.
std::string fitted(std::string_view text, std::size_t width);
// The same text on one line: control characters are replaced.
std::string one_line(std::string_view text);

}  // namespace gangline::runner
