#include "runner/shepherd/agent_line.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/log.h"
#include "base/process.h"

namespace gangline::runner {
namespace {

// An agent that reads nothing is cut off; the next one gets the whole state anyway.
constexpr std::size_t kMostWaiting = 16u << 20;

}  // namespace

Result<std::unique_ptr<AgentLine>> AgentLine::start(Loop& loop, Fd listener, uid_t agent_uid, AgentEvents events) {
    auto line = std::make_unique<AgentLine>(loop, std::move(listener), agent_uid, std::move(events));
    if (auto set = set_nonblocking(line->listener_.get()); !set) return set.error();
    auto watched = loop.watch(line->listener_.get(), [self = line.get()](Ready) { self->accept_agents(); });
    if (!watched) return watched.error();
    return line;
}

AgentLine::AgentLine(Loop& loop, Fd listener, uid_t agent_uid, AgentEvents events)
    : loop_(loop), listener_(std::move(listener)), agent_uid_(agent_uid), events_(std::move(events)), last_heard_(now().steady) {}

AgentLine::~AgentLine() {
    close();
    loop_.forget(listener_.get());
}

void AgentLine::accept_agents() {
    for (;;) {
        Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!fd && errno == EINTR) continue;
        if (!fd) return;
        const auto peer = peer_credentials(fd.get());
        if (!peer || (peer->uid != 0 && peer->uid != ::geteuid() && peer->uid != agent_uid_)) {
            log_warn("agent_refused pid={} uid={}", peer ? peer->pid : 0, peer ? peer->uid : 0);
            continue;
        }
        close();
        connection_ = std::move(fd);
        last_heard_ = now().steady;
        auto watched = loop_.watch(connection_.get(), [this](Ready ready) { on_ready(ready); });
        if (!watched) {
            log_error("agent_not_watched error={}", watched.error().message);
            connection_.reset();
            return;
        }
        events_.connected();
    }
}

void AgentLine::on_ready(Ready ready) {
    const int fd = connection_.get();
    if (ready.writable) flush();
    if (!ready.readable || connection_.get() != fd) return;
    const auto filled = reader_.fill(fd);
    last_heard_ = now().steady;
    while (auto frame = reader_.next()) {
        proto::ToShepherd message;
        if (!message.ParseFromString(*frame)) {
            log_warn("agent_frame_damaged bytes={}", frame->size());
            return close();
        }
        events_.message(message);
        if (connection_.get() != fd) return;
    }
    if (!filled) close();
}

void AgentLine::send(const proto::FromShepherd& message) {
    if (!connection_) return;
    const std::string frame = message.SerializeAsString();
    if (frame.size() > kMostFrame || writer_.waiting_bytes() + frame.size() > kMostWaiting) {
        log_warn("agent_cut_off waiting_bytes={} frame_bytes={}", writer_.waiting_bytes(), frame.size());
        return close();
    }
    writer_.push(frame);
    flush();
}

void AgentLine::flush() {
    if (!writer_.flush(connection_.get())) return close();
    const bool waiting = !writer_.empty();
    if (waiting != wants_write_) loop_.want(connection_.get(), true, waiting);
    wants_write_ = waiting;
}

void AgentLine::close() {
    if (!connection_) return;
    loop_.forget(connection_.get());
    connection_.reset();
    reader_ = {};
    writer_ = {};
    wants_write_ = false;
}

}  // namespace gangline::runner
