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
            {"limit_factor", options.limit_factor},
            {"faults_per_1000_node_days", options.faults_per_1000_node_days},
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
        text += fmt::format("{}: {} nodes of {} cards, {} of {} jobs finished, {} faults, {} nodes replaced, {} shrinks, {} {}\n", series.name, options.nodes,
                            options.cards_per_node, first.finished, first.jobs, first.faults, first.swaps, first.shrinks, series.results.size(),
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
            if (std::abs(card_s) > 1e-6 * sum) text += fmt::format("    {:<20} {:8.3f} %\n", name, 100 * card_s / sum);
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
            const double factor = measure.is_time ? 1 : 100;
            text += fmt::format("  {:<52} {:>+12.3f} {} +- {:.3f}\n", measure.words, factor * one.mean, measure.is_time ? "s" : "points", factor * one.half_width);
        }
    }
    for (const std::string& note : notes) text += "  note: " + note + "\n";
    return text;
}

std::string summary_html(const ReplayOptions& options, const std::vector<Series>& all, const std::vector<std::string>& notes, const std::string& chart_js) {
    json data = summary_json(options, all, notes);
    for (std::size_t i = 0; i < all.size(); ++i) data["series"][i]["used"] = all[i].results.front().used;
    const auto escape = [](std::string text) {
        for (std::size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3) text.replace(at, 2, "<\\/");
        return text;
    };
    return "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>gangline simulate</title><style>"
           "body{font:15px system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}table{border-collapse:collapse;margin:1em 0}"
           "td,th{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}canvas{margin:1.5em 0}"
           "</style></head><body><h1>gangline simulate</h1><div id=\"tables\"></div><h2>Cards held over time</h2><canvas id=\"used\"></canvas>"
           "<h2>Where the card-seconds went, without useful and free ones</h2><canvas id=\"lost\"></canvas><h2>Mean wait by size of job</h2><canvas id=\"waits\"></canvas>"
           "<h2>Assumptions</h2><pre id=\"options\"></pre><script>" +
           escape(chart_js) + "</script><script>const data=" + escape(data.dump()) +
           ";const names={ett:'effective training time',useful:'useful part of all card-seconds',allocated:'cards held / owned',mean_wait_s:'mean wait, s',"
           "p95_wait_s:'95 % wait less than, s',worst_stretch_s:'longest unproductive stretch, s',stranded:'stranded free cards',span_s:'span, s'};"
           "const cell=(row,text,tag)=>{const c=document.createElement(tag||'td');c.textContent=text;row.appendChild(c)};"
           "const table=document.createElement('table');const head=document.createElement('tr');cell(head,'','th');"
           "for(const s of data.series){cell(head,s.policy+' (mean)','th');cell(head,'5 %','th');cell(head,'95 %','th')}table.appendChild(head);"
           "for(const key in names){const row=document.createElement('tr');cell(row,names[key]);for(const s of data.series)for(const part of ['mean','p5','p95'])"
           "cell(row,s[key][part].toPrecision(5));table.appendChild(row)}document.getElementById('tables').appendChild(table);"
           "for(const note of data.notes){const p=document.createElement('p');p.textContent=note;document.getElementById('tables').appendChild(p)}"
           "document.getElementById('options').textContent=JSON.stringify(data.options,null,2);"
           "const colours=['#1b6ca8','#c8553d','#3a7d44','#7b4b94'];"
           "new Chart(document.getElementById('used'),{type:'line',data:{datasets:data.series.map((s,i)=>({label:s.policy,borderColor:colours[i%4],pointRadius:0,"
           "borderWidth:1,data:s.used.map(p=>({x:p[0]/86400,y:100*p[1]}))}))},options:{animation:false,scales:{x:{type:'linear',title:{display:true,text:'days'}},"
           "y:{min:0,max:100,title:{display:true,text:'% of cards'}}}}});"
           "const skip=['compute','free','not accounted'];const causes=[...new Set(data.series.flatMap(s=>Object.keys(s.causes_card_s)))].filter(c=>!skip.includes(c));"
           "new Chart(document.getElementById('lost'),{type:'bar',data:{labels:causes,datasets:data.series.map((s,i)=>({label:s.policy,backgroundColor:colours[i%4],"
           "data:causes.map(c=>(s.causes_card_s[c]||0)/3600)}))},options:{animation:false,indexAxis:'y',scales:{x:{title:{display:true,text:'card-hours'}}}}});"
           "const sizes=(data.series[0].wait_by_cards||[]).map(w=>w.cards);"
           "new Chart(document.getElementById('waits'),{type:'bar',data:{labels:sizes,datasets:data.series.map((s,i)=>({label:s.policy,backgroundColor:colours[i%4],"
           "data:(s.wait_by_cards||[]).map(w=>w.mean_wait_s/60)}))},options:{animation:false,scales:{y:{title:{display:true,text:'minutes'}},x:{title:{display:true,text:'cards'}}}}});"
           "</script></body></html>\n";
}

}  // namespace gangline::simulate
