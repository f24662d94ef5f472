#pragma once
// The shell round the coordinator's brain: one thread, one loop.
//
//   wait -> take what has come (bounded) -> check who may -> brain.step(all of it) -> commit -> replies and orders
//
// All records of a batch share one commit, made before anything that follows them is done: earlier than the order of
// actions asks for, never later. A commit that fails ends the process; replay is the way back. Reads are answered after
// the batch's changes.
//
// Who sent a message is what the wire says (principal row), never what the body says: names in bodies are overwritten.

#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/wire/ticket.h"
#include "base/wire/wire.h"
#include "coordinator/brain/brain.h"
#include "coordinator/server/authorised.h"
#include "coordinator/server/gang_keys.h"
#include "coordinator/server/identity.h"
#include "coordinator/server/log_relays.h"
#include "coordinator/server/node_lines.h"
#include "coordinator/server/options.h"
#include "coordinator/store/store.h"

namespace gangline::coordinator {

// What the shell works with; all of it outlives the server.
struct ServerParts {
    const CoordinatorOptions& options;
    Store& store;
    Brain& brain;
    KeyTable& table;
    ServerSocket& users;
    ServerSocket& nodes;
    std::string ticket_secret;
    std::string coordinator_id;
};

class Server {
  public:
    explicit Server(ServerParts parts);

    // Tells the brain of its new term. Errors: as Store::append.
    Result<void> take_office();
    // Serves until SIGTERM or SIGINT (from `signal_fd`) or the lifeline's end. Errors: a commit that failed.
    Result<void> serve(int signal_fd, int lifeline_fd);
    // One turn without waiting: everything that is there now. Returns whether there may be more.
    Result<bool> turn();

  private:
    void hear_user(Incoming incoming, std::vector<Event>& events);
    void hear_node(Incoming incoming, std::vector<Event>& events);
    void hear_shepherd(const Incoming& incoming, proto::NodeMessage message, std::vector<Event>& events);
    void note_gang_keys(const std::string& node, const proto::NodeMessage& message);
    void note_gang_key(const std::string& node, const proto::AttemptReport& report);

    Result<void> perform(std::vector<Action> actions);
    void send_response(const Asker& asker, const proto::Response& response);
    void refuse(const Asker& asker, proto::Outcome outcome, std::string message);
    void send_order(const std::string& node, proto::Order order);
    void send_order_to(const std::string& route, proto::Order order);
    void fill_prepare(const std::string& node, proto::Prepare& prepare);

    struct Read {
        Asker asker;
        Principal sender;
        proto::Request request;
    };
    void answer(Read read);
    void relay_logs(const Read& read);

    void reload_authorised();
    void say_bye(const std::string& route, std::string reason);
    Duration time_to_wait(TimePoint now) const;

    ServerParts parts_;
    Identities identities_;
    NodeLines lines_;
    GangKeys gang_keys_;
    LogRelays relays_;
    FileWatch watch_;
    TimePoint next_look_;                        // at the authorised file
    Tag next_tag_ = 1;
    std::unordered_map<Tag, Asker> askers_;      // of changes that the brain has not answered yet
    std::vector<Read> reads_;
    Now now_;
};

}  // namespace gangline::coordinator
