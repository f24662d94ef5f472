#pragma once
// Who runs this process, by the password database: name, home, shell. Where there is no entry: uid number, $HOME, /bin/sh.

#include <string>

namespace gangline::runner {

struct ThisUser {
    std::string name;
    std::string home;
    std::string shell;
};
ThisUser this_user();

}  // namespace gangline::runner
