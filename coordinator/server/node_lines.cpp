#include "coordinator/server/node_lines.h"

namespace gangline::coordinator {
namespace {
constexpr Duration kSilent = seconds(1);
constexpr Duration kAskAgain = milliseconds(200);
constexpr std::size_t kMostSuperseded = 1000;
}  // namespace

bool NodeLines::may_ask(Line& line, const std::string& route, TimePoint now) {
    if (line.asked_route == route && now - line.asked < kAskAgain) return false;
    line.asked_route = route;
    line.asked = now;
    return true;
}

Hearing NodeLines::hear(const std::string& node, const std::string& route, const proto::NodeMessage& message, TimePoint now) {
    Line& line = lines_[node];
    if (!message.has_hello()) {
        if (line.route == route) {
            line.heard = now;
            return {Hearing::What::Counts, {}};
        }
        return {may_ask(line, route, now) ? Hearing::What::AskHello : Hearing::What::Dropped, {}};
    }
    const std::string& agent = message.hello().agent_id();
    if (line.superseded.contains(agent)) return {Hearing::What::Superseded, {}};
    const bool is_elsewhere = line.boot_id != message.hello().node().boot_id() && line.agent_id != agent;
    if (is_elsewhere && !is_silent(node, now)) return {Hearing::What::Elsewhere, {}};
    Hearing hearing{Hearing::What::Counts, {}};
    if (!line.route.empty() && line.agent_id != agent) {
        if (line.route != route) hearing.replaced_route = line.route;
        if (line.superseded.size() >= kMostSuperseded) line.superseded.clear();
        line.superseded.insert(line.agent_id);
    }
    line.route = route;
    line.agent_id = agent;
    line.boot_id = message.hello().node().boot_id();
    line.heard = now;
    return hearing;
}

std::optional<std::string> NodeLines::route_of(const std::string& node) const {
    const auto found = lines_.find(node);
    if (found == lines_.end() || found->second.route.empty()) return std::nullopt;
    return found->second.route;
}

bool NodeLines::is_silent(const std::string& node, TimePoint now) const {
    const auto found = lines_.find(node);
    return found == lines_.end() || found->second.route.empty() || now - found->second.heard > kSilent;
}

void NodeLines::forget(const std::string& node) {
    lines_.erase(node);
    std::erase_if(shepherds_, [&](const auto& entry) { return entry.first.node == node; });
}

std::vector<std::string> NodeLines::nodes() const {
    std::vector<std::string> names;
    for (const auto& [name, line] : lines_) names.push_back(name);
    return names;
}

void NodeLines::hear_shepherd(const PartId& part, const std::string& route) { shepherds_[part] = route; }

std::optional<std::string> NodeLines::shepherd_route(const PartId& part) const {
    const auto found = shepherds_.find(part);
    if (found == shepherds_.end()) return std::nullopt;
    return found->second;
}

void NodeLines::forget_shepherd(const PartId& part) { shepherds_.erase(part); }

}  // namespace gangline::coordinator
