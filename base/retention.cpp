#include "base/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/text.h"

namespace gangline {
namespace {

constexpr std::array<std::pair<Needs::One, std::string_view>, 7> kWords{{{Needs::Last, "last"},
                                                                        {Needs::Every, "every"},
                                                                        {Needs::Best, "best"},
                                                                        {Needs::Verified, "verified"},
                                                                        {Needs::Unverified, "unverified"},
                                                                        {Needs::Restore, "restore"},
                                                                        {Needs::Pinned, "pinned"}}};

std::optional<std::uint64_t> number_in(std::string_view text, std::uint64_t least, std::uint64_t most) {
    std::uint64_t value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || value < least || value > most) return std::nullopt;
    return value;
}

void mark_best(std::span<const KeptCheckpoint> all, const RetentionRule& rule, std::vector<Needs>& needs) {
    std::vector<std::size_t> measured;
    for (std::size_t i = all.size(); i-- > 0;) {  // newest first
        if (!all[i].is_damaged && all[i].metric && std::isfinite(*all[i].metric)) measured.push_back(i);
    }
    std::stable_sort(measured.begin(), measured.end(), [&](std::size_t a, std::size_t b) {
        return rule.higher_is_better ? *all[a].metric > *all[b].metric : *all[a].metric < *all[b].metric;
    });
    if (measured.size() > rule.best) measured.resize(rule.best);
    for (const std::size_t i : measured) needs[i].add(Needs::Best);
}

}  // namespace

std::string to_text(const RetentionRule& rule) {
    return fmt::format("last={} every={} best={} best_is={}", rule.last, rule.every, rule.best, rule.higher_is_better ? "higher" : "lower");
}

Result<RetentionRule> parse_retention_rule(std::string_view text) {
    const Error wrong{Code::InvalidArgument, "a retention rule reads as: " + to_text({})};
    RetentionRule rule;
    for (const std::string& word : split(trim(text), ' ')) {
        const std::size_t sign = std::min(word.find('='), word.size());
        const std::string_view name = std::string_view(word).substr(0, sign);
        const std::string_view value = std::string_view(word).substr(std::min(sign + 1, word.size()));
        std::optional<std::uint64_t> number;
        if (name == "last" && (number = number_in(value, kLeastLast, kMostKept))) rule.last = static_cast<std::uint32_t>(*number);
        else if (name == "every" && (number = number_in(value, 0, kMostEvery))) rule.every = *number;
        else if (name == "best" && (number = number_in(value, 0, kMostKept))) rule.best = static_cast<std::uint32_t>(*number);
        else if (name == "best_is" && (value == "lower" || value == "higher")) rule.higher_is_better = value == "higher";
        else return wrong;
    }
    return rule;
}

std::string Needs::words() const {
    std::string text;
    for (const auto& [need, word] : kWords) {
        if (has(need)) text += (text.empty() ? "" : ", ") + std::string(word);
    }
    return text;
}

std::vector<Needs> needs_of(std::span<const KeptCheckpoint> all, const RetentionRule& rule) {
    const std::size_t last = std::max(rule.last, kLeastLast);
    std::vector<Needs> needs(all.size());
    std::size_t good = 0;
    std::size_t besides = 0;
    bool has_verified = false;
    for (const KeptCheckpoint& one : all) has_verified |= one.is_verified && !one.is_damaged;
    for (std::size_t i = all.size(); i-- > 0;) {  // newest first
        const KeptCheckpoint& one = all[i];
        if (one.is_pinned) needs[i].add(Needs::Pinned);
        if (one.is_damaged) continue;
        if (++good <= last) needs[i].add(Needs::Last);
        if (rule.every != 0 && one.step % rule.every == 0) needs[i].add(Needs::Every);
        if (one.is_restored) needs[i].add(Needs::Restore);
        if (!has_verified) continue;
        if (one.is_verified) {
            needs[i].add(Needs::Verified);
            has_verified = false;  // the older ones are not the newest
        } else if (good > last && besides++ < last) {
            needs[i].add(Needs::Unverified);
        }
    }
    mark_best(all, rule, needs);
    return needs;
}

}  // namespace gangline
