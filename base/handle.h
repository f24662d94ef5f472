#pragma once
// One owner for what a C interface hands out. Traits: `using Value`, `static Value none()`, `static void close(Value)`.

#include <unistd.h>

#include <utility>

namespace gangline {

template <class Traits>
class Handle {
  public:
    using Value = typename Traits::Value;
    Handle() : value_(Traits::none()) {}
    explicit Handle(Value value) : value_(value) {}
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    Handle(Handle&& other) noexcept : value_(other.release()) {}
    Handle& operator=(Handle&& other) noexcept {
        if (this != &other) reset(other.release());
        return *this;
    }
    ~Handle() { reset(); }
    Value get() const { return value_; }
    explicit operator bool() const { return value_ != Traits::none(); }
    Value release() { return std::exchange(value_, Traits::none()); }
    void reset(Value value = Traits::none()) {
        Value old = std::exchange(value_, value);
        if (old != Traits::none()) Traits::close(old);
    }

  private:
    Value value_;
};

struct FdTraits {
    using Value = int;
    static int none() { return -1; }
    static void close(int fd) { ::close(fd); }
};
using Fd = Handle<FdTraits>;

}  // namespace gangline
