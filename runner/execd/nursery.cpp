#include "runner/execd/nursery.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/log.h"
#include "base/process.h"
#include "runner/execd/become_user.h"
#include "runner/execd/reap.h"
#include "runner/shepherd/serve.h"

namespace gangline::runner {
namespace {

constexpr Duration kReapLimit = seconds(5);

// "<job>-<attempt>" or "spare-<n>": integers only, so that no name of a user becomes a path (R12).
bool is_spool_name(const std::string& name) {
    const std::string rest = name.starts_with("spare-") ? name.substr(6) : name;
    const bool digits = !rest.empty() && rest.size() <= 40 && rest.find_first_not_of("0123456789-") == std::string::npos;
    return digits && rest.front() != '-' && rest.back() != '-';
}

std::string spool_root(const NurseryOptions& options) { return options.state + "/spool"; }

}  // namespace

Nursery::Nursery(NurseryOptions options) : options_(std::move(options)) {}

Result<void> Nursery::prepare() {
    if (auto made = make_folders(spool_root(options_), options_.multi_user ? 0711 : 0700); !made) return made;
    if (!options_.multi_user) return {};
    if (const auto text = read_file(options_.state + "/epoch"); text.ok()) guard_ = TicketGuard(std::strtoull(text->c_str(), nullptr, 10));
    return {};
}

proto::ExecdReply Nursery::handle(const proto::ExecdRequest& request, int connection) {
    proto::ExecdReply reply;
    switch (request.body_case()) {
        case proto::ExecdRequest::kSpawn: *reply.mutable_spawn() = spawn(request.spawn(), connection); break;
        case proto::ExecdRequest::kReap: *reply.mutable_reap() = reap(request.reap()); break;
        case proto::ExecdRequest::BODY_NOT_SET: break;
    }
    return reply;
}

Result<Nursery::Identity> Nursery::identity_for(const proto::SpawnRequest& request) {
    Identity identity;
    identity.uid = ::getuid();
    identity.gid = ::getgid();
    if (!options_.multi_user) return identity;
    const std::int64_t now_ms = now().unix_ms;
    auto claims = open_ticket(options_.ticket_key, request.ticket(), now_ms);
    if (!claims) return claims.error();
    const TicketUse use{options_.cluster, options_.node, request.id().job(), request.id().attempt(), request.spec().SerializeAsString()};
    if (auto checked = check_ticket(*claims, use); !checked) return checked.error();
    if (auto user = check_user(*claims, options_.min_uid, options_.allow_root); !user) return user.error();
    const std::uint64_t before = guard_.highest_epoch();
    if (auto admitted = guard_.admit(*claims, now_ms); !admitted) return admitted.error();
    if (guard_.highest_epoch() != before) {
        if (auto kept = write_file_atomically(options_.state + "/epoch", std::to_string(guard_.highest_epoch()), 0600); !kept) return kept.error();
    }
    identity.uid = claims->uid();
    identity.gid = claims->gid();
    identity.user = claims->user();
    identity.groups.assign(claims->groups().begin(), claims->groups().end());
    identity.change = true;
    return identity;
}

// Below our own folder, by descriptor; the user's, readable by the agent's group (setgid), so that it can serve the log.
Result<std::string> Nursery::make_spool(const std::string& name, const Identity& identity) const {
    if (!is_spool_name(name)) return Error{Code::Refused, fmt::format("'{}' is not a spool name", name)};
    const Fd root(::open(spool_root(options_).c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!root) return errno_error("cannot open the spool");
    if (::mkdirat(root.get(), name.c_str(), 0700) != 0 && errno != EEXIST) return errno_error("cannot make the spool folder " + name);
    if (identity.change) {
        const Fd folder(::openat(root.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (!folder || ::fchown(folder.get(), identity.uid, options_.agent_gid) != 0 || ::fchmod(folder.get(), 02750) != 0) {
            return errno_error("cannot hand the spool folder over");
        }
    }
    return spool_root(options_) + "/" + name;
}

proto::SpawnReply Nursery::spawn(const proto::SpawnRequest& request, int connection) {
    proto::SpawnReply reply;
    reply.set_request(request.request());
    const auto fail = [&](const Error& error) {
        reply.set_error(error.message);
        reply.set_refused(error.code == Code::Refused);
        return reply;
    };
    auto identity = identity_for(request);
    if (!identity) return fail(identity.error());
    auto spool = make_spool(request.spool_folder(), *identity);
    if (!spool) return fail(spool.error());
    auto socket = listen_abstract(request.socket_name(), SOCK_STREAM);
    if (!socket) return fail(socket.error());
    int report[2];
    if (::pipe2(report, O_CLOEXEC) != 0) return fail(errno_error("cannot make a pipe"));
    const Fd read_end(report[0]);
    Fd write_end(report[1]);
    const pid_t pid = ::fork();
    if (pid < 0) return fail(errno_error("cannot fork"));
    if (pid == 0) {
        ::close(connection);
        child(request, *identity, *spool, std::move(socket).value(), write_end.release());
    }
    write_end.reset();
    // One byte: it has become what it should and listens. Else words, or nothing when it died.
    std::string words;
    char buffer[512];
    ssize_t n = 0;
    while ((n = ::read(read_end.get(), buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR)) {
        if (n > 0) words.append(buffer, static_cast<std::size_t>(n));
        if (words == "+") break;
    }
    if (words != "+") return fail(Error{Code::Internal, words.empty() ? "the shepherd died at its start" : words});
    const auto stat = process_stat(pid);
    reply.set_pid(pid);
    reply.set_start_ticks(stat ? stat->id.start_ticks : 0);
    return reply;
}

void Nursery::child(const proto::SpawnRequest& request, const Identity& identity, const std::string& spool, Fd socket, int report) {
    const auto die = [&](const std::string& words) {
        (void)!::write(report, words.data(), words.size());
        ::_exit(1);
    };
    // As our own user the shepherd makes the group itself; a user needs one that is handed to him, with himself inside.
    std::string cgroup;
    if (!request.cgroup().empty() && !cgroup_root().empty()) {
        cgroup = cgroup_root() + "/" + request.cgroup();
        if (identity.change && !enter_new_cgroup(request.cgroup(), identity.uid, identity.gid)) cgroup.clear();
    }
    // What stays open: 0-2, the socket and the report, moved to 3 and 4.
    const int listen_fd = ::fcntl(socket.get(), F_DUPFD_CLOEXEC, 64);
    const int report_fd = ::fcntl(report, F_DUPFD_CLOEXEC, 64);
    ::dup3(listen_fd, 3, O_CLOEXEC);
    ::dup3(report_fd, 4, O_CLOEXEC);
    (void)socket.release();
    report = 4;
    ::close_range(5, ~0u, 0);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::setsid();
    if (identity.change) {
        if (auto became = become_user(identity.uid, identity.gid, identity.groups, options_.no_new_privileges); !became) die(became.error().message);
    }
    if (::chdir("/") != 0) die("cannot enter /");
    // Again, as whom we are now: a peer reads the identity of the process that called listen.
    if (::listen(3, 128) != 0) die("cannot listen");
    const int log = ::open((spool + "/shepherd.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (log >= 0) ::dup2(log, 2);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGCHLD, SIG_DFL);
    ::signal(SIGTERM, SIG_DFL);
    ::signal(SIGINT, SIG_IGN);
    if (::write(report, "+", 1) != 1) ::_exit(1);
    ::close(report);
    ShepherdStart start;
    start.listen_fd = 3;
    start.spool_folder = spool;
    start.node = request.node();
    start.address = request.address();
    start.cluster = request.cluster();
    start.job = request.id().job();
    start.attempt = request.id().attempt();
    start.warm = request.warm();
    start.cgroup = cgroup;
    start.cards = request.cards();
    start.agent_uid = options_.agent_uid;
    ::_exit(shepherd_serve(start));
}

proto::ReapReply Nursery::reap(const proto::ReapRequest& request) {
    proto::ReapReply reply;
    reply.set_request(request.request());
    ReapScope scope;
    scope.mark = fmt::format("{}/{}/{}.{}", request.cluster(), request.node(), request.id().job(), request.id().attempt());
    if (!request.cgroup().empty() && !cgroup_root().empty()) scope.cgroup = cgroup_root() + "/" + request.cgroup();
    reply.set_still_there(static_cast<std::uint32_t>(kill_until_gone(scope, kReapLimit)));
    if (reply.still_there() == 0) {
        remove_leftovers(scope, fmt::format("gangline-{}-{}-{}-{}", request.cluster(), request.node(), request.id().job(), request.id().attempt()));
        if (request.remove_spool() && is_spool_name(request.spool_folder())) {
            if (auto removed = remove_tree(spool_root(options_) + "/" + request.spool_folder()); !removed) reply.set_error(removed.error().message);
        }
    }
    return reply;
}

}  // namespace gangline::runner
