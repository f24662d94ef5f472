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

std::vector<std::size_t> Table::shown_columns() const {
    std::vector<std::size_t> shown;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
        const bool filled = std::any_of(rows_.begin(), rows_.end(), [&](const auto& row) { return !row[i].text.empty() && row[i].text != "-"; });
        if (filled || columns_[i].shown == Column::Shown::Always) shown.push_back(i);
    }
    return shown;
}

std::vector<std::size_t> Table::widths(const std::vector<std::size_t>& shown, std::size_t window) const {
    std::vector<std::size_t> widths;
    for (const std::size_t i : shown) {
        std::size_t width = columns_of(columns_[i].header);
        for (const auto& row : rows_) width = std::max(width, columns_of(row[i].text));
        widths.push_back(width);
    }
    if (window == 0 || shown.empty()) return widths;
    std::size_t total = std::accumulate(widths.begin(), widths.end(), kGap * (shown.size() - 1));
    for (const auto gives : {Column::Gives::First, Column::Gives::Last}) {
        while (total > window) {
            std::size_t widest = shown.size();
            for (std::size_t at = 0; at < shown.size(); ++at) {
                const Column& column = columns_[shown[at]];
                if (column.gives != gives || column.least == 0 || widths[at] <= column.least) continue;
                if (widest == shown.size() || widths[at] > widths[widest]) widest = at;
            }
            if (widest == shown.size()) break;
            --widths[widest];
            --total;
        }
    }
    return widths;
}

std::string Table::text(const Terminal& terminal, std::size_t indent) const {
    const std::size_t window = terminal.width > indent ? terminal.width - indent : terminal.width;
    const std::vector<std::size_t> shown = shown_columns();
    const std::vector<std::size_t> width = widths(shown, window);
    std::string all;
    const auto add_line = [&](const std::vector<Cell>& cells) {
        std::string line(indent, ' ');
        std::size_t waiting = 0;       // blanks that only count when something follows
        for (std::size_t at = 0; at < shown.size(); ++at) {
            const Cell& cell = cells[shown[at]];
            const std::string cut = fitted(cell.text, width[at]);
            const std::size_t pad = width[at] - std::min(width[at], columns_of(cut));
            const bool right = columns_[shown[at]].align == Column::Align::Right;
            if (right) waiting += pad;
            if (!cut.empty()) {
                line.append(waiting, ' ');
                waiting = 0;
                line += toned(terminal, cell.tone, cut);
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
