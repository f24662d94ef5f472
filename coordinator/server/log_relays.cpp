#include "coordinator/server/log_relays.h"

#include <fmt/format.h>

namespace gangline::coordinator {

std::uint64_t LogRelays::add(Asker asker, const std::string& node, TimePoint now) {
    const std::uint64_t id = next_++;
    waiting_.emplace(id, Waiting{std::move(asker), node, now + kLogDeadline});
    return id;
}

std::optional<LogRelays::Answer> LogRelays::take(const std::string& node, proto::LogData data) {
    const auto found = waiting_.find(data.request());
    if (found == waiting_.end() || found->second.node != node) return std::nullopt;
    Answer answer;
    answer.asker = std::move(found->second.asker);
    waiting_.erase(found);
    answer.response.set_id(answer.asker.request);
    data.set_node(node);
    *answer.response.mutable_logs() = std::move(data);
    return answer;
}

std::vector<LogRelays::Answer> LogRelays::expire(TimePoint now) {
    std::vector<Answer> late;
    while (!waiting_.empty() && waiting_.begin()->second.deadline <= now) {
        Waiting& oldest = waiting_.begin()->second;
        Answer answer;
        answer.response.set_id(oldest.asker.request);
        answer.response.set_outcome(proto::UNREACHABLE);
        answer.response.set_message(fmt::format("node {} did not send its output within {:.1f} s: it is kept there; try again when `gangline nodes` shows the node",
                                                oldest.node, to_seconds(kLogDeadline)));
        answer.asker = std::move(oldest.asker);
        late.push_back(std::move(answer));
        waiting_.erase(waiting_.begin());
    }
    return late;
}

std::optional<TimePoint> LogRelays::next_deadline() const {
    if (waiting_.empty()) return std::nullopt;
    return waiting_.begin()->second.deadline;
}

}  // namespace gangline::coordinator
