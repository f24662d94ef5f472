#include "coordinator/simulate/trace.h"

#define CSV_IO_NO_THREAD
#include <fmt/format.h>
#include <libfccp/csv.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"

namespace gangline::simulate {
namespace {

constexpr double kLargest = 1e12;
constexpr std::size_t kSlots = 16;  // the most columns a layout may name
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

Error invalid(std::string message) { return Error{Code::InvalidArgument, std::move(message)}; }

std::string shortened(std::string_view text, std::size_t most) {
    return text.size() <= most ? std::string(text) : std::string(text.substr(0, most)) + "...";
}

std::string_view without_mark(std::string_view text) {
    return text.substr(0, kByteOrderMark.size()) == kByteOrderMark ? text.substr(kByteOrderMark.size()) : text;
}

// Line `number`, from 1, without its end.
std::string_view line_at(std::string_view text, std::size_t number) {
    for (; number > 1; --number) {
        const std::size_t end = text.find('\n');
        if (end == std::string_view::npos) return {};
        text.remove_prefix(end + 1);
    }
    text = text.substr(0, text.find('\n'));
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    return text;
}

std::size_t width_of(std::string_view line, char separator) {
    std::size_t width = 1;
    bool quoted = false;
    for (const char letter : line) {
        if (letter == '"' && separator == ',') quoted = !quoted;
        if (letter == separator && !quoted) ++width;
    }
    return width;
}

std::string counted(std::size_t count, std::string_view one, std::string_view many) {
    return fmt::format("{} {}", count, count == 1 ? one : many);
}

bool all_digits(std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

template <class Reader, std::size_t... Slot>
void read_names(Reader& reader, const std::array<std::string, kSlots>& names, std::index_sequence<Slot...> /*slots*/) {
    reader.read_header(io::ignore_extra_column | io::ignore_missing_column, names[Slot]...);
}

template <class Reader, std::size_t... Slot>
bool read_cells(Reader& reader, std::array<const char*, kSlots>& cells, std::index_sequence<Slot...> /*slots*/) {
    return reader.read_row(cells[Slot]...);
}

// What read_table does once the header is known to be good. Throws what the library throws.
template <class Quotes>
Result<void> visit_rows(const std::string& text, std::string_view name, const TableLayout& layout, std::size_t& line,
                        const std::function<void(TableRow&)>& visit) {
    using Reader = io::CSVReader<kSlots, io::trim_chars<' ', '\t'>, Quotes, io::throw_on_overflow, io::empty_line_comment>;
    constexpr auto kEach = std::make_index_sequence<kSlots>();
    std::array<std::string, kSlots> names;
    names.fill("\n");  // no column can be called that
    const auto next = std::copy(layout.required.begin(), layout.required.end(), names.begin());
    std::copy(layout.optional.begin(), layout.optional.end(), next);

    Reader reader(std::string(name), text.data(), text.data() + text.size());
    read_names(reader, names, kEach);
    std::size_t rows = 0;
    while (true) {
        std::array<const char*, kSlots> cells{};
        const bool more = read_cells(reader, cells, kEach);
        line = reader.get_file_line();
        if (!more) break;
        std::vector<std::string_view> views;
        views.reserve(kSlots);
        for (const char* cell : cells) views.push_back(cell == nullptr ? std::string_view() : std::string_view(cell));
        TableRow row(layout, name, line, std::move(views));
        visit(row);
        if (row.failed()) return invalid(row.error());
        ++rows;
    }
    if (rows == 0) return invalid(fmt::format("{}: has a header and no rows", name));
    return {};
}

}  // namespace

TableRow::TableRow(const TableLayout& layout, std::string_view file, std::size_t line, std::vector<std::string_view> cells)
    : layout_(layout), file_(file), line_(line), cells_(std::move(cells)) {}

const std::string& TableRow::column_name(std::size_t column) const {
    const std::size_t required = layout_.required.size();
    return column < required ? layout_.required[column] : layout_.optional.at(column - required);
}

bool TableRow::has(std::size_t column) const { return !cells_.at(column).empty(); }

std::string_view TableRow::text(std::size_t column) const { return cells_.at(column); }

void TableRow::reject(std::size_t column, std::string_view why) {
    if (failed()) return;
    error_ = fmt::format("{} line {}, column {}: '{}' {}", file_, line_, column_name(column), shortened(text(column), 80), why);
}

double TableRow::to_number(std::size_t column, std::string_view part) {
    double value = 0;
    const auto [end, code] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (code == std::errc::result_out_of_range && end == part.data() + part.size()) {
        reject(column, "is out of range");
    } else if (part.empty() || code != std::errc() || end != part.data() + part.size() || std::isnan(value)) {
        reject(column, "is not a number");
    } else if (value < 0) {
        reject(column, "is negative");
    } else if (value > kLargest) {
        reject(column, "is out of range: the largest number is 1e12");
    }
    return failed() ? 0 : std::abs(value);
}

double TableRow::number(std::size_t column) { return to_number(column, text(column)); }

std::uint32_t TableRow::to_count(std::size_t column, std::string_view part) {
    const double value = to_number(column, part);
    if (value != std::floor(value)) reject(column, "is not a whole number");
    if (value > std::numeric_limits<std::uint32_t>::max()) reject(column, "is out of range: the largest count is 4294967295");
    return failed() ? 0 : static_cast<std::uint32_t>(value);
}

std::uint32_t TableRow::count(std::size_t column) { return to_count(column, text(column)); }

Result<std::vector<std::string>> read_header(std::string_view text, std::string_view name, char separator) {
    text = without_mark(text);
    if (const std::size_t at = text.find('\0'); at != std::string_view::npos) {
        const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
        return invalid(fmt::format("{} line {}: has a NUL byte: this is not a text file", name, line));
    }
    text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t\r\n")));
    if (text.empty()) return invalid(fmt::format("{}: is empty", name));
    std::vector<std::string> names;
    for (const std::string& cell : split(line_at(text, 1), separator)) {
        std::string_view plain = trim(cell);
        const bool quoted = separator == ',' && plain.size() >= 2 && plain.front() == '"' && plain.back() == '"';
        names.emplace_back(quoted ? plain.substr(1, plain.size() - 2) : plain);
    }
    return names;
}

Result<void> read_table(std::string_view text, std::string_view name, const TableLayout& layout,
                        const std::function<void(TableRow&)>& visit) {
    CHECK(layout.required.size() + layout.optional.size() <= kSlots, "a layout names no more columns than there are slots");
    CHECK(layout.separator == ',' || layout.separator == '|', "the separator is one of two");
    const auto header = read_header(text, name, layout.separator);
    if (!header) return header.error();
    for (const std::string& column : layout.required) {
        if (std::find(header->begin(), header->end(), column) == header->end()) {
            return invalid(fmt::format("{}: has no column {}; its header is '{}'", name, column,
                                       shortened(fmt::format("{}", fmt::join(*header, std::string(1, layout.separator))), 300)));
        }
    }
    // The library takes a last line without an end for what lies behind it in its buffer: give it one.
    std::string whole(without_mark(text));
    if (whole.back() != '\n') whole += '\n';
    std::size_t line = 1;
    const auto wrong_width = [&](unsigned at) {
        return invalid(fmt::format("{} line {}: has {} where the header has {}: '{}'", name, at,
                                   counted(width_of(line_at(whole, at), layout.separator), "column", "columns"), header->size(),
                                   shortened(line_at(whole, at), 80)));
    };
    try {
        return layout.separator == '|' ? visit_rows<io::no_quote_escape<'|'>>(whole, name, layout, line, visit)
                                       : visit_rows<io::double_quote_escape<',', '"'>>(whole, name, layout, line, visit);
    } catch (const io::error::too_few_columns& error) {
        return wrong_width(static_cast<unsigned>(error.file_line));
    } catch (const io::error::too_many_columns& error) {
        return wrong_width(static_cast<unsigned>(error.file_line));
    } catch (const io::error::duplicated_column_in_header& error) {
        return invalid(fmt::format("{}: has the column {} twice", name, error.column_name));
    } catch (const io::error::escaped_string_not_closed& error) {
        return invalid(fmt::format("{} line {}: has a quote that is not closed", name, error.file_line));
    } catch (const std::exception& error) {
        return invalid(fmt::format("{} after line {}: {}", name, line, error.what()));
    }
}

namespace {

// The trace while its rows come in.
class Builder {
  public:
    void next_row() { ++row_; }
    void skip(const std::string& reason) { ++skipped_[reason]; }
    void remark(const std::string& sentence) { ++remarks_[sentence]; }  // counted; after "N rows: "
    void note(std::string sentence) { notes_.push_back(std::move(sentence)); }
    // Keeps the job unless the row is wrong or there is nothing of it to replay.
    bool add(const TableRow& row, TraceJob job) {
        if (row.failed()) return false;
        if (job.cards == 0 || job.duration_s == 0) {
            skip(job.cards == 0 ? "zero cards" : "zero duration");
            return false;
        }
        rows_.push_back(row_);
        if (job.number == 0) job.number = row_;
        jobs_.push_back(std::move(job));
        return true;
    }
    // Job ids are of use only if all jobs have their own; otherwise every job is called by its row.
    void use_rows_unless_ids_are_unique() {
        std::set<std::uint64_t> seen;
        for (const TraceJob& job : jobs_) seen.insert(job.number);
        if (ids_whole && seen.size() == jobs_.size()) return;
        for (std::size_t i = 0; i < jobs_.size(); ++i) jobs_[i].number = rows_[i];
        note("jobs are numbered by their rows: the job ids are missing, repeated or not plain numbers");
    }
    Result<Trace> finish(std::string_view name, std::string_view format) && {
        Trace trace;
        trace.format = format;
        for (const auto& [reason, count] : skipped_) {
            trace.notes.push_back(fmt::format("{} skipped: {}", counted(count, "row", "rows"), reason));
        }
        if (jobs_.empty()) {
            return invalid(fmt::format("{}: no row can be replayed: {}", name, fmt::join(trace.notes, "; ")));
        }
        for (const auto& [sentence, count] : remarks_) {
            trace.notes.push_back(fmt::format("{}: {}", counted(count, "row", "rows"), sentence));
        }
        trace.notes.insert(trace.notes.end(), notes_.begin(), notes_.end());
        trace.jobs = std::move(jobs_);
        const auto earlier = [](const TraceJob& a, const TraceJob& b) { return a.submit_s < b.submit_s; };
        std::stable_sort(trace.jobs.begin(), trace.jobs.end(), earlier);
        const double origin_s = trace.jobs.front().submit_s;
        for (TraceJob& job : trace.jobs) job.submit_s -= origin_s;
        return trace;
    }

    double clock_s = 0;     // the submit time of the last row, where rows carry only the time since it
    bool ids_whole = true;  // every job so far had a plain number as its id

  private:
    std::uint64_t row_ = 0;
    std::vector<TraceJob> jobs_;
    std::vector<std::uint64_t> rows_;  // of jobs_
    std::map<std::string, std::size_t> skipped_;
    std::map<std::string, std::size_t> remarks_;
    std::vector<std::string> notes_;
};

void read_philly(TableRow& row, Builder& builder) {
    enum : std::size_t { Submit, Duration, Cards, Team };
    TraceJob job;
    job.submit_s = row.number(Submit);
    job.duration_s = row.number(Duration);
    job.cards = row.count(Cards);
    job.team = row.text(Team);
    builder.add(row, std::move(job));
}

void read_philly_states(TableRow& row, Builder& builder) {
    enum : std::size_t { User, Cards, Processors, Nodes, Interval, RunTime, State };
    TraceJob job;
    job.user = row.text(User);
    job.cards = row.count(Cards);
    job.nodes = row.count(Nodes);
    builder.clock_s += row.number(Interval);
    job.submit_s = builder.clock_s;
    job.duration_s = row.number(RunTime);
    job.state = row.text(State);
    builder.add(row, std::move(job));
}

void read_elasticflow(TableRow& row, Builder& builder) {
    enum : std::size_t { JobId, Submit, Duration, Cards };
    TraceJob job;
    job.submit_s = row.number(Submit);
    job.duration_s = row.number(Duration);
    job.cards = row.count(Cards);
    builder.add(row, std::move(job));
}

void read_openb(TableRow& row, Builder& builder) {
    enum : std::size_t { Cards, Creation, Deletion, Scheduled, Milli, Phase };
    TraceJob job;
    job.cards = row.count(Cards);
    job.submit_s = row.number(Creation);
    const double deletion_s = row.number(Deletion);
    const bool shares = row.has(Milli) && row.number(Milli) < 1000;
    if (!row.failed() && !row.has(Scheduled)) return builder.skip(job.cards == 0 ? "zero cards" : "never scheduled");
    const double scheduled_s = row.number(Scheduled);
    if (deletion_s < scheduled_s) row.reject(Deletion, "lies before scheduled_time");
    job.duration_s = deletion_s - scheduled_s;
    job.state = row.text(Phase);
    if (builder.add(row, std::move(job)) && shares) builder.remark("a part of a card, counted as a whole one");
}

enum SacctColumn : std::size_t {
    Submit, ElapsedRaw, Start, End, ReqTres, AllocTres, AllocGres, JobIdRaw, JobId, User, Account, NNodes, TimelimitRaw, State,
};

std::optional<int> digits(std::string_view text) {
    int value = 0;
    if (!all_digits(text) || std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return {};
    return value;
}

// "2026-11-30T07:32:37", or seconds since 1970 as SLURM_TIME_FORMAT=%s prints them.
double slurm_time(TableRow& row, std::size_t column) {
    const std::string_view text = row.text(column);
    if (all_digits(text)) return row.number(column);
    const auto wrong = [&] {
        row.reject(column, "is not a time such as 2026-11-30T07:32:37");
        return 0.0;
    };
    if (text.size() != 19 || text[4] != '-' || text[7] != '-' || text[10] != 'T' || text[13] != ':' || text[16] != ':') {
        return wrong();
    }
    const auto year = digits(text.substr(0, 4)), month = digits(text.substr(5, 2)), day = digits(text.substr(8, 2));
    const auto hour = digits(text.substr(11, 2)), minute = digits(text.substr(14, 2)), second = digits(text.substr(17, 2));
    if (!year || !month || !day || !hour || !minute || !second || *hour > 23 || *minute > 59 || *second > 60) return wrong();
    const std::chrono::year_month_day date{std::chrono::year(*year), std::chrono::month(static_cast<unsigned>(*month)),
                                           std::chrono::day(static_cast<unsigned>(*day))};
    if (!date.ok() || *year < 1970) return wrong();
    const auto days = std::chrono::sys_days(date).time_since_epoch().count();
    return static_cast<double>(days) * 86400 + *hour * 3600 + *minute * 60 + *second;
}

// The cards in "billing=64,gres/gpu:h100=8,gres/gpu=8": the plain total where it stands, else the sum over the models.
std::uint32_t cards_of_tres(TableRow& row, std::size_t column) {
    double sum = 0;
    for (const std::string& entry : split(row.text(column), ',')) {
        const std::size_t equals = entry.find('=');
        if (equals == std::string::npos) continue;
        const std::string_view key = trim(std::string_view(entry).substr(0, equals));
        const std::string_view value = std::string_view(entry).substr(equals + 1);
        if (key == "gres/gpu") return row.to_count(column, value);
        if (key.substr(0, 9) == "gres/gpu:") sum += row.to_count(column, value);
    }
    if (sum > std::numeric_limits<std::uint32_t>::max()) row.reject(column, "has too many cards");
    return row.failed() ? 0 : static_cast<std::uint32_t>(sum);
}

// The cards in "gpu:8", "gpu:h100:8(IDX:0-7)", "gpu:h100" (one), with or without "gres:" before them.
std::uint32_t cards_of_gres(TableRow& row, std::size_t column) {
    std::string plain;
    int depth = 0;
    for (const char letter : row.text(column)) {
        if (letter == '(') ++depth;
        if (depth == 0) plain += letter;
        if (letter == ')') --depth;
    }
    double sum = 0;
    for (const std::string& entry : split(plain, ',')) {
        std::string_view rest = trim(entry);
        if (rest.substr(0, 5) == "gres:" || rest.substr(0, 5) == "gres/") rest.remove_prefix(5);
        if (rest != "gpu" && rest.substr(0, 4) != "gpu:") continue;
        const std::string_view last = rest.substr(rest.rfind(':') + 1);
        const bool counts = !last.empty() && std::string_view("-0123456789").find(last.front()) != std::string_view::npos;
        const bool is_count = counts && (rest.find(':') != rest.rfind(':') || all_digits(last) || last.front() == '-');
        sum += is_count ? row.to_count(column, last) : 1;
    }
    if (sum > std::numeric_limits<std::uint32_t>::max()) row.reject(column, "has too many cards");
    return row.failed() ? 0 : static_cast<std::uint32_t>(sum);
}

// What was allocated counts; what was asked for stands in where that is not told.
std::uint32_t sacct_cards(TableRow& row) {
    if (const std::uint32_t cards = cards_of_tres(row, AllocTres); cards > 0) return cards;
    if (const std::uint32_t cards = cards_of_gres(row, AllocGres); cards > 0) return cards;
    return cards_of_tres(row, ReqTres);
}

bool is_time(std::string_view text) { return !text.empty() && text != "Unknown" && text != "None"; }

// Nothing when the job did not start or did not end.
std::optional<double> sacct_duration(TableRow& row) {
    if (row.has(ElapsedRaw)) return row.number(ElapsedRaw);
    if (!is_time(row.text(Start)) || !is_time(row.text(End))) return std::nullopt;
    const double start_s = slurm_time(row, Start);
    const double end_s = slurm_time(row, End);
    if (end_s < start_s) row.reject(End, "lies before Start");
    return end_s - start_s;
}

void read_sacct(TableRow& row, Builder& builder) {
    const std::string_view id = row.has(JobIdRaw) ? row.text(JobIdRaw) : row.text(JobId);
    if (row.text(JobId).find('.') != std::string_view::npos || id.find('.') != std::string_view::npos) {
        return builder.skip("steps of jobs");
    }
    TraceJob job;
    job.submit_s = slurm_time(row, Submit);
    const std::optional<double> duration_s = sacct_duration(row);
    if (!row.failed() && !duration_s) return builder.skip("no start or no end");
    job.duration_s = duration_s.value_or(0);
    job.cards = sacct_cards(row);
    if (row.has(NNodes)) job.nodes = row.count(NNodes);
    const std::string_view limit = row.text(TimelimitRaw);
    if (!limit.empty() && limit != "UNLIMITED" && limit != "Partition_Limit") job.limit_s = row.number(TimelimitRaw) * 60;
    job.user = row.text(User);
    job.team = row.text(Account);
    const std::string_view state = row.text(State);
    job.state = state.substr(0, state.find(' '));  // "CANCELLED by 1000"
    const bool runs = job.state == "RUNNING" || job.state == "SUSPENDED";
    const bool plain = all_digits(id) && std::from_chars(id.data(), id.data() + id.size(), job.number).ec == std::errc() &&
                       job.number > 0;
    if (!builder.add(row, std::move(job))) return;
    builder.ids_whole = builder.ids_whole && plain;
    if (runs) builder.remark("had not ended: the time until the report stands as the duration");
}

struct Format {
    std::string name;
    TableLayout layout;
    void (*read)(TableRow&, Builder&);
};

// The first format whose required columns the header has is the trace's.
const std::vector<Format>& formats() {
    static const std::vector<std::string> ef = {"job_id",        "submission_time", "duration", "num_gpu",
                                                "num_iteration", "model_name",      "deadline", "batch_size"};
    static const std::vector<Format> known = {
        {"philly", {{"submit_s", "duration_s", "num_gpus", "vc"}, {}, ','}, read_philly},
        {"philly-states",
         {{"user", "gpu_num", "cpu_num", "node_num", "interval", "run_time", "new_status"}, {}, ','},
         read_philly_states},
        {"elasticflow-ef", {ef, {}, ','}, read_elasticflow},
        {"elasticflow-raw", {{ef.begin(), ef.begin() + 4}, {}, ','}, read_elasticflow},
        {"alibaba-openb",
         {{"num_gpu", "creation_time", "deletion_time", "scheduled_time"}, {"gpu_milli", "pod_phase"}, ','},
         read_openb},
        {"sacct",
         {{"Submit"},
          {"ElapsedRaw", "Start", "End", "ReqTRES", "AllocTRES", "AllocGRES", "JobIDRaw", "JobID", "User", "Account", "NNodes",
           "TimelimitRaw", "State"},
          '|'},
         read_sacct},
    };
    return known;
}

bool has_all(const std::vector<std::string>& header, const std::vector<std::string>& columns) {
    return std::all_of(columns.begin(), columns.end(), [&](const std::string& column) {
        return std::find(header.begin(), header.end(), column) != header.end();
    });
}

Error unknown_header(std::string_view name, const std::vector<std::string>& header) {
    std::vector<std::string> known;
    for (const Format& format : formats()) {
        known.push_back(format.layout.separator == '|'
                            ? "sacct -P (Submit|ElapsedRaw|AllocTRES, or Start|End for ElapsedRaw)"
                            : fmt::format("{} ({})", format.name, fmt::join(format.layout.required, ",")));
    }
    return invalid(fmt::format("{}: unknown header '{}'; known formats: {}", name,
                               shortened(fmt::format("{}", fmt::join(header, ",")), 300), fmt::join(known, "; ")));
}

// What sacct's columns must have besides Submit, in one of several ways.
std::optional<Error> sacct_lack(std::string_view name, const std::vector<std::string>& header) {
    const auto lacks = [&](std::string_view what) {
        return invalid(fmt::format("{}: this sacct report has no {}; its header is '{}'", name, what,
                                   shortened(fmt::format("{}", fmt::join(header, "|")), 300)));
    };
    if (!has_all(header, {"ElapsedRaw"}) && !has_all(header, {"Start", "End"})) return lacks("ElapsedRaw, nor Start and End");
    if (has_all(header, {"ReqTRES"}) || has_all(header, {"AllocTRES"}) || has_all(header, {"AllocGRES"})) return std::nullopt;
    return lacks("ReqTRES, AllocTRES or AllocGRES");
}

}  // namespace

Result<Trace> read_trace(std::string_view text, std::string_view name_for_errors) {
    auto header = read_header(text, name_for_errors, '|');
    if (!header) return header.error();
    const bool bars = header->size() > 1;
    if (!bars) header = read_header(text, name_for_errors, ',');
    const auto matches = [&](const Format& format) {
        return (format.layout.separator == '|') == bars && has_all(*header, format.layout.required);
    };
    const auto format = std::find_if(formats().begin(), formats().end(), matches);
    if (format == formats().end()) return unknown_header(name_for_errors, *header);
    const bool is_sacct = format->name == "sacct";
    if (is_sacct) {
        if (auto lack = sacct_lack(name_for_errors, *header)) return *lack;
    }
    Builder builder;
    const auto done = read_table(text, name_for_errors, format->layout, [&](TableRow& row) {
        builder.next_row();
        format->read(row, builder);
    });
    if (!done) return done.error();
    if (is_sacct) {
        builder.use_rows_unless_ids_are_unique();
        if (!has_all(*header, {"JobID"}) && !has_all(*header, {"JobIDRaw"})) {
            builder.note("no JobID column: steps of jobs, if there are any, stand as jobs of their own");
        }
    }
    return std::move(builder).finish(name_for_errors, format->name);
}

}  // namespace gangline::simulate
