// Bytes from a local socket and from an output log: no frame or record reaches past what is there.

#include <sys/socket.h>

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/framing.h"
#include "base/output_log.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    std::string_view rest = bytes;
    gangline::OutputRecord record;
    std::size_t total = 0;
    while (gangline::next_output_record(rest, record)) total += sizeof(gangline::OutputHeader) + record.data.size();
    CHECK(total + rest.size() == size, "records and the rest are all there is");
    CHECK(gangline::whole_output_records(bytes) == total, "both readers agree");

    int pair[2];
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0, "a socket pair");
    const gangline::Fd here(pair[0]);
    gangline::Fd there(pair[1]);
    const ssize_t sent = ::send(there.get(), data, size < 60000 ? size : 60000, MSG_NOSIGNAL);
    gangline::FrameReader reader;
    if (sent > 0 && reader.fill(here.get()).ok()) {
        std::size_t yielded = 0;
        while (auto frame = reader.next()) yielded += 4 + frame->size();
        CHECK(yielded <= static_cast<std::size_t>(sent), "frames are made of what came");
    }
    return 0;
}
