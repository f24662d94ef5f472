#pragma once
// The keys by which shepherds may speak for themselves while their agent is silent.
//
// A node reports each of its shepherds' public keys; the key is let in for that node and that attempt, and for nothing
// else, until the attempt is released. A node cannot claim a key that stands for somebody else, nor an attempt that is
// not placed on it (the caller has checked that).
//
// Thread rule: one thread; the KeyTable is safe by itself.

#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"
#include "base/wire/wire.h"
#include "coordinator/server/node_lines.h"

namespace gangline::coordinator {

inline constexpr std::size_t kMostShepherdsOfANode = 4096;

class GangKeys {
  public:
    explicit GangKeys(KeyTable& table) : table_(table) {}
    bool knows(const PartId& part, const std::string& public_key) const;
    // Errors: Refused: the key is somebody else's, malformed, or the node has too many.
    Result<void> add(const PartId& part, const std::string& public_key);
    void remove(const PartId& part);
    void remove_node(const std::string& node);

  private:
    struct Entry {
        std::uint64_t row = 0;
        std::string public_key;
    };
    KeyTable& table_;
    std::map<PartId, Entry> entries_;
};

}  // namespace gangline::coordinator
