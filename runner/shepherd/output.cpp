#include "runner/shepherd/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>

#include <fmt/format.h>

#include "base/log.h"
#include "base/process.h"
#include "base/text.h"

namespace gangline::runner {
namespace {

constexpr std::size_t kTailBytes = 4096;
constexpr std::size_t kTailLines = 20;
constexpr std::size_t kMostPartialLine = 8192;
constexpr Duration kHoldPartialLine = milliseconds(250);
constexpr int kMostReadsATurn = 8;

std::uint64_t unix_ns() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch()).count());
}

// Cuts a torn record off its end. Units: returns the bytes that stay.
Result<std::uint64_t> cut_torn_record(int fd, const std::string& path) {
    struct stat info {};
    if (::fstat(fd, &info) != 0) return errno_error("cannot look at " + path);
    if (info.st_size == 0) return std::uint64_t{0};
    const auto content = read_file(path, std::size_t{1} << 30);
    if (!content) return content.error();
    const std::size_t whole = whole_output_records(*content);
    if (whole != content->size() && ::ftruncate(fd, static_cast<off_t>(whole)) != 0) return errno_error("cannot shorten " + path);
    return std::uint64_t{whole};
}

// Bytes of the UTF-8 character at the front; 0 when there is none.
std::size_t character_bytes(std::string_view text) {
    const auto first = static_cast<unsigned char>(text[0]);
    const std::size_t bytes = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    if (bytes > text.size()) return 0;
    for (std::size_t i = 1; i < bytes; ++i) {
        if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
    }
    return bytes;
}

// Of a number that grows, a text that seldom changes: whoever hears a fault keeps each text that it has not seen.
std::string at_least(std::uint64_t bytes) { return human_bytes(static_cast<double>(std::bit_floor(bytes))); }

std::string absolute(const std::string& path, const std::string& cwd) {
    return path.starts_with('/') ? path : cwd + "/" + path;
}

}  // namespace

std::string printable(std::string_view text) {
    std::string result;
    while (!text.empty()) {
        const std::size_t bytes = character_bytes(text);
        const bool is_control = bytes == 1 && (static_cast<unsigned char>(text[0]) < 0x20 || text[0] == 0x7f) && text[0] != '\n' && text[0] != '\t';
        if (bytes == 0 || is_control) {
            result += '?';
        } else {
            result.append(text.substr(0, bytes));
        }
        text.remove_prefix(std::max<std::size_t>(bytes, 1));
    }
    return result;
}

Result<std::unique_ptr<Output>> Output::open(Loop& loop, const OutputOptions& options) {
    Fd fd(::open(options.log_path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640));
    if (!fd) return errno_error("cannot open the output log " + options.log_path);
    const auto bytes = cut_torn_record(fd.get(), options.log_path);
    if (!bytes) return bytes.error();
    auto output = std::make_unique<Output>(loop, options, std::move(fd));
    output->log_bytes_ = *bytes;
    return output;
}

Output::Output(Loop& loop, const OutputOptions& options, Fd log)
    : loop_(loop), options_(options), log_(std::move(log), options.log_path, waiting_), chunk_(kMostOutputRecord) {
    waiting_.most = options.most_waiting_bytes;
}

Output::~Output() {
    for (auto& [key, rank] : ranks_) {
        for (Stream& stream : rank.streams) {
            if (stream.fd) loop_.forget(stream.fd.get());
        }
    }
    files_.clear();
}

// ---- The user's files.

Result<PatientFile*> Output::open_file(const std::string& path, bool truncate) {
    std::unique_ptr<PatientFile>& file = files_[path];
    if (file == nullptr) {
        auto fd = open_user_file(path, truncate);
        if (!fd) {
            files_.erase(path);
            return fd.error();
        }
        file = std::make_unique<PatientFile>(std::move(*fd), path, waiting_);
    }
    return file.get();
}

Result<void> Output::open_files(const proto::Prepare& prepare, std::uint32_t first, std::uint32_t count) {
    const proto::JobSpec& spec = prepare.spec();
    const std::string job = std::to_string(prepare.id().job());
    const bool is_element = spec.array().count() != 0;
    const std::string array = is_element ? std::to_string(spec.array().job()) : job;
    const std::string task = is_element ? std::to_string(spec.array().task()) : "0";
    const bool truncate = !spec.append_output() && prepare.restarts() == 0 && prepare.id().attempt() <= 1;
    for (std::uint32_t rank = first; rank < first + count; ++rank) {
        const std::map<char, std::string> values = {
            {'j', job}, {'A', array}, {'a', task}, {'J', job + ".0"}, {'s', "0"}, {'x', spec.name()}, {'u', prepare.user()},
            {'N', prepare.gang(static_cast<int>(prepare.node_index())).node()},
            {'n', std::to_string(prepare.node_index())}, {'t', std::to_string(rank)}};
        Files files;
        for (const bool is_error : {false, true}) {
            const std::string& pattern = is_error && !spec.error().empty() ? spec.error() : spec.output();
            if (pattern.empty()) continue;
            auto file = open_file(absolute(expand_pattern(pattern, values), spec.cwd()), truncate);
            if (!file) return file.error();
            (is_error ? files.err : files.out) = *file;
        }
        files_of_rank_[rank] = files;
    }
    return {};
}

// ---- The pipes.

void Output::add_rank(RankKey key, Fd out, Fd err, Sink sink) {
    RankOutput& rank = ranks_[key];
    rank.sink = std::move(sink);
    rank.streams[0].fd = std::move(out);
    rank.streams[1].fd = std::move(err);
    rank.streams[1].is_error = true;
    const auto files = files_of_rank_.find(key.rank);
    if (key.step_id == 0 && files != files_of_rank_.end()) {
        rank.streams[0].file = files->second.out;
        rank.streams[1].file = files->second.err;
    }
    for (std::size_t which = 0; which < 2; ++which) {
        Stream& stream = rank.streams[which];
        const auto watched = loop_.watch(stream.fd.get(), [this, key, which](Ready) { on_readable(key, which); });
        if (!watched) log_error("output_not_watched rank={} error={}", key.rank, watched.error().message);
    }
}

void Output::on_readable(RankKey key, std::size_t which) {
    for (int i = 0; i < kMostReadsATurn && read_some(key, which); ++i) {
    }
}

bool Output::read_some(RankKey key, std::size_t which) {
    RankOutput& rank = ranks_[key];
    Stream& stream = rank.streams[which];
    if (!stream.fd) return false;
    const ssize_t n = ::read(stream.fd.get(), chunk_.data(), chunk_.size());
    if (n < 0 && errno == EINTR) return true;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (n <= 0) {
        loop_.forget(stream.fd.get());
        stream.fd.reset();
        finish_line(key, rank, stream);
        return false;
    }
    take(key, rank, stream, {chunk_.data(), static_cast<std::size_t>(n)});
    return true;
}

// Whole lines go on at once; the rest of a line waits a moment for its end, so that ranks do not cut each other's lines.
void Output::take(RankKey key, RankOutput& rank, Stream& stream, std::string_view data) {
    rank.tail.append(data.size() > kTailBytes ? data.substr(data.size() - kTailBytes) : data);
    if (rank.tail.size() > 4 * kTailBytes) rank.tail.erase(0, rank.tail.size() - kTailBytes);
    if (const std::size_t end = data.rfind('\n'); end != std::string_view::npos) {
        if (const std::size_t first = data.find('\n') + 1; !stream.partial.empty() && stream.partial.size() + first <= kMostOutputRecord) {
            stream.partial.append(data.substr(0, first));
            finish_line(key, rank, stream);
            if (first <= end) deliver(key, rank, stream, data.substr(first, end + 1 - first));
        } else {
            finish_line(key, rank, stream);
            deliver(key, rank, stream, data.substr(0, end + 1));
        }
        data.remove_prefix(end + 1);
    }
    if (data.empty()) return;
    if (stream.partial.empty()) stream.partial_since = now().steady;
    if (stream.partial.size() + data.size() <= kMostPartialLine) {
        stream.partial.append(data);
        return;
    }
    finish_line(key, rank, stream);
    deliver(key, rank, stream, data);
}

void Output::deliver(RankKey key, RankOutput& rank, Stream& stream, std::string_view data) {
    if (rank.sink) return rank.sink(stream.is_error, std::string(data));
    record(key, stream.is_error ? OutputStream::Err : OutputStream::Out, data);
    if (stream.file != nullptr) stream.file->append(data);
}

void Output::finish_line(RankKey key, RankOutput& rank, Stream& stream) {
    if (stream.partial.empty()) return;
    deliver(key, rank, stream, stream.partial);
    stream.partial.clear();
}

void Output::drain(RankKey key) {
    if (ranks_.count(key) == 0) return;
    for (std::size_t which = 0; which < 2; ++which) {
        // Bounded: a child that was left behind may write for ever.
        for (int i = 0; i < 4 * kMostReadsATurn && read_some(key, which); ++i) {
        }
        finish_line(key, ranks_[key], ranks_[key].streams[which]);
    }
}

void Output::forget(RankKey key) {
    const auto found = ranks_.find(key);
    if (found != ranks_.end()) found->second.forgotten = true;
    std::erase_if(ranks_, [](const auto& one) { return one.second.forgotten && one.second.is_closed(); });
}

void Output::close_all() {
    for (auto& [key, rank] : ranks_) {
        drain(key);
        for (Stream& stream : rank.streams) {
            if (!stream.fd) continue;
            loop_.forget(stream.fd.get());
            stream.fd.reset();
        }
    }
}

void Output::pause(std::uint32_t step_id, bool paused) {
    for (auto& [key, rank] : ranks_) {
        if (key.step_id != step_id || rank.paused == paused) continue;
        rank.paused = paused;
        for (Stream& stream : rank.streams) {
            if (stream.fd) loop_.want(stream.fd.get(), !paused, false);
        }
    }
}

std::string Output::last_lines(RankKey key) const {
    const auto found = ranks_.find(key);
    if (found == ranks_.end()) return {};
    std::string_view tail = found->second.tail;
    if (tail.size() > kTailBytes) tail.remove_prefix(tail.size() - kTailBytes);
    while (!tail.empty() && tail.back() == '\n') tail.remove_suffix(1);
    std::size_t lines = 0;
    for (std::size_t at = tail.size(); at > 0; --at) {
        if (tail[at - 1] == '\n' && ++lines == kTailLines) {
            tail.remove_prefix(at);
            break;
        }
    }
    return printable(tail);
}

// ---- The log.

void Output::record(RankKey key, OutputStream stream, std::string_view data) {
    if (log_is_full_) return;
    OutputHeader header;
    header.step_id = static_cast<std::uint16_t>(key.step_id);
    header.rank = key.rank;
    header.unix_ns = unix_ns();
    std::string bytes;
    const auto add = [&](OutputStream kind, std::string_view text) {
        header.stream = static_cast<std::uint16_t>(kind);
        append_output_record(bytes, header, text);
    };
    if (log_bytes_ + data.size() > options_.most_log_bytes) {
        log_is_full_ = true;
        add(OutputStream::Note, fmt::format("this log ends here: it has reached {} bytes, its limit\n", options_.most_log_bytes));
    } else {
        add(stream, data);
    }
    if (log_.append(bytes)) log_bytes_ += bytes.size();
}

void Output::note_lost_bytes() {
    if (log_.lost_bytes() == noted_lost_ || log_.is_failing()) return;
    const std::uint64_t lost = log_.lost_bytes() - noted_lost_;
    noted_lost_ = log_.lost_bytes();
    note({}, fmt::format("{} bytes of output are missing here: the disk was full", lost));
}

void Output::note(RankKey key, const std::string& text) { record(key, OutputStream::Note, text + "\n"); }

void Output::tell(std::uint32_t rank, const std::string& text) {
    note({0, rank}, text);
    const auto files = files_of_rank_.find(rank);
    if (files == files_of_rank_.end()) return;
    PatientFile* file = files->second.err != nullptr ? files->second.err : files->second.out;
    if (file != nullptr) file->append(fmt::format("gangline: {}\n", text));
}

void Output::flush(TimePoint now) {
    for (auto& [key, rank] : ranks_) {
        for (Stream& stream : rank.streams) {
            if (!stream.partial.empty() && now - stream.partial_since >= kHoldPartialLine) finish_line(key, rank, stream);
        }
    }
    log_.flush(now);
    note_lost_bytes();
    for (auto& [path, file] : files_) file->flush(now);
}

TimePoint Output::next_deadline() const {
    TimePoint next = log_.next_deadline();
    for (const auto& [path, file] : files_) next = std::min(next, file->next_deadline());
    for (const auto& [key, rank] : ranks_) {
        for (const Stream& stream : rank.streams) {
            if (!stream.partial.empty()) next = std::min(next, stream.partial_since + kHoldPartialLine);
        }
    }
    return next;
}

std::vector<std::string> Output::faults() const {
    std::vector<std::string> faults;
    const auto look = [&](const PatientFile& file) {
        if (file.lost_bytes() != 0) {
            faults.push_back(fmt::format("{}: at least {} of output lost", file.path(), at_least(file.lost_bytes())));
        }
        if (file.is_failing()) {
            faults.push_back(fmt::format("disk full: at least {} of output waiting for {} ({})", at_least(file.waiting_bytes()),
                                         file.path(), file.failure()));
        }
    };
    look(log_);
    for (const auto& [path, file] : files_) look(*file);
    return faults;
}

}  // namespace gangline::runner
