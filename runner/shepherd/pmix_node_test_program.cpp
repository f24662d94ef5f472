// One node of a gang for the tests: a PMIx server, the gang's line and the ranks, steered over standard input.
//
//   pmix_node_test_program INDEX LAYOUT FOLDER CLUSTER     LAYOUT: ranks of each node, "3,1"
//
// Reads:  launch STEP ENDPOINT|- KEY,KEY,.. PROGRAM ARGS.. | kill RANK SIGNAL | quit
// Writes: started US | prepared KEY|- ENDPOINT|- | out RANK LINE | connected RANK | finalized RANK | aborted RANK CODE |
//         exited RANK CODE SIGNAL inside|outside|never | done
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/handle.h"
#include "base/process.h"
#include "base/text.h"
#include "runner/shepherd/gang_link.h"
#include "runner/shepherd/pmix_server.h"

namespace gangline::runner {
namespace {

struct Rank {
    pid_t pid = 0;
    Fd pidfd;
    Fd output;
    std::string rest;
};

std::uint32_t to_number(const std::string& text) {
    std::uint32_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
}

void say(const std::string& line) {
    std::fputs((line + "\n").c_str(), stdout);
    std::fflush(stdout);
}

class TestNode {
  public:
    TestNode(std::uint32_t index, const std::string& layout, std::string folder, std::string cluster)
        : index_(index), folder_(std::move(folder)), cluster_(std::move(cluster)) {
        std::uint32_t next = 0;
        for (const std::string& count : split(layout, ',')) {
            proto::Placement placement;
            placement.set_node("n" + std::to_string(gang_.size()));
            placement.set_address("127.0.0.1");
            placement.set_first_rank(next);
            placement.set_rank_count(to_number(count));
            next += placement.rank_count();
            gang_.push_back(placement);
        }
        id_.set_job(1);
        id_.set_attempt(1);
    }

    void start() {
        const auto before = std::chrono::steady_clock::now();
        PmixEvents events;
        events.connected = [](const std::string&, std::uint32_t rank) { say(fmt::format("connected {}", rank)); };
        events.finalized = [](const std::string&, std::uint32_t rank) { say(fmt::format("finalized {}", rank)); };
        events.aborted = [](const std::string&, std::uint32_t rank, int code, const std::string&) {
            say(fmt::format("aborted {} {}", rank, code));
        };
        events.fence = [this](const std::string& key, const std::string& blob, bool partial) { link_->fence(key, blob, partial); };
        events.modex = [this](std::uint64_t request, const std::string& space, std::uint32_t rank) {
            link_->ask_modex(request, space, rank);
        };
        events.modex_found = [this](std::uint64_t request, int status, const std::string& blob) {
            link_->answer_modex(request, status, blob);
        };
        events.help_text = [](const std::string& text) { std::fputs(text.c_str(), stderr); };
        make_folders(folder_ + "/pmix", 0700).ok();
        make_folders(folder_ + "/shm", 0700).ok();
        auto server = PmixServer::start({folder_ + "/pmix", gang_[index_].node(), cluster_}, std::move(events));
        CHECK(server.ok(), server.error().message);
        server_ = std::move(*server);
        say(fmt::format("started {}", std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - before).count()));
        prepare();
    }

    void serve() {
        for (;;) {
            std::vector<pollfd> waiting = {{server_->fd(), POLLIN, 0}, {link_->fd(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
            std::vector<std::uint32_t> ranks;
            for (const auto& [rank, process] : ranks_) {
                waiting.push_back({process.pidfd.get(), POLLIN, 0});
                waiting.push_back({process.output.get(), POLLIN, 0});
                ranks.push_back(rank);
            }
            const auto now = gangline::now().steady;
            const auto wait = link_->next_deadline() == TimePoint::max() ? seconds(60) : std::max(link_->next_deadline() - now, Duration::zero());
            ::poll(waiting.data(), waiting.size(), static_cast<int>(std::chrono::ceil<milliseconds>(wait).count()));
            if (waiting[0].revents != 0) server_->handle();
            if (waiting[1].revents != 0) link_->handle();
            link_->tick(gangline::now().steady);
            for (std::size_t i = 0; i < ranks.size(); ++i) {
                if (waiting[4 + 2 * i].revents != 0) read_output(ranks[i]);
                if (waiting[3 + 2 * i].revents != 0) reap(ranks[i]);
            }
            if (waiting[2].revents != 0 && !read_commands()) return;
        }
    }

  private:
    void prepare() {
        GangEvents events;
        events.fence_done = [this](const proto::FenceDone& done) { server_->answer_fence(done.key(), done.blob(), done.failed()); };
        events.modex_request = [this](std::uint64_t request, const std::string& space, std::uint32_t rank) {
            server_->lookup_modex(request, space, rank);
        };
        events.modex_reply = [this](std::uint64_t request, int status, const std::string& blob) {
            server_->answer_modex(request, status, blob);
        };
        GangLinkOptions options;
        options.id = id_;
        options.gang = gang_;
        options.node_index = index_;
        auto link = GangLink::prepare(options, std::move(events));
        CHECK(link.ok(), link.error().message);
        link_ = std::move(*link);
        const auto or_dash = [](const std::string& text) { return text.empty() ? std::string("-") : text; };
        say(fmt::format("prepared {} {}", or_dash(link_->public_key()), or_dash(link_->endpoint())));
    }

    void launch(const std::vector<std::string>& words) {
        proto::Launch launch;
        *launch.mutable_id() = id_;
        launch.set_lead_endpoint(words[2]);
        const auto keys = split(words[3], ',');
        for (std::uint32_t i = 0; i < keys.size(); ++i) {
            proto::Peer& peer = *launch.add_peers();
            peer.set_node_index(i);
            peer.set_gang_key(keys[i]);
        }
        const auto connected = link_->connect(launch);
        CHECK(connected.ok(), connected.error().message);
        PmixGang gang;
        gang.name_space = pmix_name_space(cluster_, id_, to_number(words[1]));
        gang.gang = gang_;
        gang.node = gang_[index_].node();
        gang.session_folder = folder_ + "/session." + words[1];
        gang.uid = ::getuid();
        gang.gid = ::getgid();
        name_space_ = gang.name_space;
        link_->add_gang(gang.name_space, gang.gang);
        const auto registered = server_->register_gang(gang);
        CHECK(registered.ok(), registered.error().message);
        for (std::uint32_t i = 0; i < gang_[index_].rank_count(); ++i) {
            start_rank(gang_[index_].first_rank() + i, {words.begin() + 4, words.end()});
        }
    }

    void start_rank(std::uint32_t rank, std::vector<std::string> argv) {
        std::vector<std::string> base;
        for (char** variable = environ; *variable != nullptr; ++variable) base.emplace_back(*variable);
        auto environment = server_->environment_of(name_space_, rank, base, {folder_ + "/shm", "127.0.0.1", true});
        CHECK(environment.ok(), environment.error().message);
        std::vector<char*> arguments, variables;
        for (std::string& word : argv) arguments.push_back(word.data());
        for (std::string& word : *environment) variables.push_back(word.data());
        arguments.push_back(nullptr);
        variables.push_back(nullptr);
        int pipe_fds[2];
        CHECK(::pipe2(pipe_fds, O_CLOEXEC) == 0, "a pipe");
        Rank process;
        process.output.reset(pipe_fds[0]);
        const Fd write_end(pipe_fds[1]);
        process.pid = ::fork();
        if (process.pid == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            std::signal(SIGPIPE, SIG_DFL);
            ::setpgid(0, 0);
            ::dup2(write_end.get(), STDOUT_FILENO);
            ::dup2(write_end.get(), STDERR_FILENO);
            ::execvpe(arguments[0], arguments.data(), variables.data());
            ::_exit(127);
        }
        ::setpgid(process.pid, process.pid);
        process.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
        ranks_[rank] = std::move(process);
    }

    void read_output(std::uint32_t rank) {
        Rank& process = ranks_.at(rank);
        char bytes[65536];
        const ssize_t n = ::read(process.output.get(), bytes, sizeof bytes);
        if (n <= 0) return;
        process.rest.append(bytes, static_cast<std::size_t>(n));
        for (auto end = process.rest.find('\n'); end != std::string::npos; end = process.rest.find('\n')) {
            say(fmt::format("out {} {}", rank, process.rest.substr(0, end)));
            process.rest.erase(0, end + 1);
        }
    }

    void reap(std::uint32_t rank) {
        Rank& process = ranks_.at(rank);
        set_nonblocking(process.output.get()).ok();
        read_output(rank);
        int status = 0;
        ::waitpid(process.pid, &status, 0);
        server_->handle();
        const char* mpi = !server_->is_connected(name_space_, rank) ? "never" : server_->is_inside_mpi(name_space_, rank) ? "inside" : "outside";
        say(fmt::format("exited {} {} {} {}", rank, WIFEXITED(status) ? WEXITSTATUS(status) : 0, WIFSIGNALED(status) ? WTERMSIG(status) : 0, mpi));
        ranks_.erase(rank);
        if (ranks_.empty()) say("done");
    }

    bool read_commands() {
        char bytes[65536];
        const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
        if (n <= 0) return false;
        input_.append(bytes, static_cast<std::size_t>(n));
        for (auto end = input_.find('\n'); end != std::string::npos; end = input_.find('\n')) {
            const auto words = split(input_.substr(0, end), ' ');
            input_.erase(0, end + 1);
            if (words[0] == "quit") return false;
            if (words[0] == "launch" && words.size() > 4) launch(words);
            if (words[0] == "kill" && words.size() == 3) kill_rank(to_number(words[1]), static_cast<int>(to_number(words[2])));
            if (words[0] == "fail") {
                link_->fail_gang(name_space_);
                server_->fail_gang(name_space_);
            }
        }
        return true;
    }

    void kill_rank(std::uint32_t rank, int signal) {
        const auto found = ranks_.find(rank);
        if (found != ranks_.end()) ::kill(-found->second.pid, signal);
    }

    std::uint32_t index_;
    std::string folder_;
    std::string cluster_;
    proto::AttemptId id_;
    std::vector<proto::Placement> gang_;
    std::unique_ptr<PmixServer> server_;
    std::unique_ptr<GangLink> link_;
    std::string name_space_;
    std::map<std::uint32_t, Rank> ranks_;
    std::string input_;
};

}  // namespace
}  // namespace gangline::runner

int main(int argc, char** argv) {
    if (argc != 5) return 2;
    gangline::runner::TestNode node(gangline::runner::to_number(argv[1]), argv[2], argv[3], argv[4]);
    node.start();
    node.serve();
    ::_exit(0);  // Ranks die with us; libpmix is never finalized.
}
