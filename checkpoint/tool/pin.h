#pragma once
// Pins: neither the gang's deletion nor `prune` takes a checkpoint that carries one.

#include "base/result.h"
#include "checkpoint/tool/place.h"

namespace gangline::checkpoint::tool {

// Durable when it returns. Errors: NotFound; Refused: it is being deleted.
Result<void> pin(const Place& place, const CheckpointId& id);
Result<void> unpin(const Place& place, const CheckpointId& id);

}  // namespace gangline::checkpoint::tool
