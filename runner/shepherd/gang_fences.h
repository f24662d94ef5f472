#pragma once
// The fences of a gang on several nodes, as the lead collects them: one part from each participating node, then one answer, all
// parts one behind the other (PMIx blobs describe themselves). Pure.
//
// Key: "<namespace>:<rank or *>[|...]#<number>". Which nodes take part follows from the key and the gang's placement; a part that
// comes before its gang is known is kept. A part that comes again gets its answer again: answers are kept for the last
// kKeptAnswers fences of a namespace, far more than can be under way. A fence with a dead participant fails for all.
//
// Thread rule: one thread an object.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/protocol/shepherd.pb.h"

namespace gangline::runner {

// The namespaces and ranks that a fence's key names; no rank = all. Nothing when the text is not a key.
struct FenceMember {
    std::string name_space;
    std::optional<std::uint32_t> rank;
};
std::optional<std::vector<FenceMember>> parse_fence_key(const std::string& key);

class GangFences {
  public:
    struct Range {
        std::uint32_t node_index = 0;
        std::uint32_t first_rank = 0;
        std::uint32_t rank_count = 0;
    };
    static constexpr std::size_t kKeptAnswers = 16;

    // Each returns the answers that are now due, to all participants of each; of a part that came again, to its node alone
    // (`was_answered`).
    std::vector<proto::FenceDone> add_gang(const std::string& name_space, std::vector<Range> ranges);
    std::vector<proto::FenceDone> add(std::uint32_t node_index, const proto::Fence& part);
    // The namespace's fences fail from now on.
    std::vector<proto::FenceDone> fail(const std::string& name_space);

    bool was_answered(const std::string& key) const;

    // Node indices; empty while a gang of the key is unknown.
    std::set<std::uint32_t> participants(const std::string& key) const;

    // What this node has sent and waits for.
    void remember(const proto::Fence& part) { unanswered_[part.key()] = part; }
    bool forget(const std::string& key) { return unanswered_.erase(key) != 0; }  // false: it was not waited for
    std::vector<proto::Fence> unanswered() const;
    // Failed answers to what is waited for of the namespace: nothing will come. It stays remembered until they are delivered.
    std::vector<proto::FenceDone> fail_unanswered(const std::string& name_space) const;

  private:
    struct Waiting {
        std::map<std::uint32_t, std::string> parts;
        bool partial = false;  // a participant is dead: libpmix lets its node's part come all the same
    };
    std::optional<proto::FenceDone> settle(const std::string& key);
    void keep(const proto::FenceDone& answer);
    bool names_failed(const std::string& key) const;

    std::map<std::string, std::vector<Range>> gangs_;
    std::map<std::string, Waiting> waiting_;
    std::map<std::string, proto::Fence> unanswered_;
    std::map<std::string, std::deque<proto::FenceDone>> answered_;  // by the key's first namespace
    std::set<std::string> failed_;
};

}  // namespace gangline::runner
