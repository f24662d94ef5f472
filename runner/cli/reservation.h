#pragma once
// A reservation, from the words of `reserve` to what is sent, and as a table for people.
//
// Thread rule: pure.

#include <cstdint>
#include <string>

#include "base/protocol/user.pb.h"
#include "base/result.h"
#include "runner/cli/terminal.h"
#include "runner/cli/verbs.h"

namespace gangline::runner {

using Reservations = google::protobuf::RepeatedPtrField<proto::Reservation>;

// Of `reserve NAME --nodes LIST ...`. Errors: InvalidArgument that names option, value and form.
Result<proto::Reservation> build_reservation(const Line& line, std::int64_t now_unix_s);
// "maintenance", or "users a,b, teams t".
std::string reserved_for(const proto::Reservation& reservation);
// What `reserve` says: the coordinator's words, once.
std::string reserved_text(const proto::Reservation& reservation, const std::string& words);
std::string reservations_text(const Reservations& reservations, const Terminal& terminal, std::int64_t now_ms);

}  // namespace gangline::runner
