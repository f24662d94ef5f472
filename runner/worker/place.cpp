#include "runner/worker/place.h"

#include <algorithm>

#include <charconv>
#include <cstring>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "base/text.h"

namespace gangline {
namespace {

constexpr std::uint64_t kMostMibS = 1'000'000;

class Variables {
  public:
    explicit Variables(const Getenv& get) : get_(get) {}

    std::string text(const char* name) const {
        const char* value = get_(name);
        return value == nullptr ? "" : value;
    }
    bool has(const char* name) const { return get_(name) != nullptr; }
    // Zero when it is not set; the first bad one is kept in `error`.
    std::uint64_t number(const char* name, std::uint64_t most) { return number(name, 0, most, 0, ""); }
    std::uint64_t number(const char* name, std::uint64_t least, std::uint64_t most, std::uint64_t otherwise, const char* because) {
        const char* value = get_(name);
        if (value == nullptr) return otherwise;
        std::uint64_t parsed = 0;
        const char* end = value + std::strlen(value);
        const auto result = std::from_chars(value, end, parsed);
        if (result.ec != std::errc() || result.ptr != end || value == end || parsed < least || parsed > most) {
            refuse(fmt::format("environment variable {}='{}' must be a number from {} to {}{}", name, value, least, most, because));
            return otherwise;
        }
        return parsed;
    }
    std::uint32_t small_number(const char* name) {
        return static_cast<std::uint32_t>(number(name, std::numeric_limits<std::uint32_t>::max()));
    }
    void refuse(std::string why) {
        if (error.empty()) error = std::move(why);
    }
    std::string error;

  private:
    const Getenv& get_;
};

// "0-7@0+8,8-15@8": old ranks 0 to 7 are asked for at rank 0's keeper, then at rank 8's.
std::optional<std::vector<SnapshotsFrom>> read_snapshots_from(const std::string& text) {
    std::vector<SnapshotsFrom> all;
    const auto number = [](std::string_view digits, std::uint32_t& value) {
        const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
        return result.ec == std::errc() && result.ptr == digits.data() + digits.size();
    };
    for (const std::string& one : split(text, ',')) {
        const std::size_t dash = one.find('-');
        const std::size_t at = one.find('@');
        if (dash == std::string::npos || at == std::string::npos || at < dash) return std::nullopt;
        SnapshotsFrom from;
        if (!number(std::string_view(one).substr(0, dash), from.first) || !number(std::string_view(one).substr(dash + 1, at - dash - 1), from.last)) return std::nullopt;
        for (const std::string& rank : split(one.substr(at + 1), '+')) {
            if (!number(rank, from.ranks.emplace_back())) return std::nullopt;
        }
        all.push_back(std::move(from));
    }
    return all;
}

RetentionRule read_rule(Variables& variables) {
    RetentionRule rule;
    rule.last = static_cast<std::uint32_t>(
        variables.number("GANGLINE_KEEP_LAST", kLeastLast, kMostKept, rule.last, "; two checkpoints at least stay, since the newest may turn out damaged"));
    rule.every = variables.number("GANGLINE_KEEP_EVERY", kMostEvery);
    rule.best = static_cast<std::uint32_t>(variables.number("GANGLINE_KEEP_BEST", kMostKept));
    const std::string best_is = variables.text("GANGLINE_BEST_IS");
    if (!best_is.empty() && best_is != "lower" && best_is != "higher") variables.refuse(fmt::format("environment variable GANGLINE_BEST_IS='{}' must be lower or higher", best_is));
    rule.higher_is_better = best_is == "higher";
    return rule;
}

void read_gangline(Variables& variables, Place& place) {
    place.job = variables.number("GANGLINE_JOB_ID", std::numeric_limits<std::uint64_t>::max());
    place.attempt = variables.small_number("GANGLINE_ATTEMPT");
    place.restarts = variables.small_number("GANGLINE_RESTART_COUNT");
    place.worker_socket = variables.text("GANGLINE_WORKER_SOCKET");
    place.progress_path = variables.text("GANGLINE_PROGRESS");
    place.checkpoint_folder = variables.text("GANGLINE_CHECKPOINT_DIR");
    for (const char* name : {"RANK", "WORLD_SIZE", "GANGLINE_JOB_ID", "GANGLINE_ATTEMPT", "GANGLINE_CHECKPOINT_DIR"}) {
        if (variables.text(name).empty()) variables.refuse(fmt::format("GANGLINE_WORKER_SOCKET is set, but {} is not", name));
    }
    // Two jobs that were given one folder keep their checkpoints apart.
    const std::string own = fmt::format("job-{}", place.job);
    const std::size_t slash = place.checkpoint_folder.find_last_not_of('/');
    if (slash != std::string::npos) place.checkpoint_folder.resize(slash + 1);
    if (place.checkpoint_folder != own && !place.checkpoint_folder.ends_with("/" + own)) place.checkpoint_folder += "/" + own;
    if (variables.has("GANGLINE_REPLICA_RANK") && variables.text("GANGLINE_CHECKPOINT_REPLICAS") != "0") place.replica_rank = variables.small_number("GANGLINE_REPLICA_RANK");
    if (!variables.has("GANGLINE_RESTORE_STEP")) return;
    RestorePoint restore;
    restore.id.step = variables.number("GANGLINE_RESTORE_STEP", std::numeric_limits<std::uint64_t>::max());
    restore.id.attempt = variables.small_number("GANGLINE_RESTORE_ATTEMPT");
    const std::string digest = variables.text("GANGLINE_RESTORE_SHA256");
    restore.in_memory = digest == "memory";
    if (!restore.in_memory && !checkpoint::from_hex(digest, restore.digest)) {
        variables.refuse(fmt::format("environment variable GANGLINE_RESTORE_SHA256='{}' must be 64 hexadecimal digits, or 'memory'", digest));
    }
    place.restore = restore;
    if (!variables.has("GANGLINE_RESTORE_FROM")) return;
    if (auto from = read_snapshots_from(variables.text("GANGLINE_RESTORE_FROM"))) {
        place.snapshots_from = std::move(*from);
    } else {
        variables.refuse(fmt::format("environment variable GANGLINE_RESTORE_FROM='{}' must be like 0-7@0+8,8-15@8", variables.text("GANGLINE_RESTORE_FROM").substr(0, 80)));
    }
}

void read_alone(Variables& variables, Place& place, const std::string& run_key) {
    std::string key = run_key;
    for (const char* name : {"PMIX_NAMESPACE", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"}) {
        if (!variables.text(name).empty()) key = variables.text(name) + variables.text("SLURM_STEP_ID");
    }
    place.worker_socket = "gangline-alone-" + key.substr(0, 60);
    place.checkpoint_folder = variables.text("GANGLINE_CHECKPOINT_DIR");
    if (place.checkpoint_folder.empty()) place.checkpoint_folder = "gangline-checkpoints";
}

}  // namespace

Result<Place> read_place(const Getenv& get, const std::string& run_key) {
    Variables variables(get);
    Place place;
    place.is_alone = variables.text("GANGLINE_WORKER_SOCKET").empty();
    for (std::string& name : split(variables.text("GANGLINE_RESEED"), ',')) {
        if (!name.empty()) place.reseed.insert(std::move(name));
    }
    place.recycles = variables.text("GANGLINE_CHECKPOINT_RECYCLE") != "0";
    if (variables.has("GANGLINE_CHECKPOINT_MEMORY_MIB")) place.memory_mib = variables.number("GANGLINE_CHECKPOINT_MEMORY_MIB", std::uint64_t{1} << 32);
    const std::string copies = variables.text("GANGLINE_CHECKPOINT_COPY");
    if (!copies.empty() && copies != "auto" && copies != "copy" && copies != "straight") {
        variables.refuse(fmt::format("environment variable GANGLINE_CHECKPOINT_COPY='{}' must be auto, copy or straight", copies));
    }
    place.copies = copies == "copy" ? CopyWish::Copy : copies == "straight" ? CopyWish::Straight : CopyWish::Auto;
    const std::string tiers = variables.text("GANGLINE_CHECKPOINT_TIERS");
    if (!tiers.empty() && tiers != "auto" && tiers != "disk") {
        variables.refuse(fmt::format("environment variable GANGLINE_CHECKPOINT_TIERS='{}' must be auto or disk", tiers));
    }
    place.saves_in_memory = tiers != "disk";
    place.writes_views = variables.text("GANGLINE_CHECKPOINT_VIEW") != "0";
    place.scrub_mib_s = static_cast<std::uint32_t>(variables.number("GANGLINE_CHECKPOINT_SCRUB", 0, kMostMibS, place.scrub_mib_s, " (MiB a second; 0: no checkpoint is read back)"));
    place.write_mib_s = static_cast<std::uint32_t>(variables.number("GANGLINE_CHECKPOINT_WRITE_MIB_S", 0, kMostMibS, 0, " (0: no limit)"));
    place.rule = read_rule(variables);
    if (variables.has("GANGLINE_MTBF_S")) {
        place.mean_between_failures_s = static_cast<double>(std::max<std::uint64_t>(1, variables.number("GANGLINE_MTBF_S", std::numeric_limits<std::uint32_t>::max())));
    }
    const bool is_open_mpi = place.is_alone && variables.has("OMPI_COMM_WORLD_RANK") && variables.has("OMPI_COMM_WORLD_SIZE");
    const char* const rank_name = is_open_mpi ? "OMPI_COMM_WORLD_RANK" : "RANK";
    const char* const size_name = is_open_mpi ? "OMPI_COMM_WORLD_SIZE" : "WORLD_SIZE";
    place.rank = variables.small_number(rank_name);
    place.size = variables.has(size_name) ? variables.small_number(size_name) : 1;
    if (place.size == 0 || place.size > checkpoint::kMostWorld || place.rank >= place.size) {
        variables.refuse(fmt::format("environment variables {}='{}' and {}='{}' name no rank of a gang", rank_name,
                                     variables.text(rank_name), size_name, variables.text(size_name)));
    }
    if (place.is_alone) {
        read_alone(variables, place, run_key);
    } else {
        read_gangline(variables, place);
    }
    if (!variables.error.empty()) return Error{Code::InvalidArgument, variables.error};
    return place;
}

}  // namespace gangline
