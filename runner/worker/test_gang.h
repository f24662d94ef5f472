#pragma once
// A shepherd of the test's own, and a gang that talks to it: for the tests of the worker library.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/commit_letter.h"
#include "base/framing.h"
#include "base/process.h"
#include "base/progress_page.h"
#include "base/worker_protocol.h"
#include "checkpoint/store.h"
#include "runner/worker/gang.h"

namespace gangline {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr seconds kLimit{20};

struct Frame {
    WorkerHeader header;
    std::string payload;
    WorkerKind kind() const { return static_cast<WorkerKind>(header.kind); }
};

// Relays letters between ranks and answers Commit as it is told to.
class FakeShepherd {
  public:
    explicit FakeShepherd(const std::string& name) : listener_(listen_abstract(name, SOCK_SEQPACKET).value()) {
        thread_ = std::thread([this] { run(); });
    }
    ~FakeShepherd() {
        is_stopping_ = true;
        thread_.join();
    }
    void send(std::uint32_t rank, WorkerKind kind, std::uint64_t step, std::uint32_t attempt, std::string_view payload) {
        WorkerHeader header;
        header.magic = kWorkerMagic;
        header.version = kWorkerVersion;
        header.kind = static_cast<std::uint16_t>(kind);
        header.step = step;
        header.attempt = attempt;
        header.size = static_cast<std::uint32_t>(payload.size());
        std::string packet(reinterpret_cast<const char*>(&header), sizeof header);
        packet += payload;
        const std::lock_guard lock(mutex_);
        ASSERT_EQ(::send(by_rank_.at(rank), packet.data(), packet.size(), 0), static_cast<ssize_t>(packet.size()));
    }
    void answer(const Frame& commit, bool accepted, const std::string& reason) {
        CommitAnswer said{accepted, {}, keep_every, reason};
        if (accepted) said.keep.push_back({commit.header.step, commit.header.attempt});
        send(0, WorkerKind::CommitResult, commit.header.step, commit.header.attempt, encode(said));
    }
    // The next frame of this kind that nobody has taken yet.
    Frame wait_for(WorkerKind kind) {
        std::unique_lock lock(mutex_);
        Frame found;
        const bool is_there = changed_.wait_for(lock, kLimit, [&] {
            const auto at = std::find_if(frames_.begin(), frames_.end(), [&](const Frame& frame) { return frame.kind() == kind; });
            if (at == frames_.end()) return false;
            found = *at;
            frames_.erase(at);
            return true;
        });
        EXPECT_TRUE(is_there) << "no frame of kind " << static_cast<int>(kind);
        return found;
    }
    // Frames of this kind that nobody has taken.
    std::size_t count(WorkerKind kind) {
        const std::lock_guard lock(mutex_);
        return static_cast<std::size_t>(std::count_if(frames_.begin(), frames_.end(), [&](const Frame& frame) { return frame.kind() == kind; }));
    }
    std::atomic<bool> accepts{true};  // answers commits by itself
    std::atomic<bool> answers{true};
    std::atomic<std::uint64_t> keep_every{0};
    void keeper_is(std::string socket) {
        const std::lock_guard lock(mutex_);
        keeper_ = std::move(socket);
    }

  private:
    void run() {
        std::vector<Fd> clients;
        std::vector<char> buffer(sizeof(WorkerHeader) + kMostWorkerPayload);
        while (!is_stopping_) {
            std::vector<pollfd> wait{{listener_.get(), POLLIN, 0}};
            for (const Fd& client : clients) wait.push_back({client.get(), POLLIN, 0});
            if (::poll(wait.data(), wait.size(), 20) <= 0) continue;
            for (std::size_t i = 1; i < wait.size(); ++i) {
                if ((wait[i].revents & POLLIN) == 0) continue;
                const ssize_t n = ::recv(wait[i].fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
                if (n < static_cast<ssize_t>(sizeof(WorkerHeader))) continue;
                take(wait[i].fd, std::string_view(buffer.data(), static_cast<std::size_t>(n)));
            }
            if (wait[0].revents != 0) clients.emplace_back(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        }
    }
    void take(int fd, std::string_view packet) {
        Frame frame;
        std::memcpy(&frame.header, packet.data(), sizeof frame.header);
        frame.payload = packet.substr(sizeof frame.header);
        {
            const std::lock_guard lock(mutex_);
            if (frame.kind() == WorkerKind::Join) by_rank_[frame.header.rank] = fd;
            if (frame.kind() == WorkerKind::Relay) {
                const auto to = by_rank_.find(frame.header.to_rank);
                if (to != by_rank_.end()) (void)::send(to->second, packet.data(), packet.size(), 0);
            }
            frames_.push_back(frame);
        }
        changed_.notify_all();
        if (frame.kind() == WorkerKind::Keeper) {
            std::unique_lock lock(mutex_);
            const std::string keeper = keeper_;
            lock.unlock();
            send(frame.header.rank, WorkerKind::Keeper, 0, frame.header.attempt, keeper);
        }
        if (frame.kind() == WorkerKind::Commit && answers) answer(frame, accepts, accepts ? "" : "not now");
    }

    Fd listener_;
    std::atomic<bool> is_stopping_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::uint32_t, int> by_rank_;
    std::vector<Frame> frames_;
    std::string keeper_;  // empty: there is none
    std::thread thread_;
};

class AGang : public ::testing::Test {
  protected:
    AGang() : folder_((fs::temp_directory_path() / ("gangline-worker-" + random_hex(6))).string()), socket_("gangline-test-" + random_hex(8)) {
        fs::create_directories(folder_);
        for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", "SLURM_JOB_ID"}) ::unsetenv(name);
        set("GANGLINE_CHECKPOINT_DIR", folder_ + "/job-7");
        set("GANGLINE_CHECKPOINT_SCRUB", "0");  // what is being read back is not deleted
    }
    ~AGang() override {
        for (const std::string& name : names_) ::unsetenv(name.c_str());
        fs::remove_all(folder_);
    }
    void set(const std::string& name, const std::string& value) {
        ::setenv(name.c_str(), value.c_str(), 1);
        names_.push_back(name);
    }
    void in_gangline(std::uint32_t rank, std::uint32_t size, std::uint32_t attempt = 3) {
        std::ofstream(page(rank)) << std::string(kProgressBytes, '\0');
        for (const auto& [name, value] : std::map<std::string, std::string>{{"GANGLINE_WORKER_SOCKET", socket_},
                                                                            {"GANGLINE_JOB_ID", "7"},
                                                                            {"GANGLINE_ATTEMPT", std::to_string(attempt)},
                                                                            {"GANGLINE_RESTART_COUNT", "2"},
                                                                            {"GANGLINE_PROGRESS", page(rank)},
                                                                            {"RANK", std::to_string(rank)},
                                                                            {"WORLD_SIZE", std::to_string(size)}}) {
            set(name, value);
        }
    }
    std::string page(std::uint32_t rank) const { return fmt::format("{}/page-{}", folder_, rank); }
    ProgressPage* map_page(std::uint32_t rank) const {
        const Fd fd(::open(page(rank).c_str(), O_RDWR));
        return static_cast<ProgressPage*>(::mmap(nullptr, kProgressBytes, PROT_READ, MAP_SHARED, fd.get(), 0));
    }
    std::string saved(std::uint64_t step, std::uint32_t attempt) const {
        return folder_ + "/job-7/" + checkpoint::folder_name({step, attempt});
    }

    std::string folder_;
    std::string socket_;
    std::vector<std::string> names_;
};

}  // namespace gangline
