#!/usr/bin/env bash
# The verbs with real coordinators, agents and gangs: run, up, submit, logs, down. Usage: e2e_test.sh GANGLINE
# Exits with 77 (skipped) where the executable was not built.
set -uo pipefail
gangline=$1
[ -x "$gangline" ] || { echo "no $gangline: skipped"; exit 77; }
work=$(mktemp -d)
export GANGLINE_STATE="$work/state" HOME="$work" GANGLINE_CONF=
cd "$work"
failed=0
trap '"$gangline" down >/dev/null 2>&1; rm -rf "$work"' EXIT

# check WHAT CONDITION...: the condition is a command.
check() {
    local what=$1
    shift
    if "$@"; then echo "ok      $what"; else echo "FAILED  $what"; failed=1; fi
}
same() { [ "$1" = "$2" ] || { printf '        expected <%s>, got <%s>\n' "$2" "$1"; return 1; }; }
has() { grep -qE -- "$2" <<<"$1" || { printf '        no <%s> in <%s>\n' "$2" "$1"; return 1; }; }
# Processes that carry a mark of a cluster whose name begins so.
marked() { grep -alE "GANGLINE_MARK=$1" /proc/[0-9]*/environ 2>/dev/null | xargs -r grep -alF "GANGLINE_STATE=$GANGLINE_STATE" 2>/dev/null | wc -l; }
# What a run may leave is what hwloc found, kept for the next one.
left() { ls "$GANGLINE_STATE" | grep -v '^topology'; }

# ---- a private cluster
out=$("$gangline" run --ranks 4 -- sh -c 'echo "rank $RANK of $WORLD_SIZE"; echo "oops $RANK" >&2' 2>"$work/err")
check "run exits with 0" same $? 0
check "run prints every rank's output" same "$(sort <<<"$out")" $'rank 0 of 4\nrank 1 of 4\nrank 2 of 4\nrank 3 of 4'
check "run prints standard error as such" same "$(grep -c '^oops' "$work/err")" 4
out=$("$gangline" run --ranks 4 --virtual-nodes 2 --label -- sh -c 'echo "$GANGLINE_NODE $NODE_RANK"')
check "run --label names ranks on virtual nodes" same "$(sort <<<"$out")" $'0: n0 0\n1: n0 0\n2: n1 1\n3: n1 1'
out=$("$gangline" run --ranks 2 -- sh -c 'echo about to fail; [ "$RANK" = 1 ] && exit 7; sleep 30' 2>&1)
check "run exits with the failing rank's code" same $? 7
check "run names the failing rank" has "$out" 'rank 1 on n0 .*7'
out=$("$gangline" run -- nosuchprogram 2>&1)
check "a missing program is refused" same $? 2
seq 1 20000 >"$work/numbers"
"$gangline" run -- cat "$work/numbers" >"$work/copy"
check "run loses no output" cmp -s "$work/numbers" "$work/copy"
printf '#!/bin/bash\n#SBATCH --ntasks=2\necho "script $1 $SLURM_NTASKS"\nexit 3\n' >job.sh
out=$("$gangline" run job.sh word 2>/dev/null)
check "a script's exit code is the job's" same $? 3
check "a script has its arguments and its environment" same "$out" "script word 2"
check "run leaves its state folder empty" same "$(left)" ""
check "run leaves no process" same "$(marked run-)" 0

"$gangline" run --ranks 2 -- sleep 300 &
runner=$!
for _ in $(seq 100); do [ "$(marked "run-$runner")" -ge 2 ] && break; sleep 0.05; done
kill -INT "$runner"
wait "$runner"
check "Ctrl-C cancels" same $? 130
check "Ctrl-C leaves no process" same "$(marked "run-$runner")" 0
"$gangline" run --ranks 2 -- sleep 300 2>/dev/null &
runner=$!
for _ in $(seq 100); do [ "$(marked "run-$runner")" -ge 2 ] && break; sleep 0.05; done
kill -KILL "$runner"
wait "$runner" 2>/dev/null
for _ in $(seq 100); do [ "$(marked "run-$runner")" = 0 ] && break; sleep 0.05; done
check "a killed run takes its gang with it" same "$(marked "run-$runner")" 0
for _ in $(seq 100); do pgrep -f "$GANGLINE_STATE/run-$runner" >/dev/null || break; sleep 0.05; done
"$gangline" run -- true
check "the next run sweeps what a killed one left" same "$(left)" ""

# ---- a cluster that stays
out=$("$gangline" up --nodes 2 --cards 2)
check "up starts a cluster" has "$out" 'is up: 2 nodes with 2 cards each'
check "up again changes nothing" has "$("$gangline" up)" 'up already'
check "nodes are there" same "$("$gangline" nodes | awk 'NR > 1 { print $1, $2, $3 }')" $'n0 idle 2\nn1 idle 2'
id=$("$gangline" submit --parsable -n 2 -- sh -c 'echo "out $RANK"; echo "err $RANK" >&2')
check "submit --parsable prints the number" has "$id" '^[0-9]+$'
"$gangline" submit --wait -- sh -c 'exit 5' >/dev/null 2>&1
check "submit --wait exits with the job's code" same $? 5
check "logs have both streams" same "$("$gangline" logs -f "$id" 2>&1 | sort)" $'err 0\nerr 1\nout 0\nout 1'
check "logs --rank and --err choose" same "$("$gangline" logs --rank 1 --err "$id" 2>&1)" "err 1"
check "the output is in gangline-N.out too" same "$(sort "gangline-$id.out")" $'err 0\nerr 1\nout 0\nout 1'
check "show tells the end" has "$("$gangline" show "$id")" 'completed'
check "show --json has the schema" has "$("$gangline" show "$id" --json)" '"schema": "gangline/1"'
out=$("$gangline" submit -n 5 -- true 2>&1)
check "a gang that can never run is refused" same $? 3
check "the refusal says what fits" has "$out" '4'
"$gangline" submit -n 4 -J long -- sleep 300 >/dev/null
"$gangline" submit -n 4 -J waits -- sleep 300 >/dev/null
check "why says what holds it" has "$("$gangline" why @)" 'card'
check "queue shows both" same "$("$gangline" queue | awk 'NR > 1 { print $2 }')" $'long\nwaits'
pid=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["n1"]["pid"])' "$GANGLINE_STATE/local/pids.json" 2>/dev/null)
kill -9 "$pid"
check "up restarts a part that died" has "$("$gangline" up)" 'started n1'
out=$("$gangline" down 2>&1)
check "down succeeds" same $? 0
check "down cancels and proves" has "$out" 'ancelled 2 jobs.*nothing is left'
check "down leaves no process" same "$(marked local-)" 0
check "down again is fine" has "$("$gangline" down)" 'No cluster is up'
"$gangline" queue >/dev/null 2>&1
check "without a cluster a verb exits with 4" same $? 4
exit $failed
