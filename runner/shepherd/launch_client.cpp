#include "runner/shepherd/launch_client.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/framing.h"
#include "base/process.h"
#include "base/text.h"
#include "runner/shepherd/launch_options.h"

namespace gangline::runner {
namespace {

constexpr int kUsage = 2;
constexpr int kRefused = 3;
constexpr int kNotReachable = 4;
constexpr int kBrokenPipe = 128 + SIGPIPE;

// What the ranks write, in the order in which it came; with labels, line by line.
class Printer {
  public:
    explicit Printer(bool label) : label_(label) {}
    bool print(const proto::StepOutput& output) {
        const int fd = output.is_error() ? STDERR_FILENO : STDOUT_FILENO;
        if (!label_) return write(fd, output.data());
        std::string& rest = rests_[{output.rank(), output.is_error()}];
        rest += output.data();
        std::string lines;
        for (std::size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n')) {
            lines += fmt::format("{}: {}", output.rank(), std::string_view(rest).substr(0, end + 1));
            rest.erase(0, end + 1);
        }
        return write(fd, lines);
    }
    void finish() {
        for (const auto& [key, rest] : rests_) {
            if (!rest.empty()) write(key.second ? STDERR_FILENO : STDOUT_FILENO, fmt::format("{}: {}\n", key.first, rest));
        }
        rests_.clear();
    }

  private:
    static bool write(int fd, std::string_view bytes) { return bytes.empty() || write_all(fd, bytes).ok(); }
    bool label_;
    std::map<std::pair<std::uint32_t, bool>, std::string> rests_;
};

void say(const std::string& name, const std::string& text) { std::fprintf(stderr, "%s: %s\n", name.c_str(), text.c_str()); }

// Signals that a user or a script sends to this process are meant for the ranks.
Fd watch_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int number : {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&signals, number);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    return Fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

class LaunchClient {
  public:
    LaunchClient(std::string name, Fd socket, Fd signals, bool label)
        : name_(std::move(name)), socket_(std::move(socket)), signals_(std::move(signals)), printer_(label) {}

    int run(const proto::StepRequest& request) {
        proto::StepClientMessage message;
        *message.mutable_start() = request;
        send(message);
        while (!exit_code_) {
            pollfd waiting[2] = {{socket_.get(), static_cast<short>(writer_.empty() ? POLLIN : POLLIN | POLLOUT), 0},
                                 {signals_.get(), POLLIN, 0}};
            if (::poll(waiting, 2, -1) < 0 && errno != EINTR) return 1;
            if (waiting[1].revents != 0) forward_signals();
            if (waiting[0].revents != 0) talk();
        }
        printer_.finish();
        return *exit_code_;
    }

  private:
    void send(const proto::StepClientMessage& message) {
        writer_.push(message.SerializeAsString());
        if (!writer_.flush(socket_.get())) lost();
    }

    void lost() {
        if (exit_code_) return;
        say(name_, "the job's shepherd has gone: the job is ending");
        exit_code_ = kNotReachable;
    }

    void forward_signals() {
        signalfd_siginfo info{};
        while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
            proto::StepClientMessage message;
            message.set_signal(static_cast<int>(info.ssi_signo));
            send(message);
        }
    }

    void talk() {
        const bool is_open = writer_.flush(socket_.get()).ok() && reader_.fill(socket_.get()).ok();
        while (const auto frame = reader_.next()) {
            proto::StepEvent event;
            if (!event.ParseFromString(*frame)) return lost();
            on_event(event);
            if (exit_code_) return;
        }
        if (!is_open) lost();
    }

    void on_event(const proto::StepEvent& event) {
        switch (event.body_case()) {
            case proto::StepEvent::kOutput:
                if (!printer_.print(event.output())) exit_code_ = kBrokenPipe;  // The step ends as we leave.
                break;
            case proto::StepEvent::kEnded:
                printer_.finish();
                for (const proto::RankReport& rank : event.ended().failed()) {
                    say(name_, rank.signal() != 0 ? fmt::format("rank {} was ended by {}", rank.rank(), signal_name(rank.signal()))
                                                  : fmt::format("rank {} ended with exit code {}", rank.rank(), rank.exit_code()));
                }
                exit_code_ = event.ended().exit_code();
                break;
            case proto::StepEvent::kError:
                say(name_, event.error());
                exit_code_ = kRefused;
                break;
            case proto::StepEvent::kStarted:
            case proto::StepEvent::BODY_NOT_SET: break;
        }
    }

    std::string name_;
    Fd socket_;
    Fd signals_;
    Printer printer_;
    FrameReader reader_;
    FrameWriter writer_;
    std::optional<int> exit_code_;
};

}  // namespace

int launch_main(int argc, char** argv) {
    const std::string verb = argc > 0 ? argv[0] : "launch";
    const bool is_srun = verb.substr(verb.rfind('/') + 1) == "srun";
    const std::string name = is_srun ? "srun" : "gangline launch";
    const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    std::vector<std::string> environment;
    for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) environment.emplace_back(*variable);
    char* folder = ::getcwd(nullptr, 0);
    const std::string cwd = folder != nullptr ? folder : "/";
    std::free(folder);

    const auto options = parse_launch(words, environment, cwd);
    if (!options) {
        say(name, options.error().message);
        return kUsage;
    }
    if (options->help) {
        std::fputs(launch_help(name).c_str(), stdout);
        return 0;
    }
    for (const std::string& warning : options->warnings) say(name, "warning: " + warning);
    const char* socket_name = std::getenv("GANGLINE_STEP_SOCKET");
    if (socket_name == nullptr || *socket_name == '\0') {
        say(name, "this works inside a job's script only (GANGLINE_STEP_SOCKET is not set). To start a job with these ranks: "
                  "gangline run --ranks N -- program");
        return kRefused;
    }
    auto socket = connect_abstract(socket_name, SOCK_STREAM);
    if (!socket) {
        say(name, "cannot reach the job's shepherd: " + socket.error().message);
        return kNotReachable;
    }
    std::signal(SIGPIPE, SIG_IGN);
    LaunchClient client(name, std::move(*socket), watch_signals(), options->request.label());
    return client.run(options->request);
}

}  // namespace gangline::runner
