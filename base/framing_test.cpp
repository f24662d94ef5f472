#include "base/framing.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/output_log.h"
#include "base/process.h"

namespace gangline {
namespace {

std::pair<Fd, Fd> connected_pair() {
    const std::string name = "gangline-test-" + random_hex(8);
    auto listener = listen_abstract(name, SOCK_STREAM);
    EXPECT_TRUE(listener.ok());
    auto client = connect_abstract(name, SOCK_STREAM);
    EXPECT_TRUE(client.ok());
    Fd server(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    return {std::move(server), std::move(client).value()};
}

TEST(Framing, KeepsMessageBoundariesOverAStream) {
    auto [server, client] = connected_pair();
    FrameWriter writer;
    writer.push("one");
    writer.push("");
    writer.push(std::string(100'000, 'x'));
    FrameReader reader;
    std::vector<std::string> got;
    while (got.size() < 3) {
        ASSERT_TRUE(writer.flush(client.get()).ok());
        ASSERT_TRUE(reader.fill(server.get()).ok());
        while (auto frame = reader.next()) got.push_back(*frame);
    }
    EXPECT_EQ(got[0], "one");
    EXPECT_EQ(got[1], "");
    EXPECT_EQ(got[2].size(), 100'000u);
}

TEST(Framing, RefusesALengthOverTheLimitAndSeesTheEnd) {
    auto [server, client] = connected_pair();
    const unsigned char huge[4] = {0xff, 0xff, 0xff, 0xff};
    ASSERT_EQ(::write(client.get(), huge, 4), 4);
    FrameReader reader;
    const auto filled = reader.fill(server.get());
    ASSERT_FALSE(filled.ok());
    EXPECT_EQ(filled.error().code, Code::InvalidArgument);
    client.reset();
    FrameReader fresh;
    EXPECT_EQ(fresh.fill(server.get()).error().code, Code::Unavailable);
}

TEST(Framing, KnowsWhoThePeerIs) {
    auto [server, client] = connected_pair();
    const auto peer = peer_credentials(server.get());
    ASSERT_TRUE(peer.ok());
    EXPECT_EQ(peer->pid, ::getpid());
    EXPECT_EQ(peer->uid, ::getuid());
}

TEST(OutputLog, YieldsWholeRecordsAndStopsAtATornOne) {
    std::string bytes;
    append_output_record(bytes, {.rank = 3}, "hello\n");
    const std::size_t first = bytes.size();
    append_output_record(bytes, {.rank = 4}, "world\n");
    bytes.resize(bytes.size() - 1);
    EXPECT_EQ(whole_output_records(bytes), first);
    std::string_view rest = bytes;
    OutputRecord record;
    ASSERT_TRUE(next_output_record(rest, record));
    EXPECT_EQ(record.header.rank, 3u);
    EXPECT_EQ(record.data, "hello\n");
    EXPECT_FALSE(next_output_record(rest, record));
}

}  // namespace
}  // namespace gangline
