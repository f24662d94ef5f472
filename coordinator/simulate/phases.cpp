// The phases file of the replay, and the names of policies.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "coordinator/simulate/replay.h"

namespace gangline::simulate {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<std::string_view, Policy>, 4> kPolicies = {
    {{"fifo", Policy::Fifo}, {"easy", Policy::Easy}, {"bestfit", Policy::BestFit}, {"gangline", Policy::Gangline}}};

Error wrong(std::string_view name, const std::string& key, std::string_view what) {
    return {Code::InvalidArgument, fmt::format("{}: '{}' {}", name, key, what)};
}

bool is_seconds(const json& value) { return value.is_number() && value.get<double>() >= 0 && value.get<double>() < 1e9; }

}  // namespace

double Phase::of(std::uint32_t nodes) const { return base_s + per_doubling_s * std::log2(std::max(1.0, static_cast<double>(nodes))); }

double Phases::recovery_s(std::uint32_t nodes, bool swapped) const {
    double sum = swapped ? swap.of(nodes) : 0;
    for (const Phase* phase : {&stop, &prepare, &launch, &join, &restore, &warm_up}) sum += phase->of(nodes);
    return sum;
}

double renewal_ett(double mtbf_s, double recovery_s, double every_s, double stall_s) {
    return every_s / (mtbf_s * std::exp(recovery_s / mtbf_s) * std::expm1((every_s + stall_s) / mtbf_s));
}

Result<Policy> parse_policy(std::string_view name) {
    for (const auto& [word, policy] : kPolicies) {
        if (word == name) return policy;
    }
    return Error{Code::InvalidArgument, fmt::format("'{}' is no policy: fifo, easy, bestfit and gangline are known", name)};
}

std::string_view name_of(Policy policy) {
    for (const auto& [word, one] : kPolicies) {
        if (one == policy) return word;
    }
    return "?";
}

Result<Phases> parse_phases(std::string_view text, std::string_view name) {
    const json file = json::parse(text, nullptr, false);
    if (!file.is_object()) return Error{Code::InvalidArgument, fmt::format("{}: not a JSON object", name)};
    Phases phases;
    const std::array<std::pair<const char*, Phase*>, 7> parts = {{{"stop", &phases.stop},
                                                                  {"swap", &phases.swap},
                                                                  {"prepare", &phases.prepare},
                                                                  {"launch", &phases.launch},
                                                                  {"join", &phases.join},
                                                                  {"restore", &phases.restore},
                                                                  {"warm_up", &phases.warm_up}}};
    for (const auto& [key, value] : file.items()) {
        if (key == "about") continue;
        if (key == "detect_s") {
            if (!value.is_object()) return wrong(name, key, "is an object: symptom to seconds");
            for (const auto& [symptom, seconds] : value.items()) {
                if (symptom == "source") continue;
                if (!is_seconds(seconds)) return wrong(name, key + "." + symptom, "is a number of seconds, 0 or more");
                phases.detect_s[symptom] = seconds.get<double>();
            }
            continue;
        }
        if (key == "undetected_s" || key == "graceful_s") {
            if (!is_seconds(value)) return wrong(name, key, "is a number of seconds, 0 or more");
            (key == "graceful_s" ? phases.graceful_s : phases.undetected_s) = value.get<double>();
            continue;
        }
        Phase* phase = nullptr;
        for (const auto& [word, one] : parts) {
            if (key == word) phase = one;
        }
        if (phase == nullptr) return wrong(name, key, "is not known: detect_s, undetected_s, graceful_s, stop, swap, prepare, launch, join, restore, warm_up are");
        if (!value.is_object() || !value.contains("base_s") || !is_seconds(value["base_s"])) return wrong(name, key, "needs base_s, seconds");
        if (!value.contains("source") || !value["source"].is_string()) return wrong(name, key, "needs a source: where the figure comes from");
        phase->base_s = value["base_s"].get<double>();
        if (value.contains("per_doubling_s")) {
            if (!is_seconds(value["per_doubling_s"])) return wrong(name, key + ".per_doubling_s", "is a number of seconds, 0 or more");
            phase->per_doubling_s = value["per_doubling_s"].get<double>();
        }
        phase->source = value["source"].get<std::string>();
    }
    return phases;
}

}  // namespace gangline::simulate
