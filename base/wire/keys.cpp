#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <cerrno>
#include <filesystem>

#include <fmt/format.h>

#include "base/check.h"
#include "base/handle.h"
#include "base/process.h"
#include "base/text.h"
#include "base/wire/secret_file.h"
#include "base/wire/wire.h"

namespace gangline {
namespace {

constexpr std::size_t kZ85Characters = 40;

std::string folder_of(const std::string& path) {
    const std::filesystem::path file(path);
    return file.has_parent_path() ? file.parent_path().string() : ".";
}

Result<void> check_folder(const std::string& path) {
    const std::string folder = folder_of(path);
    const Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    struct stat about = {};
    if (!fd || ::fstat(fd.get(), &about) != 0) return errno_error("cannot open the folder " + folder);
    if ((about.st_mode & 022U) != 0) {
        return Error{Code::Refused,
                     fmt::format("the folder {} may be written by others (mode {:04o}), so its keys prove nothing: chmod go-w {}",
                                 folder, about.st_mode & 07777U, shell_quote(folder))};
    }
    return {};
}

}  // namespace

Result<std::string> read_secret_file(const std::string& path) {
    const Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd) return errno_error("cannot open the key file " + path);
    struct stat about = {};
    if (::fstat(fd.get(), &about) != 0) return errno_error("cannot examine the key file " + path);
    if (!S_ISREG(about.st_mode)) return Error{Code::Refused, fmt::format("the key file {} is not a regular file", path)};
    if (about.st_uid != ::geteuid()) {
        return Error{Code::Refused, fmt::format("the key file {} belongs to user {}, not to {}: use a key of your own", path,
                                                about.st_uid, ::geteuid())};
    }
    if ((about.st_mode & 077U) != 0) {
        return Error{Code::Refused, fmt::format("the key file {} is open to others (mode {:04o}): chmod 600 {}", path,
                                                about.st_mode & 07777U, shell_quote(path))};
    }
    if (auto folder = check_folder(path); !folder) return folder.error();
    std::string content(kMostSecretFileBytes + 1, '\0');
    std::size_t size = 0;
    while (size < content.size()) {
        const ssize_t n = ::read(fd.get(), content.data() + size, content.size() - size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno_error("cannot read the key file " + path);
        if (n == 0) break;
        size += static_cast<std::size_t>(n);
    }
    if (size > kMostSecretFileBytes) {
        return Error{Code::InvalidArgument, fmt::format("{} is longer than {} bytes: not a key file", path, kMostSecretFileBytes)};
    }
    content.resize(size);
    return content;
}

Result<void> write_secret_file(const std::string& path, std::string_view content) {
    if (auto folder = check_folder(path); !folder) return folder.error();
    // Written under another name and then linked: the file is whole or absent, and link() never replaces one.
    const std::string temporary = fmt::format("{}.{}", path, random_hex(6));
    const Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd) return errno_error("cannot create the key file " + path);
    Result<void> done;
    if (::fchmod(fd.get(), 0600) != 0) done = errno_error("cannot set the mode of " + temporary);
    if (done) done = write_all(fd.get(), content);
    if (done && ::fsync(fd.get()) != 0) done = errno_error("cannot fsync " + temporary);
    if (done && ::link(temporary.c_str(), path.c_str()) != 0) {
        done = errno == EEXIST ? Error{Code::Refused, fmt::format("{} exists: a key is never overwritten; delete it first, or name another file", path)}
                               : errno_error("cannot create the key file " + path);
    }
    ::unlink(temporary.c_str());
    return done;
}

void forget_secret(std::string& secret) {
    if (!secret.empty()) sodium_memzero(secret.data(), secret.size());
    secret.clear();
}

KeyPair new_key_pair() {
    char public_key[kZ85Characters + 1] = {};
    char secret_key[kZ85Characters + 1] = {};
    CHECK(zmq_curve_keypair(public_key, secret_key) == 0, "libzmq was built with CURVE");
    KeyPair keys{public_key, secret_key};
    sodium_memzero(secret_key, sizeof secret_key);
    return keys;
}

Result<std::string> public_key_of(const std::string& secret_key) {
    char public_key[kZ85Characters + 1] = {};
    if (secret_key.size() != kZ85Characters || zmq_curve_public(public_key, secret_key.c_str()) != 0) {
        return Error{Code::InvalidArgument, "a secret key is 40 characters of Z85 text: make one with `gangline keys new`"};
    }
    return std::string(public_key);
}

bool is_public_key(const std::string& text) {
    std::uint8_t bytes[32];
    return text.size() == kZ85Characters && zmq_z85_decode(bytes, text.c_str()) != nullptr;
}

Result<KeyPair> read_key_file(const std::string& path) {
    auto content = read_secret_file(path);
    if (!content) return content.error();
    KeyPair keys;
    for (const std::string& line : split(*content, '\n')) {
        const std::string_view text = trim(line);
        if (text.starts_with("public ")) keys.public_key = trim(text.substr(7));
        if (text.starts_with("secret ")) keys.secret_key = trim(text.substr(7));
    }
    forget_secret(*content);
    if (keys.secret_key.empty()) {
        return Error{Code::InvalidArgument, fmt::format("{} has no line `secret KEY`: make a key file with `gangline keys new`", path)};
    }
    const auto derived = public_key_of(keys.secret_key);
    if (!derived) return Error{Code::InvalidArgument, fmt::format("{}: {}", path, derived.error().message)};
    if (keys.public_key.empty()) keys.public_key = *derived;
    if (keys.public_key != *derived) {
        return Error{Code::InvalidArgument, fmt::format("{}: the public key does not belong to the secret one", path)};
    }
    return keys;
}

Result<void> write_key_file(const std::string& path, const KeyPair& keys, std::string_view comment) {
    std::string content = fmt::format("# {}\npublic {}\nsecret {}\n", comment, keys.public_key, keys.secret_key);
    auto written = write_secret_file(path, content);
    forget_secret(content);
    return written;
}

std::uint64_t KeyTable::add(Principal principal) {
    const std::lock_guard lock(mutex_);
    if (const auto old = by_key_.find(principal.public_key); old != by_key_.end()) rows_.erase(old->second);
    principal.row = next_row_++;
    by_key_[principal.public_key] = principal.row;
    const std::uint64_t row = principal.row;
    rows_.emplace(row, std::move(principal));
    return row;
}

void KeyTable::remove(std::uint64_t row) {
    const std::lock_guard lock(mutex_);
    const auto found = rows_.find(row);
    if (found == rows_.end()) return;
    by_key_.erase(found->second.public_key);
    rows_.erase(found);
}

void KeyTable::replace(PrincipalKind a, PrincipalKind b, std::vector<Principal> principals) {
    const std::lock_guard lock(mutex_);
    std::map<std::string, std::uint64_t> kept;
    for (const auto& [row, principal] : rows_) {
        if (principal.kind == a || principal.kind == b) kept.emplace(principal.public_key, row);
    }
    for (Principal& principal : principals) {
        const auto old = kept.find(principal.public_key);
        // A row means one principal for ever: a key that now stands for somebody else gets a new one.
        const bool same = old != kept.end() && rows_.at(old->second).kind == principal.kind &&
                          rows_.at(old->second).name == principal.name;
        if (!same && by_key_.contains(principal.public_key) && old == kept.end()) continue;  // Held by another kind.
        if (old != kept.end()) {
            if (!same) rows_.erase(old->second);
            principal.row = same ? old->second : next_row_++;
            kept.erase(old);
        } else {
            principal.row = next_row_++;
        }
        by_key_[principal.public_key] = principal.row;
        rows_[principal.row] = std::move(principal);
    }
    for (const auto& [key, row] : kept) {
        rows_.erase(row);
        by_key_.erase(key);
    }
}

std::optional<Principal> KeyTable::by_row(std::uint64_t row) const {
    const std::lock_guard lock(mutex_);
    const auto found = rows_.find(row);
    if (found == rows_.end()) return std::nullopt;
    return found->second;
}

std::optional<Principal> KeyTable::by_key(const std::string& public_key) const {
    const std::lock_guard lock(mutex_);
    const auto found = by_key_.find(public_key);
    if (found == by_key_.end()) return std::nullopt;
    return rows_.at(found->second);
}

std::size_t KeyTable::size() const {
    const std::lock_guard lock(mutex_);
    return rows_.size();
}

}  // namespace gangline
