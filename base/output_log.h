#pragma once
// A node's output log of one attempt: what its ranks wrote, as records in the order in which the shepherd read it.
// File <spool>/output.log, written by the shepherd alone (append), read by the agent for `gangline logs`.
//
// Record: OutputHeader, then `size` bytes. A torn record at the end (crash, full disk) is not yielded and is cut off by
// the writer before it appends again. Units: unix_ns.

#include <cstdint>
#include <string>
#include <string_view>

namespace gangline {

inline constexpr std::uint32_t kOutputMagic = 0x4c4f474c;  // "LGOL"
inline constexpr std::uint32_t kMostOutputRecord = 64 * 1024;

enum class OutputStream : std::uint16_t { Out = 1, Err = 2, Note = 3 };  // Note: the runner's own words

struct OutputHeader {
    std::uint32_t magic = kOutputMagic;
    std::uint16_t stream = 1;
    std::uint16_t step_id = 0;
    std::uint32_t rank = 0;
    std::uint32_t size = 0;
    std::uint64_t unix_ns = 0;
};
static_assert(sizeof(OutputHeader) == 24);

struct OutputRecord {
    OutputHeader header;
    std::string_view data;
};

// Appends one record to `out`.
void append_output_record(std::string& out, const OutputHeader& header, std::string_view data);
// The record at the front of `bytes`, which is advanced behind it. False: no whole, sane record is there.
bool next_output_record(std::string_view& bytes, OutputRecord& record);
// How many bytes at the front of `bytes` are whole records.
std::size_t whole_output_records(std::string_view bytes);

}  // namespace gangline
