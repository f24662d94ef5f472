#include "base/text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <ctime>
#include <cstring>
#include <optional>

namespace gangline {
namespace {

constexpr std::size_t kMostNames = 65536;

std::optional<std::uint64_t> number(std::string_view text) {
    std::uint64_t value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
    return value;
}

bool same_word(std::string_view a, std::string_view b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
        return std::tolower(x) == std::tolower(y);
    });
}

Error bad_time(std::string_view text) {
    return {Code::InvalidArgument,
            fmt::format("'{}' is not a time: write minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS", text)};
}

// One bracket group's ranges, "001-003,007", as the texts they stand for.
Result<std::vector<std::string>> expand_ranges(std::string_view inside) {
    std::vector<std::string> texts;
    for (const std::string& part : split(inside, ',')) {
        const std::size_t dash = part.find('-');
        const std::string low = part.substr(0, dash);
        const std::string high = dash == std::string::npos ? low : part.substr(dash + 1);
        const auto from = number(low);
        const auto to = number(high);
        if (!from || !to || *to < *from || *to - *from >= kMostNames) {
            return Error{Code::InvalidArgument, fmt::format("'{}' is not a range of node numbers", part)};
        }
        for (std::uint64_t i = *from; i <= *to; ++i) texts.push_back(fmt::format("{:0{}}", i, low.size()));
    }
    return texts;
}

}  // namespace

std::vector<std::string> split(std::string_view text, char separator) {
    std::vector<std::string> parts;
    while (true) {
        const std::size_t at = text.find(separator);
        parts.emplace_back(text.substr(0, at));
        if (at == std::string_view::npos) return parts;
        text.remove_prefix(at + 1);
    }
}

std::string_view trim(std::string_view text) {
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
    return text;
}

Result<seconds> parse_time_limit(std::string_view text) {
    if (same_word(text, "unlimited") || same_word(text, "infinite")) return seconds(0);
    std::string_view clock = text;
    std::uint64_t days = 0;
    const std::size_t dash = text.find('-');
    if (dash != std::string_view::npos) {
        const auto parsed = number(text.substr(0, dash));
        if (!parsed || *parsed > 10000) return bad_time(text);
        days = *parsed;
        clock = text.substr(dash + 1);
    }
    std::vector<std::uint64_t> fields;
    for (const std::string& part : split(clock, ':')) {
        const auto parsed = number(part);
        if (!parsed || *parsed > 100'000'000) return bad_time(text);
        fields.push_back(*parsed);
    }
    if (fields.size() > 3) return bad_time(text);
    fields.resize(3 + (dash == std::string_view::npos ? 0 : 0), 0);
    const std::size_t given = split(clock, ':').size();
    std::uint64_t total = days * 86400;
    if (dash != std::string_view::npos || given == 3) {
        total += fields[0] * 3600 + fields[1] * 60 + fields[2];
    } else {
        total += fields[0] * 60 + fields[1];
    }
    return seconds(total);
}

namespace {

bool read_parts(std::string_view text, char separator, std::vector<int>& parts) {
    for (const std::string& word : split(text, separator)) {
        int value = 0;
        const auto parsed = std::from_chars(word.data(), word.data() + word.size(), value);
        if (word.empty() || word.size() > 4 || parsed.ec != std::errc() || parsed.ptr != word.data() + word.size() || value < 0) return false;
        parts.push_back(value);
    }
    return true;
}

// Hours, minutes and seconds into `day`.
bool read_clock(std::string_view text, std::tm& day) {
    std::vector<int> parts;
    if (!read_parts(text, ':', parts) || parts.size() < 2 || parts.size() > 3) return false;
    parts.resize(3);
    if (parts[0] > 23 || parts[1] > 59 || parts[2] > 59) return false;
    day.tm_hour = parts[0];
    day.tm_min = parts[1];
    day.tm_sec = parts[2];
    return true;
}

bool read_date(std::string_view text, std::tm& day) {
    std::vector<int> parts;
    if (text.find('-') != std::string_view::npos) {
        if (!read_parts(text, '-', parts) || parts.size() != 3 || parts[0] < 1970) return false;
    } else if (text.find('/') != std::string_view::npos) {
        if (!read_parts(text, '/', parts) || parts.size() != 3) return false;
        parts = {parts[2] < 100 ? 2000 + parts[2] : parts[2], parts[0], parts[1]};
    } else {
        return false;
    }
    if (parts[1] < 1 || parts[1] > 12 || parts[2] < 1 || parts[2] > 31) return false;
    day.tm_year = parts[0] - 1900;
    day.tm_mon = parts[1] - 1;
    day.tm_mday = parts[2];
    day.tm_hour = day.tm_min = day.tm_sec = 0;
    return true;
}

// "now+3hours"
bool read_offset(std::string_view text, std::int64_t& seconds_on) {
    std::int64_t count = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), count);
    if (parsed.ec != std::errc() || count < 0 || count > 100'000'000) return false;
    std::string_view unit(parsed.ptr, static_cast<std::size_t>(text.data() + text.size() - parsed.ptr));
    if (unit.size() > 1 && unit.ends_with('s')) unit.remove_suffix(1);
    for (const auto& [name, factor] : {std::pair<std::string_view, std::int64_t>{"", 1}, {"second", 1}, {"minute", 60}, {"hour", 3600}, {"day", 86400}, {"week", 604800}}) {
        if (unit != name) continue;
        seconds_on = count * factor;
        return true;
    }
    return false;
}

}  // namespace

Result<std::int64_t> parse_when(std::string_view text, std::int64_t now_unix_s) {
    const Error wrong{Code::InvalidArgument, fmt::format("'{}' is not a moment: write HH:MM, YYYY-MM-DD, YYYY-MM-DDTHH:MM, now+2hours, today, tomorrow, "
                                                         "midnight or noon", text)};
    if (text == "now") return now_unix_s;
    if (text.starts_with("now+")) {
        std::int64_t seconds_on = 0;
        if (!read_offset(text.substr(4), seconds_on)) return wrong;
        return now_unix_s + seconds_on;
    }
    const std::time_t now = now_unix_s;
    std::tm day{};
    if (::localtime_r(&now, &day) == nullptr) return wrong;
    day.tm_isdst = -1;
    bool may_be_tomorrow = false;
    const std::size_t at = text.find('T');
    if (text == "today" || text == "tomorrow" || text == "midnight" || text == "noon") {
        day.tm_hour = text == "noon" ? 12 : 0;
        day.tm_min = day.tm_sec = 0;
        day.tm_mday += text == "tomorrow" ? 1 : 0;
        if (text == "today") return now_unix_s;
        may_be_tomorrow = text == "midnight" || text == "noon";
    } else if (text.find(':') != std::string_view::npos && at == std::string_view::npos) {
        if (!read_clock(text, day)) return wrong;
        may_be_tomorrow = true;
    } else if (!read_date(text.substr(0, at), day) || (at != std::string_view::npos && !read_clock(text.substr(at + 1), day))) {
        return wrong;
    }
    std::tm again = day;
    std::time_t when = ::mktime(&day);
    if (when == -1) return wrong;
    if (may_be_tomorrow && when < now) {
        ++again.tm_mday;
        when = ::mktime(&again);
    }
    return static_cast<std::int64_t>(when);
}

Result<std::uint64_t> parse_memory_mib(std::string_view text) {
    const Error bad{Code::InvalidArgument,
                    fmt::format("'{}' is not a memory size: write a number with K, M, G or T, for example 16G", text)};
    std::string_view digits = text;
    double factor = 1;
    if (!digits.empty() && (digits.back() == 'B' || digits.back() == 'b')) digits.remove_suffix(1);
    if (!digits.empty() && std::isalpha(static_cast<unsigned char>(digits.back()))) {
        switch (std::toupper(static_cast<unsigned char>(digits.back()))) {
            case 'K': factor = 1.0 / 1024; break;
            case 'M': factor = 1; break;
            case 'G': factor = 1024; break;
            case 'T': factor = 1024.0 * 1024; break;
            default: return bad;
        }
        digits.remove_suffix(1);
    }
    const auto value = number(digits);
    if (!value || *value > (1ull << 40)) return bad;
    const double mib = static_cast<double>(*value) * factor;
    return static_cast<std::uint64_t>(*value > 0 && mib < 1 ? 1 : mib);
}

Result<std::vector<std::string>> expand_node_list(std::string_view text) {
    std::vector<std::string> names;
    std::vector<std::string> current = {""};  // the names that the part before the cursor stands for
    for (std::size_t i = 0; i <= text.size(); ++i) {
        if (i == text.size() || text[i] == ',') {
            for (const std::string& name : current) {
                if (!name.empty()) names.push_back(name);
            }
            current = {""};
        } else if (text[i] == '[') {
            const std::size_t close = text.find(']', i);
            if (close == std::string_view::npos) {
                return Error{Code::InvalidArgument, fmt::format("'{}' has a '[' without its ']'", text)};
            }
            const auto ranges = expand_ranges(text.substr(i + 1, close - i - 1));
            if (!ranges) return ranges.error();
            std::vector<std::string> next;
            for (const std::string& head : current) {
                for (const std::string& tail : *ranges) next.push_back(head + tail);
                if (next.size() > kMostNames) break;
            }
            current = std::move(next);
            i = close;
        } else {
            for (std::string& name : current) name += text[i];
        }
        if (names.size() + current.size() > kMostNames) {
            return Error{Code::InvalidArgument, fmt::format("'{}' names more than {} nodes", text, kMostNames)};
        }
    }
    return names;
}

bool is_utf8(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
        const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
        const unsigned first = byte(i);
        const std::size_t more = first < 0x80 ? 0 : first >= 0xC2 && first < 0xE0 ? 1 : first >= 0xE0 && first < 0xF0 ? 2 : first >= 0xF0 && first < 0xF5 ? 3 : 9;
        if (more == 9 || i + more >= text.size() + (more == 0 ? 1 : 0)) return false;
        for (std::size_t k = 1; k <= more; ++k) {
            if ((byte(i + k) & 0xC0) != 0x80) return false;
        }
        const unsigned second = byte(i + 1);
        if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) return false;
        i += more + 1;
    }
    return true;
}

bool natural_less(std::string_view a, std::string_view b) {
    const auto digits = [](std::string_view text, std::size_t at) {
        std::size_t end = at;
        while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
        return text.substr(at, end - at);
    };
    const auto without_zeros = [](std::string_view number) { return number.substr(std::min(number.find_first_not_of('0'), number.size())); };
    std::size_t i = 0;
    std::size_t j = 0;
    while (i < a.size() && j < b.size()) {
        const std::string_view number_a = digits(a, i);
        const std::string_view number_b = digits(b, j);
        if (number_a.empty() || number_b.empty()) {
            if (a[i] != b[j]) return a[i] < b[j];
            ++i;
            ++j;
            continue;
        }
        const std::string_view value_a = without_zeros(number_a);
        const std::string_view value_b = without_zeros(number_b);
        if (value_a.size() != value_b.size()) return value_a.size() < value_b.size();
        if (value_a != value_b) return value_a < value_b;
        i += number_a.size();
        j += number_b.size();
    }
    if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
    return a < b;  // n01 and n1 differ
}

std::string compress_node_list(const std::vector<std::string>& names) {
    struct Run {
        std::string prefix;
        std::vector<std::string> ranges;
        std::uint64_t last = 0;
        std::size_t width = 0;
        std::string plain;
    };
    std::vector<Run> runs;
    for (const std::string& name : names) {
        std::size_t at = name.size();
        while (at > 0 && std::isdigit(static_cast<unsigned char>(name[at - 1]))) --at;
        const std::string prefix = name.substr(0, at);
        const std::string digits = name.substr(at);
        const auto value = number(digits);
        if (!value) {
            runs.push_back({.prefix = name, .ranges = {}, .last = 0, .width = 0, .plain = name});
            continue;
        }
        if (!runs.empty() && runs.back().plain.empty() && runs.back().prefix == prefix &&
            runs.back().width == digits.size()) {
            Run& run = runs.back();
            if (*value == run.last + 1) {
                const std::string low = run.ranges.back().substr(0, run.ranges.back().find('-'));
                run.ranges.back() = low + "-" + digits;
            } else {
                run.ranges.push_back(digits);
            }
            run.last = *value;
        } else {
            runs.push_back({.prefix = prefix, .ranges = {digits}, .last = *value, .width = digits.size(), .plain = ""});
        }
    }
    std::string text;
    for (const Run& run : runs) {
        if (!text.empty()) text += ',';
        if (!run.plain.empty()) {
            text += run.plain;
        } else if (run.ranges.size() == 1 && run.ranges[0].find('-') == std::string::npos) {
            text += run.prefix + run.ranges[0];
        } else {
            text += fmt::format("{}[{}]", run.prefix, fmt::join(run.ranges, ","));
        }
    }
    return text;
}

std::string expand_pattern(std::string_view pattern, const std::map<char, std::string>& values) {
    std::string text;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        if (pattern[i] != '%') {
            text += pattern[i];
            continue;
        }
        std::size_t at = i + 1;
        std::size_t width = 0;
        while (at < pattern.size() && std::isdigit(static_cast<unsigned char>(pattern[at])) && width < 10) {
            width = width * 10 + static_cast<std::size_t>(pattern[at++] - '0');
        }
        if (at < pattern.size() && pattern[at] == '%') {
            text += '%';
            i = at;
            continue;
        }
        const auto found = at < pattern.size() ? values.find(pattern[at]) : values.end();
        if (found == values.end()) {
            text += '%';
            continue;
        }
        const std::string& value = found->second;
        const bool numeric = number(value).has_value();
        if (numeric && value.size() < width) text.append(std::min<std::size_t>(width, 10) - value.size(), '0');
        text += value;
        i = at;
    }
    return text;
}

std::string human_duration(double duration_s) {
    if (duration_s < 60) return fmt::format("{:.1f}s", duration_s);
    const auto whole = static_cast<std::int64_t>(duration_s);
    if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
    if (whole < 86400) return fmt::format("{}h {:02}m", whole / 3600, whole % 3600 / 60);
    return fmt::format("{}d {:02}h", whole / 86400, whole % 86400 / 3600);
}

std::string human_bytes(double bytes) {
    const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    std::size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < std::size(units)) {
        bytes /= 1024;
        ++unit;
    }
    return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string iso_time(std::int64_t unix_ms) {
    return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(unix_ms / 1000)));
}

std::string shell_quote(std::string_view word) {
    const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
        return std::isalnum(c) || std::strchr("@%_-+=:,./", c) != nullptr;
    });
    if (plain) return std::string(word);
    std::string quoted = "'";
    for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return quoted + "'";
}

std::string signal_name(int number_of_signal) {
    const char* name = ::sigabbrev_np(number_of_signal);
    return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", number_of_signal);
}

}  // namespace gangline
