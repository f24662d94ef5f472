#pragma once
// What attempts leave on a node: spool folders, kept for `gangline logs` as long as there is room; and the names of attempts whose
// shared memory or cgroup is still there.

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "base/protocol/job.pb.h"

namespace gangline::runner {

class Spools {
  public:
    static constexpr std::size_t kMostEnded = 50;
    static constexpr std::uint64_t kMostBytes = 256u << 20;

    explicit Spools(std::string root) : root_(std::move(root)) {}
    // Looks what is there. Each of these returns the folders to remove, oldest first: old spares', and what is too much.
    std::vector<std::string> scan(const std::set<std::string>& in_use);
    std::vector<std::string> add_ended(const std::string& folder);

  private:
    struct Ended {
        std::string folder;
        std::uint64_t bytes = 0;
        std::int64_t changed_ns = 0;
    };
    Ended look_at(const std::string& folder) const;
    std::vector<std::string> too_much();

    std::string root_;
    std::deque<Ended> ended_;  // oldest first
};

// Attempts that /dev/shm/gangline-<cluster>-<node>-<job>-<attempt> or a cgroup gangline/<cluster>/<node>/<job>.<attempt> is of.
std::vector<proto::AttemptId> left_attempts(const std::string& cluster, const std::string& node);
// The numbers of "<job><separator><attempt>"; 0/0 when it is anything else.
proto::AttemptId parse_attempt(const std::string& text, char separator);

}  // namespace gangline::runner
