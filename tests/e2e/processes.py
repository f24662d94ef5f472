"""Processes as the tests see them: read from /proc, named by pid and start time so that a reused pid is never hit, and
killed one by one, never by a pattern of names."""

import os
import signal
import time

PATIENCE = float(os.environ.get("GANGLINE_E2E_PATIENCE", "1"))  # every deadline is multiplied by it


def until(what, condition, deadline, pause=0.01):
    """Waits until condition() is true and returns its value; fails with `what` (or what() ) after `deadline` seconds."""
    end = time.monotonic() + deadline * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline} s: {what() if callable(what) else what}")
        time.sleep(pause)


class Process:
    """One process: pid and start time."""

    def __init__(self, pid):
        self.pid = pid
        stat = read_stat(pid)
        self.start = stat[2] if stat else None

    def is_alive(self):
        stat = read_stat(self.pid)
        return stat is not None and stat[2] == self.start and stat[0] not in "ZX"

    def state(self):
        stat = read_stat(self.pid)
        return stat[0] if stat and stat[2] == self.start else ""

    def send(self, signal_number):
        if self.is_alive():
            try:
                os.kill(self.pid, signal_number)
            except ProcessLookupError:
                pass

    def kill(self):
        self.send(signal.SIGKILL)

    def wait_gone(self, deadline=5):
        until(f"process {self.pid} gone", lambda: not self.is_alive(), deadline)


def read_stat(pid):
    """(state, parent, start ticks) of /proc/PID/stat; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return fields[0].decode(), int(fields[1]), int(fields[19])


def read_bytes(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def live_pids(wanted):
    """Pids for which wanted(environment, command line) is true, zombies left out. Both are bytes with NUL between words."""
    found = []
    for pid in pids():
        if pid == os.getpid():
            continue
        environment = b"\0" + read_bytes(f"/proc/{pid}/environ")
        if wanted(environment, read_bytes(f"/proc/{pid}/cmdline")):
            stat = read_stat(pid)
            if stat and stat[0] not in "ZX":
                found.append(pid)
    return found


def descendants(roots):
    """The pids of `roots` and everything below them."""
    children = {}
    for pid in pids():
        stat = read_stat(pid)
        if stat:
            children.setdefault(stat[1], []).append(pid)
    found, todo = set(), list(roots)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return found


def describe(pid):
    words = read_bytes(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    stat = read_stat(pid)
    return f"{pid} ({stat[0] if stat else '?'}) {words or read_bytes(f'/proc/{pid}/comm').decode().strip()}"


def abstract_sockets():
    """Names of abstract unix sockets, without their leading @."""
    names = set()
    for line in read_bytes("/proc/net/unix").decode(errors="replace").splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[7].startswith("@"):
            names.add(words[7][1:])
    return names
