#pragma once
// Messages as the JSON that people and scripts read: the protos' field names in their order, defaults printed, 64-bit
// integers as numbers, enums by name, bytes as hexadecimal digits, an absent message as null.
//
// Thread rule: pure.

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>

namespace gangline::runner {

inline constexpr const char* kJsonSchema = "gangline/1";

nlohmann::ordered_json to_json(const google::protobuf::Message& message);
// {"schema": "gangline/1", name: value}, indented by two, with a line's end.
std::string json_document(const std::string& name, nlohmann::ordered_json value);
// {"schema": ..., "error": {"code": ..., "message": ...}}
std::string json_error(int exit_code, const std::string& message);

}  // namespace gangline::runner
