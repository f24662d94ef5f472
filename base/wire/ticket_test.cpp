#include "base/wire/ticket.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/wire/secret_file.h"

namespace gangline {
namespace {

constexpr std::int64_t kNow = 1'800'000'000'000;

class TicketTest : public ::testing::Test {
  protected:
    static proto::TicketClaims claims() {
        proto::TicketClaims claims;
        claims.set_cluster("lab");
        claims.set_node("n0");
        claims.mutable_id()->set_job(7);
        claims.mutable_id()->set_attempt(2);
        claims.set_user("alice");
        claims.set_uid(1000);
        claims.set_spec_sha256(sha256("spec"));
        claims.set_epoch(3);
        claims.set_expires_unix_ms(kNow + kTicketLifeMs);
        claims.set_nonce(new_nonce());
        return claims;
    }
    static TicketUse use() { return {.cluster = "lab", .node = "n0", .job = 7, .attempt = 2, .spec_bytes = "spec"}; }
    TicketKeys keys_ = new_ticket_keys();
};

TEST_F(TicketTest, OpensWithItsPublicKeyAndIsForThisStart) {
    const auto opened = open_ticket(keys_.public_key, make_ticket(keys_.secret_key, claims()), kNow);
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(opened->uid(), 1000U);
    EXPECT_TRUE(check_ticket(*opened, use()));
}

TEST_F(TicketTest, WithAnyBitChangedIsRefused) {
    const proto::Ticket good = make_ticket(keys_.secret_key, claims());
    for (std::size_t bit = 0; bit < good.claims().size() * 8; ++bit) {
        proto::Ticket bad = good;
        auto& byte = (*bad.mutable_claims())[bit / 8];
        byte = static_cast<char>(byte ^ (1 << (bit % 8)));
        ASSERT_FALSE(open_ticket(keys_.public_key, bad, kNow)) << bit;
    }
    for (std::size_t bit = 0; bit < good.signature().size() * 8; ++bit) {
        proto::Ticket bad = good;
        auto& byte = (*bad.mutable_signature())[bit / 8];
        byte = static_cast<char>(byte ^ (1 << (bit % 8)));
        ASSERT_FALSE(open_ticket(keys_.public_key, bad, kNow)) << bit;
    }
}

TEST_F(TicketTest, WithTrailingBytesOrAShortSignatureIsRefused) {
    proto::Ticket longer = make_ticket(keys_.secret_key, claims());
    longer.mutable_claims()->push_back('\0');
    EXPECT_FALSE(open_ticket(keys_.public_key, longer, kNow));
    proto::Ticket shorter = make_ticket(keys_.secret_key, claims());
    shorter.mutable_signature()->resize(8);
    EXPECT_EQ(open_ticket(keys_.public_key, shorter, kNow).error().code, Code::Refused);
    EXPECT_FALSE(open_ticket(keys_.public_key, {}, kNow));
    EXPECT_EQ(open_ticket("short", longer, kNow).error().code, Code::InvalidArgument);
}

TEST_F(TicketTest, OfAnotherCoordinatorIsRefused) {
    EXPECT_EQ(open_ticket(new_ticket_keys().public_key, make_ticket(keys_.secret_key, claims()), kNow).error().code, Code::Refused);
}

TEST_F(TicketTest, EndsWithItsMinute) {
    const proto::Ticket ticket = make_ticket(keys_.secret_key, claims());
    EXPECT_TRUE(open_ticket(keys_.public_key, ticket, kNow + kTicketLifeMs - 1));
    EXPECT_FALSE(open_ticket(keys_.public_key, ticket, kNow + kTicketLifeMs));
    proto::TicketClaims everlasting = claims();
    everlasting.set_expires_unix_ms(kNow + 3'600'000);
    EXPECT_FALSE(open_ticket(keys_.public_key, make_ticket(keys_.secret_key, everlasting), kNow));
}

TEST_F(TicketTest, IsForOneClusterNodeAttemptAndSpec) {
    const auto differs = [&](auto change) {
        TicketUse other = use();
        change(other);
        const auto checked = check_ticket(claims(), other);
        return !checked && checked.error().code == Code::Refused;
    };
    EXPECT_TRUE(differs([](TicketUse& u) { u.cluster = "other"; }));
    EXPECT_TRUE(differs([](TicketUse& u) { u.node = "n1"; }));
    EXPECT_TRUE(differs([](TicketUse& u) { u.job = 8; }));
    EXPECT_TRUE(differs([](TicketUse& u) { u.attempt = 3; }));
    EXPECT_TRUE(differs([](TicketUse& u) { u.spec_bytes = "spec "; }));
    proto::TicketClaims partial = claims();
    partial.mutable_spec_sha256()->resize(4);  // Slurm's 2022-29502: a short key that matched its own length
    EXPECT_FALSE(check_ticket(partial, use()));
}

TEST_F(TicketTest, IsUsedOnceAndNotAfterANewerCoordinator) {
    TicketGuard guard(3);
    const proto::TicketClaims first = claims();
    EXPECT_TRUE(guard.admit(first, kNow));
    EXPECT_EQ(guard.admit(first, kNow + 10).error().code, Code::Refused);
    proto::TicketClaims newer = claims();
    newer.set_epoch(4);
    EXPECT_TRUE(guard.admit(newer, kNow));
    EXPECT_FALSE(guard.admit(claims(), kNow));
    EXPECT_EQ(guard.highest_epoch(), 4U);
}

TEST_F(TicketTest, KeysAreReadBackFromAFileThatIsTheOwnersAlone) {
    char name[] = "/tmp/gangline-ticket-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    const std::string path = std::string(name) + "/ticket.key";
    ASSERT_TRUE(write_ticket_file(path, keys_));
    const auto read = read_ticket_file(path);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->secret_key, keys_.secret_key);
    EXPECT_EQ(read->public_key, keys_.public_key);
    ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
    EXPECT_EQ(read_ticket_file(path).error().code, Code::Refused);
    std::filesystem::remove(path);
    ASSERT_TRUE(write_secret_file(path, "ticket-secret 12zz\n"));
    EXPECT_EQ(read_ticket_file(path).error().code, Code::InvalidArgument);
    std::filesystem::remove_all(name);
}

TEST(Hex, GoesThereAndBackAndRefusesNonsense) {
    EXPECT_EQ(to_hex(std::string("\x00\xff\x10", 3)), "00ff10");
    EXPECT_EQ(*from_hex("00FF10"), std::string("\x00\xff\x10", 3));
    EXPECT_FALSE(from_hex("abc"));
    EXPECT_FALSE(from_hex("zz"));
    EXPECT_FALSE(from_hex("ab cd"));
}

}  // namespace
}  // namespace gangline
