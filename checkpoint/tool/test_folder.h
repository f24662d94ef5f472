#pragma once
// A folder with small checkpoints for the tests, made through the library as a gang would.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/process.h"
#include "checkpoint/shard.h"
#include "checkpoint/store.h"
#include "checkpoint/tool/place.h"

namespace gangline::checkpoint::tool {

// A sliced matrix [12][5], a column-sliced one [3][8], a vector of each narrow float, a bool vector, a scalar, an empty
// tensor, and 3 numbers of each rank's own.
struct Model {
    Model(std::uint32_t rank_, std::uint32_t world_, float seed) : rank(rank_), world(world_) {
        auto bounds = [&](std::uint64_t extent, std::uint64_t at) { return extent * at / world; };
        const std::uint64_t row = bounds(12, rank), rows = bounds(12, rank + 1) - row;
        const std::uint64_t column = bounds(8, rank), columns = bounds(8, rank + 1) - column;
        for (std::uint64_t i = 0; i < rows * 5; ++i) matrix.push_back(seed + static_cast<float>(row * 5 + i));
        for (std::uint64_t i = 0; i < 3 * columns; ++i) {
            wide.push_back(static_cast<std::int64_t>((i / columns) * 8 + column + i % columns) * 1'000'000'007);
        }
        own = {rank, rank + 1, rank + 2};
        add("model/matrix", DType::F32, Policy::Sliced, {12, 5}, {row, 0}, {rows, 5}, matrix.data());
        add("model/wide", DType::I64, Policy::Sliced, {3, 8}, {0, column}, {3, columns}, wide.data());
        add("narrow/bf16", DType::BF16, Policy::Replicated, {3}, {0}, {3}, bf16.data());
        add("narrow/f16", DType::F16, Policy::Replicated, {3}, {0}, {3}, f16.data());
        add("narrow/e4m3", DType::F8E4M3, Policy::Replicated, {3}, {0}, {3}, e4m3.data());
        add("narrow/e5m2", DType::F8E5M2, Policy::Replicated, {3}, {0}, {3}, e5m2.data());
        add("mask", DType::Bool, Policy::Replicated, {4}, {0}, {4}, mask.data());
        add("position", DType::U64, Policy::Replicated, {}, {}, {}, &position);
        add("empty", DType::F64, Policy::Replicated, {0, 4}, {0, 0}, {0, 4}, nullptr);
        add("rng", DType::U32, Policy::PerRank, {3}, {0}, {3}, own.data());
    }
    void add(std::string name, DType dtype, Policy policy, Shape shape, Shape offset, Shape extent, void* data) {
        tensors.push_back({std::move(name), dtype, policy, std::move(shape), std::move(offset), std::move(extent), data});
    }
    Tensor& of(const std::string& name) {
        for (Tensor& tensor : tensors) {
            if (tensor.name == name) return tensor;
        }
        throw std::runtime_error(name);
    }
    std::uint32_t rank;
    std::uint32_t world;
    std::vector<float> matrix;
    std::vector<std::int64_t> wide;
    std::vector<std::uint32_t> own;
    std::vector<std::uint16_t> bf16{0x3F80, 0xC000, 0x7FC0};  // 1, -2, NaN
    std::vector<std::uint16_t> f16{0x3C00, 0xC000, 0x0001};   // 1, -2, 2^-24
    std::vector<std::uint8_t> e4m3{0x38, 0x7E, 0x7F};         // 1, 448, NaN
    std::vector<std::uint8_t> e5m2{0x3C, 0x7B, 0x7C};         // 1, 57344, infinity
    std::vector<std::uint8_t> mask{1, 0, 0, 1};
    std::uint64_t position = 77;
    std::vector<Tensor> tensors;
};

class Folder : public ::testing::Test {
  protected:
    Folder() : root_((std::filesystem::temp_directory_path() / ("gangline-ckpt-" + random_hex(6))).string()) {}
    ~Folder() override {
        std::error_code ignored;
        std::filesystem::remove_all(root_, ignored);
    }

    template <class Change>
    void write(const CheckpointId& id, std::uint32_t world, float seed, const Change& change, std::uint64_t job = 7) const {
        const Store store = Store::open(root_).value();
        std::vector<Sha256> parts;
        for (std::uint32_t rank = 0; rank < world; ++rank) {
            Model model(rank, world, seed);
            change(model);
            const auto folder = store.temporary(id);
            const auto mine = tensors_to_write(model.tensors, rank, world);
            const auto part = write_shard(folder.value().get(), {job, id.step, id.attempt, rank, world, mine});
            parts.push_back(store.write_part(id, part.value()).value().digest);
        }
        const auto sealed = store.write_manifest(id, parts);
        ASSERT_TRUE(store.publish(id, sealed.value().digest).ok());
    }
    void write(const CheckpointId& id, std::uint32_t world = 3, float seed = 1, std::uint64_t job = 7) const {
        write(id, world, seed, [](Model&) {}, job);
    }
    Place place() const { return place_of(std::vector<std::string>{root_}).value(); }
    Opened open(const CheckpointId& id) const { return open_checkpoint(place(), id).value(); }
    std::string path(const CheckpointId& id, const std::string& file = "") const {
        return root_ + "/" + folder_name(id) + (file.empty() ? "" : "/" + file);
    }
    void flip_byte(const std::string& file, std::size_t at) const {
        std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
        stream.seekg(static_cast<std::streamoff>(at));
        const char byte = static_cast<char>(stream.get() ^ 0x10);
        stream.seekp(static_cast<std::streamoff>(at));
        stream.put(byte);
        ASSERT_TRUE(stream.good()) << file;
    }
    static std::string read(const std::string& file) {
        std::ostringstream text;
        text << std::ifstream(file, std::ios::binary).rdbuf();
        return text.str();
    }
    // Runs Python over the folder; its words are shown when it fails.
    bool python(const std::string& program) const {
        std::ofstream(root_ + "/look.py") << program;
        return ::system(("cd " + root_ + " && /usr/bin/python3 look.py").c_str()) == 0;
    }
    static bool has_python(const std::string& module) {
        return ::system(("/usr/bin/python3 -c 'import " + module + "' 2>/dev/null").c_str()) == 0;
    }
    std::string root_;
};

inline const CheckpointId kFirst{100, 1};
inline const CheckpointId kSecond{200, 1};

}  // namespace gangline::checkpoint::tool
