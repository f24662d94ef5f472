#include "coordinator/server/authorised.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "base/handle.h"
#include "base/process.h"
#include "base/text.h"

namespace gangline::coordinator {
namespace {

constexpr std::size_t kMostNameBytes = 64;

bool is_name(std::string_view name) {
    const auto is_good = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               std::string_view("._-@+").find(c) != std::string_view::npos;
    };
    return !name.empty() && name.size() <= kMostNameBytes && name[0] != '-' && name[0] != '.' &&
           std::all_of(name.begin(), name.end(), is_good);
}

std::optional<Role> role_of(std::string_view text) {
    if (text == "user") return Role::User;
    if (text == "operator") return Role::Operator;
    if (text == "admin") return Role::Admin;
    return std::nullopt;
}

std::vector<std::string> words_of(const std::string& line) {
    std::istringstream stream(line);
    std::vector<std::string> words;
    // A key may hold '#' but cannot begin with it (the first of five characters is at most '%').
    for (std::string word; stream >> word && word[0] != '#';) {
        words.push_back(std::move(word));
    }
    return words;
}

Result<Principal> principal_of(const std::vector<std::string>& words) {
    const auto wrong = [](std::string message) { return Error{Code::InvalidArgument, std::move(message)}; };
    if (words.size() != 4) {
        return wrong(fmt::format("{} words, not 4: write `node NAME - KEY` or `user NAME user|operator|admin KEY`", words.size()));
    }
    Principal principal;
    principal.name = words[1];
    principal.public_key = words[3];
    if (!is_name(principal.name)) {
        return wrong(fmt::format("name '{}': letters, digits and . _ - @ + are accepted, at most {}, not starting with . or -", words[1],
                                 kMostNameBytes));
    }
    if (words[0] == "node") {
        principal.kind = PrincipalKind::Node;
        if (words[2] != "-") return wrong(fmt::format("role '{}' of a node: nodes have no role, write -", words[2]));
    } else if (words[0] == "user") {
        principal.kind = PrincipalKind::User;
        const auto role = role_of(words[2]);
        if (!role) return wrong(fmt::format("role '{}': user, operator or admin are accepted", words[2]));
        principal.role = *role;
    } else {
        return wrong(fmt::format("kind '{}': node or user are accepted", words[0]));
    }
    if (!is_public_key(principal.public_key)) {
        return wrong(fmt::format("key '{}': the 40 characters of a public key are expected, as `gangline keys new` prints them", words[3]));
    }
    return principal;
}

}  // namespace

Result<std::vector<Principal>> parse_authorised(std::string_view text, const std::string& path) {
    std::vector<Principal> principals;
    std::map<std::string, std::size_t> line_of_key;
    std::size_t number = 0;
    for (const std::string& line : split(text, '\n')) {
        ++number;
        const auto words = words_of(line);
        if (words.empty()) continue;
        auto principal = principal_of(words);
        if (!principal) return Error{Code::InvalidArgument, fmt::format("{}:{}: {}", path, number, principal.error().message)};
        const auto [old, is_new] = line_of_key.emplace(principal->public_key, number);
        if (!is_new) {
            return Error{Code::InvalidArgument, fmt::format("{}:{}: the key of line {} again: one key stands for one name", path, number, old->second)};
        }
        principals.push_back(std::move(*principal));
    }
    return principals;
}

Result<std::vector<Principal>> read_authorised(const std::string& path) {
    const Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (!fd) return errno_error("cannot open the authorised file " + path);
    struct stat about = {};
    if (::fstat(fd.get(), &about) != 0) return errno_error("cannot examine " + path);
    if (!S_ISREG(about.st_mode)) return Error{Code::Refused, fmt::format("{} is not a regular file", path)};
    if (about.st_uid != ::geteuid() && about.st_uid != 0) {
        return Error{Code::Refused, fmt::format("{} belongs to user {}: whoever owns it could let himself in", path, about.st_uid)};
    }
    if ((about.st_mode & 022U) != 0) {
        return Error{Code::Refused, fmt::format("{} may be written by others (mode {:04o}): chmod go-w {}", path, about.st_mode & 07777U,
                                                shell_quote(path))};
    }
    const auto text = read_file(fmt::format("/proc/self/fd/{}", fd.get()), 16u << 20);
    if (!text) return Error{text.error().code, fmt::format("cannot read {}: {}", path, text.error().message)};
    return parse_authorised(*text, path);
}

FileWatch::FileWatch(std::string path) : path_(std::move(path)), last_(look()) {}

FileWatch::Status FileWatch::look() const {
    struct stat about = {};
    if (::stat(path_.c_str(), &about) != 0) return {};
    return {about.st_mtim.tv_sec, about.st_mtim.tv_nsec, about.st_size, about.st_ino};
}

bool FileWatch::has_changed() {
    const Status now = look();
    const bool changed = !(now == last_);
    last_ = now;
    return changed;
}

}  // namespace gangline::coordinator
