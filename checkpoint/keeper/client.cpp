#include "checkpoint/keeper/client.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/quiet_thread.h"

namespace gangline::checkpoint {
namespace {

constexpr Duration kReadLimit = seconds(60);  // then it waits anew

}  // namespace


Result<std::unique_ptr<KeeperClient>> KeeperClient::connect(const std::string& keeper_socket, const WhoKeeps& who, Held held) {
    auto socket = connect_abstract(ranks_socket(keeper_socket), SOCK_SEQPACKET);
    if (!socket) return socket.error();
    const auto peer = peer_credentials(socket->get());
    if (!peer || peer->uid != ::geteuid()) return Error{Code::Unavailable, "the keeper is another user's"};
    KeeperMessage join;
    join.kind = KeeperKind::Join;
    join.rank = who.rank;
    join.attempt = who.attempt;
    join.job = who.job;
    join.size = who.most_bytes;
    if (auto sent = send_message(socket->get(), join, who.folder, -1, kKeeperLimit); !sent) return sent.error();
    return std::unique_ptr<KeeperClient>(new KeeperClient(std::move(*socket), who, std::move(held)));
}

KeeperClient::KeeperClient(Fd socket, const WhoKeeps& who, Held held) : socket_(std::move(socket)), who_(who), held_(std::move(held)) {
    reader_ = quiet_thread([this] { read(); });
}

KeeperClient::~KeeperClient() {
    {
        const std::lock_guard lock(answer_mutex_);
        is_stopping_ = true;
    }
    close();
    reader_.join();
    for (const auto& [slot, memory] : mapped_) ::munmap(memory.data, memory.size);
}

bool KeeperClient::is_open() const {
    const std::lock_guard lock(answer_mutex_);
    return is_open_;
}

void KeeperClient::close() {
    {
        const std::lock_guard lock(answer_mutex_);
        is_open_ = false;
    }
    ::shutdown(socket_.get(), SHUT_RDWR);
    answered_.notify_all();
}

void KeeperClient::read() {
    for (;;) {
        auto packet = receive_message(socket_.get(), kReadLimit);
        if (packet && packet->has_value() && (*packet)->message.kind == KeeperKind::Held) {
            if (held_) held_((*packet)->message.step);
            continue;
        }
        {
            const std::lock_guard lock(answer_mutex_);
            if (is_stopping_) return;
            if (!packet) is_open_ = false;
            if (packet && packet->has_value()) answer_ = std::move(**packet);
        }
        answered_.notify_all();
        if (!packet) return;
    }
}

// With mutex_ held. A line on which anything went wrong is closed: a late answer would be taken for the next question's.
Result<KeeperPacket> KeeperClient::ask(const KeeperMessage& message) {
    {
        const std::lock_guard lock(answer_mutex_);
        answer_.reset();
    }
    if (auto told = tell(message); !told) return told.error();
    {
        std::unique_lock lock(answer_mutex_);
        answered_.wait_for(lock, kKeeperLimit, [&] { return answer_.has_value() || !is_open_; });
        if (answer_) return std::move(*std::exchange(answer_, std::nullopt));
        if (!is_open_) return Error{Code::Unavailable, "the keeper is gone"};
    }
    close();
    return Error{Code::Unavailable, fmt::format("the keeper gave no answer for {} s", to_ms(kKeeperLimit) / 1000)};
}

Result<void> KeeperClient::tell(const KeeperMessage& message, std::string_view text) {
    if (!is_open()) return Error{Code::Unavailable, "the keeper is gone"};
    auto sent = send_message(socket_.get(), message, text, -1, kKeeperLimit);
    if (!sent) close();
    return sent;
}

Result<KeeperClient::Place> KeeperClient::want(std::uint64_t size) {
    const std::lock_guard lock(mutex_);
    KeeperMessage message;
    message.kind = KeeperKind::Want;
    message.size = size;
    const auto answer = ask(message);
    if (!answer) return answer.error();
    if (answer->message.kind != KeeperKind::Slot || !answer->fd || answer->message.size < size) return Error{Code::NoSpace, answer->text};
    std::erase_if(mapped_, [&](const auto& one) {  // of smaller snapshots: never given again
        if (one.second.size >= size) return false;
        ::munmap(one.second.data, one.second.size);
        return true;
    });
    const std::uint64_t slot = answer->message.slot;
    if (const auto known = mapped_.find(slot); known != mapped_.end()) return Place{slot, &known->second};
    void* const mapped = ::mmap(nullptr, answer->message.size, PROT_READ | PROT_WRITE, MAP_SHARED, answer->fd.get(), 0);
    if (mapped == MAP_FAILED) return Error{Code::NoSpace, fmt::format("cannot map {} bytes of the keeper's memory", answer->message.size)};
    (void)::madvise(mapped, answer->message.size, MADV_HUGEPAGE);
    if (::madvise(mapped, answer->message.size, MADV_POPULATE_WRITE) != 0 && errno == ENOMEM) {
        ::munmap(mapped, answer->message.size);
        return Error{Code::NoSpace, fmt::format("no memory for a copy of {} bytes", size)};
    }
    return Place{slot, &(mapped_[slot] = {static_cast<char*>(mapped), answer->message.size, 0})};
}

Result<void> KeeperClient::whole(std::uint64_t slot, std::uint64_t step, std::uint64_t image_size, std::uint64_t part_size) {
    const std::lock_guard lock(mutex_);
    KeeperMessage message;
    message.kind = KeeperKind::Whole;
    message.slot = slot;
    message.step = step;
    message.size = image_size;
    message.part_size = part_size;
    return tell(message);
}

Result<void> KeeperClient::durable(std::uint64_t step) {
    const std::lock_guard lock(mutex_);
    KeeperMessage message;
    message.kind = KeeperKind::Durable;
    message.step = step;
    return tell(message);
}

std::optional<KeeperClient::Snapshot> KeeperClient::find(std::uint32_t rank, std::uint32_t attempt, std::uint64_t step) {
    const std::lock_guard lock(mutex_);
    KeeperMessage message;
    message.kind = KeeperKind::Find;
    message.rank = rank;
    message.attempt = attempt;
    message.step = step;
    auto answer = ask(message);
    if (!answer || answer->message.kind != KeeperKind::Found || !answer->fd || answer->message.part_size > kMostPartBytes) return std::nullopt;
    return Snapshot{std::move(answer->fd), answer->message.size, answer->message.part_size};
}

std::optional<std::string> KeeperClient::where() {
    const std::lock_guard lock(mutex_);
    KeeperMessage message;
    message.kind = KeeperKind::Where;
    auto answer = ask(message);
    if (!answer || answer->message.kind != KeeperKind::Here) return std::nullopt;
    return std::move(answer->text);
}

Result<void> KeeperClient::set_peer(const std::string& where) {
    KeeperMessage message;
    message.kind = KeeperKind::Peer;
    return tell(message, where);
}

void KeeperClient::done() {
    const std::lock_guard lock(mutex_);
    KeeperMessage message;
    message.kind = KeeperKind::Done;
    (void)tell(message);
}

}  // namespace gangline::checkpoint
