#include "coordinator/simulate/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace gangline::simulate {
namespace {

using nlohmann::json;

struct Measure {
    const char* key;
    const char* words;
    bool is_time;
    std::function<double(const ReplayResult&)> of;
};

const std::vector<Measure>& measures() {
    static const std::vector<Measure> list = {
        {"ett", "effective training time of what was held", false, [](const ReplayResult& r) { return r.ett; }},
        {"useful", "useful part of all card-seconds", false, [](const ReplayResult& r) { return r.useful; }},
        {"allocated", "cards held / owned, until the last submit", false, [](const ReplayResult& r) { return r.allocated; }},
        {"mean_wait_s", "mean wait in the queue", true, [](const ReplayResult& r) { return r.mean_wait_s; }},
        {"p95_wait_s", "95 % wait less than", true, [](const ReplayResult& r) { return r.p95_wait_s; }},
        {"worst_stretch_s", "longest time without useful work of a running gang", true, [](const ReplayResult& r) { return r.worst_stretch_s; }},
        {"stranded", "free cards on nodes that are neither empty nor full", false, [](const ReplayResult& r) { return r.stranded; }},
        {"span_s", "from the first submit to the last end", true, [](const ReplayResult& r) { return r.span_s; }},
    };
    return list;
}

Spread spread(const Series& series, const Measure& measure) {
    std::vector<double> values;
    for (const ReplayResult& one : series.results) values.push_back(measure.of(one));
    return spread_of(std::move(values));
}

std::string shown(double value, bool is_time) { return is_time ? human_duration(value) : fmt::format("{:.2f} %", 100 * value); }

// Of a difference: without its sign, which is empty where nothing of it is shown.
std::string size_of(double value, bool is_time) { return is_time ? human_duration(std::abs(value)) : fmt::format("{:.2f} points", 100 * std::abs(value)); }
const char* sign_of(double value, bool is_time, const char* minus) { return size_of(value, is_time) == size_of(0, is_time) ? "" : value < 0 ? minus : "+"; }

// One gang that trains for the whole span does not finish.
std::string jobs_words(const ReplayOptions& options, const ReplayResult& result) {
    return options.whole_cluster_job != 0 ? "1 job runs throughout" : fmt::format("{} of {} jobs finished", result.finished, result.jobs);
}

std::map<std::string, double> mean_causes(const Series& series) {
    std::map<std::string, double> sum;
    for (const ReplayResult& one : series.results) {
        for (const auto& [name, card_s] : one.causes) sum[name] += card_s / static_cast<double>(series.results.size());
    }
    return sum;
}

json phase_json(const Phase& phase) { return {{"base_s", phase.base_s}, {"per_doubling_s", phase.per_doubling_s}, {"source", phase.source}}; }

json options_json(const ReplayOptions& options) {
    const Phases& p = options.phases;
    return {{"nodes", options.nodes},
            {"cards_per_node", options.cards_per_node},
            {"nodes_per_rack", options.nodes_per_rack},
            {"training_nodes", options.whole_cluster_job},
            {"racks_per_block", options.racks_per_block},
            {"seed", options.seed},
            {"limit_factor", options.limit_factor},
            {"faults_per_1000_node_days", options.faults_per_1000_node_days},
            {"lemon_nodes", options.lemon_nodes},
            {"lemon_faults", options.lemon_faults},
            {"rack_faults_per_rack_year", options.rack_faults_per_rack_year},
            {"repair_times_measured", options.repair_days.size()},
            {"repair_mean_s", options.repair_mean_s},
            {"elastic", options.elastic},
            {"snapshot_every_s", options.memory_every_s},
            {"snapshot_stall_s", options.memory_stall_s},
            {"phases",
             {{"detect_s", p.detect_s}, {"undetected_s", p.undetected_s}, {"graceful_s", p.graceful_s}, {"stop", phase_json(p.stop)},
              {"swap", phase_json(p.swap)}, {"prepare", phase_json(p.prepare)}, {"launch", phase_json(p.launch)}, {"join", phase_json(p.join)},
              {"restore", phase_json(p.restore)}, {"warm_up", phase_json(p.warm_up)}}}};
}

// Second minus first, seed by seed.
Spread difference(const Series& first, const Series& second, const Measure& measure) {
    std::vector<double> values;
    for (std::size_t i = 0; i < std::min(first.results.size(), second.results.size()); ++i) {
        values.push_back(measure.of(second.results[i]) - measure.of(first.results[i]));
    }
    return spread_of(std::move(values));
}

json spread_json(const Spread& one) { return {{"mean", one.mean}, {"p5", one.p5}, {"p95", one.p95}, {"half_width_95", one.half_width}}; }

// ---- the page: tables are written here, plots are drawn by Chart.js from the same figures

std::string escaped(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '<') out += "&lt;";
        else if (c == '&') out += "&amp;";
        else out += c;
    }
    return out;
}

// Cells are HTML; the first row is the head.
std::string table_html(const char* id, const std::vector<std::vector<std::string>>& rows) {
    std::string text = fmt::format("<div class=\"wide\"><table id=\"{}\">\n", id);
    for (const auto& row : rows) {
        const char* tag = &row == &rows.front() ? "th" : "td";
        text += "<tr>";
        for (const std::string& cell : row) text += fmt::format("<{0}>{1}</{0}>", tag, cell);
        text += "</tr>\n";
    }
    return text + "</table></div>\n";
}

std::string figures_html(const ReplayOptions& options, const std::vector<Series>& all) {
    const bool several = all.front().results.size() > 1;
    std::vector<std::vector<std::string>> rows = {{several ? "mean of the seeds, 5 % to 95 % of them" : ""}};
    for (const Series& series : all) rows[0].push_back(escaped(series.name));
    for (const Measure& measure : measures()) {
        rows.push_back({escaped(measure.words)});
        for (const Series& series : all) {
            const Spread one = spread(series, measure);
            rows.back().push_back(shown(one.mean, measure.is_time));
            if (several) rows.back().back() += fmt::format("<small>{} to {}</small>", shown(one.p5, measure.is_time), shown(one.p95, measure.is_time));
        }
    }
    const char* which = several ? " (first seed)" : "";
    const std::pair<const char*, std::function<std::string(const ReplayResult&)>> counts[] = {
        {"jobs finished", [&](const ReplayResult& r) { return options.whole_cluster_job != 0 ? "runs throughout" : fmt::format("{} of {}", r.finished, r.jobs); }},
        {"faults", [](const ReplayResult& r) { return fmt::format("{}", r.faults); }},
        {"nodes replaced", [](const ReplayResult& r) { return fmt::format("{}", r.swaps); }},
        {"shrinks", [](const ReplayResult& r) { return fmt::format("{}", r.shrinks); }}};
    for (const auto& [words, count] : counts) {
        rows.push_back({fmt::format("{}{}", words, which)});
        for (const Series& series : all) rows.back().push_back(count(series.results.front()));
    }
    return table_html("figures", rows);
}

std::string differences_html(const std::vector<Series>& all) {
    if (all.size() < 2) return "";
    const bool several = all.front().results.size() > 1;
    std::vector<std::vector<std::string>> rows = {{several ? "mean of the differences seed by seed, its 95 % confidence interval" : ""}};
    for (std::size_t i = 1; i < all.size(); ++i) rows[0].push_back(escaped(all[i].name));
    for (const Measure& measure : measures()) {
        rows.push_back({escaped(measure.words)});
        for (std::size_t i = 1; i < all.size(); ++i) {
            const Spread one = difference(all[0], all[i], measure);
            rows.back().push_back(sign_of(one.mean, measure.is_time, "&minus;") + size_of(one.mean, measure.is_time));
            if (several) rows.back().back() += "<small>&plusmn; " + size_of(one.half_width, measure.is_time) + "</small>";
        }
    }
    return fmt::format("<h2>Difference to {}</h2>{}", escaped(all[0].name), table_html("differences", rows));
}

std::string assumptions_html(const ReplayOptions& options) {
    std::vector<std::vector<std::string>> rows = {{"option", "value"}};
    const json given = options_json(options);
    for (const auto& [name, value] : given.items()) {
        if (name != "phases") rows.push_back({name, value.dump()});
    }
    const Phases& p = options.phases;
    std::vector<std::vector<std::string>> phases = {{"phase of recovery", "s", "more s per doubling of the nodes", "source"}};
    for (const auto& [symptom, s] : p.detect_s) phases.push_back({"detection: " + escaped(symptom), fmt::format("{}", s), "", ""});
    phases.push_back({"silent: work lost", fmt::format("{}", p.undetected_s), "", ""});
    phases.push_back({"planned stop", fmt::format("{}", p.graceful_s), "", ""});
    const std::pair<const char*, const Phase&> list[] = {{"stop", p.stop}, {"swap", p.swap}, {"prepare", p.prepare}, {"launch", p.launch}, {"join", p.join}, {"restore", p.restore}, {"warm-up", p.warm_up}};
    for (const auto& [name, one] : list) phases.push_back({name, fmt::format("{}", one.base_s), fmt::format("{}", one.per_doubling_s), escaped(one.source)});
    return table_html("options", rows) + table_html("phases", phases);
}

constexpr const char* kStyle =
    "body{font:15px system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}h2{margin-top:1.6em}.wide{overflow-x:auto}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.3em .8em;text-align:right;vertical-align:top;border-bottom:1px solid #ddd}"
    "td{white-space:nowrap}td:first-child,th:first-child,#phases :last-child{text-align:left;white-space:normal}td:first-child{min-width:9em}#phases td:last-child{min-width:14em}small{display:block;color:#666}"
    ".plot{position:relative;height:340px}@media(max-width:600px){body{font-size:14px;margin:1em auto}td,th{padding:.3em .4em}}";

constexpr const char* kPlots = R"js(
const colours = ['#1b6ca8', '#c8553d', '#3a7d44', '#7b4b94'], all = data.series;
Chart.defaults.font.size = 13;
// A unit in which the longest of these times has a number that can be read.
const unit = longest => [[86400, 'days'], [3600, 'hours'], [60, 'minutes'], [1, 's']].find(u => longest >= 2 * u[0]) || [1, 's'];
const axis = text => ({beginAtZero: true, title: {display: true, text}});
function draw(id, type, datasets, more) {
    const canvas = document.getElementById(id);
    if (!datasets.some(set => set.data.length)) return canvas.closest('section').remove();
    datasets.forEach((set, i) => Object.assign(set, {label: all[i].policy, borderColor: colours[i % 4], backgroundColor: colours[i % 4], maxBarThickness: 36}));
    new Chart(canvas, {type, data: {datasets, labels: more.labels}, options: {animation: false, maintainAspectRatio: false, ...more}});
}
// [until, part] holds since the point before: means of 150 equal spans.
const end = Math.max(...all.map(s => s.used.length ? s.used.at(-1)[0] : 0)), width = end / 150, days = unit(end);
function means(used) {
    const sums = [], spans = [];
    let from = 0;
    for (const [to, part] of used) {
        for (let i = Math.floor(from / width); i < 150 && i * width < to; ++i) {
            const span = Math.max(0, Math.min(to, (i + 1) * width) - Math.max(from, i * width));
            sums[i] = (sums[i] || 0) + part * span;
            spans[i] = (spans[i] || 0) + span;
        }
        from = to;
    }
    const points = sums.map((sum, i) => ({x: i * width / days[0], y: 100 * sum / spans[i]}));
    if (points.length) points.push({x: from / days[0], y: points.at(-1).y});
    return points;
}
draw('used', 'line', all.map(s => ({data: means(s.used), pointRadius: 0, borderWidth: 1.5, clip: 4, stepped: true})),
     {scales: {x: {...axis(days[1]), type: 'linear', max: end / days[0]}, y: {...axis('% of cards'), max: 100}}});
// Useful and free ones would dwarf the rest; what is nothing in all policies is left out.
const total = Math.max(...all.map(s => Object.values(s.causes_card_s).reduce((a, b) => a + b)));
const most = cause => Math.max(...all.map(s => s.causes_card_s[cause] || 0));
const causes = [...new Set(all.flatMap(s => Object.keys(s.causes_card_s)))]
    .filter(c => !['compute', 'free', 'not accounted'].includes(c) && most(c) > 1e-6 * total).sort((a, b) => most(b) - most(a));
document.getElementById('lost').parentNode.style.height = 100 + causes.length * (20 + 16 * all.length) + 'px';
draw('lost', 'bar', all.map(s => ({data: causes.map(c => (s.causes_card_s[c] || 0) / 3600)})), {labels: causes, indexAxis: 'y', scales: {x: axis('card-hours')}});
const least = size => size === 'more' ? Infinity : parseInt(size);
const waits = all.flatMap(s => s.wait_by_cards || []), longest = Math.max(0, ...waits.map(w => w.mean_wait_s)), time = unit(longest);
const sizes = longest > 0 ? [...new Set(waits.map(w => w.cards))].sort((a, b) => least(a) - least(b)) : [];
const wait = (s, size) => ((s.wait_by_cards || []).find(w => w.cards === size) || {mean_wait_s: null}).mean_wait_s;
draw('waits', 'bar', all.map(s => ({data: sizes.map(size => wait(s, size) === null ? null : wait(s, size) / time[0])})),
     {labels: sizes, scales: {x: axis('cards of the job'), y: axis(time[1])}});
)js";

std::string plot_html(const char* id, const std::string& title) {
    return fmt::format("<section><h2>{0}</h2><div class=\"plot\"><canvas id=\"{1}\" role=\"img\" aria-label=\"{0}\"></canvas></div></section>\n", title, id);
}

}  // namespace

Spread spread_of(std::vector<double> values) {
    Spread result;
    if (values.empty()) return result;
    std::sort(values.begin(), values.end());
    const auto count = static_cast<double>(values.size());
    for (const double one : values) result.mean += one / count;
    double squares = 0;
    for (const double one : values) squares += (one - result.mean) * (one - result.mean);
    const auto at = [&](double q) { return values[std::min(values.size() - 1, static_cast<std::size_t>(q * count))]; };
    result.p5 = at(0.05);
    result.p95 = at(0.95);
    if (values.size() > 1) result.half_width = 1.96 * std::sqrt(squares / (count - 1) / count);
    return result;
}

json summary_json(const ReplayOptions& options, const std::vector<Series>& all, const std::vector<std::string>& notes) {
    json out = {{"options", options_json(options)}, {"notes", notes}, {"series", json::array()}};
    for (const Series& series : all) {
        json one = {{"policy", series.name}, {"seeds", series.results.size()}};
        for (const Measure& measure : measures()) one[measure.key] = spread_json(spread(series, measure));
        one["causes_card_s"] = mean_causes(series);
        const ReplayResult& first = series.results.front();
        one["jobs"] = first.jobs;
        one["finished"] = first.finished;
        one["faults"] = first.faults;
        one["swaps"] = first.swaps;
        one["shrinks"] = first.shrinks;
        for (const SizeClass& size : first.sizes) {
            one["wait_by_cards"].push_back({{"cards", size.name}, {"jobs", size.jobs}, {"mean_wait_s", size.mean_wait_s}, {"p95_wait_s", size.p95_wait_s}});
        }
        out["series"].push_back(std::move(one));
    }
    for (std::size_t i = 1; i < all.size(); ++i) {
        json one = {{"from", all[0].name}, {"to", all[i].name}};
        for (const Measure& measure : measures()) one[measure.key] = spread_json(difference(all[0], all[i], measure));
        out["differences"].push_back(std::move(one));
    }
    return out;
}

std::string summary_text(const ReplayOptions& options, const std::vector<Series>& all, const std::vector<std::string>& notes) {
    std::string text;
    for (const Series& series : all) {
        const ReplayResult& first = series.results.front();
        text += fmt::format("{}: {} nodes of {} cards, {}, {} faults, {} nodes replaced, {} shrinks, {} {}\n", series.name, options.nodes,
                            options.cards_per_node, jobs_words(options, first), first.faults, first.swaps, first.shrinks, series.results.size(),
                            series.results.size() == 1 ? "seed" : "seeds");
        for (const Measure& measure : measures()) {
            const Spread one = spread(series, measure);
            text += fmt::format("  {:<52} {:>10}", measure.words, shown(one.mean, measure.is_time));
            if (series.results.size() > 1) text += fmt::format("   5 %: {}, 95 %: {}", shown(one.p5, measure.is_time), shown(one.p95, measure.is_time));
            text += '\n';
        }
        text += "  where the card-seconds went\n";
        const auto causes = mean_causes(series);
        double sum = 0;
        for (const auto& [name, card_s] : causes) sum += card_s;
        std::vector<std::pair<double, std::string>> order;
        for (const auto& [name, card_s] : causes) order.emplace_back(card_s, name);
        std::sort(order.rbegin(), order.rend());
        for (const auto& [card_s, name] : order) {
            if (std::abs(card_s) >= 5e-6 * sum) text += fmt::format("    {:<20} {:8.3f} %\n", name, 100 * card_s / sum);    // what would be 0.000 is left out
        }
        if (first.sizes.size() > 1) {
            text += "  mean wait by cards:";
            for (const SizeClass& size : first.sizes) text += fmt::format("  {}: {}", size.name, human_duration(size.mean_wait_s));
            text += '\n';
        }
    }
    for (std::size_t i = 1; i < all.size(); ++i) {
        text += fmt::format("{} instead of {}\n", all[i].name, all[0].name);
        for (const Measure& measure : measures()) {
            const Spread one = difference(all[0], all[i], measure);
            text += fmt::format("  {:<52} {:>12}", measure.words, sign_of(one.mean, measure.is_time, "-") + size_of(one.mean, measure.is_time));
            text += all[i].results.size() > 1 ? fmt::format(" +- {}\n", size_of(one.half_width, measure.is_time)) : "\n";
        }
    }
    for (const std::string& note : notes) text += (note.starts_with("warning: ") ? "  " : "  note: ") + note + "\n";
    return text;
}

std::string summary_html(const ReplayOptions& options, const std::vector<Series>& all, const std::vector<std::string>& notes, const std::string& chart_js) {
    json data = summary_json(options, all, {});
    for (std::size_t i = 0; i < all.size(); ++i) data["series"][i]["used"] = all[i].results.front().used;
    const auto replaced = [](std::string text, std::string_view from, std::string_view to) {
        for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
        return text;
    };
    const std::size_t seeds = all.front().results.size();
    const char* which = seeds > 1 ? ", first seed" : "";
    std::string page = fmt::format(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
        "<title>gangline simulate</title><style>{}</style></head><body><h1>gangline simulate</h1>\n<p>{} nodes of {} cards, {} {}</p>\n",
        kStyle, options.nodes, options.cards_per_node, seeds, seeds == 1 ? "seed" : "seeds");
    page += figures_html(options, all) + differences_html(all);
    page += plot_html("used", fmt::format("Cards held over time{}", which));
    page += plot_html("lost", "Where the card-seconds went, without useful and free ones");
    page += plot_html("waits", fmt::format("Mean wait by size of job{}", which));
    page += "<h2>Assumptions</h2>\n";
    for (const std::string& note : notes) page += "<p>" + escaped(note) + "</p>\n";
    page += assumptions_html(options);
    page += "<script>" + replaced(chart_js, "</", "<\\/") + "</script>\n<script>const data=" + replaced(data.dump(-1, ' ', false, json::error_handler_t::replace), "<", "\\u003c") + ";" + kPlots + "</script></body></html>\n";
    return page;
}

}  // namespace gangline::simulate
