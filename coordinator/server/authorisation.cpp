#include "coordinator/server/authorisation.h"

#include <fmt/format.h>

namespace gangline::coordinator {

std::uint64_t job_of(const proto::Request& request) {
    switch (request.body_case()) {
        case proto::Request::kCancel: return request.cancel().job();
        case proto::Request::kShowJob: return request.show_job().job();
        case proto::Request::kReportJob: return request.report_job().job();
        case proto::Request::kWhyJob: return request.why_job().job();
        case proto::Request::kReadLogs: return request.read_logs().job();
        case proto::Request::kSetHold: return request.set_hold().job();
        case proto::Request::kSubmit:
        case proto::Request::kListJobs:
        case proto::Request::kListNodes:
        case proto::Request::kSetNode:
        case proto::Request::kPing:
        case proto::Request::kSetReservation:
        case proto::Request::kListReservations:
        case proto::Request::kReportCluster:
        case proto::Request::BODY_NOT_SET: return 0;
    }
    return 0;
}

std::string_view verb_name(proto::Request::BodyCase verb) {
    switch (verb) {
        case proto::Request::kSubmit: return "submit";
        case proto::Request::kCancel: return "cancel";
        case proto::Request::kListJobs: return "queue";
        case proto::Request::kShowJob: return "show";
        case proto::Request::kListNodes: return "nodes";
        case proto::Request::kSetNode: return "drain or resume";
        case proto::Request::kReportJob: return "report";
        case proto::Request::kWhyJob: return "why";
        case proto::Request::kReadLogs: return "logs";
        case proto::Request::kPing: return "ping";
        case proto::Request::kSetHold: return "hold or let go";
        case proto::Request::kSetReservation: return "reserve or unreserve";
        case proto::Request::kListReservations: return "reservations";
        case proto::Request::kReportCluster: return "report of the cluster";
        case proto::Request::BODY_NOT_SET: return "unknown";
    }
    return "unknown";
}

std::optional<std::string> refusal(const std::optional<Principal>& sender, const proto::Request& request,
                                   const std::optional<std::string>& owner) {
    const proto::Request::BodyCase verb = request.body_case();
    if (!sender || sender->kind != PrincipalKind::User || sender->role < Role::User) {
        return fmt::format("{} is for users: this key is not a user's", verb_name(verb));
    }
    const bool is_operator = sender->role >= Role::Operator;
    switch (rule_of(verb)) {
        case Rule::Nobody: return "this coordinator does not know that request: is the client newer?";
        case Rule::AnyUser: return std::nullopt;
        case Rule::OwnerOrOperator:
            if (is_operator || !owner || *owner == sender->name) return std::nullopt;
            return fmt::format("job {} belongs to {}: {} is for its owner and for operators", job_of(request), *owner, verb_name(verb));
        case Rule::Operator:
            if (is_operator) return std::nullopt;
            return fmt::format("{} is for operators; {} has the role of a user", verb_name(verb), sender->name);
    }
    return "not allowed";
}

void redact_queue(const Principal& reader, proto::Response& response) {
    if (reader.role >= Role::Operator) return;
    for (proto::JobView& job : *response.mutable_jobs()) {
        if (job.user() == reader.name) continue;
        job.clear_faults();
        job.clear_checkpoint_folder();
        job.clear_spec();
    }
}

}  // namespace gangline::coordinator
