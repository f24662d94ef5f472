#pragma once
// Which checkpoints of a job stay, and who needs them. Pure: checkpoints and a rule in, needs out.
//
//   last        the newest K; two at least, since the newest may turn out damaged
//   every       each whose step is a multiple of M, for ever
//   best        the N with the best metric; of equals the newer
//   verified    the newest that was read back and found whole
//   unverified  what is newer than that one: K besides the last K, so that a slow disk is not filled by it
//   restore     a restore that runs may read it
//   pinned      a person said so
//
// A damaged one counts for nothing and takes nobody's place; only a pin keeps it.
// Text form, of a rule: "last=3 every=0 best=0 best_is=lower".

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gangline {

struct RetentionRule {
    std::uint32_t last = 3;
    std::uint64_t every = 0;  // steps; 0: none for ever
    std::uint32_t best = 0;
    bool higher_is_better = false;
    bool operator==(const RetentionRule&) const = default;
};
inline constexpr std::uint32_t kLeastLast = 2;
inline constexpr std::uint32_t kMostKept = 1000;  // of last, and of best: their list travels in one letter
inline constexpr std::uint64_t kMostEvery = 1'000'000'000'000;

std::string to_text(const RetentionRule& rule);
// Errors: InvalidArgument: not that form, or out of range.
Result<RetentionRule> parse_retention_rule(std::string_view text);

struct KeptCheckpoint {
    std::uint64_t step = 0;
    std::optional<double> metric = {};  // one that is not finite is never the best
    bool is_damaged = false;
    bool is_verified = false;
    bool is_restored = false;
    bool is_pinned = false;
};

class Needs {
  public:
    enum One : unsigned { Last = 1, Every = 2, Best = 4, Verified = 8, Unverified = 16, Restore = 32, Pinned = 64 };
    void add(One need) { bits_ |= need; }
    bool has(One need) const { return (bits_ & need) != 0; }
    bool any() const { return bits_ != 0; }
    std::string words() const;  // "last, best"; empty when nobody needs it

  private:
    unsigned bits_ = 0;
};

// Of each; oldest first. Two good ones, where there are two, are always needed.
std::vector<Needs> needs_of(std::span<const KeptCheckpoint> oldest_first, const RetentionRule& rule);

}  // namespace gangline
