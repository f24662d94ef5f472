#pragma once
// Who may do what (R6): one table from verb to rule, and one function that applies it.
//
// Deny by default. A verb that is added to Request without a rule does not compile (-Wswitch is an error). Reads are
// verbs too. Only what the wire has verified counts: kind, role and name of the sender's row, and the job's owner.

#include <optional>
#include <string>

#include "base/protocol/user.pb.h"
#include "base/wire/wire.h"

namespace gangline::coordinator {

enum class Rule {
    Nobody,
    AnyUser,          // everybody with a user key
    OwnerOrOperator,  // the job's owner; operators and admins for every job
    Operator,         // operators and admins
};

constexpr Rule rule_of(proto::Request::BodyCase verb) {
    switch (verb) {
        case proto::Request::kSubmit: return Rule::AnyUser;
        case proto::Request::kCancel: return Rule::OwnerOrOperator;
        case proto::Request::kListJobs: return Rule::AnyUser;  // the queue: no command, environment or output in it
        case proto::Request::kShowJob: return Rule::OwnerOrOperator;
        case proto::Request::kListNodes: return Rule::AnyUser;
        case proto::Request::kSetNode: return Rule::Operator;
        case proto::Request::kReportJob: return Rule::OwnerOrOperator;
        case proto::Request::kWhyJob: return Rule::OwnerOrOperator;
        case proto::Request::kReadLogs: return Rule::OwnerOrOperator;
        case proto::Request::kPing: return Rule::AnyUser;
        case proto::Request::kSetHold: return Rule::OwnerOrOperator;
        case proto::Request::kSetReservation: return Rule::Operator;
        case proto::Request::kListReservations: return Rule::AnyUser;
        case proto::Request::kReportCluster: return Rule::AnyUser;  // the brain shows others' rows to operators only
        case proto::Request::BODY_NOT_SET: return Rule::Nobody;
    }
    return Rule::Nobody;
}

// Does the verb change state (and so goes through the brain's step), or is it answered from it?
constexpr bool is_change(proto::Request::BodyCase verb) {
    switch (verb) {
        case proto::Request::kSubmit:
        case proto::Request::kCancel:
        case proto::Request::kSetNode:
        case proto::Request::kSetHold:
        case proto::Request::kSetReservation: return true;
        case proto::Request::kListJobs:
        case proto::Request::kShowJob:
        case proto::Request::kListNodes:
        case proto::Request::kReportJob:
        case proto::Request::kWhyJob:
        case proto::Request::kReadLogs:
        case proto::Request::kPing:
        case proto::Request::kListReservations:
        case proto::Request::kReportCluster:
        case proto::Request::BODY_NOT_SET: return false;
    }
    return false;
}

// The job that a request is about; 0 for verbs about none.
std::uint64_t job_of(const proto::Request& request);
std::string_view verb_name(proto::Request::BodyCase verb);

// Nothing when `sender` may; else the refusal in words. `owner`: whose the job is; nothing when there is no such job
// (then nobody learns more than that).
std::optional<std::string> refusal(const std::optional<Principal>& sender, const proto::Request& request,
                                   const std::optional<std::string>& owner);

// Takes out of a queue listing what its reader may not see of other people's jobs: words of their programs, and paths.
void redact_queue(const Principal& reader, proto::Response& response);

}  // namespace gangline::coordinator
