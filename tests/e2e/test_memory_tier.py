"""Snapshots in a keeper's memory outlive their ranks: a restart reads them back, also before they ever came to disk; and a keeper may die."""

import signal

from processes import Process, until
from trainer import starts, steady, undisturbed_weights, weights

SLOW_DISK = ("--export", "ALL,GANGLINE_CHECKPOINT_WRITE_MIB_S=2")


def restored(view, attempt=2):
    return view["attempts"][attempt - 1]["restored"]


def snapshot_of_all(cluster, job, step):
    """Every rank's keeper holds a snapshot of at least this step."""
    cluster.wait(job, f"snapshots of step {step}", lambda view: view["rank_views"] and all(int(rank.get("snapshot_step") or 0) >= step for rank in view["rank_views"]), 20)


def test_a_killed_rank_comes_back_from_a_snapshot_that_was_not_on_disk_yet(cluster):
    """16 MiB a rank at 2 MiB a second: the first snapshot is whole long before its checkpoint could count. Two nodes: each has the other's shards to wait for."""
    words = ("--payload-mib", 16)
    log = cluster.work / "starts"
    job = cluster.submit("-n", 4, "-N", 2, *SLOW_DISK, *steady("--steps", 60, "--every", 20, "--starts", log, *words))
    snapshot_of_all(cluster, job, 20)
    assert cluster.show(job)["checkpoints"] == []
    cluster.kill_rank(job, 3)
    view = cluster.wait_step(job, 21, attempt=2, deadline=30)
    assert restored(view)["in_memory"] and restored(view)["step"] == 20, restored(view)
    assert {first for attempt, _, _, first in starts(log) if attempt == 2} == {20}
    view = cluster.wait_completed(job, 90)
    assert weights(cluster, job) == undisturbed_weights(cluster, 4, 60, *words)
    assert "in memory" in cluster.cli("show", job).stdout


def replicas_of_all(cluster, job, step):
    """Of every rank a keeper of another node has a copy of at least this step."""
    cluster.wait(job, f"replicas of step {step}", lambda view: view["rank_views"] and all(int(rank.get("replica_step") or 0) >= step for rank in view["rank_views"]), 30)


def test_the_snapshots_of_a_lost_node_come_from_another_node(make_cluster):
    """The disk is so slow that nothing can come from there; the lost node's ranks start on a third one."""
    cluster = make_cluster(nodes=3)
    words = ("--payload-mib", 16)
    log = cluster.work / "starts"
    job = cluster.submit("-n", 4, "-N", 2, *SLOW_DISK, *steady("--steps", 60, "--every", 20, "--starts", log, *words))
    replicas_of_all(cluster, job, 20)
    assert cluster.show(job)["checkpoints"] == [] and "replicated: in memory, and on other nodes" in cluster.cli("ckpt", "ls", job).stdout
    cluster.kill_node(cluster.show(job)["attempts"][0]["gang"][1]["node"])
    view = cluster.wait_step(job, 21, attempt=2, deadline=60)
    assert restored(view)["in_memory"] and restored(view)["step"] == 20, restored(view)
    cluster.wait(job, "the replicas brought to disk", lambda view: any(one["step"] == 20 and one["attempt"] == 1 for one in view["checkpoints"]), 30)
    view = cluster.wait_completed(job, 90)
    assert {first for attempt, _, _, first in starts(log) if attempt == 2} == {20} and view["attempt"] == 2
    assert weights(cluster, job) == undisturbed_weights(cluster, 4, 60, *words)
    until(lambda: f"no keeper left: {cluster.keepers(job)}", lambda: not cluster.keepers(job), 20)


def test_replicas_can_be_switched_off(cluster):
    job = cluster.submit("-n", 4, "-N", 2, "--export", "ALL,GANGLINE_CHECKPOINT_REPLICAS=0", *steady("--steps", 100, "--every", 10))
    snapshot_of_all(cluster, job, 10)
    cluster.wait_step(job, 60)
    assert all(int(rank.get("replica_step") or 0) == 0 for rank in cluster.show(job)["rank_views"])
    cluster.wait_completed(job)


def test_what_a_dead_gang_had_in_memory_becomes_a_checkpoint(cluster):
    job = cluster.submit("-n", 2, *SLOW_DISK, *steady("--steps", 100000, "--every", 20, "--payload-mib", 16))
    snapshot_of_all(cluster, job, 20)
    cluster.kill_rank(job, 0)
    view = cluster.wait(job, "its snapshot committed", lambda view: any(one["attempt"] == 1 for one in view["checkpoints"]), 20)
    first = next(one for one in view["checkpoints"] if one["attempt"] == 1)
    assert first["step"] == restored(view)["step"]
    checked = cluster.cli("ckpt", "verify", cluster.checkpoints / f"job-{job}", first["step"])
    assert "whole" in checked.stdout or "good" in checked.stdout, checked.stdout
    cluster.cli("cancel", job)
    cluster.wait_state(job, "CANCELLED")
    until(lambda: f"no keeper left: {cluster.keepers(job)}", lambda: not cluster.keepers(job), 20)


def test_a_dead_keeper_costs_nothing_that_is_on_disk(cluster):
    job = cluster.submit("-n", 2, *steady("--steps", 300, "--every", 10))
    cluster.wait(job, "a checkpoint", lambda view: view["checkpoints"], 20)
    [keeper] = until("a keeper", lambda: cluster.keepers(job), 5)
    Process(keeper).send(signal.SIGKILL)
    cluster.wait_step(job, 60)
    cluster.kill_rank(job, 1)
    view = cluster.wait_completed(job, 60)
    assert view["restarts"] == 1 and restored(view)["step"] >= 10
    assert weights(cluster, job) == undisturbed_weights(cluster, 2, 300)


def test_a_stopped_keeper_holds_nobody_up_for_long_and_is_replaced(cluster):
    job = cluster.submit("-n", 2, *steady("--steps", 100000, "--every", 10))
    cluster.wait(job, "a checkpoint", lambda view: view["checkpoints"], 20)
    [keeper] = until("a keeper", lambda: cluster.keepers(job), 5)
    stopped = Process(keeper)
    stopped.send(signal.SIGSTOP)
    newest = cluster.show(job)["checkpoints"][-1]["step"]
    cluster.wait(job, "newer checkpoints", lambda view: view["checkpoints"][-1]["step"] >= newest + 30, 30)
    stopped.wait_gone(40)
    assert cluster.show(job)["restarts"] == 0


def test_the_memory_tier_can_be_switched_off(cluster):
    job = cluster.submit("-n", 2, "--export", "ALL,GANGLINE_CHECKPOINT_MEMORY_MIB=0", *steady("--steps", 100, "--every", 10))
    cluster.wait(job, "a checkpoint", lambda view: view["checkpoints"], 20)
    assert not cluster.keepers(job)
    cluster.wait_completed(job)


def test_keepers_of_an_agent_that_was_killed_are_found_again(cluster):
    job = cluster.submit("-n", 2, "-w", "n0", *steady("--steps", 100000, "--every", 10))
    cluster.wait(job, "a checkpoint", lambda view: view["checkpoints"], 20)
    [keeper] = until("a keeper", lambda: cluster.keepers(job), 5)
    cluster.kill_agent("n0")
    cluster.start_agent("n0")
    cluster.kill_rank(job, 0)
    cluster.wait_step(job, 1, attempt=2)
    cluster.wait(job, "a checkpoint of attempt 2", lambda view: any(one["attempt"] == 2 for one in view["checkpoints"]), 20)
    assert cluster.keepers(job) == [keeper]
    cluster.cli("cancel", job)
    cluster.wait_state(job, "CANCELLED")
    until("no keeper left", lambda: not cluster.keepers(job), 20)
