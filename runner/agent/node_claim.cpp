#include "runner/agent/node_claim.h"

#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/log.h"
#include "base/wire/ticket.h"

namespace gangline::runner {
namespace {

constexpr std::size_t kNameDigits = 32;  // a socket's name has less room than two names of 64 characters

}  // namespace

Result<Fd> claim_node(const std::string& cluster, const std::string& node, Duration patience) {
    const std::string name = "gangline-agent-" + to_hex(sha256(cluster + "/" + node)).substr(0, kNameDigits);
    const TimePoint until = now().steady + patience;
    while (true) {
        auto claim = listen_abstract(name, SOCK_STREAM);
        if (claim) return claim;
        const bool is_last = now().steady >= until;
        const auto asked = connect_abstract(name, SOCK_STREAM);
        const auto holder = asked ? peer_credentials(asked->get()) : Result<PeerCredentials>(asked.error());
        if (holder && holder->uid != ::geteuid() && holder->uid != 0) {
            log_warn("node_not_claimed socket={} holder_pid={} holder_uid={}", name, holder->pid, holder->uid);
            return Fd();
        }
        if (is_last && holder) {
            return Error{Code::Refused, fmt::format("another agent (process {}) serves node {} of cluster {} on this machine: stop it first, or give another --node",
                                                    holder->pid, node, cluster)};
        }
        if (is_last) return claim.error();
        std::this_thread::sleep_for(milliseconds(10));
    }
}

}  // namespace gangline::runner
