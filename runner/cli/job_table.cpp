// The table of the options that `run` and `submit` share, with sbatch's names. What is not supported says what happens
// instead; it is accepted with or without a value as sbatch accepts it.
#include "runner/cli/job_options.h"

namespace gangline::runner {
namespace {

OptionInfo yes(const char* name, char letter, Takes takes, const char* value, const char* words,
               const char* variable = "") {
    return {name, letter, takes, value, words, variable, true, ""};
}

OptionInfo alias(const char* name, const char* value, const char* of) {
    return {name, 0, Takes::Value, value, std::string("the same as --") + of, "", true, of};
}

OptionInfo not_yet(const char* name, char letter, Takes takes, const char* instead, const char* variable = "") {
    return {name, letter, takes, "VALUE", instead, variable, false, ""};
}

OptionTable supported() {
    constexpr Takes kNo = Takes::Nothing, kValue = Takes::Value, kMaybe = Takes::Maybe;
    return {
        yes("job-name", 'J', kValue, "NAME", "the job's name", "SBATCH_JOB_NAME"),
        yes("nodes", 'N', kValue, "MIN[-MAX[:STEP]]", "how many nodes; with MAX and without --ntasks the gang is elastic"),
        yes("spares", 0, kValue, "N", "whole nodes held beside the gang, to take a failed one's place (default: 0)"),
        yes("segment", 0, kValue, "N", "nodes in groups of N, each group in one rack"),
        yes("ntasks", 'n', kValue, "N", "how many ranks"),
        alias("ranks", "N", "ntasks"),
        yes("ntasks-per-node", 0, kValue, "N", "ranks on each node"),
        alias("tasks-per-node", "N", "ntasks-per-node"),
        yes("cpus-per-task", 'c', kValue, "N", "CPUs of each rank"),
        yes("cards-per-rank", 0, kValue, "N", "cards of each rank; 0: CPUs only (default: 1)"),
        yes("gpus", 'G', kValue, "[TYPE:]N", "cards of the whole gang", "SBATCH_GPUS"),
        yes("gpus-per-node", 0, kValue, "[TYPE:]N", "cards on each node", "SBATCH_GPUS_PER_NODE"),
        yes("gpus-per-task", 0, kValue, "[TYPE:]N", "cards of each rank", "SBATCH_GPUS_PER_TASK"),
        yes("gres", 0, kValue, "gpu[:TYPE]:N", "cards on each node, written as for sbatch", "SBATCH_GRES"),
        yes("mem", 0, kValue, "SIZE[K|M|G|T]", "memory on each node (MiB without a letter); 0: no limit",
            "SBATCH_MEM_PER_NODE"),
        yes("time", 't', kValue, "TIME", "time limit: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS",
            "SBATCH_TIMELIMIT"),
        yes("time-min", 0, kValue, "TIME", "a time limit cut down to this is better than waiting"),
        yes("begin", 'b', kValue, "WHEN", "do not start before: HH:MM, YYYY-MM-DD[THH:MM], now+N[minutes|hours|days]"),
        yes("deadline", 0, kValue, "WHEN", "give up when it could not end by then (with --time)"),
        yes("dependency", 'd', kValue, "TYPE:JOB[:JOB...]", "wait for others: after, afterany, afterok, afternotok, aftercorr (tasks of two arrays, number by number), singleton; , all, ? any"),
        yes("switches", 0, kValue, "1[@WAIT]", "all of the gang in one rack; after WAIT anywhere", "SBATCH_REQ_SWITCH"),
        yes("output", 'o', kValue, "PATTERN", "file for the output; %j job, %x name, %u user, %N node, %t rank, %A array, %a task"),
        yes("error", 'e', kValue, "PATTERN", "file for standard error (default: with the output)"),
        yes("open-mode", 0, kValue, "append|truncate", "how these files are opened", "SBATCH_OPEN_MODE"),
        yes("chdir", 'D', kValue, "FOLDER", "working folder (default: this one)"),
        yes("export", 0, kValue, "ALL|NONE|LIST", "what the job gets of this environment: ALL, NONE, or NAME,NAME=VALUE,...",
            "SBATCH_EXPORT"),
        yes("priority", 0, kValue, "N", "higher goes first (default: 0)"),
        yes("nice", 0, kMaybe, "N", "lowers the priority by N (default: 100)"),
        yes("constraint", 'C', kValue, "FEATURES", "nodes with these features: nvme&ib, a|b", "SBATCH_CONSTRAINT"),
        yes("reservation", 0, kValue, "NAME", "only on the nodes of this reservation, while it lasts", "SBATCH_RESERVATION"),
        yes("spread-job", 0, kNo, "", "the emptiest nodes rather than the fullest", "SBATCH_SPREAD_JOB"),
        yes("nodelist", 'w', kValue, "NODES", "only these nodes: n1,n[3-5]"),
        yes("exclude", 'x', kValue, "NODES", "not these nodes"),
        yes("array", 'a', kValue, "TASKS[%N]", "one job for each task (0-15, 1,3,5-9, 0-99:4), at most N of them at once",
            "SBATCH_ARRAY_INX"),
        yes("hold", 'H', kNo, "", "do not start before `gangline release`"),
        yes("exclusive", 0, kMaybe, "WHO", "whole nodes, the job's alone; sbatch's =user and =mcs mean the same here", "SBATCH_EXCLUSIVE"),
        yes("comment", 0, kValue, "TEXT", "kept with the job"),
        yes("parsable", 0, kNo, "", "print the job's number alone"),
        yes("test-only", 0, kNo, "", "check the request, start nothing"),
        yes("wrap", 0, kValue, "COMMAND", "the job is this line for /bin/sh"),
        yes("requeue", 0, kNo, "", "restart after a failure of the machine (so it is without this too)", "SBATCH_REQUEUE"),
        yes("no-requeue", 0, kNo, "", "do not restart after a failure of the machine", "SBATCH_NO_REQUEUE"),
        yes("wait", 'W', kNo, "", "wait for the job's end and exit with its exit code", "SBATCH_WAIT"),
        yes("retries", 0, kValue, "N", "restarts after an error of the program itself (default: 0); the same error twice without a step between is a crash loop and ends the job"),
        yes("progress-timeout", 0, kValue, "SECONDS", "restart a gang whose steps stand still for so long (default: 30)"),
        yes("grace", 0, kValue, "SECONDS", "from SIGTERM to SIGKILL (default: 5)"),
        yes("checkpoint-dir", 0, kValue, "FOLDER", "where the job's checkpoints are"),
        yes("keep-last", 0, kValue, "K", "the newest K checkpoints stay; 2 at least (default: 3)"),
        yes("keep-every", 0, kValue, "STEPS", "each checkpoint whose step is a multiple of STEPS stays for ever; 0: none (default)"),
        yes("keep-best", 0, kValue, "N", "the N checkpoints with the best metric stay (default: 0)"),
        yes("best-is", 0, kValue, "lower|higher", "which metric is better (default: lower)"),
        yes("json", 0, kNo, "", "answer in JSON"),
    };
}

OptionTable not_supported() {
    constexpr Takes kNo = Takes::Nothing, kValue = Takes::Value, kMaybe = Takes::Maybe;
    const char* const accounts = "accounts are not kept; the job counts for your user";
    const char* const by_ranks = "ask by --cpus-per-task and --gpus-per-task; this one changes nothing";
    const char* const memory = "memory is limited by --mem alone";
    const char* const placing = "the cluster chooses the place";
    const char* const binding = "each rank is bound to its CPUs and sees its own cards";
    const char* const mail = "no mail is sent";
    const char* const nothing = "it changes nothing here";
    return {
        not_yet("account", 'A', kValue, accounts, "SBATCH_ACCOUNT"),
        not_yet("partition", 'p', kValue, "there are no partitions; any node may serve", "SBATCH_PARTITION"),
        not_yet("qos", 'q', kValue, "there are no qualities of service; --priority orders the queue", "SBATCH_QOS"),
        not_yet("wckey", 0, kValue, accounts, "SBATCH_WCKEY"),
        not_yet("cpus-per-gpu", 0, kValue, by_ranks, "SBATCH_CPUS_PER_GPU"),
        not_yet("mem-per-gpu", 0, kValue, memory, "SBATCH_MEM_PER_GPU"),
        not_yet("mem-per-cpu", 0, kValue, memory, "SBATCH_MEM_PER_CPU"),
        not_yet("tres-per-task", 0, kValue, by_ranks),
        not_yet("ntasks-per-gpu", 0, kValue, by_ranks),
        not_yet("ntasks-per-core", 0, kValue, by_ranks),
        not_yet("ntasks-per-socket", 0, kValue, by_ranks),
        not_yet("gpus-per-socket", 0, kValue, by_ranks),
        not_yet("mincpus", 0, kValue, by_ranks),
        not_yet("prefer", 0, kValue, placing),
        not_yet("distribution", 'm', kValue, "ranks fill one node after the other", "SBATCH_DISTRIBUTION"),
        not_yet("contiguous", 0, kNo, placing),
        not_yet("use-min-nodes", 0, kNo, placing, "SBATCH_USE_MIN_NODES"),
        not_yet("nodefile", 'F', kValue, "name the nodes by --nodelist"),
        not_yet("cluster-constraint", 0, kValue, placing),
        not_yet("clusters", 'M', kValue, "the job goes to the configured cluster", "SBATCH_CLUSTERS"),
        not_yet("licenses", 'L', kValue, "licences are not counted"),
        not_yet("gpu-bind", 0, kValue, binding, "SBATCH_GPU_BIND"),
        not_yet("mem-bind", 0, kValue, binding, "SBATCH_MEM_BIND"),
        not_yet("hint", 0, kValue, binding, "SBATCH_HINT"),
        not_yet("extra-node-info", 'B', kValue, binding),
        not_yet("sockets-per-node", 0, kValue, binding),
        not_yet("cores-per-socket", 0, kValue, binding),
        not_yet("threads-per-core", 0, kValue, binding),
        not_yet("core-spec", 'S', kValue, binding, "SBATCH_CORE_SPEC"),
        not_yet("thread-spec", 0, kValue, binding, "SBATCH_THREAD_SPEC"),
        not_yet("overcommit", 'O', kNo, binding, "SBATCH_OVERCOMMIT"),
        not_yet("oversubscribe", 's', kMaybe, "cards are never shared"),
        not_yet("gres-flags", 0, kValue, nothing, "SBATCH_GRES_FLAGS"),
        not_yet("gpu-freq", 0, kValue, nothing, "SBATCH_GPU_FREQ"),
        not_yet("cpu-freq", 0, kValue, nothing),
        not_yet("power", 0, kValue, nothing, "SBATCH_POWER"),
        not_yet("network", 0, kValue, nothing, "SBATCH_NETWORK"),
        not_yet("tmp", 0, kValue, "space in /tmp is not asked for"),
        not_yet("bb", 0, kValue, nothing),
        not_yet("bbf", 0, kValue, nothing),
        not_yet("delay-boot", 0, kValue, nothing, "SBATCH_DELAY_BOOT"),
        not_yet("wait-all-nodes", 0, kValue, "a gang starts whole, always", "SBATCH_WAIT_ALL_NODES"),
        not_yet("kill-on-invalid-dep", 0, kValue, "a job whose dependency can never be met stays queued, and `gangline why` says so"),
        not_yet("no-kill", 'k', kMaybe, "a gang that lost a node is restarted whole", "SBATCH_NO_KILL"),
        not_yet("signal", 0, kValue, "SIGTERM comes at the time limit, SIGKILL after --grace", "SBATCH_SIGNAL"),
        not_yet("mail-type", 0, kValue, mail),
        not_yet("mail-user", 0, kValue, mail),
        not_yet("input", 'i', kValue, "the job reads from /dev/null"),
        not_yet("export-file", 0, kValue, "the environment is this one, by --export"),
        not_yet("get-user-env", 0, kMaybe, "the environment is this one, by --export", "SBATCH_GET_USER_ENV"),
        not_yet("propagate", 0, kMaybe, "limits are those of the nodes"),
        not_yet("profile", 0, kValue, "`gangline report` accounts for each job", "SBATCH_PROFILE"),
        not_yet("acctg-freq", 0, kValue, "`gangline report` accounts for each job", "SBATCH_ACCTG_FREQ"),
        not_yet("container", 0, kValue, "the program runs outside of a container"),
        not_yet("uid", 0, kValue, "the job runs as you"),
        not_yet("gid", 0, kValue, "the job runs as you"),
        not_yet("reboot", 0, kNo, "no node is rebooted"),
        not_yet("batch", 0, kValue, placing),
        not_yet("ignore-pbs", 0, kNo, "#PBS lines are never read", "SBATCH_IGNORE_PBS"),
        not_yet("quiet", 'Q', kNo, nothing),
        not_yet("verbose", 'v', kNo, nothing),
    };
}

}  // namespace

const OptionTable& job_option_table() {
    static const OptionTable table = [] {
        OptionTable all = supported();
        for (OptionInfo& option : not_supported()) all.push_back(std::move(option));
        return all;
    }();
    return table;
}

}  // namespace gangline::runner
