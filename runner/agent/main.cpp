#include "runner/agent/main.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/program_options.hpp>
#include <chrono>
#include <iostream>
#include <thread>

#include <fmt/format.h>

#include "base/log.h"
#include "base/process.h"
#include "runner/agent/daemon.h"
#include "runner/agent/node_claim.h"
#include "runner/agent/node_facts.h"

namespace gangline::runner {
namespace {

namespace po = boost::program_options;

struct AgentMainOptions {
    std::string coordinator;
    std::string coordinator_key;
    std::string key_file;
    std::string state;
    std::string topology;
    NodeWish node;
    std::string cluster;
    std::string execd;
    std::string spool;
    std::uint32_t spares = 1;
    int lifeline_fd = -1;
    int ready_fd = -1;
    bool clean = false;
};

constexpr Duration kDying = seconds(2);  // the agent before may be

constexpr const char* kHelp =
    "gangline agent: serves one node. Starts gangs, watches them, and tells the coordinator. It may be stopped and started\n"
    "again at any time: gangs go on, and the next agent finds them.\n\n"
    "  gangline agent --coordinator tcp://head:7401 --coordinator-key KEY --key n1.key --state /var/lib/gangline --node n1\n"
    "  gangline agent --clean --state /var/lib/gangline --node n1     end everything that an agent left here\n\nOptions";

int complain(int code, const std::string& words) {
    std::cerr << "gangline agent: " << words << "\n";
    return code;
}

po::options_description describe(AgentMainOptions& o) {
    po::options_description description(kHelp);
    description.add_options()
        ("help,h", "this text")
        ("coordinator", po::value(&o.coordinator), "where the coordinator listens for nodes: tcp://HOST:PORT")
        ("coordinator-key", po::value(&o.coordinator_key), "the coordinator's public key, 40 characters (`key` in its endpoints.json)")
        ("key", po::value(&o.key_file), "this node's key file (gangline keys new FILE)")
        ("state", po::value(&o.state)->required(), "folder of this agent, on a local disk")
        ("node", po::value(&o.node.name)->required(), "name of this node")
        ("cluster", po::value(&o.cluster)->default_value("local"), "name of the cluster")
        ("cards", po::value(&o.node.virtual_cards), "this many virtual cards; default: the real ones, else one a processor")
        ("address", po::value(&o.node.address)->default_value("127.0.0.1"), "address of this node for gang traffic")
        ("rack", po::value(&o.node.rack), "name of the rack")
        ("execd", po::value(&o.execd), "several users: socket name of the execd that root runs here")
        ("spool", po::value(&o.spool), "several users: `spool` in the --state of that execd; default: in our --state")
        ("spares", po::value(&o.spares)->default_value(4), "most shepherds kept ready, 0 to 16")
        ("topology", po::value(&o.topology), "file that keeps this machine's topology; default: in --state")
        ("lifeline-fd", po::value(&o.lifeline_fd), "descriptor whose end means: end every gang here, and leave")
        ("ready-fd", po::value(&o.ready_fd), "descriptor that gets a line when the coordinator has welcomed this node")
        ("clean", po::bool_switch(&o.clean), "end everything that an earlier agent left here, prove it, and leave");
    return description;
}

// One agent a state folder.
Result<Fd> lock_state(const std::string& state) {
    Fd fd(::open((state + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!fd) return errno_error(fmt::format("cannot open {}/lock", state));
    const auto until = std::chrono::steady_clock::now() + kDying;
    while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
        if (std::chrono::steady_clock::now() > until) {
            return Error{Code::Refused, fmt::format("another agent serves {}: stop it first, or give another --state", state)};
        }
        std::this_thread::sleep_for(milliseconds(10));
    }
    return fd;
}

Result<void> check(const AgentMainOptions& o) {
    const auto bad = [](std::string words) -> Result<void> { return Error{Code::InvalidArgument, std::move(words)}; };
    const auto plain = [](const std::string& name) {
        return !name.empty() && name.size() <= 64 && name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == std::string::npos;
    };
    if (!plain(o.node.name)) return bad(fmt::format("--node '{}': 1 to 64 letters, digits, '.', '_' or '-'", o.node.name));
    if (!plain(o.cluster)) return bad(fmt::format("--cluster '{}': 1 to 64 letters, digits, '.', '_' or '-'", o.cluster));
    if (o.node.virtual_cards > 4096) return bad(fmt::format("--cards {}: 1 to 4096", o.node.virtual_cards));
    if (o.spares > 16) return bad(fmt::format("--spares {}: 0 to 16", o.spares));
    if (!o.spool.empty() && (o.spool.front() != '/' || o.execd.empty())) return bad(fmt::format("--spool '{}': an absolute path, together with --execd", o.spool));
    if (o.clean) return {};
    if (o.coordinator.empty()) return bad("--coordinator is missing: tcp://HOST:PORT, as `nodes` in the coordinator's endpoints.json");
    if (!is_public_key(o.coordinator_key)) return bad("--coordinator-key is missing or no public key (40 characters, `key` in the coordinator's endpoints.json)");
    if (o.key_file.empty()) return bad("--key is missing: make one with 'gangline keys new FILE' and authorise it at the coordinator");
    return {};
}

}  // namespace

int agent_main(int argc, char** argv) {
    AgentMainOptions o;
    const po::options_description description = describe(o);
    po::variables_map given;
    try {
        po::store(po::command_line_parser(argc, argv).options(description).run(), given);
        if (given.count("help") != 0) {
            std::cout << description;
            return 0;
        }
        po::notify(given);
    } catch (const po::error& error) {
        return complain(2, fmt::format("{} (see gangline agent --help)", error.what()));
    }
    if (auto checked = check(o); !checked) return complain(2, checked.error().message);
    init_log("agent");
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    std::error_code error;
    if (auto made = make_folders(o.state, 0700); !made) return complain(1, made.error().message);
    const auto locked = lock_state(o.state);
    if (!locked) return complain(3, locked.error().message);
    const auto claim = claim_node(o.cluster, o.node.name, kDying);
    if (!claim) return complain(3, claim.error().message);
    DaemonOptions options;
    options.state = o.state.front() == '/' ? o.state : std::string(::getcwd(nullptr, 0)) + "/" + o.state;
    options.spool = o.spool.empty() ? options.state + "/spool" : o.spool;
    options.coordinator = o.coordinator;
    options.coordinator_key = o.coordinator_key;
    options.execd_socket = o.execd;
    options.lifeline_fd = o.lifeline_fd;
    options.ready_fd = o.ready_fd;
    options.claim_fd = claim->get();
    options.clean = o.clean;
    if (!o.clean) {
        auto keys = read_key_file(o.key_file);
        if (!keys) return complain(2, fmt::format("--key {}: {}", o.key_file, keys.error().message));
        options.keys = *keys;
    }
    const std::string topology = o.topology.empty() ? options.state + "/topology.xml" : o.topology;
    if (auto kept = keep_topology(topology); kept.ok()) {
        ::setenv("HWLOC_XMLFILE", topology.c_str(), 1);
        ::setenv("HWLOC_THISSYSTEM", "1", 1);
        ::setenv("HWLOC_PLUGINS_PATH", "/nonexistent", 1);  // what plugins find is in the file already; loading them takes ms
    } else {
        log_warn("topology_not_kept reason=\"{}\"", kept.error().message);
    }
    o.node.multi_user = !o.execd.empty();
    o.node.cgroups = can_make_cgroups(o.cluster, o.node.name) || o.node.multi_user;
    AgentOptions& brain = options.brain;
    brain.cluster = o.cluster;
    brain.node = describe_node(o.node);
    brain.agent_id = random_hex(8);
    brain.socket_seed = random_hex(8);
    brain.spares_allowed = o.execd.empty() && o.spares > 0 && !o.clean;
    brain.most_spares = std::max(1u, o.spares);
    brain.cgroups = o.node.cgroups;
    brain.uid = ::getuid();
    if (const passwd* user = ::getpwuid(brain.uid); user != nullptr) brain.user = user->pw_name;
    auto code = run_agent(options);
    remove_empty_cgroups(o.cluster, o.node.name);
    if (!code) return complain(1, code.error().message);
    return *code;
}

}  // namespace gangline::runner
