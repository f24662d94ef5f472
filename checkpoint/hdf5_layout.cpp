#include "checkpoint/hdf5_layout.h"

#include <unistd.h>

#include <set>

#include <fmt/format.h>

#include "checkpoint/hdf5_types.h"

namespace gangline::checkpoint {

using namespace hdf5;

namespace {

constexpr std::uint64_t kAlignment = 4096;
constexpr std::uint64_t kAlignFrom = 64 * 1024;
constexpr std::uint32_t kFormatVersion = 2;

Result<std::uint64_t> lay_out_tensor(hid_t file, hid_t links, hid_t creation, const Tensor& tensor) {
    const Type type = file_type(tensor.dtype);
    const Space space = space_of(tensor.extent);
    if (!type || !space) return hdf5_error(fmt::format("tensor '{}': no HDF5 type or space for it", tensor.name));
    Dataset dataset(H5Dcreate2(file, tensor.name.c_str(), type.get(), space.get(), links, creation, H5P_DEFAULT));
    if (!dataset) {
        Error error = hdf5_error(fmt::format("tensor '{}' cannot be created", tensor.name));
        return error;
    }
    for (const auto& written : {write_shape(dataset.get(), "global_shape", tensor.global_shape),
                                write_shape(dataset.get(), "global_offset", tensor.offset),
                                write_text(dataset.get(), "dtype", name_of(tensor.dtype)),
                                write_text(dataset.get(), "kind", name_of(tensor.policy))}) {
        if (!written) return written.error();
    }
    std::uint64_t place = 0;
    if (*elements_of(tensor.extent) > 0) {
        const haddr_t address = H5Dget_offset(dataset.get());
        if (address == HADDR_UNDEF) return hdf5_error(fmt::format("tensor '{}' has no place in the file", tensor.name));
        place = address;
    }
    if (H5Dclose(dataset.release()) < 0) return hdf5_error(fmt::format("tensor '{}' cannot be closed", tensor.name));
    return place;
}

// A number of its own bytes: an attribute would lie within checksummed headers, which stay as they are from save to save.
Result<std::uint64_t> lay_out_step(hid_t file, hid_t creation) {
    const Space space(H5Screate(H5S_SCALAR));
    Dataset dataset(H5Dcreate2(file, kStepName, H5T_STD_U64LE, space.get(), H5P_DEFAULT, creation, H5P_DEFAULT));
    const haddr_t place = dataset ? H5Dget_offset(dataset.get()) : HADDR_UNDEF;
    if (place == HADDR_UNDEF || H5Dclose(dataset.release()) < 0) return hdf5_error("cannot lay out the step");
    return place;
}

// All headers lie in one run at the front.
std::uint64_t header_bytes(std::size_t tensors) { return (600 * std::uint64_t{tensors} + 2 * kAlignFrom - 1) / kAlignFrom * kAlignFrom; }

Result<Properties> access_properties(std::size_t tensors) {
    Properties access(H5Pcreate(H5P_FILE_ACCESS));
    if (!access || H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110) < 0 ||
        H5Pset_alignment(access.get(), kAlignFrom, kAlignment) < 0 || H5Pset_meta_block_size(access.get(), header_bytes(tensors)) < 0 ||
        H5Pset_file_locking(access.get(), false, true) < 0) {  // the folder is private until it is published
        return hdf5_error("cannot set up HDF5");
    }
    return access;
}

Result<Properties> dataset_properties() {
    Properties creation(H5Pcreate(H5P_DATASET_CREATE));
    if (!creation || H5Pset_layout(creation.get(), H5D_CONTIGUOUS) < 0 || H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY) < 0 ||
        H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER) < 0 || H5Pset_obj_track_times(creation.get(), false) < 0) {
        return hdf5_error("cannot set up HDF5 datasets");
    }
    return creation;
}

}  // namespace

Result<ShardLayout> lay_out_shard(const std::string& path, const ShardPlan& plan) {
    const QuietErrors quiet;
    std::set<std::string_view> names;
    for (const Tensor& tensor : plan.tensors) {
        if (tensor.name == kStepName || tensor.name.starts_with(std::string(kStepName) + "/")) {
            return Error{Code::InvalidArgument, fmt::format("a tensor cannot be named '{}': that is the step's own", tensor.name)};
        }
        if (!names.insert(tensor.name).second) {
            return Error{Code::InvalidArgument, fmt::format("two tensors are named '{}'", tensor.name)};
        }
    }
    for (const std::string_view name : names) {  // a dataset cannot be a group too
        for (std::size_t slash = name.find('/'); slash != std::string_view::npos; slash = name.find('/', slash + 1)) {
            if (names.contains(name.substr(0, slash))) {
                return Error{Code::InvalidArgument,
                             fmt::format("tensor '{}' lies below tensor '{}': rename one", name, name.substr(0, slash))};
            }
        }
    }
    auto access = access_properties(plan.tensors.size());
    if (!access) return access.error();
    auto creation = dataset_properties();
    if (!creation) return creation.error();
    const Properties links(H5Pcreate(H5P_LINK_CREATE));
    if (!links || H5Pset_create_intermediate_group(links.get(), 1) < 0) return hdf5_error("cannot set up HDF5 groups");
    File file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access->get()));
    ::unlink(path.c_str());
    if (!file) return hdf5_error("cannot create the HDF5 file " + path);
    for (const auto& [name, value] : {std::pair{"format_version", std::uint64_t{kFormatVersion}}, {"job", plan.job},
                                      {"attempt", std::uint64_t{plan.attempt}},
                                      {"rank", std::uint64_t{plan.rank}}, {"world", std::uint64_t{plan.world}}}) {
        if (auto written = write_number(file.get(), name, value); !written) return written.error();
    }
    ShardLayout layout;
    auto step = lay_out_step(file.get(), creation->get());
    if (!step) return step.error();
    layout.step_place = *step;
    for (const Tensor& tensor : plan.tensors) {
        auto place = lay_out_tensor(file.get(), links.get(), creation->get(), tensor);
        if (!place) return place.error();
        layout.places.push_back(*place);
    }
    if (H5Fclose(file.release()) < 0) return hdf5_error("cannot close the HDF5 file " + path);
    return layout;
}

}  // namespace gangline::checkpoint
