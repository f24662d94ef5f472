#include "runner/cli/config.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/process.h"
#include "base/text.h"
#include "runner/cli/local_files.h"

namespace gangline::runner {
namespace {

constexpr std::string_view kClientNames[] = {"coordinator", "coordinator-key", "key", "state"};

bool is_client_name(std::string_view name) {
    return std::find(std::begin(kClientNames), std::end(kClientNames), name) != std::end(kClientNames);
}

std::string unquoted(std::string_view text) {
    if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front()) {
        return std::string(text.substr(1, text.size() - 2));
    }
    return std::string(text);
}

Error unknown_name(const std::string& name, const std::string& where) {
    std::vector<std::string> known(std::begin(kClientNames), std::end(kClientNames));
    for (const OptionInfo& option : job_option_table()) known.push_back(option.name);
    const std::string near = nearest_name(known, name);
    return {Code::InvalidArgument, fmt::format("unknown name '{}' ({}){}", name, where,
                                               near.empty() ? "" : fmt::format(": did you mean {}?", near))};
}

// One `name = value` line.
Result<void> take_line(ConfigFile& config, std::string_view line, const std::string& where) {
    const std::size_t equals = line.find('=');
    std::string name(trim(line.substr(0, equals)));
    std::replace(name.begin(), name.end(), '_', '-');
    const std::string value = equals == std::string_view::npos ? "" : unquoted(trim(line.substr(equals + 1)));
    if (is_client_name(name)) {
        config.client[name] = {name, value, where};
        return {};
    }
    const OptionInfo* const option = find_option(job_option_table(), name);
    if (option == nullptr) return unknown_name(name, where);
    if (option->takes == Takes::Value && value.empty()) {
        return Error{Code::InvalidArgument,
                     fmt::format("{} ({}) needs a value: {} = {}", name, where, name, option->value_name)};
    }
    if (option->takes == Takes::Nothing) {
        if (value == "no" || value == "false" || value == "0" || value == "off") return {};
        if (!value.empty() && value != "yes" && value != "true" && value != "1" && value != "on") {
            return Error{Code::InvalidArgument, fmt::format("{} ({}): '{}' is not yes or no", name, where, value)};
        }
    }
    const std::string& main = option->alias_of.empty() ? option->name : option->alias_of;
    config.job_options.push_back({main, option->takes == Takes::Nothing ? "" : value, where});
    return {};
}

std::string text_of(const std::vector<Given>& given, const Environment& environment, const ConfigFile& config,
                    const std::string& name, const char* variable) {
    if (const Given* const option = last_given(given, name); option != nullptr) return option->value;
    if (const auto found = environment.find(variable); found != environment.end() && !found->second.empty()) {
        return found->second;
    }
    if (const auto found = config.client.find(name); found != config.client.end()) return found->second.value;
    return {};
}

}  // namespace

Result<ConfigFile> parse_config(std::string_view text, const std::string& file_name) {
    ConfigFile config;
    config.path = file_name;
    std::string section;
    int number = 0;
    for (const std::string& raw : split(text, '\n')) {
        ++number;
        const std::string where = fmt::format("in {} line {}", file_name, number);
        const std::string_view line = trim(raw);
        if (line.empty() || line.front() == '#' || line.front() == ';') continue;
        if (line.front() == '[') {
            section = line.substr(0, line.find(']')).substr(1);
            const std::vector<std::string> known = {"submit", "client", "coordinator", "agent"};
            if (line.back() != ']' || std::find(known.begin(), known.end(), section) == known.end()) {
                return Error{Code::InvalidArgument,
                             fmt::format("'{}' ({}) is not a section: [{}]", line, where, fmt::join(known, "], ["))};
            }
            continue;
        }
        if (section == "coordinator" || section == "agent") continue;
        if (const auto taken = take_line(config, line, where); !taken) return taken.error();
    }
    return config;
}

Result<ConfigFile> read_config(const Environment& environment, const std::string& cwd) {
    std::vector<std::string> places;
    const auto named = environment.find("GANGLINE_CONF");
    if (named != environment.end() && !named->second.empty()) {
        places = {named->second};
    } else {
        places = {cwd + "/gangline.conf", home_folder(environment) + "/.config/gangline/gangline.conf",
                  "/etc/gangline/gangline.conf"};
    }
    for (const std::string& place : places) {
        const auto text = read_file(place, 1 << 20);
        if (text) return parse_config(*text, place);
        if (text.error().code == Code::NotFound && places.size() > 1) continue;
        return Error{text.error().code, fmt::format("the configuration {} cannot be read: {}", place,
                                                    text.error().message)};
    }
    return ConfigFile{};
}

const OptionTable& client_option_table() {
    static const OptionTable table = {
        {"coordinator", 0, Takes::Value, "tcp://HOST:PORT", "where the coordinator listens for users", "", true, ""},
        {"coordinator-key", 0, Takes::Value, "KEY", "the coordinator's public key", "", true, ""},
        {"key", 0, Takes::Value, "FILE", "your key file, made by `gangline keys new`", "", true, ""},
        {"state", 0, Takes::Value, "FOLDER", "state of local clusters (default: ~/.local/state/gangline)", "", true, ""},
    };
    return table;
}

std::string home_folder(const Environment& environment) {
    if (const auto found = environment.find("HOME"); found != environment.end() && !found->second.empty()) {
        return found->second;
    }
    const passwd* const entry = ::getpwuid(::getuid());
    return entry == nullptr ? "/" : entry->pw_dir;
}

std::string state_folder(const std::vector<Given>& given, const Environment& environment, const ConfigFile& config) {
    std::string state = text_of(given, environment, config, "state", "GANGLINE_STATE");
    if (state.empty()) state = home_folder(environment) + "/.local/state/gangline";
    if (state.front() != '/') {
        char* const here = ::getcwd(nullptr, 0);
        state = std::string(here == nullptr ? "" : here) + "/" + state;
        std::free(here);  // NOLINT(cppcoreguidelines-no-malloc)
    }
    return state;
}

Result<std::optional<ClusterAddress>> find_cluster(const std::vector<Given>& given, const Environment& environment,
                                                   const ConfigFile& config, const std::string& state) {
    ClusterAddress address;
    address.endpoint = text_of(given, environment, config, "coordinator", "GANGLINE_COORDINATOR");
    address.server_key = text_of(given, environment, config, "coordinator-key", "GANGLINE_COORDINATOR_KEY");
    std::string key_file = text_of(given, environment, config, "key", "GANGLINE_KEY");
    if (address.endpoint.empty()) {
        const auto local = read_local_address(state);
        if (!local) {
            if (local.error().code == Code::NotFound) return std::optional<ClusterAddress>();
            return local.error();
        }
        address.endpoint = local->endpoint;
        address.server_key = local->server_key;
        key_file = local->key_file;
        address.source = state + "/local";
    } else {
        address.source = config.client.contains("coordinator") ? config.path : "the options given";
        if (address.server_key.size() != 40) {
            return Error{Code::InvalidArgument,
                         fmt::format("the coordinator {} is named, but its public key is {}: give --coordinator-key or "
                                     "GANGLINE_COORDINATOR_KEY (40 characters, \"key\" in the coordinator's "
                                     "endpoints.json)",
                                     address.endpoint, address.server_key.empty() ? "not" : "not one of 40 characters")};
        }
        if (key_file.empty()) {
            return Error{Code::InvalidArgument,
                         fmt::format("the coordinator {} is named, but no key file: give --key or GANGLINE_KEY (make one "
                                     "with 'gangline keys new NAME')",
                                     address.endpoint)};
        }
    }
    auto keys = read_key_file(key_file);
    if (!keys) return keys.error();
    address.keys = std::move(keys).value();
    return std::optional<ClusterAddress>(std::move(address));
}

Environment this_environment() {
    Environment all;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string_view text = *entry;
        const std::size_t equals = text.find('=');
        if (equals == std::string_view::npos || equals == 0) continue;
        all.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
    return all;
}

}  // namespace gangline::runner
