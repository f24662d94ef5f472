#pragma once
// The jobs of a public or a site's own cluster trace, read from the text of a file into one shape:
//
//   text --header--> format --row by row--> TraceJob --sort, earliest at 0--> Trace
//
// A bad row fails the whole file by name, line, column and value; a row that is right but cannot be replayed (no card, no
// time) is left out and counted in the notes. Pure: text in, value out.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gangline::simulate {

struct TraceJob {
    std::uint64_t number = 0;  // unique in its trace: Slurm's job id where the file has it, else the row, from 1
    double submit_s = 0;
    double duration_s = 0;
    std::uint32_t cards = 1;
    std::uint32_t nodes = 0;  // 0 = as it fits
    double limit_s = 0;       // 0 = not known, or none
    std::string user = {};
    std::string team = {};
    std::string state = {};  // how it ended, in the trace's own word
};

struct Trace {
    std::string format;              // "philly", "philly-states", "elasticflow-raw", "elasticflow-ef", "sacct", "alibaba-openb"
    std::vector<TraceJob> jobs;      // sorted by submit_s, earliest at 0; equal times keep the file's order
    std::vector<std::string> notes;  // "3 rows skipped: zero cards", then what else a reader of results must know
};

// The trace in `text`; its format is found by its header. Extra columns and blank lines do not matter.
//   philly           submit_s,duration_s,num_gpus,vc
//   philly-states    user,gpu_num,cpu_num,node_num,interval,run_time,new_status
//   elasticflow-raw  job_id,submission_time,duration,num_gpu
//   elasticflow-ef   the same with num_iteration,model_name,deadline,batch_size
//   sacct            `sacct -P`, columns in any order: Submit; ElapsedRaw, or Start and End; ReqTRES, AllocTRES or
//                    AllocGRES; also read: JobID, JobIDRaw, User, Account, NNodes, TimelimitRaw, State
//   alibaba-openb    pods: num_gpu,creation_time,deletion_time,scheduled_time; also read: gpu_milli, pod_phase
// Units:  Slurm's local times are read as if no clock was ever put forward or back.
// Errors: InvalidArgument: unknown header, a row of another width, a number that is negative, not finite or above 1e12,
//         no row at all, or none that can be replayed. The message begins with `name_for_errors`.
// Source: sacct(1).
Result<Trace> read_trace(std::string_view text, std::string_view name_for_errors);

// What a file of named columns must and may have, and what stands between its columns.
struct TableLayout {
    std::vector<std::string> required;
    std::vector<std::string> optional;
    char separator = ',';  // ',' with double quotes, or '|' without
};

// One row of a table while it is read. Columns count from 0: the required ones, then the optional ones. The first value
// that is wrong fails the file; what is asked for afterwards reads as empty or 0.
class TableRow {
  public:
    TableRow(const TableLayout& layout, std::string_view file, std::size_t line, std::vector<std::string_view> cells);
    bool has(std::size_t column) const;               // the file has this column and the row has a value in it
    std::string_view text(std::size_t column) const;  // trimmed; empty where the file lacks the column
    double number(std::size_t column);                // 0 to 1e12
    std::uint32_t count(std::size_t column);          // a whole number
    std::uint32_t to_count(std::size_t column, std::string_view part);  // the same for a part of the column's value
    void reject(std::size_t column, std::string_view why);              // "jobs.csv line 3, column submit_s: 'x' <why>"
    bool failed() const { return !error_.empty(); }
    const std::string& error() const { return error_; }
    std::size_t line() const { return line_; }

  private:
    double to_number(std::size_t column, std::string_view part);
    const std::string& column_name(std::size_t column) const;

    const TableLayout& layout_;
    std::string_view file_;
    std::size_t line_;
    std::vector<std::string_view> cells_;
    std::string error_;
};

// The names in the first line of `text` that is not blank.
// Errors: InvalidArgument: an empty text, or a NUL byte anywhere in it.
Result<std::vector<std::string>> read_header(std::string_view text, std::string_view name, char separator);
// Calls `visit` with each row in the file's order; a byte order mark, CRLF and a missing last newline do not matter.
// Errors: InvalidArgument: no header, a required column missing or any twice, a row of another width, no row at all, or
//         the first value that `visit` found wrong.
Result<void> read_table(std::string_view text, std::string_view name, const TableLayout& layout,
                        const std::function<void(TableRow&)>& visit);

}  // namespace gangline::simulate
