#include "checkpoint/hdf5_types.h"

#include <string>
#include <vector>

#include <fmt/format.h>

namespace gangline::checkpoint::hdf5 {
namespace {

extern "C" {
static herr_t collect_error(unsigned, const H5E_error2_t* error, void* text) {
    if (error->desc != nullptr) *static_cast<std::string*>(text) += fmt::format("; {}", error->desc);
    return 0;
}
}

// A float type that HDF5 1.10 has no name for. The fields go first: the size may shrink only around them.
Type float_type(unsigned exponent_bits, unsigned mantissa_bits, unsigned bias) {
    Type type(H5Tcopy(H5T_IEEE_F32LE));
    const std::size_t sign = exponent_bits + mantissa_bits;
    if (!type || H5Tset_fields(type.get(), sign, mantissa_bits, exponent_bits, 0, mantissa_bits) < 0 ||
        H5Tset_size(type.get(), (sign + 1) / 8) < 0 || H5Tset_ebias(type.get(), bias) < 0) {
        return Type();
    }
    return type;
}

Type bool_type() {  // as h5py writes it
    Type type(H5Tenum_create(H5T_STD_I8LE));
    const signed char no = 0;
    const signed char yes = 1;
    if (!type || H5Tenum_insert(type.get(), "FALSE", &no) < 0 || H5Tenum_insert(type.get(), "TRUE", &yes) < 0) return Type();
    return type;
}

}  // namespace

QuietErrors::QuietErrors() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

QuietErrors::~QuietErrors() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }

Error hdf5_error(const std::string& what) {
    std::string stack;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect_error, &stack);
    H5Eclear2(H5E_DEFAULT);
    const bool is_full = stack.find("errno = 28") != std::string::npos || stack.find("errno = 122") != std::string::npos ||
                         stack.find("errno = 27") != std::string::npos;
    return {is_full ? Code::NoSpace : Code::Internal, what + stack};
}

Type file_type(DType dtype) {
    switch (dtype) {
        case DType::F64: return Type(H5Tcopy(H5T_IEEE_F64LE));
        case DType::F32: return Type(H5Tcopy(H5T_IEEE_F32LE));
        case DType::F16: return float_type(5, 10, 15);
        case DType::BF16: return float_type(8, 7, 127);
        // HDF5 would take e4m3's top exponent for infinity: stored as bytes, named by the attribute.
        case DType::F8E4M3:
        case DType::F8E5M2: return Type(H5Tcopy(H5T_STD_U8LE));
        case DType::I64: return Type(H5Tcopy(H5T_STD_I64LE));
        case DType::I32: return Type(H5Tcopy(H5T_STD_I32LE));
        case DType::I16: return Type(H5Tcopy(H5T_STD_I16LE));
        case DType::I8: return Type(H5Tcopy(H5T_STD_I8LE));
        case DType::U64: return Type(H5Tcopy(H5T_STD_U64LE));
        case DType::U32: return Type(H5Tcopy(H5T_STD_U32LE));
        case DType::U16: return Type(H5Tcopy(H5T_STD_U16LE));
        case DType::U8: return Type(H5Tcopy(H5T_STD_U8LE));
        case DType::Bool: return bool_type();
    }
    return Type();
}

Space space_of(const Shape& shape) {
    if (shape.empty()) return Space(H5Screate(H5S_SCALAR));
    const std::vector<hsize_t> dims(shape.begin(), shape.end());
    return Space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
}

Result<void> write_attribute(hid_t object, const char* name, hid_t type, const Space& space, const void* value) {
    Attribute attribute(H5Acreate2(object, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT));
    if (!attribute || H5Awrite(attribute.get(), type, value) < 0 || H5Aclose(attribute.release()) < 0) {
        return hdf5_error(fmt::format("cannot write the attribute {}", name));
    }
    return {};
}

Result<void> write_number(hid_t object, const char* name, std::uint64_t value) {
    const Space space(H5Screate(H5S_SCALAR));
    return write_attribute(object, name, H5T_NATIVE_UINT64, space, &value);
}

Result<void> write_text(hid_t object, const char* name, std::string_view value) {
    const Space space(H5Screate(H5S_SCALAR));
    const Type type(H5Tcopy(H5T_C_S1));
    if (!type || H5Tset_size(type.get(), value.size()) < 0) return hdf5_error("cannot make a text type");
    return write_attribute(object, name, type.get(), space, value.data());
}

Result<void> write_shape(hid_t object, const char* name, const Shape& shape) {
    if (shape.empty()) {  // of a scalar: an attribute without elements
        const Space none(H5Screate(H5S_NULL));
        const std::uint64_t unused = 0;
        return write_attribute(object, name, H5T_NATIVE_UINT64, none, &unused);
    }
    return write_attribute(object, name, H5T_NATIVE_UINT64, space_of({shape.size()}), shape.data());
}

}  // namespace gangline::checkpoint::hdf5
