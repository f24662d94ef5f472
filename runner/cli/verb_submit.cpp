// `gangline submit`.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/process.h"
#include "base/time.h"
#include "runner/cli/attach.h"
#include "runner/cli/job_request.h"
#include "runner/cli/json.h"
#include "runner/cli/verbs.h"
#include "runner/cli/views.h"

namespace gangline::runner {
namespace {

// Pipelines `count` submits of the same job: for measuring. Prints the ids, or the rate.
int submit_many(const Line& line, Client& client, proto::JobSpec spec, std::uint64_t count) {
    constexpr std::uint64_t kWindow = 4096;
    std::vector<std::uint64_t> ids;
    std::uint64_t sent = 0;
    const TimePoint begin = now().steady;
    TimePoint heard = begin;
    while (ids.size() < count) {
        while (sent < count && sent - ids.size() < kWindow) {
            proto::Request request;
            spec.set_idempotency_key(random_hex(16));
            *request.mutable_submit()->mutable_spec() = spec;
            if (client.send(request) == 0) break;
            ++sent;
        }
        const auto response = client.receive(milliseconds(100));
        if (!response) {
            if (now().steady - heard > kAnswerDeadline) return fail(line, client.unreachable(now().steady - heard));
            continue;
        }
        heard = now().steady;
        if (const auto error = error_of(*response)) return fail(line, *error);
        ids.push_back(response->job());
    }
    const double took_s = to_seconds(now().steady - begin);
    const double rate = static_cast<double>(count) / took_s;
    if (line.json()) {
        nlohmann::ordered_json document;
        document["schema"] = kJsonSchema;
        document["jobs"] = ids;
        document["seconds"] = took_s;
        document["jobs_per_s"] = rate;
        print(document.dump() + "\n");
    } else if (line.has("parsable")) {
        std::string text;
        for (const std::uint64_t id : ids) text += fmt::format("{}\n", id);
        print(text);
    } else {
        print(fmt::format("Submitted {} jobs, {} to {}, in {:.3f} s: {:.0f} jobs/s\n", count, ids.front(), ids.back(),
                          took_s, rate));
    }
    return 0;
}

Result<int> wait_for(Client& client, std::uint64_t job) {
    OutputPrinter printer({});
    SignalWatch signals(SignalWatch::Mode::LeaveAlone);
    AttachOptions options;
    options.logs = false;
    options.progress = false;
    const auto end = attach(client, job, printer, signals, options);
    if (!end) return end.error();
    const std::string failure = failure_words(end->job);
    if (!failure.empty()) say(failure);
    return exit_code_of(end->job);
}

// Every job of an array; the largest exit code.
int wait_for_all(const Line& line, Client& client, std::uint64_t first, std::uint32_t count) {
    int largest = 0;
    for (std::uint64_t job = first; job < first + count; ++job) {
        const auto code = wait_for(client, job);
        largest = std::max(largest, code ? *code : fail(line, code.error()));
        if (!code && code.error().code == Code::Unavailable) break;
    }
    return largest;
}

std::string submitted_json(std::uint64_t job, std::uint32_t tasks) {
    nlohmann::ordered_json document;
    document["schema"] = kJsonSchema;
    document["job"] = job;
    if (tasks > 0) document["tasks"] = tasks;
    return document.dump(2) + "\n";
}

}  // namespace

std::string submitted_text(std::uint64_t job, const proto::JobSpec& spec, std::uint32_t tasks) {
    if (tasks == 0) return fmt::format("Submitted batch job {}\n", job);
    return fmt::format("Submitted batch job {}: an array of {} task{}, {}_{} to {}_{}\n", job, tasks, tasks == 1 ? "" : "s", job,
                       spec.array().least(), job, spec.array().most());
}

int run_submit(const Line& line) {
    auto address = find_cluster(line.given, line.environment, line.config, line.state);
    if (!address) return fail(line, address.error());
    const std::string endpoint = address->has_value() ? (*address)->endpoint : "";
    const bool here = endpoint.empty() || endpoint.starts_with("ipc:") || endpoint.starts_with("tcp://127.");
    auto request = read_job_request(line, here ? Where::ThisMachine : Where::Elsewhere);
    if (!request) return fail(line, request.error());
    warn(request->warnings);
    if (request->spec.output().empty()) {
        request->spec.set_output(request->spec.array_tasks_size() > 0 ? "gangline-%A_%a.out" : "gangline-%j.out");
    }
    auto client = connect(line);
    if (!client) return fail(line, client.error());
    if (const Given* const repeat = last_given(line.given, "repeat"); repeat != nullptr) {
        const auto count = whole_number(*repeat, 1, 10'000'000);
        if (!count) return fail(line, count.error());
        if (request->spec.array_tasks_size() > 0) return fail(line, {Code::InvalidArgument, "--repeat and --array: leave one out"});
        return submit_many(line, **client, request->spec, static_cast<std::uint64_t>(*count));
    }
    if (flag_of(*request, "test-only")) return check_only(line, **client, *request);
    proto::Request submit;
    *submit.mutable_submit()->mutable_spec() = request->spec;
    const auto response = (*client)->ask(submit);
    if (!response) return fail(line, response.error());
    const std::uint32_t tasks = request->spec.array_tasks_size() > 0 ? std::max(1U, response->tasks()) : 0;
    if (line.json() || flag_of(*request, "json")) {
        print(submitted_json(response->job(), tasks));
    } else if (flag_of(*request, "parsable")) {
        print(fmt::format("{}\n", response->job()));
    } else {
        print(submitted_text(response->job(), request->spec, tasks));
    }
    return flag_of(*request, "wait") ? wait_for_all(line, **client, response->job(), std::max(1U, tasks)) : 0;
}

}  // namespace gangline::runner
