#include "checkpoint/keeper/fetch.h"

#include <sys/mman.h>

#include <algorithm>

namespace gangline::checkpoint {
namespace {

constexpr std::uint64_t kPieceBytes = 4u << 20;

struct Found {
    PeerLine line;
    std::uint64_t size = 0;
    std::string part;
};

Result<std::optional<Found>> find(const KeeperAddress& keeper, const WhoKeeps& who, const WantedSnapshot& wanted, bool part_alone) {
    auto line = PeerLine::connect(keeper);
    if (!line) return line.error();
    KeeperMessage message;
    message.kind = KeeperKind::Join;
    message.job = who.job;
    message.rank = who.rank;
    message.attempt = who.attempt;
    if (auto sent = line->send(message, who.folder); !sent) return sent.error();
    message.kind = KeeperKind::Find;
    message.rank = wanted.rank;
    message.attempt = wanted.attempt;
    message.step = wanted.step;
    message.slot = part_alone ? 1 : 0;
    if (auto sent = line->send(message); !sent) return sent.error();
    auto answer = line->receive(kPeerStall);
    if (!answer) return answer.error();
    if (!answer->has_value()) return Error{Code::Unavailable, "the other keeper does not answer"};
    const KeeperMessage& found = (*answer)->message;
    if (found.kind == KeeperKind::Refused) return std::optional<Found>();
    if (found.kind != KeeperKind::Found || found.part_size > kMostPartBytes) return Error{Code::Unavailable, "the other keeper answers what was not asked"};
    std::string part(found.part_size, '\0');
    if (auto came = line->receive_bytes(part.data(), part.size()); !came) return came.error();
    return std::optional<Found>(Found{std::move(*line), found.size, std::move(part)});
}

// It leaves without anything to bring to disk.
void leave(PeerLine& line) {
    KeeperMessage message;
    message.kind = KeeperKind::Done;
    (void)line.send(message);
}

}  // namespace

Result<std::optional<std::string>> fetch_part(const KeeperAddress& keeper, const WhoKeeps& who, const WantedSnapshot& wanted) {
    auto found = find(keeper, who, wanted, true);
    if (!found) return found.error();
    if (!found->has_value()) return std::optional<std::string>();
    leave((*found)->line);
    return std::optional<std::string>(std::move((*found)->part));
}

Result<std::optional<ShardMemory>> fetch_shard(const KeeperAddress& keeper, const WhoKeeps& who, const WantedSnapshot& wanted, std::uint64_t size,
                                               const std::function<void()>& waiting) {
    auto found = find(keeper, who, wanted, false);
    if (!found) return found.error();
    if (!found->has_value() || (*found)->size != size || size == 0) return std::optional<ShardMemory>();
    void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return Error{Code::NoSpace, "no memory for a shard of another node"};
    (void)::madvise(mapped, size, MADV_HUGEPAGE);
    ShardMemory memory = ShardMemory::take(static_cast<char*>(mapped), size);
    for (std::uint64_t come = 0; come < size; come += kPieceBytes) {
        if (auto got = (*found)->line.receive_bytes(static_cast<char*>(mapped) + come, std::min(kPieceBytes, size - come)); !got) return got.error();
        if (waiting) waiting();
    }
    leave((*found)->line);
    return std::optional<ShardMemory>(std::move(memory));
}

}  // namespace gangline::checkpoint
