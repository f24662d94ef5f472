// ls and show: what is there, without reading a shard.

#include <algorithm>
#include <chrono>
#include <set>

#include <fmt/format.h>

#include "base/text.h"
#include "checkpoint/tool/commands.h"
#include "checkpoint/tool/needed.h"
#include "checkpoint/tool/output.h"

namespace gangline::checkpoint::tool {
namespace {

std::int64_t unix_now_s() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::int64_t moment_of(const Entry& entry) { return entry.written_unix_s != 0 ? entry.written_unix_s : entry.changed_unix_s; }

std::string size_text(std::uint64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

std::string state_text(const Entry& entry, std::int64_t now_s) {
    if (entry.state == State::Durable && entry.marks.verified_unix_s) {
        return fmt::format("verified {} ago", human_duration(static_cast<double>(std::max<std::int64_t>(0, now_s - *entry.marks.verified_unix_s))));
    }
    return fmt::format("{}{}{}", name_of(entry.state), entry.why.empty() ? "" : ": ", plain(entry.why));
}

Json json_of(const Place& place, const Entry& entry, const std::string& needed, std::int64_t now_s) {
    return {{"path", place.root + "/" + entry.name}, {"step", entry.id.step}, {"attempt", entry.id.attempt}, {"job", entry.job},
            {"state", name_of(entry.state)}, {"why", entry.why}, {"shards", entry.shards}, {"tensors", entry.tensors}, {"bytes", entry.bytes},
            {"written_unix_s", moment_of(entry)}, {"age_s", now_s - moment_of(entry)},
            {"metric", entry.metric ? number(*entry.metric) : Json()}, {"needed_by", needed}, {"pinned", entry.marks.is_pinned},
            {"verified_unix_s", entry.marks.verified_unix_s ? Json(*entry.marks.verified_unix_s) : Json()}};
}

const char* name_of(const InMemory& one) { return one.is_replicated ? "replicated" : "snapshotted"; }

Json json_of(const InMemory& one) {
    return {{"path", Json()}, {"step", one.step}, {"attempt", one.attempt}, {"job", one.job}, {"state", name_of(one)}, {"why", ""}, {"shards", one.ranks}};
}

std::size_t shards_with(const TensorRecord& tensor) {
    std::set<std::uint32_t> ranks;
    for (const Box& box : tensor.boxes) ranks.insert(box.shard_rank);
    return ranks.size();
}

// Of a per-rank tensor, all ranks' together; replicated ones count once.
std::uint64_t stored_bytes(const TensorRecord& tensor) {
    if (!is_per_rank(tensor.policy)) return bytes_of(tensor.dtype, tensor.global_shape);
    std::uint64_t total = 0;
    for (const Box& box : tensor.boxes) {
        if (__builtin_add_overflow(total, bytes_of(tensor.dtype, box.extent), &total)) return ~std::uint64_t{0};
    }
    return total;
}

Json json_of(const Opened& opened) {
    const Manifest& manifest = opened.checkpoint.manifest();
    Json shards = Json::array();
    for (const ShardRecord& shard : manifest.shards) {
        shards.push_back({{"rank", shard.rank}, {"name", shard.name}, {"bytes", shard.size}, {"blocks", shard.block_crcs.size()}});
    }
    Json tensors = Json::array();
    for (const TensorRecord& tensor : manifest.tensors) {
        Json boxes = Json::array();
        for (const Box& box : tensor.boxes) {
            boxes.push_back({{"shard", box.shard_rank}, {"file_offset", box.file_offset}, {"offset", box.offset}, {"extent", box.extent}});
        }
        tensors.push_back({{"name", tensor.name}, {"dtype", checkpoint::name_of(tensor.dtype)}, {"policy", checkpoint::name_of(tensor.policy)},
                           {"global_shape", tensor.global_shape}, {"bytes", stored_bytes(tensor)}, {"shards", shards_with(tensor)}, {"boxes", boxes}});
    }
    return {{"path", opened.path}, {"job", manifest.job}, {"step", manifest.step}, {"attempt", manifest.attempt}, {"world", manifest.world},
            {"bytes", manifest.total_bytes()}, {"block_bytes", manifest.block_bytes}, {"manifest_sha256", to_hex(opened.digest)},
            {"shards", shards}, {"tensors", tensors}};
}

}  // namespace

Result<int> run_list(const Request& request) {
    const auto place = place_of(request.words);
    if (!place) return place.error();
    const auto entries = entries_of(*place);
    if (!entries) return entries.error();
    const std::int64_t now_s = unix_now_s();
    const std::vector<std::string> needed = needed_by(*place, *entries);
    if (request.json) {
        Json all = Json::array();
        for (std::size_t i = 0; i < entries->size(); ++i) all.push_back(json_of(*place, (*entries)[i], needed[i], now_s));
        for (const InMemory& one : request.in_memory) all.push_back(json_of(one));
        fmt::print("{}", document("checkpoints", std::move(all)));
        return 0;
    }
    if (entries->empty() && request.in_memory.empty()) {
        fmt::print("no checkpoints in {}{}\n", plain(place->root), plain(job_folders_hint(*place)));
        return 0;
    }
    std::vector<std::vector<std::string>> rows{{"JOB", "STEP", "ATTEMPT", "SHARDS", "TENSORS", "SIZE", "AGE", "METRIC", "NEEDED BY", "STATE"}};
    for (std::size_t i = 0; i < entries->size(); ++i) {
        const Entry& entry = (*entries)[i];
        const bool is_known = entry.job != 0 || entry.shards != 0;
        rows.push_back({is_known ? std::to_string(entry.job) : "-", std::to_string(entry.id.step), std::to_string(entry.id.attempt),
                        is_known ? std::to_string(entry.shards) : "-", is_known ? std::to_string(entry.tensors) : "-", size_text(entry.bytes),
                        human_duration(static_cast<double>(now_s - moment_of(entry))), entry.metric ? fmt::format("{:.6g}", *entry.metric) : "-",
                        needed[i].empty() ? "-" : needed[i], state_text(entry, now_s)});
    }
    for (const InMemory& one : request.in_memory) {
        rows.push_back({std::to_string(one.job), std::to_string(one.step), std::to_string(one.attempt), std::to_string(one.ranks), "-", "-", "-", "-", "-",
                        fmt::format("{}: in memory{}, not on disk", name_of(one), one.is_replicated ? ", and on other nodes" : " of its nodes alone")});
    }
    fmt::print("{}", columns(rows, "rrrrrrrrll"));
    return 0;
}

Result<int> run_show(const Request& request) {
    const auto place = place_of(request.words);
    if (!place) return place.error();
    const auto opened = open_one(*place);
    if (!opened) return opened.error();
    if (request.json) {
        fmt::print("{}", document("checkpoint", json_of(*opened)));
        return 0;
    }
    const Manifest& manifest = opened->checkpoint.manifest();
    fmt::print("{}\n", plain(opened->path));
    fmt::print("  job {}, step {}, attempt {}, saved by {} ranks\n", manifest.job, manifest.step, manifest.attempt, manifest.world);
    fmt::print("  {} in {} shards, {} tensors; manifest {}\n", size_text(manifest.total_bytes()), manifest.shards.size(), manifest.tensors.size(),
               to_hex(opened->digest));
    if (const auto checked = check_shards(*opened); !checked) fmt::print("  damaged: {}\n", plain(checked.error().message));
    std::vector<std::vector<std::string>> rows{{"TENSOR", "DTYPE", "POLICY", "SHAPE", "SIZE", "SHARDS"}};
    for (const TensorRecord& tensor : manifest.tensors) {
        rows.push_back({plain(tensor.name), std::string(checkpoint::name_of(tensor.dtype)), std::string(checkpoint::name_of(tensor.policy)),
                        to_text(tensor.global_shape), size_text(stored_bytes(tensor)), std::to_string(shards_with(tensor))});
    }
    fmt::print("\n{}", columns(rows, "llllrr"));
    return 0;
}

}  // namespace gangline::checkpoint::tool
