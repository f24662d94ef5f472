#pragma once
// A rank's line to the others: through its shepherd (base/worker_protocol.h), or, outside Gangline, through rank 0.
//
//   inside    every rank --- its shepherd --- ... --- rank 0's shepherd --- rank 0
//   alone     every rank --- rank 0, which listens on an abstract socket of this host; peers of another user are refused
//
// Thread rule: send() from any thread, it waits 5 s at most (30 s for rank 0 to appear); `receive` is called by the line's
// own thread and must not wait.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/worker_protocol.h"
#include "runner/worker/place.h"

namespace gangline {

struct Letter {
    WorkerKind kind = WorkerKind::Join;
    std::uint32_t to_rank = 0;
    std::uint64_t step = 0;
    std::uint32_t attempt = 0;
    std::string_view payload;
};

class Line {
  public:
    using Receive = std::function<void(const WorkerHeader& header, std::string_view payload)>;
    virtual ~Line() = default;  // stops its thread
    // Errors: Unavailable; InvalidArgument when the payload is too large.
    virtual Result<void> send(const Letter& letter) = 0;

    // The line that this place has. Errors: Unavailable (the shepherd is not there).
    static Result<std::unique_ptr<Line>> open(const Place& place, Receive receive);
};

}  // namespace gangline
