#include "checkpoint/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gangline::checkpoint {

std::size_t bytes_of(DType dtype) {
    switch (dtype) {
        case DType::F64:
        case DType::I64:
        case DType::U64: return 8;
        case DType::F32:
        case DType::I32:
        case DType::U32: return 4;
        case DType::F16:
        case DType::BF16:
        case DType::I16:
        case DType::U16: return 2;
        case DType::F8E4M3:
        case DType::F8E5M2:
        case DType::I8:
        case DType::U8:
        case DType::Bool: return 1;
    }
    return 0;
}

std::string_view name_of(DType dtype) {
    switch (dtype) {
        case DType::F64: return "float64";
        case DType::F32: return "float32";
        case DType::F16: return "float16";
        case DType::BF16: return "bfloat16";
        case DType::F8E4M3: return "float8_e4m3fn";
        case DType::F8E5M2: return "float8_e5m2";
        case DType::I64: return "int64";
        case DType::I32: return "int32";
        case DType::I16: return "int16";
        case DType::I8: return "int8";
        case DType::U64: return "uint64";
        case DType::U32: return "uint32";
        case DType::U16: return "uint16";
        case DType::U8: return "uint8";
        case DType::Bool: return "bool";
    }
    return "?";
}

std::string_view name_of(Policy policy) {
    switch (policy) {
        case Policy::Replicated: return "replicated";
        case Policy::Sliced: return "sliced";
        case Policy::PerRank: return "per_rank";
        case Policy::Splittable: return "splittable";
        case Policy::Drop: return "drop";
    }
    return "?";
}

std::optional<DType> dtype_of(std::uint8_t code) {
    if (code < static_cast<std::uint8_t>(DType::F64) || code > static_cast<std::uint8_t>(DType::Bool)) return std::nullopt;
    return static_cast<DType>(code);
}

std::optional<Policy> policy_of(std::uint8_t code) {
    if (code < static_cast<std::uint8_t>(Policy::Replicated) || code > static_cast<std::uint8_t>(Policy::Drop)) {
        return std::nullopt;
    }
    return static_cast<Policy>(code);
}

std::optional<std::uint64_t> elements_of(const Shape& shape) {
    std::uint64_t count = 1;
    for (const std::uint64_t extent : shape) {
        if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
    }
    if (count > (1ull << 62)) return std::nullopt;
    return count;
}

std::string to_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

bool is_inside(const Shape& offset, const Shape& extent, const Shape& shape) {
    if (offset.size() != shape.size() || extent.size() != shape.size()) return false;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (offset[i] > shape[i] || extent[i] > shape[i] - offset[i]) return false;
    }
    return true;
}

Result<void> check_name(std::string_view name) {
    auto refuse = [&](std::string_view why) {
        return Error{Code::InvalidArgument, fmt::format("tensor name '{}' {}", name, why)};
    };
    if (name.empty() || name.size() > kMostNameBytes) return refuse(fmt::format("must have 1 to {} bytes", kMostNameBytes));
    if (name.find('\0') != std::string_view::npos) return refuse("contains a NUL byte");
    for (std::size_t begin = 0; begin <= name.size();) {
        const std::size_t end = std::min(name.find('/', begin), name.size());
        const std::string_view segment = name.substr(begin, end - begin);
        if (segment.empty() || segment == "." || segment == "..") {
            return refuse("must be segments between single '/', none of them empty, '.' or '..'");
        }
        begin = end + 1;
    }
    return {};
}

Result<void> check_tensor(const Tensor& tensor) {
    if (auto named = check_name(tensor.name); !named) return named;
    auto refuse = [&](const std::string& why) {
        return Error{Code::InvalidArgument, fmt::format("tensor '{}': {}", tensor.name, why)};
    };
    if (tensor.global_shape.size() > kMostDimensions) {
        return refuse(fmt::format("{} dimensions, at most {} are possible", tensor.global_shape.size(), kMostDimensions));
    }
    if (!elements_of(tensor.global_shape)) return refuse("shape " + to_text(tensor.global_shape) + " is too large");
    if (!is_inside(tensor.offset, tensor.extent, tensor.global_shape)) {
        return refuse(fmt::format("box of {} elements at {} does not lie inside the shape {}", to_text(tensor.extent),
                                  to_text(tensor.offset), to_text(tensor.global_shape)));
    }
    if (tensor.policy != Policy::Sliced && tensor.extent != tensor.global_shape) {
        return refuse(fmt::format("only a sliced tensor may hold a part of its shape, this one is {}", name_of(tensor.policy)));
    }
    if (tensor.data == nullptr && *elements_of(tensor.extent) > 0) return refuse("its pointer is null");
    return {};
}

}  // namespace gangline::checkpoint
