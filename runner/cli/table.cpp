#include "runner/cli/table.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace gangline::runner {
namespace {

constexpr std::size_t kGap = 2;

}  // namespace

void Table::add(std::vector<Cell> row) {
    CHECK(row.size() == columns_.size(), "a row has one cell a column");
    for (Cell& cell : row) cell.text = one_line(cell.text);
    rows_.push_back(std::move(row));
}

std::vector<std::size_t> Table::widths(std::size_t window) const {
    std::vector<std::size_t> widths;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
        std::size_t width = columns_of(columns_[i].header);
        for (const auto& row : rows_) width = std::max(width, columns_of(row[i].text));
        widths.push_back(width);
    }
    if (window == 0) return widths;
    const std::size_t gaps = kGap * (columns_.size() - 1);
    std::size_t total = std::accumulate(widths.begin(), widths.end(), gaps);
    while (total > window) {
        std::size_t widest = columns_.size();
        for (std::size_t i = 0; i < columns_.size(); ++i) {
            if (columns_[i].least == 0 || widths[i] <= columns_[i].least) continue;
            if (widest == columns_.size() || widths[i] > widths[widest]) widest = i;
        }
        if (widest == columns_.size()) break;
        --widths[widest];
        --total;
    }
    return widths;
}

std::string Table::text(const Terminal& terminal, std::size_t indent) const {
    const std::size_t window = terminal.width > indent ? terminal.width - indent : terminal.width;
    const std::vector<std::size_t> width = widths(window);
    std::string all;
    const auto add_line = [&](const std::vector<Cell>& cells) {
        std::string line(indent, ' ');
        std::size_t waiting = 0;       // blanks that only count when something follows
        for (std::size_t i = 0; i < columns_.size(); ++i) {
            const std::string cut = fitted(cells[i].text, width[i]);
            const std::size_t pad = width[i] - std::min(width[i], columns_of(cut));
            const bool right = columns_[i].align == Column::Align::Right;
            if (right) waiting += pad;
            if (!cut.empty()) {
                line.append(waiting, ' ');
                waiting = 0;
                line += toned(terminal, cells[i].tone, cut);
            }
            waiting += (right ? 0 : pad) + kGap;
        }
        all += line + "\n";
    };
    std::vector<Cell> header;
    for (const Column& column : columns_) header.emplace_back(column.header, Tone::Strong);
    add_line(header);
    for (const auto& row : rows_) add_line(row);
    return all;
}

}  // namespace gangline::runner
