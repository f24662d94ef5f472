"""A rank dies, stops, or dies while its checkpoint is being saved: training goes on from the newest committed checkpoint and
ends with the very weights of a run that nothing disturbed."""

import os
import random
import re
import signal

import pytest

from conftest import SOAK
from processes import Process, until
from trainer import starts, steady, undisturbed_weights, weights

KILLS = 60 if SOAK else 20


@pytest.mark.long
def test_twenty_killed_ranks_leave_the_weights_bit_identical(cluster):
    seed = int(os.environ.get("GANGLINE_E2E_SEED", random.randrange(1 << 30)))
    print("GANGLINE_E2E_SEED =", seed)
    chance = random.Random(seed)
    steps = 90 * KILLS
    expected = undisturbed_weights(cluster, 4, steps)
    job = cluster.submit("-n", 4, "-N", 2, *steady("--steps", steps, "--step-ms", 8, "--every", 10))
    for kill in range(KILLS):
        # At least one new checkpoint each time, so that every restart makes progress.
        newest = max((view["step"] for view in cluster.show(job)["checkpoints"]), default=0)
        view = cluster.wait_step(job, min(newest + chance.randrange(11, 25), steps - 5), attempt=kill + 1)
        assert view["attempt"] == kill + 1, f"attempt {view['attempt']} after {kill} kills:\n{cluster.story(view)}"
        cluster.kill_rank(job, chance.randrange(4))
        cluster.wait(job, f"attempt {kill + 2}", lambda view: view["attempt"] >= kill + 2, 10)
    view = cluster.wait_completed(job, 60)
    assert view["restarts"] == KILLS
    assert weights(cluster, job) == expected
    for attempt in view["attempts"][:-1]:
        assert attempt["signal"] == signal.SIGKILL and attempt["kind"] == "INFRASTRUCTURE", attempt
        assert re.search(r"rank \d", attempt["cause"]), attempt["cause"]
    for before, after in zip(view["attempts"], view["attempts"][1:]):
        assert after["restored"] is not None, "a restart forgot the checkpoints"
        if before["restored"] is not None:
            assert after["restored"]["step"] >= before["restored"]["step"]


def test_a_restart_takes_the_newest_committed_checkpoint(cluster):
    log = cluster.work / "starts"
    job = cluster.submit("-n", 2, *steady("--steps", 100000, "--every", 10, "--starts", log))
    cluster.wait(job, "two checkpoints", lambda view: len(view["checkpoints"]) >= 2, 20)
    cluster.kill_rank(job, 1)
    cluster.wait_step(job, 1, attempt=2)
    until("both ranks start again", lambda: sum(attempt == 2 for attempt, *_ in starts(log)) == 2, 10)
    view = cluster.show(job)
    restored = view["attempts"][1]["restored"]["step"]
    earlier = [checkpoint["step"] for checkpoint in view["checkpoints"] if checkpoint["attempt"] == 1]
    assert restored == max(earlier)
    assert {first for attempt, _, _, first in starts(log) if attempt == 2} == {restored}


def test_a_stopped_rank_is_named_and_the_gang_restarted(cluster):
    job = cluster.submit("-n", 4, "--progress-timeout", "1500ms", *steady("--steps", 150, "--every", 10))
    cluster.wait_step(job, 25)
    stopped = Process(cluster.rank_pids(job)[2])
    stopped.send(signal.SIGSTOP)
    view = cluster.wait(job, "attempt 2", lambda view: view["attempt"] >= 2, 10)
    first = view["attempts"][0]
    assert first["rank"] == 2 and "rank 2" in first["cause"], first
    assert first["kind"] == "INFRASTRUCTURE", first
    stopped.wait_gone()
    view = cluster.wait_completed(job)
    assert weights(cluster, job) == undisturbed_weights(cluster, 4, 150)


def test_a_program_without_the_library_is_not_taken_for_hanging(cluster):
    job = cluster.submit("--progress-timeout", "500ms", "--", "sleep", "3")
    view = cluster.wait_completed(job)
    assert view["restarts"] == 0


def checkpoint_folders(cluster, job):
    root = cluster.checkpoints / f"job-{job}"
    return [path for path in root.iterdir()] if root.is_dir() else []


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("memory", [True, False], ids=["snapshots in memory", "disk only"])
def test_a_rank_killed_during_a_save_leaves_the_earlier_checkpoint_or_a_whole_snapshot(cluster, victim, memory):
    """The payload makes a save long enough to be hit: the kill comes while the folder of a later step is being written."""
    tier = [] if memory else ["--export", "ALL,GANGLINE_CHECKPOINT_MEMORY_MIB=0"]
    job = cluster.submit("-n", 2, *tier, *steady("--steps", 60, "--step-ms", 30, "--every", 10, "--payload-mib", 48))
    cluster.wait(job, "a checkpoint", lambda view: view["checkpoints"], 30)
    pid = Process(cluster.rank_pids(job)[victim])
    known = {path.name for path in checkpoint_folders(cluster, job)}
    until("a save under way", lambda: [path for path in checkpoint_folders(cluster, job) if path.name.startswith(".tmp-") and path.name not in known
                                       and any(path.iterdir())], 20, pause=0.001)
    committed = {(view["step"], view["attempt"]) for view in cluster.show(job)["checkpoints"]}
    pid.kill()
    view = cluster.wait(job, "attempt 2 runs", lambda view: view["attempt"] >= 2 and view["state"] == "RUNNING", 20)
    restored = view["attempts"][1]["restored"]
    of_the_first = {(entry["step"], entry["attempt"]) for entry in view["checkpoints"] if entry["attempt"] == 1}
    assert of_the_first >= committed and (memory or not restored["in_memory"])
    if restored["in_memory"]:
        assert restored["attempt"] == 1 and restored["step"] > max(step for step, _ in committed)
    else:
        assert (restored["step"], restored["attempt"]) == max(of_the_first)
    view = cluster.wait_completed(job, 60)
    assert weights(cluster, job) == undisturbed_weights(cluster, 2, 60, "--payload-mib", 48)
    listed = {f"step-{entry['step']:012d}-e{entry['attempt']:06d}" for entry in view["checkpoints"]}
    there = {path.name for path in checkpoint_folders(cluster, job) if path.name.startswith("step-")}
    assert there <= listed, f"published but never committed: {there - listed}"
