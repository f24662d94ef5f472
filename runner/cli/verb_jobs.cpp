// The verbs about jobs that are there: queue, show, report, why, cancel, hold, release.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <memory>

#include "base/time.h"
#include "runner/cli/json.h"
#include "runner/cli/verbs.h"
#include "runner/cli/views.h"

namespace gangline::runner {
namespace {

struct Answer {
    std::unique_ptr<Client> client;
    JobName name;
    proto::Response response;
};

Result<Answer> ask_about(const Line& line, const std::function<void(proto::Request&, std::uint64_t)>& fill) {
    auto client = connect(line);
    if (!client) return client.error();
    const auto job = the_job(line, **client);
    if (!job) return job.error();
    proto::Request request;
    fill(request, job->job);
    set_task(request, *job);
    auto response = (*client)->ask(request);
    if (!response) return response.error();
    return Answer{std::move(client).value(), *job, std::move(response).value()};
}

// How the whole array stands when it was asked for by its number, of which `job` is the first task; else empty.
std::string whole_array_text(const Answer& answer, const proto::JobView& job) {
    if (answer.name.task || job.array().count() < 2 || job.array().job() != answer.name.job) return {};
    proto::Request request;
    request.mutable_list_jobs()->set_all_users(true);
    request.mutable_list_jobs()->set_user(job.user());
    request.mutable_list_jobs()->set_ended_too(true);
    const auto jobs = answer.client->ask(request);
    return jobs ? array_text(jobs->jobs(), answer.name.job) : fmt::format("Array {}: {}\n", answer.name.job, jobs.error().message);
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

// The coordinator's limit counts what has not ended first. With --ended the one on the command line counts ended jobs: it is raised by
// what is alive.
Result<JobViews> list_jobs(const Line& line, Client& client) {
    proto::Request request;
    proto::ListJobs& list = *request.mutable_list_jobs();
    list.set_all_users(line.has("all") || line.has("user"));
    list.set_user(line.text("user"));
    std::uint32_t most = 0;
    if (const Given* const limit = last_given(line.given, "limit"); limit != nullptr) {
        const auto number = whole_number(*limit, 1, 1'000'000);
        if (!number) return number.error();
        most = static_cast<std::uint32_t>(*number);
    }
    const bool ended_too = line.has("ended");
    if (most != 0 && ended_too) {
        const auto alive = client.ask(request);
        if (!alive) return alive.error();
        list.set_limit(most + static_cast<std::uint32_t>(alive->jobs_size()));
    } else {
        list.set_limit(most);
    }
    list.set_ended_too(ended_too);
    auto response = client.ask(request);
    if (!response) return response.error();
    return most != 0 && ended_too ? with_most_ended(response->jobs(), most) : std::move(*response->mutable_jobs());
}

}  // namespace

int run_queue(const Line& line) {
    if (!line.words.empty()) {
        return fail(line, {Code::InvalidArgument,
                           fmt::format("queue takes no '{}': one job is shown by gangline show JOB", line.words.front())});
    }
    auto client = connect(line);
    if (!client) return fail(line, client.error());
    const auto found = list_jobs(line, **client);
    if (!found) return fail(line, found.error());
    if (line.json()) {
        nlohmann::ordered_json jobs = nlohmann::ordered_json::array();
        for (const proto::JobView& job : *found) jobs.push_back(to_json(job));
        print(json_document("jobs", std::move(jobs)));
    } else {
        print(queue_text(*found, terminal_of(1), now().unix_ms, line.has("all") && !line.has("user") ? QueueOf::AllUsers : QueueOf::OneUser));
        if (found->empty() && terminal_of(2).is_terminal) {
            say(line.has("ended") ? "no jobs" : "no jobs (gangline queue -e shows ended ones)");
        }
    }
    return 0;
}

int run_show(const Line& line) {
    const auto answer = ask_about(
        line, [](proto::Request& request, std::uint64_t job) { request.mutable_show_job()->set_job(job); });
    if (!answer) return fail(line, answer.error());
    if (answer->response.jobs_size() == 0) return fail(line, {Code::NotFound, "the coordinator knows no such job"});
    const proto::JobView& job = answer->response.jobs(0);
    print(line.json() ? json_document("job", to_json(job))
                      : job_text(job, terminal_of(1), now().unix_ms) + whole_array_text(*answer, job));
    return 0;
}

namespace {

// How many jobs have had cards, beyond those that the report has.
std::size_t jobs_left_out(Client& client, const proto::ClusterReport& report, const ReportReader& reader) {
    if (report.jobs_size() < kMostReportedJobs) return 0;
    proto::Request request;
    request.mutable_list_jobs()->set_all_users(true);
    request.mutable_list_jobs()->set_ended_too(true);
    request.mutable_list_jobs()->set_user(!reader.asked_for.empty() || reader.sees_all ? reader.asked_for : reader.name);
    const auto all = client.ask(request);
    if (!all) return 0;
    const auto had_cards = std::count_if(all->jobs().begin(), all->jobs().end(), [](const proto::JobView& job) { return job.started_unix_ms() != 0; });
    return static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, had_cards - report.jobs_size()));
}

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
    const proto::ClusterReport& report = response->cluster_report();
    if (line.json()) {
        print(json_document("cluster_report", to_json(report)));
        return 0;
    }
    ReportReader reader;
    reader.asked_for = line.text("user");
    proto::Request who;
    who.mutable_ping();
    if (const auto pong = (*client)->ask(who); pong) {
        reader.name = pong->pong().user();
        reader.sees_all = pong->pong().role() == "operator" || pong->pong().role() == "admin";
    }
    reader.jobs_left_out = jobs_left_out(**client, report, reader);
    print(cluster_report_text(report, reader, terminal_of(1)));
    return 0;
}

}  // namespace

int run_report(const Line& line) {
    if (line.has("cluster")) return report_cluster(line);
    if (line.has("user")) {
        return fail(line, {Code::InvalidArgument, "report --user: the use of a user is reported by gangline report --cluster --user NAME"});
    }
    const auto answer = ask_about(
        line, [](proto::Request& request, std::uint64_t job) { request.mutable_report_job()->set_job(job); });
    if (!answer) return fail(line, answer.error());
    const proto::Report& report = answer->response.report();
    print(line.json() ? json_document("report", to_json(report))
                      : report_text(report, terminal_of(1)) + whole_array_text(*answer, report.job()));
    return 0;
}

int run_why(const Line& line) {
    const auto answer = ask_about(
        line, [](proto::Request& request, std::uint64_t job) { request.mutable_why_job()->set_job(job); });
    if (!answer) return fail(line, answer.error());
    const proto::Why& why = answer->response.why();
    print(line.json() ? json_document("why", to_json(why)) : why_text(why, to_string(answer->name), now().unix_ms));
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
