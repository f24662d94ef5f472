#include "runner/cli/client.h"

#include <fmt/format.h>

#include "base/text.h"

namespace gangline::runner {

Result<std::unique_ptr<Client>> Client::connect(const ClusterAddress& address) {
    auto wire = Wire::create(nullptr);
    if (!wire) return wire.error();
    std::unique_ptr<Client> client(new Client);
    client->address_ = address;
    client->wire_ = std::move(wire).value();
    ClientOptions options;
    options.keys = address.keys;
    options.endpoint = address.endpoint;
    options.server_key = address.server_key;
    options.most_message_bytes = 64 << 20;
    auto socket = ClientSocket::connect(*client->wire_, options);
    if (!socket) return socket.error();
    client->socket_ = std::move(socket).value();
    return client;
}

std::uint64_t Client::send(proto::Request& request) {
    request.set_id(next_id_);
    if (!socket_->send(request.SerializeAsString())) return 0;
    return next_id_++;
}

std::optional<proto::Response> Client::decode(const std::optional<std::string>& bytes) const {
    proto::Response response;
    if (!bytes || !response.ParseFromString(*bytes)) return std::nullopt;
    return response;
}

std::optional<proto::Response> Client::receive() { return decode(socket_->receive()); }

std::optional<proto::Response> Client::receive(Duration timeout) { return decode(socket_->receive(timeout)); }

Error Client::unreachable(Duration waited) const {
    const bool local = address_.source.ends_with("/local");
    return {Code::Unavailable,
            fmt::format("no answer from the coordinator at {} ({}) within {}: {}", address_.endpoint, address_.source,
                        human_duration(to_seconds(waited)),
                        local ? "start it again with 'gangline up'"
                              : "is it running, and is your key in its authorised file? A cluster on this machine: start "
                                "one with 'gangline up'")};
}

Result<proto::Response> Client::ask(proto::Request request, Duration deadline) {
    const TimePoint until = now().steady + deadline;
    const std::uint64_t id = send(request);
    if (id == 0) return unreachable(Duration(0));
    while (true) {
        const Duration left = until - now().steady;
        if (socket_->is_refused()) {
            return Error{Code::Refused,
                         fmt::format("the coordinator at {} refused this key ({}): add 'user NAME user {}' to its authorised "
                                     "file, or give another --key",
                                     address_.endpoint, address_.source, address_.keys.public_key)};
        }
        if (left <= Duration(0)) return unreachable(deadline);
        auto response = receive(left);
        if (!response || response->id() != id) continue;
        if (auto error = error_of(*response)) return std::move(*error);
        return std::move(*response);
    }
}

std::optional<Error> error_of(const proto::Response& response) {
    switch (response.outcome()) {
        case proto::OK: return std::nullopt;
        case proto::USAGE: return Error{Code::InvalidArgument, response.message()};
        case proto::REFUSED: return Error{Code::Refused, response.message()};
        case proto::UNREACHABLE: return Error{Code::Unavailable, response.message()};
        default: return Error{Code::Internal, response.message()};
    }
}

int exit_code_of(const Error& error) {
    switch (error.code) {
        case Code::InvalidArgument: return 2;
        case Code::Refused:
        case Code::NotFound: return 3;
        case Code::Unavailable:
        case Code::Deadline: return 4;
        case Code::NoSpace:
        case Code::Damaged:
        case Code::Internal: return 1;
    }
    return 1;
}

}  // namespace gangline::runner
