#pragma once
// A file that is appended to and never holds anybody up: what it does not take now (disk full, quota, size limit) waits in
// memory, in order, and is tried again. What no memory is left for is dropped and counted.
//
// Thread rule: one thread.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/handle.h"
#include "base/result.h"
#include "base/time.h"

namespace gangline::runner {

// Shared by the files of a node: how many bytes wait in all.
struct WaitingBytes {
    std::size_t now = 0;
    std::size_t most = 64u << 20;
};

class PatientFile {
  public:
    PatientFile(Fd fd, std::string path, WaitingBytes& waiting);
    ~PatientFile();
    PatientFile(const PatientFile&) = delete;
    PatientFile& operator=(const PatientFile&) = delete;

    // All of it, or, when there is no room for it to wait, nothing. False: dropped.
    bool append(std::string_view bytes);
    // Writes what the file takes. While it is failing, at most once in kRetryEvery.
    void flush(TimePoint now);

    bool is_failing() const { return !failure_.empty(); }
    const std::string& failure() const { return failure_; }  // "No space left on device"; empty = it takes what comes
    std::size_t waiting_bytes() const { return buffer_.size(); }
    std::uint64_t lost_bytes() const { return lost_; }
    TimePoint next_deadline() const;
    const std::string& path() const { return path_; }

    static constexpr Duration kRetryEvery = milliseconds(500);

  private:
    Fd fd_;
    std::string path_;
    WaitingBytes& waiting_;
    std::string buffer_;
    std::string failure_;
    std::uint64_t lost_ = 0;
    TimePoint retry_at_{};
};

// Opens a user's output file for appending, as the user: created if missing (0666 less the usual 022), never blocking on a FIFO.
// Errors: Refused when it is no regular file, terminal, or /dev/null; NotFound, NoSpace, Internal with the path.
Result<Fd> open_user_file(const std::string& path, bool truncate);

}  // namespace gangline::runner
