#include "coordinator/server/main.h"

#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "base/handle.h"
#include "base/log.h"
#include "base/process.h"
#include "coordinator/server/server.h"
#include "coordinator/server/start.h"

namespace gangline::coordinator {
namespace {

constexpr std::size_t kMostClusterFile = 16 << 20;
constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kRefused = 3;
constexpr int kUnreachable = 4;

int exit_code(const Error& error) {
    switch (error.code) {
        case Code::InvalidArgument: return kUsage;
        case Code::Refused:
        case Code::NotFound: return kRefused;
        case Code::Unavailable:
        case Code::Deadline: return kUnreachable;
        case Code::NoSpace:
        case Code::Damaged:
        case Code::Internal: return kFailed;
    }
    return kFailed;
}

// Signals come by descriptor: blocked before any thread starts.
Fd open_signals() {
    sigset_t wanted;
    sigemptyset(&wanted);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&wanted, signal);
    sigprocmask(SIG_BLOCK, &wanted, nullptr);
    std::signal(SIGXFSZ, SIG_IGN);  // A file-size limit is an error of write, not a death.
    std::signal(SIGPIPE, SIG_IGN);
    return Fd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
}

Result<void> say_ready(int fd) {
    if (fd < 0) return {};
    if (auto written = write_all(fd, "ready\n"); !written) return Error{Code::Unavailable, "--ready-fd: " + written.error().message};
    ::close(fd);
    return {};
}

Result<void> run(const CoordinatorOptions& options) {
    const TimePoint started = now().steady;
    const Fd signals = open_signals();
    if (!signals) return errno_error("cannot wait for signals");
    shut_memory();
    if (auto made = make_folders(options.state, 0700); !made) return Error{made.error().code, fmt::format("--state {}: {}", options.state, made.error().message)};
    const auto keys = find_or_make_keys(options.state);
    if (!keys) return keys.error();
    auto principals = load_authorised(options);
    if (!principals) return principals.error();

    auto store = Store::open(options.state + "/journal.db");
    if (!store) return store.error();
    BrainOptions for_brain = options.for_brain();
    if (!options.cluster_file.empty()) {
        const auto text = read_file(options.cluster_file, kMostClusterFile);
        if (!text) return Error{Code::InvalidArgument, fmt::format("--cluster-file {}: {}", options.cluster_file, text.error().message)};
        auto fleet = parse_fleet(*text);
        if (!fleet) return Error{Code::InvalidArgument, fmt::format("--cluster-file {}: {}", options.cluster_file, fleet.error().message)};
        for_brain.fleet = std::move(*fleet);
    }
    Brain brain(std::move(for_brain));
    if (auto replayed = (*store)->replay([&](proto::Record&& record) { brain.replay(std::move(record)); }); !replayed) return replayed;
    const std::uint64_t replayed_records = (*store)->record_count();

    KeyTable table;
    table.replace(PrincipalKind::Node, PrincipalKind::User, std::move(*principals));
    auto wire = Wire::create(&table);
    if (!wire) return wire.error();
    auto listening = listen(**wire, table, options, keys->wire);
    if (!listening) return listening.error();
    if (auto proved = prove_strangers_are_refused(**wire, *listening); !proved) return proved;

    const std::string coordinator_id = random_hex(8);
    Server server({options, **store, brain, table, *listening->users, *listening->nodes, keys->tickets.secret_key, coordinator_id});
    if (auto took = server.take_office(); !took) return took;
    const Endpoints endpoints{options.cluster, coordinator_id, reachable(listening->users->endpoint()), reachable(listening->nodes->endpoint()),
                              keys->wire.public_key, keys->tickets.public_key};
    if (auto written = write_endpoints(options.state, endpoints); !written) return written;
    log_info("serving cluster={} epoch={} records={} users={} nodes={} keys={} ready_ms={}", options.cluster, (*store)->epoch(), replayed_records,
             endpoints.users, endpoints.nodes, table.size(), to_ms(now().steady - started));
    if (auto said = say_ready(options.ready_fd); !said) return said;
    return server.serve(signals.get(), options.lifeline_fd);
}

}  // namespace

int coordinator_main(int argc, char** argv) {
    const auto options = parse_options(argc, argv);
    if (!options) {
        fmt::print(stderr, "gangline coordinator: {}\n", options.error().message);
        return kUsage;
    }
    if (options->help) {
        fmt::print("{}", options_help());
        return 0;
    }
    init_log("coordinator");
    const auto done = run(*options);
    if (done) return 0;
    log_error("ended because=\"{}\"", done.error().message);
    return exit_code(done.error());
}

}  // namespace gangline::coordinator
