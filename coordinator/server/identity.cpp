#include "coordinator/server/identity.h"

#include <grp.h>
#include <pwd.h>

#include <cerrno>
#include <vector>

#include <fmt/format.h>

namespace gangline::coordinator {
namespace {

constexpr Duration kKeep = seconds(60);
constexpr std::size_t kMostKnown = 10'000;
constexpr uid_t kNobody = 65534;
constexpr std::size_t kMostPasswdBytes = 1 << 20;

std::vector<std::uint32_t> groups_of(const char* name, gid_t gid) {
    std::vector<gid_t> groups(64);
    int count = static_cast<int>(groups.size());
    while (::getgrouplist(name, gid, groups.data(), &count) < 0 && groups.size() < 65'536) {
        groups.resize(std::max(static_cast<std::size_t>(count), groups.size() * 2));
        count = static_cast<int>(groups.size());
    }
    groups.resize(static_cast<std::size_t>(count));
    return {groups.begin(), groups.end()};
}

}  // namespace

Caller Identities::name_of(const Principal& principal) {
    Caller caller;
    caller.user = principal.name;
    caller.is_operator = principal.role >= Role::Operator;
    return caller;
}

Result<Caller> Identities::account_of(const std::string& user, TimePoint now) {
    const auto found = known_.find(user);
    if (found != known_.end() && now < found->second.until) return found->second.account;
    if (known_.size() > kMostKnown) known_.clear();
    auto account = look_up(user);
    known_.insert_or_assign(user, Known{account, now + kKeep});
    return account;
}

Result<Caller> Identities::look_up(const std::string& user) const {
    std::vector<char> buffer(4096);
    passwd entry = {};
    passwd* found = nullptr;
    int error = 0;
    while ((error = ::getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found)) == ERANGE && buffer.size() < kMostPasswdBytes) {
        buffer.resize(buffer.size() * 2);
    }
    if (found == nullptr) {
        return Error{Code::Refused,
                     fmt::format("{} has no account on the coordinator's machine{}: jobs run as an account of that name", user,
                                 error != 0 ? fmt::format(" (name service: error {})", error) : "")};
    }
    const bool is_own = found->pw_uid == rules_.own_uid;
    if (found->pw_uid == 0 && !is_own && !rules_.allow_root) {
        return Error{Code::Refused, fmt::format("{} is root: jobs run as root only with the coordinator's --allow-root", user)};
    }
    const bool is_system = found->pw_uid != 0 && (found->pw_uid < rules_.least_uid || found->pw_uid == kNobody);
    if (is_system && !is_own) {
        return Error{Code::Refused, fmt::format("{} is a system account (uid {}): the coordinator's --min-uid is {}", user, found->pw_uid,
                                                rules_.least_uid)};
    }
    Caller caller;
    caller.user = user;
    caller.uid = found->pw_uid;
    caller.gid = found->pw_gid;
    caller.home = found->pw_dir != nullptr ? found->pw_dir : "";
    caller.groups = groups_of(found->pw_name, found->pw_gid);
    return caller;
}

}  // namespace gangline::coordinator
