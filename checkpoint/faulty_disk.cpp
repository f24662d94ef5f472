#include "checkpoint/faulty_disk.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/handle.h"

namespace gangline::checkpoint {
namespace {

constexpr std::array kErrors{EIO, ENOSPC, EDQUOT, EFBIG, EINTR, EAGAIN};

bool is_kill(Effect effect) { return effect == Effect::Kill || effect == Effect::KillAmid; }

[[noreturn]] void die() {
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();  // the signal is on its way
}

// Half of a write, such that O_DIRECT takes it when it took the whole.
std::size_t half_of(std::size_t size) {
    const std::size_t half = size / 2;
    return half >= kDiskAlignment ? half / kDiskAlignment * kDiskAlignment : size % kDiskAlignment == 0 ? 0 : half;
}

bool has_meaning(Call call, Effect effect) {
    if (effect == Effect::Short) return call == Call::Write;
    if (effect == Effect::Torn) return call == Call::Write || call == Call::Block;
    return true;
}

}  // namespace

std::string_view name_of(Call call) {
    switch (call) {
        case Call::Open: return "open";
        case Call::Reserve: return "reserve";
        case Call::Truncate: return "truncate";
        case Call::Write: return "write";
        case Call::SyncData: return "sync_data";
        case Call::Sync: return "sync";
        case Call::Rename: return "rename";
        case Call::Unlink: return "unlink";
        case Call::MakeFolder: return "make_folder";
        case Call::Block: return "block";
        case Call::Finish: return "finish";
    }
    return "?";
}

std::string to_text(const Fault& fault) {
    constexpr std::array kEffects{"fails", "fails although done", "is short", "is torn", "is where it is killed", "is amid what it is killed"};
    return fmt::format("{} {} {} (errno {})", fault.call ? name_of(*fault.call) : "call", fault.nth,
                       kEffects.at(static_cast<std::size_t>(fault.effect)), fault.error);
}

void FaultyDisk::begin_count() {
    fault_.reset();
    one_in_ = 0;
    struck_ = all_ = 0;
    counts_.fill(0);
    landed_.clear();
}

void FaultyDisk::plan(const Fault& fault) {
    begin_count();
    fault_ = fault;
}

void FaultyDisk::plan_at_random(std::uint64_t seed, std::uint64_t one_in) {
    begin_count();
    random_.seed(seed);
    one_in_ = one_in;
}

void FaultyDisk::heal() { begin_count(); }

std::optional<Fault> FaultyDisk::draw(Call call) {
    if (random_() % one_in_ != 0) return std::nullopt;
    Fault drawn{call, counts_[static_cast<std::size_t>(call)], Effect::Fail, kErrors[random_() % kErrors.size()]};
    if (random_() % 4 == 0) drawn.effect = call == Call::Write ? Effect::Short : Effect::FailDone;
    return drawn;
}

std::optional<Fault> FaultyDisk::next(Call call) {
    const std::lock_guard lock(mutex_);
    ++all_;
    const std::uint64_t count = ++counts_[static_cast<std::size_t>(call)];
    std::optional<Fault> found;
    if (one_in_ != 0) {
        found = draw(call);
    } else if (fault_ && (fault_->call ? *fault_->call == call && fault_->nth == count : fault_->nth == all_) && has_meaning(call, fault_->effect)) {
        found = fault_;
    }
    if (found) ++struck_;
    return found;
}

template <class Really>
int FaultyDisk::act(Call call, const Really& really) {
    const auto fault = next(call);
    if (!fault) return really();
    if (fault->effect == Effect::Kill) die();
    const int result = fault->effect == Effect::Fail ? 0 : really();
    if (is_kill(fault->effect)) die();
    if (result < 0) return result;
    errno = fault->error;
    return -1;
}

// ---- what a failed sync loses

std::optional<FaultyDisk::FileKey> FaultyDisk::key_of(int fd) {
    struct stat status {};
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
    return FileKey{status.st_dev, status.st_ino};
}

void FaultyDisk::note_unsynced(int fd, const Range& range) {
    const auto key = key_of(fd);
    const std::lock_guard lock(mutex_);
    if (key) unsynced_[*key].push_back(range);
}

void FaultyDisk::forget_unsynced(int fd) {
    const auto key = key_of(fd);
    const std::lock_guard lock(mutex_);
    if (key) unsynced_.erase(*key);
}

void FaultyDisk::lose_unsynced(int fd) {
    const auto key = key_of(fd);
    if (!key) return;
    std::vector<Range> lost;
    {
        const std::lock_guard lock(mutex_);
        lost = std::exchange(unsynced_[*key], {});
    }
    const Fd again(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_WRONLY | O_CLOEXEC));
    for (const Range& range : lost) {
        const std::string zeros(static_cast<std::size_t>(range.size), '\0');
        if (::pwrite(again.get(), zeros.data(), zeros.size(), static_cast<off_t>(range.place)) < 0) return;
    }
}

template <class Really>
int FaultyDisk::act_sync(Call call, int fd, const Really& really) {
    const auto fault = next(call);
    if (fault && fault->effect == Effect::Kill) die();
    if (!fault || fault->effect != Effect::Fail) {
        const int result = really();
        if (result == 0) forget_unsynced(fd);
        if (!fault) return result;
    } else {
        lose_unsynced(fd);
    }
    if (is_kill(fault->effect)) die();
    errno = fault->error;
    return -1;
}

// ---- calls

int FaultyDisk::open_at(int folder, const char* name, int flags, unsigned mode) {
    int opened = -1;
    const int result = act(Call::Open, [&] { return opened = Disk::open_at(folder, name, flags, mode); });
    if (result < 0 && opened >= 0) {
        const int error = errno;
        ::close(opened);
        errno = error;
    }
    return result;
}

int FaultyDisk::reserve(int fd, std::uint64_t size) {
    return act(Call::Reserve, [&] { return Disk::reserve(fd, size); });
}

int FaultyDisk::truncate(int fd, std::uint64_t size) {
    return act(Call::Truncate, [&] { return Disk::truncate(fd, size); });
}

ssize_t FaultyDisk::write_at(int fd, const void* bytes, std::size_t size, std::uint64_t place) {
    const auto fault = next(Call::Write);
    if (fault && fault->effect == Effect::Kill) die();
    if (fault && fault->effect == Effect::Fail) {
        errno = fault->error;
        return -1;
    }
    // A write so small that O_DIRECT cannot halve it is torn to nothing, and never short.
    const std::size_t half = half_of(size);
    const std::size_t wanted = !fault || (fault->effect == Effect::Short && half == 0) ? size : half;
    const ssize_t written = Disk::write_at(fd, bytes, wanted, place);
    if (written > 0) note_unsynced(fd, {place, static_cast<std::uint64_t>(written)});
    if (!fault || written < 0) return written;
    if (is_kill(fault->effect)) die();
    if (fault->effect == Effect::FailDone) {
        errno = fault->error;
        return -1;
    }
    return fault->effect == Effect::Torn ? static_cast<ssize_t>(size) : written;
}

int FaultyDisk::sync_data(int fd) {
    return act_sync(Call::SyncData, fd, [&] { return Disk::sync_data(fd); });
}

int FaultyDisk::sync(int fd) {
    return act_sync(Call::Sync, fd, [&] { return Disk::sync(fd); });
}

int FaultyDisk::rename_at(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
    return act(Call::Rename, [&] { return Disk::rename_at(from_folder, from, to_folder, to, flags); });
}

int FaultyDisk::unlink_at(int folder, const char* name, int flags) {
    return act(Call::Unlink, [&] { return Disk::unlink_at(folder, name, flags); });
}

int FaultyDisk::make_folder_at(int folder, const char* name, unsigned mode) {
    return act(Call::MakeFolder, [&] { return Disk::make_folder_at(folder, name, mode); });
}

// ---- blocks

// Counts, fails and tears whole blocks before they reach the writer beneath.
class FaultyWriter : public BlockWriter {
  public:
    FaultyWriter(FaultyDisk& disk, int fd, std::unique_ptr<BlockWriter> beneath) : disk_(disk), fd_(fd), beneath_(std::move(beneath)) {}

    Result<void> write(std::uint64_t place, const char* bytes, std::size_t size) override {
        const auto fault = disk_.next(Call::Block);
        if (fault && fault->effect == Effect::Kill) die();
        if (fault && fault->effect == Effect::Fail) return fail(*fault);
        const std::size_t wanted = fault ? half_of(size) : size;
        disk_.note_unsynced(fd_, {place, wanted});
        auto written = wanted == 0 ? Result<void>() : beneath_->write(place, bytes, wanted);
        if (!fault) return written;
        if (is_kill(fault->effect)) die();
        return fault->effect == Effect::FailDone ? fail(*fault) : written;
    }

    Result<void> finish() override {
        const auto fault = disk_.next(Call::Finish);
        if (fault && fault->effect == Effect::Kill) die();
        auto finished = beneath_->finish();  // also of a failing one: no block is under way afterwards
        if (fault && is_kill(fault->effect)) die();
        if (fault) finished = fail(*fault);
        if (error_) return *error_;
        return finished;
    }

  private:
    Result<void> fail(const Fault& fault) {
        errno = fault.error;
        if (!error_) error_ = errno_error("cannot write a block");
        return *error_;
    }

    FaultyDisk& disk_;
    int fd_;
    std::unique_ptr<BlockWriter> beneath_;
    std::optional<Error> error_;
};

class LateWriter : public BlockWriter {
  public:
    LateWriter(FaultyDisk& disk, int fd) : disk_(disk), fd_(fd) {}

    Result<void> write(std::uint64_t place, const char* bytes, std::size_t size) override {
        held_.push_back({place, bytes, size});
        if (held_.size() > kMostHeld) land_one();
        if (error_) return *error_;
        return {};
    }

    Result<void> finish() override {
        while (!held_.empty()) land_one();
        if (error_) return *error_;
        return {};
    }

  private:
    static constexpr std::size_t kMostHeld = 2;
    struct Block {
        std::uint64_t place = 0;
        const char* bytes = nullptr;
        std::size_t size = 0;
    };

    // Any but the oldest, while there is another.
    void land_one() {
        const std::size_t chosen = held_.size() == 1 ? 0 : 1 + disk_.random_() % (held_.size() - 1);
        const Block block = held_[chosen];
        held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(chosen));
        const auto written = write_all_at(disk_, fd_, block.bytes, block.size, block.place, "a block");
        if (written) disk_.note_landed(block.place);
        if (!written && !error_) error_ = written.error();
    }

    FaultyDisk& disk_;
    int fd_;
    std::vector<Block> held_;
    std::optional<Error> error_;
};

std::unique_ptr<BlockWriter> FaultyDisk::writer(int fd, bool is_direct) {
    std::unique_ptr<BlockWriter> beneath;
    switch (blocks_) {
        case Blocks::Real: beneath = Disk::writer(fd, is_direct); break;
        case Blocks::Plain: beneath = plain_writer(*this, fd, is_direct); break;
        case Blocks::Late: beneath = std::make_unique<LateWriter>(*this, fd); break;
    }
    return std::make_unique<FaultyWriter>(*this, fd, std::move(beneath));
}

}  // namespace gangline::checkpoint
