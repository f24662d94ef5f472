#include "checkpoint/saving_gang.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "base/process.h"

namespace gangline::checkpoint {

namespace fs = std::filesystem;

SavingGang::SavingGang(std::uint32_t attempt, const Size& size) : attempt_(attempt), size_(size) {
    for (std::uint32_t rank = 0; rank < size_.world; ++rank) {
        ranks_.push_back(make_rank(rank));
        readers_.push_back(make_rank(rank));
    }
}

std::unique_ptr<SavingGang::Rank> SavingGang::make_rank(std::uint32_t number) const {
    auto rank = std::make_unique<Rank>();
    rank->slice.resize(size_.elements);
    rank->vector.resize(101);
    rank->own.resize(5);
    rank->tensors = {
        {"model/slice", DType::U64, Policy::Sliced, {std::uint64_t{size_.world} * size_.elements}, {std::uint64_t{number} * size_.elements}, {size_.elements}, rank->slice.data()},
        {"model/vector", DType::F64, Policy::Replicated, {101}, {0}, {101}, rank->vector.data()},
        {"rng", DType::U8, Policy::PerRank, {5}, {0}, {5}, rank->own.data()},
    };
    return rank;
}

void SavingGang::fill(Rank& rank, std::uint32_t number, std::uint64_t values) {
    for (std::size_t i = 0; i < rank.slice.size(); ++i) rank.slice[i] = values * 1'000'000'007 + number * rank.slice.size() + i;
    for (std::size_t i = 0; i < rank.vector.size(); ++i) rank.vector[i] = static_cast<double>(values) + static_cast<double>(i) * 0.5;
    for (std::size_t i = 0; i < rank.own.size(); ++i) rank.own[i] = static_cast<std::uint8_t>(values * 31 + std::uint64_t{number} * 7 + i);
}

Result<Sha256> SavingGang::write_rank(const Store& store, std::uint64_t step, std::uint64_t values, std::uint32_t number) {
    Rank& rank = *ranks_[number];
    fill(rank, number, values);
    const auto mine = tensors_to_write(rank.tensors, number, size_.world);
    const ShardPlan plan{kJob, step, attempt_, number, size_.world, mine};
    if (auto prepared = rank.image.prepare(plan); !prepared) return prepared.error();
    if (auto begun = size_.is_straight ? rank.image.begin_straight(step, mine) : rank.image.begin(step, mine); !begun) return begun.error();
    auto folder = store.temporary(id(step));
    if (!folder) return folder.error();
    auto part = write_image(store.disk(), folder->get(), rank.image, plan, store.recycle());
    if (!part && part.error().code == Code::NoSpace) {
        store.empty_pool();
        part = write_image(store.disk(), folder->get(), rank.image, plan);
    }
    if (!part) return part.error();
    const auto sealed = store.write_part(id(step), *part);
    if (!sealed) return sealed.error();
    return sealed->digest;
}

Result<std::vector<Sha256>> SavingGang::write_parts(const Store& store, std::uint64_t step, std::uint64_t values) {
    std::vector<Sha256> parts;
    for (std::uint32_t rank = 0; rank < size_.world; ++rank) {
        const auto part = write_rank(store, step, values, rank);
        if (!part) return part.error();
        parts.push_back(*part);
    }
    return parts;
}

void SavingGang::die_after_ranks(const Store& store, std::uint64_t step, std::uint32_t ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) (void)write_rank(store, step, step, rank);
}

SavingGang::Outcome SavingGang::save(const Store& store, std::uint64_t step, const std::vector<CheckpointId>& keep, const Watch& watch) {
    Outcome outcome;
    const auto tell = [&](Done done) {
        if (watch) watch(done);
    };
    const auto parts = write_parts(store, step, step);
    if (!parts) {
        outcome.failed = parts.error();
        (void)store.drop_temporary(id(step));
        return outcome;
    }
    const auto manifest = store.write_manifest(id(step), *parts, merger_);
    if (!manifest) {
        outcome.failed = manifest.error();
        (void)store.drop_temporary(id(step));
        return outcome;
    }
    outcome.manifest = *manifest;
    tell(Done::Manifest);
    if (const auto published = store.publish(id(step), manifest->digest); !published) {
        outcome.not_published = published.error();
    } else {
        tell(Done::Publish);
    }
    tell(Done::DeleteBegins);
    outcome.problems = store.delete_old({kJob, id(step), keep});
    return outcome;
}

Result<void> SavingGang::check(Checkpoint& checkpoint, std::uint64_t values) {
    const auto wrong = [&](std::uint32_t rank, const char* tensor) {
        return Error{Code::Internal, fmt::format("{}: rank {} got wrong bytes in {} without a word", checkpoint.place(), rank, tensor)};
    };
    auto verified = checkpoint.verify();
    for (std::uint32_t number = 0; number < size_.world; ++number) {
        Rank& read = *readers_[number];
        Rank& expected = *ranks_[number];
        fill(read, number, ~values);
        fill(expected, number, values);
        auto restored = checkpoint.restore(read.tensors, number, size_.world);
        if (!restored) return restored;
        if (read.slice != expected.slice) return wrong(number, "slice");
        if (std::memcmp(read.vector.data(), expected.vector.data(), read.vector.size() * sizeof(double)) != 0) return wrong(number, "vector");
        if (read.own != expected.own) return wrong(number, "rng");
    }
    return verified;
}

ScratchFolder::ScratchFolder() {
    struct statvfs room {};
    const bool is_roomy = ::statvfs("/dev/shm", &room) == 0 && room.f_bavail * room.f_frsize > (1ull << 30) && ::access("/dev/shm", W_OK) == 0;
    path_ = (is_roomy ? fs::path("/dev/shm") : fs::temp_directory_path()) / ("gangline-faults-" + random_hex(6));
    fs::create_directories(path_);
}

ScratchFolder::~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

}  // namespace gangline::checkpoint
