#pragma once
// The ranks' line to their shepherd (base/worker_protocol.h): one listening SOCK_SEQPACKET socket for each group of ranks
// (the command, or a step). A connection is a rank's once it has said Join with a rank of this node that nobody holds;
// only our own uid may connect. What is for a rank that has not joined yet waits for it.
//
// Thread rule: the loop's thread.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/handle.h"
#include "base/result.h"
#include "base/worker_protocol.h"
#include "runner/shepherd/loop.h"

namespace gangline::runner {

struct WorkerFrame {
    WorkerHeader header;
    std::string payload;
};
std::string encode(const WorkerHeader& header, std::string_view payload);
// False: wrong magic, version, kind or size.
bool decode(std::string_view packet, WorkerFrame& frame);

struct WorkerEvents {
    std::function<void(std::uint32_t rank)> joined;
    std::function<void(const WorkerFrame& frame)> frame;  // of a joined rank, its rank checked; every kind but Join
};

class WorkerLine {
  public:
    // Listens as `name` for ranks [first, first + count) of `attempt`. Errors: Internal.
    static Result<std::unique_ptr<WorkerLine>> start(Loop& loop, const std::string& name, std::uint32_t attempt,
                                                     std::uint32_t first, std::uint32_t count, WorkerEvents events);
    WorkerLine(Loop& loop, Fd listener, std::uint32_t attempt, std::uint32_t first, std::uint32_t count, WorkerEvents events);
    ~WorkerLine();
    WorkerLine(const WorkerLine&) = delete;
    WorkerLine& operator=(const WorkerLine&) = delete;

    bool holds(std::uint32_t rank) const { return rank >= first_ && rank - first_ < count_; }
    // False: no rank of this node, or too much waits for it.
    bool send(std::uint32_t rank, std::string packet);
    void send_all(const WorkerHeader& header, std::string_view payload);  // to those that have joined

  private:
    struct Connection {
        Fd fd;
        bool joined = false;
        std::uint32_t rank = 0;
        bool wants_write = false;
    };
    struct Mail {
        std::deque<std::string> packets;
        std::size_t bytes = 0;
    };

    void accept_ranks();
    void on_ready(int fd, Ready ready);
    bool on_packet(Connection& connection, std::string_view packet);  // false: close it
    void flush(Connection& connection);
    void close(int fd);

    Loop& loop_;
    Fd listener_;
    std::uint32_t attempt_;
    std::uint32_t first_;
    std::uint32_t count_;
    WorkerEvents events_;
    std::map<int, std::unique_ptr<Connection>> connections_;
    std::map<std::uint32_t, int> of_rank_;
    std::map<std::uint32_t, Mail> mail_;
    std::string buffer_;
};

}  // namespace gangline::runner
