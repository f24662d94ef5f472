#pragma once
// What the tool says: text in columns, JSON documents, and one live line of progress on a terminal.

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/tensor.h"

namespace gangline::checkpoint::tool {

using Json = nlohmann::ordered_json;

// {"schema": "gangline/1", name: value}. Bytes that are not UTF-8 come out as U+FFFD.
std::string document(const std::string& name, Json value);
// Control characters, which a file may carry to a terminal, as '?'.
std::string plain(std::string_view text);
// Rows of one length, the first one is the header; columns whose letter in `aligned` is 'r' stand to the right.
std::string columns(const std::vector<std::vector<std::string>>& rows, std::string_view aligned);
// elements x bytes each; the largest number where it would wrap.
std::uint64_t bytes_of(DType dtype, const Shape& shape);
// JSON has no infinity: "inf", "-inf", "nan" as text.
Json number(double value);

class Progress {
  public:
    Progress(std::string what, std::uint64_t total_bytes);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    void add(std::uint64_t bytes);
    double seconds() const;
    std::uint64_t done_bytes() const { return done_; }

  private:
    std::string what_;
    std::uint64_t total_;
    std::uint64_t done_ = 0;
    bool is_terminal_;
    bool is_shown_ = false;
    std::chrono::steady_clock::time_point started_;
    std::chrono::steady_clock::time_point last_;
};

}  // namespace gangline::checkpoint::tool
