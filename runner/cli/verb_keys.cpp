// `gangline keys`: new NAME makes a key file, public FILE prints what the coordinator must know of it.
#include <fmt/format.h>

#include <algorithm>

#include "base/process.h"
#include "base/wire/wire.h"
#include "runner/cli/json.h"
#include "runner/cli/verbs.h"

namespace gangline::runner {
namespace {

bool is_good_name(const std::string& name) {
    return !name.empty() && name.size() <= 64 && name.front() != '-' && name.front() != '.' &&
           std::all_of(name.begin(), name.end(), [](unsigned char c) {
               return std::isalnum(c) || c == '-' || c == '_' || c == '.';
           });
}

int new_key(const Line& line, const std::string& name) {
    const std::string role = line.has("role") ? line.text("role") : "user";
    if (!is_good_name(name)) {
        return fail(line, {Code::InvalidArgument,
                           fmt::format("'{}' is not a name: letters, digits, '-', '_' and '.', at most 64", name)});
    }
    if (role != "user" && role != "operator" && role != "admin") {
        return fail(line, {Code::InvalidArgument, fmt::format("--role: '{}' is not user, operator or admin", role)});
    }
    const std::string file = line.has("out") ? line.text("out") : name + ".key";
    const KeyPair keys = new_key_pair();
    const std::string row = line.has("node") ? fmt::format("node {} - {}", name, keys.public_key)
                                             : fmt::format("user {} {} {}", name, role, keys.public_key);
    if (const auto written = write_key_file(file, keys, row); !written) return fail(line, written.error());
    if (line.json()) {
        print(json_document("key", {{"file", file}, {"name", name}, {"public", keys.public_key}, {"authorised", row}}));
    } else {
        print(row + "\n");
        say(fmt::format("the secret is in {}; the line above belongs into the coordinator's authorised file", file));
    }
    return 0;
}

}  // namespace

int run_keys(const Line& line) {
    const Error usage{Code::InvalidArgument, "write gangline keys new NAME, or gangline keys public FILE"};
    if (line.words.size() != 2) return fail(line, usage);
    if (line.words[0] == "new") return new_key(line, line.words[1]);
    if (line.words[0] != "public") return fail(line, usage);
    const auto keys = read_key_file(line.words[1]);
    if (!keys) return fail(line, keys.error());
    print(line.json() ? json_document("key", {{"file", line.words[1]}, {"public", keys->public_key}})
                      : keys->public_key + "\n");
    return 0;
}

}  // namespace gangline::runner
