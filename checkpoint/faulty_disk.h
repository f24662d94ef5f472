#pragma once
// A disk that fails by plan: the twin of the real one (disk.h) for tests.
//
//   exact    the nth call of a kind, or of any kind, has one effect: an error, a short or torn write, the end of the process
//   seeded   each call may fail, one in so many
//
// An fsync or fdatasync that fails loses what was not synced before, as the kernel does: those ranges are zeroed.
// Blocks may be held back and written in another order: they land late, but before finish() returns.
// Thread rule: any thread; a plan is changed while nobody writes.

#include <array>
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/disk.h"

namespace gangline::checkpoint {

enum class Call : std::uint8_t { Open, Reserve, Truncate, Write, SyncData, Sync, Rename, Unlink, MakeFolder, Block, Finish };
inline constexpr std::array kCalls{Call::Open,   Call::Reserve, Call::Truncate,   Call::Write, Call::SyncData, Call::Sync,
                                   Call::Rename, Call::Unlink,  Call::MakeFolder, Call::Block, Call::Finish};
std::string_view name_of(Call call);

enum class Effect : std::uint8_t {
    Fail,      // the error, and nothing is done
    FailDone,  // the error, although it is done: the answer was lost
    Short,     // of writes: half of the bytes, and the caller is told
    Torn,      // of writes and blocks: half of the bytes, and the caller is told all
    Kill,      // SIGKILL before it is done
    KillAmid,  // SIGKILL when it is done, and of writes half
};

struct Fault {
    std::optional<Call> call;  // nothing: of any kind
    std::uint64_t nth = 1;     // counted from the plan
    Effect effect = Effect::Fail;
    int error = EIO;
};
std::string to_text(const Fault& fault);

enum class Blocks : std::uint8_t {
    Real,   // what the real disk has: io_uring, or plain
    Plain,  // one after the other by write_at, so that faults of writes meet them
    Late,   // held back, and written in another order by write_at
};

class FaultyDisk : public Disk {
  public:
    explicit FaultyDisk(Blocks blocks = Blocks::Plain, std::uint64_t seed = 1) : blocks_(blocks), random_(seed) {}

    // Each begins to count anew.
    void plan(const Fault& fault);
    void plan_at_random(std::uint64_t seed, std::uint64_t one_in);  // errors and short writes, never torn ones
    void heal();                                                    // no faults

    std::uint64_t struck() const { return struck_; }                // faults since the plan
    std::uint64_t calls(Call call) const { return counts_[static_cast<std::size_t>(call)]; }
    std::uint64_t calls() const { return all_; }
    // Where the blocks that were held back have landed, in the order of their landing; since the plan.
    const std::vector<std::uint64_t>& landed() const { return landed_; }

    int open_at(int folder, const char* name, int flags, unsigned mode) override;
    int reserve(int fd, std::uint64_t size) override;
    int truncate(int fd, std::uint64_t size) override;
    ssize_t write_at(int fd, const void* bytes, std::size_t size, std::uint64_t place) override;
    int sync_data(int fd) override;
    int sync(int fd) override;
    int rename_at(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) override;
    int unlink_at(int folder, const char* name, int flags) override;
    int make_folder_at(int folder, const char* name, unsigned mode) override;
    std::unique_ptr<BlockWriter> writer(int fd, bool is_direct) override;

  private:
    friend class FaultyWriter;
    friend class LateWriter;
    struct Range {
        std::uint64_t place = 0;
        std::uint64_t size = 0;
    };
    using FileKey = std::pair<std::uint64_t, std::uint64_t>;  // device, inode

    void begin_count();
    std::optional<Fault> next(Call call);
    std::optional<Fault> draw(Call call);
    template <class Really>
    int act(Call call, const Really& really);
    template <class Really>
    int act_sync(Call call, int fd, const Really& really);
    void note_unsynced(int fd, const Range& range);
    void note_landed(std::uint64_t place) { landed_.push_back(place); }
    void lose_unsynced(int fd);
    void forget_unsynced(int fd);
    static std::optional<FileKey> key_of(int fd);

    std::mutex mutex_;
    Blocks blocks_;
    std::mt19937_64 random_;
    std::optional<Fault> fault_;
    std::uint64_t one_in_ = 0;
    std::uint64_t struck_ = 0;
    std::uint64_t all_ = 0;
    std::array<std::uint64_t, kCalls.size()> counts_{};
    std::map<FileKey, std::vector<Range>> unsynced_;
    std::vector<std::uint64_t> landed_;
};

}  // namespace gangline::checkpoint
