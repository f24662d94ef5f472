#pragma once
// Becoming a user, in the order in which it is safe, every step verified (R13-R15). Only ever called in a freshly forked,
// single-threaded child: glibc changes the identity of all threads of a process, which is a race in any other.

#include <sys/types.h>

#include <vector>

#include "base/protocol/node.pb.h"
#include "base/result.h"

namespace gangline::runner {

// May this ticket's user be started here? The name and the number must agree with this node's own user table; root, nobody
// and numbers below min_uid are refused. Errors: Refused.
Result<void> check_user(const proto::TicketClaims& claims, uid_t min_uid, bool allow_root);

// Groups, then group, then user; afterwards proves it and that root cannot be had back. Errors: Internal: the caller must _exit.
Result<void> become_user(uid_t uid, gid_t gid, const std::vector<gid_t>& groups, bool no_new_privileges);

}  // namespace gangline::runner
