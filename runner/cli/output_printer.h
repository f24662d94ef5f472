#pragma once
// What a gang writes, on this terminal: standard output to 1, standard error to 2, the runner's notes to 2.
//
// Without labels bytes pass as they come. With labels ("3: text") whole lines are printed; a line without an end is held
// until its end comes or flush(). A live status line on standard error is taken away before anything is printed and
// drawn again by the next set_status() that finds the cursor at the beginning of a line.
//
// Thread rule: one thread. Writing blocks as the terminal or the pipe does; a closed pipe silences its stream.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/output_log.h"
#include "runner/cli/terminal.h"

namespace gangline::runner {

struct OutputChoice {
    std::optional<std::uint32_t> rank;   // only this one
    bool errors_only = false;
    bool label = false;
    std::size_t tail_lines = 0;          // 0: all; else only the last so many until release_tail()
    bool json = false;                   // {"rank": 3, "stream": "out", "text": "..."} a line, all on standard output
};

class OutputPrinter {
  public:
    explicit OutputPrinter(OutputChoice choice);

    void print(const OutputRecord& record);
    void flush();                        // what is left of labelled lines
    void release_tail();                 // prints the lines held back; from then on all

    // One line of our own on standard error: "gangline: text".
    void say(std::string_view text);
    // The live line; does nothing where standard error is not a terminal.
    void set_status(std::string text);
    bool has_live_status() const { return error_terminal_.is_terminal; }

  private:
    using Source = std::pair<std::uint32_t, std::uint16_t>;   // rank, stream
    void put(int fd, std::string_view bytes);
    void print_lines(const OutputRecord& record);
    void put_line(std::uint16_t stream, std::uint32_t rank, std::string_view line);
    void erase_status();
    void draw_status();

    OutputChoice choice_;
    Terminal error_terminal_;
    bool same_terminal_ = false;         // 1 and 2 are the same
    bool at_line_start_ = true;
    bool drawn_ = false;
    bool closed_[3] = {false, false, false};
    std::string status_;
    std::map<Source, std::string> partial_;
    std::deque<std::pair<Source, std::string>> held_;
};

}  // namespace gangline::runner
