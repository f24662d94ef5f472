#include "runner/cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <sstream>
#include <utility>

namespace po = boost::program_options;

namespace gangline::runner {
namespace {

// Insertions, deletions, exchanges, and two neighbours swapped, one each.
std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 1; i <= a.size(); ++i) {
        before = std::exchange(last, row);
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
            const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
        }
    }
    return row[b.size()];
}

std::string behind(const std::string& where) { return where.empty() ? "" : fmt::format(" ({})", where); }

Error needs_value(const OptionInfo& option, const std::string& where) {
    return {Code::InvalidArgument, fmt::format("--{} needs a value: --{}={}{}", option.name, option.name,
                                               option.value_name, behind(where))};
}

// Reads the words one by one; each call of take_* uses up what belongs to one option.
class Walker {
  public:
    Walker(const OptionTable& table, const std::vector<std::string>& words, const std::string& where)
        : table_(table), words_(words), where_(where) {}

    Result<ParsedWords> walk(WordsStop stop) {
        while (at_ < words_.size()) {
            const std::string& word = words_[at_];
            if (word == "--") {
                parsed_.had_dashes = true;
                parsed_.words.insert(parsed_.words.end(), words_.begin() + static_cast<long>(at_) + 1, words_.end());
                return std::move(parsed_);
            }
            Result<void> taken;
            if (word.starts_with("--")) {
                taken = take_long(word.substr(2));
            } else if (word.size() > 1 && word.front() == '-') {
                taken = take_letters(word.substr(1));
            } else if (stop == WordsStop::AtFirstWord) {
                parsed_.words.assign(words_.begin() + static_cast<long>(at_), words_.end());
                return std::move(parsed_);
            } else {
                parsed_.words.push_back(word);
                ++at_;
            }
            if (!taken) return taken.error();
        }
        return std::move(parsed_);
    }

  private:
    void give(const OptionInfo& option, std::string value) {
        if (option.alias_of.empty()) {
            parsed_.given.push_back({option.name, std::move(value), where_});
        } else {
            parsed_.given.push_back({option.alias_of, std::move(value), where_, option.name});
        }
    }

    Result<void> take_long(const std::string& text) {
        const std::size_t equals = text.find('=');
        const OptionInfo* option = find_option(table_, std::string_view(text).substr(0, equals));
        if (option == nullptr) return unknown_option(table_, "--" + text.substr(0, equals), where_);
        ++at_;
        if (equals != std::string::npos) {
            if (option->takes == Takes::Nothing) {
                return Error{Code::InvalidArgument,
                             fmt::format("--{} takes no value, but '{}' was given{}", option->name,
                                         text.substr(equals + 1), behind(where_))};
            }
            if (equals + 1 == text.size()) return needs_value(*option, where_);
            give(*option, text.substr(equals + 1));
        } else if (option->takes == Takes::Value) {
            if (at_ == words_.size()) return needs_value(*option, where_);
            give(*option, words_[at_++]);
        } else {
            give(*option, "");
        }
        return {};
    }

    Result<void> take_letters(const std::string& letters) {
        for (std::size_t i = 0; i < letters.size(); ++i) {
            const OptionInfo* option = find_option(table_, letters[i]);
            if (option == nullptr) return unknown_option(table_, fmt::format("-{}", letters[i]), where_);
            if (option->takes == Takes::Nothing) {
                give(*option, "");
                continue;
            }
            std::string rest = letters.substr(i + 1);
            if (rest.starts_with('=')) rest.erase(0, 1);
            ++at_;
            if (rest.empty() && option->takes == Takes::Value) {
                if (at_ == words_.size()) return needs_value(*option, where_);
                rest = words_[at_++];
            }
            give(*option, rest);
            return {};
        }
        ++at_;
        return {};
    }

    const OptionTable& table_;
    const std::vector<std::string>& words_;
    const std::string& where_;
    std::size_t at_ = 0;
    ParsedWords parsed_;
};

}  // namespace

Result<ParsedWords> parse_words(const OptionTable& table, const std::vector<std::string>& words, WordsStop stop,
                                const std::string& where) {
    return Walker(table, words, where).walk(stop);
}

const OptionInfo* find_option(const OptionTable& table, std::string_view name) {
    const auto found = std::find_if(table.begin(), table.end(), [&](const OptionInfo& o) { return o.name == name; });
    return found == table.end() ? nullptr : &*found;
}

const OptionInfo* find_option(const OptionTable& table, char letter) {
    const auto found =
        std::find_if(table.begin(), table.end(), [&](const OptionInfo& o) { return o.letter == letter; });
    return found == table.end() || letter == 0 ? nullptr : &*found;
}

std::string nearest_name(const std::vector<std::string>& known, std::string_view name) {
    std::string best;
    std::size_t least = std::min<std::size_t>(3, (name.size() + 1) / 2);
    for (const std::string& candidate : known) {
        std::size_t distance = edit_distance(candidate, name);
        if (candidate.starts_with(name) && name.size() >= 3) distance = std::min<std::size_t>(distance, 1);
        if (distance < least) {
            least = distance;
            best = candidate;
        }
    }
    return best;
}

Error unknown_option(const OptionTable& table, const std::string& shown_name, const std::string& where) {
    std::vector<std::string> names;
    for (const OptionInfo& option : table) {
        if (option.supported) names.push_back(option.name);
    }
    std::string text = fmt::format("unknown option '{}'{}", shown_name, behind(where));
    const std::string near = shown_name.starts_with("--") ? nearest_name(names, shown_name.substr(2)) : "";
    if (!near.empty()) text += fmt::format(": did you mean --{}?", near);
    return {Code::InvalidArgument, text};
}

po::options_description describe(const OptionTable& table, const std::string& caption) {
    po::options_description description(caption, 100, 58);
    for (const OptionInfo& option : table) {
        if (!option.supported) continue;
        const std::string names =
            option.letter == 0 ? option.name : fmt::format("{},{}", option.name, option.letter);
        if (option.takes == Takes::Nothing) {
            description.add_options()(names.c_str(), option.words.c_str());
            continue;
        }
        auto* value = po::value<std::string>()->value_name(option.value_name);
        if (option.takes == Takes::Maybe) value->implicit_value("");
        description.add_options()(names.c_str(), value, option.words.c_str());
    }
    return description;
}

std::string options_help(const OptionTable& table, const std::string& caption) {
    std::ostringstream text;
    text << describe(table, caption);
    return text.str();
}

const Given* last_given(const std::vector<Given>& given, std::string_view name) {
    const auto found = std::find_if(given.rbegin(), given.rend(), [&](const Given& g) { return g.name == name; });
    return found == given.rend() ? nullptr : &*found;
}

std::string shown(const Given& given) {
    return fmt::format("--{}{}", given.typed.empty() ? given.name : given.typed, behind(given.where));
}

Result<std::int64_t> whole_number(const Given& given, std::int64_t least, std::int64_t most) {
    std::int64_t value = 0;
    const char* const end = given.value.data() + given.value.size();
    const auto parsed = std::from_chars(given.value.data(), end, value);
    if (parsed.ec != std::errc() || parsed.ptr != end || value < least || value > most) {
        return Error{Code::InvalidArgument, fmt::format("{}: '{}' is not a whole number from {} to {}", shown(given),
                                                        given.value, least, most)};
    }
    return value;
}

}  // namespace gangline::runner
