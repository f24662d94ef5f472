// The table of verbs: what each is called, takes and says of itself.
#include "runner/cli/verbs.h"

namespace gangline::runner {
namespace {

OptionInfo flag(const char* name, char letter, const char* words) {
    return {name, letter, Takes::Nothing, "", words, "", true, ""};
}

OptionInfo value(const char* name, char letter, const char* value_name, const char* words) {
    return {name, letter, Takes::Value, value_name, words, "", true, ""};
}

OptionTable with_client(OptionTable options) {
    options.push_back(flag("json", 0, "answer in JSON"));
    for (const OptionInfo& option : client_option_table()) options.push_back(option);
    return options;
}

// The job's options, the client's, and these.
OptionTable with_job(OptionTable options) {
    OptionTable all = job_option_table();
    for (const OptionInfo& option : client_option_table()) all.push_back(option);
    all.insert(all.end(), options.begin(), options.end());
    return all;
}

OptionTable local_options(OptionTable options) {
    options.push_back(flag("json", 0, "answer in JSON"));
    options.push_back(value("state", 0, "FOLDER", "state of local clusters (default: ~/.local/state/gangline)"));
    return options;
}

OptionInfo hidden(OptionInfo option) {
    option.supported = false;
    return option;
}

Verb run_verb() {
    return {"run", "gangline run [options] -- PROGRAM ARGUMENTS | SCRIPT ARGUMENTS",
            "run a job now, show its output, exit with its exit code",
            "With no cluster configured it runs on a private one on this machine, which is gone afterwards.\n"
            "The first Ctrl-C cancels the job with its grace, a second one at once.\n\n"
            "Examples:\n"
            "  gangline run --ranks 4 -- ./train --steps 1000\n"
            "  gangline run --ranks 8 --virtual-nodes 2 --label -- hostname\n"
            "  gangline run --time 10 job.sh\n",
            with_job({value("virtual-nodes", 0, "M", "always a private cluster, of M virtual nodes"),
                      value("cards", 0, "N", "cards of each node of the private cluster"),
                      flag("label", 'l', "begin each line with its rank"),
                      flag("report", 0, "print the job's report at its end")}),
            WordsStop::AtFirstWord, run_run, true};
}

Verb submit_verb() {
    return {"submit", "gangline submit [options] SCRIPT ARGUMENTS | -- PROGRAM ARGUMENTS",
            "queue a job: a script with #GANG or #SBATCH lines, or a program",
            "A script runs once on the gang's first node and starts ranks by `gangline launch` (or `srun`); a program is\n"
            "started once a rank. Options: command line, then the script's lines, then GANGLINE_* and SBATCH_* variables,\n"
            "then gangline.conf.\n\n"
            "Examples:\n"
            "  gangline submit job.sh\n"
            "  gangline submit -N 2 --ntasks-per-node 4 -t 1:00:00 -- ./train --steps 1000\n"
            "  gangline submit -N 4-16:4 --gpus-per-node h100:8 --spares 1 job.sh      elastic, with a spare node\n"
            "  gangline submit --array 0-99%10 job.sh\n"
            "  id=$(gangline submit --parsable job.sh)\n",
            with_job({hidden(value("repeat", 0, "N", "submits the job N times"))}), WordsStop::AtFirstWord, run_submit,
            true};
}

std::vector<Verb> cluster_verbs() {
    return {
        {"up", "gangline up [--nodes N] [--cards M] [--cluster-file FILE]", "start a cluster on this machine that stays",
         "Running again starts what has died; jobs and their history are kept.\n\nExamples:\n"
         "  gangline up\n  gangline up --nodes 3 --cards 4\n  gangline up --nodes 4 --cluster-file cluster.toml     its nodes are n0 to n3\n",
         local_options({value("nodes", 'N', "N", "virtual nodes (default: 1)"),
                        value("cards", 0, "M", "cards of each node (default: 4)"),
                        value("cluster-file", 0, "FILE", "racks, card models, prices, teams (docs/cluster-file.md)"),
                        value("name", 0, "NAME", "the cluster's name (default: made up)")}),
         WordsStop::Never, run_up, true},
        {"down", "gangline down [--keep]", "take that cluster down: cancel its jobs, end its processes, prove it",
         "Checkpoints stay in <state>/checkpoints.\n\nExamples:\n  gangline down\n  gangline down --keep\n",
         local_options({flag("keep", 0, "keep journal and logs for the next `up`")}), WordsStop::Never, run_down, true},
        {"nodes", "gangline nodes [NODE...]", "the nodes: state, cards, jobs", "Examples:\n  gangline nodes\n  gangline nodes --json\n",
         with_client({}), WordsStop::Never, run_nodes, true},
        {"drain", "gangline drain NODE... [--note TEXT]", "give a node no new work; what runs there goes on",
         "Examples:\n  gangline drain n1 --note \"fan is loud\"\n  gangline drain n[3-5]\n",
         with_client({value("note", 0, "TEXT", "why; shown in `gangline nodes`")}), WordsStop::Never, run_drain, true},
        {"resume", "gangline resume NODE...", "let a drained node work again", "Examples:\n  gangline resume n1\n",
         with_client({value("note", 0, "TEXT", "why")}), WordsStop::Never, run_drain, true},
    };
}

std::vector<Verb> reservation_verbs() {
    return {
        {"reserve", "gangline reserve NAME --nodes LIST --duration TIME [options]",
         "keep nodes for some people, or (maintenance) from everybody",
         "Jobs ask for it by --reservation NAME. A name that is there already is set anew.\n\nExamples:\n"
         "  gangline reserve course --nodes n[1-4] --start tomorrow --duration 8:00:00 --users alice,bob\n"
         "  gangline reserve cooling --nodes n7 --duration 2-00 --maintenance --note \"new pump\"\n",
         with_client({value("nodes", 'N', "LIST", "these nodes: n1,n[3-5]"),
                      value("start", 0, "WHEN", "from then on: HH:MM, YYYY-MM-DD[THH:MM], now+N[minutes|hours|days] (default: now)"),
                      value("duration", 0, "TIME", "for so long: minutes, HH:MM:SS, D-HH"),
                      value("users", 0, "LIST", "for these users"), value("teams", 0, "LIST", "for these teams"),
                      flag("maintenance", 0, "for nobody: no job runs there"),
                      value("note", 0, "TEXT", "why; shown in `gangline reservations`")}),
         WordsStop::Never, run_reserve, true},
        {"unreserve", "gangline unreserve NAME", "end a reservation now", "Examples:\n  gangline unreserve course\n", with_client({}),
         WordsStop::Never, run_unreserve, true},
        {"reservations", "gangline reservations", "the reservations: nodes, times, for whom",
         "Examples:\n  gangline reservations\n  gangline reservations --json\n", with_client({}), WordsStop::Never, run_reservations, true},
    };
}

std::vector<Verb> job_verbs() {
    return {
        {"queue", "gangline queue [options]", "your jobs that wait or run",
         "Waiting tasks of an array that wait for the same thing are one line; --json has all of them.\n\nExamples:\n  gangline queue\n  gangline queue --all\n  gangline queue --ended --limit 20\n",
         with_client({flag("all", 'a', "of all users"), flag("ended", 'e', "ended jobs too"),
                      value("user", 'u', "NAME", "of this user"), value("limit", 0, "N", "at most so many; with --ended: so many ended ones")}),
         WordsStop::Never, run_queue, true},
        {"show", "gangline show JOB", "one job's story: state, reason, attempts, ranks, checkpoints, faults",
         "@ is the last job that you submitted, 12_5 is task 5 of the array 12.\n\nExamples:\n  gangline show 7\n  gangline show 12_5\n"
         "  gangline show @ --json\n",
         with_client({}), WordsStop::Never, run_show, true},
        {"logs", "gangline logs [options] JOB", "what a job's ranks wrote",
         "Examples:\n  gangline logs 7\n  gangline logs -f @\n  gangline logs --rank 3 --err --tail 20 7\n"
         "  gangline logs --json 7        one object a line: rank, stream, text\n",
         with_client({flag("follow", 'f', "stay until the job's end"), value("rank", 'r', "N", "of this rank only"),
                      flag("err", 'e', "standard error only"), flag("label", 'l', "begin each line with its rank"),
                      value("tail", 'n', "N", "the last N lines, then on"),
                      value("attempt", 0, "N", "of this attempt only (default: all)")}),
         WordsStop::Never, run_logs, true},
        {"cancel", "gangline cancel JOB... [--reason TEXT]", "end jobs: SIGTERM, the job's grace, SIGKILL",
         "Examples:\n  gangline cancel 7\n  gangline cancel 7 8 9 --reason \"wrong data\"\n  gangline cancel 12            all of the array 12\n"
         "  gangline cancel 12_5          task 5 of it\n",
         with_client({value("reason", 0, "TEXT", "kept with the job")}), WordsStop::Never, run_cancel, true},
        {"report", "gangline report JOB | --cluster [--user NAME]", "where a job's time went, or the cluster's, by cause",
         "With what to do about it; and the cost, where cluster.toml names prices.\n\nExamples:\n  gangline report 7\n"
         "  gangline report @ --json\n  gangline report --cluster --user alice\n",
         with_client({flag("cluster", 0, "all card-hours that the cluster owned, by cause, team, user and job"),
                      value("user", 'u', "NAME", "with --cluster: of this user")}),
         WordsStop::Never, run_report, true},
        {"why", "gangline why JOB", "why a job waits, or is where it is, and what would start it sooner",
         "Examples:\n  gangline why 7\n", with_client({}), WordsStop::Never, run_why, true},
        {"hold", "gangline hold JOB...", "do not start these jobs before they are released",
         "Examples:\n  gangline hold 7\n", with_client({}), WordsStop::Never, run_hold, true},
        {"release", "gangline release JOB...", "let held jobs start", "Examples:\n  gangline release 7\n", with_client({}),
         WordsStop::Never, run_hold, true},
    };
}

std::vector<Verb> other_verbs() {
    return {
        {"keys", "gangline keys new NAME [options] | public FILE", "make a key, or show its public half",
         "Examples:\n  gangline keys new alice\n  gangline keys new n7 --node --out /etc/gangline/node.key\n"
         "  gangline keys public alice.key\n",
         {value("out", 'o', "FILE", "the key file (default: NAME.key); never overwritten"),
          flag("node", 0, "the key of a node, not of a user"),
          value("role", 0, "ROLE", "user, operator or admin (default: user)"), flag("json", 0, "answer in JSON")},
         WordsStop::Never, run_keys, false},
        {"completion", "gangline completion bash", "print a completion script for bash",
         "Examples:\n  source <(gangline completion bash)\n", {}, WordsStop::Never, run_completion, false},
        {"version", "gangline version", "print the version", "", {flag("json", 0, "answer in JSON")}, WordsStop::Never,
         run_version, false},
        {"help", "gangline help [VERB]", "print this, or a verb's own help", "", {}, WordsStop::Never, run_help, false},
    };
}

}  // namespace

const std::vector<Verb>& verbs() {
    static const std::vector<Verb> table = [] {
        std::vector<Verb> all = {run_verb(), submit_verb()};
        for (auto group : {job_verbs(), cluster_verbs(), reservation_verbs(), other_verbs()}) {
            for (Verb& verb : group) all.push_back(std::move(verb));
        }
        for (Verb& verb : all) verb.options.push_back(flag("help", 'h', "print this"));
        return all;
    }();
    return table;
}

const Verb* find_verb(std::string_view name) {
    for (const Verb& verb : verbs()) {
        if (verb.name == name) return &verb;
    }
    return nullptr;
}

}  // namespace gangline::runner
