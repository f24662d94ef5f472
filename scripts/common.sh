# Shared by ./quickstart, ./check and ./bench: install what packages.txt lists, configure, build.
# Sourced with the project's root as working folder.

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() { say "$*"; exit 1; }

# install_packages KIND...: the packages of these kinds that are missing, by apt-get (root, or sudo).
install_packages() {
    local kinds="$*" wanted missing="" name
    wanted=$(awk -v kinds="$kinds" 'BEGIN { split(kinds, k, " "); for (i in k) want[k[i]] } /^[a-z]/ && ($2 in want) { print $1 }' packages.txt)
    command -v dpkg-query >/dev/null || die "this needs a Debian-like system; install the equivalents of: $(echo $wanted)"
    local present
    present=$(dpkg-query -W -f '${db:Status-Abbrev} ${binary:Package}\n' | awk '$1 == "ii" { sub(/:.*/, "", $2); print $2 }')
    for name in $wanted; do
        grep -qxF "$name" <<<"$present" || missing="$missing $name"
    done
    [ -z "$missing" ] && return 0
    local as_root=""
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "these packages are missing and neither root nor sudo is here to install them:$missing"
        as_root=sudo
    fi
    say "installing:$missing"
    local log
    log=$(mktemp)
    # A list that another run is refreshing, or a mirror that hiccups, is worth a second try.
    local try
    for try in 1 2 3; do
        if { $as_root apt-get update && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
            rm -f "$log"
            return 0
        fi
        sleep "$try"
    done
    tail -n 20 "$log" >&2
    rm -f "$log"
    die "apt-get could not install:$missing"
}

# build [TARGET...]: configure when needed, build, and leave ./gangline.
build() {
    local log
    log=$(mktemp)
    if ! cmake --preset dev >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        die "configuring failed"
    fi
    if [ -t 2 ]; then
        cmake --build build/dev --target "$@" >&2 || die "the build failed"
    elif ! cmake --build build/dev --target "$@" >"$log" 2>&1; then
        grep -vE '^\[[0-9]+/[0-9]+\] ' "$log" >&2
        rm -f "$log"
        die "the build failed"
    fi
    rm -f "$log"
    ln -sfn build/dev/bin/gangline gangline
}
