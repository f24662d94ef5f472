#pragma once
// The agent's line: a listening abstract socket, one connection at a time, the newest wins (an agent that was started
// again replaces what is left of the old one). Only our own uid, root, and the agent's uid may speak here (SO_PEERCRED).
//
// Thread rule: the loop's thread.

#include <functional>
#include <memory>

#include "base/framing.h"
#include "base/protocol/shepherd.pb.h"
#include "base/time.h"
#include "runner/shepherd/loop.h"

namespace gangline::runner {

struct AgentEvents {
    std::function<void()> connected;
    std::function<void(const proto::ToShepherd&)> message;
};

class AgentLine {
  public:
    static Result<std::unique_ptr<AgentLine>> start(Loop& loop, Fd listener, uid_t agent_uid, AgentEvents events);
    AgentLine(Loop& loop, Fd listener, uid_t agent_uid, AgentEvents events);
    ~AgentLine();
    AgentLine(const AgentLine&) = delete;
    AgentLine& operator=(const AgentLine&) = delete;

    bool is_connected() const { return static_cast<bool>(connection_); }
    // When the agent last said anything, or was last connected; the start when it never was.
    TimePoint last_heard() const { return last_heard_; }
    // Goes out at once as far as the socket takes it. Without a connection it is dropped: reports are state.
    void send(const proto::FromShepherd& message);

  private:
    void accept_agents();
    void on_ready(Ready ready);
    void flush();
    void close();

    Loop& loop_;
    Fd listener_;
    uid_t agent_uid_;
    AgentEvents events_;
    Fd connection_;
    FrameReader reader_;
    FrameWriter writer_;
    bool wants_write_ = false;
    TimePoint last_heard_;
};

}  // namespace gangline::runner
