// `gangline up` and `gangline down`: a cluster on this machine that stays.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/process.h"
#include "base/text.h"
#include "runner/cli/json.h"
#include "runner/cli/parts.h"
#include "runner/cli/verbs.h"
#include "runner/cli/views.h"

namespace gangline::runner {
namespace {

constexpr Duration kStartTime = seconds(20);
constexpr Duration kCancelTime = seconds(30);
constexpr Duration kEndTime = seconds(10);

// A TCP port that nobody listens on now.
Result<std::uint16_t> free_port() {
    const Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    if (!probe || ::bind(probe.get(), plain, size) != 0 || ::getsockname(probe.get(), plain, &size) != 0) {
        return errno_error("cannot find a free port");
    }
    return ntohs(address.sin_port);
}

// Two of `up` and `down` at once would undo each other's work. Released with the descriptor.
Result<Fd> lock_folder(const std::string& state) {
    if (const auto made = make_folders(state, 0700); !made) return made.error();
    Fd lock(::open((state + "/local.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!lock) return errno_error("cannot open " + state + "/local.lock");
    const TimePoint until = now().steady + kCancelTime;
    while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
        if (now().steady > until) {
            return Error{Code::Refused, "another 'gangline up' or 'gangline down' is at work on " + state};
        }
        ::usleep(20'000);
    }
    return lock;
}

Result<std::uint32_t> number_of(const Line& line, const char* option, std::uint32_t standard, std::int64_t most) {
    const Given* const given = last_given(line.given, option);
    if (given == nullptr) return standard;
    const auto number = whole_number(*given, 1, most);
    if (!number) return number.error();
    return static_cast<std::uint32_t>(*number);
}

// Outlives the cluster's own folder.
std::string last_job_file(const std::string& state) { return state + "/last-job"; }

// --cluster-file as the coordinator is to be given it; empty: not asked for. Errors: InvalidArgument where none can be read.
Result<std::string> description_of(const Line& line) {
    if (!line.has("cluster-file")) return std::string();
    const std::string file = line.text("cluster-file");
    const std::string path = file.starts_with('/') ? file : line.cwd + "/" + file;
    const auto text = read_file(path, 16 << 20);
    if (!text) return Error{Code::InvalidArgument, fmt::format("--cluster-file {}: {}", file, text.error().message)};
    return path;
}

// What shall be: what is kept in the folder, with the options' changes.
Result<LocalClusterPlan> wanted_plan(const Line& line, const std::string& folder, bool& is_new) {
    auto kept = read_plan(folder);
    if (!kept && kept.error().code != Code::NotFound) return kept.error();
    is_new = !kept;
    LocalClusterPlan plan;
    if (kept) plan = *kept;
    const auto nodes = number_of(line, "nodes", static_cast<std::uint32_t>(std::max<std::size_t>(1, plan.nodes.size())), 256);
    const auto cards = number_of(line, "cards", plan.nodes.empty() ? 4 : plan.nodes.front().cards, 65536);
    if (!nodes) return nodes.error();
    if (!cards) return cards.error();
    const bool changed = kept && (*nodes != plan.nodes.size() || *cards != plan.nodes.front().cards ||
                                  (line.has("name") && line.text("name") != plan.cluster));
    if (changed) {
        return Error{Code::Refused,
                     fmt::format("the cluster in {} has {} node{} with {} card{} and the name {}: 'gangline down' first, then "
                                 "'gangline up' with other numbers",
                                 folder, plan.nodes.size(), plan.nodes.size() == 1 ? "" : "s", plan.nodes.front().cards,
                                 plan.nodes.front().cards == 1 ? "" : "s", plan.cluster)};
    }
    const auto description = description_of(line);
    if (!description) return description.error();
    if (kept && line.has("cluster-file") && *description != plan.description) {
        return Error{Code::Refused, fmt::format("the cluster in {} was started {}: 'gangline down' first, then 'gangline up --cluster-file {}'", folder,
                                                plan.description.empty() ? "without a cluster file" : "with " + plan.description, shell_quote(line.text("cluster-file")))};
    }
    if (kept) return plan;
    plan.description = *description;
    plan.folder = folder;
    plan.node_root = folder + "/nodes";
    plan.topology = folder + "/topology.xml";
    plan.cluster = line.has("name") ? line.text("name") : "local-" + random_hex(4);
    const auto users = free_port();
    const auto agents = free_port();
    if (!users) return users.error();
    if (!agents) return agents.error();
    plan.users_endpoint = fmt::format("tcp://127.0.0.1:{}", *users);
    plan.nodes_endpoint = fmt::format("tcp://127.0.0.1:{}", *agents);
    plan.checkpoint_root = fmt::format("{}/checkpoints/{}", line.state, plan.cluster);
    if (const auto last = read_file(last_job_file(line.state), 64)) {
        std::from_chars(last->data(), last->data() + last->size(), plan.first_job);
        ++plan.first_job;
    }
    for (std::uint32_t i = 0; i < *nodes; ++i) plan.nodes.push_back({fmt::format("n{}", i), *cards});
    return plan;
}

std::string cluster_words(const LocalClusterPlan& plan) {
    return fmt::format("{} node{} with {} card{} each", plan.nodes.size(), plan.nodes.size() == 1 ? "" : "s",
                       plan.nodes.front().cards, plan.nodes.front().cards == 1 ? "" : "s");
}

// Kills what is alive of these parts, hard, and waits for it.
void kill_parts(const std::vector<StartedPart>& parts) {
    std::vector<ProcessId> ids;
    for (const StartedPart& part : parts) {
        ::kill(part.id.pid, SIGKILL);
        ids.push_back(part.id);
    }
    wait_gone(ids, kEndTime);
}

// Everything runs already: does the coordinator answer?
Result<void> answers(const LocalClusterPlan& plan) {
    auto keys = read_key_file(plan.folder + "/client.key");
    if (!keys) return keys.error();
    auto client = Client::connect({plan.users_endpoint, plan.coordinator_key, std::move(keys).value(), plan.folder});
    if (!client) return client.error();
    proto::Request ping;
    ping.mutable_ping();
    if ((*client)->ask(ping, seconds(3))) return {};
    const Pids pids = read_pids(plan.folder);
    const auto coordinator = pids.find("coordinator");
    const pid_t pid = coordinator == pids.end() ? 0 : coordinator->second.pid;
    return Error{Code::Unavailable, fmt::format("the coordinator (process {}) runs but does not answer: it is stopped, or hangs. Let it go on (kill -CONT {}), or end it "
                                                "(kill -9 {}) and say 'gangline up' again: no job is lost", pid, pid, pid)};
}

}  // namespace

int run_up(const Line& line) {
    const std::string folder = line.state + "/local";
    if (line.has("name") && (line.text("name").empty() || line.text("name").find_first_of("/ \t\n") != std::string::npos)) {
        return fail(line, {Code::InvalidArgument, "--name: a cluster's name has no blanks and no '/'"});
    }
    const auto lock = lock_folder(line.state);
    if (!lock) return fail(line, lock.error());
    bool is_new = false;
    auto plan = wanted_plan(line, folder, is_new);
    if (!plan) return fail(line, plan.error());
    if (const auto made = make_cluster_files(*plan); !made) return fail(line, made.error());
    if (is_new) {  // before anything starts: however this ends, `down` finds all of it
        if (const auto written = write_plan(*plan); !written) return fail(line, written.error());
    }

    Pids pids = read_pids(folder);
    std::vector<StartedPart> started;
    for (const Part& part : parts_of(*plan, false)) {
        const auto known = pids.find(part.name);
        if (known != pids.end() && is_alive(known->second)) continue;
        auto begun = start_part(part, folder, -1);
        if (!begun) return fail(line, begun.error());
        pids[part.name] = begun->id;
        started.push_back(std::move(begun).value());
        if (const auto written = write_pids(folder, pids); !written) return fail(line, written.error());
    }
    if (const auto ready = wait_ready(started, folder, kStartTime, nullptr); !ready) {
        kill_parts(started);
        if (is_new) static_cast<void>(remove_tree(folder).ok());
        return fail(line, ready.error());
    }
    if (started.empty()) {
        if (const auto well = answers(*plan); !well) return fail(line, well.error());
    }
    if (line.json()) {
        nlohmann::ordered_json up = {{"cluster", plan->cluster}, {"users", plan->users_endpoint},
                                     {"nodes", plan->nodes.size()}, {"cards", plan->nodes.front().cards},
                                     {"started", started.size()}, {"folder", folder}};
        print(json_document("up", std::move(up)));
        return 0;
    }
    std::string names;
    for (const StartedPart& part : started) names += (names.empty() ? "" : ", ") + part.name;
    if (started.empty()) {
        print(fmt::format("The cluster {} is up already: {}\n", plan->cluster, cluster_words(*plan)));
    } else if (is_new) {
        print(fmt::format("The cluster {} is up: {}\n", plan->cluster, cluster_words(*plan)));
    } else {
        print(fmt::format("The cluster {} is up again: {}; started {}\n", plan->cluster, cluster_words(*plan), names));
    }
    return 0;
}

namespace {

struct Downfall {
    std::vector<std::string> done;
    std::vector<std::string> trouble;
    std::uint64_t last_job = 0;   // 0 = not known
};

// Cancels what is not ended and waits for its end.
void cancel_jobs(const LocalClusterPlan& plan, Downfall& fall) {
    auto keys = read_key_file(plan.folder + "/client.key");
    if (!keys) return;
    auto client = Client::connect({plan.users_endpoint, plan.coordinator_key, std::move(keys).value(), plan.folder});
    if (!client) return;
    proto::Request ping;
    ping.mutable_ping();
    if (const auto pong = (*client)->ask(ping, seconds(3))) fall.last_job = pong->pong().last_job();
    const TimePoint until = now().steady + kCancelTime;
    std::vector<std::uint64_t> cancelled;
    Duration pause = milliseconds(5);
    while (now().steady < until) {
        proto::Request list;
        list.mutable_list_jobs()->set_all_users(true);
        const auto jobs = (*client)->ask(list, seconds(3));
        if (!jobs) {
            fall.done.push_back("the coordinator did not answer, so no job was cancelled by it");
            return;
        }
        std::size_t active = 0;
        for (const proto::JobView& job : jobs->jobs()) {
            if (has_ended(job.state())) continue;
            ++active;
            if (std::find(cancelled.begin(), cancelled.end(), job.id()) != cancelled.end()) continue;
            proto::Request cancel;
            cancel.mutable_cancel()->set_job(job.id());
            cancel.mutable_cancel()->set_reason("gangline down");
            if (const auto answer = (*client)->ask(cancel, seconds(3)); !answer) continue;
            cancelled.push_back(job.id());
        }
        if (active == 0) break;
        ::usleep(static_cast<useconds_t>(std::chrono::duration_cast<std::chrono::microseconds>(pause).count()));
        pause = std::min<Duration>(pause * 2, milliseconds(100));
    }
    if (!cancelled.empty()) {
        fall.done.push_back(fmt::format("cancelled {} job{}", cancelled.size(), cancelled.size() == 1 ? "" : "s"));
    }
}

void stop_parts(const LocalClusterPlan& plan, Downfall& fall) {
    const Pids pids = read_pids(plan.folder);
    std::vector<ProcessId> agents, coordinator;
    for (const auto& [name, id] : pids) {
        if (!is_alive(id)) continue;
        (name == "coordinator" ? coordinator : agents).push_back(id);
    }
    for (const ProcessId& id : agents) ::kill(id.pid, SIGTERM);
    std::vector<ProcessId> stuck = wait_gone(agents, kEndTime);
    for (const ProcessId& id : coordinator) ::kill(id.pid, SIGTERM);
    for (const ProcessId& id : wait_gone(coordinator, kEndTime)) stuck.push_back(id);
    for (const ProcessId& id : stuck) ::kill(id.pid, SIGKILL);
    for (const ProcessId& id : wait_gone(stuck, seconds(5))) {
        fall.trouble.push_back(fmt::format("process {} cannot be ended", id.pid));
    }
    std::vector<std::string> words;
    if (!coordinator.empty()) words.emplace_back("the coordinator");
    if (!agents.empty()) words.push_back(fmt::format("{} agent{}", agents.size(), agents.size() == 1 ? "" : "s"));
    if (!words.empty()) fall.done.push_back(fmt::format("stopped {}", fmt::join(words, " and ")));
}

// Parts of ours that were started with this folder's paths and are still there.
void end_named(const std::string& folder, Downfall& fall) {
    const std::vector<ProcessId> left = wait_gone(parts_naming(folder), seconds(1));   // spares are just leaving
    for (const ProcessId& id : left) ::kill(id.pid, SIGKILL);
    for (const ProcessId& id : wait_gone(left, seconds(5))) {
        fall.trouble.push_back(fmt::format("process {} cannot be ended", id.pid));
    }
    if (!left.empty()) {
        fall.done.push_back(fmt::format("ended {} process{} that a dead agent left", left.size(),
                                        left.size() == 1 ? "" : "es"));
    }
}

// After this nothing of the cluster runs and none of its shared memory is there.
void prove_empty(const LocalClusterPlan& plan, Downfall& fall) {
    for (const LocalNode& node : plan.nodes) {
        if (!run_part(clean_part(plan, node), plan.folder, seconds(20))) {
            fall.trouble.push_back(fmt::format("node {} could not be proved empty:{}", node.name,
                                               log_tail(plan.folder, node.name + "-clean")));
        }
    }
    end_named(plan.folder, fall);
    for (const pid_t pid : all_pids()) {
        const auto mark = process_environment(pid, "GANGLINE_MARK");
        const auto stat = process_stat(pid);
        if (mark && mark->starts_with(plan.cluster + "/") && stat && stat->state != 'Z') {
            fall.trouble.push_back(fmt::format("process {} of {} is still there", pid, *mark));
        }
    }
    DIR* const memory = ::opendir("/dev/shm");
    if (memory == nullptr) return;
    while (const dirent* const entry = ::readdir(memory)) {
        if (std::string_view(entry->d_name).starts_with("gangline-" + plan.cluster + "-")) {
            fall.trouble.push_back(fmt::format("/dev/shm/{} is still there", entry->d_name));
        }
    }
    ::closedir(memory);
}

}  // namespace

int run_down(const Line& line) {
    const std::string folder = line.state + "/local";
    const auto lock = lock_folder(line.state);
    if (!lock) return fail(line, lock.error());
    auto plan = read_plan(folder);
    const bool is_there = plan.ok() || ::access(folder.c_str(), F_OK) == 0;
    Downfall fall;
    if (plan) {
        cancel_jobs(*plan, fall);
        stop_parts(*plan, fall);
        prove_empty(*plan, fall);
    } else if (is_there) {
        LocalClusterPlan ruin;
        ruin.folder = folder;
        stop_parts(ruin, fall);
        end_named(folder, fall);
    } else {
        end_named(folder, fall);  // an `up` that was killed at its very start
    }
    if (is_there && fall.trouble.empty() && line.has("keep")) {
        ::unlink((folder + "/pids.json").c_str());     // its absence says: down, and can be brought up again
        fall.done.emplace_back("kept the journal and the logs in " + folder);
    } else if (is_there && fall.trouble.empty()) {
        if (fall.last_job != 0) {
            const auto kept = write_file_atomically(last_job_file(line.state), std::to_string(fall.last_job) + "\n", 0600);
            if (!kept) fall.trouble.push_back(kept.error().message);
        }
        if (const auto removed = remove_tree(folder); !removed) fall.trouble.push_back(removed.error().message);
    }
    if (line.json()) {
        print(json_document("down", {{"was_up", is_there}, {"done", fall.done}, {"trouble", fall.trouble}}));
    } else if (!is_there) {
        print(fmt::format("No cluster is up in {}\n", folder));
    } else if (fall.trouble.empty()) {
        fall.done.emplace_back("nothing is left");
        std::string text = fmt::format("{}", fmt::join(fall.done, ", "));
        text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
        print(text + "\n");
    }
    for (const std::string& trouble : fall.trouble) say(trouble);
    return fall.trouble.empty() ? 0 : 1;
}

}  // namespace gangline::runner
