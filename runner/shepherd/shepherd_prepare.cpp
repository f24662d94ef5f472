// Prepare: everything that can be made ready, or found wrong, before a rank starts.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include <fmt/format.h>

#include "base/log.h"
#include "base/process.h"
#include "runner/shepherd/binding.h"
#include "runner/shepherd/shepherd.h"

namespace gangline::runner {
namespace {

// Away from the ephemeral range, where any connection of the machine may take a port between now and the rank's bind.
constexpr std::uint16_t kFirstMasterPort = 20'000;
constexpr std::uint16_t kMasterPorts = 10'000;
constexpr int kMostPortTries = 200;
constexpr std::uint64_t kMebibyte = 1u << 20;
constexpr int kCannotStart = 127;

Failure users(std::string why, int exit_code = 0) { return {std::move(why), true, exit_code}; }
Failure nodes(std::string why) { return {std::move(why), false, 0}; }

// What the file system refuses is the user's to correct, unless the disk is full.
Failure of_path(const Error& error) { return {error.message, error.code != Code::NoSpace, 0}; }

bool is_free(std::uint16_t port) {
    const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    return fd && ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

std::uint32_t free_port() {
    std::random_device random;
    for (int i = 0; i < kMostPortTries; ++i) {
        const auto port = static_cast<std::uint16_t>(kFirstMasterPort + random() % kMasterPorts);
        if (is_free(port)) return port;
    }
    return 0;
}

}  // namespace

void Shepherd::on_prepare(const proto::Prepare& prepare) {
    const bool is_other = id_.job() != 0 && !is_ours(prepare.id());
    if (prepare_ || is_other || prepare.id().job() == 0) {
        if (is_other || prepare.id().job() == 0) log_warn("prepare_refused job={} attempt={}", prepare.id().job(), prepare.id().attempt());
        changed_ = prepare_.has_value();
        return;
    }
    id_ = prepare.id();
    prepare_ = prepare;
    log_info("prepare job={} attempt={} node_index={} nodes={}", id_.job(), id_.attempt(), prepare.node_index(), prepare.gang_size());
    if (auto failure = get_ready()) {
        log_warn("not_prepared users={} why={}", failure->is_users, failure->why);
        return fail(std::move(*failure));
    }
    phase_ = proto::ATTEMPT_PREPARED;
    report_now();
}

const proto::Placement& Shepherd::here() const { return prepare_->gang(static_cast<int>(prepare_->node_index())); }

std::string Shepherd::node_address() const { return here().address().empty() ? start_.address : here().address(); }

std::optional<Failure> Shepherd::get_ready() {
    if (auto failure = check_request()) return failure;
    if (auto failure = make_folders_of_attempt()) return failure;
    if (is_script() && is_lead()) {
        if (auto failure = write_script()) return failure;
    } else if (!is_script()) {
        if (auto failure = check_program()) return failure;
    }
    OutputOptions options;
    options.log_path = start_.spool_folder + "/output.log";
    auto output = Output::open(*loop_, options);
    if (!output) return nodes(output.error().message);
    output_ = std::move(*output);
    const bool writes = !is_script() || is_lead();
    if (writes) {
        auto files = output_->open_files(*prepare_, is_script() ? 0 : here().first_rank(), is_script() ? 1 : here().rank_count());
        if (!files) return of_path(files.error());
    }
    make_cgroup();
    keys_ = new_key_pair();
    if (auto failure = open_gang_link()) return failure;
    const std::vector<proto::Placement> gang(prepare_->gang().begin(), prepare_->gang().end());
    if (world_size(gang) > 1) {
        if (auto started = start_pmix(); !started) return nodes(started.error().message);
    }
    if (is_script()) {
        if (auto failure = start_steps()) return failure;
    }
    plan_binding();
    if (is_lead()) master_port_ = free_port();
    return std::nullopt;
}

std::optional<Failure> Shepherd::check_request() {
    const proto::JobSpec& spec = prepare_->spec();
    if (prepare_->node_index() >= static_cast<std::uint32_t>(prepare_->gang_size())) {
        return nodes(fmt::format("prepare: node index {} of a gang on {} nodes", prepare_->node_index(), prepare_->gang_size()));
    }
    if (spec.script().empty() && here().rank_count() == 0) return nodes("prepare: this node is given no rank");
    if (auto checked = check_environment(spec.environment()); !checked) return users(checked.error().message);
    struct stat info {};
    if (!spec.cwd().starts_with('/')) return users(fmt::format("the working folder '{}' is not absolute", spec.cwd()));
    if (::stat(spec.cwd().c_str(), &info) != 0) {
        return users(errno_error(fmt::format("the working folder {} on node {}", spec.cwd(), start_.node)).message);
    }
    if (!S_ISDIR(info.st_mode) || ::access(spec.cwd().c_str(), X_OK) != 0) {
        return users(fmt::format("the working folder {} on node {} is no folder that may be entered", spec.cwd(), start_.node));
    }
    return std::nullopt;
}

std::optional<Failure> Shepherd::check_program() {
    const proto::JobSpec& spec = prepare_->spec();
    if (spec.argv().empty()) return users("the command is empty: name a program after --");
    std::string path = "/usr/local/bin:/usr/bin:/bin";
    for (const proto::Variable& variable : spec.environment()) {
        if (variable.name() == "PATH") path = variable.value();
    }
    auto found = find_program(spec.argv(0), path, spec.cwd());
    if (!found) return users(fmt::format("{} (on node {})", found.error().message, start_.node), kCannotStart);
    program_ = std::move(*found);
    return std::nullopt;
}

std::optional<Failure> Shepherd::make_folders_of_attempt() {
    shared_folder_ = shared_folder_of(start_.cluster, start_.node, id_);
    if (auto made = make_shared_folder(shared_folder_); !made) {
        const std::string why = made.error().message;
        shared_folder_.clear();
        return nodes(why);
    }
    return std::nullopt;
}

// The script's text, and beside it the folder that a script finds first in its PATH.
std::optional<Failure> Shepherd::write_script() {
    const std::string& text = prepare_->spec().script();
    if (!text.starts_with("#!")) {
        return users("this does not look like a job script: its first line must be #! and the path of an interpreter, such as #!/bin/sh");
    }
    const std::string path = start_.spool_folder + "/script";
    if (auto written = write_file_atomically(path, text, 0700); !written) return nodes(written.error().message);
    tools_folder_ = start_.spool_folder + "/bin";
    if (auto made = make_folder(tools_folder_, 0700); !made) return nodes(made.error().message);
    for (const char* name : {"srun", "gangline", "gl"}) {
        const std::string link = tools_folder_ + "/" + name;
        ::unlink(link.c_str());
        if (::symlink(executable_path().c_str(), link.c_str()) != 0) return nodes(errno_error("cannot make the link " + link).message);
    }
    program_ = path;
    return std::nullopt;
}

std::optional<Failure> Shepherd::open_gang_link() {
    if (prepare_->gang_size() < 2 && !is_script()) return std::nullopt;
    GangLinkOptions options;
    options.id = id_;
    options.gang.assign(prepare_->gang().begin(), prepare_->gang().end());
    options.node_index = prepare_->node_index();
    options.keys = keys_;
    auto link = GangLink::prepare(options, gang_events());
    if (!link) return nodes(link.error().message);
    link_ = std::move(*link);
    if (auto watched = loop_->watch(link_->fd(), [this](Ready) { link_->handle(); }); !watched) return nodes(watched.error().message);
    return std::nullopt;
}

std::optional<Failure> Shepherd::start_steps() {
    StepOptions options;
    if (is_lead()) step_socket_ = "gangline-steps-" + random_hex(8);
    options.socket_name = step_socket_;
    options.gang.assign(prepare_->gang().begin(), prepare_->gang().end());
    options.node_index = prepare_->node_index();
    options.spec = prepare_->spec();
    StepHooks hooks;
    hooks.start_ranks = [this](const proto::StartStep& step) { return start_step(step); };
    hooks.signal_ranks = [this](std::uint32_t step_id, int signal) {
        if (RankGroup* group = group_of(step_id)) signal_group(*group, signal);
    };
    hooks.pause_output = [this](std::uint32_t step_id, bool paused) { output_->pause(step_id, paused); };
    auto steps = StepServer::start(options, std::move(hooks), *link_);
    if (!steps) return nodes(steps.error().message);
    steps_ = std::move(*steps);
    if (auto watched = loop_->watch(steps_->fd(), [this](Ready) { steps_->handle(); }); !watched) return nodes(watched.error().message);
    return std::nullopt;
}

// Where there is no cgroup v2 to write, the sub-reaper alone keeps the processes together.
void Shepherd::make_cgroup() {
    std::string folder = start_.cgroup;
    if (folder.empty()) {
        const std::string root = writable_cgroup_root();
        if (!root.empty()) folder = fmt::format("{}/gangline/{}/{}/{}.{}", root, start_.cluster, start_.node, id_.job(), id_.attempt());
    }
    const std::uint64_t memory = prepare_->spec().memory_mib_per_node();
    std::string missing = "there is no cgroup v2 that may be written";
    if (!folder.empty()) {
        auto group = RankCgroup::create(folder);
        if (group) {
            cgroup_ = std::move(*group);
            const auto limited = memory == 0 ? Result<void>() : cgroup_->limit_memory(memory * kMebibyte);
            if (limited) return;
            missing = limited.error().message;
        } else {
            missing = group.error().message;
        }
    }
    log_info("cgroup_missing why={}", missing);
    if (memory != 0) faults_.push_back(fmt::format("the memory limit of {} MiB is not enforced on node {}: {}", memory, start_.node, missing));
}

// See binding.h. The topology is read only where ranks will be bound.
void Shepherd::plan_binding() {
    if (start_.cards == 0 || is_loopback(node_address()) || here().cards_size() == 0) return;
    units_ = units_in_order();
    if (units_.size() < here().rank_count()) units_.clear();
}

Result<void> Shepherd::start_pmix() {
    if (pmix_) return {};
    pmix_folder_ = start_.spool_folder + "/pmix";
    if (auto made = make_folder(pmix_folder_, 0700); !made) return made;
    auto server = PmixServer::start({pmix_folder_, start_.node, start_.cluster}, pmix_events());
    if (!server) return server.error();
    pmix_ = std::move(*server);
    return loop_->watch(pmix_->fd(), [this](Ready) { pmix_->handle(); });
}

}  // namespace gangline::runner
