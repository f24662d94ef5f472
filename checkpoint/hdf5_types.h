#pragma once
// The HDF5 library's C interface as handles, types and attributes of ours. Whoever includes this links the library.
// Thread rule: as shard.h.

#include <hdf5.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/handle.h"
#include "base/result.h"
#include "checkpoint/tensor.h"

namespace gangline::checkpoint::hdf5 {

template <herr_t (*Close)(hid_t)>
struct Hdf5Traits {
    using Value = hid_t;
    static Value none() { return H5I_INVALID_HID; }
    static void close(Value value) { Close(value); }
};
using File = Handle<Hdf5Traits<H5Fclose>>;
using Dataset = Handle<Hdf5Traits<H5Dclose>>;
using Space = Handle<Hdf5Traits<H5Sclose>>;
using Type = Handle<Hdf5Traits<H5Tclose>>;
using Attribute = Handle<Hdf5Traits<H5Aclose>>;
using Properties = Handle<Hdf5Traits<H5Pclose>>;

// The library prints its error stack by default; while one of these lives it is read instead.
class QuietErrors {
  public:
    QuietErrors();
    ~QuietErrors();
    QuietErrors(const QuietErrors&) = delete;
    QuietErrors& operator=(const QuietErrors&) = delete;

  private:
    H5E_auto2_t function_ = nullptr;
    void* data_ = nullptr;
};

// `what`, with the library's own words behind it. NoSpace where these say so, else Internal.
Error hdf5_error(const std::string& what);
// How a shard stores it; float8 as bytes. No handle when the library refuses.
Type file_type(DType dtype);
Space space_of(const Shape& shape);
Result<void> write_attribute(hid_t object, const char* name, hid_t type, const Space& space, const void* value);
Result<void> write_number(hid_t object, const char* name, std::uint64_t value);
Result<void> write_text(hid_t object, const char* name, std::string_view value);
Result<void> write_shape(hid_t object, const char* name, const Shape& shape);

}  // namespace gangline::checkpoint::hdf5
