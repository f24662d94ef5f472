#include "checkpoint/tool/output.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

namespace gangline::checkpoint::tool {

std::string document(const std::string& name, Json value) {
    Json all;
    all["schema"] = "gangline/1";
    all[name] = std::move(value);
    return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string plain(std::string_view text) {
    std::string clean(text);
    for (char& c : clean) {
        if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
    }
    return clean;
}

std::string columns(const std::vector<std::vector<std::string>>& rows, std::string_view aligned) {
    std::vector<std::size_t> widths(aligned.size());
    for (const auto& row : rows) {
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string text;
    for (const auto& row : rows) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i) {
            const std::string space(widths[i] - row[i].size(), ' ');
            line += (i == 0 ? "" : "  ") + (aligned[i] == 'r' ? space + row[i] : row[i] + space);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n";
    }
    return text;
}

std::uint64_t bytes_of(DType dtype, const Shape& shape) {
    std::uint64_t bytes = 0;
    const auto count = elements_of(shape);
    if (!count || __builtin_mul_overflow(*count, std::uint64_t{checkpoint::bytes_of(dtype)}, &bytes)) return ~std::uint64_t{0};
    return bytes;
}

Json number(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
}

Progress::Progress(std::string what, std::uint64_t total_bytes)
    : what_(std::move(what)), total_(total_bytes), is_terminal_(::isatty(2) == 1), started_(std::chrono::steady_clock::now()), last_(started_) {}

Progress::~Progress() {
    if (is_shown_) fmt::print(stderr, "\r\033[K");
}

double Progress::seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count(); }

void Progress::add(std::uint64_t bytes) {
    done_ += bytes;
    const auto now = std::chrono::steady_clock::now();
    if (!is_terminal_ || now - last_ < std::chrono::milliseconds(200)) return;
    last_ = now;
    is_shown_ = true;
    const double part = total_ == 0 ? 1 : static_cast<double>(done_) / static_cast<double>(total_);
    fmt::print(stderr, "\r\033[K{} {:.0f}%  {:.2f} GB/s", what_, 100 * part, static_cast<double>(done_) / 1e9 / std::max(seconds(), 1e-9));
    std::fflush(stderr);
}

}  // namespace gangline::checkpoint::tool
