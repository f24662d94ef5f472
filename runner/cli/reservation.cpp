#include "runner/cli/reservation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "runner/cli/job_values.h"
#include "runner/cli/table.h"

namespace gangline::runner {
namespace {

constexpr seconds kLongest = std::chrono::hours(24) * 366;      // as the coordinator has it

Error wrong(const std::string& words) { return {Code::InvalidArgument, words}; }

Result<void> take_nodes(const Line& line, proto::Reservation& reservation) {
    if (!line.has("nodes")) return wrong("reserve: no nodes are named: --nodes n1,n[3-5]");
    const std::string list = line.text("nodes");
    auto names = expand_node_list(list);
    if (!names) return wrong(fmt::format("--nodes: {}", names.error().message));
    if (names->empty() || !is_utf8(list)) return wrong(fmt::format("--nodes: '{}' is not a list of nodes: write n1,n[3-5]", list));
    std::sort(names->begin(), names->end(), natural_less);
    names->erase(std::unique(names->begin(), names->end()), names->end());
    for (std::string& name : *names) reservation.add_nodes(std::move(name));
    return {};
}

Result<void> take_time(const Line& line, std::int64_t now_unix_s, proto::Reservation& reservation) {
    const auto start = line.has("start") ? parse_when(line.text("start"), now_unix_s) : now_unix_s;
    if (!start) return wrong(fmt::format("--start: {}", start.error().message));
    if (!line.has("duration")) return wrong("reserve: how long is not said: --duration TIME (4:00:00, 2-00)");
    const auto duration = parse_time_limit(line.text("duration"));
    if (!duration) return wrong(fmt::format("--duration: {}", duration.error().message));
    if (duration->count() == 0 || *duration > kLongest) {
        return wrong(fmt::format("--duration: '{}': a reservation ends: write more than zero and at most 366 days", line.text("duration")));
    }
    const std::int64_t end = *start + duration->count();
    if (end <= now_unix_s) {
        return wrong(fmt::format("--start: '{}' with --duration {} is over already: write a later --start", line.text("start"),
                                 line.text("duration")));
    }
    reservation.set_start_unix_ms(*start * 1000);
    reservation.set_end_unix_ms(end * 1000);
    return {};
}

Result<void> take_people(const Line& line, proto::Reservation& reservation) {
    const bool for_some = line.has("users") || line.has("teams");
    reservation.set_maintenance(line.has("maintenance"));
    if (for_some == reservation.maintenance()) {
        return wrong(for_some ? "--maintenance keeps the nodes from everybody: leave out --users and --teams, or --maintenance"
                              : "reserve: for whom is not said: --users a,b or --teams t, or --maintenance for nobody");
    }
    for (const char* const option : {"users", "teams"}) {
        if (!line.has(option)) continue;
        for (const std::string& word : split(line.text(option), ',')) {
            const std::string name(trim(word));
            if (name.empty() || !is_utf8(name)) {
                return wrong(fmt::format("--{}: '{}' is not a list of names: write a,b", option, line.text(option)));
            }
            (std::string_view(option) == "users" ? reservation.add_users() : reservation.add_teams())->assign(name);
        }
    }
    return {};
}

std::string when_words(const proto::Reservation& reservation, std::int64_t now_ms) {
    const auto span = [](std::int64_t ms) { return human_duration(static_cast<double>(ms) / 1000.0); };
    if (now_ms < reservation.start_unix_ms()) return "in " + span(reservation.start_unix_ms() - now_ms);
    if (now_ms < reservation.end_unix_ms()) return "now, " + span(reservation.end_unix_ms() - now_ms) + " left";
    return "over";
}

}  // namespace

Result<proto::Reservation> build_reservation(const Line& line, std::int64_t now_unix_s) {
    if (line.words.size() != 1) return wrong("reserve takes one name: gangline reserve NAME --nodes LIST --duration TIME");
    proto::Reservation reservation;
    reservation.set_name(line.words.front());
    if (const auto good = check_reservation_name("reserve", reservation.name()); !good) return good.error();
    if (const auto done = take_nodes(line, reservation); !done) return done.error();
    if (const auto done = take_time(line, now_unix_s, reservation); !done) return done.error();
    if (const auto done = take_people(line, reservation); !done) return done.error();
    reservation.set_note(line.text("note"));
    if (!is_utf8(reservation.note())) return wrong("--note is not UTF-8");
    return reservation;
}

std::string reserved_for(const proto::Reservation& reservation) {
    if (reservation.maintenance()) return "maintenance";
    std::string text;
    if (!reservation.users().empty()) text = fmt::format("users {}", fmt::join(reservation.users(), ","));
    if (!reservation.teams().empty()) text += fmt::format("{}teams {}", text.empty() ? "" : ", ", fmt::join(reservation.teams(), ","));
    return text;
}

std::string reserved_text(const proto::Reservation& reservation, const std::string& words) {
    if (words.empty()) return fmt::format("Reservation {} is set, for {}\n", reservation.name(), reserved_for(reservation));
    std::string text = one_line(words);
    text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
    return text + "\n";
}

std::string reservations_text(const Reservations& reservations, const Terminal& terminal, std::int64_t now_ms) {
    using Align = Column::Align;
    Table table({{"NAME", Align::Left, 6}, {"NODES", Align::Left, 8}, {"START", Align::Left, 0}, {"END", Align::Left, 0},
                 {"WHEN", Align::Left, 8}, {"FOR", Align::Left, 8}, {"BY", Align::Left, 4}, {"NOTE", Align::Left, 6, Column::Shown::WhereFilled}});
    for (const proto::Reservation& one : reservations) {
        const bool holds = one.start_unix_ms() <= now_ms && now_ms < one.end_unix_ms();
        table.add({one.name(), compress_node_list({one.nodes().begin(), one.nodes().end()}), iso_time(one.start_unix_ms()),
                   iso_time(one.end_unix_ms()), Cell(when_words(one, now_ms), holds ? Tone::Busy : Tone::Plain), reserved_for(one),
                   one.set_by(), one.note()});
    }
    return table.text(terminal);
}

}  // namespace gangline::runner
