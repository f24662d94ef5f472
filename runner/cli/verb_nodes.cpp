// The verbs about nodes: nodes, drain, resume, reserve, unreserve, reservations.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "base/time.h"
#include "runner/cli/job_values.h"
#include "runner/cli/json.h"
#include "runner/cli/reservation.h"
#include "runner/cli/verbs.h"
#include "runner/cli/views.h"

namespace gangline::runner {

int run_nodes(const Line& line) {
    auto client = connect(line);
    if (!client) return fail(line, client.error());
    proto::Request request;
    request.mutable_list_nodes();
    auto response = (*client)->ask(request);
    if (!response) return fail(line, response.error());
    NodeViews chosen;
    for (proto::NodeView& node : *response->mutable_nodes()) {
        const bool wanted = line.words.empty() || std::find(line.words.begin(), line.words.end(), node.node().name()) !=
                                                      line.words.end();
        if (wanted) *chosen.Add() = std::move(node);
    }
    if (chosen.empty() && !line.words.empty()) {
        return fail(line, {Code::NotFound, fmt::format("there is no node '{}': see gangline nodes", line.words.front())});
    }
    if (line.json()) {
        nlohmann::ordered_json nodes = nlohmann::ordered_json::array();
        for (const proto::NodeView& node : chosen) nodes.push_back(to_json(node));
        print(json_document("nodes", std::move(nodes)));
    } else {
        print(nodes_text(chosen, terminal_of(1), now().unix_ms));
    }
    return 0;
}

int run_drain(const Line& line) {
    const bool drain = line.verb == "drain";
    if (line.words.empty()) {
        return fail(line, {Code::InvalidArgument, fmt::format("no node is named: gangline {} NODE...", line.verb)});
    }
    auto client = connect(line);
    if (!client) return fail(line, client.error());
    std::vector<std::string> names;
    for (const std::string& word : line.words) {
        auto some = expand_node_list(word);
        if (!some) return fail(line, some.error());
        names.insert(names.end(), some->begin(), some->end());
    }
    for (const std::string& name : names) {
        proto::Request request;
        request.mutable_set_node()->set_node(name);
        request.mutable_set_node()->set_drain(drain);
        request.mutable_set_node()->set_note(line.text("note"));
        const auto response = (*client)->ask(request);
        if (!response) return fail(line, response.error());
        if (!line.json()) {
            print(fmt::format("Node {} {}\n", name, drain ? "takes no new work; what runs there goes on"
                                                          : "takes work again"));
        }
    }
    if (line.json()) print(json_document("nodes", nlohmann::ordered_json(names)));
    return 0;
}

int run_reserve(const Line& line) {
    const auto reservation = build_reservation(line, now().unix_ms / 1000);
    if (!reservation) return fail(line, reservation.error());
    auto client = connect(line);
    if (!client) return fail(line, client.error());
    proto::Request request;
    *request.mutable_set_reservation()->mutable_reservation() = *reservation;
    const auto response = (*client)->ask(request);
    if (!response) return fail(line, response.error());
    if (line.json()) {
        print(json_document("reservation", to_json(*reservation)));
        return 0;
    }
    print(reserved_text(*reservation, response->message()));
    return 0;
}

int run_unreserve(const Line& line) {
    if (line.words.size() != 1) {
        return fail(line, {Code::InvalidArgument, "unreserve takes one name: gangline unreserve NAME (gangline reservations lists them)"});
    }
    if (const auto good = check_reservation_name("unreserve", line.words.front()); !good) return fail(line, good.error());
    auto client = connect(line);
    if (!client) return fail(line, client.error());
    proto::Request request;
    request.mutable_set_reservation()->mutable_reservation()->set_name(line.words.front());
    request.mutable_set_reservation()->set_end(true);
    const auto response = (*client)->ask(request);
    if (!response) return fail(line, response.error());
    print(line.json() ? json_document("reservation", line.words.front()) : fmt::format("Reservation {} has ended\n", line.words.front()));
    return 0;
}

int run_reservations(const Line& line) {
    if (!line.words.empty()) {
        return fail(line, {Code::InvalidArgument, fmt::format("reservations takes no '{}': it shows all", line.words.front())});
    }
    auto client = connect(line);
    if (!client) return fail(line, client.error());
    proto::Request request;
    request.mutable_list_reservations();
    const auto response = (*client)->ask(request);
    if (!response) return fail(line, response.error());
    if (line.json()) {
        nlohmann::ordered_json all = nlohmann::ordered_json::array();
        for (const proto::Reservation& one : response->reservations()) all.push_back(to_json(one));
        print(json_document("reservations", std::move(all)));
        return 0;
    }
    print(reservations_text(response->reservations(), terminal_of(1), now().unix_ms));
    if (response->reservations().empty() && terminal_of(2).is_terminal) say("no reservations");
    return 0;
}

}  // namespace gangline::runner
