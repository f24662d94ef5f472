#include "runner/shepherd/patient_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace gangline::runner {

PatientFile::PatientFile(Fd fd, std::string path, WaitingBytes& waiting)
    : fd_(std::move(fd)), path_(std::move(path)), waiting_(waiting) {}

PatientFile::~PatientFile() { waiting_.now -= buffer_.size(); }

bool PatientFile::append(std::string_view bytes) {
    if (is_failing() && waiting_.now + bytes.size() > waiting_.most) {
        lost_ += bytes.size();
        return false;
    }
    buffer_.append(bytes);
    waiting_.now += bytes.size();
    return true;
}

void PatientFile::flush(TimePoint now) {
    if (buffer_.empty() || (is_failing() && now < retry_at_)) return;
    std::size_t done = 0;
    failure_.clear();
    while (done < buffer_.size()) {
        const ssize_t n = ::write(fd_.get(), buffer_.data() + done, buffer_.size() - done);
        if (n > 0) {
            done += static_cast<std::size_t>(n);
        } else if (n == 0 || errno != EINTR) {
            failure_ = n == 0 ? "nothing was written" : std::strerror(errno);
            retry_at_ = now + kRetryEvery;
            break;
        }
    }
    buffer_.erase(0, done);
    waiting_.now -= done;
}

TimePoint PatientFile::next_deadline() const { return buffer_.empty() ? TimePoint::max() : retry_at_; }

Result<Fd> open_user_file(const std::string& path, bool truncate) {
    // Truncated only once it is known to be a regular file.
    Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644));
    if (!fd) return errno_error("cannot open the output file " + path);
    struct stat info {};
    if (::fstat(fd.get(), &info) != 0) return errno_error("cannot look at the output file " + path);
    const bool is_null = S_ISCHR(info.st_mode) && info.st_rdev == makedev(1, 3);
    if (!S_ISREG(info.st_mode) && !is_null && ::isatty(fd.get()) == 0) {
        return Error{Code::Refused, fmt::format("the output file {} is neither a regular file nor a terminal nor /dev/null", path)};
    }
    if (truncate && S_ISREG(info.st_mode) && ::ftruncate(fd.get(), 0) != 0) {
        return errno_error("cannot empty the output file " + path);
    }
    return fd;
}

}  // namespace gangline::runner
