#include "runner/execd/main.h"

#include <poll.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/program_options.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iostream>
#include <vector>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/log.h"
#include "base/process.h"
#include "base/time.h"
#include "runner/execd/nursery.h"

namespace gangline::runner {
namespace {

namespace po = boost::program_options;

constexpr Duration kDying = seconds(1);

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

// One process, one loop: at most one agent (the newest), and what the nursery has begun.
class Server {
  public:
    Server(Nursery& nursery, Fd listener, Fd connection, uid_t agent_uid)
        : nursery_(nursery), listener_(std::move(listener)), connection_(std::move(connection)), agent_uid_(agent_uid) {}

    int serve() {
        // Without a listener the connection is all that we are for.
        while (listener_ || connection_) {
            std::vector<pollfd> list = {{listener_.get(), POLLIN, 0},
                                        {connection_.get(), static_cast<short>(writer_.empty() ? POLLIN : POLLIN | POLLOUT), 0}};
            for (const int fd : nursery_.waits()) list.push_back({fd, POLLIN, 0});
            if (::poll(list.data(), list.size(), timeout_ms()) < 0 && errno != EINTR) return 1;
            if (list[1].revents != 0) read_requests();
            for (const proto::ExecdReply& reply : nursery_.settle(now().steady)) {
                if (connection_) writer_.push(reply.SerializeAsString());
            }
            if (connection_ && !writer_.flush(connection_.get())) disconnect();
            if ((list[0].revents & POLLIN) != 0) accept_agent();
        }
        (void)wait_dead(killed_, kDying);  // the agent waits for our end, and then nothing may be left
        return 0;
    }

  private:
    int timeout_ms() const {
        const auto next = nursery_.next_deadline();
        if (!next) return -1;
        const Duration left = *next - now().steady;
        return left <= Duration::zero() ? 0 : static_cast<int>(std::min<std::int64_t>(to_ms(left) + 1, 60'000));
    }
    void disconnect() {
        killed_ = nursery_.forget_asker();
        connection_.reset();
        reader_ = FrameReader();
        writer_ = FrameWriter();
    }
    void read_requests() {
        const bool open = reader_.fill(connection_.get()).ok();
        while (auto frame = reader_.next()) {
            proto::ExecdRequest request;
            if (!request.ParseFromString(*frame)) return disconnect();
            nursery_.begin(request);
        }
        if (!open) disconnect();
    }
    void accept_agent() {
        Fd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!connection) return;
        const auto peer = peer_credentials(connection.get());
        if (!peer || (peer->uid != agent_uid_ && peer->uid != 0)) {
            log_warn("refused peer_uid={}", peer ? peer->uid : static_cast<uid_t>(-1));
            return;
        }
        disconnect();
        connection_ = std::move(connection);
    }

    Nursery& nursery_;
    Fd listener_;
    Fd connection_;
    std::vector<Fd> killed_;   // when the last agent went
    uid_t agent_uid_;
    FrameReader reader_;
    FrameWriter writer_;
};

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
    ::prctl(PR_SET_NAME, "gangline-execd");
    if (!nursery_options.multi_user) {
        if (auto set = set_nonblocking(options.fd); !set) return complain(fmt::format("--fd {}: {}", options.fd, set.error().message));
        return Server(nursery, Fd(), Fd(options.fd), options.agent_uid).serve();
    }
    auto listener = listen_abstract(options.listen, SOCK_STREAM);
    if (!listener) return complain(fmt::format("--listen {}: {}", options.listen, listener.error().message));
    log_info("serving socket={} agent_uid={}", options.listen, options.agent_uid);
    return Server(nursery, std::move(listener).value(), Fd(), options.agent_uid).serve();
}

}  // namespace gangline::runner
