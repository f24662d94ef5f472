#include "runner/execd/main.h"

#include <poll.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/program_options.hpp>
#include <cerrno>
#include <csignal>
#include <iostream>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/log.h"
#include "base/process.h"
#include "runner/execd/nursery.h"

namespace gangline::runner {
namespace {

namespace po = boost::program_options;

struct ExecdOptions {
    int fd = -1;                  // single-user: the agent's end of a socket pair
    std::string listen;           // multi-user: abstract socket name
    std::uint32_t agent_uid = 0;
    std::string ticket_key;
    NurseryOptions nursery;
};

constexpr const char* kHelp =
    "gangline execd: starts shepherds as their users. Started by the agent itself where all jobs are one user's;\n"
    "with several users start it as root:\n\n"
    "  gangline execd --listen gangline-execd --agent-uid 998 --ticket-key HEX --cluster prod --node n1 --state /var/lib/gangline-execd\n\n"
    "HEX is `ticket_key` in the coordinator's endpoints.json.\n\nOptions";

int complain(const std::string& words) {
    std::cerr << "gangline execd: " << words << "\n";
    return 2;
}

// One agent's connection, until it closes. Requests are answered in their order.
void serve(Nursery& nursery, int fd) {
    FrameReader reader;
    FrameWriter writer;
    for (;;) {
        pollfd wait{fd, static_cast<short>(writer.empty() ? POLLIN : POLLIN | POLLOUT), 0};
        if (::poll(&wait, 1, -1) < 0 && errno != EINTR) return;
        if ((wait.revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
            if (!reader.fill(fd)) return;
            while (auto frame = reader.next()) {
                proto::ExecdRequest request;
                if (!request.ParseFromString(*frame)) return;
                writer.push(nursery.handle(request, fd).SerializeAsString());
            }
        }
        if (!writer.flush(fd)) return;
    }
}

int serve_all(Nursery& nursery, const ExecdOptions& options) {
    auto listener = listen_abstract(options.listen, SOCK_STREAM);
    if (!listener) return complain(listener.error().message);
    log_info("serving socket={} agent_uid={}", options.listen, options.agent_uid);
    for (;;) {
        pollfd wait{listener->get(), POLLIN, 0};
        if (::poll(&wait, 1, -1) < 0 && errno != EINTR) return 1;
        const Fd connection(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!connection) continue;
        const auto peer = peer_credentials(connection.get());
        if (!peer || (peer->uid != options.agent_uid && peer->uid != 0)) {
            log_warn("refused peer_uid={}", peer ? peer->uid : static_cast<uid_t>(-1));
            continue;
        }
        serve(nursery, connection.get());
    }
}

}  // namespace

int execd_main(int argc, char** argv) {
    ExecdOptions options;
    po::options_description description(kHelp);
    description.add_options()
        ("help,h", "this text")
        ("fd", po::value(&options.fd), "single-user: descriptor of the agent's socket pair")
        ("listen", po::value(&options.listen), "multi-user: name of the abstract socket to serve on")
        ("agent-uid", po::value(&options.agent_uid), "multi-user: user number of the agent")
        ("ticket-key", po::value(&options.ticket_key), "multi-user: the coordinator's ticket key, hexadecimal")
        ("cluster", po::value(&options.nursery.cluster)->default_value("local"), "name of the cluster")
        ("node", po::value(&options.nursery.node)->required(), "name of this node")
        ("state", po::value(&options.nursery.state)->required(), "folder of its own")
        ("min-uid", po::value(&options.nursery.min_uid)->default_value(1000), "lowest user number that may run jobs")
        ("allow-root", po::bool_switch(&options.nursery.allow_root), "let root run jobs")
        ("no-new-privileges", po::bool_switch(&options.nursery.no_new_privileges), "jobs cannot use set-user-id programs");
    po::variables_map given;
    try {
        po::store(po::command_line_parser(argc, argv).options(description).run(), given);
        if (given.count("help") != 0) {
            std::cout << description;
            return 0;
        }
        po::notify(given);
    } catch (const po::error& error) {
        return complain(fmt::format("{} (see gangline execd --help)", error.what()));
    }
    NurseryOptions& nursery_options = options.nursery;
    nursery_options.multi_user = !options.listen.empty();
    nursery_options.agent_uid = nursery_options.multi_user ? options.agent_uid : ::getuid();
    if (nursery_options.multi_user) {
        if (::getuid() != 0) return complain("--listen needs root: it becomes the users");
        auto key = from_hex(options.ticket_key);
        if (!key || key->size() != 32) return complain("--ticket-key must be 64 hexadecimal digits (ticket_key in endpoints.json)");
        nursery_options.ticket_key = *key;
        const passwd* agent = ::getpwuid(options.agent_uid);
        if (agent == nullptr) return complain(fmt::format("--agent-uid {}: there is no such user", options.agent_uid));
        nursery_options.agent_gid = agent->pw_gid;
    } else if (options.fd < 0) {
        return complain("give --fd (started by an agent) or --listen (several users)");
    }
    init_log("execd");
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::signal(SIGCHLD, SIG_IGN);  // shepherds are reaped by the kernel
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGINT, SIG_IGN);   // a terminal's Ctrl-C is for the program that runs the job
    Nursery nursery(nursery_options);
    if (auto prepared = nursery.prepare(); !prepared) return complain(prepared.error().message);
    if (nursery_options.multi_user) return serve_all(nursery, options);
    ::prctl(PR_SET_NAME, "gangline-execd");
    if (auto set = set_nonblocking(options.fd); !set) return complain(set.error().message);
    serve(nursery, options.fd);
    return 0;
}

}  // namespace gangline::runner
