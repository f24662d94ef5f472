#pragma once
// Result<T>: a value, or an Error whose code tells the caller what to do about it.
//
// Expected failures travel as Result; a bug is a CHECK (check.h); a refusal by design is a value with its reason.

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace gangline {

enum class Code {
    InvalidArgument,  // The caller's input is wrong: correct it. Exit code 2.
    Refused,          // Policy says no. Exit code 3.
    Unavailable,      // Not reachable now: try again, or bring it up. Exit code 4.
    NotFound,         // No such thing. Exit code 3.
    NoSpace,          // Disk or quota is full: nothing was written that counts.
    Damaged,          // Stored bytes are not what was written: take another copy.
    Deadline,         // The wait ended before the answer came.
    Internal,         // A system call failed in a way nobody planned for.
};

struct Error {
    Code code = Code::Internal;
    std::string message;
};

template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) : value_(std::move(value)) {}        // NOLINT(google-explicit-constructor)
    Result(Error error) : error_(std::move(error)) {}    // NOLINT(google-explicit-constructor)
    bool ok() const { return value_.has_value(); }
    explicit operator bool() const { return ok(); }
    T& value() & { CHECK(ok(), "value() of a failed Result: " + error_.message); return *value_; }
    const T& value() const& { CHECK(ok(), "value() of a failed Result: " + error_.message); return *value_; }
    T&& value() && { CHECK(ok(), "value() of a failed Result: " + error_.message); return std::move(*value_); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T&& operator*() && { return std::move(*this).value(); }
    const Error& error() const { CHECK(!ok(), "error() of a good Result"); return error_; }

  private:
    std::optional<T> value_;
    Error error_;
};

template <>
class [[nodiscard]] Result<void> {
  public:
    Result() = default;
    Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
    bool ok() const { return !error_.has_value(); }
    explicit operator bool() const { return ok(); }
    const Error& error() const { CHECK(!ok(), "error() of a good Result"); return *error_; }

  private:
    std::optional<Error> error_;
};

// The error of a failed system call: `what` failed, and why by errno (read at once, before anything else can change it).
Error errno_error(const std::string& what, Code code = Code::Internal);

}  // namespace gangline
