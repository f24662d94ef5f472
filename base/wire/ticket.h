#pragma once
// Tickets: the coordinator's signed permission to run one attempt, on one node, as one user (R4).
//
//   claims (TicketClaims, serialized) --Ed25519--> Ticket{claims, signature}
//
// The bytes that were signed travel as they are, so no two serializations need to agree. open_ticket proves who signed
// and that the ticket is fresh; check_ticket proves that it is for this very start; TicketGuard that it is used once and
// not by an older coordinator. Source: libsodium crypto_sign_detached.

#include <cstdint>
#include <map>
#include <string>

#include "base/protocol/node.pb.h"
#include "base/result.h"

namespace gangline {

inline constexpr std::int64_t kTicketLifeMs = 60'000;

// Raw bytes: 32 public, 64 secret.
struct TicketKeys {
    std::string public_key;
    std::string secret_key;
};
TicketKeys new_ticket_keys();
// A 0600 file with `ticket-secret HEX`. Errors: as read_secret_file; InvalidArgument.
Result<TicketKeys> read_ticket_file(const std::string& path);
Result<void> write_ticket_file(const std::string& path, const TicketKeys& keys);
std::string to_hex(std::string_view bytes);
Result<std::string> from_hex(std::string_view text);  // Errors: InvalidArgument.

std::string sha256(std::string_view bytes);           // 32 bytes
std::string new_nonce();                              // 16 bytes

proto::Ticket make_ticket(const std::string& secret_key, const proto::TicketClaims& claims);
// Errors: Refused (signature, expired, from the far future); InvalidArgument (not a ticket at all).
Result<proto::TicketClaims> open_ticket(const std::string& public_key, const proto::Ticket& ticket, std::int64_t now_unix_ms);

// What the holder is about to start; every field must be the ticket's.
struct TicketUse {
    std::string cluster;
    std::string node;
    std::uint64_t job = 0;
    std::uint32_t attempt = 0;
    std::string spec_bytes;  // the serialized JobSpec that will be started
};
// Errors: Refused, naming the field that differs.
Result<void> check_ticket(const proto::TicketClaims& claims, const TicketUse& use);

// Remembers nonces until they expire, and the highest epoch. Thread rule: one thread.
class TicketGuard {
  public:
    explicit TicketGuard(std::uint64_t highest_epoch = 0) : highest_epoch_(highest_epoch) {}
    // Errors: Refused when the nonce was used, or the epoch is below the highest seen.
    Result<void> admit(const proto::TicketClaims& claims, std::int64_t now_unix_ms);
    std::uint64_t highest_epoch() const { return highest_epoch_; }

  private:
    std::uint64_t highest_epoch_;
    std::map<std::string, std::int64_t> nonces_;  // nonce -> expiry, unix ms
};

}  // namespace gangline
