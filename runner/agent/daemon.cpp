#include "runner/agent/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <map>
#include <set>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/log.h"
#include "base/process.h"
#include "runner/agent/leftovers.h"
#include "runner/agent/log_reader.h"
#include "runner/agent/notes.h"

namespace gangline::runner {
namespace {

constexpr Duration kSparesQuit = seconds(2);
constexpr Duration kExecdQuits = seconds(2);

struct Line {
    Fd fd;
    FrameReader reader;
    FrameWriter writer;
};

class Daemon {
  public:
    explicit Daemon(const DaemonOptions& options) : options_(options), notes_(options.state), brain_(options.brain), spools_(options.spool) {}
    Result<void> start();
    int serve();

  private:
    Result<void> start_execd();
    void feed(AgentEvent event);
    void perform(const AgentAction& action);
    void connect(const Connect& action);
    void ask_execd(const proto::ExecdRequest& request);
    void remove_spool(const std::string& folder);
    void perform_on_disk(const AgentAction& action);
    void restart_execd();
    Started first_event();
    void tick();
    void wait_for_spares();
    void wait_for_execd();
    void on_execd();
    void on_shepherd(const std::string& name);
    void on_coordinator();
    void on_signal();
    void on_lifeline();
    void end_shepherd(const ProcessId& id);
    std::vector<pollfd> wait_list(std::vector<std::string>& names) const;
    int timeout_ms() const;

    DaemonOptions options_;
    Notes notes_;
    AgentBrain brain_;
    std::unique_ptr<Wire> wire_;
    std::unique_ptr<ClientSocket> coordinator_;
    Line execd_;
    Fd execd_process_;                  // our own one's pidfd
    Fd signals_;
    std::map<std::string, Line> shepherds_;
    std::vector<Fd> killed_;            // pidfds of those that may not be dead yet
    std::deque<AgentEvent> events_;     // made while actions are performed: the brain is not re-entered
    Spools spools_;
    std::optional<TimePoint> execd_again_;  // when to try its socket again
    std::optional<int> exit_code_;
    bool stepping_ = false;
    bool told_ready_ = false;
};

Result<void> Daemon::start_execd() {
    if (!options_.execd_socket.empty()) {
        auto fd = connect_abstract(options_.execd_socket, SOCK_STREAM);
        if (!fd) return Error{Code::Unavailable, fmt::format("--execd {}: {}; start gangline execd first", options_.execd_socket, fd.error().message)};
        execd_.fd = std::move(fd).value();
        return {};
    }
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return errno_error("cannot make a socket pair");
    execd_.fd = Fd(pair[0]);
    Fd theirs(pair[1]);
    const std::string program = executable_path();
    const std::vector<std::string> words = {"gangline", "execd", "--fd", "3", "--state", options_.state, "--cluster", options_.brain.cluster,
                                            "--node", options_.brain.node.name()};
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const pid_t pid = ::fork();
    if (pid < 0) return errno_error("cannot fork execd");
    if (pid == 0) {
        // Its own session: a terminal's Ctrl-C is for whoever runs the job.
        ::setsid();
        sigset_t none;
        ::sigemptyset(&none);
        ::sigprocmask(SIG_SETMASK, &none, nullptr);
        const int fd = ::fcntl(theirs.get(), F_DUPFD, 10);
        ::dup2(fd, 3);
        ::close_range(4, ~0u, 0);
        ::execv(program.c_str(), arguments.data());
        ::_exit(127);
    }
    execd_process_ = open_process(pid);
    return set_nonblocking(execd_.fd.get());
}

Result<void> Daemon::start() {
    if (auto made = notes_.prepare(); !made) return made;
    options_.brain.highest_epoch = notes_.epoch();
    brain_ = AgentBrain(options_.brain);
    sigset_t wanted;
    ::sigemptyset(&wanted);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&wanted, signal);
    ::sigprocmask(SIG_BLOCK, &wanted, nullptr);
    ::signal(SIGCHLD, SIG_IGN);
    signals_ = Fd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
    if (auto started = start_execd(); !started) return started;  // before ZeroMQ's threads exist
    if (options_.clean) return {};
    auto wire = Wire::create(nullptr);
    if (!wire) return wire.error();
    wire_ = std::move(wire).value();
    auto socket = ClientSocket::connect(*wire_, {.keys = options_.keys, .endpoint = options_.coordinator, .server_key = options_.coordinator_key});
    if (!socket) return socket.error();
    coordinator_ = std::move(socket).value();
    return {};
}

void Daemon::feed(AgentEvent event) {
    events_.push_back(std::move(event));
    if (stepping_) return;
    stepping_ = true;
    while (!events_.empty()) {
        const AgentEvent one = std::move(events_.front());
        events_.pop_front();
        for (const AgentAction& action : brain_.step(one, now())) perform(action);
    }
    stepping_ = false;
    if (!told_ready_ && brain_.is_welcome()) {
        told_ready_ = true;
        log_info("ready node={} cards={}", options_.brain.node.name(), options_.brain.node.cards_size());
        if (options_.ready_fd >= 0) {
            (void)write_all(options_.ready_fd, "ready\n");
            ::close(options_.ready_fd);
        }
    }
}

void Daemon::end_shepherd(const ProcessId& id) {
    std::erase_if(killed_, [](const Fd& process) {
        pollfd death{process.get(), POLLIN, 0};
        return ::poll(&death, 1, 0) > 0;
    });
    if (Fd process = kill_exactly(id)) killed_.push_back(std::move(process));
}

void Daemon::ask_execd(const proto::ExecdRequest& request) {
    if (!execd_.fd) return log_warn("execd_absent request={}", static_cast<int>(request.body_case()));  // the brain asks again
    execd_.writer.push(request.SerializeAsString());
    (void)execd_.writer.flush(execd_.fd.get());  // a dead peer is seen when it is read
}

// By execd, where it is nobody's loss that a big folder takes its time, and where it may be another user's.
void Daemon::remove_spool(const std::string& folder) {
    proto::ExecdRequest request;
    request.mutable_reap()->set_spool_folder(folder);
    request.mutable_reap()->set_remove_spool(true);
    ask_execd(request);
}

void Daemon::connect(const Connect& action) {
    auto fd = connect_abstract(action.socket_name, SOCK_STREAM);
    if (!fd) return feed(ShepherdDown{action.socket_name});
    // Whoever answers under this name must be the process that execd started.
    const auto peer = peer_credentials(fd->get());
    const bool single = options_.execd_socket.empty();
    if (!peer || (single && peer->uid != ::getuid()) || peer->pid != action.shepherd.pid) {
        log_warn("shepherd_refused socket={} peer_uid={}", action.socket_name, peer ? peer->uid : static_cast<uid_t>(-1));
        return feed(ShepherdDown{action.socket_name});
    }
    shepherds_[action.socket_name].fd = std::move(fd).value();
    feed(ShepherdUp{action.socket_name});
}

void Daemon::perform(const AgentAction& action) {
    if (const auto* tell = std::get_if<Tell>(&action)) {
        if (coordinator_ && !coordinator_->send(tell->message.SerializeAsString())) log_warn("queue_full what=coordinator");
    } else if (const auto* to = std::get_if<TellShepherd>(&action)) {
        const auto found = shepherds_.find(to->socket_name);
        if (found == shepherds_.end()) return;
        found->second.writer.push(to->message.SerializeAsString());
        (void)found->second.writer.flush(found->second.fd.get());  // a dead peer is seen when it is read
    } else if (const auto* up = std::get_if<Connect>(&action)) {
        connect(*up);
    } else if (const auto* kill = std::get_if<KillShepherd>(&action)) {
        end_shepherd(kill->shepherd);
    } else if (const auto* spawn = std::get_if<Spawn>(&action)) {
        proto::ExecdRequest request;
        *request.mutable_spawn() = spawn->request;
        ask_execd(request);
    } else if (const auto* reap = std::get_if<Reap>(&action)) {
        proto::ExecdRequest request;
        *request.mutable_reap() = reap->request;
        ask_execd(request);
    } else if (const auto* exit = std::get_if<Exit>(&action)) {
        log_info("leaving code={} reason=\"{}\"", exit->code, exit->reason);
        exit_code_ = exit->code;
    } else if (const auto* say = std::get_if<Say>(&action)) {
        log_warn("{}", say->line);
    } else {
        perform_on_disk(action);
    }
}

void Daemon::perform_on_disk(const AgentAction& action) {
    if (const auto* keep = std::get_if<KeepNote>(&action)) {
        if (auto kept = notes_.keep(keep->note); !kept) log_error("note_lost reason=\"{}\"", kept.error().message);
    } else if (const auto* drop = std::get_if<DropNote>(&action)) {
        notes_.drop(drop->spool_folder);
    } else if (const auto* epoch = std::get_if<KeepEpoch>(&action)) {
        if (auto kept = notes_.keep_epoch(epoch->epoch); !kept) log_error("epoch_lost reason=\"{}\"", kept.error().message);
    } else if (const auto* remove = std::get_if<RemoveSpool>(&action)) {
        remove_spool(remove->spool_folder);
    } else if (const auto* ended = std::get_if<SpoolEnded>(&action)) {
        for (const std::string& folder : spools_.add_ended(ended->spool_folder)) remove_spool(folder);
    } else if (const auto* read = std::get_if<ReadLog>(&action)) {
        proto::NodeMessage message;
        *message.mutable_log_data() = read_log(fmt::format("{}/{}", options_.spool, read->spool_folder), read->request, read->ended);
        message.mutable_log_data()->set_node(options_.brain.node.name());
        if (coordinator_) (void)coordinator_->send(message.SerializeAsString());
    }
}

// Ours is started again at once; root's comes back by itself, and gangs go on without it meanwhile.
void Daemon::restart_execd() {
    execd_ = Line();
    execd_again_.reset();
    if (auto again = start_execd(); !again) {
        execd_again_ = now().steady + seconds(1);
        log_error("execd_failed reason=\"{}\"", again.error().message);
    }
}

void Daemon::on_execd() {
    const bool open = execd_.reader.fill(execd_.fd.get()).ok();
    while (auto frame = execd_.reader.next()) {
        proto::ExecdReply reply;
        if (!reply.ParseFromString(*frame)) continue;
        if (reply.has_spawn()) feed(Spawned{reply.spawn()});
        if (reply.has_reap() && reply.reap().request() != 0) feed(Reaped{reply.reap()});
    }
    if (open) return;
    log_error("execd_gone");
    restart_execd();
}

void Daemon::on_shepherd(const std::string& name) {
    const auto found = shepherds_.find(name);
    if (found == shepherds_.end()) return;
    const bool open = found->second.reader.fill(found->second.fd.get()).ok();
    std::vector<std::string> frames;
    while (auto frame = found->second.reader.next()) frames.push_back(std::move(*frame));
    for (const std::string& frame : frames) {
        proto::FromShepherd message;
        if (message.ParseFromString(frame)) feed(FromShepherdEvent{name, std::move(message)});
    }
    if (open) return;
    shepherds_.erase(name);
    feed(ShepherdDown{name});
}

void Daemon::on_coordinator() {
    while (auto payload = coordinator_->receive()) {
        proto::Order order;
        if (order.ParseFromString(*payload)) feed(FromCoordinator{std::move(order)});
    }
}

void Daemon::on_signal() {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGHUP) continue;
        log_info("leaving signal={} gangs=stay", info.ssi_signo);
        feed(Leave{});
        exit_code_ = 0;
    }
}

void Daemon::on_lifeline() {
    char byte = 0;
    if (::read(options_.lifeline_fd, &byte, 1) > 0) return;
    options_.lifeline_fd = -1;
    feed(Abandon{});
}

std::vector<pollfd> Daemon::wait_list(std::vector<std::string>& names) const {
    std::vector<pollfd> list;
    list.push_back({signals_.get(), POLLIN, 0});
    list.push_back({options_.lifeline_fd, POLLIN, 0});  // a negative descriptor is passed over
    list.push_back({coordinator_ ? coordinator_->fd() : -1, POLLIN, 0});
    list.push_back({execd_.fd.get(), static_cast<short>(execd_.writer.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    list.push_back({options_.claim_fd, POLLIN, 0});
    for (const auto& [name, line] : shepherds_) {
        names.push_back(name);
        list.push_back({line.fd.get(), static_cast<short>(line.writer.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    return list;
}

int Daemon::timeout_ms() const {
    auto next = brain_.next_deadline();
    if (execd_again_) next = std::min(next.value_or(*execd_again_), *execd_again_);
    if (!next) return 1000;
    const Duration left = *next - now().steady;
    return left <= Duration::zero() ? 0 : static_cast<int>(std::min<std::int64_t>(to_ms(left) + 1, 1000));
}

Started Daemon::first_event() {
    Started event{notes_.all(), left_attempts(options_.brain.cluster, options_.brain.node.name())};
    std::set<std::string> in_use;
    for (const AttemptNote& note : event.notes) {
        in_use.insert(note.spool_folder);
        in_use.insert(note.spare_folder);
    }
    for (const std::string& folder : spools_.scan(in_use)) remove_spool(folder);
    return event;
}

void Daemon::tick() {
    const TimePoint at = now().steady;
    if (execd_again_ && *execd_again_ <= at) restart_execd();
    const auto next = brain_.next_deadline();
    if (next && *next <= at) feed(AgentTick{});
}

// They have been told to quit: whoever asked us to go finds none of them left.
void Daemon::wait_for_spares() {
    const TimePoint until = now().steady + kSparesQuit;
    for (const std::string& name : brain_.left_spares()) {
        const auto found = shepherds_.find(name);
        if (found == shepherds_.end()) continue;
        pollfd line{found->second.fd.get(), POLLIN, 0};
        char bytes[4096];
        while (now().steady < until) {
            const int left_ms = static_cast<int>(std::max<std::int64_t>(1, to_ms(until - now().steady)));
            if (::poll(&line, 1, left_ms) < 0 && errno != EINTR) break;
            const ssize_t got = ::read(line.fd, bytes, sizeof bytes);
            if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) break;
        }
    }
}

// Ours ends when its line does. Shepherds that it was starting are nobody's.
void Daemon::wait_for_execd() {
    if (!options_.execd_socket.empty() || !execd_.fd) return;
    const TimePoint until = now().steady + kExecdQuits;
    bool open = true;
    for (bool told = false; open && now().steady < until;) {
        open = execd_.writer.flush(execd_.fd.get()).ok();
        if (open && !told && execd_.writer.empty()) told = ::shutdown(execd_.fd.get(), SHUT_WR) == 0;
        pollfd line{execd_.fd.get(), static_cast<short>(execd_.writer.empty() ? POLLIN : POLLIN | POLLOUT), 0};
        if (::poll(&line, 1, static_cast<int>(std::max<std::int64_t>(1, to_ms(until - now().steady)))) <= 0) continue;
        open = open && execd_.reader.fill(execd_.fd.get()).ok();
        while (auto frame = execd_.reader.next()) {
            proto::ExecdReply reply;
            if (reply.ParseFromString(*frame) && reply.has_spawn()) end_shepherd({reply.spawn().pid(), reply.spawn().start_ticks()});
        }
    }
    if (execd_process_) killed_.push_back(std::move(execd_process_));
}

int Daemon::serve() {
    feed(first_event());
    if (options_.clean) feed(Abandon{});
    while (!exit_code_) {
        std::vector<std::string> names;
        std::vector<pollfd> list = wait_list(names);
        if (::poll(list.data(), list.size(), timeout_ms()) < 0 && errno != EINTR) return 1;
        if (list[0].revents != 0) on_signal();
        if (list[1].revents != 0) on_lifeline();
        if (list[2].revents != 0) on_coordinator();
        if (list[3].revents != 0) on_execd();
        if (list[4].revents != 0) Fd(::accept4(options_.claim_fd, nullptr, nullptr, SOCK_CLOEXEC));  // a newcomer has seen who we are
        if (execd_.fd && !execd_.writer.empty()) (void)execd_.writer.flush(execd_.fd.get());
        for (std::size_t i = 0; i < names.size(); ++i) {
            const short seen = list[list.size() - names.size() + i].revents;
            if (seen == 0) continue;
            const auto found = shepherds_.find(names[i]);
            if (found != shepherds_.end() && (seen & POLLOUT) != 0) (void)found->second.writer.flush(found->second.fd.get());
            if ((seen & ~POLLOUT) != 0) on_shepherd(names[i]);
        }
        tick();
    }
    for (auto& [name, line] : shepherds_) (void)line.writer.flush(line.fd.get());
    wait_for_spares();
    wait_for_execd();
    if (!wait_dead(killed_, kExecdQuits)) log_warn("left_behind waited_ms={}", to_ms(kExecdQuits));
    return *exit_code_;
}

}  // namespace

Result<int> run_agent(const DaemonOptions& options) {
    Daemon daemon(options);
    if (auto started = daemon.start(); !started) return started.error();
    return daemon.serve();
}

}  // namespace gangline::runner
