"""The coordinator dies in every state of a job. Ranks do not notice; a new coordinator replays its journal, the agents are back
within five seconds, and no job is lost, run twice or stuck."""

import random
import signal
import subprocess
import time

import pytest

from cluster import GANGLINE
from conftest import SOAK
from processes import Process, until
from trainer import starts, steady, undisturbed_weights, weights

AWAY = 0.3


def restart_coordinator(cluster, away=AWAY):
    """Kill, stay away, start again; the agents must be back within five seconds."""
    cluster.kill_coordinator()
    time.sleep(away)
    cluster.start_coordinator()
    begun = time.monotonic()
    until("agents back", lambda: all(view["state"] not in ("suspect", "lost") for view in cluster.node_views().values()), 5)
    print(f"agents back after {time.monotonic() - begun:.2f} s")


@pytest.fixture
def held(cluster):
    """A cluster and a file in which each start of a rank leaves a line."""
    log = cluster.work / "starts"

    def submit(*words, count=4, options=()):
        return cluster.submit("-n", count, *options, *steady("--starts", log, *words))

    return cluster, log, submit


def test_while_a_job_is_queued(held):
    cluster, log, submit = held
    first = cluster.submit("-n", 8, "--", "sleep", "2")
    job = submit("--steps", 20)
    view = cluster.wait_state(job, "QUEUED")
    restart_coordinator(cluster)
    assert cluster.show(job)["state"] == "QUEUED" and cluster.show(job)["submitted_unix_ms"] == view["submitted_unix_ms"]
    cluster.wait_completed(first)
    cluster.wait_completed(job)
    assert len(starts(log)) == 4


def test_right_after_the_answer_to_a_submit(cluster):
    jobs = [cluster.submit("-H", "--", "true") for _ in range(3)]
    cluster.kill_coordinator()
    cluster.start_coordinator()
    assert {cluster.show(job)["state"] for job in jobs} == {"QUEUED"}
    assert cluster.submit("-H", "--", "true") == jobs[-1] + 1, "a number was given twice"
    cluster.cli("release", *jobs)
    for job in jobs:
        cluster.wait_completed(job)


def test_while_a_gang_is_reserved(held):
    """One agent is frozen, so its part cannot be prepared."""
    cluster, log, submit = held
    cluster.agents["n1"].send(signal.SIGSTOP)
    job = submit("--steps", 20, options=["-N", 2])
    cluster.wait_state(job, {"RESERVED", "PREPARING"})
    cluster.kill_coordinator()
    cluster.agents["n1"].send(signal.SIGCONT)
    cluster.start_coordinator()
    view = cluster.wait_completed(job, 30)
    assert len(starts(log)) == 4 * len({attempt for attempt, *_ in starts(log)})
    assert view["attempt"] == 1, cluster.story(view)


def test_while_ranks_start(held):
    """Launched, but no rank has joined yet."""
    cluster, log, _ = held
    trainer = " ".join(steady("--steps", 20, "--starts", log)[1:])
    job = cluster.submit("-n", 4, "-N", 2, "--", "sh", "-c", f"sleep 1.5; exec {trainer}")
    until("ranks forked", lambda: len(cluster.marked()) >= 4, 10)
    restart_coordinator(cluster)
    view = cluster.wait_completed(job)
    assert view["attempt"] == 1 and len(starts(log)) == 4


@pytest.mark.parametrize("away", [0.3, pytest.param(5, marks=pytest.mark.long)])
def test_while_a_gang_trains(held, away):
    cluster, log, submit = held
    steps = 200 + 50 * round(away)
    job = submit("--steps", steps, "--every", 10, options=["-N", 2])
    cluster.wait_step(job, 20)
    before = cluster.rank_pids(job)
    restart_coordinator(cluster, away)
    cluster.wait_ranks(job, 5)
    assert cluster.rank_pids(job) == before
    view = cluster.wait_completed(job)
    assert view["attempt"] == 1 and len(starts(log)) == 4
    assert max(entry["step"] for entry in view["checkpoints"]) == steps
    assert weights(cluster, job) == undisturbed_weights(cluster, 4, steps)


def test_between_shard_and_commit(held):
    """Killed while the newest save waits for its commit: its snapshot serves, becomes a checkpoint then, and nothing half is ever listed."""
    cluster, log, submit = held
    job = submit("--steps", 80, "--step-ms", 30, "--every", 10, "--payload-mib", 16, count=2)
    cluster.wait(job, "a checkpoint", lambda view: view["checkpoints"], 20)
    root = cluster.checkpoints / f"job-{job}"
    known = {path.name for path in root.iterdir()}
    until("a shard of a later save", lambda: [path for path in root.glob(".tmp-*") if path.name not in known and any(path.iterdir())], 20, pause=0.001)
    cluster.kill_coordinator()
    until("a manifest without its commit", lambda: list(root.glob(".tmp-*/MANIFEST")), 10, pause=0.005)
    waiting = {path.parent.name.removeprefix(".tmp-") for path in root.glob(".tmp-*/MANIFEST")}
    ranks = [Process(pid) for pid in (pid for _, _, pid, _ in starts(log))]
    assert all(rank.is_alive() for rank in ranks), "a rank noticed"
    # Rank 0, which would ask for the commit again, dies before the new coordinator is there.
    for rank in ranks:
        rank.kill()
    cluster.start_coordinator()
    view = cluster.wait(job, "attempt 2 runs", lambda view: view["attempt"] >= 2 and view["state"] == "RUNNING", 20)
    restored = view["attempts"][1]["restored"]
    name = f"step-{restored['step']:012d}-e{restored['attempt']:06d}"
    assert restored["in_memory"] and name == max(waiting), restored
    cluster.wait(job, f"{name} committed, or a newer one", lambda view: any(entry["step"] >= restored["step"] for entry in view["checkpoints"]), 20)
    cluster.wait_completed(job, 60)
    assert weights(cluster, job) == undisturbed_weights(cluster, 2, 80, "--payload-mib", 16)


def test_a_save_is_committed_by_the_next_coordinator(held):
    cluster, log, submit = held
    job = submit("--steps", 160, "--every", 10, count=2)
    cluster.wait(job, "a checkpoint", lambda view: view["checkpoints"], 20)
    newest = max(entry["step"] for entry in cluster.show(job)["checkpoints"])
    cluster.kill_coordinator()
    root = cluster.checkpoints / f"job-{job}"
    until("a save that waits", lambda: list(root.glob(".tmp-*/MANIFEST")), 10)
    cluster.start_coordinator()
    cluster.wait(job, "committed", lambda view: max(entry["step"] for entry in view["checkpoints"]) > newest, 5)
    view = cluster.wait_completed(job)
    assert view["attempt"] == 1


def test_while_a_job_stops(held):
    cluster, log, _ = held
    job = cluster.submit("-n", 2, "--grace", "20", "--", "sh", "-c", "trap 'sleep 1.5; exit 0' TERM; sleep 60 & wait")
    cluster.wait_ranks(job)
    cluster.cli("cancel", job)
    cluster.wait_state(job, "STOPPING")
    restart_coordinator(cluster)
    view = cluster.wait_state(job, "CANCELLED")
    assert view["attempt"] == 1
    cluster.assert_no_gang_left()


def test_while_a_job_recovers(held):
    """A rank is dead and one agent is frozen, so its part cannot be proved empty."""
    cluster, log, submit = held
    job = submit("--steps", 100, "--every", 10, options=["-N", 2])
    cluster.wait(job, "a checkpoint", lambda view: view["checkpoints"], 20)
    pids = cluster.rank_pids(job)
    cluster.agents["n1"].send(signal.SIGSTOP)
    Process(pids[0]).kill()
    cluster.wait_state(job, "RECOVERING")
    restart_coordinator_with_frozen(cluster)
    cluster.wait_completed(job)
    assert len(starts(log)) == 4 * len({attempt for attempt, *_ in starts(log)}), "an attempt started a rank twice"
    assert weights(cluster, job) == undisturbed_weights(cluster, 4, 100)


def restart_coordinator_with_frozen(cluster):
    cluster.kill_coordinator()
    cluster.agents["n1"].send(signal.SIGCONT)
    time.sleep(AWAY)
    cluster.start_coordinator()


def test_while_the_gang_ends(held):
    """The last rank exits while no coordinator is there to hear it."""
    cluster, log, submit = held
    # No save near the end: a rank waits for the word on its last checkpoint, which only a coordinator can give.
    job = submit("--steps", 150, "--every", 100000, count=2)
    cluster.wait_step(job, 5)
    ranks = [Process(pid) for pid in cluster.rank_pids(job).values()]
    cluster.kill_coordinator()
    until("ranks end", lambda: not any(rank.is_alive() for rank in ranks), 15)
    cluster.start_coordinator()
    view = cluster.wait_completed(job, 10)
    assert view["attempt"] == 1 and len(starts(log)) == 2


def test_right_after_the_end(held):
    cluster, log, submit = held
    job = submit("--steps", 3, count=2)
    cluster.wait_completed(job)
    cluster.kill_coordinator()
    cluster.start_coordinator()
    time.sleep(1)
    view = cluster.show(job)
    assert view["state"] == "COMPLETED" and view["attempt"] == 1 and len(starts(log)) == 2
    assert cluster.logs(job).count("weights ") == 2


def test_a_rank_dies_while_the_coordinator_is_dead(held):
    cluster, log, submit = held
    job = submit("--steps", 120, "--every", 10, options=["-N", 2])
    cluster.wait(job, "a checkpoint", lambda view: view["checkpoints"], 20)
    rank = Process(cluster.rank_pids(job)[3])
    cluster.kill_coordinator()
    rank.kill()
    time.sleep(AWAY)
    cluster.start_coordinator()
    view = cluster.wait_completed(job)
    assert view["restarts"] == 1 and view["attempts"][0]["rank"] == 3
    assert weights(cluster, job) == undisturbed_weights(cluster, 4, 120)


def test_coordinator_and_agents_die_together(held):
    cluster, log, submit = held
    job = submit("--steps", 200, "--every", 10, options=["-N", 2])
    cluster.wait_step(job, 20)
    before = cluster.rank_pids(job)
    cluster.kill_coordinator()
    for node in cluster.node_names:
        cluster.kill_agent(node)
    cluster.start_coordinator()
    for node in cluster.node_names:
        cluster.start_agent(node, wait=False)
    cluster.wait_ranks(job, 5)
    assert cluster.rank_pids(job) == before
    view = cluster.wait_completed(job)
    assert view["attempt"] == 1 and len(starts(log)) == 4


@pytest.mark.long
def test_killed_at_random_moments_no_job_is_lost_or_run_twice(held):
    cluster, log, _ = held
    chance = random.Random(20261130)
    jobs = []
    for turn in range(40 if SOAK else 12):
        for _ in range(2):
            words = f"echo $GANGLINE_JOB_ID $GANGLINE_ATTEMPT $RANK >> {log}; sleep {chance.random() * 0.4:.2f}"
            jobs.append(cluster.submit("-n", chance.choice([1, 2, 5]), "--", "sh", "-c", words))
        time.sleep(chance.random() * 0.5)
        cluster.kill_coordinator()
        cluster.start_coordinator()
    for job in jobs:
        view = cluster.wait_completed(job, 60)
        assert view["attempt"] == 1, cluster.story(view)
    lines = log.read_text().splitlines()
    assert len(lines) == len(set(lines)), "a rank was started twice"
    assert len(lines) == sum(view["ranks"] for view in cluster.jobs() if view["id"] in jobs)


def test_a_second_coordinator_on_the_same_state_is_refused(cluster):
    """Two coordinators on one journal would both give orders."""
    second = subprocess.run([GANGLINE, *cluster.coordinator.argv[:cluster.coordinator.argv.index("--listen-users")], "--authorised", str(cluster.folder / "authorised")],
                            capture_output=True, text=True, timeout=10, env=cluster.environment)
    assert second.returncode != 0
    assert "another" in second.stderr or "in use" in second.stderr or "lock" in second.stderr, second.stderr
    cluster.wait_completed(cluster.submit("--", "true"))
