#pragma once
// From a verified name to uid, gid, groups and home (R5): NSS on the coordinator's machine, never the message's body.
//
// Answers are kept for a minute. Thread rule: one thread; a look-up may wait for the machine's name service.

#include <sys/types.h>

#include <map>
#include <string>

#include "base/result.h"
#include "base/time.h"
#include "base/wire/wire.h"
#include "coordinator/brain/brain.h"

namespace gangline::coordinator {

struct IdentityRules {
    uid_t own_uid = 0;           // the coordinator's own user is always accepted: a cluster of one user
    uid_t least_uid = 1000;      // below are system accounts
    bool allow_root = false;
};

class Identities {
  public:
    explicit Identities(IdentityRules rules) : rules_(rules) {}

    // Errors: Refused: no such account, or one that may not run jobs.
    Result<Caller> account_of(const std::string& user, TimePoint now);
    // Name and role alone, for verbs that run nothing.
    static Caller name_of(const Principal& principal);

  private:
    struct Known {
        Result<Caller> account;
        TimePoint until;
    };
    Result<Caller> look_up(const std::string& user) const;
    IdentityRules rules_;
    std::map<std::string, Known> known_;
};

}  // namespace gangline::coordinator
