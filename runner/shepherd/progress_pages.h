#pragma once
// The attempt's shared-memory folder on this node, and the ranks' progress pages in it (base/progress_page.h).
//
// A page is read with pread, never mapped here: a rank that cuts its page short cannot hurt the shepherd.
// Thread rule: the loop's thread.

#include <cstdint>
#include <optional>
#include <string>

#include "base/handle.h"
#include "base/protocol/job.pb.h"
#include "base/result.h"

namespace gangline::runner {

// /dev/shm/gangline-<cluster>-<node>-<job>-<attempt>
std::string shared_folder_of(const std::string& cluster, const std::string& node, const proto::AttemptId& id);
// Makes it empty, 0700. What is there under its name from before is deleted when it is ours. Errors: Refused (it is
// somebody else's), NoSpace, Internal.
Result<void> make_shared_folder(const std::string& path);

class RankPage {
  public:
    // Makes the page's file with all its space reserved. Errors: NoSpace, Internal.
    static Result<RankPage> create(const std::string& path);
    // What the rank has written; nothing while its program has not joined.
    std::optional<proto::Progress> read() const;

  private:
    Fd fd_;
};

}  // namespace gangline::runner
