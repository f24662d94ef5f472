// `gangline shepherd`: the shepherd as a program of its own, with a listening socket handed down or named.
#include "runner/shepherd/main.h"

#include <sys/socket.h>

#include <boost/program_options.hpp>

#include <fmt/format.h>
#include <fmt/ostream.h>

#include "base/framing.h"
#include "runner/shepherd/serve.h"

namespace gangline::runner {
namespace {

namespace options = boost::program_options;

constexpr int kUsage = 2;

options::options_description describe(ShepherdStart& start, std::string& socket) {
    options::options_description all("gangline shepherd: started by the agent, not by people. Options");
    all.add_options()("help,h", "this text")
        ("listen-fd", options::value(&start.listen_fd), "a listening abstract stream socket; or")
        ("socket", options::value(&socket), "the name of the abstract socket to make")
        ("spool", options::value(&start.spool_folder)->required(), "the attempt's folder, absolute; must exist")
        ("node", options::value(&start.node)->required(), "the node's name")
        ("address", options::value(&start.address)->default_value("127.0.0.1"), "its address for gang traffic")
        ("cluster", options::value(&start.cluster)->default_value("local"), "the cluster's name")
        ("job", options::value(&start.job)->default_value(0), "the job's number; 0 = a spare")
        ("attempt", options::value(&start.attempt)->default_value(0), "the attempt's number; 0 = a spare")
        ("warm", options::bool_switch(&start.warm), "start the PMIx server at once")
        ("cgroup", options::value(&start.cgroup), "the attempt's cgroup v2 folder, absolute")
        ("cards", options::value(&start.cards)->default_value(0), "how many cards the node has; 0 = ranks are not bound")
        ("agent-uid", options::value(&start.agent_uid)->default_value(0), "whose agent may connect")
        ("keep-stderr", options::bool_switch(&start.keep_stderr), "log to standard error, not to <spool>/shepherd.log");
    return all;
}

}  // namespace

int shepherd_main(int argc, char** argv) {
    ShepherdStart start;
    std::string socket;
    const options::options_description all = describe(start, socket);
    try {
        options::variables_map values;
        options::store(options::command_line_parser(argc, argv).options(all).run(), values);
        if (values.count("help") != 0) {
            fmt::print("{}", fmt::streamed(all));
            return 0;
        }
        options::notify(values);
    } catch (const options::error& error) {
        fmt::print(stderr, "gangline shepherd: {}; see gangline shepherd --help\n", error.what());
        return kUsage;
    }
    if (!start.spool_folder.starts_with('/')) {
        fmt::print(stderr, "gangline shepherd: --spool '{}' must be an absolute path\n", start.spool_folder);
        return kUsage;
    }
    if ((start.listen_fd < 3) == socket.empty()) {
        fmt::print(stderr, "gangline shepherd: give --listen-fd (3 or higher) or --socket NAME, one of them\n");
        return kUsage;
    }
    if (!socket.empty()) {
        auto listener = listen_abstract(socket, SOCK_STREAM);
        if (!listener) {
            fmt::print(stderr, "gangline shepherd: --socket {}: {}\n", socket, listener.error().message);
            return kUsage;
        }
        start.listen_fd = listener->release();
    }
    return shepherd_serve(start);
}

}  // namespace gangline::runner
