"""What every benchmark shares: rows, medians of interleaved rounds, folders, the local cluster under test."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.path.join(ROOT, "build/dev/bin")
GANGLINE = os.path.join(BIN, "gangline")
# The settings that any fair mpirun on one machine would use, and the ones that Gangline gives its ranks.
TUNED_MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp"]
SHIPPED_MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]


class Rows:
    """Collects and prints rows. value and peer are medians in SI base units; ratio = ours / peer (or / limit)."""

    def __init__(self, as_json):
        self.as_json, self.failed = as_json, False

    def row(self, id, what, values, unit, peer_values=None, peer_name="", bar=""):
        value = statistics.median(values)
        peer = statistics.median(peer_values) if peer_values else None
        ratio = value / peer if peer else None
        if self.as_json:
            record = {"id": id, "what": what, "value": value, "unit": unit, "peer": peer, "ratio": ratio, "n": len(values),
                      "min": min(values), "max": max(values), "peer_name": peer_name, "bar": bar}
            print(json.dumps(record), flush=True)
            return
        spread = f"[{min(values):.4g}..{max(values):.4g}]"
        beside = f"   {peer_name} {peer:.4g}   ratio {ratio:.3f}" if peer else (f"   {peer_name}" if peer_name else "")
        print(f"{id:<4} {what:<62} {value:.4g} {unit} {spread} n={len(values)}{beside}" + (f"   bar: {bar}" if bar else ""), flush=True)

    def absent(self, id, what, why):
        if self.as_json:
            print(json.dumps({"id": id, "what": what, "value": None, "unit": "", "peer": None, "ratio": None, "n": 0, "absent": why}), flush=True)
        else:
            print(f"{id:<4} {what:<62} absent: {why}", flush=True)


def wait_stamps(folder, count, limit=60.0, known=()):
    """Waits for `count` stamp files that are not in `known`; returns the latest stamp (seconds, monotonic) and {name: pid}."""
    until = time.monotonic() + limit
    while True:
        names = [n for n in os.listdir(folder) if not n.startswith(".") and n not in known]
        if len(names) >= count:
            break
        if time.monotonic() > until:
            raise RuntimeError(f"only {len(names)} of {count} ranks came up within {limit} s")
        time.sleep(0.002)
    stamps, pids = [], {}
    for name in names:
        with open(os.path.join(folder, name)) as file:
            when, pid = file.read().split()
        stamps.append(float(when))
        pids[name] = int(pid)
    return max(stamps), pids


class Cluster:
    """A local cluster of its own, taken down at the end."""

    def __init__(self, nodes, cards):
        self.nodes, self.cards = nodes, cards

    def __enter__(self):
        self.state = tempfile.mkdtemp(prefix="gangline-bench-")
        self.env = dict(os.environ, GANGLINE_STATE=self.state)
        for name in list(self.env):
            if name.startswith("GANGLINE_") and name != "GANGLINE_STATE":
                del self.env[name]
        self.cli("up", "--nodes", str(self.nodes), "--cards", str(self.cards))
        return self

    def cli(self, *args, check=True, cwd=None):
        done = subprocess.run([GANGLINE, *args], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180,
                              cwd=cwd or self.state)
        if check and done.returncode != 0:
            raise RuntimeError(f"gangline {' '.join(args)} ended with {done.returncode}: {done.stderr.strip()[-800:]}")
        return done.stdout

    def submit(self, *args):
        return int(self.cli("submit", "--parsable", *args).split()[0])

    def show(self, job):
        return json.loads(self.cli("show", str(job), "--json"))["job"]

    def wait_end(self, job, limit=60.0):
        until = time.monotonic() + limit
        while time.monotonic() < until:
            state = self.show(job)["state"]
            if state in ("COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"):
                return state
            time.sleep(0.02)
        raise RuntimeError(f"job {job} did not end within {limit} s")

    def settle(self, limit=30.0):
        """Waits until no job is active and lets the spare shepherds come back."""
        until = time.monotonic() + limit
        while time.monotonic() < until:
            if not json.loads(self.cli("queue", "--json"))["jobs"]:
                time.sleep(0.7)
                return
            time.sleep(0.05)
        raise RuntimeError("the cluster did not become idle")

    def pids(self):
        """Process ids of the coordinator and the agents, by name."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().decode(errors="replace").split("\0")
            except OSError:
                continue
            if len(words) > 1 and words[1] in ("coordinator", "agent", "execd") and any(self.state in w for w in words):
                found.setdefault(words[1], []).append(int(pid))
        return found

    def __exit__(self, *_):
        self.cli("down", check=False)
        shutil.rmtree(self.state, ignore_errors=True)


def fresh_folder():
    return tempfile.mkdtemp(prefix="gangline-stamps-")


def describe_machine():
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "unknown CPU")
    return f"{os.cpu_count()} cores, {model}, load {os.getloadavg()[0]:.2f}, {time.strftime('%Y-%m-%d')}"


def note(text):
    print(text, file=sys.stderr, flush=True)
