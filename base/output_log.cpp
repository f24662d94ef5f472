#include "base/output_log.h"

#include <cstring>

namespace gangline {

void append_output_record(std::string& out, const OutputHeader& header, std::string_view data) {
    OutputHeader copy = header;
    copy.size = static_cast<std::uint32_t>(data.size());
    out.append(reinterpret_cast<const char*>(&copy), sizeof copy);
    out.append(data);
}

bool next_output_record(std::string_view& bytes, OutputRecord& record) {
    if (bytes.size() < sizeof(OutputHeader)) return false;
    std::memcpy(&record.header, bytes.data(), sizeof(OutputHeader));
    if (record.header.magic != kOutputMagic || record.header.size > kMostOutputRecord) return false;
    if (bytes.size() < sizeof(OutputHeader) + record.header.size) return false;
    record.data = bytes.substr(sizeof(OutputHeader), record.header.size);
    bytes.remove_prefix(sizeof(OutputHeader) + record.header.size);
    return true;
}

std::size_t whole_output_records(std::string_view bytes) {
    const std::size_t all = bytes.size();
    OutputRecord record;
    while (next_output_record(bytes, record)) {
    }
    return all - bytes.size();
}

}  // namespace gangline
