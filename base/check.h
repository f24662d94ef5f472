#pragma once
// CHECK(condition, "why it must hold"): a bug found at run time, also in release builds. Prints and aborts.

#include <string>

namespace gangline {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& why);
}  // namespace gangline

#define CHECK(condition, why)                                                          \
    do {                                                                               \
        if (!(condition)) ::gangline::check_failed(__FILE__, __LINE__, #condition, (why)); \
    } while (false)
