#pragma once
// The shepherd's own line to the coordinator, used only while its agent is silent: a gang whose agent has died must not
// look like a dead node. The key is this attempt's, which the agent has reported as `gang_key`.
//
// Thread rule: the loop's thread.

#include <functional>
#include <memory>
#include <string>

#include "base/protocol/node.pb.h"
#include "base/result.h"
#include "base/wire/wire.h"
#include "runner/shepherd/loop.h"

namespace gangline::runner {

class OwnLine {
  public:
    // The endpoint and key of the coordinator as Prepare gave them. Errors: InvalidArgument, Unavailable.
    static Result<std::unique_ptr<OwnLine>> open(Loop& loop, const KeyPair& keys, const proto::Prepare& prepare,
                                                 std::function<void(const proto::Order&)> on_order);
    OwnLine(Loop& loop, std::unique_ptr<Wire> wire, std::unique_ptr<ClientSocket> socket,
            std::function<void(const proto::Order&)> on_order);
    ~OwnLine();
    OwnLine(const OwnLine&) = delete;
    OwnLine& operator=(const OwnLine&) = delete;

    void send(proto::NodeMessage message);  // what cannot go out is dropped: it is said again
    bool is_refused() { return socket_->is_refused(); }
    // When the coordinator last said anything here; TimePoint{} = never.
    TimePoint last_heard() const { return last_heard_; }

  private:
    void receive();

    Loop& loop_;
    std::unique_ptr<Wire> wire_;
    std::unique_ptr<ClientSocket> socket_;
    std::function<void(const proto::Order&)> on_order_;
    std::uint64_t sequence_ = 0;
    TimePoint last_heard_{};
};

}  // namespace gangline::runner
