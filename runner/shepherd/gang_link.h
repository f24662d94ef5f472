#pragma once
// The line between the shepherds of one attempt on several nodes: a star round the lead (node index 0).
//
//   node 1 --DEALER--\                     fence: each node sends its part, the lead answers all with the whole
//   node 2 --DEALER---> ROUTER, node 0     relay, modex, steps: through the lead
//   node 3 --DEALER--/
//
// CURVE with keys made for this attempt; who sent a message is known by its key, never by its body. Messages of
// another attempt are dropped. A part of a fence may come before the gang is registered here: it is kept. Unanswered
// fences are sent again with the tick, so a lost connection costs time, never the gang. A gang on one node has no socket.
//
// Thread rule: the loop's thread only. Events come from handle() alone, so no call re-enters its caller.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/protocol/shepherd.pb.h"
#include "base/result.h"
#include "base/time.h"
#include "base/wire/wire.h"

namespace gangline::runner {

struct GangLinkOptions {
    proto::AttemptId id;
    std::vector<proto::Placement> gang;  // the job's, in node order
    std::uint32_t node_index = 0;        // ours
    std::string address;                 // lead: where its port is bound; empty = the placement's address, else 127.0.0.1
    KeyPair keys;                        // this shepherd's of this attempt (its own line to the coordinator has them
                                         // too); empty: made here
};

// Called from handle() on the loop's thread. Unset ones are skipped.
struct GangEvents {
    std::function<void(const proto::FenceDone&)> fence_done;
    std::function<void(std::uint64_t request, const std::string& name_space, std::uint32_t rank)> modex_request;
    std::function<void(std::uint64_t request, int status, const std::string& blob)> modex_reply;
    std::function<void(const proto::WorkerRelay&)> relay;  // for a rank of this node
    // Steps: start and stop arrive at the others, exit and output at the lead.
    std::function<void(const proto::StartStep&)> start_step;
    std::function<void(const proto::StopStep&)> stop_step;
    std::function<void(std::uint32_t node_index, const proto::StepExit&)> step_exit;
    std::function<void(std::uint32_t node_index, const proto::StepOutput&)> step_output;
};

class GangLink {
  public:
    // Makes the keys if none were given; the lead of several nodes binds. Errors: InvalidArgument (node_index); Unavailable (address).
    static Result<std::unique_ptr<GangLink>> prepare(const GangLinkOptions& options, GangEvents events);
    virtual ~GangLink() = default;

    virtual std::string public_key() const = 0;
    virtual std::string endpoint() const = 0;    // lead of several nodes; else empty
    // At Launch: the lead admits its peers' keys, the others connect to the lead. Safe to repeat.
    // Errors: InvalidArgument when a peer's key or the endpoint is missing or malformed.
    virtual Result<void> connect(const proto::Launch& launch) = 0;

    virtual int fd() const = 0;  // readable: call handle(); always valid
    virtual void handle() = 0;
    virtual TimePoint next_deadline() const = 0;
    virtual void tick(TimePoint now) = 0;  // Alive, and what is unanswered, again

    // Which nodes hold the ranks of a namespace (placements named as in the job's gang). Before its first fence here.
    virtual void add_gang(const std::string& name_space, const std::vector<proto::Placement>& gang) = 0;
    // This node's part. fence_done follows from handle(), also on one node.
    virtual void fence(const std::string& key, const std::string& blob, bool partial) = 0;
    // The gang's fences fail, waiting and later ones, on all nodes (sent by the lead; at the others it is local).
    virtual void fail_gang(const std::string& name_space) = 0;
    virtual void ask_modex(std::uint64_t request, const std::string& name_space, std::uint32_t rank) = 0;
    virtual void answer_modex(std::uint64_t request, int status, const std::string& blob) = 0;
    // To the node of `to_rank` (of the job's gang, or of the step's); comes back by `relay` when that is this node.
    // False: no such rank, or the queue is full.
    virtual bool send_relay(const std::string& name_space, proto::WorkerRelay relay) = 0;
    virtual void send_start_step(const proto::StartStep& step, std::uint32_t node_index) = 0;
    virtual void send_stop_step(const proto::StopStep& step, std::uint32_t node_index) = 0;
    virtual void send_step_exit(const proto::StepExit& exit) = 0;      // to the lead
    virtual void send_step_output(const proto::StepOutput& output) = 0;

    // Since when nothing was heard of each other node (the lead), or of the lead (the others); for `show`.
    virtual Duration silent_for(std::uint32_t node_index, TimePoint now) const = 0;
};

}  // namespace gangline::runner
