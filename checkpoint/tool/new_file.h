#pragma once
// A file that stands under its name only when it is whole: no name (O_TMPFILE), fsync, a name, fsync of the folder.
//
// Never follows a link in the file's place. Without publish() nothing is left, also by SIGKILL; only on a file system
// without O_TMPFILE it has a temporary name, which a killed process leaves. Thread rule: one thread an object.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/handle.h"
#include "base/result.h"

namespace gangline::checkpoint::tool {

enum class Existing { Refuse, Replace };

class NewFile {
  public:
    // Errors: InvalidArgument: no such folder; Refused: something is there already (Replace replaces a regular file only).
    static Result<NewFile> create(const std::string& path, Existing existing);
    NewFile(NewFile&&) = default;
    NewFile& operator=(NewFile&&) = delete;
    ~NewFile();

    // Space ahead, so that a full disk is met before the work. Errors: NoSpace. A file system that cannot gives none.
    Result<void> reserve(std::uint64_t bytes);
    Result<void> write(std::string_view bytes);
    Result<void> write_at(std::string_view bytes, std::uint64_t place);
    std::uint64_t size() const { return size_; }  // what write() has written
    Result<void> publish();

  private:
    NewFile() = default;
    Error failed(const std::string& doing) const;
    std::string own_path() const;
    int give_name() const;

    std::string path_;
    std::string name_;
    std::string temporary_;  // empty while it has no name
    Existing existing_ = Existing::Refuse;
    Fd folder_;
    Fd file_;
    std::uint64_t size_ = 0;
};

}  // namespace gangline::checkpoint::tool
