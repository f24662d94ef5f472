// cluster.toml is read in two passes. The first turns each table into a value and checks what one table alone can tell (keys,
// types, ranges, names); the second checks what only the whole can: card models, parents, cycles, quotas. Of several mistakes
// found by one pass, the one nearest the top of the file is reported.

#include "coordinator/schedule/fleet.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

// toml++ 3.3 asserts (and, with NDEBUG under clang, assumes) things of the text that its next lines refuse properly, such as a
// key's first character in "[\x]". A wrong file must be an error, so these assertions are empty in every build.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expr) static_assert(true)
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

#include "base/text.h"

namespace gangline::coordinator {
namespace {

using Line = toml::source_index;
using Words = std::vector<std::string>;

enum class Least { Zero, AboveZero };
enum class NameKind { Plain, User };  // User: '@' too

struct Section {
    const toml::table& table;
    std::string path;  // "cards.H100"
    Line line() const { return table.source().begin.line; }
    std::string of(std::string_view key) const { return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key); }
};

Line line_of(const toml::node& node) { return node.source().begin.line; }

// Quoted, of bounded length, printable.
std::string in_quotes(std::string_view text) {
    constexpr std::size_t kShown = 60;
    std::string shown = "\"";
    for (const char c : text.substr(0, kShown)) shown += c >= ' ' && c <= '~' ? c : '?';
    return shown + (text.size() > kShown ? "...\"" : "\"");
}

// A node as a person would name it: the value, or for what has parts the kind.
std::string shown(const toml::node& node) {
    if (const auto* text = node.as_string()) return in_quotes(text->get());
    if (const auto* whole = node.as_integer()) return fmt::format("{}", whole->get());
    if (const auto* real = node.as_floating_point()) return fmt::format("{}", real->get());
    if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
    if (node.is_table()) return "a table";
    if (node.is_array()) return "an array";
    return "a date or a time";
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < a.size(); ++i) {
        std::size_t diagonal = std::exchange(row[0], i + 1);
        for (std::size_t j = 0; j < b.size(); ++j) {
            const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
        }
    }
    return row.back();
}

// "; did you mean "x"?" for the nearest known word at most two edits away, else nothing.
std::string suggestion(std::string_view word, const Words& known) {
    constexpr std::size_t kNear = 2;
    constexpr std::size_t kLongestKnown = 256;
    const std::string* best = nullptr;
    std::size_t least = kNear + 1;
    for (const std::string& candidate : known) {
        if (word.size() > kLongestKnown || candidate.size() <= kNear) continue;
        const std::size_t distance = edit_distance(word, candidate);
        if (distance < least) {
            least = distance;
            best = &candidate;
        }
    }
    return best == nullptr ? "" : fmt::format("; did you mean {}?", in_quotes(*best));
}

std::string listed(const Words& words) { return words.empty() ? "none" : fmt::format("{}", fmt::join(words, ", ")); }

template <class Value>
Words keys_of(const std::map<std::string, Value>& map) {
    Words keys;
    for (const auto& entry : map) keys.push_back(entry.first);
    return keys;
}

bool is_name(std::string_view text, NameKind kind) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' || c == '-' ||
               (c == '@' && kind == NameKind::User);
    });
}

std::string bare_or_quoted(std::string_view key) { return is_name(key, NameKind::Plain) ? std::string(key) : in_quotes(key); }

// The first line with more dots in a row of words than any key here has parts; 0: none. A dotted key nests one table a dot,
// and tables are freed by recursion, so their depth is bounded before parsing.
Line line_nested_too_deep(std::string_view toml) {
    constexpr int kMostDots = 32;
    int dots = 0;
    Line line = 1;
    char before = '\n';
    for (const char c : toml) {
        if (c == '\n') ++line;
        if (c == '.' && before != '.' && ++dots > kMostDots) return line;
        if (std::string_view("\n=,[]{}").find(c) != std::string_view::npos) dots = 0;
        before = c;
    }
    return 0;
}

class FleetReader {
  public:
    explicit FleetReader(const toml::table& root) : root_(root) {}

    Result<Fleet> read() {
        read_values();
        if (!wrong_) check_whole();
        if (wrong_) return Error{Code::InvalidArgument, fmt::format("line {}: {}", wrong_->line, wrong_->why)};
        return std::move(fleet_);
    }

  private:
    struct Wrong {
        Line line;
        std::string why;
    };
    struct Use {       // a card model named by a rack or by nodes
        std::string model;
        std::string key;
        Line line;
    };
    struct First {     // where a name was seen first
        std::string where;
        Line line;
    };

    // Keeps the mistake nearest the top of the file.
    void fail(Line line, std::string why) {
        if (!wrong_ || line < wrong_->line) wrong_ = Wrong{line, std::move(why)};
    }

    // --- values of one key: absent gives nothing; a mistake is noted and gives nothing ---

    // A required key is asked for only where no key is unknown: the unknown one may be that very key, misspelt.
    void check_keys(const Section& at, const Words& allowed, std::string_view required = "", std::string_view example = "") {
        bool all_known = true;
        for (const auto& [key, node] : at.table) {
            if (std::find(allowed.begin(), allowed.end(), key.str()) != allowed.end()) continue;
            all_known = false;
            fail(key.source().begin.line, fmt::format("{}: unknown key; allowed here: {}{}", at.of(bare_or_quoted(key.str())),
                                                      listed(allowed), suggestion(key.str(), allowed)));
        }
        if (!all_known || required.empty() || at.table.contains(required)) return;
        fail(at.line(), fmt::format("{}: {} is missing; write {} = {}", at.path, required, required, example));
    }

    bool check_name(Line line, const std::string& key, std::string_view name, NameKind kind = NameKind::Plain) {
        if (is_name(name, kind)) return true;
        const char* allowed = "letters, digits, '.', '_' and '-'";
        if (kind == NameKind::User) allowed = "letters, digits, '.', '_', '-' and '@'";
        fail(line, name.empty() ? fmt::format("{}: the name is empty; write one of {}", key, allowed)
                                : fmt::format("{}: {} is not a name; allowed are {}", key, in_quotes(name), allowed));
        return false;
    }

    std::optional<std::string> text(const Section& at, std::string_view key) {
        const toml::node* node = at.table.get(key);
        if (node == nullptr) return std::nullopt;
        if (const auto* value = node->as_string()) return value->get();
        fail(line_of(*node), fmt::format("{}: {} is not text; write {} = \"...\"", at.of(key), shown(*node), key));
        return std::nullopt;
    }

    std::string name(const Section& at, std::string_view key) {
        const auto value = text(at, key);
        return value && check_name(line_of(*at.table.get(key)), at.of(key), *value) ? *value : std::string();
    }

    std::optional<double> number(const toml::node& node, const std::string& key, Least least) {
        double value = std::numeric_limits<double>::quiet_NaN();
        if (const auto* real = node.as_floating_point()) value = real->get();
        if (const auto* whole = node.as_integer()) value = static_cast<double>(whole->get());
        if (std::isfinite(value) && (value > 0 || (least == Least::Zero && value == 0))) return value;
        fail(line_of(node), fmt::format("{}: {} is refused; write a finite number {}", key, shown(node),
                                        least == Least::Zero ? "that is not negative" : "above 0"));
        return std::nullopt;
    }

    std::optional<double> number(const Section& at, std::string_view key, Least least) {
        const toml::node* node = at.table.get(key);
        return node == nullptr ? std::nullopt : number(*node, at.of(key), least);
    }

    std::optional<std::uint64_t> count(const Section& at, std::string_view key) {
        const toml::node* node = at.table.get(key);
        if (node == nullptr) return std::nullopt;
        const auto* whole = node->as_integer();
        if (whole != nullptr && whole->get() >= 0) return static_cast<std::uint64_t>(whole->get());
        fail(line_of(*node), fmt::format("{}: {} is refused; write a whole number that is not negative", at.of(key),
                                         shown(*node)));
        return std::nullopt;
    }

    // Calls `each(name, line)` for each well-formed name of an array.
    template <class Each>
    void each_name(const Section& at, std::string_view key, NameKind kind, Each each) {
        const toml::node* node = at.table.get(key);
        if (node == nullptr) return;
        const toml::array* array = node->as_array();
        if (array == nullptr) {
            fail(line_of(*node), fmt::format("{}: {} is not an array; write {} = [\"...\"]", at.of(key), shown(*node), key));
            return;
        }
        for (const toml::node& element : *array) {
            const auto* value = element.as_string();
            if (value == nullptr) {
                fail(line_of(element), fmt::format("{}: {} is not text; write {} = [\"...\"]", at.of(key), shown(element), key));
            } else if (check_name(line_of(element), at.of(key), value->get(), kind)) {
                each(value->get(), line_of(element));
            }
        }
    }

    // --- tables ---

    // Calls `each(section, name)` for each [key.name].
    template <class Each>
    void each_named_table(std::string_view key, Each each) {
        const toml::node* node = root_.get(key);
        if (node == nullptr) return;
        const toml::table* tables = node->as_table();
        if (tables == nullptr) {
            fail(line_of(*node), fmt::format("{}: {} is not a table; write [{}.NAME]", key, shown(*node), key));
            return;
        }
        for (const auto& [name, value] : *tables) {
            const std::string path = fmt::format("{}.{}", key, bare_or_quoted(name.str()));
            check_name(name.source().begin.line, path, name.str());
            if (const toml::table* table = value.as_table()) {
                each(Section{*table, path}, std::string(name.str()));
            } else {
                fail(line_of(value), fmt::format("{}: {} is not a table; write [{}]", path, shown(value), path));
            }
        }
    }

    // Calls `each(section)` for each [[key]].
    template <class Each>
    void each_table(std::string_view key, Each each) {
        const toml::node* node = root_.get(key);
        if (node == nullptr) return;
        const toml::array* array = node->as_array();
        if (array == nullptr) {
            fail(line_of(*node), fmt::format("{}: {} is not an array of tables; write [[{}]]", key, shown(*node), key));
            return;
        }
        for (const toml::node& element : *array) {
            if (const toml::table* table = element.as_table()) {
                each(Section{*table, std::string(key)});
            } else {
                fail(line_of(element), fmt::format("{}: {} is not a table; write [[{}]]", key, shown(element), key));
            }
        }
    }

    void read_values() {
        const Section root{root_, ""};
        check_keys(root, {"cards", "currency", "nodes", "rack", "teams"});
        if (root_.contains("currency")) fleet_.currency = name(root, "currency");
        each_named_table("cards", [&](const Section& at, const std::string& name) { read_card_model(at, name); });
        each_table("rack", [&](const Section& at) { read_rack(at); });
        each_table("nodes", [&](const Section& at) { read_loose_nodes(at); });
        each_named_table("teams", [&](const Section& at, const std::string& name) { read_team(at, name); });
    }

    void read_card_model(const Section& at, const std::string& name) {
        check_keys(at, {"billing", "memory_mib", "peak_flops", "price_per_hour"});
        CardModel model;
        model.name = name;
        model.memory_mib = count(at, "memory_mib").value_or(0);
        model.price_per_hour = number(at, "price_per_hour", Least::Zero).value_or(0);
        if (const auto billing = text(at, "billing")) {
            if (*billing == "node") {
                model.billing = Billing::Node;
            } else if (*billing != "card") {
                fail(line_of(*at.table.get("billing")),
                     fmt::format("{}: {} is refused; write \"card\" or \"node\"", at.of("billing"), in_quotes(*billing)));
            }
        }
        if (const toml::node* peak = at.table.get("peak_flops")) {
            if (const toml::table* precisions = peak->as_table()) {
                read_peak_flops({*precisions, at.of("peak_flops")}, model);
            } else {
                fail(line_of(*peak), fmt::format("{}: {} is not a table; write peak_flops = {{ bf16 = 989e12 }}",
                                                 at.of("peak_flops"), shown(*peak)));
            }
        }
        fleet_.models.emplace(name, std::move(model));
    }

    void read_peak_flops(const Section& at, CardModel& model) {
        for (const auto& [precision, value] : at.table) {
            if (!check_name(precision.source().begin.line, at.path, precision.str())) continue;
            if (const auto flops = number(value, at.of(precision.str()), Least::Zero)) {
                model.peak_flops.emplace(precision.str(), *flops);
            }
        }
    }

    void read_rack(const Section& at) {
        const Words allowed{"block", "cards", "features", "name", "nodes"};
        check_keys(at, allowed, "name", "\"r1\"");
        check_keys(at, allowed, "nodes", "\"n[001-016]\"");
        const DescribedNode described{.name = "", .block = name(at, "block"), .rack = name(at, "name"), .card_model = cards(at),
                                      .features = features(at)};
        add_nodes(at, "nodes", described);
        const bool is_block_refused = described.block.empty() && at.table.contains("block");
        if (described.rack.empty() || is_block_refused) return;
        const auto [first, is_new] = rack_blocks_.try_emplace(described.rack, First{described.block, at.line()});
        if (is_new || first->second.where == described.block) return;
        const auto in_words = [](const std::string& block) { return block.empty() ? "no block" : "block " + in_quotes(block); };
        fail(at.line(), fmt::format("rack.block: rack {} stands in {}, and on line {} in {}; a rack stands in one block",
                                    in_quotes(described.rack), in_words(described.block), first->second.line,
                                    in_words(first->second.where)));
    }

    void read_loose_nodes(const Section& at) {
        check_keys(at, {"cards", "features", "names"}, "names", "\"m[1-4]\"");
        const DescribedNode described{.name = "", .block = "", .rack = "", .card_model = cards(at), .features = features(at)};
        add_nodes(at, "names", described);
    }

    std::string cards(const Section& at) {
        std::string model = name(at, "cards");
        if (!model.empty()) uses_.push_back({model, at.of("cards"), line_of(*at.table.get("cards"))});
        return model;
    }

    Words features(const Section& at) {
        Words features;
        each_name(at, "features", NameKind::Plain, [&](const std::string& feature, Line) { features.push_back(feature); });
        return features;
    }

    void add_nodes(const Section& at, std::string_view key, const DescribedNode& described) {
        const auto list = text(at, key);
        if (!list) return;
        const Line line = line_of(*at.table.get(key));
        auto names = expand_node_list(*list);
        if (names && names->empty()) names = Error{Code::InvalidArgument, "no name is given: write for example n[1-4]"};
        if (!names) {
            fail(line, fmt::format("{}: {}", at.of(key), names.error().message));
            return;
        }
        for (const std::string& name : *names) {
            const auto [first, is_new] = node_lines_.try_emplace(name, line);
            if (is_new) {
                fleet_.nodes.emplace(name, described).first->second.name = name;
            } else {
                fail(line, fmt::format("{}: node {} is described twice, first on line {}; keep one", at.of(key), in_quotes(name),
                                       first->second));
            }
        }
    }

    void read_team(const Section& at, const std::string& name) {
        check_keys(at, {"most_cards", "parent", "quota_cards", "share", "users"});
        Team team{.name = name, .parent = this->name(at, "parent"), .users = {}, .quota_cards = count(at, "quota_cards"),
                  .most_cards = count(at, "most_cards"), .share = number(at, "share", Least::AboveZero).value_or(1)};
        each_name(at, "users", NameKind::User, [&](const std::string& user, Line line) {
            const auto [first, is_new] = user_teams_.try_emplace(user, First{name, line});
            if (is_new) {
                team.users.push_back(user);
            } else {
                fail(std::max(line, first->second.line),
                     fmt::format("{}: user {} is in {} (line {}) and in {} (line {}); a user is named once", at.of("users"),
                                 in_quotes(user), in_quotes(first->second.where), first->second.line, in_quotes(name), line));
            }
        });
        if (team.quota_cards && team.most_cards && *team.quota_cards > *team.most_cards) {
            fail(line_of(*at.table.get("quota_cards")),
                 fmt::format("{}: {} is above most_cards = {}; lower it or raise most_cards", at.of("quota_cards"),
                             *team.quota_cards, *team.most_cards));
        }
        fleet_.teams.emplace(name, std::move(team));
    }

    // --- the whole ---

    void check_whole() {
        const Words models = keys_of(fleet_.models);
        for (const Use& use : uses_) {
            if (fleet_.models.contains(use.model)) continue;
            fail(use.line, fmt::format("{}: {} is no card model; described are: {}{}; or describe it in [cards.{}]", use.key,
                                       in_quotes(use.model), listed(models), suggestion(use.model, models), use.model));
        }
        const Words teams = keys_of(fleet_.teams);
        for (const auto& [name, team] : fleet_.teams) {
            if (team.parent.empty() || fleet_.teams.contains(team.parent)) continue;
            fail(team_line(name, "parent"),
                 fmt::format("teams.{}.parent: {} is no team; teams are: {}{}; leave parent out to stand in the cluster itself",
                             name, in_quotes(team.parent), listed(teams), suggestion(team.parent, teams)));
        }
        if (!wrong_) check_tree();
    }

    Line team_line(const std::string& team, std::string_view key) const {
        return line_of(*root_.get("teams")->as_table()->get(team)->as_table()->get(key));
    }

    // From the leaves up, so that a team without a quota passes on what its children were promised. Teams that never become
    // leaves are the cycles.
    void check_tree() {
        std::map<std::string, std::size_t> children;
        for (const auto& [name, team] : fleet_.teams) ++children[team.parent];
        Words ready;
        for (const auto& [name, team] : fleet_.teams) {
            if (!children.contains(name)) ready.push_back(name);
        }
        std::map<std::string, std::uint64_t> promised;  // to the children of the team, together
        std::map<std::string, const Team*> left;
        for (const auto& [name, team] : fleet_.teams) left.emplace(name, &team);
        while (!ready.empty()) {
            const Team& team = *left.at(ready.back());
            ready.pop_back();
            left.erase(team.name);
            check_quota(team, promised[team.name]);
            std::uint64_t& sum = promised[team.parent];
            const std::uint64_t own = team.quota_cards.value_or(promised[team.name]);
            sum = own > std::numeric_limits<std::uint64_t>::max() - sum ? std::numeric_limits<std::uint64_t>::max() : sum + own;
            if (--children[team.parent] == 0 && !team.parent.empty()) ready.push_back(team.parent);
        }
        if (!left.empty()) fail_cycle(*left.begin()->second);
    }

    void check_quota(const Team& team, std::uint64_t promised) {
        if (!team.quota_cards || promised <= *team.quota_cards) return;
        fail(team_line(team.name, "quota_cards"),
             fmt::format("teams.{}.quota_cards: {} is below the {} that its child teams have together; raise it or lower theirs",
                         team.name, *team.quota_cards, promised));
    }

    void fail_cycle(const Team& start) {
        std::string way = start.name;
        const Team* team = &start;
        do {
            team = &fleet_.teams.at(team->parent);
            way += " -> " + team->name;
        } while (team != &start);
        fail(team_line(start.name, "parent"),
             fmt::format("teams.{}.parent: teams are their own ancestors: {}; leave out the parent of one", start.name, way));
    }

    const toml::table& root_;
    Fleet fleet_;
    std::optional<Wrong> wrong_;
    std::vector<Use> uses_;
    std::map<std::string, First> rack_blocks_;
    std::map<std::string, Line> node_lines_;
    std::map<std::string, First> user_teams_;
};

}  // namespace

const Team* Fleet::team_of(const std::string& user) const {
    for (const auto& [name, team] : teams) {
        if (std::find(team.users.begin(), team.users.end(), user) != team.users.end()) return &team;
    }
    return nullptr;
}

Result<Fleet> parse_fleet(std::string_view toml) {
    if (const Line line = line_nested_too_deep(toml); line != 0) {
        return Error{Code::InvalidArgument, fmt::format("line {}: a key of more than 32 parts; no key here has over 4", line)};
    }
    // toml++ 3 runs into undefined behaviour on some characters beyond ASCII. They stand in comments only: no value here takes one.
    std::string ascii(toml);
    std::replace_if(ascii.begin(), ascii.end(), [](char c) { return (static_cast<unsigned char>(c) & 0x80) != 0; }, '?');
    const toml::parse_result parsed = toml::parse(ascii);
    if (!parsed) {
        const auto& error = parsed.error();
        return Error{Code::InvalidArgument, fmt::format("line {}, column {}: not TOML: {}", error.source().begin.line,
                                                        error.source().begin.column, error.description())};
    }
    return FleetReader(parsed.table()).read();
}

}  // namespace gangline::coordinator
