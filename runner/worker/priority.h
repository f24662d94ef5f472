#pragma once
// How much a thread of ours may take from a program's own: Linux keeps both per thread.
//
// What the system refuses is left as it is. Call on the thread that is meant.

namespace gangline {

// The processor and the disk when nobody else wants them.
void only_when_idle();
// The disk behind everybody else's in the ordinary class; alone on it, as fast as ever.
void behind_others_on_disk();

}  // namespace gangline
