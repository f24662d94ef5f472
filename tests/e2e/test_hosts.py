"""Several hosts: two network namespaces, each joined by a veth pair to a bridge that the coordinator listens on. The agents live
inside; a link that goes down is a host that is gone."""

import os
import secrets
import subprocess
import time

import pytest

from processes import until
from trainer import steady, undisturbed_weights, weights

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: hosts are played by network namespaces")


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Hosts:
    """A bridge with the coordinator's address and namespaces h0, h1, ... behind it. Names are unique to this test."""

    def __init__(self, count):
        self.tag = secrets.token_hex(3)
        self.count = count
        number = int(self.tag[:2], 16)
        self.prefix = f"10.{200 + number % 50}.{int(self.tag[2:4], 16)}"
        self.bridge = f"gb{self.tag}"

    def make(self):
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.prefix}.1/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        for i in range(self.count):
            name = self.namespace(i)
            ip("netns", "add", name)
            ip("link", "add", f"gv{self.tag}{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"gv{self.tag}{i}", "master", self.bridge, "up")
            ip("-n", name, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def namespace(self, i):
        return f"gn{self.tag}{i}"

    def address(self, i):
        return f"{self.prefix}.{10 + i}"

    def link(self, i, state):
        ip("link", "set", f"gv{self.tag}{i}", state)

    def remove(self):
        for i in range(self.count):
            subprocess.run(["ip", "netns", "del", self.namespace(i)], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)


@pytest.fixture
def hosts():
    hosts = Hosts(3)
    try:
        try:
            hosts.make()
        except OSError as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield hosts
    finally:
        hosts.remove()


@pytest.fixture
def spread(hosts, make_cluster):
    """A cluster whose node i lives in namespace i, the coordinator outside."""
    return make_cluster(nodes=3, cards=2, address=f"{hosts.prefix}.1", node_address=lambda node: hosts.address(int(node[1:])),
                        agent_prefix=lambda node: ["ip", "netns", "exec", hosts.namespace(int(node[1:]))])


def test_mpi_and_torch_style_environment_over_real_addresses(spread, hosts):
    job = spread.submit("-n", 6, "--", "/usr/bin/python3", "-c",
                        "import os; from mpi4py import MPI; c = MPI.COMM_WORLD; print(c.rank, c.size, c.allreduce(c.rank), os.environ['MASTER_ADDR'], flush=True)")
    spread.wait_completed(job, 60)
    assert sorted(spread.logs(job).splitlines()) == [f"{rank} 6 15 {hosts.address(0)}" for rank in range(6)]


@pytest.mark.long
def test_a_link_goes_down_and_the_job_recovers_on_the_other_hosts(spread, hosts):
    expected = undisturbed_weights(spread, 4, 200)
    job = spread.submit("-n", 4, *steady("--steps", 200, "--every", 10))
    spread.wait_step(job, 30)
    spread.wait(job, "copies of its snapshots on other hosts", lambda view: view["rank_views"] and all(int(rank.get("replica_step") or 0) >= 10 for rank in view["rank_views"]), 10)
    gang = [place["node"] for place in spread.show(job)["gang"]]
    cut = gang[-1]
    old = [pid for pid in spread.marked(cut)]
    assert old
    hosts.link(int(cut[1:]), "down")
    down_at = time.monotonic()
    spread.wait_node(cut, "lost", 5)
    detected = time.monotonic() - down_at
    view = spread.wait(job, "runs elsewhere", lambda view: view["attempt"] == 2 and view["state"] == "RUNNING", 15)
    print(f"lost seen after {detected:.2f} s, running elsewhere after {time.monotonic() - down_at:.2f} s")
    assert detected < 3.2
    assert cut not in [place["node"] for place in view["gang"]]
    spread.wait_step(job, 60, attempt=2)

    # The link is back: what still ran over there must end, and the node serves again.
    hosts.link(int(cut[1:]), "up")
    until("the old ranks are gone", lambda: not set(old) & set(spread.marked(cut)), 20)
    spread.wait_node(cut, {"idle"}, 20)
    spread.wait_completed(job, 60)
    assert weights(spread, job) == expected


def test_a_short_outage_costs_nothing(spread, hosts):
    job = spread.submit("-n", 2, "-w", "n1", *steady("--steps", 150, "--every", 10))
    spread.wait_step(job, 20)
    hosts.link(1, "down")
    time.sleep(0.8)
    hosts.link(1, "up")
    view = spread.wait_completed(job)
    assert view["attempt"] == 1
