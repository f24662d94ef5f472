#pragma once
// One agent a node on this machine, whatever its state folder: a second one would take the gangs of the first for what a dead agent
// left, and end them. The claim is an abstract socket named after cluster and node; it ends with its process, however that ends.
//
// The holder accepts and closes connections: a newcomer only asks by them who it is.

#include <string>

#include "base/handle.h"
#include "base/result.h"
#include "base/time.h"

namespace gangline::runner {

// A listening socket. A dying holder is waited for, no longer than `patience`. None, with a warning in the log, when a process of another
// user holds the name: he must not be able to keep an agent from its node. Errors: Refused, with the holder's pid.
Result<Fd> claim_node(const std::string& cluster, const std::string& node, Duration patience);

}  // namespace gangline::runner
