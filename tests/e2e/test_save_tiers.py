"""Saves that are due go to disk now and then, and to the keepers' memory between: from there a gang goes on after a step that no disk has seen."""

import signal

from processes import Process, until
from trainer import starts, steady, undisturbed_weights, weights

# 4 MiB a rank at 1 MiB a second: each save on disk takes four seconds, so half of the time there are saves in memory, one each second.
SLOW_DISK = ("--export", "ALL,GANGLINE_CHECKPOINT_WRITE_MIB_S=1")
PAYLOAD = ("--payload-mib", 4)
STEPS = 900


def due(*words):
    """The trainer that saves when it is due, on a cluster whose failures come each second."""
    separator, *command = steady("--due", *PAYLOAD, *words)
    return [separator, "/usr/bin/env", "GANGLINE_MTBF_S=1", *command]


def said(cluster, job):
    return cluster.cli("logs", "--err", job).stderr


def in_memory_alone(cluster, job, attempt, after=0):
    """A step that all ranks have in memory, newer than any on disk or on its way there."""
    folder = cluster.checkpoints / f"job-{job}"
    found = []

    def look(view):
        if not view["checkpoints"] or not view["rank_views"]:
            return False
        step = min(int(rank.get("snapshot_step") or 0) for rank in view["rank_views"])
        on_disk = [one.name for one in folder.glob("*step-*") if f"step-{step:012d}-e{attempt:06d}" in one.name]
        found.append(step)
        return step > max(after, view["checkpoints"][-1]["step"]) and not on_disk

    cluster.wait(job, "a step in memory alone", look, 30)
    return found[-1]


def test_a_gang_goes_on_from_a_step_that_was_saved_in_memory_alone_and_that_becomes_a_checkpoint(cluster):
    log = cluster.work / "starts"
    job = cluster.submit("-n", 4, "-N", 2, *SLOW_DISK, *due("--steps", STEPS, "--starts", log))
    step = in_memory_alone(cluster, job, 1)
    cluster.kill_rank(job, 3)
    view = cluster.wait_step(job, step + 1, attempt=2, deadline=30)
    restored = view["attempts"][1]["restored"]
    assert restored["in_memory"] and restored["step"] >= step, restored
    assert {first for attempt, _, _, first in starts(log) if attempt == 2} == {restored["step"]}
    cluster.wait(job, "that step's checkpoint", lambda view: any(one["attempt"] == 1 and one["step"] == restored["step"] for one in view["checkpoints"]), 20)
    cluster.wait_completed(job, 90)
    assert weights(cluster, job) == undisturbed_weights(cluster, 4, STEPS, *PAYLOAD)
    assert "saves are made in memory every" in said(cluster, job)


def test_a_keeper_that_dies_between_two_saves_in_memory_is_replaced_and_the_gang_trains_on(cluster):
    job = cluster.submit("-n", 2, *SLOW_DISK, *due("--steps", STEPS))
    step = in_memory_alone(cluster, job, 1)
    [keeper] = until("a keeper", lambda: cluster.keepers(job), 5)
    Process(keeper).send(signal.SIGKILL)
    step = in_memory_alone(cluster, job, 1, after=step)
    assert cluster.keepers(job) != [keeper]
    cluster.kill_rank(job, 0)
    view = cluster.wait_step(job, step + 1, attempt=2, deadline=30)
    assert view["attempts"][1]["restored"]["step"] >= step
    cluster.wait_completed(job, 90)
    assert weights(cluster, job) == undisturbed_weights(cluster, 2, STEPS, *PAYLOAD)


def test_where_all_saves_go_to_disk_a_rank_that_is_killed_goes_on_from_there(cluster):
    job = cluster.submit("-n", 2, "--export", "ALL,GANGLINE_CHECKPOINT_TIERS=disk", *due("--steps", 300))
    cluster.wait(job, "two checkpoints", lambda view: len(view["checkpoints"]) >= 2, 30)
    cluster.wait_completed(job, 60)
    assert "saves are made every" in said(cluster, job) and "saves are made in memory" not in said(cluster, job)
