#!/usr/bin/env bash
# The main job: a gang of 4 ranks on two virtual nodes trains on Fashion-MNIST; one rank is killed on the way.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

export GANGLINE_STATE="$PWD/build/quickstart-state"
gangline=./gangline
work=$(mktemp -d)
took_down=no
take_down() {
    [ "$took_down" = yes ] && return
    took_down=yes
    $gangline down >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap take_down EXIT

say "starting two virtual nodes with two cards each"
$gangline down >/dev/null 2>&1 || true
$gangline up --nodes 2 --cards 2 >&2

# The failure that this rehearses: once training is well under way, one rank gets SIGKILL.
rehearse_failure() {
    local story step pid
    for _ in $(seq 1 600); do
        story=$($gangline show @ --json 2>/dev/null) || { sleep 0.2; continue; }
        step=$(awk -F'[:,]' '/"progress"/ { inside = 1 } inside && /"step":/ { gsub(/ /, "", $2); print $2; exit }' <<<"$story")
        if [ "${step:-0}" -ge 350 ]; then
            pid=$(awk -F'[:,]' '/"rank_views"/ { inside = 1 } inside && /"pid":/ { gsub(/ /, "", $2); pid = $2 } inside && /"rank": 2/ { found = 1 } inside && /}/ { if (found) { print pid; exit } }' <<<"$story")
            [ -n "${pid:-}" ] || return 0
            printf '\n' >&2
            say "rehearsing a failure: kill -9 of rank 2 (pid $pid) at step $step"
            kill -9 "$pid"
            return 0
        fi
        sleep 0.2
    done
}
rehearse_failure &
killer=$!

status=0
$gangline run --job-name fashion-mnist --nodes 2 --ranks 4 --report -- \
    build/dev/bin/fashion_mnist --steps 1200 --checkpoint-every 100 || status=$?
kill "$killer" 2>/dev/null || true
take_down
exit "$status"
