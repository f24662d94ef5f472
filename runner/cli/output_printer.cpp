#include "runner/cli/output_printer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/process.h"

namespace gangline::runner {
namespace {

constexpr std::size_t kLongestHeldLine = 1 << 20;

int fd_of(std::uint16_t stream) { return stream == static_cast<std::uint16_t>(OutputStream::Out) ? 1 : 2; }

std::string json_line(std::uint16_t stream, std::uint32_t rank, std::string_view line) {
    nlohmann::ordered_json object;
    object["rank"] = rank;
    object["stream"] = stream == static_cast<std::uint16_t>(OutputStream::Out)    ? "out"
                       : stream == static_cast<std::uint16_t>(OutputStream::Note) ? "note"
                                                                                  : "err";
    if (line.ends_with('\n')) line.remove_suffix(1);
    object["text"] = line;
    return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

OutputPrinter::OutputPrinter(OutputChoice choice) : choice_(choice), error_terminal_(terminal_of(2)) {
    same_terminal_ = error_terminal_.is_terminal && ::isatty(1) == 1;
}

void OutputPrinter::put(int fd, std::string_view bytes) {
    if (closed_[fd] || bytes.empty()) return;
    if (!write_all(fd, bytes)) closed_[fd] = true;
    if (fd == 2 || same_terminal_) at_line_start_ = bytes.back() == '\n';
}

void OutputPrinter::print(const OutputRecord& record) {
    const OutputHeader& header = record.header;
    const bool is_out = header.stream == static_cast<std::uint16_t>(OutputStream::Out);
    if (choice_.rank && header.rank != *choice_.rank) return;
    if (choice_.errors_only && is_out) return;
    const bool is_note = header.stream == static_cast<std::uint16_t>(OutputStream::Note);
    if (choice_.label || choice_.json || choice_.tail_lines > 0 || is_note) {
        print_lines(record);
        return;
    }
    erase_status();
    put(fd_of(header.stream), record.data);
}

void OutputPrinter::print_lines(const OutputRecord& record) {
    const Source source(record.header.rank, record.header.stream);
    std::string& partial = partial_[source];
    partial.append(record.data);
    std::size_t from = 0;
    erase_status();
    for (std::size_t end = partial.find('\n'); end != std::string::npos; end = partial.find('\n', from)) {
        put_line(source.second, source.first, std::string_view(partial).substr(from, end + 1 - from));
        from = end + 1;
    }
    partial.erase(0, from);
    if (partial.size() > kLongestHeldLine) {
        put_line(source.second, source.first, partial + "\n");
        partial.clear();
    }
}

void OutputPrinter::put_line(std::uint16_t stream, std::uint32_t rank, std::string_view line) {
    if (choice_.tail_lines > 0) {
        held_.emplace_back(Source(rank, stream), line);
        if (held_.size() > choice_.tail_lines) held_.pop_front();
        return;
    }
    if (choice_.json) {
        put(1, json_line(stream, rank, line));
        return;
    }
    std::string text;
    if (stream == static_cast<std::uint16_t>(OutputStream::Note)) {
        text = "gangline: ";
    } else if (choice_.label) {
        text = fmt::format("{}: ", rank);
    }
    put(fd_of(stream), text.append(line));
}

void OutputPrinter::release_tail() {
    choice_.tail_lines = 0;
    for (const auto& [source, line] : held_) put_line(source.second, source.first, line);
    held_.clear();
}

void OutputPrinter::flush() {
    erase_status();
    for (auto& [source, text] : partial_) {
        if (!text.empty()) put_line(source.second, source.first, text + "\n");
    }
    partial_.clear();
}

void OutputPrinter::say(std::string_view text) {
    erase_status();
    put(2, fmt::format("{}gangline: {}\n", at_line_start_ ? "" : "\n", text));
    draw_status();
}

void OutputPrinter::set_status(std::string text) {
    if (!error_terminal_.is_terminal || (text == status_ && drawn_)) return;
    erase_status();
    status_ = std::move(text);
    draw_status();
}

void OutputPrinter::erase_status() {
    if (!drawn_) return;
    drawn_ = false;
    if (!write_all(2, "\r\x1b[K")) closed_[2] = true;
}

void OutputPrinter::draw_status() {
    if (status_.empty() || drawn_ || !at_line_start_ || closed_[2]) return;
    const std::size_t width = error_terminal_.width == 0 ? 79 : error_terminal_.width - 1;
    drawn_ = write_all(2, toned(error_terminal_, Tone::Busy, fitted(status_, width))).ok();
}

}  // namespace gangline::runner
