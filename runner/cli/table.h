#pragma once
// A table for people: a header in capitals, columns as wide as what is in them, numbers to the right; where the window is
// too narrow the elastic columns give way, longest first, down to their least width; a `last` one gives way after the others.
//
// Thread rule: pure.

#include <string>
#include <vector>

#include "runner/cli/terminal.h"

namespace gangline::runner {

struct Column {
    std::string header;
    enum class Align { Left, Right } align = Align::Left;
    std::size_t least = 0;       // 0: never cut; else it may shrink to so many columns
    enum class Shown { Always, WhereFilled } shown = Shown::Always;    // WhereFilled: left out when no row has more than "" or "-" in it
    enum class Gives { First, Last } gives = Gives::First;
};

struct Cell {
    std::string text;
    Tone tone = Tone::Plain;
    Cell(std::string words, Tone colour = Tone::Plain) : text(std::move(words)), tone(colour) {}  // NOLINT
    Cell(const char* words) : text(words) {}                                                     // NOLINT
};

class Table {
  public:
    explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
    void add(std::vector<Cell> row);     // one cell a column
    bool empty() const { return rows_.empty(); }
    // Every line ends with '\n'; no blanks at its end.
    std::string text(const Terminal& terminal, std::size_t indent = 0) const;

  private:
    std::vector<std::size_t> shown_columns() const;
    std::vector<std::size_t> widths(const std::vector<std::size_t>& shown, std::size_t window) const;
    std::vector<Column> columns_;
    std::vector<std::vector<Cell>> rows_;
};

}  // namespace gangline::runner
