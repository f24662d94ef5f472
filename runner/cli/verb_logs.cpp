// `gangline logs`: what a job's ranks wrote, from the nodes' own logs.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <optional>

#include "base/time.h"
#include "runner/cli/log_follower.h"
#include "runner/cli/verbs.h"
#include "runner/cli/views.h"

namespace gangline::runner {
namespace {

Result<OutputChoice> choice_of(const Line& line) {
    OutputChoice choice;
    choice.label = line.has("label");
    choice.errors_only = line.has("err");
    choice.json = line.json();
    if (const Given* const rank = last_given(line.given, "rank"); rank != nullptr) {
        const auto number = whole_number(*rank, 0, 1'000'000);
        if (!number) return number.error();
        choice.rank = static_cast<std::uint32_t>(*number);
    }
    if (const Given* const tail = last_given(line.given, "tail"); tail != nullptr) {
        const auto number = whole_number(*tail, 1, 1'000'000);
        if (!number) return number.error();
        choice.tail_lines = static_cast<std::size_t>(*number);
    }
    return choice;
}

class Reader {
  public:
    Reader(Client& client, JobName job, std::uint32_t attempt, std::optional<std::uint32_t> rank,
           OutputPrinter& printer, bool follow)
        : client_(client), job_(job), attempt_(attempt), rank_(rank), printer_(printer), follow_(follow),
          follower_(job, attempt, follow ? LogFollower::Trouble::WaitForNode : LogFollower::Trouble::GiveUp) {}

    Result<void> run() {
        heard_ = now().steady;
        while (true) {
            const TimePoint at = now().steady;
            if (has_view_ && !tail_released_ && follower_.is_at_end()) {
                printer_.release_tail();
                tail_released_ = true;
            }
            if (!refusal_.empty()) return Error{Code::Refused, refusal_};
            if (has_view_ && is_done()) break;
            if (at - heard_ > kAnswerDeadline) return client_.unreachable(at - heard_);
            ask(at);
            wait();
            while (const auto response = client_.receive()) take(*response);
        }
        printer_.release_tail();
        printer_.flush();
        if (view_.attempts_size() == 0) say(fmt::format("job {} has not started: it has no output", to_string(job_)));
        return {};
    }

  private:
    bool is_done() const {
        if (follow_) return has_ended(view_.state()) && follower_.is_complete();
        return follower_.is_at_end();
    }

    void ask(TimePoint at) {
        const bool again = follow_ && !(has_view_ && has_ended(view_.state()));
        if (at >= show_due_ && (!has_view_ || again)) {
            proto::Request request;
            request.mutable_show_job()->set_job(job_.job);
            set_task(request, job_);
            show_request_ = client_.send(request);
            show_due_ = at + seconds(2);
        }
        follower_.ask(client_, at);
    }

    void wait() {
        TimePoint until = show_due_;
        if (const auto due = follower_.next_due()) until = std::min(until, *due);
        const auto left = std::chrono::ceil<milliseconds>(until - now().steady).count();
        pollfd waiting = {client_.fd(), POLLIN, 0};
        ::poll(&waiting, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000)));
    }

    void take(const proto::Response& response) {
        const TimePoint at = now().steady;
        heard_ = at;
        if (response.id() != show_request_) {
            follower_.take(response, printer_, at);
            return;
        }
        if (response.outcome() != proto::OK || response.jobs_size() == 0) {
            refusal_ = response.message().empty() ? "the coordinator knows no such job" : response.message();
            return;
        }
        view_ = response.jobs(0);
        has_view_ = true;
        refusal_ = out_of_range();
        show_due_ = at + milliseconds(200);
        follower_.see(view_, at);
    }

    // What was asked for and is not there, with what is; empty: all is there, or may come.
    std::string out_of_range() const {
        if (rank_ && *rank_ >= view_.ranks()) {
            return fmt::format("--rank {}: job {} has {}", *rank_, to_string(job_),
                               view_.ranks() == 1 ? "only rank 0" : fmt::format("the ranks 0 to {}", view_.ranks() - 1));
        }
        const std::uint32_t last = view_.attempts_size() == 0 ? 0 : view_.attempts(view_.attempts_size() - 1).attempt();
        if (attempt_ <= last || (follow_ && !has_ended(view_.state()))) return {};
        return fmt::format("--attempt {}: job {} has {}", attempt_, to_string(job_),
                           last == 0   ? "not started"
                           : last == 1 ? "only attempt 1"
                                       : fmt::format("the attempts 1 to {}", last));
    }

    Client& client_;
    JobName job_;
    std::uint32_t attempt_;
    std::optional<std::uint32_t> rank_;
    OutputPrinter& printer_;
    bool follow_;
    LogFollower follower_;
    proto::JobView view_;
    bool has_view_ = false;
    bool tail_released_ = false;
    std::uint64_t show_request_ = 0;
    TimePoint show_due_{};
    TimePoint heard_{};
    std::string refusal_;
};

}  // namespace

int run_logs(const Line& line) {
    const auto choice = choice_of(line);
    if (!choice) return fail(line, choice.error());
    std::uint32_t attempt = 0;
    if (const Given* const given = last_given(line.given, "attempt"); given != nullptr) {
        const auto number = whole_number(*given, 1, 1'000'000);
        if (!number) return fail(line, number.error());
        attempt = static_cast<std::uint32_t>(*number);
    }
    auto client = connect(line);
    if (!client) return fail(line, client.error());
    const auto job = the_job(line, **client);
    if (!job) return fail(line, job.error());
    OutputPrinter printer(*choice);
    const auto read = Reader(**client, *job, attempt, choice->rank, printer, line.has("follow")).run();
    return read ? 0 : fail(line, read.error());
}

}  // namespace gangline::runner
