#pragma once
// A rank's way to a keeper on another node (peer.h), for a restore.

#include <optional>
#include <string>

#include "base/result.h"
#include "checkpoint/keeper/client.h"
#include "checkpoint/keeper/peer.h"
#include "checkpoint/reader.h"

namespace gangline::checkpoint {

struct WantedSnapshot {
    std::uint32_t rank = 0;
    std::uint32_t attempt = 0;
    std::uint64_t step = 0;
};

// Its part of the manifest. Nothing: it is not there. Errors: Unavailable, Refused: nobody is, or not that keeper.
Result<std::optional<std::string>> fetch_part(const KeeperAddress& keeper, const WhoKeeps& who, const WantedSnapshot& wanted);
// Its shard, of `size` bytes, from the first byte to the last. Nothing: it is not there.
Result<std::unique_ptr<ShardStream>> fetch_shard(const KeeperAddress& keeper, const WhoKeeps& who, const WantedSnapshot& wanted, std::uint64_t size);

}  // namespace gangline::checkpoint
