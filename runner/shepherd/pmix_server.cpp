#include "runner/shepherd/pmix_server.h"

#include <pmix.h>
#include <pmix_server.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include <fmt/format.h>

#include "base/handle.h"
#include "runner/shepherd/pmix_environment.h"
#include "runner/shepherd/pmix_job.h"

namespace gangline::runner {
namespace {

enum class MpiState { Absent, Inside, Finalized, Aborted };

struct FenceAnswer {
    pmix_modex_cbfunc_t answer = nullptr;
    void* data = nullptr;
    std::string name_space;
};

struct RegisteredGang {
    PmixGang gang;
    std::uint32_t first_rank = 0;
    std::uint32_t rank_count = 0;
    bool failed = false;
    bool holds(std::uint32_t rank) const { return rank >= first_rank && rank - first_rank < rank_count; }
};

// The bytes of an answer live until libpmix says that it has sent them.
void release_answer(void* answer) { delete static_cast<std::string*>(answer); }

void give_answer(const FenceAnswer& to, pmix_status_t status, const std::string& blob) {
    if (to.answer == nullptr) return;
    if (status != PMIX_SUCCESS || blob.empty()) {
        to.answer(status, nullptr, 0, to.data, nullptr, nullptr);
        return;
    }
    auto* owned = new std::string(blob);
    to.answer(PMIX_SUCCESS, owned->data(), owned->size(), to.data, release_answer, owned);
}

// The readable lines of a packed log message of Open MPI.
std::string printable_text(std::string_view bytes) {
    std::string text;
    std::string run;
    const auto flush = [&] {
        if (run.size() >= 4) text += run;
        run.clear();
    };
    for (const char c : bytes) {
        if (c == '\n' || c == '\t' || (c >= 0x20 && c < 0x7f)) {
            run += c;
        } else {
            flush();
        }
    }
    flush();
    return text;
}

// Same procs, same key on every node, whatever order libpmix lists them in.
std::string list_name(const pmix_proc_t procs[], std::size_t count) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < count; ++i) {
        const std::string name_space(procs[i].nspace, ::strnlen(procs[i].nspace, PMIX_MAX_NSLEN));
        names.push_back(procs[i].rank == PMIX_RANK_WILDCARD ? name_space + ":*"
                                                            : fmt::format("{}:{}", name_space, procs[i].rank));
    }
    std::sort(names.begin(), names.end());
    return fmt::format("{}", fmt::join(names, "|"));
}

class PmixServerImpl : public PmixServer {
  public:
    using Task = std::function<void(PmixServerImpl&)>;

    explicit PmixServerImpl(PmixEvents events) : events_(std::move(events)) {}
    ~PmixServerImpl() override;
    Result<void> open(const PmixOptions& options);

    int fd() const override { return wake_.get(); }
    void handle() override;
    Result<void> register_gang(const PmixGang& gang) override;
    Result<std::vector<std::string>> environment_of(const std::string& name_space, std::uint32_t rank,
                                                    const std::vector<std::string>& base,
                                                    const MpiSettings& settings) override;
    void answer_fence(const std::string& key, const std::string& blob, bool failed) override;
    void answer_modex(std::uint64_t request, int status, const std::string& blob) override;
    void lookup_modex(std::uint64_t request, const std::string& name_space, std::uint32_t rank) override;
    void fail_gang(const std::string& name_space) override;
    bool is_connected(const std::string& name_space, std::uint32_t rank) const override {
        return state_of(name_space, rank) != MpiState::Absent;
    }
    bool is_inside_mpi(const std::string& name_space, std::uint32_t rank) const override {
        return state_of(name_space, rank) == MpiState::Inside;
    }

    // From libpmix's thread.
    void push(Task task);
    void set_state(const pmix_proc_t& proc, MpiState state);
    std::string fence_key(const pmix_proc_t procs[], std::size_t count);

    // On the loop's thread, out of the queue.
    void on_fence(std::string key, const std::string& name_space, std::string blob, bool partial, FenceAnswer answer);
    void on_modex(const std::string& name_space, std::uint32_t rank, FenceAnswer answer);
    const PmixEvents& events() const { return events_; }

  private:
    MpiState state_of(const std::string& name_space, std::uint32_t rank) const;

    PmixEvents events_;
    PmixOptions options_;
    Fd wake_;
    std::map<std::string, RegisteredGang> gangs_;
    std::map<std::string, FenceAnswer> fences_;
    std::map<std::uint64_t, FenceAnswer> lookups_;
    std::uint64_t next_request_ = 1;

    mutable std::mutex mutex_;  // what both threads touch
    std::deque<Task> queue_;
    std::map<std::pair<std::string, std::uint32_t>, MpiState> states_;
    std::map<std::string, std::uint64_t> fence_numbers_;
};

// libpmix's up-calls carry no pointer of ours: the one server of this process.
std::atomic<PmixServerImpl*> the_server{nullptr};
std::atomic<bool> was_started{false};

std::string space_of(const pmix_proc_t& proc) { return {proc.nspace, ::strnlen(proc.nspace, PMIX_MAX_NSLEN)}; }

// ---- Up-calls, on libpmix's thread. Its lock is held: copy, queue, return; answers come from the loop's thread.

pmix_status_t on_connected(const pmix_proc_t* proc, void*, pmix_op_cbfunc_t, void*) {
    PmixServerImpl* server = the_server;
    if (server == nullptr) return PMIX_ERR_NOT_SUPPORTED;
    server->set_state(*proc, MpiState::Inside);
    server->push([name_space = space_of(*proc), rank = proc->rank](PmixServerImpl& s) {
        if (s.events().connected) s.events().connected(name_space, rank);
    });
    return PMIX_OPERATION_SUCCEEDED;
}

pmix_status_t on_finalized(const pmix_proc_t* proc, void*, pmix_op_cbfunc_t, void*) {
    PmixServerImpl* server = the_server;
    if (server == nullptr) return PMIX_ERR_NOT_SUPPORTED;
    server->set_state(*proc, MpiState::Finalized);
    server->push([name_space = space_of(*proc), rank = proc->rank](PmixServerImpl& s) {
        if (s.events().finalized) s.events().finalized(name_space, rank);
    });
    return PMIX_OPERATION_SUCCEEDED;
}

// The caller of MPI_Abort waits for the answer, so its reason is known here before its exit is.
pmix_status_t on_abort(const pmix_proc_t* proc, void*, int status, const char msg[], pmix_proc_t[], size_t,
                       pmix_op_cbfunc_t answer, void* data) {
    PmixServerImpl* server = the_server;
    if (server == nullptr) return PMIX_ERR_NOT_SUPPORTED;
    server->set_state(*proc, MpiState::Aborted);
    const std::string text = msg != nullptr ? std::string(msg, ::strnlen(msg, 1024)) : std::string();
    server->push([name_space = space_of(*proc), rank = proc->rank, status, text, answer, data](PmixServerImpl& s) {
        if (s.events().aborted) s.events().aborted(name_space, rank, status, text);
        if (answer != nullptr) answer(PMIX_SUCCESS, data);
    });
    return PMIX_SUCCESS;
}

// A dead local participant does not stop a fence: libpmix calls up as if complete, and says so in this info.
bool is_partial(const pmix_info_t info[], std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        if (PMIX_CHECK_KEY(&info[i], PMIX_LOCAL_COLLECTIVE_STATUS) && info[i].value.type == PMIX_STATUS) {
            return info[i].value.data.status != PMIX_SUCCESS;
        }
    }
    return false;
}

pmix_status_t on_fence_call(const pmix_proc_t procs[], size_t count, const pmix_info_t info[], size_t info_count, char* bytes,
                            size_t size, pmix_modex_cbfunc_t answer, void* data) {
    PmixServerImpl* server = the_server;
    if (server == nullptr || count == 0) return PMIX_ERR_NOT_SUPPORTED;
    std::string blob = bytes != nullptr ? std::string(bytes, size) : std::string();
    server->push([key = server->fence_key(procs, count), name_space = space_of(procs[0]), blob = std::move(blob),
                  partial = is_partial(info, info_count), answer, data](PmixServerImpl& s) mutable {
        s.on_fence(std::move(key), name_space, std::move(blob), partial, {answer, data, name_space});
    });
    return PMIX_SUCCESS;
}

pmix_status_t on_modex_call(const pmix_proc_t* proc, const pmix_info_t[], size_t, pmix_modex_cbfunc_t answer, void* data) {
    PmixServerImpl* server = the_server;
    if (server == nullptr) return PMIX_ERR_NOT_SUPPORTED;
    server->push([name_space = space_of(*proc), rank = proc->rank, answer, data](PmixServerImpl& s) {
        s.on_modex(name_space, rank, {answer, data, name_space});
    });
    return PMIX_SUCCESS;
}

pmix_status_t on_register_events(pmix_status_t*, size_t, const pmix_info_t[], size_t, pmix_op_cbfunc_t, void*) {
    return PMIX_OPERATION_SUCCEEDED;
}

pmix_status_t on_deregister_events(pmix_status_t*, size_t, pmix_op_cbfunc_t, void*) { return PMIX_OPERATION_SUCCEEDED; }

pmix_status_t on_query(pmix_proc_t*, pmix_query_t*, size_t, pmix_info_cbfunc_t, void*) { return PMIX_ERR_NOT_SUPPORTED; }

void on_log(const pmix_proc_t*, const pmix_info_t info[], size_t count, const pmix_info_t[], size_t, pmix_op_cbfunc_t answer,
            void* data) {
    PmixServerImpl* server = the_server;
    if (server == nullptr) return;
    std::string text;
    for (std::size_t i = 0; i < count; ++i) {
        const pmix_value_t& value = info[i].value;
        if (value.type == PMIX_STRING && value.data.string != nullptr) text += value.data.string;
        if (value.type == PMIX_BYTE_OBJECT && value.data.bo.bytes != nullptr) {
            text += printable_text({value.data.bo.bytes, value.data.bo.size});
        }
    }
    server->push([text, answer, data](PmixServerImpl& s) {
        if (s.events().help_text && !text.empty()) s.events().help_text(text);
        if (answer != nullptr) answer(PMIX_SUCCESS, data);
    });
}

void on_modex_found(pmix_status_t status, char* bytes, size_t size, void* data) {
    PmixServerImpl* server = the_server;
    const std::unique_ptr<std::uint64_t> request(static_cast<std::uint64_t*>(data));
    if (server == nullptr) return;
    std::string blob = bytes != nullptr ? std::string(bytes, size) : std::string();
    server->push([id = *request, status, blob = std::move(blob)](PmixServerImpl& s) mutable {
        if (s.events().modex_found) s.events().modex_found(id, status, std::move(blob));
    });
}

// Without a default handler libpmix would print what it has to say about lost connections.
void on_event(size_t, pmix_status_t, const pmix_proc_t*, pmix_info_t[], size_t, pmix_info_t[], size_t,
              pmix_event_notification_cbfunc_fn_t done, void* data) {
    if (done != nullptr) done(PMIX_EVENT_ACTION_COMPLETE, nullptr, 0, nullptr, nullptr, data);
}

pmix_server_module_t make_module() {
    pmix_server_module_t module{};
    module.client_connected = on_connected;
    module.client_finalized = on_finalized;
    module.abort = on_abort;
    module.fence_nb = on_fence_call;
    module.direct_modex = on_modex_call;
    module.register_events = on_register_events;
    module.deregister_events = on_deregister_events;
    module.query = on_query;
    module.log = on_log;
    return module;
}

// ---- The loop's thread.

PmixServerImpl::~PmixServerImpl() { the_server = nullptr; }

Result<void> PmixServerImpl::open(const PmixOptions& options) {
    options_ = options;
    wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_) return errno_error("cannot make an event descriptor");
    the_server = this;
    static pmix_server_module_t module = make_module();
    InfoList info;
    info.text(PMIX_SERVER_NSPACE, fmt::format("{}-shepherd.{}.{}", options.cluster, options.node, ::getpid()));
    info.rank(PMIX_SERVER_RANK, 0);
    info.text(PMIX_HOSTNAME, options.node);
    info.text(PMIX_SERVER_TMPDIR, options.folder);
    info.text(PMIX_SYSTEM_TMPDIR, options.folder);
    info.yes(PMIX_SERVER_SHARE_TOPOLOGY);
    if (const auto rc = PMIx_server_init(&module, info.data(), info.size()); rc != PMIX_SUCCESS) {
        the_server = nullptr;
        return Error{Code::Internal, "cannot start the PMIx server: " + pmix_reason(rc)};
    }
    PMIx_Register_event_handler(nullptr, 0, nullptr, 0, on_event, nullptr, nullptr);
    return {};
}

void PmixServerImpl::push(Task task) {
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(task));
    }
    const std::uint64_t one = 1;
    while (::write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
}

void PmixServerImpl::set_state(const pmix_proc_t& proc, MpiState state) {
    const std::lock_guard lock(mutex_);
    states_[{space_of(proc), proc.rank}] = state;
}

MpiState PmixServerImpl::state_of(const std::string& name_space, std::uint32_t rank) const {
    const std::lock_guard lock(mutex_);
    const auto found = states_.find({name_space, rank});
    return found == states_.end() ? MpiState::Absent : found->second;
}

std::string PmixServerImpl::fence_key(const pmix_proc_t procs[], std::size_t count) {
    std::string name = list_name(procs, count);
    const std::lock_guard lock(mutex_);
    const std::uint64_t number = fence_numbers_[name]++;
    return fmt::format("{}#{}", name, number);
}

void PmixServerImpl::handle() {
    std::uint64_t count = 0;
    while (::read(wake_.get(), &count, sizeof count) < 0 && errno == EINTR) {
    }
    std::deque<Task> tasks;
    {
        const std::lock_guard lock(mutex_);
        tasks.swap(queue_);
    }
    for (Task& task : tasks) task(*this);
}

Result<void> PmixServerImpl::register_gang(const PmixGang& gang) {
    if (gang.name_space.empty() || gang.name_space.size() > PMIX_MAX_NSLEN) {
        return Error{Code::InvalidArgument,
                     fmt::format("the namespace '{}' must have 1 to {} bytes", gang.name_space, PMIX_MAX_NSLEN)};
    }
    if (gang.node != options_.node) {
        return Error{Code::InvalidArgument,
                     fmt::format("the PMIx server was started for node {}, the gang is for {}", options_.node, gang.node)};
    }
    if (gangs_.count(gang.name_space) != 0) {
        return Error{Code::InvalidArgument, fmt::format("the namespace {} is registered already", gang.name_space)};
    }
    InfoList info;
    if (auto described = describe_gang(gang, info); !described) return described;
    if (::mkdir(gang.session_folder.c_str(), 0700) != 0 && errno != EEXIST) {
        return errno_error("cannot make the session folder " + gang.session_folder);
    }
    if (gang.uid != ::geteuid() && ::chown(gang.session_folder.c_str(), gang.uid, gang.gid) != 0) {
        return errno_error("cannot give away the session folder " + gang.session_folder);
    }
    const proto::Placement& here = *placement_of(gang.gang, gang.node);
    const int local = static_cast<int>(here.rank_count());
    const pmix_proc_t space = pmix_proc(gang.name_space, PMIX_RANK_WILDCARD);
    auto rc = PMIx_server_register_nspace(space.nspace, local, info.data(), info.size(), nullptr, nullptr);
    if (rc != PMIX_SUCCESS && rc != PMIX_OPERATION_SUCCEEDED) {
        return Error{Code::Internal, fmt::format("PMIx does not take the gang {}: {}", gang.name_space, pmix_reason(rc))};
    }
    for (std::uint32_t i = 0; i < here.rank_count(); ++i) {
        const pmix_proc_t proc = pmix_proc(gang.name_space, here.first_rank() + i);
        rc = PMIx_server_register_client(&proc, gang.uid, gang.gid, nullptr, nullptr, nullptr);
        if (rc != PMIX_SUCCESS && rc != PMIX_OPERATION_SUCCEEDED) {
            return Error{Code::Internal, fmt::format("PMIx does not take rank {}: {}", proc.rank, pmix_reason(rc))};
        }
    }
    gangs_[gang.name_space] = RegisteredGang{gang, here.first_rank(), here.rank_count(), false};
    return {};
}

Result<std::vector<std::string>> PmixServerImpl::environment_of(const std::string& name_space, std::uint32_t rank,
                                                                const std::vector<std::string>& base,
                                                                const MpiSettings& settings) {
    const auto found = gangs_.find(name_space);
    if (found == gangs_.end() || !found->second.holds(rank)) {
        return Error{Code::NotFound, fmt::format("rank {} of {} is not registered on node {}", rank, name_space, options_.node)};
    }
    const std::vector<std::string> wanted = mpi_environment(base, settings);
    // libpmix reallocates the array: it must be malloc'ed throughout.
    char** environment = static_cast<char**>(std::calloc(wanted.size() + 1, sizeof(char*)));
    CHECK(environment != nullptr, "memory for an environment");
    for (std::size_t i = 0; i < wanted.size(); ++i) environment[i] = ::strdup(wanted[i].c_str());
    const pmix_proc_t proc = pmix_proc(name_space, rank);
    const auto rc = PMIx_server_setup_fork(&proc, &environment);
    std::vector<std::string> result;
    for (char** variable = environment; *variable != nullptr; ++variable) {
        result.emplace_back(*variable);
        std::free(*variable);
    }
    std::free(environment);
    if (rc != PMIX_SUCCESS && rc != PMIX_OPERATION_SUCCEEDED) {
        return Error{Code::Internal, fmt::format("PMIx cannot prepare rank {}: {}", rank, pmix_reason(rc))};
    }
    return result;
}

void PmixServerImpl::on_fence(std::string key, const std::string& name_space, std::string blob, bool partial,
                              FenceAnswer answer) {
    const auto gang = gangs_.find(name_space);
    if (gang == gangs_.end() || gang->second.failed || !events_.fence) {
        give_answer(answer, PMIX_ERR_LOST_CONNECTION, {});
        return;
    }
    fences_[key] = std::move(answer);
    events_.fence(key, std::move(blob), partial);
}

void PmixServerImpl::on_modex(const std::string& name_space, std::uint32_t rank, FenceAnswer answer) {
    const auto gang = gangs_.find(name_space);
    if (gang == gangs_.end() || gang->second.failed || !events_.modex) {
        give_answer(answer, PMIX_ERR_NOT_FOUND, {});
        return;
    }
    const std::uint64_t request = next_request_++;
    lookups_[request] = std::move(answer);
    events_.modex(request, name_space, rank);
}

void PmixServerImpl::answer_fence(const std::string& key, const std::string& blob, bool failed) {
    const auto found = fences_.find(key);
    if (found == fences_.end()) return;
    const FenceAnswer answer = std::move(found->second);
    fences_.erase(found);
    give_answer(answer, failed ? PMIX_ERR_LOST_CONNECTION : PMIX_SUCCESS, blob);
}

void PmixServerImpl::answer_modex(std::uint64_t request, int status, const std::string& blob) {
    const auto found = lookups_.find(request);
    if (found == lookups_.end()) return;
    const FenceAnswer answer = std::move(found->second);
    lookups_.erase(found);
    give_answer(answer, status, blob);
}

void PmixServerImpl::lookup_modex(std::uint64_t request, const std::string& name_space, std::uint32_t rank) {
    const auto found = gangs_.find(name_space);
    pmix_status_t rc = PMIX_ERR_NOT_FOUND;
    if (found != gangs_.end() && found->second.holds(rank) && !found->second.failed) {
        const pmix_proc_t proc = pmix_proc(name_space, rank);
        auto id = std::make_unique<std::uint64_t>(request);
        rc = PMIx_server_dmodex_request(&proc, on_modex_found, id.get());
        if (rc == PMIX_SUCCESS) {
            id.release();  // on_modex_found owns it now.
            return;
        }
    }
    push([request, rc](PmixServerImpl& s) {
        if (s.events_.modex_found) s.events_.modex_found(request, rc, {});
    });
}

void PmixServerImpl::fail_gang(const std::string& name_space) {
    const auto found = gangs_.find(name_space);
    if (found == gangs_.end()) return;
    found->second.failed = true;
    const auto give_up = [&](auto& waiting, pmix_status_t status) {
        for (auto it = waiting.begin(); it != waiting.end();) {
            if (it->second.name_space != name_space) {
                ++it;
                continue;
            }
            give_answer(it->second, status, {});
            it = waiting.erase(it);
        }
    };
    give_up(fences_, PMIX_ERR_LOST_CONNECTION);
    give_up(lookups_, PMIX_ERR_NOT_FOUND);
}

}  // namespace

std::string pmix_name_space(const std::string& cluster, const proto::AttemptId& id, std::uint32_t step_id) {
    return fmt::format("{}-{}.{}.{}", cluster, id.job(), id.attempt(), step_id);
}

Result<std::unique_ptr<PmixServer>> PmixServer::start(const PmixOptions& options, PmixEvents events) {
    struct stat folder{};
    if (::stat(options.folder.c_str(), &folder) != 0 || !S_ISDIR(folder.st_mode)) {
        return Error{Code::InvalidArgument, fmt::format("the PMIx server's folder '{}' does not exist", options.folder)};
    }
    if (options.node.empty() || options.node.find_first_of(",;") != std::string::npos) {
        return Error{Code::InvalidArgument,
                     fmt::format("'{}' cannot be the PMIx server's node name: it must not be empty nor contain , or ;", options.node)};
    }
    if (!is_loopback_up()) {
        return Error{Code::Unavailable, "the loopback interface is down, and MPI ranks reach their server over it: ip link set lo up"};
    }
    if (was_started.exchange(true)) return Error{Code::Refused, "this process has had its PMIx server already"};
    clean_own_environment();
    ::setenv("PMIX_MCA_gds", "hash", 1);  // The shared-memory store can dead-lock when ranks are killed.
    std::signal(SIGPIPE, SIG_IGN);        // libpmix writes to the sockets of killed ranks.
    auto server = std::make_unique<PmixServerImpl>(std::move(events));
    if (auto opened = server->open(options); !opened) return opened.error();
    return std::unique_ptr<PmixServer>(std::move(server));
}

}  // namespace gangline::runner
