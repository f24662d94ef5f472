#pragma once
// One epoll and who is called for each descriptor: the shepherd's event loop.
//
// A callback may watch and forget any descriptor, its own included: what was forgotten in this turn is not called any
// more, even if its number was given out again.
//
// Thread rule: one thread.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/handle.h"
#include "base/result.h"
#include "base/time.h"

namespace gangline::runner {

struct Ready {
    bool readable = false;  // or at its end, or broken: read to find out
    bool writable = false;
};

class Loop {
  public:
    using Callback = std::function<void(Ready)>;

    static Result<std::unique_ptr<Loop>> create();
    // Calls `callback` in each turn in which `fd` is readable. Errors: Internal.
    Result<void> watch(int fd, Callback callback);
    // Also (or no more) when it takes bytes. `reading` off: not called for what there is to read.
    void want(int fd, bool reading, bool writing);
    void forget(int fd);  // before it is closed; an unknown one is fine
    // Waits for something, or until `until`; one turn of callbacks.
    void turn(TimePoint until);

  private:
    struct Watched {
        int fd = -1;
        std::shared_ptr<Callback> callback;
    };
    Fd epoll_;
    std::uint64_t next_token_ = 1;
    std::map<std::uint64_t, Watched> by_token_;
    std::map<int, std::uint64_t> tokens_;
};

}  // namespace gangline::runner
