// A real keeper process, real ranks that die: what they had whole is on disk or found again, bit for bit.

#include "checkpoint/keeper/keeper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "base/process.h"
#include "checkpoint/keeper/client.h"
#include "checkpoint/shard.h"
#include "checkpoint/store.h"

namespace gangline::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kValues = 400'000;  // three runs and a bit
constexpr seconds kLimit{20};

class AKeeper : public ::testing::Test {
  protected:
    AKeeper() : root_((fs::temp_directory_path() / ("gangline-keeper-" + random_hex(6))).string()), name_("gangline-keeper-test-" + random_hex(8)) {
        fs::create_directories(root_);
        start();
    }
    ~AKeeper() override {
        stop();
        std::error_code ignored;
        fs::remove_all(root_, ignored);
    }
    void start(Duration linger = seconds(60)) {
        auto listener = listen_abstract(name_, SOCK_STREAM);
        ASSERT_TRUE(listener) << listener.error().message;
        pid_ = ::fork();
        if (pid_ == 0) {
            KeeperOptions options;
            options.agents = std::move(*listener);
            options.name = name_;
            options.agent_uid = ::getuid();
            options.linger = linger;
            auto keeper = Keeper::make(std::move(options));
            ::_exit(keeper ? (*keeper)->run() : 99);
        }
        const TimePoint until = now().steady + kLimit;
        while (!KeeperClient::connect(name_, who(0, 1)) && now().steady < until) std::this_thread::sleep_for(milliseconds(2));
    }
    void stop() {
        if (pid_ > 0) ::kill(pid_, SIGKILL);
        if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }
    // As an agent says it at the job's end: it writes first what is to be written.
    void quit() {
        auto agent = connect_abstract(name_, SOCK_STREAM);
        ASSERT_TRUE(agent);
        FrameWriter writer;
        writer.push(std::string("\x42\x00", 2));  // ToShepherd{quit{}}
        ASSERT_TRUE(writer.flush(agent->get()));
        int status = 0;
        ASSERT_TRUE(until([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }));
        pid_ = 0;
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    WhoKeeps who(std::uint32_t rank, std::uint32_t attempt) const { return {7, attempt, rank, 0, root_}; }
    std::unique_ptr<KeeperClient> join(std::uint32_t rank, std::uint32_t attempt) const {
        auto client = KeeperClient::connect(name_, who(rank, attempt));
        EXPECT_TRUE(client) << client.error().message;
        return client ? std::move(*client) : nullptr;
    }
    static std::vector<std::uint32_t> values_of(std::uint32_t rank, std::uint64_t step) {
        std::vector<std::uint32_t> values(kValues);
        for (std::size_t i = 0; i < kValues; ++i) values[i] = static_cast<std::uint32_t>(i * 2654435761u + rank * 40503u + static_cast<std::uint32_t>(step));
        return values;
    }
    struct Tracked {
        explicit Tracked(std::uint32_t rank, std::uint64_t step) : values(values_of(rank, step)) {
            tensors.push_back({"weights", DType::U32, Policy::Sliced, {2 * kValues}, {rank * kValues}, {kValues}, values.data()});
        }
        std::vector<std::uint32_t> values;
        std::vector<Tensor> tensors;
    };
    // Copies rank's state of this step into the keeper's memory, whole.
    static void snapshot(KeeperClient& client, std::uint32_t rank, std::uint32_t attempt, std::uint64_t step) {
        Tracked tracked(rank, step);
        const ShardPlan plan{7, step, attempt, rank, 2, tracked.tensors};
        ShardImage image;
        ASSERT_TRUE(image.prepare(plan));
        const auto place = client.want(image.size() + (1 << 16));
        ASSERT_TRUE(place) << place.error().message;
        ASSERT_TRUE(image.begin(step, tracked.tensors, place->memory));
        image.wait_copied();
        const std::string part = encode(part_of(plan, image));
        ASSERT_LE(part.size(), std::size_t{1} << 16);
        std::memcpy(place->memory->data + image.size(), part.data(), part.size());
        ASSERT_TRUE(client.whole(place->slot, step, image.size(), part.size()));
    }
    // In a process of its own, which is killed when `what` is done.
    void in_a_rank_that_dies(const std::function<void()>& what) const {
        const pid_t rank = ::fork();
        if (rank == 0) {
            what();
            ::kill(::getpid(), SIGKILL);
        }
        int status = 0;
        ::waitpid(rank, &status, 0);
        ASSERT_TRUE(WIFSIGNALED(status));
    }
    bool until(const std::function<bool()>& condition) const {
        const TimePoint end = now().steady + kLimit;
        while (!condition()) {
            if (now().steady > end) return false;
            std::this_thread::sleep_for(milliseconds(5));
        }
        return true;
    }
    bool has_part(const Store& store, std::uint64_t step, std::uint32_t rank) const { return store.read_part({step, 1}, rank).ok(); }

    std::string root_;
    std::string name_;
    pid_t pid_ = 0;
};

TEST_F(AKeeper, BringsWhatTwoDeadRanksHadWholeToDiskAndItIsACheckpoint) {
    for (const std::uint32_t rank : {0u, 1u}) {
        in_a_rank_that_dies([&] {
            const auto client = join(rank, 1);
            snapshot(*client, rank, 1, 50);
        });
    }
    auto store = Store::open(root_);
    ASSERT_TRUE(store);
    ASSERT_TRUE(until([&] { return has_part(*store, 50, 0) && has_part(*store, 50, 1); }));
    std::vector<Sha256> parts;
    for (const std::uint32_t rank : {0u, 1u}) parts.push_back(seal_of(encode(*store->read_part({50, 1}, rank))));
    const auto manifest = store->write_manifest({50, 1}, parts);
    ASSERT_TRUE(manifest) << manifest.error().message;
    ASSERT_TRUE(store->publish({50, 1}, manifest->digest));
    auto found = store->find({50, 1}, manifest->digest);
    ASSERT_TRUE(found);
    std::vector<std::uint32_t> all(2 * kValues);
    const Tensor whole{"weights", DType::U32, Policy::Sliced, {2 * kValues}, {0}, {2 * kValues}, all.data()};
    const auto restored = found->restore(std::span(&whole, 1), 0, 1);
    ASSERT_TRUE(restored) << restored.error().message;
    const auto first = values_of(0, 50);
    const auto second = values_of(1, 50);
    EXPECT_TRUE(std::equal(first.begin(), first.end(), all.begin()));
    EXPECT_TRUE(std::equal(second.begin(), second.end(), all.begin() + kValues));
}

TEST_F(AKeeper, WritesNothingThatALaterCheckpointHasOutdated) {
    auto store = Store::open(root_);
    ASSERT_TRUE(store);
    for (const std::uint64_t step : {60u, 50u}) {  // the later one becomes a checkpoint first
        for (const std::uint32_t rank : {0u, 1u}) {
            in_a_rank_that_dies([&] {
                const auto client = join(rank, 1);
                snapshot(*client, rank, 1, step);
            });
        }
        if (step == 50) break;
        ASSERT_TRUE(until([&] { return has_part(*store, 60, 0) && has_part(*store, 60, 1); }));
        std::vector<Sha256> parts;
        for (const std::uint32_t rank : {0u, 1u}) parts.push_back(seal_of(encode(*store->read_part({60, 1}, rank))));
        const auto manifest = store->write_manifest({60, 1}, parts);
        ASSERT_TRUE(manifest) << manifest.error().message;
        ASSERT_TRUE(store->publish({60, 1}, manifest->digest));
    }
    quit();
    for (const auto& left : fs::directory_iterator(root_)) EXPECT_FALSE(left.path().filename().string().starts_with(".tmp-")) << left.path();
    EXPECT_TRUE(store->open_published({60, 1}));
}

TEST_F(AKeeper, GivesADeadRanksSnapshotToTheNextAttemptAndAHalfOneToNobody) {
    in_a_rank_that_dies([&] {
        const auto client = join(0, 1);
        snapshot(*client, 0, 1, 50);
        const auto place = client->want(4 << 20);  // the next save has begun
        ASSERT_TRUE(place);
        std::memset(place->memory->data, 0xee, 4 << 20);
    });
    const auto next = join(0, 2);
    auto found = next->find(0, 1, 50);
    ASSERT_TRUE(found);
    EXPECT_FALSE(next->find(0, 1, 60));
    EXPECT_FALSE(next->find(1, 1, 50));
    std::string part(found->part_size, '\0');
    ASSERT_EQ(::pread(found->memory.get(), part.data(), part.size(), static_cast<off_t>(found->image_size)), static_cast<ssize_t>(part.size()));
    const auto manifest = parse(part);
    ASSERT_TRUE(manifest) << manifest.error().message;
    auto memory = ShardMemory::map(found->memory, found->image_size);
    ASSERT_TRUE(memory);
    Checkpoint checkpoint(Fd(), *manifest, "memory");
    checkpoint.use_memory(0, std::move(*memory));
    std::vector<std::uint32_t> values(kValues);
    const Tensor mine{"weights", DType::U32, Policy::Sliced, {2 * kValues}, {0}, {kValues}, values.data()};
    const auto filled = checkpoint.fill(std::span(&mine, 1), 0);
    ASSERT_TRUE(filled) << filled.error().message;
    EXPECT_EQ(values, values_of(0, 50));
    EXPECT_EQ(checkpoint.memory_problems(), "");
}

TEST_F(AKeeper, ADamagedBlockInMemoryIsReadFromTheFileAndSaid) {
    Tracked tracked(0, 50);
    tracked.tensors[0].global_shape = {kValues};
    const ShardPlan plan{7, 50, 1, 0, 1, tracked.tensors};
    ShardImage image;
    ASSERT_TRUE(image.prepare(plan));
    ASSERT_TRUE(image.begin(50, tracked.tensors));
    auto store = Store::open(root_);
    ASSERT_TRUE(store);
    auto folder = store->temporary({50, 1});
    ASSERT_TRUE(folder);
    auto part = write_image(store->disk(), folder->get(), image, plan);
    ASSERT_TRUE(part) << part.error().message;
    const Fd copy(::memfd_create("copy", MFD_CLOEXEC));
    for (std::size_t i = 0; i < image.runs(); ++i) {
        ASSERT_EQ(::pwrite(copy.get(), image.run(i), image.run_size(i), static_cast<off_t>(i * kRunBytes)), static_cast<ssize_t>(image.run_size(i)));
    }
    ASSERT_EQ(::pwrite(copy.get(), "x", 1, static_cast<off_t>(image.size() / 2)), 1);
    auto memory = ShardMemory::map(copy, image.size());
    ASSERT_TRUE(memory);
    Checkpoint checkpoint(std::move(*folder), parse(encode(*part)).value(), "place");
    checkpoint.use_memory(0, std::move(*memory));
    std::vector<std::uint32_t> values(kValues);
    const Tensor mine{"weights", DType::U32, Policy::Sliced, {kValues}, {0}, {kValues}, values.data()};
    const auto filled = checkpoint.fill(std::span(&mine, 1), 0);
    ASSERT_TRUE(filled) << filled.error().message;
    EXPECT_EQ(values, values_of(0, 50));
    EXPECT_NE(checkpoint.memory_problems().find("does not have its checksum"), std::string::npos);
}

TEST_F(AKeeper, ThatDiesCostsNoMemoryThatIsMappedAndTheNextOneServes) {
    const auto client = join(0, 1);
    const auto place = client->want(1 << 20);
    ASSERT_TRUE(place);
    stop();
    std::memset(place->memory->data, 1, 1 << 20);
    EXPECT_FALSE(client->whole(place->slot, 10, 4096, 100).ok() && client->want(1 << 20).ok());
    EXPECT_FALSE(client->is_open());
    start();
    const auto again = join(0, 1);
    snapshot(*again, 0, 1, 20);
    EXPECT_TRUE(again->find(0, 1, 20));
}

TEST_F(AKeeper, RefusesWhatIsNoMessageAndAnotherJob) {
    const auto good = join(0, 1);
    snapshot(*good, 0, 1, 10);
    auto raw = connect_abstract(ranks_socket(name_), SOCK_SEQPACKET);
    ASSERT_TRUE(raw);
    ASSERT_EQ(::send(raw->get(), "rubbish", 7, MSG_NOSIGNAL), 7);
    EXPECT_FALSE(receive_message(raw->get(), kLimit)) << "closed";
    auto other = KeeperClient::connect(name_, {8, 1, 0, 0, root_});
    ASSERT_TRUE(other);
    EXPECT_FALSE((*other)->want(4096));
    EXPECT_TRUE(good->find(0, 1, 10));
}

TEST_F(AKeeper, StaysWithinTheBudgetThatItsJobGives) {
    auto client = KeeperClient::connect(name_, {7, 1, 0, 1 << 20, root_});
    ASSERT_TRUE(client);
    const auto none = (*client)->want(2 << 20);
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code, Code::NoSpace);
    EXPECT_NE(none.error().message.find("budget is 1 MiB"), std::string::npos) << none.error().message;
    EXPECT_TRUE((*client)->want(1 << 20));
}

TEST_F(AKeeper, BringsEverythingToDiskBeforeItQuits) {
    in_a_rank_that_dies([&] {
        const auto client = join(0, 1);
        snapshot(*client, 0, 1, 50);
    });
    quit();
    EXPECT_TRUE(has_part(*Store::open(root_), 50, 0));
}

TEST_F(AKeeper, EndsByItselfWhenNobodyComes) {
    stop();
    start(milliseconds(200));
    int status = 0;
    ASSERT_TRUE(until([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }));
    pid_ = 0;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// A rank saves and saves, and is killed at a random moment. The newest step that it had said to be whole is found in memory, or a newer one; and
// what the keeper brought to disk verifies. GANGLINE_SOAK=1: a thousand times.
TEST_F(AKeeper, ARankThatIsKilledAtAnyMomentLosesNothingThatItHadWhole) {
    const bool is_soak = std::getenv("GANGLINE_SOAK") != nullptr;
    std::mt19937 random(20261130);
    auto store = Store::open(root_);
    ASSERT_TRUE(store);
    int found_in_memory = 0;
    for (std::uint32_t attempt = 1; attempt <= (is_soak ? 1000u : 60u); ++attempt) {
        int told[2];
        ASSERT_EQ(::pipe2(told, O_CLOEXEC), 0);
        const pid_t rank = ::fork();
        if (rank == 0) {
            const auto client = join(0, attempt);
            for (std::uint64_t step = 1;; ++step) {
                snapshot(*client, 0, attempt, step);
                if (::write(told[1], &step, sizeof step) != sizeof step) ::_exit(1);
            }
        }
        ::close(told[1]);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
        ::kill(rank, SIGKILL);
        ::waitpid(rank, nullptr, 0);
        std::uint64_t newest = 0;
        for (std::uint64_t step = 0; ::read(told[0], &step, sizeof step) == sizeof step;) newest = step;
        ::close(told[0]);
        const auto next = join(0, attempt + 1);
        auto found = next->find(0, attempt, newest + 1);  // whole, but killed before it could say so
        if (!found) found = next->find(0, attempt, newest);
        if (newest == 0 && !found) continue;
        ASSERT_TRUE(found) << "attempt " << attempt << " step " << newest;
        ++found_in_memory;
        std::string file(found->part_size, '\0');
        ASSERT_EQ(::pread(found->memory.get(), file.data(), file.size(), static_cast<off_t>(found->image_size)), static_cast<ssize_t>(file.size()));
        const auto part = parse(file);
        ASSERT_TRUE(part) << part.error().message;
        Checkpoint checkpoint(Fd(), *part, "memory");
        checkpoint.use_memory(0, std::move(ShardMemory::map(found->memory, found->image_size)).value());
        std::vector<std::uint32_t> values(kValues);
        const Tensor mine{"weights", DType::U32, Policy::Sliced, {2 * kValues}, {0}, {kValues}, values.data()};
        const auto filled = checkpoint.fill(std::span(&mine, 1), 0);
        ASSERT_TRUE(filled) << filled.error().message;
        ASSERT_EQ(values, values_of(0, part->step)) << "attempt " << attempt;
        const CheckpointId id{part->step, attempt};
        ASSERT_TRUE(until([&] { return store->read_part(id, 0).ok(); })) << "not brought to disk";
        auto folder = store->temporary(id);
        ASSERT_TRUE(folder);
        Checkpoint on_disk(std::move(*folder), *store->read_part(id, 0), "disk");
        const auto verified = on_disk.verify();
        ASSERT_TRUE(verified) << verified.error().message;
        ASSERT_TRUE(store->drop_temporary(id));
    }
    EXPECT_GT(found_in_memory, 20);
}

}  // namespace
}  // namespace gangline::checkpoint
