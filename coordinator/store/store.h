#pragma once
// The coordinator's memory: a journal of records in one SQLite file (WAL, synchronous=FULL).
//
//   open:   take the file for ourselves and the next epoch, then replay() once
//   append: one vector, one transaction, one flush; when it returns, the records survive a power cut. The first one also
//           makes our epoch durable, so nothing is done under an epoch that could be given again
//   close:  the same as a crash: nothing is flushed or merged, the next open goes on from the log
//
// Each record has a number (no gaps) and a checksum over number and bytes. SQLite takes a damaged frame of its log for
// the log's end, which would lose commits in silence; so `journal.mark` counts what was committed, and a journal that
// has fewer records is refused. Nothing is ever salvaged by itself: what is damaged is named, and open or replay fails.
//
// Thread rule: one thread. Errors of append: NoSpace, Internal; nothing of that vector was stored, and the process must
// end (replay is the way back).

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/protocol/journal.pb.h"
#include "base/result.h"

namespace gangline::coordinator {

class Store {
  public:
    // `path` names the file; made when missing (0600: specs hold people's environments). Errors: Unavailable (another
    // coordinator has it open); Damaged; Refused (made by a newer version); NoSpace; Internal.
    static Result<std::unique_ptr<Store>> open(const std::string& path);
    ~Store();
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;

    // Ours: one more than the last that appended anything.
    std::uint64_t epoch() const;
    std::uint64_t record_count() const;
    Result<void> append(std::span<const proto::Record> records);
    // All records in order, each to keep. Errors: Damaged, naming the record.
    Result<void> replay(const std::function<void(proto::Record&&)>& each);

  private:
    struct State;
    explicit Store(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace gangline::coordinator
