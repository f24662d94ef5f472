#include "checkpoint/tool/pin.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include <fmt/format.h>

#include "checkpoint/marks.h"

namespace gangline::checkpoint::tool {
namespace {

Result<Fd> open_folder(int root, const Place& place, const CheckpointId& id) {
    Fd folder(::openat(root, folder_name(id).c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder && errno == ENOENT) return Error{Code::NotFound, fmt::format("{}: no checkpoint {}; `gangline ckpt ls {}` shows what is there", place.root, folder_name(id), place.root)};
    if (!folder) return errno_error(fmt::format("cannot open {}/{}", place.root, folder_name(id)));
    return folder;
}

Error named(const Place& place, const CheckpointId& id, const Error& error) { return {error.code, fmt::format("{}/{}: {}", place.root, folder_name(id), error.message)}; }

}  // namespace

// Whoever deletes takes the name first and then looks for a pin; here the pin comes first and then the name is looked for.
Result<void> pin(const Place& place, const CheckpointId& id) {
    const auto root = open_root(place);
    if (!root) return root.error();
    const auto folder = open_folder(root->get(), place, id);
    if (!folder) return folder.error();
    if (auto pinned = checkpoint::pin(real_disk(), folder->get()); !pinned) return named(place, id, pinned.error());
    struct stat here {};
    struct stat there {};
    const bool has_name = ::fstat(folder->get(), &here) == 0 && ::fstatat(root->get(), folder_name(id).c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
                          here.st_ino == there.st_ino && here.st_dev == there.st_dev;
    if (!has_name) return named(place, id, {Code::Refused, "it is being deleted"});
    return {};
}

Result<void> unpin(const Place& place, const CheckpointId& id) {
    const auto root = open_root(place);
    if (!root) return root.error();
    const auto folder = open_folder(root->get(), place, id);
    if (!folder) return folder.error();
    if (auto unpinned = checkpoint::unpin(real_disk(), folder->get()); !unpinned) return named(place, id, unpinned.error());
    return {};
}

}  // namespace gangline::checkpoint::tool
