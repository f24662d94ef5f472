#include "checkpoint/tool/number.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace gangline::checkpoint::tool {
namespace {

template <class Number>
Number load(const char* bytes) {
    Number value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

struct FloatFormat {
    int exponent_bits;
    int mantissa_bits;
    bool has_infinity;
};

long double decode(unsigned bits, const FloatFormat& format) {
    const int bias = (1 << (format.exponent_bits - 1)) - 1;
    const auto mantissa = static_cast<int>(bits & ((1u << format.mantissa_bits) - 1));
    const auto exponent = static_cast<int>((bits >> format.mantissa_bits) & ((1u << format.exponent_bits) - 1));
    const long double sign = (bits >> (format.mantissa_bits + format.exponent_bits)) != 0 ? -1 : 1;
    const bool is_top = exponent == (1 << format.exponent_bits) - 1;
    if (is_top && format.has_infinity && mantissa == 0) return sign * std::numeric_limits<long double>::infinity();
    if (is_top && (format.has_infinity || mantissa == (1 << format.mantissa_bits) - 1)) return std::numeric_limits<long double>::quiet_NaN();
    if (exponent == 0) return sign * std::ldexp(static_cast<long double>(mantissa), 1 - bias - format.mantissa_bits);
    return sign * std::ldexp(static_cast<long double>(mantissa + (1 << format.mantissa_bits)), exponent - bias - format.mantissa_bits);
}

}  // namespace

long double number_at(DType dtype, const char* bytes) {
    switch (dtype) {
        case DType::F64: return load<double>(bytes);
        case DType::F32: return load<float>(bytes);
        case DType::F16: return decode(load<std::uint16_t>(bytes), {5, 10, true});
        case DType::BF16: return decode(load<std::uint16_t>(bytes), {8, 7, true});
        case DType::F8E4M3: return decode(load<std::uint8_t>(bytes), {4, 3, false});
        case DType::F8E5M2: return decode(load<std::uint8_t>(bytes), {5, 2, true});
        case DType::I64: return static_cast<long double>(load<std::int64_t>(bytes));
        case DType::I32: return load<std::int32_t>(bytes);
        case DType::I16: return load<std::int16_t>(bytes);
        case DType::I8: return load<std::int8_t>(bytes);
        case DType::U64: return static_cast<long double>(load<std::uint64_t>(bytes));
        case DType::U32: return load<std::uint32_t>(bytes);
        case DType::U16: return load<std::uint16_t>(bytes);
        case DType::U8:
        case DType::Bool: return load<std::uint8_t>(bytes);
    }
    return 0;
}

}  // namespace gangline::checkpoint::tool
