#include "coordinator/server/start.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/handle.h"
#include "base/log.h"
#include "base/process.h"
#include "coordinator/server/authorised.h"

namespace gangline::coordinator {
namespace {

constexpr Duration kSelfTestDeadline = seconds(5);
constexpr std::int64_t kMostUserMessageBytes = 5 << 19;  // a job of the largest size that the brain takes (2 MiB), and room
constexpr std::int64_t kMostNodeMessageBytes = 4 << 20;
constexpr int kMostWaitingUserMessages = 10'000;

std::string last_endpoint(const std::string& state, const char* which) {
    const auto text = read_file(state + "/endpoints.json", 1 << 20);
    if (!text) return {};
    const auto json = nlohmann::json::parse(*text, nullptr, false);
    if (!json.is_object() || !json.contains(which) || !json[which].is_string()) return {};
    return json[which].get<std::string>();
}

// The endpoint with the port of the last run, when the option leaves the port open and the address is the same.
std::string with_last_port(const std::string& option, const std::string& last) {
    if (!option.starts_with("tcp://") || !option.ends_with(":*")) return {};
    const std::string address = option.substr(0, option.size() - 1);
    if (!last.starts_with(address) || last.find_first_not_of("0123456789", address.size()) != std::string::npos) return {};
    return last;
}

Result<std::unique_ptr<ServerSocket>> bind_one(Wire& wire, const KeyTable& table, ServerOptions options, const std::string& last) {
    const std::string before = with_last_port(options.endpoint, last);
    if (!before.empty()) {
        ServerOptions same = options;
        same.endpoint = before;
        if (auto bound = ServerSocket::bind(wire, table, same)) return bound;
    }
    return ServerSocket::bind(wire, table, options);
}

template <class Keys>
Result<Keys> find_or_make(const std::string& path, Result<Keys> (*read)(const std::string&), const Keys& fresh,
                          Result<void> (*write)(const std::string&, const Keys&)) {
    auto found = read(path);
    if (found || found.error().code != Code::NotFound) return found;
    if (auto written = write(path, fresh); !written) return written.error();
    log_info("key_made path={}", path);
    return fresh;
}

Result<void> write_wire_keys(const std::string& path, const KeyPair& keys) { return write_key_file(path, keys, "the coordinator's key"); }

}  // namespace

void shut_memory() {
    const rlimit none = {0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

Result<CoordinatorKeys> find_or_make_keys(const std::string& state) {
    const std::string folder = state + "/keys";
    if (auto made = make_folders(folder, 0700); !made) return made.error();
    auto wire = find_or_make<KeyPair>(folder + "/coordinator.key", read_key_file, new_key_pair(), write_wire_keys);
    if (!wire) return wire.error();
    auto tickets = find_or_make<TicketKeys>(folder + "/ticket.key", read_ticket_file, new_ticket_keys(), write_ticket_file);
    if (!tickets) return tickets.error();
    return CoordinatorKeys{std::move(*wire), std::move(*tickets)};
}

Result<Listening> listen(Wire& wire, const KeyTable& table, const CoordinatorOptions& options, const KeyPair& keys) {
    Listening listening;
    auto users = bind_one(wire, table,
                          {.keys = keys, .endpoint = options.listen_users, .most_message_bytes = kMostUserMessageBytes,
                           .most_waiting_messages = kMostWaitingUserMessages, .admits = Admits::Users},
                          last_endpoint(options.state, "users"));
    if (!users) return Error{users.error().code, "--listen-users: " + users.error().message};
    auto nodes = bind_one(wire, table,
                          {.keys = keys, .endpoint = options.listen_nodes, .most_message_bytes = kMostNodeMessageBytes,
                           .admits = Admits::Nodes},
                          last_endpoint(options.state, "nodes"));
    if (!nodes) return Error{nodes.error().code, "--listen-nodes: " + nodes.error().message};
    listening.users = std::move(*users);
    listening.nodes = std::move(*nodes);
    return listening;
}

Result<void> prove_strangers_are_refused(Wire& wire, Listening& listening) {
    for (ServerSocket* server : {listening.users.get(), listening.nodes.get()}) {
        if (auto refused = check_stranger_is_refused(wire, *server, kSelfTestDeadline); !refused) return refused;
    }
    return {};
}

std::string reachable(const std::string& endpoint) {
    for (const std::string wildcard : {"tcp://0.0.0.0:", "tcp://[::]:"}) {
        if (endpoint.starts_with(wildcard)) return fmt::format("tcp://{}:{}", host_name(), endpoint.substr(wildcard.size()));
    }
    return endpoint;
}

Result<void> write_endpoints(const std::string& state, const Endpoints& endpoints) {
    const nlohmann::json json = {{"cluster", endpoints.cluster},
                                 {"pid", ::getpid()},
                                 {"coordinator_id", endpoints.coordinator_id},
                                 {"users", endpoints.users},
                                 {"nodes", endpoints.nodes},
                                 {"key", endpoints.key},
                                 {"ticket_key", to_hex(endpoints.ticket_key)}};
    // Whole or not at all for its readers; not flushed, as each start writes it anew.
    const std::string path = state + "/endpoints.json";
    const std::string temporary = path + ".new";
    const Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd) return errno_error("cannot create " + temporary);
    if (auto written = write_all(fd.get(), json.dump(1) + "\n"); !written) return Error{written.error().code, path + ": " + written.error().message};
    if (::rename(temporary.c_str(), path.c_str()) != 0) return errno_error("cannot rename to " + path);
    return {};
}

Result<std::vector<Principal>> load_authorised(const CoordinatorOptions& options) {
    auto principals = read_authorised(options.authorised_path());
    if (principals || principals.error().code != Code::NotFound || !options.authorised.empty()) return principals;
    log_warn("nobody_authorised path={} remedy=\"add a line: user NAME admin KEY\"", options.authorised_path());
    return std::vector<Principal>{};
}

}  // namespace gangline::coordinator
