// The verb `gangline keeper`: started by execd, as the job's user.
#include <sys/resource.h>

#include <boost/program_options.hpp>
#include <csignal>
#include <iostream>

#include <fmt/format.h>

#include "base/log.h"
#include "checkpoint/keeper/keeper.h"

namespace gangline::checkpoint {

namespace po = boost::program_options;

int keeper_main(int argc, char** argv) {
    KeeperOptions options;
    int listen_fd = -1;
    std::uint32_t linger_s = 900;
    po::options_description description("gangline keeper: keeps a job's snapshots on this node in memory. Started by the node's own parts.\n\nOptions");
    description.add_options()
        ("help,h", "this text")
        ("listen-fd", po::value(&listen_fd)->required(), "descriptor of a listening stream socket, for the agent")
        ("name", po::value(&options.name)->required(), "that socket's abstract name; ranks connect to NAME-ranks")
        ("address", po::value(&options.address)->default_value("127.0.0.1"), "this node's address, where the keepers of the job's other nodes reach this one")
        ("agent-uid", po::value(&options.agent_uid)->default_value(0), "user number of the agent")
        ("job", po::value<std::uint64_t>(), "the job's number, for whoever looks at the processes")
        ("linger-s", po::value(&linger_s)->default_value(900), "seconds without rank and agent after which it ends");
    po::variables_map given;
    try {
        po::store(po::command_line_parser(argc, argv).options(description).run(), given);
        if (given.count("help") != 0) {
            std::cout << description;
            return 0;
        }
        po::notify(given);
    } catch (const po::error& error) {
        std::cerr << fmt::format("gangline keeper: {} (see gangline keeper --help)\n", error.what());
        return 2;
    }
    init_log("keeper");
    for (const int signal : {SIGPIPE, SIGINT, SIGHUP}) std::signal(signal, SIG_IGN);
    const rlimit no_core{0, 0};  // it holds a secret, and much memory
    (void)::setrlimit(RLIMIT_CORE, &no_core);
    options.agents = Fd(listen_fd);
    options.linger = seconds(linger_s);
    auto keeper = Keeper::make(std::move(options));
    if (!keeper) {
        std::cerr << fmt::format("gangline keeper: {}\n", keeper.error().message);
        return 1;
    }
    return (*keeper)->run();
}

}  // namespace gangline::checkpoint
