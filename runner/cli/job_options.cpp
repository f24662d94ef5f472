#include "runner/cli/job_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "base/text.h"

namespace gangline::runner {
namespace {

std::string variable_of(const std::string& option) {
    std::string name = "GANGLINE_";
    for (const char c : option) {
        name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    return name;
}

// What a flag's variable may say; sbatch takes any value as a yes.
bool says_no(const std::string& value) {
    return value == "0" || value == "no" || value == "false" || value == "off";
}

void add_variable(std::vector<Given>& given, const OptionInfo& option, const std::string& variable,
                  const Environment& environment) {
    const auto found = environment.find(variable);
    if (found == environment.end()) return;
    if (option.takes == Takes::Value && found->second.empty()) return;
    if (option.takes == Takes::Nothing && says_no(found->second)) return;
    const std::string value = option.takes == Takes::Nothing ? "" : found->second;
    if (option.alias_of.empty()) {
        given.push_back({option.name, value, "in " + variable});
    } else {
        given.push_back({option.alias_of, value, "in " + variable, option.name});
    }
}

// Set by the runner inside a job: they describe that job, not the next one.
const std::set<std::string>& variables_of_a_job() {
    static const std::set<std::string> names = {"GANGLINE_JOB_NAME", "GANGLINE_CHECKPOINT_DIR", "GANGLINE_KEEP_LAST", "GANGLINE_KEEP_EVERY", "GANGLINE_KEEP_BEST",
                                                "GANGLINE_BEST_IS"};
    return names;
}

// Read elsewhere, given to jobs (runner/shepherd/environment.cpp), or the test suite's own.
bool is_no_option_but_known(const std::string& variable) {
    static const std::set<std::string> names = {
        "GANGLINE_COORDINATOR", "GANGLINE_COORDINATOR_KEY", "GANGLINE_KEY", "GANGLINE_CONF", "GANGLINE_STATE", "GANGLINE_LOG",
        "GANGLINE_TIMING", "GANGLINE_MARK", "GANGLINE_JOB_ID", "GANGLINE_JOB_NAME", "GANGLINE_ATTEMPT", "GANGLINE_RESTART_COUNT",
        "GANGLINE_NODE", "GANGLINE_ARRAY_TASK", "GANGLINE_CHECKPOINT_DIR", "GANGLINE_CHECKPOINT_RECYCLE", "GANGLINE_CHECKPOINT_VIEW",
        "GANGLINE_CHECKPOINT_SCRUB", "GANGLINE_CHECKPOINT_WRITE_MIB_S", "GANGLINE_CHECKPOINT_MEMORY_MIB", "GANGLINE_CHECKPOINT_TIERS", "GANGLINE_CHECKPOINT_REPLICAS", "GANGLINE_CHECKPOINT_COPY", "GANGLINE_MTBF_S", "GANGLINE_STEP_SOCKET", "GANGLINE_WORKER_SOCKET", "GANGLINE_PROGRESS",
        "GANGLINE_RESEED", "GANGLINE_BIN", "GANGLINE_PROGRAMS", "GANGLINE_SOAK", "GANGLINE_E2E"};
    return names.contains(variable) || variable.starts_with("GANGLINE_RESTORE_");
}

// Pairs of which the later one wins.
std::string opposite_of(const std::string& name) {
    if (name == "requeue") return "no-requeue";
    if (name == "no-requeue") return "requeue";
    return {};
}

Error bad_cards(const Given& given, const std::string& part) {
    return {Code::InvalidArgument, fmt::format("{}: '{}' is not a number of cards: write {}", shown(given), part,
                                               given.name == "gres" ? "gpu:N or gpu:TYPE:N" : "N or TYPE:N")};
}

bool is_number(const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

std::optional<std::uint32_t> count_of(const std::string& text) {
    std::uint32_t count = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), count);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || count > 65536) return std::nullopt;
    return count;
}

Result<void> name_type(Cards& cards, const Given& given, const std::string& type) {
    if (!cards.type.empty() && !same_letters(cards.type, type)) {
        return Error{Code::InvalidArgument,
                     fmt::format("{}: '{}' names two types of cards, {} and {}: a gang has cards of one type, leave one out",
                                 shown(given), given.value, cards.type, type)};
    }
    cards.type = type;
    return {};
}

}  // namespace

bool same_letters(std::string_view a, std::string_view b) {
    const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

Result<std::vector<Given>> job_options_of_script(const ScriptFile& script, const std::string& file_name) {
    std::vector<Given> all;
    for (const Directive& directive : script.directives) {
        const std::string where = fmt::format("in {} line {}", file_name, directive.line);
        auto parsed = parse_words(job_option_table(), directive.words, WordsStop::AtFirstWord, where);
        if (!parsed) return parsed.error();
        if (!parsed->words.empty()) {
            return Error{Code::InvalidArgument,
                         fmt::format("'{}' ({}) is not an option: options begin with - or --, a remark with #",
                                     parsed->words.front(), where)};
        }
        all.insert(all.end(), parsed->given.begin(), parsed->given.end());
    }
    return all;
}

std::vector<Given> job_options_of_environment(const Environment& environment) {
    std::vector<Given> given;
    const bool inside_a_job = environment.contains("GANGLINE_MARK");
    for (const OptionInfo& option : job_option_table()) {  // later ones win: ours stand behind sbatch's
        if (!option.sbatch_variable.empty()) add_variable(given, option, option.sbatch_variable, environment);
    }
    for (const OptionInfo& option : job_option_table()) {
        const std::string variable = variable_of(option.name);
        if (inside_a_job && variables_of_a_job().contains(variable)) continue;
        add_variable(given, option, variable, environment);
    }
    return given;
}

std::string unknown_variables(const Environment& environment) {
    std::set<std::string> options;
    std::vector<std::string> suggested = {"GANGLINE_COORDINATOR", "GANGLINE_COORDINATOR_KEY", "GANGLINE_KEY", "GANGLINE_CONF",
                                          "GANGLINE_STATE", "GANGLINE_LOG"};
    for (const OptionInfo& option : job_option_table()) {
        options.insert(variable_of(option.name));
        if (option.supported) suggested.push_back(variable_of(option.name));
    }
    const std::size_t prefix = std::string_view("GANGLINE_").size();
    for (std::string& name : suggested) name.erase(0, prefix);
    std::vector<std::string> unknown;
    for (const auto& [name, value] : environment) {
        if (!name.starts_with("GANGLINE_") || options.contains(name) || is_no_option_but_known(name)) continue;
        const std::string near = nearest_name(suggested, std::string_view(name).substr(prefix));
        unknown.push_back(near.empty() ? name : fmt::format("{} (did you mean GANGLINE_{}?)", name, near));
    }
    if (unknown.empty()) return {};
    return fmt::format("no option of gangline, without effect: {}", fmt::join(unknown, ", "));
}

const Given* JobOptions::find(const std::string& name) const {
    const auto found = chosen.find(name);
    return found == chosen.end() ? nullptr : &found->second;
}

std::string JobOptions::text(const std::string& name) const {
    const Given* given = find(name);
    return given == nullptr ? "" : given->value;
}

JobOptions merge_job_options(const std::vector<std::vector<Given>>& sources) {
    JobOptions merged;
    for (const std::vector<Given>& source : sources) {
        std::map<std::string, Given> last;
        for (const Given& given : source) {
            last.erase(opposite_of(given.name));
            last[given.name] = given;
        }
        for (auto& [name, given] : last) {
            if (!merged.chosen.contains(opposite_of(name))) merged.chosen.emplace(name, given);
        }
    }
    return merged;
}

Unsupported unsupported_options(const JobOptions& options) {
    Unsupported result;
    for (const auto& [name, given] : options.chosen) {
        const OptionInfo* option = find_option(job_option_table(), name);
        if (option == nullptr || option->supported) continue;
        const std::string written = given.value.empty() ? "--" + name : fmt::format("--{}={}", name, given.value);
        result.warnings.push_back(fmt::format("{}{} is not supported: {}", written,
                                              given.where.empty() ? "" : fmt::format(" ({})", given.where),
                                              option->words));
        result.options.push_back(written);
    }
    return result;
}

Result<Cards> parse_cards(const Given& given) {
    const bool is_gres = given.name == "gres";
    Cards cards;
    if (is_gres && (given.value == "none" || given.value == "NONE")) return cards;
    for (const std::string& part : split(given.value, ',')) {
        if (part.empty()) return bad_cards(given, part);
        std::vector<std::string> fields = split(part.substr(0, part.find('(')), ':');   // gpu:2(S:0-1)
        if (is_gres && fields.front() != "gpu") {
            cards.other.push_back(part);
            continue;
        }
        if (is_gres) fields.erase(fields.begin());
        if (is_gres && fields.empty()) fields = {"1"};
        if (is_gres && fields.size() == 1 && !fields[0].empty() && !is_number(fields[0])) fields.emplace_back("1");   // gpu:a100
        const auto count = count_of(fields.back());
        if (!count || fields.size() > 2 || fields.front().empty()) return bad_cards(given, part);
        if (fields.size() == 2) {
            if (const auto named = name_type(cards, given, fields.front()); !named) return named.error();
        }
        cards.count += *count;
    }
    return cards;
}

}  // namespace gangline::runner
