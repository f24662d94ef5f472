#include "checkpoint/tool/prune.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>

#include <fmt/format.h>

namespace gangline::checkpoint::tool {
namespace {

constexpr std::string_view kDeleting = ".del-";
constexpr std::string_view kTemporary = ".tmp-";

using Range = std::pair<std::uint64_t, std::uint64_t>;  // job, step / every

// The first step of each range; of several attempts, the newest that has it.
std::map<Range, const Entry*> first_of_ranges(const std::vector<Entry>& entries, std::uint64_t every) {
    std::map<Range, const Entry*> first;
    if (every == 0) return first;
    for (const Entry& entry : entries) {
        if (entry.state != State::Durable) continue;
        const Entry*& known = first[{entry.job, entry.id.step / every}];
        if (known == nullptr || entry.id.step <= known->id.step) known = &entry;
    }
    return first;
}

Choice judge_other(const Entry& entry, std::int64_t now_unix_s) {
    const std::int64_t age_s = now_unix_s - entry.changed_unix_s;
    switch (entry.state) {
        case State::Deleting: return {entry, true, "its deletion was interrupted"};
        case State::Unfinished:
            if (entry.has_manifest) return {entry, false, "unfinished, but it has a manifest: the next restore may publish it"};
            if (age_s < kTemporaryRestSeconds) return {entry, false, "unfinished, and changed within the hour: it may be being saved"};
            return {entry, true, "left behind by a save that never ended"};
        case State::Durable:
        case State::Tainted:
        case State::Damaged: break;
    }
    return {entry, false, "damaged: not counted and not touched"};
}

// The folder's name from now on: one under which nobody looks for a checkpoint.
Result<std::string> take_name(const Place& place, int root, const std::string& name) {
    if (name.starts_with(kDeleting)) return name;
    const std::string doomed = std::string(kDeleting) + name.substr(name.starts_with(kTemporary) ? kTemporary.size() : 0);
    auto rename = [&] { return ::renameat2(root, name.c_str(), root, doomed.c_str(), RENAME_NOREPLACE) == 0; };
    bool is_renamed = rename();
    if (!is_renamed && errno == EEXIST) {  // the rest of an earlier deletion
        if (auto removed = remove(place, doomed); !removed) return removed.error();
        is_renamed = rename();
    }
    if (!is_renamed && errno == EINVAL) is_renamed = ::renameat(root, name.c_str(), root, doomed.c_str()) == 0;
    if (!is_renamed) return errno_error(fmt::format("cannot rename {}/{} to {}", place.root, name, doomed));
    if (::fsync(root) != 0) return errno_error("cannot fsync " + place.root);
    return doomed;
}

}  // namespace

std::vector<Choice> choose(const std::vector<Entry>& entries, const PruneRule& rule, std::int64_t now_unix_s) {
    const auto first = first_of_ranges(entries, rule.every);
    std::map<std::uint64_t, std::uint64_t> kept;  // by job
    std::vector<Choice> choices;
    for (auto at = entries.rbegin(); at != entries.rend(); ++at) {
        if (at->state != State::Durable) {
            choices.push_back(judge_other(*at, now_unix_s));
            continue;
        }
        const auto range = rule.every == 0 ? first.end() : first.find({at->job, at->id.step / rule.every});
        if (kept[at->job] < rule.keep) {
            ++kept[at->job];
            choices.push_back({*at, false, fmt::format("among the newest {}", rule.keep)});
        } else if (range != first.end() && range->second == &*at) {
            choices.push_back({*at, false, fmt::format("the first of its {} steps", rule.every)});
        } else if (at->marks.is_pinned) {
            choices.push_back({*at, false, "pinned"});
        } else {
            choices.push_back({*at, true, "old"});
        }
    }
    std::reverse(choices.begin(), choices.end());
    return choices;
}

Result<void> remove(const Place& place, const std::string& name) {
    auto root = open_root(place);
    if (!root) return root.error();
    const std::string path = place.root + "/" + name;
    const Fd folder(::openat(root->get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder) return errno_error("cannot open the folder " + path);
    if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return Error{Code::Refused, path + " is being read by another gangline ckpt: try again when that has ended"};
    }
    auto doomed = take_name(place, root->get(), name);
    if (!doomed) return doomed.error();
    if (is_pinned(folder.get()) && parse_folder_name(name) && ::renameat2(root->get(), doomed->c_str(), root->get(), name.c_str(), RENAME_NOREPLACE) == 0) {
        return Error{Code::Refused, path + " is pinned"};
    }
    for (const std::string& file : names_in(folder.get())) {
        if (::unlinkat(folder.get(), file.c_str(), 0) != 0 && errno != ENOENT) return errno_error(fmt::format("cannot delete {}/{}/{}", place.root, *doomed, file));
    }
    if (::unlinkat(root->get(), doomed->c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) return errno_error(fmt::format("cannot delete {}/{}", place.root, *doomed));
    if (::fsync(root->get()) != 0) return errno_error("cannot fsync " + place.root);
    return {};
}

}  // namespace gangline::checkpoint::tool
