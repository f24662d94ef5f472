#pragma once
// ZeroMQ with CURVE on and ZAP *enforced*: nobody without an authorised key gets a byte through.
//
//   Wire (context + ZAP thread, one a process)
//     |- ServerSocket: ROUTER, many peers; every message arrives with the row of the key that sent it
//     '- ClientSocket: DEALER, one server whose public key is pinned
//
// libzmq 4.3.4 accepts any key when no ZAP handler answers; ZAP_ENFORCE_DOMAIN and a non-empty domain close it. The
// row is read from the payload frame (the first frame can miss it after polling); a message without it is dropped.
// Routing ids are libzmq's own, so a peer cannot choose (squat) one. A key removed from the table is refused at the
// next message, though its connection lives: receive() asks the table each time.
//
// Thread rule: sockets belong to one thread; KeyTable is safe from any. Linger 0; the Wire outlives its sockets.
// Source: RFC 26/CURVEZMQ, RFC 27/ZAP; facts of libzmq 4.3.4 in docs/security.md.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace gangline {

// Z85 text, 40 characters each.
struct KeyPair {
    std::string public_key;
    std::string secret_key;
};
KeyPair new_key_pair();
// The public key that belongs to a secret one. Errors: InvalidArgument.
Result<std::string> public_key_of(const std::string& secret_key);
bool is_public_key(const std::string& text);
// Reads `public ...` / `secret ...` lines. Errors: Refused when the file is not ours or group/other may read or write it (R8).
Result<KeyPair> read_key_file(const std::string& path);
// Creates the file 0600 with O_EXCL. Errors: Refused when it exists.
Result<void> write_key_file(const std::string& path, const KeyPair& keys, std::string_view comment);

enum class PrincipalKind { Node, User, Shepherd };
enum class Role { None, User, Operator, Admin };  // strictly ordered

// Who a key stands for. Rows are never reused while the process lives.
struct Principal {
    std::uint64_t row = 0;
    PrincipalKind kind = PrincipalKind::User;
    std::string name;          // node name or user name
    Role role = Role::None;    // users only
    std::string public_key;    // Z85
    std::uint64_t job = 0;     // shepherds only
    std::uint32_t attempt = 0;
};

// The allow-list. `replace` keeps the rows of keys that stay (name, kind and role may change).
class KeyTable {
  public:
    std::uint64_t add(Principal principal);            // returns the row; the row field is ignored
    void remove(std::uint64_t row);
    void replace(PrincipalKind a, PrincipalKind b, std::vector<Principal> principals);  // all of these two kinds
    std::optional<Principal> by_row(std::uint64_t row) const;
    std::optional<Principal> by_key(const std::string& public_key) const;
    std::size_t size() const;

  private:
    mutable std::mutex mutex_;
    std::uint64_t next_row_ = 1;
    std::map<std::uint64_t, Principal> rows_;
    std::map<std::string, std::uint64_t> by_key_;
};

struct Incoming {
    std::string route;         // opaque: give it back to send()
    Principal sender;          // verified; never from the body
    std::string payload;
};

class Wire {
  public:
    // Starts the ZAP thread on `table` (none: a process with client sockets only). The table must outlive the Wire.
    static Result<std::unique_ptr<Wire>> create(const KeyTable* table);
    virtual ~Wire() = default;
    Wire(const Wire&) = delete;
    Wire& operator=(const Wire&) = delete;

  protected:
    Wire() = default;
};

// Which kinds of principal a port lets in; the others are strangers there.
enum class Admits { Everybody, Users, Nodes };  // Nodes: nodes and shepherds

struct ServerOptions {
    KeyPair keys;
    std::string endpoint = "tcp://127.0.0.1:*";
    std::int64_t most_message_bytes = 4 << 20;
    int most_waiting_messages = 100'000;    // SNDHWM/RCVHWM
    Admits admits = Admits::Everybody;
};

class ServerSocket {
  public:
    // Binds. Errors: Unavailable (address in use), InvalidArgument (endpoint), Refused (no ZAP handler in this Wire).
    static Result<std::unique_ptr<ServerSocket>> bind(Wire& wire, const KeyTable& table, const ServerOptions& options);
    virtual ~ServerSocket() = default;
    virtual int fd() const = 0;                        // readable: call receive() until it has nothing
    virtual std::optional<Incoming> receive() = 0;     // nothing: nothing is there now
    virtual bool send(const std::string& route, std::string_view payload) = 0;  // false: the route is gone or full
    virtual std::string endpoint() const = 0;          // with the port filled in
    virtual std::string public_key() const = 0;
    virtual std::uint64_t dropped() const = 0;         // messages without a valid principal
};

struct ClientOptions {
    KeyPair keys;
    std::string endpoint;
    std::string server_key;                            // Z85, pinned
    std::int64_t most_message_bytes = 16 << 20;
    int most_waiting_messages = 10'000;
};

class ClientSocket {
  public:
    static Result<std::unique_ptr<ClientSocket>> connect(Wire& wire, const ClientOptions& options);
    virtual ~ClientSocket() = default;
    virtual int fd() const = 0;                        // readable: call receive() until it has nothing
    virtual std::optional<std::string> receive() = 0;
    // Ends early, with nothing, when the server refuses our key.
    virtual std::optional<std::string> receive(Duration timeout) = 0;
    virtual bool send(std::string_view payload) = 0;   // false: the queue is full
    // The server has told us that it does not know our key. A later send() tries again, five times a second at most.
    virtual bool is_refused() = 0;
};

// The coordinator's self-test at start-up (R1): a random key connects and must be refused. Errors: Refused when it was
// answered or let in; the caller must exit. Takes at most `limit`.
Result<void> check_stranger_is_refused(Wire& wire, ServerSocket& server, Duration limit);

}  // namespace gangline
