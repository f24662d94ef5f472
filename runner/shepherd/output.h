#pragma once
// What the ranks write: read from their pipes without ever blocking them, kept as records in <spool>/output.log, and
// written to the files that the job names with sbatch's patterns.
//
//   pipe --read--> last lines of each rank, for the report when it fails
//            '---> by whole lines (a line without an end waits 250 ms for it):
//                    record log, and the user's file: one per pattern and rank, or one for several ranks
//                    or the sink instead: ranks of a step, whose client prints them
//
// A full disk holds up nobody: see patient_file.h. The log stops growing at its limit; the user's files go on.
// Thread rule: the loop's thread.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/output_log.h"
#include "base/protocol/node.pb.h"
#include "base/result.h"
#include "base/time.h"
#include "runner/shepherd/loop.h"
#include "runner/shepherd/patient_file.h"

namespace gangline::runner {

struct OutputOptions {
    std::string log_path;
    std::uint64_t most_log_bytes = 256u << 20;
    std::size_t most_waiting_bytes = 64u << 20;
};

// Fit for a protobuf string and a terminal: '?' for what is no UTF-8 and for control characters but \n and \t.
std::string printable(std::string_view text);

struct RankKey {
    std::uint32_t step_id = 0;
    std::uint32_t rank = 0;
    friend auto operator<=>(const RankKey&, const RankKey&) = default;
};

class Output {
  public:
    using Sink = std::function<void(bool is_error, std::string data)>;

    // Cuts a torn record off an existing log and appends. Errors: as the file system says.
    static Result<std::unique_ptr<Output>> open(Loop& loop, const OutputOptions& options);
    Output(Loop& loop, const OutputOptions& options, Fd log);
    ~Output();
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;

    // Opens the user's files of ranks [first, first + count) of step 0 on this node; nothing when the spec names none.
    // The first attempt empties them unless the job appends. Errors: for the user, with the path.
    Result<void> open_files(const proto::Prepare& prepare, std::uint32_t first, std::uint32_t count);

    // Takes over the read ends. With a sink the data goes there alone (and to the last lines).
    void add_rank(RankKey key, Fd out, Fd err, Sink sink);
    // The process has exited: reads what is there now. Its pipes stay open for what its children still write.
    void drain(RankKey key);
    // A rank of a finished step: what is kept of it goes when its pipes are at their end.
    void forget(RankKey key);
    void close_all();  // after everything is gone: reads the rest, flushes what is held back
    void pause(std::uint32_t step_id, bool paused);
    // Its last lines, at most 20 and 4 KiB, both streams.
    std::string last_lines(RankKey key) const;
    void note(RankKey key, const std::string& text);  // the runner's own words, in the log
    void tell(std::uint32_t rank, const std::string& text);  // the same, and in the rank's file (of errors, where there is one)

    void flush(TimePoint now);  // at the end of each turn
    TimePoint next_deadline() const;
    std::vector<std::string> faults() const;  // what is waiting or lost, in words
    bool is_waiting() const { return waiting_.now != 0; }

  private:
    struct Stream {
        Fd fd;
        bool is_error = false;
        PatientFile* file = nullptr;  // none: no file for it
        std::string partial;          // an unfinished line
        TimePoint partial_since{};
    };
    struct RankOutput {
        Stream streams[2];
        Sink sink;
        std::string tail;
        bool paused = false;
        bool forgotten = false;
        bool is_closed() const { return !streams[0].fd && !streams[1].fd; }
    };
    struct Files {
        PatientFile* out = nullptr;
        PatientFile* err = nullptr;
    };

    Result<PatientFile*> open_file(const std::string& path, bool truncate);
    void on_readable(RankKey key, std::size_t which);
    bool read_some(RankKey key, std::size_t which);  // false: nothing is there now
    void take(RankKey key, RankOutput& rank, Stream& stream, std::string_view data);
    void deliver(RankKey key, RankOutput& rank, Stream& stream, std::string_view data);
    void finish_line(RankKey key, RankOutput& rank, Stream& stream);
    void note_lost_bytes();
    void record(RankKey key, OutputStream stream, std::string_view data);

    Loop& loop_;
    OutputOptions options_;
    WaitingBytes waiting_;
    PatientFile log_;
    std::uint64_t log_bytes_ = 0;
    bool log_is_full_ = false;
    std::uint64_t noted_lost_ = 0;
    std::map<std::string, std::unique_ptr<PatientFile>> files_;
    std::map<std::uint32_t, Files> files_of_rank_;
    std::map<RankKey, RankOutput> ranks_;
    std::vector<char> chunk_;
};

}  // namespace gangline::runner
