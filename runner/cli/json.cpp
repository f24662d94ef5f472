#include "runner/cli/json.h"

#include <fmt/format.h>

namespace gangline::runner {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::ordered_json;

std::string hexadecimal(const std::string& bytes) {
    std::string text;
    for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
    return text;
}

ordered_json text_or_hex(const FieldDescriptor& field, const std::string& value) {
    return field.type() == FieldDescriptor::TYPE_BYTES ? hexadecimal(value) : value;
}

ordered_json single(const Message& message, const Reflection& reflection, const FieldDescriptor& field) {
    switch (field.cpp_type()) {
        case FieldDescriptor::CPPTYPE_INT32: return reflection.GetInt32(message, &field);
        case FieldDescriptor::CPPTYPE_INT64: return reflection.GetInt64(message, &field);
        case FieldDescriptor::CPPTYPE_UINT32: return reflection.GetUInt32(message, &field);
        case FieldDescriptor::CPPTYPE_UINT64: return reflection.GetUInt64(message, &field);
        case FieldDescriptor::CPPTYPE_DOUBLE: return reflection.GetDouble(message, &field);
        case FieldDescriptor::CPPTYPE_FLOAT: return reflection.GetFloat(message, &field);
        case FieldDescriptor::CPPTYPE_BOOL: return reflection.GetBool(message, &field);
        case FieldDescriptor::CPPTYPE_ENUM: return reflection.GetEnum(message, &field)->name();
        case FieldDescriptor::CPPTYPE_STRING: return text_or_hex(field, reflection.GetString(message, &field));
        case FieldDescriptor::CPPTYPE_MESSAGE: return to_json(reflection.GetMessage(message, &field));
    }
    return nullptr;
}

ordered_json element(const Message& message, const Reflection& reflection, const FieldDescriptor& field, int index) {
    switch (field.cpp_type()) {
        case FieldDescriptor::CPPTYPE_INT32: return reflection.GetRepeatedInt32(message, &field, index);
        case FieldDescriptor::CPPTYPE_INT64: return reflection.GetRepeatedInt64(message, &field, index);
        case FieldDescriptor::CPPTYPE_UINT32: return reflection.GetRepeatedUInt32(message, &field, index);
        case FieldDescriptor::CPPTYPE_UINT64: return reflection.GetRepeatedUInt64(message, &field, index);
        case FieldDescriptor::CPPTYPE_DOUBLE: return reflection.GetRepeatedDouble(message, &field, index);
        case FieldDescriptor::CPPTYPE_FLOAT: return reflection.GetRepeatedFloat(message, &field, index);
        case FieldDescriptor::CPPTYPE_BOOL: return reflection.GetRepeatedBool(message, &field, index);
        case FieldDescriptor::CPPTYPE_ENUM: return reflection.GetRepeatedEnum(message, &field, index)->name();
        case FieldDescriptor::CPPTYPE_STRING:
            return text_or_hex(field, reflection.GetRepeatedString(message, &field, index));
        case FieldDescriptor::CPPTYPE_MESSAGE: return to_json(reflection.GetRepeatedMessage(message, &field, index));
    }
    return nullptr;
}

std::string dump(const ordered_json& value) {
    return value.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

ordered_json to_json(const Message& message) {
    const google::protobuf::Descriptor& descriptor = *message.GetDescriptor();
    const Reflection& reflection = *message.GetReflection();
    ordered_json object = ordered_json::object();
    for (int i = 0; i < descriptor.field_count(); ++i) {
        const FieldDescriptor& field = *descriptor.field(i);
        if (!field.is_repeated()) {
            const bool is_absent = field.has_presence() && !reflection.HasField(message, &field);
            object[field.name()] = is_absent ? ordered_json(nullptr) : single(message, reflection, field);
            continue;
        }
        ordered_json array = ordered_json::array();
        for (int at = 0; at < reflection.FieldSize(message, &field); ++at) {
            array.push_back(element(message, reflection, field, at));
        }
        object[field.name()] = std::move(array);
    }
    return object;
}

std::string json_document(const std::string& name, ordered_json value) {
    ordered_json document;
    document["schema"] = kJsonSchema;
    document[name] = std::move(value);
    return dump(document);
}

std::string json_error(int exit_code, const std::string& message) {
    ordered_json document;
    document["schema"] = kJsonSchema;
    document["error"] = {{"exit_code", exit_code}, {"message", message}};
    return dump(document);
}

}  // namespace gangline::runner
