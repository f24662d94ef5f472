// --export, and the limits on what a job may be given (R20).
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "runner/cli/job_spec.h"

namespace gangline::runner {
namespace {

constexpr std::size_t kMostVariable = 64 * 1024;
constexpr std::size_t kMostTogether = 1024 * 1024;

bool good_name(const std::string& name) {
    if (name.empty() || std::isdigit(static_cast<unsigned char>(name.front()))) return false;
    return std::all_of(name.begin(), name.end(),
                       [](unsigned char c) { return c < 128 && (std::isalnum(c) || c == '_'); });
}

// What described an outer job, or belongs to the runner's own processes, must not leak into this one.
bool belongs_to_an_outer_job(const std::string& name) {
    static const char* const prefixes[] = {"PMIX_", "OMPI_", "PMI_", "GANGLINE_RESTORE_"};
    static const char* const names[] = {
        "GANGLINE_MARK", "GANGLINE_WORKER_SOCKET", "GANGLINE_PROGRESS", "GANGLINE_STEP_SOCKET", "GANGLINE_JOB_ID",
        "GANGLINE_JOB_NAME", "GANGLINE_ATTEMPT", "GANGLINE_RESTART_COUNT", "GANGLINE_NODE", "GANGLINE_CHECKPOINT_DIR", "GANGLINE_ARRAY_TASK",
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
        "CUDA_VISIBLE_DEVICES", "JSM_JSRUN_PORT"};
    return std::any_of(std::begin(prefixes), std::end(prefixes),
                       [&](const char* prefix) { return name.starts_with(prefix); }) ||
           std::any_of(std::begin(names), std::end(names), [&](const char* other) { return name == other; }) ||
           name.starts_with("SLURM_") || name.starts_with("SLURMD_");
}

Result<void> check_size(const std::string& name, const std::string& value) {
    if (name.size() + value.size() <= kMostVariable) return {};
    return Error{Code::InvalidArgument,
                 fmt::format("the variable {} has {} bytes, the most is {}: unset it, or name what the job needs by "
                             "--export=NAME,NAME",
                             name, name.size() + value.size(), kMostVariable)};
}

Result<void> add_all(const Surroundings& here, Environment& out, std::vector<std::string>& warnings) {
    const bool inside_a_job = here.environment.contains("GANGLINE_MARK");
    std::vector<std::string> left_out;
    std::vector<std::string> not_text;
    for (const auto& [name, value] : here.environment) {
        if (inside_a_job && belongs_to_an_outer_job(name)) continue;
        if (!good_name(name)) {
            left_out.push_back(name);
            continue;
        }
        if (!is_utf8(value)) {
            not_text.push_back(name);
            continue;
        }
        if (const auto fits = check_size(name, value); !fits) return fits.error();
        out[name] = value;
    }
    if (!not_text.empty()) {
        warnings.push_back(fmt::format("not given to the job, their values are not UTF-8: {}", fmt::join(not_text, ", ")));
    }
    if (!left_out.empty()) {
        warnings.push_back(fmt::format("not given to the job, their names are not plain ones: {}",
                                       fmt::join(left_out, ", ")));
    }
    return {};
}

// What a program can hardly run without.
void add_basics(const Surroundings& here, Environment& out) {
    out.emplace("HOME", here.home);
    out.emplace("USER", here.user);
    out.emplace("LOGNAME", here.user);
    out.emplace("SHELL", here.shell.empty() ? "/bin/sh" : here.shell);
    out.emplace("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin");
}

}  // namespace

Result<Environment> exported_environment(const std::string& rule, const Surroundings& here,
                                         std::vector<std::string>& warnings) {
    Environment out;
    for (const std::string& entry : split(rule.empty() ? "ALL" : rule, ',')) {
        const std::size_t equals = entry.find('=');
        const std::string name = entry.substr(0, equals);
        if (entry == "ALL") {
            if (const auto added = add_all(here, out, warnings); !added) return added.error();
        } else if (entry == "NONE" || entry == "NIL") {
            continue;
        } else if (!good_name(name)) {
            return Error{Code::InvalidArgument,
                         fmt::format("--export: '{}' is not a variable's name: write ALL, NONE, or names and "
                                     "NAME=VALUE with commas between",
                                     entry)};
        } else if (equals != std::string::npos) {
            out[name] = entry.substr(equals + 1);
        } else if (const auto found = here.environment.find(name); found != here.environment.end()) {
            out[name] = found->second;
        } else {
            warnings.push_back(fmt::format("--export: {} is not set here", name));
        }
    }
    add_basics(here, out);
    std::size_t together = 0;
    for (const auto& [name, value] : out) {
        if (const auto fits = check_size(name, value); !fits) return fits.error();
        together += name.size() + value.size() + 2;
    }
    if (together > kMostTogether) {
        return Error{Code::InvalidArgument,
                     fmt::format("the environment has {} bytes, the most is {}: name what the job needs by "
                                 "--export=NAME,NAME",
                                 together, kMostTogether)};
    }
    return out;
}

}  // namespace gangline::runner
