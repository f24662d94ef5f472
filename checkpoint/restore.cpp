// A whole restore: what a gang of any size is given, what a gang of another size deals out anew, and what it gives up.

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "checkpoint/reader.h"

namespace gangline::checkpoint {
namespace {

constexpr std::size_t kMostNamed = 8;
constexpr std::size_t kMostOpen = 64;  // shards at once

// "'rng', 'sampler' and 3 more"
std::string listed(const std::vector<std::string>& names) {
    std::string text;
    for (std::size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) text += fmt::format("{}'{}'", i == 0 ? "" : ", ", names[i]);
    if (names.size() > kMostNamed) text += fmt::format(" and {} more", names.size() - kMostNamed);
    return text;
}

// What GANGLINE_RESEED is to be for them.
std::string reseed_of(const std::vector<std::string>& names) {
    const bool is_list = names.size() <= kMostNamed &&
                         std::none_of(names.begin(), names.end(), [](const std::string& name) { return name.find(',') != std::string::npos; });
    return shell_quote(is_list ? fmt::format("{}", fmt::join(names, ",")) : "*");
}

std::string refusal_of(const std::vector<std::string>& names, std::uint32_t saved, std::uint32_t world) {
    return fmt::format("each of the {} ranks that saved it has its own {}, and this gang has {}: run with {} ranks; or track them as Splittable with a "
                       "callback, which deals them out anew, or as Drop; or set GANGLINE_RESEED={} in the job's environment, and they stay as the "
                       "program makes them",
                       saved, listed(names), world, saved, reseed_of(names));
}

}  // namespace

// Both have the same tensors, of the same kinds and types.
Result<void> Checkpoint::check(std::span<const Tensor> wanted) const {
    std::set<std::string_view> names;
    for (const Tensor& tensor : wanted) {
        names.insert(tensor.name);
        if (auto checked = check_one(tensor, manifest_.tensor_of(tensor.name)); !checked) return checked;
    }
    for (const TensorRecord& stored : manifest_.tensors) {
        if (!names.contains(stored.name)) {
            return Error{Code::Refused, fmt::format("checkpoint {}: its tensor '{}' is not tracked by this program; track what was saved", place_, stored.name)};
        }
    }
    return {};
}

Result<void> Checkpoint::restore(std::span<const Tensor> wanted, std::uint32_t rank, std::uint32_t world, const AnotherWorld& ways) {
    for (const Tensor& tensor : wanted) {
        if (auto checked = check_tensor(tensor); !checked) return checked;
    }
    if (auto checked = check(wanted); !checked) return checked;
    if (world == manifest_.world) return fill(wanted, rank);
    std::vector<Tensor> filled;
    std::vector<Tensor> split;
    std::vector<std::string> given_up;
    std::vector<std::string> refused;
    for (const Tensor& tensor : wanted) {
        if (!is_per_rank(tensor.policy)) {
            filled.push_back(tensor);
        } else if (ways.gives_up(tensor)) {
            given_up.push_back(tensor.name);
        } else if (ways.split_of(tensor) != nullptr) {
            split.push_back(tensor);
        } else {
            refused.push_back(tensor.name);
        }
    }
    if (!refused.empty()) return Error{Code::Refused, fmt::format("checkpoint {}: {}", place_, refusal_of(refused, manifest_.world, world))};
    if (auto done = fill(filled, rank); !done) return done;
    if (auto done = deal_out(split, rank, world, ways); !done) return done;
    if (!given_up.empty() && ways.say) {
        ways.say(fmt::format("checkpoint {} is of {} ranks, this gang has {}: not restored, as the program has made them: {} (tracked as Drop, or named by GANGLINE_RESEED)",
                             place_, manifest_.world, world, listed(given_up)));
    }
    return {};
}

// Shard by shard, so that few files are open at once and a block is read once for all tensors that lie in it.
Result<void> Checkpoint::deal_out(std::span<const Tensor> split, std::uint32_t rank, std::uint32_t world, const AnotherWorld& ways) {
    struct Old {
        std::vector<std::vector<std::byte>> memory;  // by rank
        std::vector<OldRank> ranks;
    };
    std::vector<Old> all(split.size());
    pieces_.clear();
    for (std::uint32_t old = 0; old < manifest_.world && !split.empty(); ++old) {
        for (std::size_t i = 0; i < split.size(); ++i) {
            const Box& box = manifest_.tensor_of(split[i].name)->boxes[old];
            auto& memory = all[i].memory.emplace_back(static_cast<std::size_t>(*elements_of(box.extent) * bytes_of(split[i].dtype)));
            all[i].ranks.push_back({old, box.extent, memory});
            if (!memory.empty()) add_piece({split[i].name, split[i].dtype, split[i].policy, box.extent, box.offset, box.extent, memory.data()}, box);
        }
        if (pieces_.size() < kMostOpen && old + 1 < manifest_.world) continue;
        if (auto done = run_pieces(); !done) return done;
        files_.clear();
    }
    for (std::size_t i = 0; i < split.size(); ++i) {
        const auto done = (*ways.split_of(split[i]))({all[i].ranks, rank, world});
        if (!done) {
            return Error{Code::Refused, fmt::format("checkpoint {}: the program could not make its '{}' out of what {} ranks had: {}", place_, split[i].name,
                                                    manifest_.world, done.error().message)};
        }
    }
    return {};
}

}  // namespace gangline::checkpoint
