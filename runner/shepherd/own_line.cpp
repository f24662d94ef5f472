#include "runner/shepherd/own_line.h"

#include "base/log.h"

namespace gangline::runner {

Result<std::unique_ptr<OwnLine>> OwnLine::open(Loop& loop, const KeyPair& keys, const proto::Prepare& prepare,
                                               std::function<void(const proto::Order&)> on_order) {
    if (!is_public_key(prepare.coordinator_key())) {
        return Error{Code::InvalidArgument, "the coordinator's key is not 40 characters of Z85"};
    }
    auto wire = Wire::create(nullptr);
    if (!wire) return wire.error();
    ClientOptions options;
    options.keys = keys;
    options.endpoint = prepare.coordinator_endpoint();
    options.server_key = prepare.coordinator_key();
    options.most_waiting_messages = 64;
    auto socket = ClientSocket::connect(**wire, options);
    if (!socket) return socket.error();
    auto line = std::make_unique<OwnLine>(loop, std::move(*wire), std::move(*socket), std::move(on_order));
    auto watched = loop.watch(line->socket_->fd(), [self = line.get()](Ready) { self->receive(); });
    if (!watched) return watched.error();
    return line;
}

OwnLine::OwnLine(Loop& loop, std::unique_ptr<Wire> wire, std::unique_ptr<ClientSocket> socket,
                 std::function<void(const proto::Order&)> on_order)
    : loop_(loop), wire_(std::move(wire)), socket_(std::move(socket)), on_order_(std::move(on_order)) {}

OwnLine::~OwnLine() { loop_.forget(socket_->fd()); }

void OwnLine::send(proto::NodeMessage message) {
    message.set_sequence(++sequence_);
    socket_->send(message.SerializeAsString());
}

void OwnLine::receive() {
    while (auto payload = socket_->receive()) {
        proto::Order order;
        if (!order.ParseFromString(*payload)) {
            log_warn("order_damaged bytes={}", payload->size());
            continue;
        }
        last_heard_ = now().steady;
        on_order_(order);
    }
}

}  // namespace gangline::runner
