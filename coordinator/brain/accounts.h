#pragma once
// Where every card-second of the cluster went: one cause at each moment for each card, so that they add up to what is owned.
//
//   held by a gang      split further by the ledger of its job (ledger.h)
//   held beside it      idle-held: the rest of whole nodes, spares
//   held by nobody      broken (its node is lost, or an earlier gang is not proved gone), drained, queue-fragmentation (free while a job
//                       waited for cards), free
//
// Driven by the journal's own times: a replay counts the same. Pure.

#include <array>
#include <cstdint>

namespace gangline::coordinator {

enum CardUse : std::size_t { Held, HeldIdle, Broken, Drained, Free, kCardUses };

// Cards of one node, or of the cluster, by use.
using CardCounts = std::array<std::uint64_t, kCardUses>;

class Accounts {
  public:
    // Time goes on with the counts as they are.
    void advance(std::int64_t unix_ms, bool somebody_waits);
    void change(const CardCounts& before, const CardCounts& after);
    void node_added() { ++nodes_; }
    void node_lost() { ++faults_; }
    void node_back(std::int64_t away_ms);

    double seconds(CardUse use) const { return seconds_[use]; }
    double fragmented_s() const { return fragmented_s_; }  // a part of Free
    double owned_s() const { return owned_s_; }            // counted by itself: the uses add up to it
    std::int64_t since_ms() const { return since_ms_; }
    std::int64_t until_ms() const { return at_ms_; }
    const CardCounts& counts() const { return counts_; }
    double node_days() const { return node_days_; }
    std::uint32_t nodes() const { return nodes_; }
    std::uint64_t faults() const { return faults_; }
    std::uint64_t repaired() const { return repaired_; }
    double repair_days() const { return repair_days_; }

  private:
    CardCounts counts_{};
    std::array<double, kCardUses> seconds_{};
    double fragmented_s_ = 0;
    double owned_s_ = 0;
    std::int64_t since_ms_ = 0;  // 0 = nothing yet
    std::int64_t at_ms_ = 0;
    std::uint32_t nodes_ = 0;
    double node_days_ = 0;
    std::uint64_t faults_ = 0;
    std::uint64_t repaired_ = 0;
    double repair_days_ = 0;
};

}  // namespace gangline::coordinator
