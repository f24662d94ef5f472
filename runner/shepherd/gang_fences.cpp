#include "runner/shepherd/gang_fences.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace gangline::runner {
namespace {

std::string first_space(const std::string& key) {
    const auto members = parse_fence_key(key);
    return members ? members->front().name_space : std::string();
}

}  // namespace

std::optional<std::vector<FenceMember>> parse_fence_key(const std::string& key) {
    const auto hash = key.rfind('#');
    if (hash == std::string::npos || hash == 0) return std::nullopt;
    std::vector<FenceMember> members;
    for (const std::string& text : split(std::string_view(key).substr(0, hash), '|')) {
        const auto colon = text.rfind(':');
        if (colon == std::string::npos || colon == 0) return std::nullopt;
        FenceMember member;
        member.name_space = text.substr(0, colon);
        const std::string_view rank = std::string_view(text).substr(colon + 1);
        if (rank != "*") {
            std::uint32_t number = 0;
            const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), number);
            if (error != std::errc() || end != rank.data() + rank.size()) return std::nullopt;
            member.rank = number;
        }
        members.push_back(std::move(member));
    }
    return members;
}

std::set<std::uint32_t> GangFences::participants(const std::string& key) const {
    std::set<std::uint32_t> nodes;
    const auto members = parse_fence_key(key);
    if (!members) return nodes;
    for (const FenceMember& member : *members) {
        const auto gang = gangs_.find(member.name_space);
        if (gang == gangs_.end()) return {};
        for (const Range& range : gang->second) {
            const bool holds = !member.rank || (*member.rank >= range.first_rank && *member.rank - range.first_rank < range.rank_count);
            if (holds) nodes.insert(range.node_index);
        }
    }
    return nodes;
}

bool GangFences::names_failed(const std::string& key) const {
    const auto members = parse_fence_key(key);
    return members && std::any_of(members->begin(), members->end(),
                                  [&](const FenceMember& member) { return failed_.count(member.name_space) != 0; });
}

void GangFences::keep(const proto::FenceDone& answer) {
    auto& kept = answered_[first_space(answer.key())];
    kept.push_back(answer);
    if (kept.size() > kKeptAnswers) kept.pop_front();
}

std::optional<proto::FenceDone> GangFences::settle(const std::string& key) {
    const auto nodes = participants(key);
    const auto waiting = waiting_.find(key);
    if (nodes.empty() || waiting == waiting_.end()) return std::nullopt;
    proto::FenceDone done;
    done.set_key(key);
    if (names_failed(key)) {
        done.set_failed(true);
    } else {
        for (const std::uint32_t node : nodes) {
            const auto part = waiting->second.parts.find(node);
            if (part == waiting->second.parts.end()) return std::nullopt;
            done.mutable_blob()->append(part->second);
        }
        if (waiting->second.partial) {
            done.set_failed(true);
            done.clear_blob();
        }
    }
    waiting_.erase(waiting);
    keep(done);
    return done;
}

std::vector<proto::FenceDone> GangFences::add_gang(const std::string& name_space, std::vector<Range> ranges) {
    gangs_[name_space] = std::move(ranges);
    std::vector<std::string> keys;
    for (const auto& [key, waiting] : waiting_) keys.push_back(key);
    std::vector<proto::FenceDone> done;
    for (const std::string& key : keys) {
        if (auto answer = settle(key)) done.push_back(std::move(*answer));
    }
    return done;
}

std::vector<proto::FenceDone> GangFences::add(std::uint32_t node_index, const proto::Fence& part) {
    if (!parse_fence_key(part.key())) return {};
    if (const auto kept = answered_.find(first_space(part.key())); kept != answered_.end()) {
        for (const proto::FenceDone& answer : kept->second) {
            if (answer.key() == part.key()) return {answer};
        }
    }
    Waiting& waiting = waiting_[part.key()];
    waiting.parts[node_index] = part.blob();
    waiting.partial = waiting.partial || part.partial();
    if (auto answer = settle(part.key())) return {std::move(*answer)};
    return {};
}

bool GangFences::was_answered(const std::string& key) const {
    const auto kept = answered_.find(first_space(key));
    return kept != answered_.end() && std::any_of(kept->second.begin(), kept->second.end(),
                                                  [&](const proto::FenceDone& answer) { return answer.key() == key; });
}

std::vector<proto::FenceDone> GangFences::fail(const std::string& name_space) {
    failed_.insert(name_space);
    std::vector<proto::FenceDone> done;
    std::vector<std::string> keys;
    for (const auto& [key, waiting] : waiting_) keys.push_back(key);
    for (const std::string& key : keys) {
        if (!names_failed(key)) continue;
        if (auto answer = settle(key)) done.push_back(std::move(*answer));
    }
    return done;
}

std::vector<proto::FenceDone> GangFences::fail_unanswered(const std::string& name_space) const {
    std::vector<proto::FenceDone> done;
    for (const auto& [key, part] : unanswered_) {
        const auto members = parse_fence_key(key);
        if (!members || std::none_of(members->begin(), members->end(),
                                     [&](const FenceMember& member) { return member.name_space == name_space; })) {
            continue;
        }
        proto::FenceDone answer;
        answer.set_key(key);
        answer.set_failed(true);
        done.push_back(std::move(answer));
    }
    return done;
}

std::vector<proto::Fence> GangFences::unanswered() const {
    std::vector<proto::Fence> parts;
    for (const auto& [key, part] : unanswered_) parts.push_back(part);
    return parts;
}

}  // namespace gangline::runner
