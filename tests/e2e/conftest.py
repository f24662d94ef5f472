"""Fixtures: `make_cluster` and `cluster`, taken down after each test with the proof that nothing is left; `fresh_home` for
the verbs without a configured cluster."""

import os
import pathlib
import secrets
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from cluster import GANGLINE, Cluster, clean_environment  # noqa: E402
from processes import Process, describe, live_pids  # noqa: E402

SOAK = os.environ.get("GANGLINE_SOAK") == "1"


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes more than ten seconds")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    setattr(item, "report_" + call.when, outcome.get_result())


@pytest.fixture
def make_cluster(tmp_path, request):
    made = []

    def make(**options):
        cluster = Cluster.__new__(Cluster)
        made.append(cluster)  # before it starts: what fails half-way is taken down as well
        cluster.__init__(tmp_path / f"cluster{len(made)}", **options)
        return cluster

    yield make
    trouble = []
    for cluster in made:
        if hasattr(cluster, "agents"):
            trouble += cluster.take_down()
    report = getattr(request.node, "report_call", None)
    if trouble or (report is not None and report.failed):
        for cluster in made:
            if hasattr(cluster, "agents"):
                print(cluster.logs_of_parts())
    assert not trouble, "\n".join(trouble)


@pytest.fixture
def cluster(make_cluster):
    return make_cluster()


class Home:
    """A user's home where nothing is configured."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.work = self.folder / "work"
        self.state = self.folder / "home/state"
        self.work.mkdir(parents=True)
        (self.folder / "home").mkdir()
        self.token = "home-" + secrets.token_hex(4)
        self.environment = clean_environment(self.folder / "home", self.token)

    def cli(self, *words, code=0, timeout=60, stdin="", environment=None, text=True):
        done = subprocess.run([GANGLINE, *map(str, words)], capture_output=True, text=text, errors="replace" if text else None,
                              input=stdin if text else stdin.encode(), cwd=self.work, env=dict(self.environment, **(environment or {})), timeout=timeout)
        assert code is None or done.returncode == code, f"gangline {' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *words, **more):
        return subprocess.Popen([GANGLINE, *map(str, words)], cwd=self.work, env=self.environment, **more)

    def processes(self):
        """Live processes that a verb called here has started: private clusters, their gangs, everything below."""
        mine, state = f"\0GANGLINE_E2E={self.token}\0".encode(), str(self.state).encode() + b"/"
        return live_pids(lambda environment, words: mine in environment or (state in words and GANGLINE.encode() in words))

    def shared_memory(self):
        clusters = {path.name for path in self.state.glob("run-*")} if self.state.is_dir() else set()
        return [str(path) for path in pathlib.Path("/dev/shm").glob("gangline-*") if any(name in path.name for name in clusters)]

    def wait_nothing_left(self, deadline=10):
        end = time.monotonic() + deadline
        while self.processes() and time.monotonic() < end:
            time.sleep(0.02)
        return [describe(pid) for pid in self.processes()] + self.shared_memory()


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path / "fresh")
    yield home
    left = home.wait_nothing_left()
    for pid in home.processes():
        Process(pid).kill()
    assert not left, "left behind: " + "; ".join(left)
