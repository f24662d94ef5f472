#pragma once
// A line to the coordinator: requests go out, responses come back, matched by id.
//
// Errors of ask(): Unavailable when nothing answers before the deadline, naming the endpoint and what to do; the code
// of the coordinator's own refusal (InvalidArgument, Refused, Unavailable) with its words.
//
// Thread rule: one thread.

#include <memory>
#include <optional>

#include "base/protocol/user.pb.h"
#include "base/result.h"
#include "base/time.h"
#include "base/wire/wire.h"
#include "runner/cli/config.h"

namespace gangline::runner {

inline constexpr Duration kAnswerDeadline = seconds(5);

class Client {
  public:
    static Result<std::unique_ptr<Client>> connect(const ClusterAddress& address);

    // Answers to earlier send()s that arrive meanwhile are dropped.
    Result<proto::Response> ask(proto::Request request, Duration deadline = kAnswerDeadline);

    // Pipelined use: send() gives the request its id and returns it; 0 when the queue is full.
    std::uint64_t send(proto::Request& request);
    std::optional<proto::Response> receive();
    std::optional<proto::Response> receive(Duration timeout);
    int fd() const { return socket_->fd(); }

    // The error in words when nothing answers.
    Error unreachable(Duration waited) const;

  private:
    Client() = default;
    std::optional<proto::Response> decode(const std::optional<std::string>& bytes) const;

    ClusterAddress address_;
    std::unique_ptr<Wire> wire_;
    std::unique_ptr<ClientSocket> socket_;
    std::uint64_t next_id_ = 1;
};

// A response that is not OK, as the error that it is.
std::optional<Error> error_of(const proto::Response& response);

// 0 for success is not here: InvalidArgument 2, Refused and NotFound 3, Unavailable and Deadline 4, else 1.
int exit_code_of(const Error& error);

}  // namespace gangline::runner
