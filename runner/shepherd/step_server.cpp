#include "runner/shepherd/step_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/handle.h"
#include "base/log.h"
#include "runner/shepherd/step_layout.h"

namespace gangline::runner {
namespace {

constexpr Duration kKillAfter = seconds(2);
constexpr std::size_t kPauseAbove = 4u << 20;
constexpr std::size_t kResumeBelow = 1u << 20;
constexpr std::uint32_t kLead = 0;
constexpr int kCannotStart = 127;
constexpr std::size_t kMostClients = 1024;

struct Client {
    Fd fd;
    FrameReader reader;
    FrameWriter writer;
    std::uint32_t step_id = 0;  // 0: none yet
    bool wants_write = false;
};

// A step as the lead knows it.
struct Step {
    std::uint32_t id = 0;
    int client = -1;                    // -1: gone
    std::vector<std::uint32_t> nodes;   // indices in the job's gang
    std::vector<Slot> slots;
    std::uint32_t ranks = 0;
    std::map<std::uint32_t, proto::RankReport> exits;
    std::set<std::uint32_t> joined;
    std::optional<proto::RankReport> cause;  // the failure that made us stop the others
    bool kill_on_bad_exit = false;
    bool stopping = false;
    bool paused = false;
    TimePoint kill_at = TimePoint::max();
};

// A step as each node knows it.
struct LocalStep {
    std::set<std::uint32_t> living;
};

int code_of(const proto::RankReport& report) { return report.signal() != 0 ? 128 + report.signal() : report.exit_code(); }

class StepServerImpl : public StepServer {
  public:
    StepServerImpl(StepOptions options, StepHooks hooks, GangLink& link)
        : options_(std::move(options)), hooks_(std::move(hooks)), link_(link) {}
    Result<void> open();

    int fd() const override { return epoll_.get(); }
    void handle() override;
    TimePoint next_deadline() const override;
    void tick(TimePoint now) override;
    void local_output(std::uint32_t step_id, std::uint32_t rank, bool is_error, std::string data) override;
    void local_joined(std::uint32_t step_id, std::uint32_t rank) override;
    void local_exit(std::uint32_t step_id, const proto::RankReport& report) override;
    void on_start_step(const proto::StartStep& step) override;
    void on_stop_step(const proto::StopStep& step) override;
    void on_step_exit(std::uint32_t node_index, const proto::StepExit& exit) override;
    void on_step_output(std::uint32_t node_index, const proto::StepOutput& output) override;
    void close() override;
    std::size_t running() const override { return is_lead() ? steps_.size() : local_.size(); }

  private:
    bool is_lead() const { return options_.node_index == kLead; }
    const std::string& node_name() const { return options_.gang[options_.node_index].node(); }
    void accept_clients();
    void serve(int fd, std::uint32_t events);
    void drop_client(int fd);
    void on_client_message(Client& client, const proto::StepClientMessage& message);
    void start_step(Client& client, const proto::StepRequest& request);
    void send_event(Client& client, const proto::StepEvent& event);
    void refuse(Client& client, const std::string& why);
    bool flush(Client& client);
    void report_exit(const proto::StepExit& exit);
    void note_exit(Step& step, const proto::RankReport& report);
    void signal_step(const Step& step, int signal);
    void stop_step(Step& step);
    void set_paused(Step& step, bool paused);
    void end_step(Step& step);
    Step* step(std::uint32_t id);
    Client* client_of(const Step& step);

    StepOptions options_;
    StepHooks hooks_;
    GangLink& link_;
    Fd epoll_;
    Fd listener_;
    bool closed_ = false;
    std::uint32_t next_id_ = 1;
    std::map<int, Client> clients_;
    std::map<std::uint32_t, Step> steps_;       // lead
    std::map<std::uint32_t, LocalStep> local_;  // every node
};

Result<void> StepServerImpl::open() {
    CHECK(options_.node_index < options_.gang.size(), "the node is one of its gang");
    epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_) return errno_error("cannot make a descriptor to wait on");
    if (options_.socket_name.empty()) return {};
    auto listener = listen_abstract(options_.socket_name, SOCK_STREAM);
    if (!listener) return listener.error();
    listener_ = std::move(*listener);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = listener_.get();
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) != 0) return errno_error("cannot wait on the step socket");
    return {};
}

// ---- Clients.

void StepServerImpl::handle() {
    epoll_event events[32];
    const int count = ::epoll_wait(epoll_.get(), events, 32, 0);
    for (int i = 0; i < count; ++i) {
        if (listener_ && events[i].data.fd == listener_.get()) {
            accept_clients();
        } else {
            serve(events[i].data.fd, events[i].events);
        }
    }
}

void StepServerImpl::accept_clients() {
    for (;;) {
        Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!fd) return;
        const auto peer = peer_credentials(fd.get());
        if (!peer || (peer->uid != ::geteuid() && peer->uid != 0) || clients_.size() >= kMostClients) {
            log_warn("step_client_refused uid={} clients={}", peer ? peer->uid : 0, clients_.size());
            continue;
        }
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = fd.get();
        if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) continue;
        const int number = fd.get();
        clients_[number].fd = std::move(fd);
    }
}

void StepServerImpl::serve(int fd, std::uint32_t events) {
    const auto found = clients_.find(fd);
    if (found == clients_.end()) return;
    Client& client = found->second;
    bool alive = true;
    if ((events & EPOLLOUT) != 0) alive = flush(client);
    if (alive && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
        alive = client.reader.fill(fd).ok();
        while (const auto frame = client.reader.next()) {
            proto::StepClientMessage message;
            if (!message.ParseFromString(*frame)) {
                alive = false;
                break;
            }
            on_client_message(client, message);
        }
    }
    if (!alive) drop_client(fd);
}

// A step without its asker has nobody to report to: it ends.
void StepServerImpl::drop_client(int fd) {
    const auto found = clients_.find(fd);
    if (found == clients_.end()) return;
    Step* left = step(found->second.step_id);
    clients_.erase(found);
    if (left == nullptr) return;
    left->client = -1;
    set_paused(*left, false);
    stop_step(*left);
}

void StepServerImpl::on_client_message(Client& client, const proto::StepClientMessage& message) {
    switch (message.body_case()) {
        case proto::StepClientMessage::kStart: start_step(client, message.start()); break;
        case proto::StepClientMessage::kSignal:
            if (const Step* of_client = step(client.step_id)) signal_step(*of_client, message.signal());
            break;
        case proto::StepClientMessage::BODY_NOT_SET: break;
    }
}

void StepServerImpl::refuse(Client& client, const std::string& why) {
    proto::StepEvent event;
    event.set_error(why);
    send_event(client, event);
}

// Queues; what the socket does not take now goes out when it can. A client that is gone is dropped by its hang-up.
void StepServerImpl::send_event(Client& client, const proto::StepEvent& event) {
    client.writer.push(event.SerializeAsString());
    flush(client);
}

bool StepServerImpl::flush(Client& client) {
    if (!client.writer.flush(client.fd.get())) return false;
    if (client.wants_write == client.writer.empty()) {
        client.wants_write = !client.writer.empty();
        epoll_event event{};
        event.events = EPOLLIN | (client.wants_write ? EPOLLOUT : 0u);
        event.data.fd = client.fd.get();
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.fd.get(), &event);
    }
    if (Step* of_client = step(client.step_id)) {
        if (client.writer.waiting_bytes() > kPauseAbove) set_paused(*of_client, true);
        if (client.writer.waiting_bytes() < kResumeBelow) set_paused(*of_client, false);
    }
    return true;
}

// ---- The lead.

Step* StepServerImpl::step(std::uint32_t id) {
    const auto found = steps_.find(id);
    return found == steps_.end() ? nullptr : &found->second;
}

Client* StepServerImpl::client_of(const Step& step) {
    const auto found = clients_.find(step.client);
    return found == clients_.end() ? nullptr : &found->second;
}

void StepServerImpl::start_step(Client& client, const proto::StepRequest& request) {
    if (client.step_id != 0) return refuse(client, "this connection has started a step already");
    if (closed_) return refuse(client, "the job is ending: no new step is started");
    if (request.argv().empty() || request.argv(0).empty()) return refuse(client, "no program was given");
    std::set<Slot> taken;
    for (const auto& [id, running] : steps_) taken.insert(running.slots.begin(), running.slots.end());
    auto layout = lay_out_step(options_.gang, options_.spec, request, taken);
    if (!layout) return refuse(client, layout.error().message);

    proto::StartStep start;
    start.set_step_id(next_id_++);
    *start.mutable_argv() = request.argv();
    start.set_cwd(request.cwd());
    *start.mutable_environment() = request.environment();
    start.set_label(request.label());
    Step& step = steps_[start.step_id()];
    step.id = start.step_id();
    step.client = client.fd.get();
    step.kill_on_bad_exit = request.kill_on_bad_exit();
    step.slots = std::move(layout->slots);
    for (const proto::Placement& placement : layout->gang) {
        *start.add_gang() = placement;
        step.ranks += placement.rank_count();
        for (std::uint32_t i = 0; i < options_.gang.size(); ++i) {
            if (options_.gang[i].node() == placement.node()) step.nodes.push_back(i);
        }
    }
    client.step_id = step.id;
    proto::StepEvent event;
    event.set_started(step.id);
    send_event(client, event);
    const std::vector<std::uint32_t> nodes = step.nodes;
    for (const std::uint32_t node : nodes) {
        if (node != options_.node_index) link_.send_start_step(start, node);
    }
    if (std::find(nodes.begin(), nodes.end(), options_.node_index) != nodes.end()) on_start_step(start);
}

void StepServerImpl::signal_step(const Step& step, int signal) {
    proto::StopStep stop;
    stop.set_step_id(step.id);
    stop.set_signal(signal);
    for (const std::uint32_t node : step.nodes) {
        if (node == options_.node_index) {
            on_stop_step(stop);
        } else {
            link_.send_stop_step(stop, node);
        }
    }
}

void StepServerImpl::stop_step(Step& step) {
    if (step.stopping) return;
    step.stopping = true;
    step.kill_at = now().steady + kKillAfter;
    signal_step(step, SIGTERM);
}

void StepServerImpl::set_paused(Step& step, bool paused) {
    if (step.paused == paused) return;
    step.paused = paused;
    proto::StopStep stop;
    stop.set_step_id(step.id);
    stop.set_output(paused ? 1 : 2);
    for (const std::uint32_t node : step.nodes) {
        if (node == options_.node_index) {
            on_stop_step(stop);
        } else {
            link_.send_stop_step(stop, node);
        }
    }
}

TimePoint StepServerImpl::next_deadline() const {
    TimePoint next = TimePoint::max();
    for (const auto& [id, step] : steps_) next = std::min(next, step.kill_at);
    return next;
}

void StepServerImpl::tick(TimePoint now) {
    for (auto& [id, step] : steps_) {
        if (now < step.kill_at) continue;
        step.kill_at = TimePoint::max();
        signal_step(step, SIGKILL);
    }
}

void StepServerImpl::on_step_output(std::uint32_t, const proto::StepOutput& output) {
    const Step* of_output = step(output.step_id());
    Client* client = of_output != nullptr ? client_of(*of_output) : nullptr;
    if (client == nullptr) return;
    proto::StepEvent event;
    *event.mutable_output() = output;
    send_event(*client, event);
}

void StepServerImpl::on_step_exit(std::uint32_t node_index, const proto::StepExit& exit) {
    Step* of_exit = step(exit.step_id());
    if (of_exit == nullptr) return;
    for (const proto::RankReport& report : exit.ranks()) {
        if (report.state() == proto::RANK_JOINED) of_exit->joined.insert(report.rank());
        if (report.state() != proto::RANK_EXITED || report.rank() >= of_exit->ranks) continue;
        if (report.exit_code() == kCannotStart && !report.last_lines().empty()) {
            proto::StepOutput output;
            output.set_step_id(exit.step_id());
            output.set_rank(report.rank());
            output.set_is_error(true);
            output.set_data(report.last_lines());
            on_step_output(node_index, output);
        }
        note_exit(*of_exit, report);
    }
    if (of_exit->exits.size() == of_exit->ranks) end_step(*of_exit);
}

void StepServerImpl::note_exit(Step& step, const proto::RankReport& report) {
    if (!step.exits.emplace(report.rank(), report).second || code_of(report) == 0 || step.stopping) return;
    const bool peers_would_hang = report.signal() != 0 || step.joined.count(report.rank()) != 0;
    if (!step.kill_on_bad_exit && !peers_would_hang) return;
    step.cause = report;
    stop_step(step);
}

void StepServerImpl::end_step(Step& step) {
    proto::StepEvent event;
    proto::StepEnded& ended = *event.mutable_ended();
    for (const auto& [rank, report] : step.exits) {
        // Ranks that we stopped because of another one are not what went wrong.
        const bool by_us = step.cause && rank != step.cause->rank() && (report.signal() == SIGTERM || report.signal() == SIGKILL);
        const int code = code_of(report);
        if (by_us || code == 0) continue;
        ended.set_exit_code(std::max(ended.exit_code(), code));
        *ended.add_failed() = report;
    }
    Client* client = client_of(step);
    steps_.erase(step.id);
    if (client != nullptr) send_event(*client, event);
}

// ---- Every node.

void StepServerImpl::on_start_step(const proto::StartStep& step) {
    const proto::Placement* here = nullptr;
    for (const proto::Placement& placement : step.gang()) {
        if (placement.node() == node_name()) here = &placement;
    }
    if (here == nullptr || here->rank_count() == 0 || local_.count(step.step_id()) != 0) return;
    LocalStep& local = local_[step.step_id()];
    for (std::uint32_t i = 0; i < here->rank_count(); ++i) local.living.insert(here->first_rank() + i);
    const auto started = closed_ ? Result<void>(Error{Code::Refused, "the job is ending"}) : hooks_.start_ranks(step);
    if (started) return;
    const std::string why = fmt::format("{}: cannot start {}: {}\n", node_name(), step.argv_size() > 0 ? step.argv(0) : "a program",
                                        started.error().message);
    for (std::uint32_t i = 0; i < here->rank_count(); ++i) {
        proto::RankReport report;
        report.set_rank(here->first_rank() + i);
        report.set_exit_code(kCannotStart);
        if (i == 0) report.set_last_lines(why);
        local_exit(step.step_id(), report);
    }
}

void StepServerImpl::on_stop_step(const proto::StopStep& stop) {
    if (local_.count(stop.step_id()) == 0) return;
    if (stop.output() != 0 && hooks_.pause_output) hooks_.pause_output(stop.step_id(), stop.output() == 1);
    if (stop.signal() > 0 && stop.signal() < NSIG) hooks_.signal_ranks(stop.step_id(), stop.signal());
}

void StepServerImpl::local_output(std::uint32_t step_id, std::uint32_t rank, bool is_error, std::string data) {
    proto::StepOutput output;
    output.set_step_id(step_id);
    output.set_rank(rank);
    output.set_is_error(is_error);
    output.set_data(std::move(data));
    if (is_lead()) {
        on_step_output(kLead, output);
    } else {
        link_.send_step_output(output);
    }
}

void StepServerImpl::report_exit(const proto::StepExit& exit) {
    if (is_lead()) {
        on_step_exit(kLead, exit);
    } else {
        link_.send_step_exit(exit);
    }
}

void StepServerImpl::local_joined(std::uint32_t step_id, std::uint32_t rank) {
    proto::StepExit exit;
    exit.set_step_id(step_id);
    proto::RankReport& report = *exit.add_ranks();
    report.set_rank(rank);
    report.set_step_id(step_id);
    report.set_state(proto::RANK_JOINED);
    report_exit(exit);
}

void StepServerImpl::local_exit(std::uint32_t step_id, const proto::RankReport& report) {
    const auto local = local_.find(step_id);
    if (local == local_.end() || local->second.living.erase(report.rank()) == 0) return;
    proto::StepExit exit;
    exit.set_step_id(step_id);
    proto::RankReport& copy = *exit.add_ranks();
    copy = report;
    copy.set_step_id(step_id);
    copy.set_state(proto::RANK_EXITED);
    exit.set_node_done(local->second.living.empty());
    if (exit.node_done()) local_.erase(local);
    report_exit(exit);
}

void StepServerImpl::close() {
    closed_ = true;
}

}  // namespace

Result<std::unique_ptr<StepServer>> StepServer::start(const StepOptions& options, StepHooks hooks, GangLink& link) {
    CHECK(hooks.start_ranks && hooks.signal_ranks, "a step needs its hooks");
    auto server = std::make_unique<StepServerImpl>(options, std::move(hooks), link);
    if (auto opened = server->open(); !opened) return opened.error();
    return std::unique_ptr<StepServer>(std::move(server));
}

}  // namespace gangline::runner
