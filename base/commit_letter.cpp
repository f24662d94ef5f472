#include "base/commit_letter.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/worker_protocol.h"

namespace gangline {
namespace {

constexpr std::size_t kDigestBytes = 32;
constexpr std::size_t kMarkBytes = 13;
constexpr std::size_t kStaysBytes = 12;
constexpr unsigned kPinned = 1;
constexpr unsigned kVerified = 2;

template <class Number>
void put(std::string& out, Number value) {
    for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> (8 * i));
}

// Nothing once the bytes do not suffice, and from then on.
template <class Number>
std::optional<Number> take(std::string_view& bytes) {
    if (bytes.size() < sizeof(Number)) {
        bytes = {};
        return std::nullopt;
    }
    Number value = 0;
    for (std::size_t i = 0; i < sizeof value; ++i) value = static_cast<Number>(value | static_cast<Number>(static_cast<Number>(static_cast<std::uint8_t>(bytes[i])) << (8 * i)));
    bytes.remove_prefix(sizeof value);
    return value;
}

}  // namespace

std::string encode(const CommitLetter& letter) {
    std::string out = letter.manifest_sha256;
    out.resize(kDigestBytes);
    put(out, letter.bytes);
    put(out, static_cast<std::uint8_t>(letter.metric ? 1 : 0));
    put(out, std::bit_cast<std::uint64_t>(letter.metric.value_or(0)));
    const std::size_t count = std::min(letter.marks.size(), kMostMarks);
    put(out, static_cast<std::uint32_t>(count));
    for (std::size_t i = letter.marks.size() - count; i < letter.marks.size(); ++i) {  // the newest
        const MarkedCheckpoint& mark = letter.marks[i];
        put(out, mark.step);
        put(out, mark.attempt);
        put(out, static_cast<std::uint8_t>((mark.is_pinned ? kPinned : 0) | (mark.is_verified ? kVerified : 0)));
    }
    return out;
}

std::optional<CommitLetter> decode_commit(std::string_view payload) {
    if (payload.size() < kDigestBytes + sizeof(std::uint64_t)) return std::nullopt;
    CommitLetter letter;
    letter.manifest_sha256 = payload.substr(0, kDigestBytes);
    payload.remove_prefix(kDigestBytes);
    letter.bytes = *take<std::uint64_t>(payload);
    if (payload.empty()) return letter;
    const auto has_metric = take<std::uint8_t>(payload);
    const auto metric = take<std::uint64_t>(payload);
    const auto count = take<std::uint32_t>(payload);
    if (!count || *has_metric > 1 || *count > kMostMarks || payload.size() != *count * kMarkBytes) return std::nullopt;
    if (*has_metric == 1) letter.metric = std::bit_cast<double>(*metric);
    for (std::uint32_t i = 0; i < *count; ++i) {
        MarkedCheckpoint mark;
        mark.step = *take<std::uint64_t>(payload);
        mark.attempt = *take<std::uint32_t>(payload);
        const unsigned bits = *take<std::uint8_t>(payload);
        if (bits > (kPinned | kVerified)) return std::nullopt;
        mark.is_pinned = (bits & kPinned) != 0;
        mark.is_verified = (bits & kVerified) != 0;
        letter.marks.push_back(mark);
    }
    return letter;
}

std::string encode(const CommitAnswer& answer) {
    std::string out;
    put(out, static_cast<std::uint8_t>(answer.accepted ? 1 : 0));
    put(out, static_cast<std::uint32_t>(answer.keep.size()));
    for (const CommitAnswer::Stays& one : answer.keep) {
        put(out, one.step);
        put(out, one.attempt);
    }
    put(out, answer.keep_every);
    out += answer.reason;
    if (out.size() > kMostWorkerPayload) out.resize(kMostWorkerPayload);  // the reason's end
    return out;
}

std::optional<CommitAnswer> decode_commit_answer(std::string_view payload) {
    const auto accepted = take<std::uint8_t>(payload);
    const auto count = take<std::uint32_t>(payload);
    if (!count || *count > payload.size() / kStaysBytes) return std::nullopt;
    CommitAnswer answer;
    answer.accepted = *accepted != 0;
    for (std::uint32_t i = 0; i < *count; ++i) {
        const std::uint64_t step = *take<std::uint64_t>(payload);
        answer.keep.push_back({step, *take<std::uint32_t>(payload)});
    }
    const auto every = take<std::uint64_t>(payload);
    if (!every) return std::nullopt;
    answer.keep_every = *every;
    answer.reason = payload;
    return answer;
}

}  // namespace gangline
