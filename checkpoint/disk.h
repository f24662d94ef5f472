#pragma once
// One door to the disk: every call by which a checkpoint is written goes through it, so that a test can make any of them fail, come short,
// come late, or be forgotten by a machine that loses its power.
//
//   Disk         thin calls, each as the system call of its name: -1 and errno on failure
//   BlockWriter  blocks of one file, written in any order, several at once: io_uring with O_DIRECT; where one of the two is not to be had
//                pwrite, and where O_DIRECT is not, through the page cache with early write-out
// Thread rule: a Disk from any thread; a BlockWriter from one.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace gangline::checkpoint {

// What O_DIRECT asks of places, sizes and memory.
inline constexpr std::size_t kDiskAlignment = 4096;

class BlockWriter {
  public:
    virtual ~BlockWriter() = default;
    // The bytes stay as they are until finish(); memory, place and size are multiples of kDiskAlignment. May wait for room in the queue.
    // Errors: NoSpace, Internal: of this block or an earlier one. Nothing is to be written then but finish().
    virtual Result<void> write(std::uint64_t place, const char* bytes, std::size_t size) = 0;
    // Waits for all blocks; also after an error. Not yet durable: fdatasync comes after.
    virtual Result<void> finish() = 0;
};

class Disk {
  public:
    virtual ~Disk() = default;
    virtual int open_at(int folder, const char* name, int flags, unsigned mode);
    virtual int reserve(int fd, std::uint64_t size);         // fallocate, keeping what is there
    virtual int truncate(int fd, std::uint64_t size);
    virtual ssize_t write_at(int fd, const void* bytes, std::size_t size, std::uint64_t place);
    virtual int sync_data(int fd);
    virtual int sync(int fd);                                // a file or a folder
    virtual int rename_at(int from_folder, const char* from, int to_folder, const char* to, unsigned flags);
    virtual int unlink_at(int folder, const char* name, int flags);
    virtual int make_folder_at(int folder, const char* name, unsigned mode);
    // For a file that was opened with O_DIRECT, or without.
    virtual std::unique_ptr<BlockWriter> writer(int fd, bool is_direct);
};

// The real one.
Disk& real_disk();

// All of it, over short writes. Errors: NoSpace, Internal, naming `what`.
Result<void> write_all_at(Disk& disk, int fd, const void* bytes, std::size_t size, std::uint64_t place, const std::string& what);

// One block after the other by Disk::write_at.
std::unique_ptr<BlockWriter> plain_writer(Disk& disk, int fd, bool is_direct);

}  // namespace gangline::checkpoint
