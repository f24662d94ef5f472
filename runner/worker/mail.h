#pragma once
// The letters between the ranks' savers: one byte, then what follows it.
//
// Durable       its part's seal      the rank's shard is on disk
// Failed        text                 it will not be
// Committed     none                 rank 0: the checkpoint counts
// NotCommitted  text                 rank 0: it does not
// SaveAt        'M' or 'D'           rank 0: all save that step, in memory alone or on disk
// NotHeld       none                 no keeper holds the rank's copy of that step
// Here          none                 rank 0 can write to whoever has written to it
// WhereKeeper   none                 where is your node's keeper?
// KeeperAt      checkpoint/keeper/peer.h   there

namespace gangline {

enum class Mail : char { Durable = 'D', Failed = 'F', Committed = 'C', NotCommitted = 'N', SaveAt = 'S', NotHeld = 'K', Here = 'H', WhereKeeper = 'W', KeeperAt = 'P' };

}  // namespace gangline
