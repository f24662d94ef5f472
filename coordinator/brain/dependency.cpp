#include "coordinator/brain/dependency.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <optional>
#include <utility>

namespace gangline::coordinator {
namespace {

constexpr std::size_t kMostTerms = 1000;

constexpr std::array<std::pair<std::string_view, After>, 6> kKinds = {{
    {"after", After::Start},
    {"afterany", After::Any},
    {"afterok", After::Ok},
    {"afternotok", After::NotOk},
    {"aftercorr", After::Corr},
    {"singleton", After::Singleton},
}};

std::optional<After> kind_of(std::string_view word) {
    for (const auto& [name, kind] : kKinds) {
        if (name == word) return kind;
    }
    return std::nullopt;
}

template <class Number>
bool read_number(std::string_view text, Number& number) {
    const auto end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, number);
    return !text.empty() && parsed.ec == std::errc() && parsed.ptr == end;
}

Error wrong(std::string_view part, std::string_view why) {
    return {Code::InvalidArgument,
            fmt::format("--dependency: '{}': {}; write after, afterany, afterok, afternotok or aftercorr with job ids (afterok:12:13), or singleton, "
                        "joined by , (all) or ? (any)",
                        part, why)};
}

}  // namespace

Result<Dependency> parse_dependency(std::string_view text) {
    Dependency dependency;
    if (text.empty()) return dependency;
    const bool any = text.find('?') != std::string_view::npos;
    if (any && text.find(',') != std::string_view::npos) return wrong(text, "',' and '?' cannot be mixed");
    dependency.any = any;
    for (std::size_t at = 0; at <= text.size();) {
        const std::size_t end = std::min(text.find(any ? '?' : ',', at), text.size());
        const std::string_view part = text.substr(at, end - at);
        at = end + 1;
        const std::size_t colon = std::min(part.find(':'), part.size());
        const auto kind = kind_of(part.substr(0, colon));
        if (!kind) return wrong(part, "no such kind");
        if (*kind == After::Singleton) {
            if (colon != part.size()) return wrong(part, "singleton names no job");
            dependency.terms.push_back({*kind, 0, 0, {}});
            continue;
        }
        if (colon == part.size()) return wrong(part, "a job id is missing");
        for (std::size_t from = colon + 1; from <= part.size();) {
            const std::size_t to = std::min(part.find(':', from), part.size());
            std::string_view id = part.substr(from, to - from);
            from = to + 1;
            DependencyTerm term{*kind, 0, 0, {}};
            const std::size_t plus = id.find('+');
            if (plus != std::string_view::npos) {
                if (*kind != After::Start) return wrong(part, "+MINUTES belongs to 'after'");
                if (!read_number(id.substr(plus + 1), term.minutes)) return wrong(part, "+ takes a number of minutes");
                id = id.substr(0, plus);
            }
            const std::size_t underscore = std::min(id.find('_'), id.size());
            std::uint32_t task = 0;
            const bool element = underscore != id.size();
            if (element && !read_number(id.substr(underscore + 1), task)) return wrong(part, "not an element of an array");
            if (element) term.task = task;
            if (!read_number(id.substr(0, underscore), term.job) || term.job == 0) return wrong(part, "not a job id");
            dependency.terms.push_back(term);
            if (dependency.terms.size() > kMostTerms) return wrong("...", fmt::format("more than {} jobs", kMostTerms));
        }
    }
    return dependency;
}

std::string text_of(const DependencyTerm& term) {
    if (term.after == After::Singleton) return "singleton";
    std::string_view name = "after";
    for (const auto& [word, kind] : kKinds) {
        if (kind == term.after) {
            name = word;
            break;
        }
    }
    return fmt::format("{}:{}{}{}", name, term.job, term.task ? fmt::format("_{}", *term.task) : "", term.minutes == 0 ? "" : fmt::format("+{}", term.minutes));
}

}  // namespace gangline::coordinator
