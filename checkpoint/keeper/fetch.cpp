#include "checkpoint/keeper/fetch.h"

#include <algorithm>
#include <vector>

namespace gangline::checkpoint {
namespace {

constexpr std::uint64_t kPieceBytes = 1u << 20;

struct Found {
    PeerLine line;
    std::uint64_t size = 0;
    std::string part;
};

// It leaves without anything to bring to disk.
void leave(PeerLine& line) {
    KeeperMessage message;
    message.kind = KeeperKind::Done;
    (void)line.send(message);
}

class Stream : public ShardStream {
  public:
    Stream(PeerLine line, std::uint64_t size) : line_(std::move(line)), size_(size) {}
    ~Stream() override {
        if (at_ == size_) leave(line_);
    }
    Result<void> read(std::uint64_t begin, char* to, std::uint64_t size) override {
        if (begin < at_ || begin > size_ || size > size_ - begin) return Error{Code::Internal, "a stream is read forwards"};
        for (std::vector<char> unwanted(begin == at_ ? 0 : kPieceBytes); at_ < begin;) {
            const std::uint64_t piece = std::min<std::uint64_t>(unwanted.size(), begin - at_);
            if (auto came = line_.receive_bytes(unwanted.data(), piece); !came) return came;
            at_ += piece;
        }
        auto came = line_.receive_bytes(to, size);
        at_ += size;
        return came;
    }

  private:
    PeerLine line_;
    const std::uint64_t size_;
    std::uint64_t at_ = 0;
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
    if (found.kind == KeeperKind::Refused) {
        leave(*line);
        return std::optional<Found>();
    }
    if (found.kind != KeeperKind::Found || found.part_size > kMostPartBytes) return Error{Code::Unavailable, "the other keeper answers what was not asked"};
    std::string part(found.part_size, '\0');
    if (auto came = line->receive_bytes(part.data(), part.size()); !came) return came.error();
    return std::optional<Found>(Found{std::move(*line), found.size, std::move(part)});
}

}  // namespace

Result<std::optional<std::string>> fetch_part(const KeeperAddress& keeper, const WhoKeeps& who, const WantedSnapshot& wanted) {
    auto found = find(keeper, who, wanted, true);
    if (!found) return found.error();
    if (!found->has_value()) return std::optional<std::string>();
    leave((*found)->line);
    return std::optional<std::string>(std::move((*found)->part));
}

Result<std::unique_ptr<ShardStream>> fetch_shard(const KeeperAddress& keeper, const WhoKeeps& who, const WantedSnapshot& wanted, std::uint64_t size) {
    auto found = find(keeper, who, wanted, false);
    if (!found) return found.error();
    if (!found->has_value() || (*found)->size != size) return std::unique_ptr<ShardStream>();
    return std::unique_ptr<ShardStream>(new Stream(std::move((*found)->line), size));
}

}  // namespace gangline::checkpoint
