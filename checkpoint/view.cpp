#include "checkpoint/view.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/hdf5_types.h"

namespace gangline::checkpoint {

using namespace hdf5;

namespace {

constexpr std::size_t kMemoryStep = 1u << 20;
constexpr std::size_t kMostScalarBytes = 8;

// HDF5 reads %b in a source's names as a block number, %% as a percent sign.
std::string escaped(const std::string& name) {
    std::string text;
    for (const char c : name) text += c == '%' ? "%%" : std::string(1, c);
    return text;
}

// NaN in the file's own format, so that nothing is converted; nothing for what has none.
std::optional<std::uint64_t> not_a_number(DType dtype) {
    switch (dtype) {
        case DType::F64: return 0x7FF8'0000'0000'0000u;
        case DType::F32: return 0x7FC0'0000u;
        case DType::F16: return 0x7E00u;
        case DType::BF16: return 0x7FC0u;
        case DType::F8E4M3:
        case DType::F8E5M2: return 0x7Fu;
        case DType::I64:
        case DType::I32:
        case DType::I16:
        case DType::I8:
        case DType::U64:
        case DType::U32:
        case DType::U16:
        case DType::U8:
        case DType::Bool: return std::nullopt;
    }
    return std::nullopt;
}

// What the view itself holds, read at once: programs have a scalar for each parameter.
class Scalars {
  public:
    Result<void> read(Checkpoint& checkpoint) {
        const Manifest& manifest = checkpoint.manifest();
        std::vector<Tensor> shared;
        std::map<std::uint32_t, std::vector<Tensor>> own;  // by rank
        for (const TensorRecord& tensor : manifest.tensors) {
            if (!is_per_rank(tensor.policy)) {
                if (tensor.global_shape.empty()) shared.push_back(wanted(tensor, 0));
                continue;
            }
            for (std::uint32_t rank = 0; rank < tensor.boxes.size(); ++rank) {
                if (shape_of(tensor, rank).empty()) own[rank].push_back(wanted(tensor, rank));
            }
        }
        if (!shared.empty()) {
            if (auto filled = checkpoint.fill(shared, 0); !filled) return filled;
        }
        for (const auto& [rank, tensors] : own) {
            if (auto filled = checkpoint.fill(tensors, rank); !filled) return filled;
        }
        return {};
    }
    const char* value(const TensorRecord& tensor, std::uint32_t rank) const { return values_.at({tensor.name, rank}).data(); }

  private:
    Tensor wanted(const TensorRecord& tensor, std::uint32_t rank) { return {tensor.name, tensor.dtype, tensor.policy, {}, {}, {}, values_[{tensor.name, rank}].data()}; }

    std::map<std::pair<std::string, std::uint32_t>, std::array<char, kMostScalarBytes>> values_;
};

class Builder {
  public:
    // `prefix`: from the view's folder to the shards.
    Builder(Checkpoint& checkpoint, std::string prefix) : checkpoint_(checkpoint), prefix_(std::move(prefix)) {}

    // The file's bytes. The library makes them in memory: it takes paths only, and a file that has none yet is safer.
    // Superblock 0: in an image of a later one, 1.10 clears a flag without mending the checksum.
    Result<View> build() {
        if (auto read = scalars_.read(checkpoint_); !read) return read.error();
        const Properties access(H5Pcreate(H5P_FILE_ACCESS));
        if (!access || H5Pset_libver_bounds(access.get(), H5F_LIBVER_EARLIEST, H5F_LIBVER_V110) < 0 ||
            H5Pset_fapl_core(access.get(), kMemoryStep, false) < 0) {
            return hdf5_error("cannot set up HDF5");
        }
        links_ = Properties(H5Pcreate(H5P_LINK_CREATE));
        if (!links_ || H5Pset_create_intermediate_group(links_.get(), 1) < 0) return hdf5_error("cannot set up HDF5 groups");
        file_ = File(H5Fcreate("view.h5", H5F_ACC_TRUNC, H5P_DEFAULT, access.get()));
        if (!file_) return hdf5_error("cannot create the HDF5 file");
        const Manifest& manifest = checkpoint_.manifest();
        for (const auto& [name, value] : {std::pair{"job", manifest.job}, {"step", manifest.step},
                                          {"attempt", std::uint64_t{manifest.attempt}}, {"world", std::uint64_t{manifest.world}}}) {
            if (auto written = write_number(file_.get(), name, value); !written) return written.error();
        }
        for (const TensorRecord& tensor : manifest.tensors) {
            if (auto added = add(tensor); !added) return added.error();
        }
        if (H5Fflush(file_.get(), H5F_SCOPE_GLOBAL) < 0) return hdf5_error("cannot flush the HDF5 file");
        const ssize_t size = H5Fget_file_image(file_.get(), nullptr, 0);
        std::string image(static_cast<std::size_t>(std::max<ssize_t>(size, 0)), '\0');
        if (size <= 0 || H5Fget_file_image(file_.get(), image.data(), image.size()) != size) return hdf5_error("cannot take the HDF5 file from memory");
        return View{std::move(image), tensors_};
    }

  private:
    Result<void> add(const TensorRecord& tensor) {
        if (!is_per_rank(tensor.policy)) {
            const std::size_t boxes = tensor.policy == Policy::Replicated ? 1 : tensor.boxes.size();
            return add_one(tensor, tensor.name, 0, std::span(tensor.boxes).first(boxes));
        }
        for (std::uint32_t rank = 0; rank < tensor.boxes.size(); ++rank) {
            auto added = add_one(tensor, fmt::format("rank_state/{}/{}", rank, tensor.name), rank, std::span(tensor.boxes).subspan(rank, 1));
            if (!added) return added;
        }
        return {};
    }

    Result<void> map(hid_t creation, const TensorRecord& tensor, const Space& whole, std::span<const Box> boxes) const {
        for (const Box& box : boxes) {
            if (elements_of(box.extent).value_or(0) == 0) continue;
            const std::vector<hsize_t> offset(box.offset.begin(), box.offset.end());
            const std::vector<hsize_t> extent(box.extent.begin(), box.extent.end());
            const Space source = space_of(box.extent);
            const std::string file = escaped(prefix_ + checkpoint_.manifest().shard_of(box.shard_rank)->name);
            if (!source || H5Sselect_hyperslab(whole.get(), H5S_SELECT_SET, offset.data(), nullptr, extent.data(), nullptr) < 0 ||
                H5Pset_virtual(creation, whole.get(), file.c_str(), escaped(tensor.name).c_str(), source.get()) < 0) {
                return hdf5_error(fmt::format("tensor '{}' cannot be mapped", tensor.name));
            }
        }
        return {};
    }

    Result<void> add_one(const TensorRecord& tensor, const std::string& name, std::uint32_t rank, std::span<const Box> boxes) {
        const Shape& shape = shape_of(tensor, rank);
        const Type type = file_type(tensor.dtype);
        const Space whole = space_of(shape);
        const Properties creation(H5Pcreate(H5P_DATASET_CREATE));
        if (!type || !whole || !creation) return hdf5_error(fmt::format("tensor '{}': no HDF5 type or space for it", name));
        const bool is_virtual = !shape.empty() && elements_of(shape).value_or(0) > 0;
        if (is_virtual) {
            if (auto mapped = map(creation.get(), tensor, whole, boxes); !mapped) return mapped;
            H5Sselect_all(whole.get());
        }
        const auto fill = not_a_number(tensor.dtype);
        if (fill && H5Pset_fill_value(creation.get(), type.get(), &*fill) < 0) return hdf5_error(fmt::format("tensor '{}': no fill value", name));
        Dataset dataset(H5Dcreate2(file_.get(), name.c_str(), type.get(), whole.get(), links_.get(), creation.get(), H5P_DEFAULT));
        if (!dataset) return hdf5_error(fmt::format("'{}' cannot be created: the names of tensors clash in one file", name));
        if (shape.empty()) {
            const char* const value = scalars_.value(tensor, rank);
            if (H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, value) < 0) return hdf5_error(fmt::format("tensor '{}' cannot be written", name));
        }
        for (const auto& written : {write_text(dataset.get(), "dtype", checkpoint::name_of(tensor.dtype)),
                                    write_text(dataset.get(), "kind", checkpoint::name_of(tensor.policy))}) {
            if (!written) return written;
        }
        if (H5Dclose(dataset.release()) < 0) return hdf5_error(fmt::format("tensor '{}' cannot be closed", name));
        ++tensors_;
        return {};
    }

    Checkpoint& checkpoint_;
    std::string prefix_;
    Scalars scalars_;
    Properties links_;
    File file_;
    std::size_t tensors_ = 0;
};

}  // namespace

std::uint64_t mappings_of(const Manifest& manifest) {
    std::uint64_t count = 0;
    for (const TensorRecord& tensor : manifest.tensors) count += tensor.policy == Policy::Replicated ? 1 : tensor.boxes.size();
    return count;
}

Result<View> build_view(Checkpoint& checkpoint, const std::string& prefix) {
    const QuietErrors quiet;
    return Builder(checkpoint, prefix).build();
}

Result<void> write_view(const Store& store, const CheckpointId& id, std::uint64_t most_mappings) {
    auto checkpoint = store.open_published(id);
    if (!checkpoint) return checkpoint.error();
    hbool_t is_safe = false;
    if (mappings_of(checkpoint->manifest()) > most_mappings || H5is_library_threadsafe(&is_safe) < 0 || !is_safe) return {};
    const auto view = build_view(*checkpoint, "");
    if (!view) return view.error();
    return store.add_file(id, kViewName, view->file);
}

}  // namespace gangline::checkpoint
