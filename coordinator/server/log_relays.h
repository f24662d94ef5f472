#pragma once
// `logs`: a user's question goes on to the node that has the output, the node's answer comes back to the user. Pure.
//
// A question waits at most five seconds. An answer counts only from the node that was asked.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/protocol/user.pb.h"
#include "base/time.h"

namespace gangline::coordinator {

// Shorter than a client waits before it asks again (2 s): the answer must be to its newest question.
inline constexpr Duration kLogDeadline = milliseconds(1500);

struct Asker {
    std::string route;
    std::uint64_t request = 0;  // the client's own id
};

class LogRelays {
  public:
    struct Answer {
        Asker asker;
        proto::Response response;
    };
    // Returns the request id to use with the node.
    std::uint64_t add(Asker asker, const std::string& node, TimePoint now);
    std::optional<Answer> take(const std::string& node, proto::LogData data);
    // Those that have waited too long, as refusals.
    std::vector<Answer> expire(TimePoint now);
    std::optional<TimePoint> next_deadline() const;

  private:
    struct Waiting {
        Asker asker;
        std::string node;
        TimePoint deadline;
    };
    std::map<std::uint64_t, Waiting> waiting_;  // in order of age, so of deadline
    std::uint64_t next_ = 1;
};

}  // namespace gangline::coordinator
