// The ledger of the whole cluster: every card-second since the journal began, by cause, by user, by team, by job; and what it cost.
#include <algorithm>

#include "coordinator/brain/core.h"

namespace gangline::coordinator {
namespace {

constexpr std::size_t kShownJobs = 20;

using CauseSeconds = std::array<double, kCauses>;

double sum(const CauseSeconds& seconds) {
    double all = 0;
    for (const double one : seconds) all += one;
    return all;
}

void put_causes(google::protobuf::RepeatedPtrField<proto::Cause>& out, const CauseSeconds& seconds) {
    for (std::size_t cause = 0; cause < kCauses; ++cause) {
        if (seconds[cause] == 0) continue;
        proto::Cause& one = *out.Add();
        one.set_name(kCauseWords[cause].name);
        one.set_card_s(seconds[cause]);
        one.set_words(kCauseWords[cause].words);
    }
}

}  // namespace

// By the prices of cluster.toml as they are now; a node that is billed whole is paid whole while one card of it is held.
double Brain::State::price_of(const Job& job, std::int64_t until_ms) const {
    double cost = 0;
    for (std::size_t i = 0; i < job.attempts.size(); ++i) {
        const Attempt& attempt = job.attempts[i];
        const std::int64_t end_ms = attempt.let_go_ms != 0 ? attempt.let_go_ms : until_ms;
        const double hours = static_cast<double>(std::max<std::int64_t>(0, end_ms - attempt.reserved_ms)) / 3'600'000;
        const auto price_of_node = [&](const std::string& name) -> const CardModel* {
            const auto number = nodes_in_order().numbers.find(name);
            if (number == nodes_in_order().numbers.end()) return nullptr;
            const std::string& reported = nodes_in_order().traits[number->second].card_model;
            for (const auto& [model, described] : options.fleet.models) {
                if (is_model(model, reported)) return &described;
            }
            return nullptr;
        };
        for (const Part& part : attempt.parts) {
            const CardModel* model = price_of_node(part.place.node());
            const Node* node = facts.node(part.place.node());
            if (model == nullptr || node == nullptr) continue;
            const bool whole = model->billing == Billing::Node || job.spec.exclusive();
            cost += hours * model->price_per_hour * static_cast<double>(whole ? node->info.cards_size() : part.place.cards_size());
        }
        for (const std::string& name : attempt.spares) {
            const CardModel* model = price_of_node(name);
            if (model != nullptr) cost += hours * model->price_per_hour * static_cast<double>(facts.node(name)->info.cards_size());
        }
    }
    return cost;
}

void Brain::State::report_cluster(const Caller& who, const proto::ReportCluster& request, const Now& at, proto::ClusterReport& out) const {
    Accounts accounts = facts.accounts;
    accounts.advance(at.unix_ms, facts.waiting_for_cards != 0);
    std::map<std::string, CauseSeconds> users;
    std::map<std::string, double> costs;
    for (const auto& [name, user] : facts.users) users[name] = user.card_s;
    struct Row {
        const Job* job = nullptr;
        CauseSeconds seconds{};
        double cost = 0;
    };
    std::vector<Row> rows;
    for (const auto& [id, job] : facts.jobs) {
        if (job.attempts.empty()) continue;
        const std::int64_t until_ms = is_ended(job.state) ? job.ended_ms : std::max(at.unix_ms, accounts.until_ms());
        const Ledger ledger = make_ledger(story_of(job, until_ms, progress_of(job)));
        Row& row = rows.emplace_back();
        row.job = &job;
        for (std::size_t cause = 0; cause < kCauses; ++cause) row.seconds[cause] = ledger.causes[cause].card_s;
        row.cost = price_of(job, until_ms);
        costs[job.user] += row.cost;
        if (is_ended(job.state)) continue;  // the user's sum has it
        for (std::size_t cause = 0; cause < kCauses; ++cause) users[job.user][cause] += row.seconds[cause];
    }
    CauseSeconds held{};
    std::map<std::string, CauseSeconds> teams;
    std::map<std::string, double> team_costs;
    for (const auto& [name, seconds] : users) {
        for (std::size_t cause = 0; cause < kCauses; ++cause) held[cause] += seconds[cause];
        const Team* first = options.fleet.team_of(name);
        for (std::string team = first == nullptr ? "" : first->name; !team.empty(); team = options.fleet.teams.at(team).parent) {
            for (std::size_t cause = 0; cause < kCauses; ++cause) teams[team][cause] += seconds[cause];
            team_costs[team] += costs[name];
        }
    }
    out.set_since_unix_ms(accounts.since_ms());
    out.set_until_unix_ms(accounts.until_ms());
    out.set_owned_card_s(accounts.owned_s());
    out.set_currency(options.fleet.currency);
    put_causes(*out.mutable_causes(), held);
    const auto unheld = [&](const char* name, double seconds, const char* words) {
        proto::Cause& one = *out.add_causes();
        one.set_name(name);
        one.set_card_s(seconds);
        one.set_words(words);
    };
    unheld("queue-fragmentation", accounts.fragmented_s(), "free while a job waited for cards");
    unheld("drained", accounts.seconds(Drained), "on drained nodes");
    unheld("broken", accounts.seconds(Broken), "on lost nodes, or not proved empty");
    unheld("free", accounts.seconds(Free) - accounts.fragmented_s(), "free, and nobody waited");
    if (accounts.owned_s() > 0) {
        out.set_allocated(sum(held) / accounts.owned_s());
        out.set_useful((held[Compute] + held[Communication]) / accounts.owned_s());
    }
    const auto put = [&](proto::Account& account, const std::string& name, const CauseSeconds& seconds, double cost) {
        account.set_name(name);
        account.set_card_s(sum(seconds));
        account.set_cost(cost);
        put_causes(*account.mutable_causes(), seconds);
    };
    // A user sees the whole and himself; an operator everybody.
    const auto shown = [&](const std::string& user) {
        return (request.user().empty() || request.user() == user) && (who.is_operator || who.user == user);
    };
    for (const auto& [name, seconds] : users) {
        if (shown(name)) put(*out.add_users(), name, seconds, costs[name]);
    }
    for (const auto& [name, seconds] : teams) put(*out.add_teams(), name, seconds, team_costs[name]);
    std::erase_if(rows, [&](const Row& row) { return !shown(row.job->user); });
    std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return sum(a.seconds) > sum(b.seconds); });
    rows.resize(std::min(rows.size(), kShownJobs));
    for (const Row& row : rows) put(*out.add_jobs(), row.job->name(), row.seconds, row.cost);
}

}  // namespace gangline::coordinator
