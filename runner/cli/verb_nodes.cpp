// The verbs about nodes: nodes, drain, resume.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "base/time.h"
#include "runner/cli/json.h"
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

}  // namespace gangline::runner
