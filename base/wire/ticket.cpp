#include "base/wire/ticket.h"

#include <sodium.h>

#include <fmt/format.h>

#include "base/check.h"
#include "base/text.h"
#include "base/wire/secret_file.h"

namespace gangline {
namespace {

constexpr std::size_t kNonceBytes = 16;
// Clocks of a cluster differ a little; a ticket that lives much longer than ours was not made by us.
constexpr std::int64_t kMostClockSkewMs = 30'000;

const unsigned char* raw(std::string_view bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }
unsigned char* raw(std::string& bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

void need_sodium() { CHECK(sodium_init() >= 0, "libsodium starts on every Linux"); }

Error refused(std::string message) { return {Code::Refused, std::move(message)}; }

}  // namespace

TicketKeys new_ticket_keys() {
    need_sodium();
    TicketKeys keys{std::string(crypto_sign_PUBLICKEYBYTES, '\0'), std::string(crypto_sign_SECRETKEYBYTES, '\0')};
    crypto_sign_keypair(raw(keys.public_key), raw(keys.secret_key));
    return keys;
}

std::string to_hex(std::string_view bytes) {
    std::string text(bytes.size() * 2 + 1, '\0');
    sodium_bin2hex(text.data(), text.size(), raw(bytes), bytes.size());
    text.pop_back();
    return text;
}

Result<std::string> from_hex(std::string_view text) {
    std::string bytes(text.size() / 2, '\0');
    std::size_t size = 0;
    const bool is_hex = sodium_hex2bin(raw(bytes), bytes.size(), text.data(), text.size(), nullptr, &size, nullptr) == 0;
    if (!is_hex || size * 2 != text.size()) return Error{Code::InvalidArgument, "not hexadecimal text"};
    return bytes;
}

Result<TicketKeys> read_ticket_file(const std::string& path) {
    need_sodium();
    auto content = read_secret_file(path);
    if (!content) return content.error();
    TicketKeys keys;
    for (const std::string& line : split(*content, '\n')) {
        const std::string_view text = trim(line);
        if (!text.starts_with("ticket-secret ")) continue;
        if (auto secret = from_hex(trim(text.substr(14))); secret && secret->size() == crypto_sign_SECRETKEYBYTES) {
            keys.secret_key = std::move(*secret);
        }
    }
    forget_secret(*content);
    if (keys.secret_key.empty()) {
        return Error{Code::InvalidArgument,
                     fmt::format("{} has no line `ticket-secret` with 128 hexadecimal digits: delete it and a new one is made", path)};
    }
    keys.public_key.resize(crypto_sign_PUBLICKEYBYTES);
    crypto_sign_ed25519_sk_to_pk(raw(keys.public_key), raw(keys.secret_key));
    return keys;
}

Result<void> write_ticket_file(const std::string& path, const TicketKeys& keys) {
    std::string content = fmt::format("# signs the coordinator's tickets\nticket-secret {}\n", to_hex(keys.secret_key));
    auto written = write_secret_file(path, content);
    forget_secret(content);
    return written;
}

std::string sha256(std::string_view bytes) {
    std::string hash(crypto_hash_sha256_BYTES, '\0');
    crypto_hash_sha256(raw(hash), raw(bytes), bytes.size());
    return hash;
}

std::string new_nonce() {
    need_sodium();
    std::string nonce(kNonceBytes, '\0');
    randombytes_buf(nonce.data(), nonce.size());
    return nonce;
}

proto::Ticket make_ticket(const std::string& secret_key, const proto::TicketClaims& claims) {
    need_sodium();
    CHECK(secret_key.size() == crypto_sign_SECRETKEYBYTES, "a ticket is signed with a whole Ed25519 key");
    proto::Ticket ticket;
    const std::string bytes = claims.SerializeAsString();
    std::string signature(crypto_sign_BYTES, '\0');
    crypto_sign_detached(raw(signature), nullptr, raw(bytes), bytes.size(), raw(secret_key));
    ticket.set_claims(bytes);
    ticket.set_signature(std::move(signature));
    return ticket;
}

Result<proto::TicketClaims> open_ticket(const std::string& public_key, const proto::Ticket& ticket, std::int64_t now_unix_ms) {
    need_sodium();
    if (public_key.size() != crypto_sign_PUBLICKEYBYTES) {
        return Error{Code::InvalidArgument, fmt::format("a ticket key has {} bytes, not {}", crypto_sign_PUBLICKEYBYTES, public_key.size())};
    }
    if (ticket.signature().size() != crypto_sign_BYTES) return refused("the ticket has no whole signature");
    const std::string& bytes = ticket.claims();
    if (crypto_sign_verify_detached(raw(ticket.signature()), raw(bytes), bytes.size(), raw(public_key)) != 0) {
        return refused("the ticket was not signed by this cluster's coordinator");
    }
    proto::TicketClaims claims;
    if (!claims.ParseFromString(bytes)) return Error{Code::InvalidArgument, "the ticket's claims cannot be read"};
    if (claims.nonce().size() != kNonceBytes) return refused("the ticket has no nonce");
    if (claims.expires_unix_ms() <= now_unix_ms) {
        return refused(fmt::format("the ticket expired {} ms ago", now_unix_ms - claims.expires_unix_ms()));
    }
    if (claims.expires_unix_ms() > now_unix_ms + kTicketLifeMs + kMostClockSkewMs) {
        return refused("the ticket lives longer than tickets may: compare the clocks of this node and the coordinator");
    }
    return claims;
}

Result<void> check_ticket(const proto::TicketClaims& claims, const TicketUse& use) {
    if (claims.cluster() != use.cluster) return refused(fmt::format("the ticket is for cluster '{}', this is '{}'", claims.cluster(), use.cluster));
    if (claims.node() != use.node) return refused(fmt::format("the ticket is for node '{}', this is '{}'", claims.node(), use.node));
    if (claims.id().job() != use.job || claims.id().attempt() != use.attempt) {
        return refused(fmt::format("the ticket is for attempt {}.{}, not {}.{}", claims.id().job(), claims.id().attempt(), use.job, use.attempt));
    }
    const std::string hash = sha256(use.spec_bytes);
    if (claims.spec_sha256().size() != hash.size() || sodium_memcmp(claims.spec_sha256().data(), hash.data(), hash.size()) != 0) {
        return refused("the ticket is for another job description");
    }
    return {};
}

Result<void> TicketGuard::admit(const proto::TicketClaims& claims, std::int64_t now_unix_ms) {
    std::erase_if(nonces_, [&](const auto& entry) { return entry.second <= now_unix_ms; });
    if (claims.epoch() < highest_epoch_) {
        return refused(fmt::format("the ticket is of an earlier coordinator (epoch {}, now {})", claims.epoch(), highest_epoch_));
    }
    if (!nonces_.emplace(claims.nonce(), claims.expires_unix_ms()).second) return refused("the ticket was used before");
    highest_epoch_ = claims.epoch();
    return {};
}

}  // namespace gangline
