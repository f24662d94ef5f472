#pragma once
// Which connection leads to which node, and whether a message that came by one may count. Pure.
//
//   unknown route --(anything but Hello)--> ask for Hello, the message does not count
//   Hello, same agent    -> the line moves to the new route (the agent connected again)
//   Hello, other agent   -> it takes over; the old one gets Bye, and its id is never let back
//   the same, but from another machine, while the old one speaks -> turned away: a name given twice, and gangs run under it
//
// Routes are learnt from verified messages only, so a node's line cannot be taken by another node. A shepherd's line
// belongs to one attempt and serves only while the node's agent is silent.

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/protocol/node.pb.h"
#include "base/time.h"

namespace gangline::coordinator {

struct PartId {
    std::string node;
    std::uint64_t job = 0;
    std::uint32_t attempt = 0;
    friend auto operator<=>(const PartId&, const PartId&) = default;
};

struct Hearing {
    enum class What { Counts, AskHello, Dropped, Superseded, Elsewhere };
    What what = What::Dropped;
    std::optional<std::string> replaced_route;  // a route that lost its node to this one: say Bye there
};

class NodeLines {
  public:
    Hearing hear(const std::string& node, const std::string& route, const proto::NodeMessage& message, TimePoint now);
    std::optional<std::string> route_of(const std::string& node) const;
    bool is_silent(const std::string& node, TimePoint now) const;  // longer than a second, or never heard
    void forget(const std::string& node);
    std::vector<std::string> nodes() const;

    void hear_shepherd(const PartId& part, const std::string& route);
    std::optional<std::string> shepherd_route(const PartId& part) const;
    void forget_shepherd(const PartId& part);

  private:
    struct Line {
        std::string route;       // empty: no Hello yet
        std::string agent_id;
        std::string boot_id;     // of its machine
        TimePoint heard;
        std::string asked_route; // where Hello was last asked for
        TimePoint asked;
        std::set<std::string> superseded;
    };
    static bool may_ask(Line& line, const std::string& route, TimePoint now);
    std::map<std::string, Line> lines_;
    std::map<PartId, std::string> shepherds_;
};

}  // namespace gangline::coordinator
