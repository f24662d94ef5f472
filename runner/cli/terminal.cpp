#include "runner/cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace gangline::runner {

Terminal terminal_of(int fd) {
    Terminal terminal;
    terminal.is_terminal = ::isatty(fd) == 1;
    const char* const no_colour = std::getenv("NO_COLOR");
    const char* const term = std::getenv("TERM");
    terminal.has_colour = terminal.is_terminal && (no_colour == nullptr || *no_colour == '\0') &&
                          !(term != nullptr && std::string_view(term) == "dumb");
    winsize size{};
    if (terminal.is_terminal && ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        terminal.width = size.ws_col;
    } else if (const char* const columns = std::getenv("COLUMNS"); columns != nullptr) {
        terminal.width = std::strtoul(columns, nullptr, 10);
    }
    return terminal;
}

std::string toned(const Terminal& terminal, Tone tone, std::string_view text) {
    if (!terminal.has_colour) return std::string(text);
    switch (tone) {
        case Tone::Plain: break;
        case Tone::Good: return fmt::format("\x1b[32m{}\x1b[0m", text);
        case Tone::Busy: return fmt::format("\x1b[33m{}\x1b[0m", text);
        case Tone::Bad: return fmt::format("\x1b[31m{}\x1b[0m", text);
        case Tone::Faint: return fmt::format("\x1b[2m{}\x1b[0m", text);
        case Tone::Strong: return fmt::format("\x1b[1m{}\x1b[0m", text);
    }
    return std::string(text);
}

std::size_t columns_of(std::string_view text) {
    std::size_t columns = 0;
    for (const char c : text) columns += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
    return columns;
}

std::string one_line(std::string_view text) {
    std::string line(text);
    for (char& c : line) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7f) c = byte == '\n' || byte == '\t' ? ' ' : '?';
    }
    return line;
}

std::string fitted(std::string_view text, std::size_t width) {
    std::string line = one_line(text);
    if (columns_of(line) <= width) return line;
    const std::size_t keep = width > 3 ? width - 3 : width;
    std::size_t bytes = 0;
    for (std::size_t columns = 0; bytes < line.size(); ++bytes) {
        if ((static_cast<unsigned char>(line[bytes]) & 0xC0U) != 0x80U && columns++ == keep) break;
    }
    line.resize(bytes);
    return width > 3 ? line + "..." : line;
}

}  // namespace gangline::runner
