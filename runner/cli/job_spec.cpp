#include "runner/cli/job_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "base/retention.h"
#include "base/text.h"
#include "runner/cli/job_values.h"

namespace gangline::runner {
namespace {

constexpr std::size_t kMostScript = std::size_t{2} * 1024 * 1024;

// Builds one spec; the first error ends it.
class Builder {
  public:
    Builder(const JobOptions& options, const Program& program, const Surroundings& here)
        : options_(options), program_(program), here_(here) {}

    Result<BuiltSpec> build() {
        take_unsupported();
        for (const auto step : {&Builder::take_program, &Builder::take_size, &Builder::take_cards,
                                &Builder::take_limits, &Builder::take_files, &Builder::take_retention, &Builder::take_place,
                                &Builder::take_order, &Builder::take_array, &Builder::take_environment}) {
            if (const auto done = (this->*step)(); !done) return done.error();
        }
        if (const auto text = check_text(); !text) return text.error();
        return std::move(built_);
    }

  private:
    // What travels as text must be text.
    Result<void> check_text() {
        const auto check = [](const std::string& what, const std::string& value) -> Result<void> {
            if (is_utf8(value)) return {};
            return Error{Code::InvalidArgument, what + " is not UTF-8: write it in UTF-8, or give the program such bytes in a file"};
        };
        for (const auto& [what, value] : {std::pair{"--job-name", &spec().name()}, {"the job script", &spec().script()}, {"the working folder", &spec().cwd()},
                                          {"--output", &spec().output()}, {"--error", &spec().error()}, {"--comment", &spec().comment()},
                                          {"--checkpoint-dir", &spec().checkpoint_folder()}, {"--dependency", &spec().dependency()},
                                          {"the type of the cards", &spec().card_model()}}) {
            if (auto good = check(what, *value); !good) return good;
        }
        for (int i = 0; i < spec().argv_size(); ++i) {
            if (auto good = check(fmt::format("argument {} of the program", i), spec().argv(i)); !good) return good;
        }
        for (int i = 0; i < spec().script_args_size(); ++i) {
            if (auto good = check(fmt::format("argument {} of the script", i + 1), spec().script_args(i)); !good) return good;
        }
        return {};
    }

    proto::JobSpec& spec() { return built_.spec; }

    void warn(std::string text) { built_.warnings.push_back(std::move(text)); }

    void take_unsupported() {
        Unsupported unsupported = unsupported_options(options_);
        for (std::string& warning : unsupported.warnings) warn(std::move(warning));
        for (std::string& option : unsupported.options) spec().add_unsupported(std::move(option));
    }

    void not_supported(const Given& given, const std::string& what, const std::string& instead) {
        warn(fmt::format("{}: {} is not supported: {}", shown(given), what, instead));
        spec().add_unsupported(fmt::format("--{}={}", given.name, given.value));
    }

    Result<void> take_program() {
        for (const std::string& word : program_.argv) spec().add_argv(word);
        for (const std::string& word : program_.script_args) spec().add_script_args(word);
        spec().set_script(program_.script);
        if (program_.script.size() > kMostScript) {
            return Error{Code::InvalidArgument, fmt::format("the script has {} bytes, the most is {}",
                                                            program_.script.size(), kMostScript)};
        }
        const Given* const name = options_.find("job-name");
        spec().set_name(name == nullptr ? program_.name : name->value);
        const std::string& chosen = spec().name();
        const bool bad = chosen.size() > 256 || std::any_of(chosen.begin(), chosen.end(), [](unsigned char c) {
            return c < 0x20 || c == 0x7f;
        });
        if (bad) {
            return Error{Code::InvalidArgument,
                         fmt::format("--job-name: a name has at most 256 printable characters")};
        }
        return {};
    }

    // Leaves `out` as it is when the option is not given.
    Result<void> number(const char* name, std::int64_t least, std::int64_t most, std::int64_t& out) {
        const Given* const given = options_.find(name);
        if (given == nullptr) return {};
        const auto value = whole_number(*given, least, most);
        if (!value) return value.error();
        out = *value;
        return {};
    }

    Result<void> take_nodes() {
        const Given* const given = options_.find("nodes");
        if (given == nullptr) return {};
        const auto nodes = parse_node_range(*given);
        if (!nodes) return nodes.error();
        nodes_min_ = nodes->least;
        nodes_max_ = nodes->most;
        nodes_step_ = nodes->step;
        is_elastic_ = nodes_min_ < nodes_max_ && !options_.has("ntasks") &&
                      !(options_.has("gpus") && options_.has("gpus-per-task"));
        if (nodes_step_ != 0 && !is_elastic_) {
            return Error{Code::InvalidArgument,
                         fmt::format("{}: the step of '{}' is for an elastic gang, but {} fixes the number of ranks: leave out one",
                                     shown(*given), given->value, options_.has("ntasks") ? "--ntasks" : "--gpus with --gpus-per-task")};
        }
        return {};
    }

    Result<void> take_size() {
        if (const auto nodes = take_nodes(); !nodes) return nodes.error();
        std::int64_t cpus = 0;
        for (const auto& done :
             {number("ntasks", 1, kMostRanks, ranks_), number("ntasks-per-node", 1, kMostRanks, per_node_),
              number("cpus-per-task", 1, 65536, cpus)}) {
            if (!done) return done.error();
        }
        if (ranks_ == 0) {
            if (const auto counted = count_ranks(); !counted) return counted.error();
        }
        if (ranks_ > kMostRanks) {
            return Error{Code::InvalidArgument,
                         fmt::format("--nodes: {} ranks are too many: the most is {}", ranks_, kMostRanks)};
        }
        if (nodes_min_ > ranks_) {
            warn(fmt::format("--nodes: {} rank{} cannot fill {} nodes: {} will do", ranks_, ranks_ == 1 ? "" : "s",
                             nodes_min_, ranks_));
            nodes_min_ = ranks_;
        }
        nodes_max_ = std::min(nodes_max_, nodes_max_ == 0 ? nodes_max_ : ranks_);
        if (nodes_max_ > 0 && per_node_ > 0 && ranks_ > nodes_max_ * per_node_) {
            return Error{Code::InvalidArgument,
                         fmt::format("--ntasks: {} ranks do not fit on {} node{} with {} each: the most is {}", ranks_,
                                     nodes_max_, nodes_max_ == 1 ? "" : "s", per_node_, nodes_max_ * per_node_)};
        }
        if (const auto segment = take_segment(); !segment) return segment.error();
        spec().set_elastic(is_elastic_);
        spec().set_nodes_step(static_cast<std::uint32_t>(nodes_step_));
        spec().set_ranks(static_cast<std::uint32_t>(ranks_));
        spec().set_nodes_min(static_cast<std::uint32_t>(nodes_min_));
        spec().set_nodes_max(static_cast<std::uint32_t>(nodes_max_));
        spec().set_ranks_per_node(static_cast<std::uint32_t>(per_node_));
        spec().set_cpus_per_rank(static_cast<std::uint32_t>(cpus));
        spec().set_exclusive(options_.has("exclusive"));
        if (const Given* const who = options_.find("exclusive"); who != nullptr && !who->value.empty()) {
            not_supported(*who, "'" + who->value + "'", "the nodes are the job's alone");
        }
        return {};
    }

    // An elastic gang grows by whole groups.
    Result<void> take_segment() {
        const Given* const given = options_.find("segment");
        if (given == nullptr) return {};
        const auto group = whole_number(*given, 1, kMostRanks);
        if (!group) return group.error();
        if (nodes_min_ == 0) {
            return Error{Code::InvalidArgument,
                         fmt::format("{}: groups of {} nodes need --nodes with a multiple of {}", shown(*given), *group, *group)};
        }
        for (const std::int64_t nodes : {nodes_min_, nodes_max_}) {
            if (nodes % *group == 0) continue;
            const std::int64_t above = nodes - nodes % *group + *group;
            return Error{Code::InvalidArgument,
                         fmt::format("{}: {} node{} cannot be made of groups of {}: ask for --nodes {}{}", shown(*given), nodes,
                                     nodes == 1 ? "" : "s", *group, above > *group ? fmt::format("{} or ", above - *group) : "", above)};
        }
        if (is_elastic_ && nodes_step_ % *group != 0) {
            return Error{Code::InvalidArgument,
                         fmt::format("{}: steps of {} nodes are not whole groups of {}: write a step that is a multiple of {}, or none",
                                     shown(*given), nodes_step_, *group, *group)};
        }
        if (is_elastic_ && nodes_step_ == 0 && *group > 1) nodes_step_ = *group;
        spec().set_segment(static_cast<std::uint32_t>(*group));
        return {};
    }

    Result<void> count_ranks() {
        if (is_elastic_) {
            per_node_ = std::max<std::int64_t>(1, per_node_);
            ranks_ = nodes_max_ * per_node_;
            return {};
        }
        ranks_ = std::max<std::int64_t>(1, nodes_min_) * std::max<std::int64_t>(1, per_node_);
        const Given* const total = options_.find("gpus");
        const Given* const each = options_.find("gpus-per-task");
        if (total == nullptr || each == nullptr || per_node_ > 0) return {};
        const auto all = parse_cards(*total);
        const auto one = parse_cards(*each);
        if (!all) return all.error();
        if (!one) return one.error();
        if (one->count == 0 || all->count % one->count != 0 || all->count == 0) {
            return Error{Code::InvalidArgument, fmt::format("{}: {} cards do not divide into ranks of {}",
                                                            shown(*total), all->count, one->count)};
        }
        ranks_ = all->count / one->count;
        return {};
    }

    // How many ranks share a node's cards.
    std::int64_t ranks_on_a_node() const {
        if (per_node_ > 0) return std::min(per_node_, ranks_);
        const std::int64_t nodes = std::max<std::int64_t>(1, nodes_min_);
        return (ranks_ + nodes - 1) / nodes;
    }

    Error does_not_divide(const Given& given, std::int64_t cards, std::int64_t ranks, const char* whose) {
        return {Code::InvalidArgument,
                fmt::format("{}: {} card{} cannot be divided among {} rank{} {}, and a card is never shared: ask for "
                            "{}, or set --cards-per-rank",
                            shown(given), cards, cards == 1 ? "" : "s", ranks, ranks == 1 ? "" : "s", whose,
                            ranks * std::max<std::int64_t>(1, (cards + ranks - 1) / ranks))};
    }

    Error total_of_elastic(const Given& given) {
        return {Code::InvalidArgument,
                fmt::format("{}: '{}' is a total, but the gang has {} to {} nodes: ask by --gpus-per-node or --gpus-per-task", shown(given),
                            given.value, nodes_min_, nodes_max_)};
    }

    // All options that name a type name the same one, in whichever letters.
    Result<void> take_model(const Given& given, const std::string& type) {
        if (type.empty()) return {};
        if (spec().card_model().empty()) {
            spec().set_card_model(type);
            model_by_ = shown(given);
        }
        if (same_letters(spec().card_model(), type)) return {};
        return Error{Code::InvalidArgument,
                     fmt::format("{}: the type '{}' is not '{}' of {}: a gang has cards of one type, leave one out", shown(given), type,
                                 spec().card_model(), model_by_)};
    }

    // Of so many cards, which the option gives to the gang, a node or a rank.
    Result<std::int64_t> share_of_a_rank(const Given& given, std::int64_t cards) {
        const bool is_total = given.name == "gpus";
        if (is_total && is_elastic_) return total_of_elastic(given);
        const bool is_of_node = given.name == "gpus-per-node" || given.name == "gres";
        const std::int64_t ranks = is_total ? ranks_ : is_of_node ? ranks_on_a_node() : 1;
        if (cards % ranks != 0) return does_not_divide(given, cards, ranks, is_total ? "of the gang" : "of a node");
        return cards / ranks;
    }

    Result<void> take_cards() {
        std::optional<std::int64_t> each;
        std::string by;
        for (const char* const name : {"cards-per-rank", "gpus-per-task", "gpus-per-node", "gres", "gpus"}) {
            const Given* const given = options_.find(name);
            if (given == nullptr) continue;
            const auto cards = parse_cards(*given);
            if (!cards) return cards.error();
            for (const std::string& other : cards->other) {
                not_supported(*given, "'" + other + "'", "only cards (gpu) are counted");
            }
            if (const auto model = take_model(*given, cards->type); !model) return model.error();
            if (!cards->other.empty() && cards->count == 0) continue;
            const auto mine = share_of_a_rank(*given, cards->count);
            if (!mine) return mine.error();
            if (each && *each != *mine) {
                return Error{Code::InvalidArgument,
                             fmt::format("--{} gives each of the {} ranks {} cards, but {} gives it {}: leave one out",
                                         by, ranks_, *each, shown(*given), *mine)};
            }
            if (!each) by = name;
            each = *mine;
        }
        if (each == 0) spec().clear_card_model();
        spec().set_cards_given(each.has_value());
        spec().set_cards_per_rank(static_cast<std::uint32_t>(each.value_or(1)));
        return {};
    }

    // "30", "2.5", "500ms", "30s", "5m", "1h" in milliseconds.
    Result<void> span(const char* name, std::uint64_t& out_ms) {
        const Given* const given = options_.find(name);
        if (given == nullptr) return {};
        double value = 0;
        const char* const end = given->value.data() + given->value.size();
        const auto parsed = std::from_chars(given->value.data(), end, value);
        const std::string_view unit(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
        double factor = 0;
        if (unit.empty() || unit == "s") factor = 1000;
        if (unit == "ms") factor = 1;
        if (unit == "m") factor = 60'000;
        if (unit == "h") factor = 3'600'000;
        if (parsed.ec != std::errc() || factor == 0 || !(value >= 0) || value * factor > 1e12) {
            return Error{Code::InvalidArgument,
                         fmt::format("{}: '{}' is not a span of time: write seconds, or a number with ms, s, m or h",
                                     shown(*given), given->value)};
        }
        out_ms = static_cast<std::uint64_t>(std::llround(value * factor));
        return {};
    }

    Result<void> take_limits() {
        if (const Given* const given = options_.find("time"); given != nullptr) {
            const auto limit = parse_time_limit(given->value);
            if (!limit) {
                return Error{Code::InvalidArgument, fmt::format("{}: {}", shown(*given), limit.error().message)};
            }
            spec().set_time_limit_s(static_cast<std::uint64_t>(limit->count()));
        }
        if (const Given* const given = options_.find("time-min"); given != nullptr) {
            const auto least = parse_time_limit(given->value);
            if (!least || least->count() == 0 || static_cast<std::uint64_t>(least->count()) > spec().time_limit_s()) {
                return Error{Code::InvalidArgument,
                             fmt::format("{}: {}", shown(*given),
                                         least ? "give a --time that is longer, and more than zero here" : least.error().message)};
            }
            spec().set_time_min_s(static_cast<std::uint64_t>(least->count()));
        }
        if (const Given* const given = options_.find("mem"); given != nullptr) {
            const auto memory = parse_memory_mib(given->value);
            if (!memory) {
                return Error{Code::InvalidArgument, fmt::format("{}: {}", shown(*given), memory.error().message)};
            }
            spec().set_memory_mib_per_node(*memory);
        }
        std::uint64_t progress_ms = 0, grace_ms = 0;
        std::int64_t retries = 0;
        for (const auto& done : {span("progress-timeout", progress_ms), span("grace", grace_ms),
                                 number("retries", 0, 1'000'000, retries)}) {
            if (!done) return done.error();
        }
        spec().set_progress_timeout_ms(progress_ms);
        spec().set_grace_ms(grace_ms);
        spec().set_user_retries(static_cast<std::uint32_t>(retries));
        return {};
    }

    std::string absolute(const std::string& path) const {
        if (path.empty() || path.front() == '/') return path;
        return (here_.cwd == "/" ? "" : here_.cwd) + "/" + path;
    }

    Result<void> take_files() {
        spec().set_cwd(options_.has("chdir") ? absolute(options_.text("chdir")) : here_.cwd);
        spec().set_output(options_.text("output"));
        spec().set_error(options_.text("error"));
        spec().set_checkpoint_folder(absolute(options_.text("checkpoint-dir")));
        spec().set_comment(options_.text("comment"));
        if (const Given* const given = options_.find("open-mode"); given != nullptr) {
            if (given->value != "append" && given->value != "truncate") {
                return Error{Code::InvalidArgument, fmt::format("{}: '{}' is not a mode: write append or truncate",
                                                                shown(*given), given->value)};
            }
            spec().set_append_output(given->value == "append");
        }
        return {};
    }

    Result<void> take_retention() {
        proto::Retention asked;
        if (const Given* const given = options_.find("keep-last"); given != nullptr) {
            const auto last = whole_number(*given, kLeastLast, kMostKept);
            if (!last) return Error{Code::InvalidArgument, last.error().message + "; two at least stay, since the newest may turn out damaged"};
            asked.set_last(static_cast<std::uint32_t>(*last));
        }
        std::int64_t every = 0, best = 0;
        for (const auto& done : {number("keep-every", 0, static_cast<std::int64_t>(kMostEvery), every), number("keep-best", 0, kMostKept, best)}) {
            if (!done) return done.error();
        }
        asked.set_every(static_cast<std::uint64_t>(every));
        asked.set_best(static_cast<std::uint32_t>(best));
        if (const Given* const given = options_.find("best-is"); given != nullptr) {
            if (given->value != "lower" && given->value != "higher") {
                return Error{Code::InvalidArgument, fmt::format("{}: '{}' is neither lower nor higher", shown(*given), given->value)};
            }
            asked.set_higher_is_better(given->value == "higher");
        }
        if (asked.ByteSizeLong() != 0) *spec().mutable_retention() = asked;
        return {};
    }

    Result<void> take_place() {
        std::int64_t spares = 0;
        if (const auto done = number("spares", 0, 1024, spares); !done) return done.error();
        spec().set_spares(static_cast<std::uint32_t>(spares));
        if (const Given* const given = options_.find("constraint"); given != nullptr) {
            if (const auto good = check_constraint(*given); !good) return good.error();
            spec().set_constraint(given->value);
        }
        if (const Given* const given = options_.find("reservation"); given != nullptr) {
            if (const auto good = check_reservation_name(shown(*given), given->value); !good) return good.error();
            spec().set_reservation(given->value);
        }
        spec().set_spread(options_.has("spread-job"));
        for (const bool only : {true, false}) {
            const Given* const given = options_.find(only ? "nodelist" : "exclude");
            if (given == nullptr) continue;
            const auto names = expand_node_list(given->value);
            if (!names || names->empty() || given->value.find('/') != std::string::npos) {
                return Error{Code::InvalidArgument,
                             fmt::format("{}: {}", shown(*given),
                                         names ? fmt::format("'{}' is not a list of nodes: write n1,n[3-5]", given->value)
                                               : names.error().message)};
            }
            for (const std::string& name : *names) {
                if (only) {
                    spec().add_only_nodes(name);
                } else {
                    spec().add_exclude_nodes(name);
                }
            }
        }
        return {};
    }

    Result<void> take_order() {
        std::int64_t priority = 0, nice = 0;
        constexpr std::int64_t kMost = 1'000'000'000;
        if (const auto done = number("priority", -kMost, kMost, priority); !done) return done.error();
        if (const Given* const given = options_.find("nice"); given != nullptr) {
            nice = 100;
            if (!given->value.empty()) {
                const auto value = whole_number(*given, -kMost, kMost);
                if (!value) return value.error();
                nice = *value;
            }
        }
        spec().set_priority(static_cast<std::int32_t>(priority - nice));
        spec().set_hold(options_.has("hold"));
        spec().set_no_requeue(options_.has("no-requeue"));
        spec().set_dependency(options_.text("dependency"));
        for (const char* const name : {"begin", "deadline"}) {
            const Given* const given = options_.find(name);
            if (given == nullptr) continue;
            const auto when = parse_when(given->value, here_.now_unix_s);
            if (!when) return Error{Code::InvalidArgument, fmt::format("{}: {}", shown(*given), when.error().message)};
            if (std::string_view(name) == "begin") {
                spec().set_begin_unix_ms(*when * 1000);
            } else {
                spec().set_deadline_unix_ms(*when * 1000);
            }
        }
        return take_switches();
    }

    // "1", "1@30", "1@01:00:00"
    Result<void> take_switches() {
        const Given* const given = options_.find("switches");
        if (given == nullptr) return {};
        Given count = *given;
        const std::size_t at = given->value.find('@');
        count.value = given->value.substr(0, at);
        const auto switches = whole_number(count, 1, 1'000'000);
        if (!switches) return switches.error();
        if (at != std::string::npos) {
            const auto wait = parse_time_limit(given->value.substr(at + 1));
            if (!wait) return Error{Code::InvalidArgument, fmt::format("{}: {}", shown(*given), wait.error().message)};
            spec().set_within_wait_s(static_cast<std::uint64_t>(wait->count()));
        }
        if (*switches == 1) {
            spec().set_within("rack");
        } else {
            not_supported(*given, fmt::format("{} switches", *switches), "the gang takes as few racks as it can");
        }
        return {};
    }

    Result<void> take_array() {
        const Given* const given = options_.find("array");
        if (given == nullptr) return {};
        const auto array = parse_array_tasks(*given);
        if (!array) return array.error();
        for (const std::uint32_t task : array->tasks) spec().add_array_tasks(task);
        proto::ArrayElement& element = *spec().mutable_array();
        element.set_count(static_cast<std::uint32_t>(array->tasks.size()));
        element.set_least(array->tasks.front());
        element.set_most(array->tasks.back());
        element.set_step(array->step);
        element.set_most_at_once(array->most_at_once);
        return {};
    }

    Result<void> take_environment() {
        auto environment = exported_environment(options_.text("export"), here_, built_.warnings);
        if (!environment) return environment.error();
        for (auto& [name, value] : *environment) {
            proto::Variable* const variable = spec().add_environment();
            variable->set_name(name);
            variable->set_value(std::move(value));
        }
        return {};
    }

    const JobOptions& options_;
    const Program& program_;
    const Surroundings& here_;
    BuiltSpec built_;
    std::int64_t ranks_ = 0;
    std::int64_t per_node_ = 0;
    std::int64_t nodes_min_ = 0;
    std::int64_t nodes_max_ = 0;
    std::int64_t nodes_step_ = 0;
    bool is_elastic_ = false;
    std::string model_by_;                   // the option that named the type of the cards
};

}  // namespace

Result<BuiltSpec> build_job_spec(const JobOptions& options, const Program& program, const Surroundings& here) {
    return Builder(options, program, here).build();
}

}  // namespace gangline::runner
