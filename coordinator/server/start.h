#pragma once
// What a coordinator does before it serves: shut its memory, find or make its keys, listen, prove that strangers are
// refused (R1), and say where it is.

#include <memory>
#include <string>

#include "base/result.h"
#include "base/wire/ticket.h"
#include "base/wire/wire.h"
#include "coordinator/server/options.h"

namespace gangline::coordinator {

// No core dump and no debugger of another user: the process holds secret keys (R8).
void shut_memory();

struct CoordinatorKeys {
    KeyPair wire;
    TicketKeys tickets;
};
// <state>/keys/coordinator.key and ticket.key, made 0600 when missing. Errors: Refused (modes), Internal.
Result<CoordinatorKeys> find_or_make_keys(const std::string& state);

struct Listening {
    std::unique_ptr<ServerSocket> users;
    std::unique_ptr<ServerSocket> nodes;
};
// Binds both ports. A port given as `*` is the last run's when it is still free, so that agents find a coordinator that
// was started again. Errors: Unavailable, InvalidArgument, Refused.
Result<Listening> listen(Wire& wire, const KeyTable& table, const CoordinatorOptions& options, const KeyPair& keys);

// Connects with a random key to each port; both must refuse. Errors: Refused; the caller must exit.
Result<void> prove_strangers_are_refused(Wire& wire, Listening& listening);

struct Endpoints {
    std::string cluster;
    std::string coordinator_id;
    std::string users;
    std::string nodes;
    std::string key;         // Z85
    std::string ticket_key;  // raw
};
// <state>/endpoints.json, atomically.
Result<void> write_endpoints(const std::string& state, const Endpoints& endpoints);
// As other machines can use it: the wildcard address becomes this machine's name.
std::string reachable(const std::string& endpoint);

// The allow-list as the file has it. A default file that is missing is an empty list. Errors: as read_authorised.
Result<std::vector<Principal>> load_authorised(const CoordinatorOptions& options);

}  // namespace gangline::coordinator
