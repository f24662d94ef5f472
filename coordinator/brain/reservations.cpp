// Nodes that are kept for some users, or for nobody (maintenance), from one time to another. Gangs that would run into that time do not start
// there; gangs that run already go on.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "coordinator/brain/core.h"

namespace gangline::coordinator {
namespace {

constexpr std::size_t kMostReservations = 1000;
constexpr std::int64_t kLongestMs = std::int64_t{366} * 86'400'000;

bool is_name(const std::string& name) {
    const auto good = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.'; };
    return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), good);
}

}  // namespace

// Empty: good.
std::string Brain::State::wrong_with(const proto::Reservation& one) const {
    if (!is_name(one.name())) return fmt::format("reserve '{}': a name has 1 to 64 letters, digits and . _ -", one.name());
    if (one.nodes().empty()) return "--nodes: name the nodes to reserve";
    for (const std::string& name : one.nodes()) {
        if (facts.node(name) == nullptr) return fmt::format("--nodes: there is no node {}; gangline nodes lists them", name);
    }
    if (one.end_unix_ms() <= one.start_unix_ms() || one.end_unix_ms() <= now.unix_ms) return fmt::format("--duration: it would be over at {} already", iso_time(one.end_unix_ms()));
    if (one.end_unix_ms() - one.start_unix_ms() > kLongestMs) return fmt::format("--duration: {} days are too long; at most 366 are taken", (one.end_unix_ms() - one.start_unix_ms()) / 86'400'000);
    if (one.maintenance() != (one.users().empty() && one.teams().empty())) return "either --users, --teams or --maintenance says for whom the nodes are kept";
    for (const std::string& team : one.teams()) {
        if (options.fleet.teams.count(team) == 0) return fmt::format("--teams: the cluster file has no team {}", team);
    }
    for (const auto& [name, other] : facts.reservations) {
        if (name == one.name() || other.end_unix_ms() <= one.start_unix_ms() || other.start_unix_ms() >= one.end_unix_ms()) continue;
        for (const std::string& node : one.nodes()) {
            if (std::find(other.nodes().begin(), other.nodes().end(), node) == other.nodes().end()) continue;
            return fmt::format("--nodes: {} is reserved by {} until {}", node, name, iso_time(other.end_unix_ms()));
        }
    }
    return {};
}

void Brain::State::set_reservation(const FromUser& event) {
    const proto::SetReservation& request = event.request.set_reservation();
    const std::string& name = request.reservation().name();
    proto::Record record_set;
    if (request.end()) {
        if (facts.reservations.count(name) == 0) return reply(event, proto::REFUSED, fmt::format("there is no reservation {}; gangline reservations lists them", name));
        record_set.mutable_reservation_ended()->set_name(name);
        record_set.mutable_reservation_ended()->set_who(event.who.user);
        record(std::move(record_set));
        place_wanted = true;
        return reply(event, proto::OK, fmt::format("reservation {} has ended", name));
    }
    if (const std::string wrong = wrong_with(request.reservation()); !wrong.empty()) return reply(event, proto::USAGE, wrong);
    if (facts.reservations.size() >= kMostReservations && !facts.reservations.contains(name)) return reply(event, proto::REFUSED, fmt::format("there are {} reservations, and no more are taken: end some (gangline unreserve NAME)", kMostReservations));
    proto::Reservation& body = *record_set.mutable_reservation_set()->mutable_reservation();
    body = request.reservation();
    body.set_set_by(event.who.user);
    std::string late;
    for (const std::string& node : body.nodes()) {
        for (const auto& [key, hold] : facts.node(node)->holds) {
            const Job* job = facts.find(key.job);
            if (job == nullptr || is_ended(job->state) || end_if_started(*job) <= body.start_unix_ms()) continue;
            const std::string id = std::to_string(key.job);
            if ((", " + late + ",").find(", " + id + ",") == std::string::npos) late += (late.empty() ? "" : ", ") + id;
        }
    }
    std::string said = fmt::format("reservation {}: {} from {} to {}", name, body.nodes_size() == 1 ? "1 node" : fmt::format("{} nodes", body.nodes_size()),
                                   iso_time(body.start_unix_ms()), iso_time(body.end_unix_ms()));
    if (!late.empty()) said += fmt::format("; still running then, unless they end before: job {}", late);
    record(std::move(record_set));
    place_wanted = true;
    reply(event, proto::OK, std::move(said));
}

bool Brain::State::may_use(const proto::Reservation& reservation, const std::string& user) const {
    if (reservation.maintenance()) return false;
    if (std::find(reservation.users().begin(), reservation.users().end(), user) != reservation.users().end()) return true;
    const Team* team = options.fleet.team_of(user);
    for (std::string name = team == nullptr ? "" : team->name; !name.empty(); name = options.fleet.teams.at(name).parent) {
        if (std::find(reservation.teams().begin(), reservation.teams().end(), name) != reservation.teams().end()) return true;
    }
    return false;
}

}  // namespace gangline::coordinator
