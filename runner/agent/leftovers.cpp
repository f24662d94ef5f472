#include "runner/agent/leftovers.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <fmt/format.h>

#include "runner/agent/node_facts.h"

namespace gangline::runner {
namespace {

std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) names.push_back(entry.path().filename().string());
    return names;
}

template <class Number>
bool parse_number(std::string_view text, Number& value) {
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

}  // namespace

proto::AttemptId parse_attempt(const std::string& text, char separator) {
    proto::AttemptId id;
    const std::size_t at = text.find(separator);
    std::uint64_t job = 0;
    std::uint32_t attempt = 0;
    if (at == std::string::npos || !parse_number(std::string_view(text).substr(0, at), job) ||
        !parse_number(std::string_view(text).substr(at + 1), attempt)) {
        return id;
    }
    id.set_job(job);
    id.set_attempt(attempt);
    return id;
}

std::vector<proto::AttemptId> left_attempts(const std::string& cluster, const std::string& node) {
    std::vector<proto::AttemptId> left;
    const auto add = [&](const proto::AttemptId& id) {
        const auto same = [&](const proto::AttemptId& one) { return one.job() == id.job() && one.attempt() == id.attempt(); };
        if (id.job() != 0 && std::none_of(left.begin(), left.end(), same)) left.push_back(id);
    };
    const std::string prefix = fmt::format("gangline-{}-{}-", cluster, node);
    for (const std::string& name : names_in("/dev/shm")) {
        if (name.starts_with(prefix)) add(parse_attempt(name.substr(prefix.size()), '-'));
    }
    const std::string root = machine_cgroup_root();
    if (root.empty()) return left;
    for (const std::string& name : names_in(fmt::format("{}/gangline/{}/{}", root, cluster, node))) add(parse_attempt(name, '.'));
    return left;
}

Spools::Ended Spools::look_at(const std::string& folder) const {
    Ended ended{folder, 0, 0};
    struct stat info {};
    const std::string path = root_ + "/" + folder;
    if (::stat(path.c_str(), &info) == 0) ended.changed_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
    for (const char* file : {"/output.log", "/shepherd.log"}) {
        if (::lstat((path + file).c_str(), &info) == 0) ended.bytes += static_cast<std::uint64_t>(info.st_size);
    }
    return ended;
}

std::vector<std::string> Spools::too_much() {
    std::vector<std::string> removed;
    std::uint64_t bytes = 0;
    for (const Ended& one : ended_) bytes += one.bytes;
    while (!ended_.empty() && (ended_.size() > kMostEnded || bytes > kMostBytes)) {
        bytes -= ended_.front().bytes;
        removed.push_back(ended_.front().folder);
        ended_.pop_front();
    }
    return removed;
}

std::vector<std::string> Spools::scan(const std::set<std::string>& in_use) {
    std::vector<std::string> removed;
    for (const std::string& name : names_in(root_)) {
        if (in_use.contains(name)) continue;
        if (name.starts_with("spare-") || name.starts_with("keeper-")) removed.push_back(name);
        else if (parse_attempt(name, '-').job() != 0) ended_.push_back(look_at(name));
    }
    std::sort(ended_.begin(), ended_.end(), [](const Ended& a, const Ended& b) { return a.changed_ns < b.changed_ns; });
    for (std::string& name : too_much()) removed.push_back(std::move(name));
    return removed;
}

std::vector<std::string> Spools::add_ended(const std::string& folder) {
    std::erase_if(ended_, [&](const Ended& one) { return one.folder == folder; });
    ended_.push_back(look_at(folder));
    return too_much();
}

}  // namespace gangline::runner
