#include "runner/shepherd/loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>

namespace gangline::runner {
namespace {

constexpr std::int64_t kLongestWaitMs = 60'000;

// Rounded up, so that a deadline that is less than a millisecond away is not spun for.
int wait_ms(TimePoint until) {
    const Duration left = until - now().steady;
    if (left <= Duration::zero()) return 0;
    if (left > milliseconds(kLongestWaitMs)) return static_cast<int>(kLongestWaitMs);
    return static_cast<int>(to_ms(left + milliseconds(1) - Duration(1)));
}

}  // namespace

Result<std::unique_ptr<Loop>> Loop::create() {
    auto loop = std::make_unique<Loop>();
    loop->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
    if (!loop->epoll_) return errno_error("cannot make an epoll descriptor");
    return loop;
}

Result<void> Loop::watch(int fd, Callback callback) {
    forget(fd);
    const std::uint64_t token = next_token_++;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = token;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return errno_error("cannot wait on a descriptor");
    by_token_[token] = {fd, std::make_shared<Callback>(std::move(callback))};
    tokens_[fd] = token;
    return {};
}

void Loop::want(int fd, bool reading, bool writing) {
    const auto token = tokens_.find(fd);
    if (token == tokens_.end()) return;
    epoll_event event{};
    event.events = (reading ? EPOLLIN : 0u) | (writing ? EPOLLOUT : 0u);
    event.data.u64 = token->second;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Loop::forget(int fd) {
    const auto token = tokens_.find(fd);
    if (token == tokens_.end()) return;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    by_token_.erase(token->second);
    tokens_.erase(token);
}

void Loop::turn(TimePoint until) {
    std::array<epoll_event, 64> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms(until));
    for (int i = 0; i < count; ++i) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        const auto found = by_token_.find(event.data.u64);
        if (found == by_token_.end()) continue;
        const std::shared_ptr<Callback> callback = found->second.callback;
        (*callback)({(event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0, (event.events & EPOLLOUT) != 0});
    }
}

}  // namespace gangline::runner
