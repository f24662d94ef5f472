#include "runner/execd/nursery.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "runner/execd/become_user.h"
#include "runner/shepherd/serve.h"

namespace gangline::runner {
namespace {

constexpr std::size_t kManyStarted = 64;
constexpr std::uint64_t kManyNonces = 4096;
constexpr mode_t kWritableByOthers = 022;

// "<job>-<attempt>", "spare-<n>" or "keeper-<job>": integers only, so that no name of a user becomes a path (R12).
bool is_spool_name(const std::string& name) {
    const std::string rest = name.starts_with("spare-") ? name.substr(6) : name.starts_with("keeper-") ? name.substr(7) : name;
    const bool digits = !rest.empty() && rest.size() <= 40 && rest.find_first_not_of("0123456789-") == std::string::npos;
    return digits && rest.front() != '-' && rest.back() != '-';
}

std::string spool_root(const NurseryOptions& options) { return options.state + "/spool"; }

std::string cgroup_name(const NurseryOptions& options, const proto::AttemptId& id) {
    return fmt::format("gangline/{}/{}/{}.{}", options.cluster, options.node, id.job(), id.attempt());
}

Result<void> only_ours_to_write(const std::string& path) {
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) return errno_error("cannot look at " + path);
    if (S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & kWritableByOthers) == 0) return {};
    return Error{Code::Refused, fmt::format("{} must be a folder of root that nobody else may write: chown root {} && chmod go-w {}", path, path, path)};
}

}  // namespace

Nursery::Nursery(NurseryOptions options) : options_(std::move(options)) {}

Result<void> Nursery::prepare() {
    // Not the agent's own state: it may have gone already, with whoever it worked for.
    if (auto made = options_.multi_user ? make_folders(spool_root(options_), 0711) : make_folder(spool_root(options_), 0700); !made) return made;
    if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) return errno_error("cannot become a child sub-reaper");
    if (!options_.multi_user) return {};
    for (const std::string& folder : {options_.state, spool_root(options_)}) {
        if (auto ours = only_ours_to_write(folder); !ours) return ours;
    }
    recall();
    return {};
}

// ---- tickets: <state>/epoch, and <state>/nonces with a line for each that was used and has not expired

void Nursery::recall() {
    recall_nonces();
    const auto text = read_file(options_.state + "/epoch");
    proto::TicketClaims highest;  // the guard learns its epoch from an admitted ticket; this one's nonce is nobody's
    highest.set_epoch(text.ok() ? std::strtoull(text->c_str(), nullptr, 10) : 0);
    (void)guard_.admit(highest, now().unix_ms);
}

// Into the guard, which knows most of them already; the file is left without the expired ones.
void Nursery::recall_nonces() {
    const auto used = read_file(options_.state + "/nonces");
    std::string kept;
    const std::int64_t now_ms = now().unix_ms;
    for (const std::string& line : split(used.ok() ? *used : std::string(), '\n')) {
        const std::vector<std::string> words = split(line, ' ');
        auto nonce = from_hex(words[0]);
        if (words.size() != 2 || !nonce) continue;
        proto::TicketClaims claims;
        claims.set_nonce(std::move(nonce).value());
        claims.set_expires_unix_ms(std::strtoll(words[1].c_str(), nullptr, 10));
        claims.set_epoch(guard_.highest_epoch());
        if (claims.expires_unix_ms() <= now_ms) continue;
        (void)guard_.admit(claims, now_ms);
        kept += line + "\n";
    }
    if (auto written = write_file_atomically(options_.state + "/nonces", kept, 0600); !written) {
        log_warn("nonces_not_kept reason=\"{}\"", written.error().message);
    }
}

Result<void> Nursery::remember(const proto::TicketClaims& claims) const {
    const Fd fd(::open((options_.state + "/nonces").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) return errno_error("cannot open " + options_.state + "/nonces");
    return write_all(fd.get(), fmt::format("{} {}\n", to_hex(claims.nonce()), claims.expires_unix_ms()));
}

Result<Nursery::Identity> Nursery::identity_for(const proto::SpawnRequest& request) {
    Identity identity;
    identity.uid = ::getuid();
    identity.gid = ::getgid();
    if (!options_.multi_user) return identity;
    const std::int64_t now_ms = now().unix_ms;
    auto claims = open_ticket(options_.ticket_key, request.ticket(), now_ms);
    if (!claims) return Error{Code::Refused, claims.error().message};
    const TicketUse use{options_.cluster, options_.node, request.id().job(), request.id().attempt(), request.spec().SerializeAsString()};
    if (auto checked = check_ticket(*claims, use); !checked) return checked.error();
    const std::uint64_t before = guard_.highest_epoch();
    if (auto admitted = guard_.admit(*claims, now_ms); !admitted) return admitted.error();
    if (++nonces_written_ % kManyNonces == 0) recall_nonces();
    if (auto remembered = remember(*claims); !remembered) return remembered.error();
    if (guard_.highest_epoch() != before) {
        if (auto kept = write_file_atomically(options_.state + "/epoch", std::to_string(guard_.highest_epoch()), 0600); !kept) return kept.error();
    }
    identity.uid = claims->uid();
    identity.gid = claims->gid();
    identity.groups.assign(claims->groups().begin(), claims->groups().end());
    identity.change = true;
    identity.claims = std::move(claims).value();
    return identity;
}

// The attempt's own, as long as its shepherd lives: its ticket was proved when that was started.
Result<Nursery::Identity> Nursery::identity_of_keeper(const proto::SpawnRequest& request) {
    forget_dead();
    const auto shepherd = std::find_if(started_.begin(), started_.end(), [&](const Started& one) {
        return !one.is_keeper && one.job == request.id().job() && one.attempt == request.id().attempt();
    });
    if (shepherd != started_.end()) return shepherd->identity;
    if (options_.multi_user) {
        return Error{Code::Refused, fmt::format("no shepherd of attempt {}.{} that was started here lives", request.id().job(), request.id().attempt())};
    }
    Identity own;  // a spare that was taken for the attempt
    own.uid = ::getuid();
    own.gid = ::getgid();
    return own;
}

// ---- requests

void Nursery::begin(const proto::ExecdRequest& request) {
    if (request.has_spawn()) {
        auto begun = spawn(request.spawn());
        if (begun) return;
        proto::SpawnReply& reply = *replies_.emplace_back().mutable_spawn();
        reply.set_request(request.spawn().request());
        reply.set_error(begun.error().message);
        reply.set_refused(begun.error().code == Code::Refused);
        log_warn("spawn_refused job={} attempt={} reason=\"{}\"", request.spawn().id().job(), request.spawn().id().attempt(), begun.error().message);
    } else if (request.has_reap()) {
        auto begun = reap(request.reap());
        if (begun) return;
        proto::ReapReply& reply = *replies_.emplace_back().mutable_reap();
        reply.set_request(request.reap().request());
        reply.set_still_there(1);
        reply.set_error(begun.error().message);
        log_warn("reap_refused reason=\"{}\"", begun.error().message);
    }
}

Result<void> Nursery::is_for_us(const std::string& cluster, const std::string& node, const proto::AttemptId& id, const std::string& cgroup) const {
    if (cluster != options_.cluster || node != options_.node) {
        return Error{Code::Refused, fmt::format("this execd serves node '{}' of cluster '{}', not '{}' of '{}'", options_.node, options_.cluster, node, cluster)};
    }
    if (!cgroup.empty() && cgroup != cgroup_name(options_, id)) {
        return Error{Code::Refused, fmt::format("'{}' is not the cgroup of attempt {}.{}", cgroup, id.job(), id.attempt())};
    }
    return {};
}

// Below our own folder, by descriptor; the user's, readable by the agent's group (setgid), so that it can serve the log.
Result<std::string> Nursery::make_spool(const std::string& name, const Identity& identity) const {
    const Fd root(::open(spool_root(options_).c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!root) return errno_error("cannot open the spool");
    if (::mkdirat(root.get(), name.c_str(), 0700) != 0 && errno != EEXIST) return errno_error("cannot make the spool folder " + name);
    if (identity.change) {
        const Fd folder(::openat(root.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        struct stat info {};
        if (!folder || ::fstat(folder.get(), &info) != 0) return errno_error("cannot open the spool folder " + name);
        if (info.st_uid != ::geteuid() && info.st_uid != identity.uid) {
            return Error{Code::Refused, fmt::format("the spool folder {} belongs to another user", name)};
        }
        if (::fchown(folder.get(), identity.uid, options_.agent_gid) != 0 || ::fchmod(folder.get(), 02750) != 0) {
            return errno_error("cannot hand the spool folder over");
        }
    }
    return spool_root(options_) + "/" + name;
}

Result<void> Nursery::spawn(const proto::SpawnRequest& request) {
    if (auto ours = is_for_us(request.cluster(), request.node(), request.id(), request.cgroup()); !ours) return ours;
    const std::string& name = request.spool_folder();
    const bool is_spare = request.id().job() == 0;
    const std::string right = request.keeper() ? fmt::format("keeper-{}", request.id().job()) : fmt::format("{}-{}", request.id().job(), request.id().attempt());
    if (!is_spool_name(name) || (is_spare && request.keeper()) || name.starts_with("spare-") != is_spare || (!is_spare && name != right)) {
        return Error{Code::Refused, fmt::format("'{}' is not a spool name of attempt {}.{}", name, request.id().job(), request.id().attempt())};
    }
    auto identity = request.keeper() ? identity_of_keeper(request) : identity_for(request);
    if (!identity) return identity.error();
    auto spool = make_spool(name, *identity);
    if (!spool) return spool.error();
    auto socket = listen_abstract(request.socket_name(), SOCK_STREAM);
    if (!socket) return socket.error();
    int report[2];
    if (::pipe2(report, O_CLOEXEC) != 0) return errno_error("cannot make a pipe");
    Starting one;
    one.report = Fd(report[0]);
    const Fd write_end(report[1]);
    if (auto set = set_nonblocking(one.report.get()); !set) return set.error();
    const pid_t pid = ::fork();
    if (pid < 0) return errno_error("cannot fork");
    if (pid == 0) child(request, *identity, *spool, socket->get(), write_end.get());
    const auto stat = process_stat(pid);
    one.reply.set_request(request.request());
    one.reply.set_pid(pid);
    one.reply.set_start_ticks(stat ? stat->id.start_ticks : 0);
    one.until = now().steady + options_.start_limit;
    one.spool_name = name;
    if (stat) started_.push_back({stat->id, request.id().job(), request.id().attempt(), *identity, request.keeper()});
    starting_.push_back(std::move(one));
    if (started_.size() > kManyStarted) forget_dead();
    return {};
}

// Only what may be done to make the child; what it becomes is proved before the agent hears of it.
void Nursery::child(const proto::SpawnRequest& request, const Identity& identity, const std::string& spool, int socket, int report) {
    const auto die = [&](const std::string& words) {
        (void)!::write(report, words.data(), words.size());
        ::_exit(1);
    };
    if (identity.change) {
        if (auto user = check_user(identity.claims, options_.min_uid, options_.allow_root); !user) die("!" + user.error().message);
    }
    // As our own user the shepherd makes the group itself; a user needs one that is handed to him, with himself inside. A keeper outlives the attempt.
    std::string cgroup;
    if (!request.keeper() && !request.cgroup().empty() && !cgroup_root().empty()) {
        cgroup = cgroup_root() + "/" + request.cgroup();
        if (identity.change && !enter_new_cgroup(request.cgroup(), identity.uid, identity.gid)) cgroup.clear();
    }
    // What stays open: 0-2, the socket and the report, moved to 3 and 4.
    const int listen_fd = ::fcntl(socket, F_DUPFD_CLOEXEC, 64);
    const int report_fd = ::fcntl(report, F_DUPFD_CLOEXEC, 64);
    ::dup3(listen_fd, 3, O_CLOEXEC);
    ::dup3(report_fd, 4, O_CLOEXEC);
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
    const int log = ::open((spool + (request.keeper() ? "/keeper.log" : "/shepherd.log")).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (log >= 0) ::dup2(log, 2);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGCHLD, SIG_DFL);
    ::signal(SIGTERM, SIG_DFL);
    ::signal(SIGINT, SIG_IGN);
    if (::write(report, "+", 1) != 1) ::_exit(1);
    ::close(report);
    if (request.keeper()) become_keeper(request);
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

// Executed, not forked: it shall carry nothing of ours but the socket.
void Nursery::become_keeper(const proto::SpawnRequest& request) const {
    const std::string agent_uid = std::to_string(options_.agent_uid);
    const std::string program = executable_path();
    std::vector<std::string> words = {"gangline", "keeper", "--listen-fd", "3", "--name", request.socket_name(), "--agent-uid", agent_uid,
                                      "--job", std::to_string(request.id().job())};
    if (!request.address().empty()) words.insert(words.end(), {"--address", request.address()});
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::string path = "PATH=/usr/local/bin:/usr/bin:/bin";
    std::string mark = fmt::format("GANGLINE_KEEPER={}/{}/{}", options_.cluster, options_.node, request.id().job());  // whose it is, for people
    char* const environment[] = {path.data(), mark.data(), nullptr};
    ::fcntl(3, F_SETFD, 0);
    ::execve(program.c_str(), arguments.data(), environment);
    ::_exit(127);
}

Result<void> Nursery::reap(const proto::ReapRequest& request) {
    if (request.id().job() == 0) {  // nothing to end: a spare's folder, or one that was kept for its log
        if (!request.remove_spool() || !is_spool_name(request.spool_folder())) return Error{Code::Refused, "a reap request names an attempt, or a spool folder to remove"};
        proto::ReapReply& reply = *replies_.emplace_back().mutable_reap();
        reply.set_request(request.request());
        if (auto removed = remove_tree(spool_root(options_) + "/" + request.spool_folder()); !removed) reply.set_error(removed.error().message);
        return {};
    }
    if (auto ours = is_for_us(request.cluster(), request.node(), request.id(), request.cgroup()); !ours) return ours;
    forget_dead();
    ReapScope scope;
    scope.mark = fmt::format("{}/{}/{}.{}", options_.cluster, options_.node, request.id().job(), request.id().attempt());
    if (const std::string root = cgroup_root(); !root.empty()) {
        const std::string folder = root + "/" + cgroup_name(options_, request.id());
        if (::access(folder.c_str(), F_OK) == 0) scope.cgroup = folder;
    }
    scope.orphans = true;
    ending_.push_back({request, Reaping(std::move(scope), now().steady + options_.reap_limit)});
    return {};
}

// ---- what was begun

std::optional<proto::SpawnReply> Nursery::started(Starting& one, TimePoint now) {
    char buffer[512];
    ssize_t n = 0;
    while ((n = ::read(one.report.get(), buffer, sizeof buffer)) > 0) one.words.append(buffer, static_cast<std::size_t>(n));
    const bool open = n < 0 && (errno == EAGAIN || errno == EINTR);
    if (one.words == "+") return one.reply;
    if (open && now < one.until) return std::nullopt;
    (void)end_start(one);
    const bool refused = one.words.starts_with('!');
    one.reply.set_refused(refused);
    one.reply.set_error(refused ? one.words.substr(1) : !one.words.empty() ? one.words : open ? "the shepherd did not start in time" : "the shepherd died at its start");
    one.reply.clear_pid();
    one.reply.clear_start_ticks();
    log_warn("spawn_failed spool={} reason=\"{}\"", one.spool_name, one.reply.error());
    return one.reply;
}

Fd Nursery::end_start(const Starting& one) const {
    Fd killed = kill_exactly({one.reply.pid(), one.reply.start_ticks()});
    ::rmdir((spool_root(options_) + "/" + one.spool_name).c_str());  // if nothing was written there
    return killed;
}

std::vector<Fd> Nursery::forget_asker() {
    std::vector<Fd> killed;
    for (const Starting& one : starting_) {
        if (Fd process = end_start(one)) killed.push_back(std::move(process));
    }
    starting_.clear();
    replies_.clear();
    for (Ending& one : ending_) one.request.set_request(0);  // goes on, for nobody
    return killed;
}

proto::ReapReply Nursery::ended(const Ending& one, std::size_t still_there) {
    proto::ReapReply reply;
    reply.set_request(one.request.request());
    reply.set_still_there(static_cast<std::uint32_t>(still_there));
    if (still_there > 0) return reply;
    const proto::AttemptId& id = one.request.id();
    remove_leftovers(one.reaping.scope(), fmt::format("gangline-{}-{}-{}-{}", options_.cluster, options_.node, id.job(), id.attempt()));
    if (one.request.remove_spool() && is_spool_name(one.request.spool_folder())) {
        if (auto removed = remove_tree(spool_root(options_) + "/" + one.request.spool_folder()); !removed) reply.set_error(removed.error().message);
    }
    return reply;
}

std::vector<proto::ExecdReply> Nursery::settle(TimePoint now) {
    for (auto one = starting_.begin(); one != starting_.end();) {
        const auto reply = started(*one, now);
        if (reply) *replies_.emplace_back().mutable_spawn() = *reply;
        one = reply ? starting_.erase(one) : std::next(one);
    }
    for (auto one = ending_.begin(); one != ending_.end();) {
        const auto still_there = one->reaping.is_due(now) ? one->reaping.look(now, started_processes()) : std::nullopt;
        if (still_there) *replies_.emplace_back().mutable_reap() = ended(*one, *still_there);
        one = still_there ? ending_.erase(one) : std::next(one);
    }
    return std::exchange(replies_, {});
}

std::vector<int> Nursery::waits() const {
    std::vector<int> descriptors;
    for (const Starting& one : starting_) descriptors.push_back(one.report.get());
    for (const Ending& one : ending_) {
        for (const Fd& death : one.reaping.deaths()) descriptors.push_back(death.get());
    }
    return descriptors;
}

std::optional<TimePoint> Nursery::next_deadline() const {
    std::optional<TimePoint> next;
    if (!replies_.empty()) next = TimePoint{};
    for (const Starting& one : starting_) next = std::min(next.value_or(one.until), one.until);
    for (const Ending& one : ending_) next = std::min(next.value_or(one.reaping.next_look()), one.reaping.next_look());
    return next;
}

std::vector<ProcessId> Nursery::started_processes() const {
    std::vector<ProcessId> processes;
    for (const Started& one : started_) processes.push_back(one.process);
    return processes;
}

void Nursery::forget_dead() {
    std::erase_if(started_, [](const Started& one) {
        const auto stat = process_stat(one.process.pid);
        return !stat || stat->id != one.process || stat->state == 'Z' || stat->state == 'X';
    });
}

}  // namespace gangline::runner
