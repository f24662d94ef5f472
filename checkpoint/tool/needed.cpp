#include "checkpoint/tool/needed.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "base/retention.h"

namespace gangline::checkpoint::tool {
namespace {

using FileId = std::tuple<unsigned, unsigned, std::uint64_t>;  // device, inode

// Files on which somebody holds a flock. Looking by a lock of our own would disturb who wants to read.
std::set<FileId> locked_files() {
    std::set<FileId> locked;
    std::ifstream file("/proc/locks");
    for (std::string line; std::getline(file, line);) {
        unsigned major_number = 0;
        unsigned minor_number = 0;
        std::uint64_t inode = 0;
        if (std::sscanf(line.c_str(), "%*d: FLOCK %*s %*s %*d %x:%x:%" SCNu64, &major_number, &minor_number, &inode) == 3) locked.emplace(major_number, minor_number, inode);
    }
    return locked;
}

std::optional<RetentionRule> rule_in(const Place& place) {
    std::ostringstream text;
    text << std::ifstream(place.root + "/.retention").rdbuf();
    const auto rule = parse_retention_rule(text.str().substr(0, 1024));
    return rule ? std::optional(*rule) : std::nullopt;
}

bool counts(const Entry& entry) { return entry.state == State::Durable || entry.state == State::Damaged; }

}  // namespace

std::vector<std::string> needed_by(const Place& place, const std::vector<Entry>& entries) {
    std::vector<std::string> words(entries.size());
    const auto rule = rule_in(place);
    std::map<std::uint64_t, std::vector<std::size_t>> jobs;
    for (std::size_t i = 0; i < entries.size(); ++i) {
        if (counts(entries[i])) jobs[entries[i].job].push_back(i);
    }
    for (const auto& [job, mine] : jobs) {
        std::vector<KeptCheckpoint> all;
        for (const std::size_t i : mine) {
            const Entry& entry = entries[i];
            all.push_back({.step = entry.id.step,
                           .metric = entry.metric,
                           .is_damaged = entry.state == State::Damaged,
                           .is_verified = entry.marks.verified_unix_s.has_value(),
                           .is_pinned = entry.marks.is_pinned});
        }
        const std::vector<Needs> needs = needs_of(all, rule.value_or(RetentionRule{}));
        for (std::size_t i = 0; i < mine.size(); ++i) words[mine[i]] = rule ? needs[i].words() : all[i].is_pinned ? "pinned" : "";
    }
    const std::set<FileId> locked = locked_files();
    for (std::size_t i = 0; i < entries.size(); ++i) {
        if (!locked.contains({major(entries[i].device), minor(entries[i].device), entries[i].inode})) continue;
        words[i] += words[i].empty() ? "read" : ", read";
    }
    return words;
}

}  // namespace gangline::checkpoint::tool
