// The verbs about jobs that are there: queue, show, report, why, cancel, hold, release.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>

#include "base/time.h"
#include "runner/cli/json.h"
#include "runner/cli/verbs.h"
#include "runner/cli/views.h"

namespace gangline::runner {
namespace {

// Asks about one job; the answer, or the exit code of what went wrong.
Result<proto::Response> ask_about(const Line& line, const std::function<void(proto::Request&, std::uint64_t)>& fill) {
    auto client = connect(line);
    if (!client) return client.error();
    const auto job = the_job(line, **client);
    if (!job) return job.error();
    proto::Request request;
    fill(request, job->job);
    set_task(request, *job);
    return (*client)->ask(request);
}

// Does `one` for each job named; the worst exit code.
int for_each_job(const Line& line, const char* done_word,
                 const std::function<void(proto::Request&, std::uint64_t)>& fill) {
    auto client = connect(line);
    if (!client) return fail(line, client.error());
    if (line.words.empty()) {
        return fail(line, {Code::InvalidArgument, fmt::format("no job is named: gangline {} JOB...", line.verb)});
    }
    int worst = 0;
    nlohmann::ordered_json done = nlohmann::ordered_json::array();
    for (const std::string& word : line.words) {
        const auto job = find_job(**client, word);
        if (!job) {
            worst = std::max(worst, fail(line, job.error()));
            continue;
        }
        proto::Request request;
        fill(request, job->job);
        set_task(request, *job);
        const auto response = (*client)->ask(request);
        if (!response) {
            worst = std::max(worst, fail(line, response.error()));
            continue;
        }
        if (job->task) {
            done.push_back(to_string(*job));
        } else {
            done.push_back(job->job);
        }
        std::string words =
            response->message().empty() ? fmt::format("job {} {}", to_string(*job), done_word) : response->message();
        words.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(words.front())));
        if (!line.json()) print(words + "\n");
    }
    if (line.json() && worst == 0) print(json_document("jobs", done));
    return worst;
}

}  // namespace

int run_queue(const Line& line) {
    if (!line.words.empty()) {
        return fail(line, {Code::InvalidArgument,
                           fmt::format("queue takes no '{}': one job is shown by gangline show JOB", line.words.front())});
    }
    auto client = connect(line);
    if (!client) return fail(line, client.error());
    proto::Request request;
    request.mutable_list_jobs()->set_all_users(line.has("all") || line.has("user"));
    request.mutable_list_jobs()->set_user(line.text("user"));
    request.mutable_list_jobs()->set_ended_too(line.has("ended"));
    if (const Given* const limit = last_given(line.given, "limit"); limit != nullptr) {
        const auto most = whole_number(*limit, 1, 1'000'000);
        if (!most) return fail(line, most.error());
        request.mutable_list_jobs()->set_limit(static_cast<std::uint32_t>(*most));
    }
    const auto response = (*client)->ask(request);
    if (!response) return fail(line, response.error());
    if (line.json()) {
        nlohmann::ordered_json jobs = nlohmann::ordered_json::array();
        for (const proto::JobView& job : response->jobs()) jobs.push_back(to_json(job));
        print(json_document("jobs", std::move(jobs)));
    } else {
        print(queue_text(response->jobs(), terminal_of(1), now().unix_ms));
        if (response->jobs().empty() && terminal_of(2).is_terminal) {
            say(line.has("ended") ? "no jobs" : "no jobs (gangline queue -e shows ended ones)");
        }
    }
    return 0;
}

int run_show(const Line& line) {
    const auto response = ask_about(
        line, [](proto::Request& request, std::uint64_t job) { request.mutable_show_job()->set_job(job); });
    if (!response) return fail(line, response.error());
    if (response->jobs_size() == 0) return fail(line, {Code::NotFound, "the coordinator knows no such job"});
    const proto::JobView& job = response->jobs(0);
    print(line.json() ? json_document("job", to_json(job)) : job_text(job, terminal_of(1), now().unix_ms));
    return 0;
}

namespace {

int report_cluster(const Line& line) {
    if (!line.words.empty()) {
        return fail(line, {Code::InvalidArgument,
                           fmt::format("report --cluster takes no '{}': one job is reported by gangline report JOB", line.words.front())});
    }
    auto client = connect(line);
    if (!client) return fail(line, client.error());
    proto::Request request;
    request.mutable_report_cluster()->set_user(line.text("user"));
    const auto response = (*client)->ask(request);
    if (!response) return fail(line, response.error());
    print(line.json() ? json_document("cluster_report", to_json(response->cluster_report()))
                      : cluster_report_text(response->cluster_report(), terminal_of(1)));
    return 0;
}

}  // namespace

int run_report(const Line& line) {
    if (line.has("cluster")) return report_cluster(line);
    if (line.has("user")) {
        return fail(line, {Code::InvalidArgument, "report --user: the use of a user is reported by gangline report --cluster --user NAME"});
    }
    const auto response = ask_about(
        line, [](proto::Request& request, std::uint64_t job) { request.mutable_report_job()->set_job(job); });
    if (!response) return fail(line, response.error());
    print(line.json() ? json_document("report", to_json(response->report()))
                      : report_text(response->report(), terminal_of(1)));
    return 0;
}

int run_why(const Line& line) {
    const auto response = ask_about(
        line, [](proto::Request& request, std::uint64_t job) { request.mutable_why_job()->set_job(job); });
    if (!response) return fail(line, response.error());
    const std::string word = line.words.front() == "@" ? std::to_string(response->why().job()) : line.words.front();
    print(line.json() ? json_document("why", to_json(response->why())) : why_text(response->why(), word));
    return 0;
}

int run_cancel(const Line& line) {
    return for_each_job(line, "is cancelled", [&](proto::Request& request, std::uint64_t job) {
        request.mutable_cancel()->set_job(job);
        request.mutable_cancel()->set_reason(line.text("reason"));
    });
}

int run_hold(const Line& line) {
    const bool hold = line.verb == "hold";
    return for_each_job(line, hold ? "is held" : "is released", [&](proto::Request& request, std::uint64_t job) {
        request.mutable_set_hold()->set_job(job);
        request.mutable_set_hold()->set_hold(hold);
    });
}

}  // namespace gangline::runner
