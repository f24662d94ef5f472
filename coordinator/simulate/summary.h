#pragma once
// Several replays of one question, seed by seed, in words, JSON and as a page with plots.

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "coordinator/simulate/replay.h"

namespace gangline::simulate {

struct Spread {
    double mean = 0;
    double p5 = 0;
    double p95 = 0;
    double half_width = 0;  // of the 95 % confidence interval of the mean, by the normal distribution; 0 for one value
};
Spread spread_of(std::vector<double> values);

// One policy's results, a seed each.
struct Series {
    std::string name;
    std::vector<ReplayResult> results;
};

nlohmann::json summary_json(const ReplayOptions& options, const std::vector<Series>& all, const std::vector<std::string>& notes);
std::string summary_text(const ReplayOptions& options, const std::vector<Series>& all, const std::vector<std::string>& notes);
// One file that needs no other. `chart_js`: the text of Chart.js.
std::string summary_html(const ReplayOptions& options, const std::vector<Series>& all, const std::vector<std::string>& notes, const std::string& chart_js);

}  // namespace gangline::simulate
