"""An agent dies: its gang does not notice. A node dies: its gang goes on elsewhere."""

import signal
import time

import pytest

from processes import Process, live_pids, read_stat, until
from trainer import starts, steady, undisturbed_weights, weights


@pytest.mark.parametrize("away", [1, pytest.param(6, marks=pytest.mark.long)])
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_gang_trains_on_without_its_agent(make_cluster, away, nodes):
    """Dead for 1 s: less than the node timeout. For 6 s: the shepherd speaks for itself."""
    cluster = make_cluster(nodes=2)
    log = cluster.work / "starts"
    steps = 250 + 60 * away
    job = cluster.submit("-n", 4, "-N", nodes, *steady("--steps", steps, "--every", 10, "--starts", log))
    cluster.wait_step(job, 20)
    before = cluster.rank_pids(job)
    node = cluster.show(job)["gang"][0]["node"]
    step = cluster.show(job)["progress"]["step"]
    cluster.kill_agent(node)
    time.sleep(away)
    view = cluster.show(job)
    assert view["state"] == "RUNNING" and view["attempt"] == 1, cluster.story(view)
    if away > 3:
        assert cluster.node_state(node) == "suspect"
        assert view["checkpoints"][-1]["step"] > step + 50, "commits must go on while the agent is away"
    cluster.start_agent(node)
    cluster.wait_node(node, {"mixed", "allocated"}, 5)
    assert {rank: pid for rank, pid in cluster.rank_pids(job).items()} == before
    view = cluster.wait_completed(job)
    assert view["attempt"] == 1
    assert len(starts(log)) == 4
    assert weights(cluster, job) == undisturbed_weights(cluster, 4, steps)


def test_a_job_that_ends_while_the_agent_is_away_is_not_run_again(cluster):
    log = cluster.work / "starts"
    job = cluster.submit("-n", 2, "-w", "n0", *steady("--steps", 100, "--every", 10, "--starts", log))
    cluster.wait_step(job, 10)
    cluster.kill_agent("n0")
    ranks = [Process(pid) for pid in cluster.rank_pids(job).values()]
    until("ranks end", lambda: not any(rank.is_alive() for rank in ranks), 15)
    cluster.start_agent("n0")
    view = cluster.wait_completed(job, 10)
    assert view["attempt"] == 1 and len(starts(log)) == 2
    assert weights(cluster, job) == undisturbed_weights(cluster, 2, 100)


def test_agents_die_again_and_again(cluster):
    job = cluster.submit("-n", 4, "-N", 2, *steady("--steps", 300, "--every", 10))
    cluster.wait_step(job, 10)
    before = cluster.rank_pids(job)
    for turn in range(6):
        node = f"n{turn % 2}"
        cluster.kill_agent(node)
        cluster.start_agent(node)
        view = cluster.show(job)
        assert view["attempt"] == 1 and view["state"] == "RUNNING", cluster.story(view)
    cluster.wait_ranks(job)
    assert cluster.rank_pids(job) == before
    assert cluster.wait_completed(job)["attempt"] == 1


def test_a_dead_node_is_lost_in_three_seconds_and_its_gang_moves(make_cluster):
    cluster = make_cluster(nodes=3, cards=2)
    expected = undisturbed_weights(cluster, 4, 200)
    job = cluster.submit("-n", 4, *steady("--steps", 200, "--every", 10))
    cluster.wait_step(job, 30)
    gang = [place["node"] for place in cluster.show(job)["gang"]]
    assert len(gang) == 2
    lost = gang[1]
    cluster.kill_node(lost)
    dead_at = time.monotonic()
    cluster.wait_node(lost, "lost", 5)
    detected = time.monotonic() - dead_at
    view = cluster.wait(job, "runs elsewhere", lambda view: view["attempt"] == 2 and view["state"] == "RUNNING", 10)
    moved = time.monotonic() - dead_at
    print(f"lost seen after {detected:.2f} s, running elsewhere after {moved:.2f} s")
    assert detected < 3.2
    assert lost not in [place["node"] for place in view["gang"]]
    first = view["attempts"][0]
    assert lost in first["cause"] and first["kind"] == "INFRASTRUCTURE", first
    assert view["attempts"][1]["restored"]["step"] > 0
    cluster.wait_completed(job)
    assert weights(cluster, job) == expected

    # The node comes back, empty, and is used again.
    cluster.start_agent(lost)
    cluster.wait_node(lost, "idle")
    again = cluster.submit("-n", 2, "-w", lost, "--", "true")
    cluster.wait_completed(again)


def test_a_dead_node_with_nowhere_to_go_is_waited_for(cluster):
    job = cluster.submit("-n", 8, *steady("--steps", 150, "--every", 10))
    cluster.wait_step(job, 20)
    cluster.kill_node("n1")
    cluster.wait_node("n1", "lost", 5)
    view = cluster.wait_state(job, {"RECOVERING", "QUEUED"})
    assert "card" in view["reason"] or "n1" in view["reason"], view["reason"]
    cluster.start_agent("n1")
    cluster.wait_completed(job)
    assert weights(cluster, job) == undisturbed_weights(cluster, 8, 150)


def test_a_frozen_node_that_thaws_ends_its_old_gang(make_cluster):
    """SIGSTOP of all of a node: lost. SIGCONT: its ranks of the old attempt must go, the new attempt must not be hurt."""
    cluster = make_cluster(nodes=3, cards=2)
    log = cluster.work / "starts"
    job = cluster.submit("-n", 2, *steady("--steps", 300, "--every", 10, "--starts", log))
    cluster.wait_step(job, 20)
    node = cluster.show(job)["gang"][0]["node"]
    frozen = [Process(pid) for pid in cluster.processes_of_node(node)]
    old_ranks = [Process(pid) for pid in cluster.rank_pids(job).values()]
    for process in frozen:
        process.send(signal.SIGSTOP)
    cluster.wait_node(node, "lost", 5)
    cluster.wait_step(job, 30, attempt=2)
    for process in frozen:
        process.send(signal.SIGCONT)
    for rank in old_ranks:
        rank.wait_gone()
    cluster.wait_node(node, "idle")
    view = cluster.wait_completed(job)
    assert view["attempt"] == 2
    assert weights(cluster, job) == undisturbed_weights(cluster, 2, 300)


def test_a_shepherd_killed_alone_takes_its_ranks_along_and_the_gang_restarts(cluster):
    job = cluster.submit("-n", 4, "-N", 2, *steady("--steps", 150, "--every", 10))
    cluster.wait_step(job, 20)
    ranks = cluster.rank_pids(job)
    shepherd = read_stat(ranks[0])[1]
    old = [Process(pid) for pid in ranks.values()]
    Process(shepherd).kill()
    view = cluster.wait(job, "attempt 2", lambda view: view["attempt"] >= 2, 10)
    for rank in old:
        rank.wait_gone()
    assert view["attempts"][0]["kind"] == "INFRASTRUCTURE", view["attempts"][0]
    cluster.wait_completed(job)
    assert weights(cluster, job) == undisturbed_weights(cluster, 4, 150)


def test_the_agent_ends_by_sigterm_and_leaves_the_gang(cluster):
    job = cluster.submit("-n", 2, "-w", "n0", *steady("--steps", 200, "--every", 10))
    cluster.wait_step(job, 10)
    before = cluster.rank_pids(job)
    cluster.agents["n0"].send(signal.SIGTERM)
    assert cluster.agents["n0"].child.wait(5) == 0
    cluster.start_agent("n0")
    cluster.wait_node("n0", {"mixed", "allocated"}, 5)
    assert cluster.rank_pids(job) == before
    assert cluster.wait_completed(job)["attempt"] == 1


def test_clean_ends_a_gang_whose_agent_is_dead(cluster):
    job = cluster.submit("-n", 2, "-w", "n0", "--", "sh", "-c", "trap '' TERM; sleep 300 & sleep 300")
    cluster.wait_ranks(job)
    cluster.kill_agent("n0")
    assert cluster.clean("n0") == ""
    assert not cluster.marked("n0") and not cluster.shared_memory("n0")
    assert not [pid for pid in live_pids(lambda environment, _: f"\0GANGLINE_E2E={cluster.name}/n0\0".encode() in environment)]
    cluster.cli("cancel", job)
    cluster.start_agent("n0")
    cluster.wait_state(job, {"CANCELLED"})
