#include "runner/cli/job_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/text.h"

namespace gangline::runner {
namespace {

bool is_plain(char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

// Digits and nothing else.
std::optional<std::uint32_t> digits(std::string_view text) {
    std::uint32_t value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
    return value;
}

Error bad_value(const Given& given, const std::string& words) {
    return {Code::InvalidArgument, fmt::format("{}: {}", shown(given), words)};
}

// "0-99:4", "5-9", "3"
struct Range {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    std::uint32_t step = 1;
};
Result<Range> parse_range(const Given& given, std::string_view text) {
    const auto error = [&] {
        return bad_value(given, fmt::format("'{}' is no task and no range of tasks: write numbers up to {} and ranges with "
                                            "commas between (0-15, 1,3,5-9, 0-99:4), and %N at the end for at most N at once",
                                            text, kLargestTask));
    };
    const std::size_t colon = text.find(':');
    const std::string_view ends = text.substr(0, colon);
    const std::size_t dash = ends.find('-');
    const auto first = digits(ends.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : digits(ends.substr(dash + 1));
    if (!first || !last || *first > kLargestTask || *last > kLargestTask) return error();
    Range range{*first, *last, 1};
    if (range.last < range.first) {
        return bad_value(given, fmt::format("'{}': the smaller number of a range comes first", text));
    }
    if (colon == std::string_view::npos) return range;
    const auto step = digits(text.substr(colon + 1));
    if (!step || dash == std::string_view::npos) return error();
    if (*step == 0 || *step > kLargestTask) {
        return bad_value(given, fmt::format("'{}': a step is a whole number from 1 to {}", text, kLargestTask));
    }
    range.step = *step;
    return range;
}

}  // namespace

Result<NodeRange> parse_node_range(const Given& given) {
    const std::size_t dash = given.value.find('-');
    const std::size_t colon = given.value.find(':');
    Given low = given, high = given, step = given;
    low.value = given.value.substr(0, std::min(dash, colon));
    high.value = dash == std::string::npos ? low.value : given.value.substr(dash + 1, colon - std::min(colon, dash + 1));
    const auto least = whole_number(low, 1, kMostRanks);
    const auto most = whole_number(high, 1, kMostRanks);
    if (!least || !most || *most < *least || (dash == std::string::npos && colon != std::string::npos)) {
        return bad_value(given, fmt::format("'{}' is not a number of nodes: write N, MIN-MAX or MIN-MAX:STEP", given.value));
    }
    NodeRange range{*least, *most, 0};
    if (colon == std::string::npos) return range;
    step.value = given.value.substr(colon + 1);
    const std::int64_t span = range.most - range.least;
    if (span == 0) return bad_value(given, fmt::format("'{}' has a step but one size: leave out :{}", given.value, step.value));
    const auto size = whole_number(step, 1, kMostRanks);
    if (!size) {
        return bad_value(given, fmt::format("'{}' is not a step: write how many nodes are added at a time ({}-{}:1), or leave out :{}", step.value,
                                            range.least, range.most, step.value));
    }
    if (*size > span) {
        return bad_value(given, fmt::format("a step of {} from {} goes beyond {}: write {}-{}, or {}-{}:{}", *size, range.least, range.most,
                                            range.least, range.most, range.least, range.least + *size, *size));
    }
    if (span % *size != 0) {
        const std::int64_t below = range.most - span % *size;
        return bad_value(given, fmt::format("steps of {} from {} do not lead to {}: write {}-{}:{} or {}-{}:{}", *size,
                                            range.least, range.most, range.least, below, *size, range.least, below + *size, *size));
    }
    range.step = *size;
    return range;
}

Result<ArrayTasks> parse_array_tasks(const Given& given) {
    ArrayTasks array;
    const std::size_t percent = given.value.find('%');
    if (percent != std::string::npos) {
        const std::string text = given.value.substr(percent + 1);
        const auto limit = digits(text);
        if (!limit || *limit == 0 || *limit > kLargestTask) {
            return bad_value(given, fmt::format("'%{}' does not say how many may run at once: write %N with N from 1 to {}, or leave it out",
                                                text, kLargestTask));
        }
        array.most_at_once = *limit;
    }
    std::vector<bool> chosen(std::size_t{kLargestTask} + 1);
    const std::vector<std::string> parts = split(std::string_view(given.value).substr(0, percent), ',');
    for (const std::string& part : parts) {
        const auto range = parse_range(given, part);
        if (!range) return range.error();
        for (std::uint32_t task = range->first; task <= range->last; task += range->step) chosen[task] = true;
        if (parts.size() == 1) array.step = range->step;
    }
    const auto count = static_cast<std::size_t>(std::count(chosen.begin(), chosen.end(), true));
    if (count > kMostTasks) {
        return bad_value(given, fmt::format("'{}' has {} tasks, the most is {}: submit it in parts", given.value, count, kMostTasks));
    }
    for (std::uint32_t task = 0; task <= kLargestTask; ++task) {
        if (chosen[task]) array.tasks.push_back(task);
    }
    return array;
}

Result<void> check_constraint(const Given& given) {
    const std::string form = "write features of nodes joined by & (and) and | (or): nvme&ib, a100|h100";
    std::string word;
    for (const char c : given.value + "&") {
        if (c == '&' || c == '|') {
            if (word.empty()) {
                return bad_value(given, fmt::format("'{}' has a place without a feature: {}", given.value, form));
            }
            word.clear();
            continue;
        }
        const bool is_part = is_plain(c) || c == '_' || c == '-' || c == '.' || c == ':' || c == '/' || c == '=' || c == '+';
        if (!is_part) {
            const bool is_sbatchs = std::string_view("[]()*").find(c) != std::string_view::npos;
            return bad_value(given, fmt::format("'{}' {}: {}", given.value,
                                                is_sbatchs ? "has brackets or counts, which are not taken"
                                                           : "is not made of features",
                                                form));
        }
        word += c;
    }
    return {};
}

Result<void> check_reservation_name(const std::string& option, const std::string& name) {
    const bool good = !name.empty() && name.size() <= 64 && is_plain(name.front()) &&
                      std::all_of(name.begin(), name.end(), [](char c) { return is_plain(c) || c == '_' || c == '.' || c == '-'; });
    if (good) return {};
    return Error{Code::InvalidArgument,
                 fmt::format("{}: '{}' is not the name of one reservation: letters, digits, _ . and -, at most 64, a letter or digit first",
                             option, name)};
}

}  // namespace gangline::runner
