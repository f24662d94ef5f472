#pragma once
// The file that says whose keys are let in. One line a key, `#` starts a comment:
//
//   node n0    -        <40 characters of Z85>
//   user alice admin    <40 characters of Z85>
//
// Roles: user < operator < admin. One name may have several keys (rotation, several machines); one key stands for one
// name. The file grants rights, so nobody but its owner may be able to write it.

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/wire/wire.h"

namespace gangline::coordinator {

// Errors: InvalidArgument, naming file, line, what is wrong and what is accepted.
Result<std::vector<Principal>> parse_authorised(std::string_view text, const std::string& path);
// Errors: also Refused (owner or mode), NotFound.
Result<std::vector<Principal>> read_authorised(const std::string& path);

// Notices a change of the file by its status: modification time, size and inode.
class FileWatch {
  public:
    explicit FileWatch(std::string path);
    bool has_changed();  // since the last call

  private:
    struct Status {
        std::int64_t seconds = 0;
        std::int64_t nanoseconds = 0;
        std::int64_t size = -1;
        std::uint64_t inode = 0;
        friend bool operator==(const Status&, const Status&) = default;
    };
    Status look() const;
    std::string path_;
    Status last_;
};

}  // namespace gangline::coordinator
