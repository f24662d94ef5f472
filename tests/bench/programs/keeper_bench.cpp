// The memory tier's times, for ./bench checkpoint: one JSON object a measurement; times in seconds.
//   keeper_bench MIB ROUNDS     restore from the keeper's memory (verified), the same over TCP as from another node, and a killed rank's state back in a
//                               process that waits; a plain copy and plain TCP beside
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/process.h"
#include "checkpoint/keeper/client.h"
#include "checkpoint/keeper/fetch.h"
#include "checkpoint/keeper/keeper.h"
#include "checkpoint/shard.h"
#include "checkpoint/store.h"

namespace {

using namespace gangline;
using namespace gangline::checkpoint;

std::map<std::string, std::vector<double>> results;

[[noreturn]] void die(const std::string& what) {
    fmt::print(stderr, "keeper_bench: {}\n", what);
    std::_Exit(1);
}

template <class T>
T must(Result<T> result) {
    if (!result) die(result.error().message);
    if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

double since(std::chrono::steady_clock::time_point begun) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(); }

constexpr std::size_t kTensors = 64;

struct State {
    explicit State(std::size_t bytes) {
        for (std::size_t i = 0; i < kTensors; ++i) {
            memory.emplace_back(bytes / kTensors / 4, static_cast<float>(i));
            tensors.push_back({fmt::format("layer{:03}/weight", i), DType::F32, Policy::Replicated, {memory.back().size()}, {0}, {memory.back().size()}, memory.back().data()});
        }
    }
    std::vector<std::vector<float>> memory;
    std::vector<Tensor> tensors;
};

void snapshot(KeeperClient& client, State& state, std::uint64_t step) {
    const ShardPlan plan{7, step, 1, 0, 1, state.tensors};
    ShardImage image;
    must(image.prepare(plan));
    const auto place = must(client.want(image.size() + (1 << 20)));
    must(image.begin(step, state.tensors, place.memory));
    image.wait_copied();
    const std::string part = encode(part_of(plan, image));
    std::memcpy(place.memory->data + image.size(), part.data(), part.size());
    must(client.whole(place.slot, step, image.size(), part.size()));
}

// Into tensors that are touched already; returns the seconds.
double restore(KeeperClient& client, State& state, std::uint64_t step) {
    const auto begun = std::chrono::steady_clock::now();
    const auto found = client.find(0, 1, step);
    if (!found) die("the snapshot is not there");
    std::string file(found->part_size, '\0');
    if (::pread(found->memory.get(), file.data(), file.size(), static_cast<off_t>(found->image_size)) < 0) die("cannot read the part");
    Checkpoint checkpoint(Fd(), must(parse(file)), "memory");
    checkpoint.use_memory(0, must(ShardMemory::map(found->memory, found->image_size)));
    must(checkpoint.restore(state.tensors, 0, 1));
    client.done();
    return since(begun);
}

// From the keeper's door for other nodes, over loopback.
double restore_as_a_peer(const KeeperAddress& keeper, State& state, std::uint64_t step) {
    const auto begun = std::chrono::steady_clock::now();
    const WhoKeeps who{7, 2, 0, 0, "/"};
    const auto file = must(fetch_part(keeper, who, {0, 1, step}));
    if (!file) die("the snapshot is not there");
    auto part = must(parse(*file));
    Checkpoint checkpoint(Fd(), std::move(part), "another node");
    checkpoint.find_stream([&](const ShardRecord& shard) { return must(fetch_shard(keeper, who, {0, 1, step}, shard.size)); });
    must(checkpoint.restore(state.tensors, 0, 1));
    return since(begun);
}

// The limit: one connection over loopback, from memory that is touched into memory that is.
double tcp(std::size_t bytes, char* to) {
    std::uint16_t port = 0;
    const Fd listener = must(listen_tcp("127.0.0.1", port));
    const pid_t sender = ::fork();
    constexpr std::size_t kPiece = 1 << 20;
    if (sender == 0) {
        const std::vector<char> piece(kPiece, 'x');
        sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_port = htons(port);
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
        if (::connect(socket, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) std::_Exit(1);
        char go = 0;
        if (::recv(socket, &go, 1, 0) != 1) std::_Exit(1);
        for (std::size_t sent = 0; sent < bytes;) {
            const ssize_t n = ::send(socket, piece.data(), std::min(kPiece, bytes - sent), 0);
            if (n <= 0) std::_Exit(1);
            sent += static_cast<std::size_t>(n);
        }
        std::_Exit(0);
    }
    pollfd list{listener.get(), POLLIN, 0};
    (void)::poll(&list, 1, 10'000);
    const Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const auto begun = std::chrono::steady_clock::now();
    if (::send(socket.get(), "x", 1, 0) != 1) die("cannot start the sender");
    for (std::size_t come = 0; come < bytes;) {
        const ssize_t n = ::recv(socket.get(), to + come, std::min(kPiece, bytes - come), 0);
        if (n <= 0) die("the sender is gone");
        come += static_cast<std::size_t>(n);
    }
    const double seconds = since(begun);
    ::waitpid(sender, nullptr, 0);
    return seconds;
}

double copy(const State& from, State& to) {
    const auto begun = std::chrono::steady_clock::now();
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::thread> threads;
    for (unsigned part = 0; part < cores; ++part) {
        threads.emplace_back([&, part] {
            for (std::size_t i = part; i < kTensors; i += cores) std::memcpy(to.memory[i].data(), from.memory[i].data(), from.memory[i].size() * 4);
        });
    }
    for (std::thread& thread : threads) thread.join();
    return since(begun);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) die("usage: keeper_bench MIB ROUNDS");
    const std::size_t bytes = std::strtoull(argv[1], nullptr, 10) << 20;
    const int rounds = std::atoi(argv[2]);
    char folder[] = "/tmp/gangline-keeper-bench-XXXXXX";
    if (::mkdtemp(folder) == nullptr) die("cannot make a folder");
    const std::string name = "gangline-keeper-bench-" + random_hex(8);
    auto listener = must(listen_abstract(name, SOCK_STREAM));
    const pid_t keeper = ::fork();
    if (keeper == 0) {
        KeeperOptions options;
        options.agents = std::move(listener);
        options.name = name;
        std::_Exit(must(Keeper::make(std::move(options)))->run());
    }
    const auto join = [&] {
        for (;;) {
            auto client = KeeperClient::connect(name, {7, 1, 0, 0, folder});
            if (client) return std::move(*client);
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    };
    State from(bytes);
    State to(bytes);
    for (auto& memory : to.memory) {  // not the forked ranks': no write here pays for a page that they share
        const auto begin = (reinterpret_cast<std::uintptr_t>(memory.data()) + 4095) / 4096 * 4096;
        const auto end = reinterpret_cast<std::uintptr_t>(memory.data() + memory.size()) / 4096 * 4096;
        if (::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTFORK) != 0) die("madvise");
    }
    const auto reader = join();
    const KeeperAddress door = *parse_keeper_address(reader->where().value());
    void* const taken = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (taken == MAP_FAILED) die("no memory");
    (void)::madvise(taken, bytes, MADV_HUGEPAGE);
    (void)::madvise(taken, bytes, MADV_DONTFORK);
    char* const sink = static_cast<char*>(taken);
    std::memset(sink, 1, bytes);
    for (int round = 0; round < rounds; ++round) {
        const std::uint64_t step = static_cast<std::uint64_t>(round) + 1;
        int go[2];
        if (::pipe(go) != 0) die("no pipe");
        const pid_t rank = ::fork();  // copies on write: nothing of it is changed
        if (rank == 0) {
            const auto writer = join();
            snapshot(*writer, from, step);
            must(writer->durable(step));
            (void)!::write(go[1], "x", 1);
            ::pause();
        }
        char byte = 0;
        (void)!::read(go[0], &byte, 1);
        results["copy"].push_back(copy(from, to));
        results["tcp"].push_back(tcp(bytes, sink));
        results["restore_as_a_peer"].push_back(restore_as_a_peer(door, to, step));
        if (to.memory[7] != from.memory[7]) die("the state that came from the other node is another one");
        results["restore"].push_back(restore(*reader, to, step));
        const auto begun = std::chrono::steady_clock::now();
        ::kill(rank, SIGKILL);
        restore(*reader, to, step);
        results["killed_to_restored"].push_back(since(begun));
        ::waitpid(rank, nullptr, 0);
        ::close(go[0]);
        ::close(go[1]);
        if (to.memory[7] != from.memory[7]) die("the state that came back is another one");
    }
    ::kill(keeper, SIGKILL);
    ::waitpid(keeper, nullptr, 0);
    (void)remove_tree(folder);
    fmt::print("{{\"what\": \"bytes\", \"values\": [{}]}}\n", bytes);
    for (const auto& [what, values] : results) fmt::print("{{\"what\": \"{}\", \"values\": [{}]}}\n", what, fmt::join(values, ", "));
    return 0;
}
