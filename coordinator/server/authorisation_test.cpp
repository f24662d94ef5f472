#include "coordinator/server/authorisation.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace gangline::coordinator {
namespace {

enum class Who { Anonymous, Owner, OtherUser, Operator, Admin, Node, Shepherd };
constexpr Who kEverybody[] = {Who::Anonymous, Who::Owner, Who::OtherUser, Who::Operator, Who::Admin, Who::Node, Who::Shepherd};

std::optional<Principal> principal(Who who) {
    switch (who) {
        case Who::Anonymous: return std::nullopt;
        case Who::Owner: return Principal{.row = 1, .kind = PrincipalKind::User, .name = "alice", .role = Role::User, .public_key = "a"};
        case Who::OtherUser: return Principal{.row = 2, .kind = PrincipalKind::User, .name = "bob", .role = Role::User, .public_key = "b"};
        case Who::Operator: return Principal{.row = 3, .kind = PrincipalKind::User, .name = "olga", .role = Role::Operator, .public_key = "o"};
        case Who::Admin: return Principal{.row = 4, .kind = PrincipalKind::User, .name = "ada", .role = Role::Admin, .public_key = "d"};
        // Named like the owner: the kind decides.
        case Who::Node: return Principal{.row = 5, .kind = PrincipalKind::Node, .name = "alice", .role = Role::Admin, .public_key = "n"};
        case Who::Shepherd: return Principal{.row = 6, .kind = PrincipalKind::Shepherd, .name = "alice", .role = Role::Admin, .public_key = "s", .job = 7, .attempt = 1};
    }
    return std::nullopt;
}

// A request of each verb, from the message's own description: a verb that is added is in the matrix by itself.
std::map<std::string, proto::Request> all_requests() {
    std::map<std::string, proto::Request> requests;
    const auto* oneof = proto::Request::descriptor()->FindOneofByName("body");
    for (int i = 0; i < oneof->field_count(); ++i) {
        proto::Request request;
        auto* body = request.GetReflection()->MutableMessage(&request, oneof->field(i));
        if (const auto* job = body->GetDescriptor()->FindFieldByName("job")) body->GetReflection()->SetUInt64(body, job, 7);
        requests[oneof->field(i)->name()] = request;
    }
    return requests;
}

TEST(Authorisation, IsThisMatrixAndNothingElse) {
    const std::set<Who> users = {Who::Owner, Who::OtherUser, Who::Operator, Who::Admin};
    const std::set<Who> owner_or_operator = {Who::Owner, Who::Operator, Who::Admin};
    const std::set<Who> operators = {Who::Operator, Who::Admin};
    const std::map<std::string, std::set<Who>> matrix = {
        {"submit", users},                 {"cancel", owner_or_operator},     {"list_jobs", users},
        {"show_job", owner_or_operator},   {"list_nodes", users},             {"set_node", operators},
        {"report_job", owner_or_operator}, {"why_job", owner_or_operator},    {"read_logs", owner_or_operator},
        {"ping", users},                   {"set_hold", owner_or_operator},     {"set_reservation", operators},
        {"list_reservations", users},      {"report_cluster", users},
    };
    const auto requests = all_requests();
    ASSERT_EQ(requests.size(), matrix.size());
    for (const auto& [verb, request] : requests) {
        ASSERT_TRUE(matrix.contains(verb)) << verb;
        for (const Who who : kEverybody) {
            const bool allowed = !refusal(principal(who), request, "alice");
            EXPECT_EQ(allowed, matrix.at(verb).contains(who)) << verb << " by " << static_cast<int>(who);
        }
    }
}

TEST(Authorisation, ARequestWithoutAVerbIsForNobody) {
    for (const Who who : kEverybody) EXPECT_TRUE(refusal(principal(who), proto::Request(), std::nullopt));
}

TEST(Authorisation, AUserWithoutARoleIsNobody) {
    Principal nobody = *principal(Who::Owner);
    nobody.role = Role::None;
    for (const auto& [verb, request] : all_requests()) EXPECT_TRUE(refusal(nobody, request, "alice")) << verb;
}

TEST(Authorisation, AJobThatDoesNotExistIsLeftToTheBrainToDeny) {
    for (const auto& [verb, request] : all_requests()) {
        if (job_of(request) != 0) {
            EXPECT_FALSE(refusal(principal(Who::OtherUser), request, std::nullopt)) << verb;
        }
    }
}

TEST(Authorisation, ARefusalSaysWhoMay) {
    proto::Request cancel;
    cancel.mutable_cancel()->set_job(7);
    EXPECT_EQ(*refusal(principal(Who::OtherUser), cancel, "alice"), "job 7 belongs to alice: cancel is for its owner and for operators");
    proto::Request drain;
    drain.mutable_set_node()->set_node("n0");
    EXPECT_EQ(*refusal(principal(Who::Owner), drain, std::nullopt), "drain or resume is for operators; alice has the role of a user");
}

TEST(Authorisation, TheQueueShowsNothingOfWhatOthersProgramsSaid) {
    proto::Response all;
    for (const char* user : {"alice", "bob"}) {
        proto::JobView& job = *all.add_jobs();
        job.set_user(user);
        job.set_name("n");
        job.add_faults("words");
        job.set_checkpoint_folder("/home");
        job.mutable_spec()->add_argv("secret");
    }
    proto::Response seen = all;
    redact_queue(*principal(Who::Owner), seen);
    EXPECT_EQ(seen.jobs(0).ShortDebugString(), all.jobs(0).ShortDebugString());
    EXPECT_EQ(seen.jobs(1).ShortDebugString(), "name: \"n\" user: \"bob\"");
    seen = all;
    redact_queue(*principal(Who::Operator), seen);
    EXPECT_EQ(seen.jobs(1).faults_size(), 1);
}

TEST(Authorisation, EveryVerbHasANameAndThoseAboutAJobNameIt) {
    for (const auto& [verb, request] : all_requests()) {
        EXPECT_NE(verb_name(request.body_case()), "unknown") << verb;
        EXPECT_EQ(job_of(request) != 0, rule_of(request.body_case()) == Rule::OwnerOrOperator) << verb;
    }
}

}  // namespace
}  // namespace gangline::coordinator
