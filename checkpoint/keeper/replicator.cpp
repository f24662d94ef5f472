#include "checkpoint/keeper/replicator.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"

namespace gangline::checkpoint {
namespace {

constexpr Duration kFirstPause = seconds(1);
constexpr Duration kLongestPause = seconds(30);

}  // namespace

// One rank's copies.
class Replicator::Push {
  public:
    Push(Snapshots& snapshots, std::uint64_t job, const Held& held, LineNumber line, const SnapshotOwner& owner, const KeeperAddress& peer)
        : snapshots_(snapshots), job_(job), held_(held), line_(line), owner_(owner), peer_(peer), thread_([this] { run(); }) {}

    ~Push() {
        stop();
        thread_.join();
    }
    void stop() {
        {
            const std::lock_guard lock(mutex_);
            is_stopping_ = true;
            if (pushing_ >= 0) ::shutdown(pushing_, SHUT_RDWR);
        }
        changed_.notify_all();
    }
    bool is_over() const { return is_over_; }
    bool is_of(LineNumber line, const KeeperAddress& peer) const { return line == line_ && to_text(peer) == to_text(peer_); }
    bool is_of(const SnapshotId& id) const { return id.rank == owner_.rank && id.attempt == owner_.attempt; }

    void whole(const SnapshotId& id, SlotNumber slot) {
        {
            const std::lock_guard lock(mutex_);
            work_ = {id, slot};
        }
        changed_.notify_all();
    }
    void durable(std::uint64_t step) {
        {
            const std::lock_guard lock(mutex_);
            durable_ = step;
        }
        changed_.notify_all();
    }

  private:
    struct Work {
        SnapshotId id;
        SlotNumber slot = 0;
    };

    void run() {
        std::unique_lock lock(mutex_);
        while (!is_stopping_) {
            changed_.wait_for(lock, connection_ ? kPeerAlive : kLongestPause, [&] { return is_stopping_ || work_ || (connection_ && durable_ > told_); });
            if (is_stopping_) break;
            if (!connection_ && !work_) continue;
            lock.unlock();
            const auto done = connection_ ? talk() : call();
            lock.lock();
            if (done) {
                pause_ = {};
                continue;
            }
            if (!std::exchange(has_said_, true)) log_warn("no_replica rank={} attempt={} peer={}:{} reason=\"{}\"", owner_.rank, owner_.attempt, peer_.host, peer_.port, done.error().message);
            connection_.reset();
            told_ = 0;
            pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
            changed_.wait_for(lock, pause_, [&] { return is_stopping_; });
        }
        lock.unlock();
        if (connection_) (void)connection_->send(message(KeeperKind::Done));
        connection_.reset();
        is_over_ = true;
    }

    KeeperMessage message(KeeperKind kind) const {
        KeeperMessage one;
        one.kind = kind;
        one.job = job_;
        one.rank = owner_.rank;
        one.attempt = owner_.attempt;
        return one;
    }

    Result<void> call() {
        auto line = PeerLine::connect(peer_);
        if (!line) return line.error();
        KeeperMessage join = message(KeeperKind::Join);
        join.size = owner_.most_bytes;
        if (auto sent = line->send(join, owner_.folder); !sent) return sent;
        connection_.emplace(std::move(*line));
        return {};
    }

    Result<void> talk() {
        std::optional<Work> work;
        std::uint64_t durable = 0;
        {
            const std::lock_guard lock(mutex_);
            work = std::exchange(work_, std::nullopt);
            durable = durable_;
        }
        if (work) {
            if (auto pushed = push(*work); !pushed) {
                const std::lock_guard lock(mutex_);
                if (!work_) work_ = work;  // again, over the next connection
                return pushed;
            }
        }
        if (durable > told_) {
            KeeperMessage told = message(KeeperKind::Durable);
            told.step = durable;
            told_ = durable;
            return connection_->send(told);
        }
        return work ? Result<void>() : connection_->send(message(KeeperKind::Alive));
    }

    Result<void> push(const Work& work) {
        const auto held = snapshots_.send(work.slot, work.id);
        if (!held) return {};  // a newer one has its memory
        bool goes_on = false;
        {
            const std::lock_guard lock(mutex_);
            goes_on = !is_stopping_;
            if (goes_on) pushing_ = connection_->fd();
        }
        auto pushed = goes_on ? push_memory(work, *held) : Result<void>();
        snapshots_.sent(work.slot);
        {
            const std::lock_guard lock(mutex_);
            pushing_ = -1;
        }
        return pushed;
    }

    Result<void> push_memory(const Work& work, const Snapshots::Held& held) {
        KeeperMessage whole = message(KeeperKind::Whole);
        whole.step = work.id.step;
        whole.size = held.image_size;
        whole.part_size = held.part_size;
        if (auto sent = connection_->send(whole); !sent) return sent;
        auto slot = connection_->receive(kPeerStall);
        if (!slot) return slot.error();
        if (!slot->has_value()) return Error{Code::Unavailable, "the other keeper does not answer"};
        if ((*slot)->message.kind == KeeperKind::Refused) return refused((*slot)->text);
        if ((*slot)->message.kind != KeeperKind::Slot) return Error{Code::Unavailable, "the other keeper answers what was not asked"};
        if (auto sent = connection_->send_memory(held.memory->fd(), held.image_size, held.part_size); !sent) return sent;
        if (auto sent = connection_->send_memory(held.memory->fd(), 0, held.image_size); !sent) return sent;
        auto answer = connection_->receive(kPeerStall);
        if (!answer) return answer.error();
        if (!answer->has_value()) return Error{Code::Unavailable, "the other keeper does not say whether it holds the copy"};
        if ((*answer)->message.kind == KeeperKind::Refused) return refused((*answer)->text);
        if ((*answer)->message.kind != KeeperKind::Held) return Error{Code::Unavailable, "the other keeper answers what was not asked"};
        has_said_ = false;
        held_(line_, work.id.step);
        return {};
    }

    // The line stays good; the next snapshot may find room.
    Result<void> refused(const std::string& why) {
        if (!std::exchange(has_said_, true)) log_warn("replica_refused rank={} attempt={} peer={}:{} reason=\"{}\"", owner_.rank, owner_.attempt, peer_.host, peer_.port, why);
        return {};
    }

    Snapshots& snapshots_;
    const std::uint64_t job_;
    const Held& held_;
    const LineNumber line_;
    const SnapshotOwner owner_;
    const KeeperAddress peer_;
    std::optional<PeerLine> connection_;  // the thread's
    std::uint64_t told_ = 0;              // newest step said to be durable; the thread's
    Duration pause_{};
    bool has_said_ = false;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_stopping_ = false;
    int pushing_ = -1;                    // the connection's, while a snapshot goes over it
    std::atomic<bool> is_over_{false};
    std::optional<Work> work_;
    std::uint64_t durable_ = 0;
    std::thread thread_;                  // last: it uses the others
};

Replicator::Replicator(Snapshots& snapshots, std::uint64_t job, Held held) : snapshots_(snapshots), job_(job), held_(std::move(held)) {}
Replicator::~Replicator() = default;

void Replicator::set_peer(LineNumber line, const SnapshotOwner& owner, const KeeperAddress& peer) {
    auto& push = pushes_[owner.rank];
    if (push != nullptr && push->is_of(line, peer)) return;
    std::erase_if(retired_, [](const auto& one) { return one->is_over(); });
    if (push != nullptr) {
        push->stop();
        retired_.push_back(std::move(push));
    }
    push = std::make_unique<Push>(snapshots_, job_, held_, line, owner, peer);
}

void Replicator::whole(const SnapshotId& id, SlotNumber slot) {
    if (const auto found = pushes_.find(id.rank); found != pushes_.end() && found->second->is_of(id)) found->second->whole(id, slot);
}

void Replicator::durable(const SnapshotId& id) {
    if (const auto found = pushes_.find(id.rank); found != pushes_.end() && found->second->is_of(id)) found->second->durable(id.step);
}

}  // namespace gangline::checkpoint
