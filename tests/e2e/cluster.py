"""A real cluster on this machine for one test: a coordinator and agents as processes, with keys of their own, in a folder of
their own. Whatever a test did to it, take_down() ends all of it and names everything that was left behind.

Every process of the cluster carries GANGLINE_E2E=<cluster>/<part> (parts, and what they fork) or GANGLINE_MARK (ranks), and
only processes found by these are ever signalled. Every wait has a deadline."""

import getpass
import json
import os
import pathlib
import re
import secrets
import signal
import socket
import subprocess
import time

from processes import Process, abstract_sockets, descendants, describe, live_pids, until

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"}


def find_gangline():
    for path in (os.environ.get("GANGLINE_BIN"), ROOT / "gangline", ROOT / "build/dev/bin/gangline"):
        if path and os.access(path, os.X_OK):
            return os.path.realpath(path)
    raise RuntimeError("no gangline: build it (./quickstart --no-run) or set GANGLINE_BIN")


GANGLINE = find_gangline()


def built_program(name):
    """A program of this build, beside the executable (or in GANGLINE_PROGRAMS)."""
    folder = os.environ.get("GANGLINE_PROGRAMS", os.path.dirname(GANGLINE))
    return os.path.join(folder, name)


def free_port(address="127.0.0.1"):
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def clean_environment(home, token):
    """What the tests' own processes get: nothing of the caller's clusters, configuration or launchers."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("GANGLINE_", "SLURM_", "SBATCH_", "OMPI_", "PMIX_")) and name not in ("NO_COLOR",)}
    kept.update(HOME=str(home), GANGLINE_CONF="", GANGLINE_STATE=str(home / "state"), GANGLINE_E2E=token)
    return kept


class Part:
    """One daemon: started with a ready pipe, its words in a log file."""

    def __init__(self, name, argv, log, environment, prefix=()):
        self.name, self.argv, self.log, self.environment, self.prefix = name, argv, log, environment, list(prefix)
        self.child = None
        self.ready = None

    def start(self, wait=True):
        assert not self.is_alive(), f"{self.name} runs already"
        reading, writing = os.pipe()
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(self.prefix + [GANGLINE, *self.argv, "--ready-fd", str(writing)], stdin=subprocess.DEVNULL, stdout=log,
                                          stderr=log, pass_fds=[writing], env=self.environment, start_new_session=True)
        os.close(writing)
        self.ready = os.fdopen(reading, "rb", buffering=0)
        os.set_blocking(reading, False)
        if wait:
            self.wait_ready()

    def wait_ready(self, deadline=20):
        said = b""

        def is_ready():
            nonlocal said
            more = self.ready.read(64)
            assert more != b"", f"{self.name} ended before it was ready (code {self.child.wait(5)}):\n{self.log_tail()}"
            said += more or b""
            return said.startswith(b"ready")

        until(lambda: f"{self.name} ready:\n{self.log_tail()}", is_ready, deadline, pause=0.002)
        self.ready.close()
        self.ready = None

    @property
    def pid(self):
        return self.child.pid

    def is_alive(self):
        return self.child is not None and self.child.poll() is None

    def send(self, signal_number):
        if self.is_alive():
            self.child.send_signal(signal_number)

    def kill(self):
        self.send(signal.SIGKILL)
        if self.child is not None:
            self.child.wait(10)
        if self.ready is not None:
            self.ready.close()
            self.ready = None

    def log_tail(self, lines=25):
        try:
            return "\n".join(pathlib.Path(self.log).read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"


class Cluster:
    def __init__(self, folder, nodes=2, cards=4, start=True, address="127.0.0.1", agent_prefix=None, node_address=None, agent_options=(), **options):
        """options: of the coordinator, with _ for - (heartbeat_ms=100). agent_prefix(node) -> words before the agent's command."""
        self.folder = pathlib.Path(folder)
        self.name = "e2e-" + secrets.token_hex(4)
        self.home = self.folder / "home"
        self.work = self.folder / "work"
        for path in (self.folder / "keys", self.folder / "log", self.home, self.work):
            path.mkdir(parents=True)
        self.node_names = [f"n{i}" for i in range(nodes)]
        self.checkpoints = self.folder / "checkpoints"
        self.address = address
        self.users = f"tcp://{address}:{free_port(address)}"
        self.nodes = f"tcp://{address}:{free_port(address)}"
        self.cards = cards
        self.environment = clean_environment(self.home, f"{self.name}/cli")
        self.seen_sockets = set()
        self._make_keys()
        words = []
        for name, value in options.items():
            words += ["--" + name.replace("_", "-"), str(value)]
        self.coordinator = Part(
            "coordinator",
            ["coordinator", "--state", str(self.folder / "coordinator"), "--cluster", self.name, "--listen-users", self.users, "--listen-nodes", self.nodes,
             "--authorised", str(self.folder / "authorised"), "--checkpoint-root", str(self.checkpoints), *words],
            self.folder / "log/coordinator.log", dict(self.environment, GANGLINE_E2E=f"{self.name}/coordinator"))
        self.agents = {}
        self.agent_options = list(agent_options)
        self.agent_prefix = agent_prefix or (lambda node: ())
        self.node_address = node_address or (lambda node: "127.0.0.1")
        if start:
            self.start()

    # ---- making

    def _make_keys(self):
        rows = [self.new_key("user", getpass.getuser(), "--role", "admin")]
        rows += [self.new_key(node, node, "--node") for node in self.node_names]
        (self.folder / "authorised").write_text("".join(rows))

    def new_key(self, file, name, *words):
        made = subprocess.run([GANGLINE, "keys", "new", name, *words, "--out", str(self.folder / f"keys/{file}.key")], capture_output=True, text=True,
                              env=self.environment, timeout=20)
        assert made.returncode == 0, made.stderr
        return made.stdout

    def start(self):
        self.coordinator.start()
        self.endpoints = json.loads((self.folder / "coordinator/endpoints.json").read_text())
        self.environment.update(GANGLINE_COORDINATOR=self.users, GANGLINE_COORDINATOR_KEY=self.endpoints["key"],
                                GANGLINE_KEY=str(self.folder / "keys/user.key"))
        for node in self.node_names:
            self.agents[node] = self.agent_part(node)
            self.agents[node].start(wait=False)
        for agent in self.agents.values():
            agent.wait_ready()

    def agent_part(self, node):
        return Part(node,
                    ["agent", "--coordinator", self.nodes, "--coordinator-key", self.endpoints["key"], "--key", str(self.folder / f"keys/{node}.key"), "--state",
                     str(self.folder / node), "--node", node, "--cards", str(self.cards), "--address", self.node_address(node), "--cluster", self.name,
                     *self.agent_options],
                    self.folder / f"log/{node}.log", dict(self.environment, GANGLINE_E2E=f"{self.name}/{node}"), self.agent_prefix(node))

    # ---- asking

    def cli(self, *words, code=0, timeout=30, environment=None, cwd=None, stdin=""):
        """Runs a verb. code: the exit code it must have; None = any."""
        done = subprocess.run([GANGLINE, *map(str, words)], capture_output=True, text=True, errors="replace", input=stdin, cwd=cwd or self.work,
                              env=dict(self.environment, **(environment or {})), timeout=timeout)
        assert code is None or done.returncode == code, f"gangline {' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start_cli(self, *words, **more):
        return subprocess.Popen([GANGLINE, *map(str, words)], text=True, cwd=self.work, env=self.environment, **more)

    def submit(self, *words, **more):
        return int(self.cli("submit", "--parsable", *words, **more).stdout.strip())

    def json(self, *words):
        answer = json.loads(self.cli(*words, "--json").stdout)
        assert answer["schema"] == "gangline/1", answer
        return answer

    def show(self, job):
        return self.json("show", job)["job"]

    def jobs(self):
        return self.json("queue", "--all", "--ended")["jobs"]

    def node_views(self):
        return {view["node"]["name"]: view for view in self.json("nodes")["nodes"]}

    def node_state(self, node):
        return self.node_views()[node]["state"]

    def logs(self, job, *words):
        return self.cli("logs", *words, job).stdout

    def rank_pids(self, job):
        return {view["rank"]: view["pid"] for view in self.show(job)["rank_views"]}

    def kill_rank(self, job, rank):
        until(f"rank {rank} of job {job} known", lambda: self.rank_pids(job).get(rank), 10)
        Process(self.rank_pids(job)[rank]).kill()

    # ---- waiting

    def wait(self, job, what, condition, deadline):
        """The view of `job` for which condition(view) is true."""
        last = {}

        def look():
            last["view"] = self.show(job)
            return last["view"] if condition(last["view"]) else None

        return until(lambda: f"job {job}: {what}; it is:\n{self.story(last.get('view'))}", look, deadline)

    def wait_state(self, job, states, deadline=20):
        states = {states} if isinstance(states, str) else set(states)

        def is_there(view):
            assert view["state"] in states or view["state"] not in ENDED, f"job {job} ended otherwise:\n{self.story(view)}"
            return view["state"] in states

        return self.wait(job, " or ".join(sorted(states)), is_there, deadline)

    def wait_completed(self, job, deadline=40):
        return self.wait_state(job, "COMPLETED", deadline)

    def wait_step(self, job, step, deadline=20, attempt=1):
        """Running in this or a later attempt, every rank at `step` or behind it."""
        def is_there(view):
            assert view["state"] not in ENDED, f"job {job} ended before step {step}:\n{self.story(view)}"
            return view["state"] == "RUNNING" and view["attempt"] >= attempt and view["progress"] and view["progress"]["step"] >= step

        return self.wait(job, f"at step {step}", is_there, deadline)

    def wait_ranks(self, job, deadline=20, attempt=1):
        """Running in this or a later attempt, with a pid for each rank."""
        def is_there(view):
            assert view["state"] not in ENDED, f"job {job} ended before its ranks ran:\n{self.story(view)}"
            return (view["state"] == "RUNNING" and view["attempt"] >= attempt and len(view["rank_views"]) == view["ranks"]
                    and all(rank["pid"] > 0 for rank in view["rank_views"]))

        return self.wait(job, "all ranks run", is_there, deadline)

    def wait_node(self, node, states, deadline=10):
        states = {states} if isinstance(states, str) else set(states)
        until(lambda: f"node {node} is {self.node_state(node)}, not {states}", lambda: self.node_state(node) in states, deadline)

    @staticmethod
    def story(view):
        if not view:
            return "(never seen)"
        lines = [f"job {view['id']} {view['state']} attempt {view['attempt']}: {view['reason']}", f"progress {json.dumps(view['progress'])}",
                 f"faults {view['faults']}"]
        for attempt in view["attempts"][-5:]:
            nodes = [(place["node"], place["rank_count"]) for place in attempt["gang"]]
            lines.append(f"attempt {attempt['attempt']} on {nodes}: {attempt['kind']} rank {attempt['rank']} code {attempt['exit_code']} signal {attempt['signal']}"
                         f" restored {attempt['restored'] and attempt['restored']['step']} last step {attempt['last_step']}: {attempt['cause']}"
                         + (f"\n    | {attempt['last_lines']}" if attempt["last_lines"] else ""))
        lines.append(f"checkpoints {[(entry['step'], entry['attempt'], entry['damaged']) for entry in view['checkpoints'][-5:]]}")
        lines.append(f"ranks {[(rank['rank'], rank['node'], rank['pid'], rank['state'], rank['step']) for rank in view['rank_views']]}")
        return "\n".join(lines)

    # ---- hurting

    def processes_of_node(self, node):
        """Agent, execd, shepherds and ranks of a node."""
        part, mark = f"\0GANGLINE_E2E={self.name}/{node}\0".encode(), f"\0GANGLINE_MARK={self.name}/{node}/".encode()
        keeper = f"\0GANGLINE_KEEPER={self.name}/{node}/".encode()
        found = set(live_pids(lambda environment, _: part in environment or mark in environment or keeper in environment))
        if self.agents[node].is_alive():
            found |= descendants([self.agents[node].pid])
        return found

    def kill_node(self, node):
        """SIGKILL of everything of a node, as if its machine had lost power."""
        self.agents[node].kill()
        until(lambda: f"node {node} dead: {[describe(pid) for pid in self.processes_of_node(node)]}",
              lambda: not [Process(pid).kill() for pid in self.processes_of_node(node)], 5, pause=0.002)

    def keepers(self, job):
        """Process ids of the job's keepers, on all nodes."""
        return live_pids(lambda environment, _: re.search(f"\0GANGLINE_KEEPER={self.name}/[^/]*/{job}\0".encode(), environment))

    def kill_agent(self, node):
        self.agents[node].kill()

    def start_agent(self, node, wait=True):
        self.agents[node].start(wait)

    def kill_coordinator(self):
        self.coordinator.kill()

    def start_coordinator(self):
        self.coordinator.start()

    # ---- ending

    def note_sockets(self):
        for note in self.folder.glob("n*/attempts/*"):
            try:
                self.seen_sockets.update(name.decode() for name in re.findall(rb"gangline-[0-9a-f]{8,}(?:-[0-9]+)?", note.read_bytes()))
            except OSError:
                pass

    def marked(self, node=None):
        """Live processes of gangs (of one node)."""
        mark = f"\0GANGLINE_MARK={self.name}/{node + '/' if node else ''}".encode()
        return live_pids(lambda environment, _: mark in environment)

    def shared_memory(self, node=None):
        return sorted(str(path) for path in pathlib.Path("/dev/shm").glob(f"gangline-{self.name}-{node + '-' if node else ''}*"))

    def assert_no_gang_left(self, deadline=5):
        """Every process and all shared memory of gangs is gone, by the cluster's own doing."""
        until(lambda: f"gone: {[describe(pid) for pid in self.marked()]}, {self.shared_memory()}",
              lambda: not self.marked() and not self.shared_memory(), deadline)

    def leftovers(self):
        parts, mark, keeper = (f"\0GANGLINE_{name}={self.name}/".encode() for name in ("E2E", "MARK", "KEEPER"))
        state = str(self.folder).encode() + b"/"
        processes = live_pids(lambda environment, words: parts in environment or mark in environment or keeper in environment or (state in words and GANGLINE.encode() in words))
        left = [describe(pid) for pid in processes] + self.shared_memory()
        left += [f"abstract socket {name}" for name in abstract_sockets() if name in self.seen_sockets or self.name in name]
        for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            if os.path.isdir(f"{root}/gangline/{self.name}"):
                left.append(f"{root}/gangline/{self.name}")
        return processes, left

    def _end_gently(self):
        """Jobs that still run are cancelled; then no gang may be left on nodes whose agents live."""
        if not self.coordinator.is_alive() or not all(agent.is_alive() for agent in self.agents.values()):
            return
        active = [job["id"] for job in self.jobs() if job["state"] not in ENDED]
        if active:
            self.cli("cancel", *active, code=None)
            until("all jobs ended", lambda: all(job["state"] in ENDED for job in self.jobs()), 30, pause=0.05)
        self.assert_no_gang_left()

    def clean(self, node, state=None):
        """What an operator does on a node whose agent is gone for good. Returns what was wrong; empty when all is well."""
        try:
            done = subprocess.run([GANGLINE, "agent", "--clean", "--state", str(state or self.folder / node), "--node", node, "--cluster", self.name],
                                  capture_output=True, text=True, timeout=30, env=dict(self.environment, GANGLINE_E2E=f"{self.name}/clean"))
        except subprocess.TimeoutExpired:
            return f"agent --clean of {node} does not end"
        return "" if done.returncode == 0 else f"agent --clean of {node}: exit code {done.returncode}: {done.stdout}{done.stderr}"

    def take_down(self):
        """Ends everything. Returns what was wrong, in words; empty when nothing is left."""
        trouble = []
        for part in [self.coordinator, *self.agents.values()]:
            part.send(signal.SIGCONT)
        self.note_sockets()
        try:
            self._end_gently()
        except (AssertionError, subprocess.TimeoutExpired, OSError, ValueError) as error:
            trouble.append(f"the cluster did not end its gangs: {error}")
        for part in [*self.agents.values(), self.coordinator]:
            part.send(signal.SIGTERM)
        for part in [*self.agents.values(), self.coordinator]:
            if part.child is not None:
                try:
                    part.child.wait(10)
                except subprocess.TimeoutExpired:
                    trouble.append(f"{part.name} does not end by SIGTERM")
                    part.kill()
        trouble += filter(None, [self.clean(node) for node in self.agents])
        end = time.monotonic() + 5
        while True:
            processes, left = self.leftovers()
            if not left or time.monotonic() > end:
                break
            time.sleep(0.02)
        for pid in processes:
            Process(pid).kill()
        if left:
            trouble.append("left behind: " + "; ".join(left))
        return trouble

    def logs_of_parts(self):
        return "\n".join(f"---- {part.name}\n{part.log_tail(40)}" for part in [self.coordinator, *self.agents.values()])
