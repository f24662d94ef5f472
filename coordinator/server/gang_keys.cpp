#include "coordinator/server/gang_keys.h"

#include <fmt/format.h>

namespace gangline::coordinator {

bool GangKeys::knows(const PartId& part, const std::string& public_key) const {
    const auto found = entries_.find(part);
    return found != entries_.end() && found->second.public_key == public_key;
}

Result<void> GangKeys::add(const PartId& part, const std::string& public_key) {
    if (knows(part, public_key)) return {};
    const auto refused = [&](const char* why) {
        return Error{Code::Refused, fmt::format("the gang key that {} reports for {}.{} {}", part.node, part.job, part.attempt, why)};
    };
    if (!is_public_key(public_key)) return refused("is not a public key");
    if (table_.by_key(public_key)) return refused("stands for somebody else");
    const auto of_node = std::distance(entries_.lower_bound({part.node, 0, 0}), entries_.upper_bound({part.node, ~std::uint64_t{0}, ~std::uint32_t{0}}));
    if (static_cast<std::size_t>(of_node) >= kMostShepherdsOfANode) return refused("is one too many for a node");
    remove(part);
    const std::uint64_t row = table_.add({.kind = PrincipalKind::Shepherd,
                                          .name = part.node,
                                          .public_key = public_key,
                                          .job = part.job,
                                          .attempt = part.attempt});
    entries_[part] = {row, public_key};
    return {};
}

void GangKeys::remove(const PartId& part) {
    const auto found = entries_.find(part);
    if (found == entries_.end()) return;
    table_.remove(found->second.row);
    entries_.erase(found);
}

void GangKeys::remove_node(const std::string& node) {
    std::erase_if(entries_, [&](const auto& entry) {
        if (entry.first.node != node) return false;
        table_.remove(entry.second.row);
        return true;
    });
}

}  // namespace gangline::coordinator
