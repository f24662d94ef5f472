#include "checkpoint/disk.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace gangline::checkpoint {
namespace {

constexpr unsigned kDepth = 16;

Error failed(int error, std::uint64_t place) {
    errno = error;
    return errno_error(fmt::format("cannot write at byte {}", place));
}

class PlainWriter : public BlockWriter {
  public:
    PlainWriter(Disk& disk, int fd, bool is_direct) : disk_(disk), fd_(fd), is_direct_(is_direct) {}

    Result<void> write(std::uint64_t place, const char* bytes, std::size_t size) override {
        if (auto written = write_all_at(disk_, fd_, bytes, size, place, "a block"); !written) return written;
        // Dirty pages that pile up would make the fsync long, and the writer's own.
        if (!is_direct_) (void)::sync_file_range(fd_, static_cast<off_t>(place), static_cast<off_t>(size), SYNC_FILE_RANGE_WRITE);
        return {};
    }
    Result<void> finish() override { return {}; }

  private:
    Disk& disk_;
    int fd_;
    bool is_direct_;
};

// Short writes and EAGAIN are sent again. The first failure ends it; what is under way is waited for.
class RingWriter : public BlockWriter {
  public:
    static std::unique_ptr<RingWriter> make(int fd) {
        auto writer = std::make_unique<RingWriter>(fd);
        return writer->is_ready_ ? std::move(writer) : nullptr;
    }

    explicit RingWriter(int fd) : fd_(fd), is_ready_(::io_uring_queue_init(kDepth, &ring_, 0) == 0) {
        for (unsigned slot = 0; slot < kDepth; ++slot) unused_[slot] = slot;
    }
    ~RingWriter() override {
        if (!is_ready_) return;
        (void)finish();
        ::io_uring_queue_exit(&ring_);
    }
    RingWriter(const RingWriter&) = delete;
    RingWriter& operator=(const RingWriter&) = delete;

    Result<void> write(std::uint64_t place, const char* bytes, std::size_t size) override {
        while (!error_ && unused_count_ == 0) reap();
        if (error_) return *error_;
        const unsigned slot = unused_[--unused_count_];
        blocks_[slot] = {place, bytes, size};
        send(slot);
        if (error_) return *error_;
        return {};
    }

    Result<void> finish() override {
        while (unused_count_ != kDepth) reap();
        if (error_) return *error_;
        return {};
    }

  private:
    struct Block {
        std::uint64_t place = 0;
        const char* bytes = nullptr;
        std::size_t size = 0;
    };

    void send(unsigned slot) {
        const Block& block = blocks_[slot];
        io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
        ::io_uring_prep_write(entry, fd_, block.bytes, static_cast<unsigned>(block.size), block.place);
        ::io_uring_sqe_set_data64(entry, slot);
        int sent = 0;
        while ((sent = ::io_uring_submit(&ring_)) == -EINTR || sent == -EAGAIN) {}
        if (sent < 0) {
            fail(-sent, block.place);
            give_back(slot);
        }
    }

    void reap() {
        io_uring_cqe* done = nullptr;
        const int waited = ::io_uring_wait_cqe(&ring_, &done);
        if (waited == -EINTR || waited == -EAGAIN) return;
        if (waited < 0) {  // the ring itself is broken: nothing will ever come back
            fail(-waited, 0);
            unused_count_ = kDepth;
            return;
        }
        const auto slot = static_cast<unsigned>(::io_uring_cqe_get_data64(done));
        const int result = done->res;
        ::io_uring_cqe_seen(&ring_, done);
        Block& block = blocks_[slot];
        if (error_) return give_back(slot);  // nothing more is sent: what could not be would go with it, and come back twice
        if (result == -EINTR || result == -EAGAIN) return send(slot);
        if (result <= 0) {
            fail(result == 0 ? EIO : -result, block.place);
            return give_back(slot);
        }
        const auto written = static_cast<std::size_t>(result);
        if (written == block.size) return give_back(slot);
        block = {block.place + written, block.bytes + written, block.size - written};
        send(slot);
    }

    void give_back(unsigned slot) { unused_[unused_count_++] = slot; }
    void fail(int error, std::uint64_t place) {
        if (!error_) error_ = failed(error, place);
    }

    int fd_;
    io_uring ring_{};
    bool is_ready_;
    std::array<Block, kDepth> blocks_{};
    std::array<unsigned, kDepth> unused_{};
    unsigned unused_count_ = kDepth;
    std::optional<Error> error_;
};

}  // namespace

int Disk::open_at(int folder, const char* name, int flags, unsigned mode) { return ::openat(folder, name, flags, mode); }
int Disk::reserve(int fd, std::uint64_t size) { return ::fallocate(fd, 0, 0, static_cast<off_t>(size)); }
int Disk::truncate(int fd, std::uint64_t size) { return ::ftruncate(fd, static_cast<off_t>(size)); }
ssize_t Disk::write_at(int fd, const void* bytes, std::size_t size, std::uint64_t place) {
    return ::pwrite(fd, bytes, size, static_cast<off_t>(place));
}
int Disk::sync_data(int fd) { return ::fdatasync(fd); }
int Disk::sync(int fd) { return ::fsync(fd); }
int Disk::rename_at(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
    return ::renameat2(from_folder, from, to_folder, to, flags);
}
int Disk::unlink_at(int folder, const char* name, int flags) { return ::unlinkat(folder, name, flags); }
int Disk::make_folder_at(int folder, const char* name, unsigned mode) { return ::mkdirat(folder, name, mode); }

std::unique_ptr<BlockWriter> Disk::writer(int fd, bool is_direct) {
    if (is_direct) {
        if (auto ring = RingWriter::make(fd)) return ring;
    }
    return plain_writer(*this, fd, is_direct);
}

Disk& real_disk() {
    static Disk disk;
    return disk;
}

std::unique_ptr<BlockWriter> plain_writer(Disk& disk, int fd, bool is_direct) { return std::make_unique<PlainWriter>(disk, fd, is_direct); }

Result<void> write_all_at(Disk& disk, int fd, const void* bytes, std::size_t size, std::uint64_t place, const std::string& what) {
    constexpr std::size_t kMost = 8u << 20;
    const char* from = static_cast<const char*>(bytes);
    while (size > 0) {
        const ssize_t written = disk.write_at(fd, from, std::min(size, kMost), place);
        if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (written <= 0) return errno_error(fmt::format("cannot write {} at byte {}", what, place));
        from += written;
        size -= static_cast<std::size_t>(written);
        place += static_cast<std::uint64_t>(written);
    }
    return {};
}

}  // namespace gangline::checkpoint
