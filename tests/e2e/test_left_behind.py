"""Ranks that leave children behind, ignore SIGTERM, double-fork or call setsid: all of it is gone before the cards are free."""

import time

import pytest

from cluster import PROGRAMS
from processes import Process, until, read_bytes

CLINGING = str(PROGRAMS / "clinging.py")


def clinging(folder, *ways):
    return ["--", "/usr/bin/python3", CLINGING, folder, *ways]


def written_pids(folder):
    return [int(path.name) for path in folder.iterdir()] if folder.is_dir() else []


# Asks of each pid that an earlier job wrote down whether it is still there.
CHECK_EARLIER = 'for pid in $(ls "$0"); do if kill -0 $pid 2>/dev/null && ! grep -q "State:.*Z" /proc/$pid/status; then echo ALIVE $pid; fi; done; echo checked'


def next_job_checks(cluster, folder):
    job = cluster.submit("--", "sh", "-c", CHECK_EARLIER, folder)
    return job


@pytest.fixture
def one_card(make_cluster):
    return make_cluster(nodes=1, cards=1)


@pytest.mark.parametrize("way", ["child", "setsid", "double-fork", "no-environment", "ignore-term", "many"])
def test_nothing_outlives_a_rank_that_exits(one_card, way):
    cluster = one_card
    folder = cluster.work / "pids"
    job = cluster.submit(*clinging(folder, way, "exit"))
    checker = next_job_checks(cluster, folder)  # waits for the only card
    assert cluster.wait_completed(job)["exit_code"] == 0
    cluster.wait_completed(checker)
    assert len(written_pids(folder)) >= 2
    assert cluster.logs(checker).split() == ["checked"], cluster.logs(checker)


@pytest.mark.parametrize("way", ["child", "setsid", "double-fork", "no-environment", "ignore-term", "many"])
def test_nothing_outlives_a_cancelled_rank(one_card, way):
    cluster = one_card
    folder = cluster.work / "pids"
    job = cluster.submit("--grace", "500ms", *clinging(folder, way, "stay"))
    until("it clings", lambda: (folder.parent / "ready").exists(), 10)
    checker = next_job_checks(cluster, folder)
    cluster.cli("cancel", job)
    cluster.wait_state(job, "CANCELLED")
    cluster.wait_completed(checker)
    assert cluster.logs(checker).split() == ["checked"], cluster.logs(checker)


def test_a_failed_rank_takes_its_clinging_peers_along(make_cluster):
    cluster = make_cluster(nodes=2, cards=1)
    folder = cluster.work / "pids"
    script = f'if [ "$RANK" = 1 ]; then while [ ! -e {folder.parent}/ready ]; do sleep 0.02; done; exit 9; fi; exec /usr/bin/python3 {CLINGING} {folder} many stay'
    job = cluster.submit("-n", 2, "--", "sh", "-c", script)
    view = cluster.wait_state(job, "FAILED")
    assert view["exit_code"] == 9
    assert not [pid for pid in written_pids(folder) if Process(pid).is_alive()]


def test_sigterm_comes_first_and_the_grace_is_kept(cluster):
    job = cluster.submit("--grace", "10", "--", "sh", "-c", "trap 'echo asked to stop; sleep 0.3; echo stopped well; exit 0' TERM; sleep 60 & wait")
    cluster.wait_ranks(job)
    cluster.cli("cancel", job)
    cluster.wait_state(job, "CANCELLED")
    assert cluster.logs(job).split("\n")[:2] == ["asked to stop", "stopped well"]


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(cluster):
    job = cluster.submit("--grace", "700ms", "--", "sh", "-c", "trap '' TERM; while :; do sleep 1; done")
    cluster.wait_ranks(job)
    time.sleep(0.2)
    begun = time.monotonic()
    cluster.cli("cancel", job)
    cluster.wait_state(job, "CANCELLED", 8)
    assert 0.6 < time.monotonic() - begun < 6


def test_an_agent_cleans_up_what_its_shepherd_left(cluster):
    """Shepherd and agent are killed, the clinging children live on: the next agent ends them before it offers the card."""
    folder = cluster.work / "pids"
    job = cluster.submit("-w", "n0", *clinging(folder, "many", "stay"))
    until("it clings", lambda: (folder.parent / "ready").exists(), 10)
    ranks = {pid for pid in written_pids(folder)}
    cluster.kill_agent("n0")
    for pid in cluster.processes_of_node("n0") - ranks:
        if f"GANGLINE_MARK={cluster.name}".encode() not in read_bytes(f"/proc/{pid}/environ"):
            Process(pid).kill()
    cluster.start_agent("n0")
    cluster.wait(job, "attempt 2", lambda view: view["attempt"] >= 2, 15)
    cluster.wait_node("n0", {"idle", "mixed", "allocated"})
    assert not [pid for pid in ranks if Process(pid).is_alive()]
    cluster.cli("cancel", job)
    cluster.wait_state(job, "CANCELLED")
