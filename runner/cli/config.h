#pragma once
// Which cluster a verb speaks to, and as whom.
//
//   --coordinator, --coordinator-key, --key
//   GANGLINE_COORDINATOR, GANGLINE_COORDINATOR_KEY, GANGLINE_KEY
//   gangline.conf: $GANGLINE_CONF, ./gangline.conf, ~/.config/gangline/gangline.conf, /etc/gangline/gangline.conf
//   the local cluster of `gangline up` in <state>/local
//   none: `run` makes a private one
//
// gangline.conf has lines `name = value`, `#` remarks, and sections: none, [submit] (job options), [client]
// (coordinator, coordinator-key, key, state); [coordinator] and [agent] are those programs' own.
//
// Thread rule: parse_config is pure; the rest reads files.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/wire/wire.h"
#include "runner/cli/job_options.h"
#include "runner/cli/options.h"

namespace gangline::runner {

struct ConfigFile {
    std::string path;                        // empty: there is none
    std::vector<Given> job_options;
    std::map<std::string, Given> client;     // coordinator, coordinator-key, key, state
};
// Errors: InvalidArgument that names file, line and the nearest known name.
Result<ConfigFile> parse_config(std::string_view text, const std::string& file_name);
// The first file of the search order. Errors: as parse_config; NotFound when $GANGLINE_CONF names no file.
Result<ConfigFile> read_config(const Environment& environment, const std::string& cwd);

struct ClusterAddress {
    std::string endpoint;
    std::string server_key;                  // Z85
    KeyPair keys;
    std::string source;                      // where this was found, for messages
};

// The options that every verb which speaks to a coordinator has.
const OptionTable& client_option_table();

std::string state_folder(const std::vector<Given>& given, const Environment& environment, const ConfigFile& config);
// Nothing: no cluster is configured. Errors: InvalidArgument (half a configuration), Refused (key file), NotFound.
Result<std::optional<ClusterAddress>> find_cluster(const std::vector<Given>& given, const Environment& environment,
                                                   const ConfigFile& config, const std::string& state);

Environment this_environment();
std::string home_folder(const Environment& environment);

}  // namespace gangline::runner
