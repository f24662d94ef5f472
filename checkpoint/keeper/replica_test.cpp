// Two real keepers, as of two nodes: copies of snapshots, whoever of them is killed, stopped or lied to.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/process.h"
#include "base/protocol/shepherd.pb.h"
#include "checkpoint/keeper/client.h"
#include "checkpoint/keeper/fetch.h"
#include "checkpoint/keeper/keeper.h"
#include "checkpoint/keeper/peer.h"
#include "checkpoint/shard.h"
#include "checkpoint/store.h"

namespace gangline::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kValues = 400'000;
constexpr seconds kLimit{20};

std::vector<std::uint32_t> values_of(std::uint32_t rank, std::uint64_t step) {
    std::vector<std::uint32_t> values(kValues);
    for (std::size_t i = 0; i < kValues; ++i) values[i] = static_cast<std::uint32_t>(i * 2654435761u + rank * 40503u + static_cast<std::uint32_t>(step));
    return values;
}

std::vector<Tensor> tensors_of(std::uint32_t rank, std::vector<std::uint32_t>& values) {
    return {{"weights", DType::U32, Policy::Sliced, {2 * kValues}, {rank * kValues}, {kValues}, values.data()}};
}

bool until(const std::function<bool()>& condition) {
    const TimePoint end = now().steady + kLimit;
    while (!condition()) {
        if (now().steady > end) return false;
        std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
}

// A keeper in a process of its own.
class Node {
  public:
    explicit Node(std::string folder) : folder_(std::move(folder)), name_("gangline-replica-test-" + random_hex(8)) { start(); }
    ~Node() { end(SIGKILL); }
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    void start() {
        auto listener = listen_abstract(name_, SOCK_STREAM);
        ASSERT_TRUE(listener) << listener.error().message;
        pid_ = ::fork();
        if (pid_ == 0) {
            ::signal(SIGPIPE, SIG_IGN);
            KeeperOptions options;
            options.agents = std::move(*listener);
            options.name = name_;
            options.agent_uid = ::getuid();
            auto keeper = Keeper::make(std::move(options));
            ::_exit(keeper ? (*keeper)->run() : 99);
        }
        ASSERT_TRUE(until([&] { return KeeperClient::connect(name_, {7, 1, 99, 0, folder_}).ok(); }));
    }
    void end(int signal) {
        if (pid_ <= 0) return;
        ::kill(pid_, signal);
        if (signal != SIGKILL) return;
        ::waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }
    void tell_to_quit() {
        auto agent = connect_abstract(name_, SOCK_STREAM);
        ASSERT_TRUE(agent);
        proto::ToShepherd message;
        message.mutable_quit();
        FrameWriter writer;
        writer.push(message.SerializeAsString());
        ASSERT_TRUE(writer.flush(agent->get()).ok());
        int status = 0;
        ::waitpid(pid_, &status, 0);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
        pid_ = 0;
    }
    std::unique_ptr<KeeperClient> join(std::uint32_t rank, std::uint32_t attempt, std::uint64_t most_bytes = 0) {
        held_ = 0;
        auto client = KeeperClient::connect(name_, {7, attempt, rank, most_bytes, folder_}, [this](std::uint64_t step) { held_ = step; });
        EXPECT_TRUE(client) << client.error().message;
        return client ? std::move(*client) : nullptr;
    }
    // The newest step of which the rank that joined last has a copy elsewhere.
    std::uint64_t held() const { return held_; }

  private:
    std::string folder_;
    std::string name_;
    pid_t pid_ = 0;
    std::atomic<std::uint64_t> held_{0};
};

class Replicas : public ::testing::Test {
  protected:
    Replicas() : root_((fs::temp_directory_path() / ("gangline-replicas-" + random_hex(6))).string()) {
        fs::create_directories(root_);
        one_ = std::make_unique<Node>(root_);
        other_ = std::make_unique<Node>(root_);
    }
    ~Replicas() override {
        one_.reset();
        other_.reset();
        std::error_code ignored;
        fs::remove_all(root_, ignored);
    }
    // False: the keeper is gone.
    static bool snapshot(KeeperClient& client, std::uint32_t rank, std::uint32_t attempt, std::uint64_t step) {
        auto values = values_of(rank, step);
        const auto tensors = tensors_of(rank, values);
        const ShardPlan plan{7, step, attempt, rank, 2, tensors};
        ShardImage image;
        EXPECT_TRUE(image.prepare(plan).ok());
        const auto place = client.want(image.size() + (1 << 16));
        if (!place) return false;
        EXPECT_TRUE(image.begin(step, tensors, place->memory).ok());
        image.wait_copied();
        const std::string part = encode(part_of(plan, image));
        std::memcpy(place->memory->data + image.size(), part.data(), part.size());
        return client.whole(place->slot, step, image.size(), part.size()).ok();
    }
    std::optional<KeeperAddress> address_of(KeeperClient& client) const {
        const auto where = client.where();
        return where ? parse_keeper_address(*where) : std::nullopt;
    }
    // Nothing: that keeper has no such snapshot. What it has must be right.
    std::optional<std::vector<std::uint32_t>> fetched(const KeeperAddress& keeper, std::uint32_t rank, std::uint64_t step) const {
        const WhoKeeps who{7, 2, rank, 0, root_};
        const auto file = fetch_part(keeper, who, {rank, 1, step});
        if (!file || !file->has_value()) return std::nullopt;
        auto part = parse(**file);
        EXPECT_TRUE(part) << part.error().message;
        std::vector<std::uint32_t> values(kValues);
        Checkpoint checkpoint(Fd(), std::move(*part), "a replica");
        bool is_there = true;
        checkpoint.find_stream([&](const ShardRecord& shard) {
            auto stream = fetch_shard(keeper, who, {rank, 1, step}, shard.size);
            is_there = stream && *stream != nullptr;
            return is_there ? std::move(*stream) : nullptr;
        });
        const auto filled = checkpoint.fill(tensors_of(rank, values), rank);
        if (!is_there) return std::nullopt;
        EXPECT_TRUE(filled) << filled.error().message;
        EXPECT_EQ(checkpoint.memory_problems(), "");
        return values;
    }
    bool has_part(std::uint64_t step, std::uint32_t rank) const {
        auto store = Store::open(root_);
        return store && store->read_part({step, 1}, rank).ok();
    }

    std::string root_;
    std::unique_ptr<Node> one_;
    std::unique_ptr<Node> other_;
};

TEST_F(Replicas, OfANodeThatIsLostServeAndThenComeToDisk) {
    const auto there = other_->join(1, 1);
    const auto where = there->where();
    ASSERT_TRUE(where);
    const auto rank = one_->join(0, 1);
    for (const std::uint64_t step : {10u, 20u, 30u}) {
        ASSERT_TRUE(snapshot(*rank, 0, 1, step));
        if (step == 10) {
            ASSERT_TRUE(rank->set_peer(*where).ok()) << "what is whole already goes there, too";
        }
        ASSERT_TRUE(until([&] { return one_->held() == step; })) << step;
    }
    one_->end(SIGKILL);
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_FALSE(has_part(30, 0)) << "as long as nobody starts from it its rank may still be writing it";
    const auto address = parse_keeper_address(*where);
    ASSERT_TRUE(address);
    EXPECT_EQ(fetched(*address, 0, 30), values_of(0, 30));
    EXPECT_EQ(fetched(*address, 0, 20), values_of(0, 20));
    EXPECT_FALSE(fetched(*address, 0, 10)) << "two of a rank are kept";
    EXPECT_FALSE(fetched(*address, 1, 30));
    EXPECT_TRUE(until([&] { return has_part(30, 0); }));
}

TEST_F(Replicas, OfANodeThatLeavesInOrderAreNotTheirKeepersToWrite) {
    const auto there = other_->join(1, 1);
    auto rank = one_->join(0, 1);
    ASSERT_TRUE(rank->set_peer(*there->where()).ok());
    ASSERT_TRUE(snapshot(*rank, 0, 1, 10));
    ASSERT_TRUE(until([&] { return one_->held() == 10; }));
    rank.reset();
    ASSERT_TRUE(until([&] { return has_part(10, 0); })) << "its own keeper writes it";
    one_->tell_to_quit();
    fs::remove_all(root_ + "/.tmp-step-000000000010-e000001");
    EXPECT_EQ(fetched(*address_of(*there), 0, 10), values_of(0, 10));
    std::this_thread::sleep_for(milliseconds(200));
    EXPECT_FALSE(has_part(10, 0));
}

TEST_F(Replicas, ThatAreOnDiskAlreadyAreNotWrittenAgain) {
    const auto there = other_->join(1, 1);
    const auto rank = one_->join(0, 1);
    ASSERT_TRUE(rank->set_peer(*there->where()).ok());
    ASSERT_TRUE(snapshot(*rank, 0, 1, 10));
    ASSERT_TRUE(until([&] { return one_->held() == 10; }));
    ASSERT_TRUE(rank->durable(10).ok());
    std::this_thread::sleep_for(milliseconds(200));
    one_->end(SIGKILL);
    EXPECT_EQ(fetched(*address_of(*there), 0, 10), values_of(0, 10));
    std::this_thread::sleep_for(milliseconds(200));
    EXPECT_FALSE(has_part(10, 0));
}

TEST_F(Replicas, WhoeverDoesNotKnowTheSecretGetsNothing) {
    const auto there = other_->join(1, 1);
    ASSERT_TRUE(snapshot(*there, 1, 1, 10));
    KeeperAddress address = *address_of(*there);
    ASSERT_TRUE(PeerLine::connect(address).ok());
    address.secret[7] ^= 1;
    const auto refused = PeerLine::connect(address);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::Refused);
    // Who does not even say hello properly, and one that sends what a caller would, but cannot know.
    for (const std::string& bytes : {std::string(7, 'x'), std::string(96, 'x'), std::string(4096, '\0')}) {
        const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_port = htons(address.port);
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
        ASSERT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    }
    address.secret[7] ^= 1;
    EXPECT_EQ(fetched(address, 1, 10), values_of(1, 10)) << "it serves on";
}

TEST_F(Replicas, WhatComesDamagedOrOfAnotherRankIsNotHeld) {
    const auto there = other_->join(1, 1);
    const KeeperAddress address = *address_of(*there);
    auto values = values_of(0, 10);
    const auto tensors = tensors_of(0, values);
    const ShardPlan plan{7, 10, 1, 0, 2, tensors};
    ShardImage image;
    ASSERT_TRUE(image.prepare(plan).ok());
    ASSERT_TRUE(image.begin(10, tensors).ok());
    image.wait_copied();
    const std::string part = encode(part_of(plan, image));
    std::string bytes;
    for (std::uint64_t run = 0; run * kRunBytes < image.size(); ++run) bytes.append(image.run(run), std::min<std::uint64_t>(kRunBytes, image.size() - run * kRunBytes));
    const auto push = [&](std::uint32_t rank, std::uint64_t step, const std::string& part_sent, const std::string& file) {
        auto line = PeerLine::connect(address);
        EXPECT_TRUE(line);
        KeeperMessage message;
        message.job = 7;
        message.rank = rank;
        message.attempt = 1;
        EXPECT_TRUE(line->send(message, root_).ok());
        message.kind = KeeperKind::Whole;
        message.step = step;
        message.size = file.size();
        message.part_size = part_sent.size();
        EXPECT_TRUE(line->send(message).ok());
        auto slot = line->receive(kLimit);
        if (!slot || !slot->has_value() || (*slot)->message.kind != KeeperKind::Slot) return std::string("no slot");
        EXPECT_TRUE(line->send_bytes(part_sent).ok());
        EXPECT_TRUE(line->send_bytes(file).ok());
        auto answer = line->receive(kLimit);
        if (!answer || !answer->has_value()) return std::string("no answer");
        return (*answer)->message.kind == KeeperKind::Held ? std::string("held") : (*answer)->text;
    };
    std::string wrong = bytes;
    wrong[wrong.size() / 2] = static_cast<char>(wrong[wrong.size() / 2] ^ 4);
    EXPECT_NE(push(0, 10, part, wrong).find("without its checksum"), std::string::npos);
    EXPECT_FALSE(fetched(address, 0, 10));
    EXPECT_NE(push(1, 10, part, bytes).find("another's"), std::string::npos);
    EXPECT_NE(push(0, 11, part, bytes).find("another's"), std::string::npos);
    EXPECT_NE(push(0, 10, part.substr(0, part.size() / 2), bytes).find("none"), std::string::npos);
    EXPECT_NE(push(0, 10, part, bytes.substr(0, bytes.size() - 5)).find("another's"), std::string::npos);
    EXPECT_FALSE(fetched(address, 0, 10));
    EXPECT_EQ(push(0, 10, part, bytes), "held");
    EXPECT_EQ(fetched(address, 0, 10), values_of(0, 10));
}

TEST_F(Replicas, AKeeperThatIsStoppedHoldsNoRankUp) {
    const auto there = other_->join(1, 1);
    const auto rank = one_->join(0, 1);
    ASSERT_TRUE(rank->set_peer(*there->where()).ok());
    ASSERT_TRUE(snapshot(*rank, 0, 1, 10));
    ASSERT_TRUE(until([&] { return one_->held() == 10; }));
    other_->end(SIGSTOP);
    for (std::uint64_t step = 20; step < 200; step += 10) ASSERT_TRUE(snapshot(*rank, 0, 1, step));
    EXPECT_TRUE(rank->is_open());
    other_->end(SIGCONT);
    EXPECT_TRUE(until([&] { return one_->held() == 190; })) << one_->held();
}

TEST_F(Replicas, TakeHalfOfTheBudgetAtMost) {
    const auto there = other_->join(1, 1);
    const auto rank = one_->join(0, 1, std::uint64_t{5} << 20);  // two of 1.7 MB here; the other node takes one of them at most
    ASSERT_TRUE(rank->set_peer(*there->where()).ok());
    ASSERT_TRUE(snapshot(*rank, 0, 1, 10));
    ASSERT_TRUE(until([&] { return one_->held() == 10; }));
    ASSERT_TRUE(snapshot(*rank, 0, 1, 20));
    std::this_thread::sleep_for(milliseconds(300));
    EXPECT_EQ(one_->held(), 10u);
    EXPECT_EQ(fetched(*address_of(*there), 0, 10), values_of(0, 10)) << "what is whole there is not given up for what may not become it";
}

// Whoever is killed, and when: what a keeper gives is right, and what was said to be held is there while its keeper lives.
TEST_F(Replicas, AreNeverWrongWhoeverIsKilled) {
    std::mt19937 random(5);
    for (int round = 0; round < 24; ++round) {
        auto there = other_->join(1, 1);
        auto rank = one_->join(0, 1);
        const auto where = there->where();
        ASSERT_TRUE(where);
        ASSERT_TRUE(rank->set_peer(*where).ok());
        std::atomic<bool> is_over{false};
        std::thread saving([&] {
            for (std::uint64_t step = 1; !is_over && snapshot(*rank, 0, 1, step); ++step) {}
        });
        std::this_thread::sleep_for(milliseconds(random() % 120));
        Node& killed = round % 2 == 0 ? *one_ : *other_;
        killed.end(SIGKILL);
        std::this_thread::sleep_for(milliseconds(50));
        is_over = true;
        saving.join();
        const std::uint64_t held = one_->held();
        if (&killed == one_.get()) {
            const KeeperAddress address = *parse_keeper_address(*where);
            if (held != 0) {
                EXPECT_TRUE(fetched(address, 0, held) || fetched(address, 0, held + 1) || fetched(address, 0, held + 2)) << held;
            }
            for (std::uint64_t step = held == 0 ? 1 : held; step <= held + 3; ++step) {
                if (const auto found = fetched(address, 0, step)) {
                    EXPECT_EQ(*found, values_of(0, step));
                }
            }
        }
        there.reset();
        rank.reset();
        killed.start();
        if (HasFatalFailure()) return;
    }
}

}  // namespace
}  // namespace gangline::checkpoint
