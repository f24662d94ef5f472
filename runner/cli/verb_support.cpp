// What all verbs share: errors, warnings, the line to the cluster, job numbers.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/process.h"
#include "runner/cli/json.h"
#include "runner/cli/verbs.h"

namespace gangline::runner {

std::string Line::text(std::string_view option) const {
    const Given* const found = last_given(given, option);
    return found == nullptr ? "" : found->value;
}

void print(std::string_view text) {
    if (const auto written = write_all(1, text); !written && errno != EPIPE) say(written.error().message);
}

void say(std::string_view text) {
    const auto written = write_all(2, fmt::format("gangline: {}\n", text));
    static_cast<void>(written.ok());   // nobody is left to be told
}

void warn(const std::vector<std::string>& warnings) {
    for (const std::string& warning : warnings) say("warning: " + warning);
}

int fail(const Line& line, const Error& error) {
    const int code = exit_code_of(error);
    if (line.json()) {
        print(json_error(code, error.message));
    } else {
        say(error.message);
    }
    return code;
}

Result<std::unique_ptr<Client>> connect(const Line& line) {
    auto address = find_cluster(line.given, line.environment, line.config, line.state);
    if (!address) return address.error();
    if (!address->has_value()) {
        return Error{Code::Unavailable,
                     "no cluster is configured: start one on this machine with 'gangline up', or name one by "
                     "--coordinator, GANGLINE_COORDINATOR or gangline.conf"};
    }
    return Client::connect(**address);
}

Result<JobName> find_job(Client& client, const std::string& word) {
    if (word != "@") return parse_job_name(word);
    proto::Request request;
    request.mutable_list_jobs()->set_ended_too(true);
    const auto response = client.ask(request);
    if (!response) return response.error();
    const auto last = std::max_element(response->jobs().begin(), response->jobs().end(),
                                       [](const proto::JobView& a, const proto::JobView& b) { return a.id() < b.id(); });
    if (last == response->jobs().end()) return Error{Code::NotFound, "@: you have not submitted a job yet"};
    return JobName{last->array().count() == 0 ? last->id() : last->array().job(), {}};
}

Result<JobName> the_job(const Line& line, Client& client) {
    if (line.words.size() != 1) {
        return Error{Code::InvalidArgument, fmt::format("one job is needed: gangline {} JOB (a number, 12_5, or @ for the last)",
                                                        line.verb)};
    }
    return find_job(client, line.words.front());
}

}  // namespace gangline::runner
