// verify, diff, view, export and prune as people see them.

#include "checkpoint/tool/commands.h"

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <iostream>

#include <fmt/format.h>

#include "base/text.h"
#include "checkpoint/tool/diff.h"
#include "checkpoint/tool/export.h"
#include "checkpoint/tool/output.h"
#include "checkpoint/tool/pieces.h"
#include "checkpoint/tool/pin.h"
#include "checkpoint/tool/prune.h"
#include "checkpoint/tool/verify.h"
#include "checkpoint/tool/view.h"

namespace gangline::checkpoint::tool {
namespace {

struct Verified {
    CheckpointId id;
    std::string path;
    Verdict verdict;
    double seconds = 0;
};

Result<Verified> verify_one(const Place& place, const CheckpointId& id) {
    Verified verified{id, place.root + "/" + folder_name(id), {}, 0};
    const auto opened = open_checkpoint(place, id);
    if (!opened && opened.error().code != Code::Damaged) return opened.error();
    if (!opened) {
        verified.verdict.damaged = 1;
        verified.verdict.damages.push_back({"MANIFEST", {}, opened.error().message});
        return verified;
    }
    Progress progress("verifying " + folder_name(id), opened->checkpoint.manifest().total_bytes());
    verified.verdict = verify(*opened, progress);
    verified.seconds = progress.seconds();
    return verified;
}

Json json_of(const Verified& verified) {
    const Verdict& verdict = verified.verdict;
    Json damages = Json::array();
    for (const Damage& damage : verdict.damages) {
        damages.push_back({{"file", damage.file}, {"block", damage.block ? Json(*damage.block) : Json()}, {"what", damage.what}});
    }
    return {{"path", verified.path}, {"step", verified.id.step}, {"attempt", verified.id.attempt}, {"good", verdict.damaged == 0},
            {"bytes", verdict.bytes}, {"blocks", verdict.blocks}, {"seconds", verified.seconds}, {"damaged", verdict.damaged}, {"damages", damages}};
}

void print_verified(const Verified& verified) {
    const Verdict& verdict = verified.verdict;
    fmt::print("{}: {}, {} blocks, {} in {} ({:.2f} GB/s)\n", plain(verified.path),
               verdict.damaged == 0 ? "good" : fmt::format("DAMAGED in {} places", verdict.damaged), verdict.blocks,
               human_bytes(static_cast<double>(verdict.bytes)), human_duration(verified.seconds),
               static_cast<double>(verdict.bytes) / 1e9 / std::max(verified.seconds, 1e-9));
    for (const Damage& damage : verdict.damages) fmt::print("  {}: {}\n", plain(damage.file), plain(damage.what));
    if (verdict.damaged > verdict.damages.size()) fmt::print("  and {} more\n", verdict.damaged - verdict.damages.size());
}

// `A B`, `FOLDER STEP STEP`, `FOLDER STEP FOLDER STEP`.
Result<std::pair<Place, Place>> two_places(const std::vector<std::string>& words) {
    std::vector<std::string> a{words.at(0)};
    std::vector<std::string> b{words.back()};
    if (words.size() == 3) {
        a = {words[0], words[1]};
        b = {words[0], words[2]};
    } else if (words.size() == 4) {
        a = {words[0], words[1]};
        b = {words[2], words[3]};
    }
    const auto first = place_of(a);
    if (!first) return first.error();
    const auto second = place_of(b);
    if (!second) return second.error();
    return std::pair{*first, *second};
}

Json json_of(const Largest& largest, const Shape& shape) {
    Json at;
    for (const std::uint64_t one : largest.value > 0 ? position_of(largest.index, shape) : Shape{}) at.push_back(one);
    return {{"value", number(largest.value)}, {"at", at.is_null() ? Json::array() : at}, {"a", number(largest.a)}, {"b", number(largest.b)}};
}

Json json_of(const Difference& one) {
    Json json{{"name", one.name}, {"rank", one.rank ? Json(*one.rank) : Json()}, {"change", name_of(one.change)}};
    if (one.change == Change::Values) {
        json["elements"] = one.elements;
        json["differing"] = one.differing;
        json["largest_absolute"] = json_of(one.absolute, one.shape);
        json["largest_relative"] = json_of(one.relative, one.shape);
    } else {
        json["a"] = one.a;
        json["b"] = one.b;
    }
    return json;
}

std::string text_of(const Difference& one) {
    auto at = [&](const char* what, const Largest& largest) {
        return fmt::format("largest {} difference {:.6g} at {} (a {:.9g}, b {:.9g})", what, largest.value, to_text(position_of(largest.index, one.shape)),
                           largest.a, largest.b);
    };
    switch (one.change) {
        case Change::OnlyInA: return "only in A";
        case Change::OnlyInB: return "only in B";
        case Change::Kind:
        case Change::Dtype:
        case Change::Shape: return fmt::format("{}: A {}, B {}", name_of(one.change), one.a, one.b);
        case Change::Values:
            return fmt::format("{} of {} elements differ\n    {}\n    {}", one.differing, one.elements, at("absolute", one.absolute), at("relative", one.relative));
    }
    return "";
}

Existing existing_of(const Request& request) { return request.force ? Existing::Replace : Existing::Refuse; }

}  // namespace

Result<std::uint64_t> whole_number(const std::string& option, const std::string& value, std::uint64_t least, std::uint64_t most) {
    std::uint64_t parsed = 0;
    const auto read = std::from_chars(value.data(), value.data() + value.size(), parsed);
    if (read.ec != std::errc() || read.ptr != value.data() + value.size() || parsed < least || parsed > most) {
        return Error{Code::InvalidArgument, fmt::format("{} '{}': a whole number from {} to {} is needed", option, value, least, most)};
    }
    return parsed;
}

Result<int> run_verify(const Request& request) {
    const auto place = place_of(request.words);
    if (!place) return place.error();
    std::vector<CheckpointId> ids;
    if (request.all) {
        const auto entries = entries_of(*place);
        if (!entries) return entries.error();
        for (const Entry& entry : *entries) {
            if (entry.state == State::Durable || entry.state == State::Damaged) ids.push_back(entry.id);
        }
        if (ids.empty()) return Error{Code::NotFound, place->root + ": no checkpoint in it"};
    } else if (place->only) {
        ids.push_back(*place->only);
    } else {
        const auto newest = open_one(*place);
        if (!newest) return newest.error();
        ids.push_back(newest->id);
    }
    bool is_good = true;
    Json all = Json::array();
    for (const CheckpointId& id : ids) {
        const auto verified = verify_one(*place, id);
        if (!verified) return verified.error();
        is_good &= verified->verdict.damaged == 0;
        if (request.json) all.push_back(json_of(*verified));
        if (!request.json) print_verified(*verified);
    }
    if (request.json) fmt::print("{}", document("verified", std::move(all)));
    return is_good ? 0 : 1;
}

Result<int> run_diff(const Request& request) {
    const auto places = two_places(request.words);
    if (!places) return places.error();
    auto a = open_one(places->first);
    if (!a) return a.error();
    auto b = open_one(places->second);
    if (!b) return b.error();
    const auto comparison = compare(*a, *b);
    if (!comparison) return comparison.error();
    const bool is_equal = comparison->differences.empty();
    if (request.json) {
        Json differences = Json::array();
        for (const Difference& one : comparison->differences) differences.push_back(json_of(one));
        fmt::print("{}", document("diff", {{"a", a->path}, {"b", b->path}, {"equal", is_equal}, {"equal_tensors", comparison->equal}, {"differences", differences}}));
        return is_equal ? 0 : 1;
    }
    fmt::print("A {}\nB {}\n", plain(a->path), plain(b->path));
    for (const Difference& one : comparison->differences) {
        fmt::print("  {}{}: {}\n", plain(one.name), one.rank ? fmt::format(" of rank {}", *one.rank) : "", text_of(one));
    }
    fmt::print("{} tensors are equal, {} are not\n", comparison->equal, comparison->differences.size());
    return is_equal ? 0 : 1;
}

Result<int> run_view(const Request& request) {
    const auto place = place_of(request.words);
    if (!place) return place.error();
    auto opened = open_one(*place);
    if (!opened) return opened.error();
    const auto viewed = write_view(*opened, request.output, existing_of(request));
    if (!viewed) return viewed.error();
    if (request.json) {
        fmt::print("{}", document("view", {{"path", viewed->path}, {"of", opened->path}, {"tensors", viewed->tensors}}));
    } else {
        fmt::print("{}: {} tensors of {}\n", plain(viewed->path), viewed->tensors, plain(opened->path));
    }
    return 0;
}

Result<int> run_export(const Request& request) {
    ExportRequest wanted{Format::Safetensors, request.output, {}, existing_of(request)};
    if (request.format != "safetensors" && request.format != "npz") {
        return Error{Code::InvalidArgument, fmt::format("--format '{}': safetensors and npz are possible", request.format)};
    }
    if (request.format == "npz") wanted.format = Format::Npz;
    if (request.output.empty()) return Error{Code::InvalidArgument, "--output FILE is missing: say where the file shall be"};
    if (!request.rank.empty()) {
        const auto rank = whole_number("--rank", request.rank, 0, kMostWorld - 1);
        if (!rank) return rank.error();
        wanted.rank = static_cast<std::uint32_t>(*rank);
    }
    const auto place = place_of(request.words);
    if (!place) return place.error();
    auto opened = open_one(*place);
    if (!opened) return opened.error();
    const auto exported = export_checkpoint(*opened, wanted);
    if (!exported) return exported.error();
    if (request.json) {
        fmt::print("{}", document("export", {{"path", request.output}, {"of", opened->path}, {"format", request.format}, {"bytes", exported->bytes},
                                             {"tensors", exported->tensors}, {"notes", exported->notes}}));
        return 0;
    }
    fmt::print("{}: {} tensors of {}, {}\n", plain(request.output), exported->tensors, plain(opened->path), human_bytes(static_cast<double>(exported->bytes)));
    for (const std::string& note : exported->notes) fmt::print(stderr, "gangline ckpt export: {}\n", note);
    return 0;
}

namespace {

Result<int> set_pin(const Request& request, bool is_pinned) {
    const auto place = place_of(request.words);
    if (!place) return place.error();
    std::optional<CheckpointId> id = place->only;
    if (!id) {
        const auto newest = open_one(*place);
        if (!newest) return newest.error();
        id = newest->id;
    }
    const auto done = is_pinned ? pin(*place, *id) : unpin(*place, *id);
    if (!done) return done.error();
    const std::string path = place->root + "/" + folder_name(*id);
    if (request.json) {
        fmt::print("{}", document("pin", {{"path", path}, {"step", id->step}, {"attempt", id->attempt}, {"pinned", is_pinned}}));
    } else {
        fmt::print("{}: {}\n", plain(path), is_pinned ? "pinned" : "not pinned");
    }
    return 0;
}

}  // namespace

Result<int> run_pin(const Request& request) { return set_pin(request, true); }
Result<int> run_unpin(const Request& request) { return set_pin(request, false); }

namespace {

struct Pruning {
    std::vector<Choice> choices;
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
};

Json json_of(const Place& place, const Pruning& pruning, bool is_done) {
    Json all = Json::array();
    for (const Choice& choice : pruning.choices) {
        all.push_back({{"path", place.root + "/" + choice.entry.name}, {"step", choice.entry.id.step}, {"attempt", choice.entry.id.attempt},
                       {"state", name_of(choice.entry.state)}, {"bytes", choice.entry.bytes}, {"delete", choice.is_deleted}, {"why", choice.why}});
    }
    return {{"checkpoints", all}, {"count", pruning.count}, {"bytes", pruning.bytes}, {"done", is_done}};
}

void print_choices(const Pruning& pruning) {
    std::vector<std::vector<std::string>> rows{{"", "FOLDER", "SIZE", "WHY"}};
    for (const Choice& choice : pruning.choices) {
        rows.push_back({choice.is_deleted ? "delete" : "keep", choice.entry.name, human_bytes(static_cast<double>(choice.entry.bytes)), choice.why});
    }
    fmt::print("{}", columns(rows, "llrl"));
}

Result<void> agree(const Pruning& pruning, const Request& request) {
    if (request.yes) return {};
    if (request.json || ::isatty(0) != 1 || ::isatty(1) != 1) {
        return Error{Code::Refused, "prune asks on a terminal before it deletes; elsewhere say --yes (or --dry-run to look)"};
    }
    fmt::print("Delete {} folders, {}? [y/N] ", pruning.count, human_bytes(static_cast<double>(pruning.bytes)));
    std::fflush(stdout);
    std::string answer;
    std::getline(std::cin, answer);
    if (answer == "y" || answer == "Y" || answer == "yes") return {};
    return Error{Code::Refused, "nothing was deleted"};
}

// All that can go goes; what cannot is told together.
Result<void> remove_chosen(const Place& place, const Pruning& pruning) {
    std::string problems;
    Code code = Code::Internal;
    for (const Choice& choice : pruning.choices) {
        if (!choice.is_deleted) continue;
        const auto removed = remove(place, choice.entry.name);
        if (removed) continue;
        code = removed.error().code;
        problems += (problems.empty() ? "" : "; ") + removed.error().message;
    }
    if (!problems.empty()) return Error{code, problems};
    return {};
}

}  // namespace

Result<int> run_prune(const Request& request) {
    constexpr std::uint64_t kMost = 1'000'000'000'000;
    if (request.keep.empty()) return Error{Code::InvalidArgument, "--keep N is missing: say how many of the newest checkpoints stay (1 at least)"};
    const auto keep = whole_number("--keep", request.keep, 1, kMost);
    if (!keep) return keep.error();
    PruneRule rule{*keep, 0};
    if (!request.every.empty()) {
        const auto every = whole_number("--every", request.every, 1, kMost);
        if (!every) return every.error();
        rule.every = *every;
    }
    const auto place = place_of(request.words);
    if (!place) return place.error();
    if (place->only) return Error{Code::InvalidArgument, fmt::format("prune '{}': give the folder of all checkpoints, {}", request.words[0], place->root)};
    const auto entries = entries_of(*place);
    if (!entries) return entries.error();
    const auto now = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    Pruning pruning{choose(*entries, rule, now), 0, 0};
    for (const Choice& choice : pruning.choices) {
        if (!choice.is_deleted) continue;
        ++pruning.count;
        pruning.bytes += choice.entry.bytes;
    }
    if (!request.json) print_choices(pruning);
    const bool is_done = !request.dry_run && pruning.count > 0;
    if (is_done) {
        if (auto agreed = agree(pruning, request); !agreed) return agreed.error();
        if (auto removed = remove_chosen(*place, pruning); !removed) return removed.error();
    }
    if (request.json) fmt::print("{}", document("prune", json_of(*place, pruning, is_done)));
    if (!request.json) {
        fmt::print("{}: {} folders, {}\n", is_done ? "deleted" : request.dry_run ? "would be deleted" : "nothing to delete", pruning.count,
                   human_bytes(static_cast<double>(pruning.bytes)));
    }
    return 0;
}

}  // namespace gangline::checkpoint::tool
