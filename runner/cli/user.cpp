#include "runner/cli/user.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

namespace gangline::runner {

ThisUser this_user() {
    const passwd* const entry = ::getpwuid(::getuid());
    if (entry != nullptr) return {entry->pw_name, entry->pw_dir, entry->pw_shell};
    const char* const home = std::getenv("HOME");
    return {std::to_string(::getuid()), home == nullptr ? "/" : home, "/bin/sh"};
}

}  // namespace gangline::runner
