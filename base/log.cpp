#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace gangline {

void init_log(std::string_view part) {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    auto logger = std::make_shared<spdlog::logger>(std::string(part), sink);
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %n %v", spdlog::pattern_time_type::utc);
    const char* level = std::getenv("GANGLINE_LOG");
    logger->set_level(spdlog::level::from_str(level != nullptr ? level : "info"));
    logger->flush_on(spdlog::level::info);
    spdlog::set_default_logger(logger);
}

void log_line(LogLevel level, std::string_view text) {
    switch (level) {
        case LogLevel::Debug: spdlog::debug("{}", text); return;
        case LogLevel::Info: spdlog::info("{}", text); return;
        case LogLevel::Warn: spdlog::warn("{}", text); return;
        case LogLevel::Error: spdlog::error("{}", text); return;
    }
}

}  // namespace gangline
