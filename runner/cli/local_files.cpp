#include "runner/cli/local_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/wire/wire.h"
#include "runner/cli/user.h"

namespace gangline::runner {
namespace {

using nlohmann::json;

// Not atomic and not synced: these files are read only after this process has started their readers.
Result<void> write_plainly(const std::string& path, std::string_view content, mode_t mode) {
    const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode));
    if (!file) return errno_error("cannot write " + path);
    return write_all(file.get(), content);
}

// Creates `path` 0600 with a new pair unless it is there; the pair either way. No fsync: a key that a power cut takes is
// made anew with its cluster.
Result<KeyPair> keep_key(const std::string& path, std::string_view comment) {
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0) return read_key_file(path);
    KeyPair keys = new_key_pair();
    const std::string text =
        fmt::format("# {}\npublic {}\nsecret {}\n", comment, keys.public_key, keys.secret_key);
    if (const auto written = write_plainly(path, text, 0600); !written) return written.error();
    return keys;
}

}  // namespace

std::string cluster_file(const std::string& folder) { return folder + "/cluster.json"; }

Result<LocalAddress> read_local_address(const std::string& state) {
    const auto plan = read_plan(state + "/local");
    if (!plan) return plan.error();
    const Pids pids = read_pids(plan->folder);
    const auto coordinator = pids.find("coordinator");
    if (coordinator == pids.end()) return Error{Code::NotFound, "no local cluster is up in " + plan->folder};
    if (!is_alive(coordinator->second)) {
        return Error{Code::Unavailable,
                     fmt::format("the local cluster's coordinator ({}) is not running: start it again with 'gangline up', "
                                 "or take the cluster down with 'gangline down'",
                                 plan->users_endpoint)};
    }
    return LocalAddress{plan->users_endpoint, plan->coordinator_key, plan->folder + "/client.key"};
}

Result<void> write_plan(const LocalClusterPlan& plan) {
    json nodes = json::array();
    for (const LocalNode& node : plan.nodes) nodes.push_back({{"name", node.name}, {"cards", node.cards}});
    const json document = {{"cluster", plan.cluster},
                           {"users", plan.users_endpoint},
                           {"agents", plan.nodes_endpoint},
                           {"key", plan.coordinator_key},
                           {"checkpoint_root", plan.checkpoint_root},
                           {"cluster_file", plan.description},
                           {"first_job", plan.first_job},
                           {"nodes", nodes}};
    return write_file_atomically(cluster_file(plan.folder), document.dump(2) + "\n", 0600);
}

Result<LocalClusterPlan> read_plan(const std::string& folder) {
    const auto text = read_file(cluster_file(folder), 1 << 20);
    if (!text) return text.error();
    const json document = json::parse(*text, nullptr, false);
    LocalClusterPlan plan;
    plan.folder = folder;
    plan.node_root = folder + "/nodes";
    plan.topology = folder + "/topology.xml";
    const auto word = [&](const char* name) {
        return document.is_object() && document.contains(name) && document[name].is_string()
                   ? document[name].get<std::string>()
                   : std::string();
    };
    plan.cluster = word("cluster");
    plan.users_endpoint = word("users");
    plan.nodes_endpoint = word("agents");
    plan.coordinator_key = word("key");
    plan.checkpoint_root = word("checkpoint_root");
    plan.description = word("cluster_file");
    if (document.is_object() && document.contains("first_job") && document["first_job"].is_number_unsigned()) plan.first_job = document["first_job"];
    bool good = !plan.cluster.empty() && !plan.users_endpoint.empty() && !plan.nodes_endpoint.empty() &&
                plan.coordinator_key.size() == 40 && document.contains("nodes") && document["nodes"].is_array();
    if (good) {
        for (const json& node : document["nodes"]) {
            good = good && node.is_object() && node.contains("name") && node["name"].is_string() &&
                   node.contains("cards") && node["cards"].is_number_unsigned();
            if (!good) break;
            plan.nodes.push_back({node["name"].get<std::string>(), node["cards"].get<std::uint32_t>()});
        }
    }
    if (!good || plan.nodes.empty()) {
        return Error{Code::Damaged, fmt::format("{} is damaged: run 'gangline down', which removes it, then 'gangline up'",
                                                cluster_file(folder))};
    }
    return plan;
}

Result<void> make_cluster_files(LocalClusterPlan& plan) {
    const std::string& folder = plan.folder;
    for (const std::string& name : {folder, folder + "/log", folder + "/keys", folder + "/coordinator", folder + "/coordinator/keys"}) {
        if (const auto made = make_folders(name, 0700); !made) return made.error();
    }
    const auto coordinator = keep_key(folder + "/coordinator/keys/coordinator.key", "coordinator of " + plan.cluster);
    if (!coordinator) return coordinator.error();
    plan.coordinator_key = coordinator->public_key;
    const auto client = keep_key(folder + "/client.key", "user of " + plan.cluster);
    if (!client) return client.error();
    std::string authorised = fmt::format("user {} admin {}\n", this_user().name, client->public_key);
    for (const LocalNode& node : plan.nodes) {
        const auto key = keep_key(fmt::format("{}/keys/{}.key", folder, node.name), "node " + node.name);
        if (!key) return key.error();
        authorised += fmt::format("node {} - {}\n", node.name, key->public_key);
    }
    return write_plainly(folder + "/coordinator/authorised", authorised, 0600);
}

Result<void> write_pids(const std::string& folder, const Pids& pids) {
    json document = json::object();
    for (const auto& [part, id] : pids) document[part] = {{"pid", id.pid}, {"start_ticks", id.start_ticks}};
    return write_plainly(folder + "/pids.json", document.dump(2) + "\n", 0600);
}

Pids read_pids(const std::string& folder) {
    Pids pids;
    const auto text = read_file(folder + "/pids.json", 1 << 20);
    if (!text) return pids;
    const json document = json::parse(*text, nullptr, false);
    if (!document.is_object()) return pids;
    for (const auto& [part, id] : document.items()) {
        if (!id.is_object() || !id.contains("pid") || !id.contains("start_ticks")) continue;
        if (!id["pid"].is_number_integer() || !id["start_ticks"].is_number_unsigned()) continue;
        pids[part] = {id["pid"].get<pid_t>(), id["start_ticks"].get<std::uint64_t>()};
    }
    return pids;
}

bool is_alive(const ProcessId& id) {
    const auto stat = process_stat(id.pid);
    return stat && stat->id == id && stat->state != 'Z' && stat->state != 'X';
}

}  // namespace gangline::runner
