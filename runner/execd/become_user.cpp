#include "runner/execd/become_user.h"

#include <grp.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace gangline::runner {

Result<void> check_user(const proto::TicketClaims& claims, uid_t min_uid, bool allow_root) {
    const auto refuse = [](std::string why) -> Result<void> { return Error{Code::Refused, std::move(why)}; };
    std::array<char, 16384> buffer{};
    passwd entry{};
    passwd* found = nullptr;
    if (::getpwnam_r(claims.user().c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) {
        return refuse(fmt::format("user '{}' is not known on this node", claims.user()));
    }
    if (found->pw_uid != claims.uid()) {
        return refuse(fmt::format("user '{}' has number {} on this node and {} in the ticket", claims.user(), found->pw_uid, claims.uid()));
    }
    if (claims.uid() == 0) return allow_root ? Result<void>() : refuse("root may not run jobs here (--allow-root)");
    if (claims.uid() == 65534 || claims.user() == "nobody") return refuse("nobody may not run jobs");
    if (claims.uid() < min_uid) return refuse(fmt::format("user '{}' has number {}, below --min-uid {}", claims.user(), claims.uid(), min_uid));
    if (claims.gid() == 0) return refuse("the group of root is not given to users");
    return {};
}

Result<void> become_user(uid_t uid, gid_t gid, const std::vector<gid_t>& groups, bool no_new_privileges) {
    const auto fail = [](const char* what) -> Result<void> { return errno_error(what); };
    std::vector<gid_t> wanted = groups;
    wanted.erase(std::remove(wanted.begin(), wanted.end(), gid_t{0}), wanted.end());
    if (::setgroups(wanted.size(), wanted.data()) != 0) return fail("cannot set the groups");
    if (::setresgid(gid, gid, gid) != 0) return fail("cannot set the group");
    if (::setresuid(uid, uid, uid) != 0) return fail("cannot set the user");
    uid_t ruid = 0, euid = 0, suid = 0;
    gid_t rgid = 0, egid = 0, sgid = 0;
    if (::getresuid(&ruid, &euid, &suid) != 0 || ruid != uid || euid != uid || suid != uid) return Error{Code::Internal, "the user did not change"};
    if (::getresgid(&rgid, &egid, &sgid) != 0 || rgid != gid || egid != gid || sgid != gid) return Error{Code::Internal, "the group did not change"};
    std::vector<gid_t> have(65536);
    const int count = ::getgroups(static_cast<int>(have.size()), have.data());
    if (count < 0) return fail("cannot read the groups back");
    have.resize(static_cast<std::size_t>(count));
    std::sort(have.begin(), have.end());
    std::sort(wanted.begin(), wanted.end());
    if (have != wanted) return Error{Code::Internal, "the groups did not change"};
    if (uid != 0 && (::setresuid(0, 0, 0) == 0 || ::setresgid(0, 0, 0) == 0)) return Error{Code::Internal, "root could be had back"};
    if (no_new_privileges && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return fail("cannot set no_new_privs");
    return {};
}

}  // namespace gangline::runner
