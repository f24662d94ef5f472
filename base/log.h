#pragma once
// One line an event on standard error: `2026-11-30T07:32:37.123Z info agent node_lost node=n2 silent_ms=2500`.
//
// Logging is the shell's. spdlog does the work; it is set up once per process by init_log.

#include <fmt/format.h>

#include <string_view>

namespace gangline {

enum class LogLevel { Debug, Info, Warn, Error };

// `part` names the process (agent, coordinator, ...). GANGLINE_LOG=debug|info|warn|error sets the threshold (default info).
void init_log(std::string_view part);
void log_line(LogLevel level, std::string_view text);

template <class... Args>
void log_info(fmt::format_string<Args...> text, Args&&... args) {
    log_line(LogLevel::Info, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_warn(fmt::format_string<Args...> text, Args&&... args) {
    log_line(LogLevel::Warn, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> text, Args&&... args) {
    log_line(LogLevel::Error, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_debug(fmt::format_string<Args...> text, Args&&... args) {
    log_line(LogLevel::Debug, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace gangline
