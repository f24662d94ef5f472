#include "runner/cli/attach.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <algorithm>

#include "base/text.h"
#include "runner/cli/log_follower.h"
#include "runner/cli/views.h"

namespace gangline::runner {
namespace {

constexpr Duration kFirstPause = milliseconds(2);
constexpr Duration kLongestPause = milliseconds(100);
constexpr Duration kAnswerTime = seconds(2);
constexpr Duration kSilenceTold = seconds(5);
constexpr Duration kSilenceEnds = seconds(60);
constexpr Duration kDrainTime = seconds(5);
constexpr Duration kBetweenLines = seconds(3);
constexpr const char* kNextTry = "next try in ";   // in a job's reason while it backs off

class Attachment {
  public:
    Attachment(Client& client, std::uint64_t job, OutputPrinter& printer, SignalWatch& signals,
               const AttachOptions& options)
        : client_(client),
          job_(job),
          printer_(printer),
          signals_(signals),
          options_(options),
          follower_({job, {}}, 0, LogFollower::Trouble::WaitForNode) {}

    Result<AttachEnd> run() {
        begun_ = heard_ = now().steady;
        while (true) {
            const TimePoint at = now().steady;
            if (is_over(at)) break;
            if (auto error = check_silence(at)) return std::move(*error);
            ask(at);
            wait(at);
            while (auto response = client_.receive()) take(*response);
            while (const int signal = signals_.next()) {
                if (take_signal(signal)) return end(signal);
            }
        }
        printer_.set_status("");
        printer_.flush();
        return end(0);
    }

  private:
    std::string name() const { return has_view_ ? name_of(view_) : std::to_string(job_); }

    AttachEnd end(int signal) {
        printer_.set_status("");
        return {view_, signal, cancelled_};
    }

    bool is_over(TimePoint at) {
        if (!has_view_ || !has_ended(view_.state())) return false;
        return !options_.logs || follower_.is_complete() || at - ended_at_ > kDrainTime;
    }

    void ask(TimePoint at) {
        if (at >= show_due_ && !(has_view_ && has_ended(view_.state()))) {
            proto::Request request;
            request.mutable_show_job()->set_job(job_);
            show_request_ = client_.send(request);
            show_due_ = at + kAnswerTime;
        }
        if (options_.logs) follower_.ask(client_, at);
    }

    void wait(TimePoint at) {
        TimePoint until = at + seconds(1);
        if (!(has_view_ && has_ended(view_.state()))) until = std::min(until, show_due_);
        if (const auto due = follower_.next_due(); options_.logs && due) until = std::min(until, *due);
        const auto left = std::max<std::int64_t>(0, std::chrono::ceil<milliseconds>(until - now().steady).count());
        pollfd waiting[] = {{client_.fd(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
        ::poll(waiting, 2, static_cast<int>(left));
    }

    void take(const proto::Response& response) {
        const TimePoint at = now().steady;
        heard_ = at;
        silence_told_ = false;
        if (response.id() != show_request_) {
            follower_.take(response, printer_, at);
            return;
        }
        show_request_ = 0;
        if (response.outcome() != proto::OK || response.jobs_size() == 0) {
            refusal_ = response.message();
            return;
        }
        see(response.jobs(0), at);
        show_due_ = at + pause_;
        pause_ = std::min(pause_ * 13 / 10, kLongestPause);
    }

    void see(const proto::JobView& job, TimePoint at) {
        const bool news = !has_view_ || job.state() != view_.state() || job.attempt() != view_.attempt() ||
                          job.attempts_size() != view_.attempts_size();
        if (news) pause_ = kFirstPause;
        if (has_ended(job.state()) && !(has_view_ && has_ended(view_.state()))) ended_at_ = at;
        view_ = job;
        has_view_ = true;
        if (options_.logs) follower_.see(job, at);
        tell_faults();
        tell_restarts();
        tell_waiting(at);
        if (options_.progress) tell_progress(at);
    }

    void tell_faults() {
        for (; told_faults_ < view_.faults_size(); ++told_faults_) printer_.say(one_line(view_.faults(told_faults_)));
    }

    // Each ended attempt once, when it is known from where the next one starts.
    void tell_restarts() {
        for (; told_attempts_ + 1 < view_.attempts_size(); ++told_attempts_) {
            const proto::AttemptView& ended = view_.attempts(told_attempts_);
            const proto::AttemptView& next = view_.attempts(told_attempts_ + 1);
            const std::string from = next.has_restored() ? fmt::format("from step {}{}", next.restored().step(), next.restored().in_memory() ? " in memory" : "")
                                                         : std::string("from the beginning");
            printer_.say(fmt::format("{}; restarting {} (restart {})", ended.cause(), from, told_attempts_ + 1));
        }
    }

    // A hold and a back-off at once, what else it waits for after a second.
    void tell_waiting(TimePoint at) {
        const bool recovers = view_.state() == proto::RECOVERING;
        if (view_.state() != proto::QUEUED && !recovers) {
            waiting_since_.reset();
            return;
        }
        if (!waiting_since_) waiting_since_ = at;
        const std::string& reason = view_.reason();
        const bool is_held = !recovers && view_.position() == 0;
        const bool backs_off = recovers && reason.find(kNextTry) != std::string::npos;
        const bool is_due = options_.progress && at - *waiting_since_ >= seconds(1);
        const bool is_told = recovers ? view_.attempt() == told_recovery_of_ : reason == told_reason_;
        if (is_told || !(is_held || backs_off || is_due)) return;
        told_reason_ = reason;
        if (recovers) told_recovery_of_ = view_.attempt();
        if (is_held) {
            printer_.say(fmt::format("job {} is {}: gangline release {}{}", name(), one_line(reason), name(), options_.reach));
        } else {
            printer_.say(fmt::format("job {} {}{}", name(), reason.starts_with("waits ") ? "" : "waits: ", one_line(reason)));
        }
    }

    void tell_progress(TimePoint at) {
        const std::string words = progress_words(view_);
        if (printer_.has_live_status()) {
            if (has_ended(view_.state()) || at - drawn_at_ < milliseconds(90)) return;
            if (words.empty() && at - begun_ < seconds(1)) return;    // a short job needs no status
            drawn_at_ = at;
            std::string line = fmt::format("job {} {}", name(), state_word(view_.state()));
            if (!words.empty()) line += "  " + words;
            if (view_.restarts() > 0) line += fmt::format("  {} restart{}", view_.restarts(), view_.restarts() == 1 ? "" : "s");
            printer_.set_status(line);
            return;
        }
        const bool last = has_ended(view_.state());
        if (words.empty() || view_.progress().step() == told_step_ || (!last && at - told_at_ < kBetweenLines)) return;
        told_at_ = at;
        told_step_ = view_.progress().step();
        printer_.say(words);
    }

    // True: leave at once.
    bool take_signal(int signal) {
        if (cancelled_) return true;
        cancelled_ = true;
        proto::Request request;
        request.mutable_cancel()->set_job(job_);
        request.mutable_cancel()->set_reason(fmt::format("{} at its terminal", signal_name(signal)));
        client_.send(request);
        printer_.say(fmt::format("{}: cancelling job {} with its grace; once more to leave at once", signal_name(signal),
                                 name()));
        pause_ = kFirstPause;
        return false;
    }

    std::optional<Error> check_silence(TimePoint at) {
        if (!refusal_.empty()) return Error{Code::Refused, refusal_};
        if (at - last_death_check_ > milliseconds(200) && options_.cluster_died) {
            last_death_check_ = at;
            if (const auto why = options_.cluster_died()) return Error{Code::Unavailable, *why};
        }
        if (at - heard_ > kSilenceEnds) return client_.unreachable(at - heard_);
        if (at - heard_ > kSilenceTold && !silence_told_) {
            silence_told_ = true;
            printer_.say("the coordinator does not answer; the gang goes on without it, waiting");
        }
        return std::nullopt;
    }

    Client& client_;
    std::uint64_t job_;
    OutputPrinter& printer_;
    SignalWatch& signals_;
    const AttachOptions& options_;
    LogFollower follower_;

    proto::JobView view_;
    bool has_view_ = false;
    std::uint64_t show_request_ = 0;
    TimePoint show_due_{};
    Duration pause_ = kFirstPause;
    TimePoint ended_at_{};
    TimePoint begun_{};
    TimePoint heard_{};
    TimePoint last_death_check_{};
    bool silence_told_ = false;
    bool cancelled_ = false;
    std::string refusal_;
    int told_attempts_ = 0;
    std::optional<TimePoint> waiting_since_;
    std::string told_reason_;
    std::uint32_t told_recovery_of_ = 0;     // the attempt after which the wait is told
    int told_faults_ = 0;
    TimePoint drawn_at_{};
    TimePoint told_at_{};
    std::uint64_t told_step_ = 0;
};

}  // namespace

SignalWatch::SignalWatch(Mode mode) {
    if (mode == Mode::LeaveAlone) return;
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

int SignalWatch::next() {
    signalfd_siginfo info{};
    const ssize_t got = ::read(fd_.get(), &info, sizeof info);
    return got == static_cast<ssize_t>(sizeof info) ? static_cast<int>(info.ssi_signo) : 0;
}

Result<AttachEnd> attach(Client& client, std::uint64_t job, OutputPrinter& printer, SignalWatch& signals,
                         const AttachOptions& options) {
    return Attachment(client, job, printer, signals, options).run();
}

std::string failure_words(const proto::JobView& job) {
    if (job.state() == proto::COMPLETED) return {};
    const proto::AttemptView* const last = job.attempts_size() == 0 ? nullptr : &job.attempts(job.attempts_size() - 1);
    std::string cause = job.reason();
    if (job.state() == proto::FAILED && last != nullptr && !last->cause().empty()) cause = last->cause();
    std::string text = fmt::format("job {} {}: {}", name_of(job), state_word(job.state()), one_line(cause));
    if (job.state() == proto::FAILED && !job.reason().empty() && job.reason().find(cause) == std::string::npos) {
        text += fmt::format(" ({})", one_line(job.reason()));
    }
    if (job.state() != proto::FAILED || last == nullptr || last->last_lines().empty()) return text;
    text += fmt::format("\nits last lines:");
    std::vector<std::string> lines = split(trim(last->last_lines()), '\n');
    const std::size_t first = lines.size() > 10 ? lines.size() - 10 : 0;
    for (std::size_t i = first; i < lines.size(); ++i) text += "\n  | " + one_line(lines[i]);
    return text;
}

}  // namespace gangline::runner
