#pragma once
// What an agent writes down so that the next one finds its shepherds: <state>/attempts/<spool folder>, one file each, and
// <state>/epoch. Not fsynced: a note lost with the machine names processes that are lost too.

#include <string>
#include <vector>

#include "base/result.h"
#include "runner/agent/agent_brain.h"

namespace gangline::runner {

class Notes {
  public:
    explicit Notes(std::string state) : state_(std::move(state)) {}
    Result<void> prepare();
    Result<void> keep(const AttemptNote& note);
    void drop(const std::string& spool_folder);
    std::vector<AttemptNote> all() const;   // unreadable ones are left out and removed
    Result<void> keep_epoch(std::uint64_t epoch);
    std::uint64_t epoch() const;

  private:
    std::string state_;
};

}  // namespace gangline::runner
