#include "runner/agent/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "base/handle.h"
#include "base/output_log.h"
#include "base/result.h"

namespace gangline::runner {
namespace {

constexpr std::uint64_t kMostPiece = 512 * 1024;

// The first offset at or behind `at` where a whole record begins; a tail starts in the middle of one.
std::size_t next_boundary(std::string_view bytes, std::size_t at) {
    for (; at < bytes.size(); ++at) {
        if (whole_output_records(bytes.substr(at)) > 0) return at;
    }
    return bytes.size();
}

}  // namespace

proto::LogData read_log(const std::string& folder, const proto::LogRequest& request, bool attempt_ended) {
    proto::LogData data;
    *data.mutable_id() = request.id();
    data.set_request(request.request());
    data.set_next_offset(request.offset());
    const Fd home(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    const Fd fd(home ? ::openat(home.get(), "output.log", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1);
    struct stat owner {};
    struct stat info {};
    if (!fd && errno != ENOENT) {
        data.set_error(errno_error(fmt::format("cannot open the output log in {}", folder)).message);
        data.set_at_end(true);
        data.set_complete(attempt_ended);
        return data;
    }
    if (fd && (::fstat(home.get(), &owner) != 0 || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != owner.st_uid ||
               info.st_nlink != 1)) {
        data.set_error(fmt::format("the output log in {} is not the file that its owner's shepherd wrote", folder));
        data.set_at_end(true);
        data.set_complete(true);
        return data;
    }
    if (!fd) {
        // Before the first line there is no file; when the attempt has ended it is gone for good.
        data.set_at_end(true);
        data.set_complete(attempt_ended);
        return data;
    }
    const auto size = static_cast<std::uint64_t>(info.st_size);
    std::uint64_t from = request.tail() ? (size > request.offset() ? size - request.offset() : 0) : std::min(request.offset(), size);
    const std::uint64_t most = std::clamp<std::uint64_t>(request.limit_bytes(), 128 * 1024, kMostPiece);
    std::string bytes(static_cast<std::size_t>(std::min(most, size - from)), '\0');
    const ssize_t n = ::pread(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(from));
    if (n < 0) {
        data.set_error(errno_error("cannot read the output log").message);
        return data;
    }
    bytes.resize(static_cast<std::size_t>(n));
    if (request.tail()) {
        const std::size_t skip = next_boundary(bytes, 0);
        from += skip;
        bytes.erase(0, skip);
    }
    bytes.resize(whole_output_records(bytes));
    data.set_next_offset(from + bytes.size());
    data.set_at_end(data.next_offset() >= size || bytes.empty());
    data.set_complete(data.at_end() && attempt_ended);
    data.set_records(std::move(bytes));
    return data;
}

}  // namespace gangline::runner
