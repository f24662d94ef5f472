#include "checkpoint/tool/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "base/process.h"

namespace gangline::checkpoint::tool {
namespace {

std::string temporary_name(const std::string& name) { return fmt::format(".{}.{}", name.substr(0, 200), random_hex(6)); }

}  // namespace

Error NewFile::failed(const std::string& doing) const {
    Error error = errno_error(fmt::format("--output '{}': {}", path_, doing));
    if (error.code == Code::NoSpace) error.message += "; free some space, or choose another disk";
    return error;
}

Result<NewFile> NewFile::create(const std::string& path, Existing existing) {
    NewFile made;
    made.path_ = path;
    made.existing_ = existing;
    const std::filesystem::path whole(path);
    made.name_ = whole.filename().string();
    const std::string parent = whole.has_parent_path() ? whole.parent_path().string() : ".";
    if (made.name_.empty() || made.name_ == "." || made.name_ == "..") {
        return Error{Code::InvalidArgument, fmt::format("--output '{}': write the name of a file", path)};
    }
    made.folder_ = Fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!made.folder_) {
        return Error{Code::InvalidArgument, fmt::format("--output '{}': folder {}: {}; make it first", path, parent, std::strerror(errno))};
    }
    struct stat status {};
    const bool is_of_checkpoint = made.name_ == "MANIFEST" || (made.name_.starts_with("shard-") && made.name_.ends_with(".h5"));
    if (is_of_checkpoint && ::fstatat(made.folder_.get(), "MANIFEST", &status, AT_SYMLINK_NOFOLLOW) == 0) {
        return Error{Code::Refused, fmt::format("--output '{}': that is a file of a checkpoint; choose another name", path)};
    }
    if (::fstatat(made.folder_.get(), made.name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
        if (!S_ISREG(status.st_mode)) {
            return Error{Code::Refused, fmt::format("--output '{}': it exists and is not a regular file (links are not followed); choose another name", path)};
        }
        if (existing == Existing::Refuse) {
            return Error{Code::Refused, fmt::format("--output '{}': it exists; --force replaces it, or choose another name", path)};
        }
    }
    made.file_ = Fd(::openat(made.folder_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666));
    if (made.file_) return made;
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return made.failed("cannot create a file in " + parent);
    made.temporary_ = temporary_name(made.name_);
    made.file_ = Fd(::openat(made.folder_.get(), made.temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!made.file_) return made.failed("cannot create a file in " + parent);
    return made;
}

NewFile::~NewFile() {
    if (folder_ && file_ && !temporary_.empty()) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
}

std::string NewFile::own_path() const { return fmt::format("/proc/self/fd/{}", file_.get()); }

Result<void> NewFile::reserve(std::uint64_t bytes) {
    while (bytes > 0 && ::fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) != 0) {
        if (errno == EINTR) continue;
        if (errno == EOPNOTSUPP || errno == ENOSYS) break;
        return failed(fmt::format("no room for its {} bytes", bytes));
    }
    return {};
}

Result<void> NewFile::write(std::string_view bytes) {
    if (auto written = write_at(bytes, size_); !written) return written;
    size_ += bytes.size();
    return {};
}

Result<void> NewFile::write_at(std::string_view bytes, std::uint64_t place) {
    while (!bytes.empty()) {
        const ssize_t n = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(place));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed("cannot write it");
        bytes.remove_prefix(static_cast<std::size_t>(n));
        place += static_cast<std::uint64_t>(n);
    }
    return {};
}

// A link never replaces what is there, a rename does.
int NewFile::give_name() const {
    if (existing_ == Existing::Replace) return ::renameat(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str());
    const int done = temporary_.empty() ? ::linkat(AT_FDCWD, own_path().c_str(), folder_.get(), name_.c_str(), AT_SYMLINK_FOLLOW)
                                        : ::linkat(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str(), 0);
    if (done == 0 && !temporary_.empty()) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
    return done;
}

Result<void> NewFile::publish() {
    if (::fsync(file_.get()) != 0) return failed("cannot fsync it");
    if (existing_ == Existing::Replace && temporary_.empty()) {
        const std::string temporary = temporary_name(name_);
        if (::linkat(AT_FDCWD, own_path().c_str(), folder_.get(), temporary.c_str(), AT_SYMLINK_FOLLOW) != 0) return failed("cannot name it");
        temporary_ = temporary;
    }
    const int done = give_name();
    if (done != 0 && errno == EEXIST) {
        return Error{Code::Refused, fmt::format("--output '{}': it exists by now; --force replaces it, or choose another name", path_)};
    }
    if (done != 0) return failed("cannot rename it");
    file_.reset();
    if (::fsync(folder_.get()) != 0) return failed("cannot fsync its folder");
    return {};
}

}  // namespace gangline::checkpoint::tool
