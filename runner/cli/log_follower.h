#pragma once
// Reads what all attempts of a job wrote on all their nodes, attempt after attempt, as it comes.
//
//   see(JobView)  -> a cursor for each (attempt, node) not seen before
//   ask(client)   -> a ReadLogs for each cursor of the current attempt that is due
//   take(answer)  -> its records, printed; the cursor moves on
//
// Data there: asked again at once. Nothing there: after 2 ms, then 1.5 times as long each time, up to 100 ms. An attempt's
// cursors must be complete (or given up, with a note) before the next attempt's are read.
//
// Thread rule: one thread; never waits.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/protocol/user.pb.h"
#include "base/time.h"
#include "runner/cli/client.h"
#include "runner/cli/job_name.h"
#include "runner/cli/output_printer.h"

namespace gangline::runner {

class LogFollower {
  public:
    enum class Trouble { WaitForNode, GiveUp };   // a node that does not answer while its attempt goes on

    // `only_attempt` 0: all of them.
    LogFollower(JobName job, std::uint32_t only_attempt, Trouble trouble)
        : job_(job), only_attempt_(only_attempt), trouble_(trouble) {}

    void see(const proto::JobView& job, TimePoint at);
    void ask(Client& client, TimePoint at);
    // False: the response is not one of ours.
    bool take(const proto::Response& response, OutputPrinter& printer, TimePoint at);
    std::optional<TimePoint> next_due() const;
    // Everything that is known of has been read to its end (so far, or for good).
    bool is_at_end() const;
    bool is_complete() const;

  private:
    struct Cursor {
        std::uint32_t attempt = 0;
        std::string node;
        std::uint64_t offset = 0;
        bool at_end = false;
        bool complete = false;
        bool attempt_over = false;       // nothing more will be written
        TimePoint over_since{};
        std::optional<TimePoint> failing_since;
        std::uint64_t request = 0;       // outstanding; 0: none
        TimePoint due{};                 // when to ask, or to ask again
        Duration pause = milliseconds(2);
    };
    std::uint32_t current_attempt() const;
    void fail(Cursor& cursor, const std::string& why, OutputPrinter& printer, TimePoint at);

    JobName job_;
    std::uint32_t only_attempt_;
    Trouble trouble_;
    std::vector<Cursor> cursors_;
};

}  // namespace gangline::runner
