// `gangline run`: submit, attach, exit with the job's exit code; with a cluster of its own where none is configured.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/process.h"
#include "base/time.h"
#include "runner/cli/attach.h"
#include "runner/cli/job_request.h"
#include "runner/cli/json.h"
#include "runner/cli/private_cluster.h"
#include "runner/cli/verbs.h"
#include "runner/cli/views.h"

namespace gangline::runner {
namespace {

struct Size {
    std::uint32_t nodes = 1;
    std::uint32_t cards = 1;
};

// So many virtual nodes and cards that the gang and its spares fit.
Result<Size> size_of(const Line& line, const proto::JobSpec& spec) {
    Size size;
    std::uint32_t of_gang = std::max(1U, spec.elastic() ? spec.nodes_max() : spec.nodes_min());
    if (spec.nodes_min() == 0 && spec.ranks_per_node() > 0) {
        of_gang = (spec.ranks() + spec.ranks_per_node() - 1) / spec.ranks_per_node();
    }
    size.nodes = of_gang + spec.spares();
    if (const Given* const given = last_given(line.given, "virtual-nodes"); given != nullptr) {
        const auto nodes = whole_number(*given, 1, 256);
        if (!nodes) return nodes.error();
        size.nodes = static_cast<std::uint32_t>(*nodes);
        of_gang = size.nodes > spec.spares() ? size.nodes - spec.spares() : 1;
    }
    if (size.nodes > 256) {
        return Error{Code::InvalidArgument, fmt::format("--nodes: {} nodes with the spares are too many for one machine: at most 256", size.nodes)};
    }
    const std::uint32_t per_node =
        spec.elastic() ? spec.ranks_per_node() : std::max(spec.ranks_per_node(), (spec.ranks() + of_gang - 1) / of_gang);
    size.cards = std::max(1U, per_node * spec.cards_per_rank());
    if (const Given* const given = last_given(line.given, "cards"); given != nullptr) {
        const auto cards = whole_number(*given, 1, 65536);
        if (!cards) return cards.error();
        size.cards = static_cast<std::uint32_t>(*cards);
    }
    return size;
}

// Where the time of a start went, with GANGLINE_TIMING=1.
class Stopwatch {
  public:
    explicit Stopwatch(const Line& line) : on_(line.environment.contains("GANGLINE_TIMING")), last_(now().steady) {}
    void lap(const char* what) {
        const TimePoint at = now().steady;
        if (on_) say(fmt::format("timing {} {:.1f} ms", what, 1000 * to_seconds(at - last_)));
        last_ = at;
    }

  private:
    bool on_;
    TimePoint last_;
};

int print_report(const Line& line, Client& client, std::uint64_t job) {
    proto::Request request;
    request.mutable_report_job()->set_job(job);
    const auto response = client.ask(request);
    if (!response) return fail(line, response.error());
    print(report_text(response->report(), terminal_of(1)));
    return 0;
}

Result<std::uint64_t> submit(Client& client, const proto::JobSpec& spec) {
    proto::Request request;
    *request.mutable_submit()->mutable_spec() = spec;
    const auto response = client.ask(request);
    if (!response) return response.error();
    return response->job();
}

int finish(const Line& line, Client& client, const AttachEnd& end) {
    if (end.signal != 0) return 128 + end.signal;
    const bool cancelled = end.cancelled_here && end.job.state() == proto::CANCELLED;
    const std::string failure = cancelled ? fmt::format("job {} cancelled", name_of(end.job)) : failure_words(end.job);
    if (!failure.empty()) say(failure);
    if (line.json()) print(json_document("job", to_json(end.job)));
    if (line.has("report") && !line.json()) print_report(line, client, end.job.id());
    return cancelled ? 128 + SIGINT : exit_code_of(end.job);
}

struct Ran {
    int code = 0;
    bool has_checkpoints = false;
};

Ran run_on(const Line& line, Client& client, const JobRequest& request, SignalWatch& signals, Stopwatch& watch,
           const PrivateCluster* own) {
    if (flag_of(request, "test-only")) return {check_only(line, client, request)};
    const auto job = submit(client, request.spec);
    if (!job) return {fail(line, job.error())};
    watch.lap("submit");
    OutputChoice choice;
    choice.label = line.has("label");
    OutputPrinter printer(choice);
    AttachOptions options;
    if (own != nullptr) {
        options.cluster_died = [own] { return own->died(); };
        options.reach = own->options_to_reach();
    }
    const auto end = attach(client, *job, printer, signals, options);
    if (!end) return {fail(line, end.error())};
    watch.lap("run");
    return {finish(line, client, *end), end->job.checkpoints_size() > 0};
}

bool has_gpu() { return ::access("/dev/nvidia0", F_OK) == 0; }

// Somebody who asks for cards may expect real ones.
void tell_virtual_cards(const JobRequest& request) {
    const std::uint64_t cards = std::uint64_t{request.spec.ranks()} * request.spec.cards_per_rank();
    if (!request.spec.cards_given() || cards == 0 || has_gpu()) return;
    say(fmt::format("no GPU here: {} virtual card{} (CPU shares)", cards, cards == 1 ? "" : "s"));
}

// Virtual nodes have no features, no reservations and no types of cards; a script that asks for them is tried without.
void leave_out_places(JobRequest& request) {
    std::vector<std::string> left_out;
    const auto leave_out = [&](const char* what, std::string* value) {
        if (!value->empty()) left_out.push_back(fmt::format("{} {}", what, *value));
        value->clear();
    };
    leave_out("--constraint", request.spec.mutable_constraint());
    leave_out("--reservation", request.spec.mutable_reservation());
    if (!has_gpu()) leave_out("cards of the type", request.spec.mutable_card_model());
    if (!left_out.empty()) say(fmt::format("a private cluster has virtual nodes, left out: {}", fmt::join(left_out, ", ")));
}

int run_private(const Line& line, JobRequest& request) {
    const auto size = size_of(line, request.spec);
    if (!size) return fail(line, size.error());
    tell_virtual_cards(request);
    leave_out_places(request);
    SignalWatch signals(SignalWatch::Mode::Watch);
    Stopwatch watch(line);
    auto cluster = PrivateCluster::start(line.state, size->nodes, size->cards);
    if (!cluster) return fail(line, cluster.error());
    watch.lap("start parts");
    const auto address = (*cluster)->address();
    if (!address) return fail(line, address.error());
    auto client = Client::connect(*address);
    if (!client) return fail(line, client.error());
    sweep_dead_runs(line.state);
    int signal = 0;
    const auto ready = (*cluster)->wait_ready([&] { return (signal = signals.next()) != 0; });
    if (!ready) return signal != 0 ? 128 + signal : fail(line, ready.error());
    watch.lap("parts ready");
    const Ran ran = run_on(line, **client, request, signals, watch, cluster->get());
    client->reset();
    if (const auto trouble = (*cluster)->take_down()) say(*trouble);
    watch.lap("take down");
    if (ran.has_checkpoints && request.spec.checkpoint_folder().empty()) {
        say("the job's checkpoints went with the private cluster; --checkpoint-dir DIR keeps them");
    }
    return ran.code;
}

}  // namespace

int run_run(const Line& line) {
    const auto address = find_cluster(line.given, line.environment, line.config, line.state);
    if (!address) return fail(line, address.error());
    const bool is_private = !address->has_value() || line.has("virtual-nodes");
    const bool here = is_private || (*address)->endpoint.starts_with("ipc:") ||
                      (*address)->endpoint.starts_with("tcp://127.");
    auto request = read_job_request(line, here ? Where::ThisMachine : Where::Elsewhere);
    if (!request) return fail(line, request.error());
    if (const Given* const array = request->options.find("array"); array != nullptr) {
        return fail(line, {Code::InvalidArgument,
                           fmt::format("{}: run runs one job, here and now; an array is submitted: gangline submit", shown(*array))});
    }
    warn(request->warnings);
    if (is_private) return run_private(line, *request);
    SignalWatch signals(SignalWatch::Mode::Watch);
    Stopwatch watch(line);
    auto client = Client::connect(**address);
    if (!client) return fail(line, client.error());
    return run_on(line, **client, *request, signals, watch, nullptr).code;
}

}  // namespace gangline::runner
