"""Whoever dies, and when: ranks, keepers, agents and whole nodes, at random while a gang saves in memory, on other nodes and on disk. What it computes is the same,
every checkpoint that counts is whole, and nothing stays behind. More rounds with GANGLINE_SOAK=1."""

import os
import random
import signal
import time

import pytest

from processes import Process, until
from trainer import steady, undisturbed_weights, weights

STEPS = 300
ROUNDS = 8 if os.environ.get("GANGLINE_SOAK") == "1" else 2


def kill_a_rank(cluster, job, dice):
    pids = cluster.rank_pids(job)
    if pids:
        Process(dice.choice(sorted(pids.values()))).kill()


def kill_a_keeper(cluster, job, dice):
    keepers = cluster.keepers(job)
    if keepers:
        Process(dice.choice(sorted(keepers))).kill()


def stop_a_keeper(cluster, job, dice):
    keepers = cluster.keepers(job)
    if not keepers:
        return
    stopped = Process(dice.choice(sorted(keepers)))
    stopped.send(signal.SIGSTOP)
    time.sleep(dice.uniform(0.1, 2))
    stopped.send(signal.SIGCONT)


def kill_an_agent(cluster, job, dice):
    node = dice.choice(sorted(cluster.agents))
    cluster.kill_agent(node)
    cluster.start_agent(node)


def kill_a_node(cluster, job, dice):
    node = dice.choice(sorted(cluster.agents))
    cluster.kill_node(node)
    time.sleep(dice.uniform(0, 3))
    cluster.start_agent(node)


def kill_rank_and_keeper(cluster, job, dice):
    kill_a_rank(cluster, job, dice)
    kill_a_keeper(cluster, job, dice)


EVENTS = [kill_a_rank, kill_a_rank, kill_a_keeper, stop_a_keeper, kill_an_agent, kill_a_node, kill_a_node, kill_rank_and_keeper]


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_gang_comes_through_whatever_dies(make_cluster, seed):
    dice = random.Random(seed)
    cluster = make_cluster(nodes=3)
    disk = ("--export", f"ALL,GANGLINE_CHECKPOINT_WRITE_MIB_S={dice.choice([3, 0])}")
    words = ("--payload-mib", 4)
    job = cluster.submit("-n", 4, "-N", 2, *disk, *steady("--steps", STEPS, "--every", 20, *words))
    story = []
    for _ in range(dice.randint(2, 5)):
        time.sleep(dice.uniform(0.2, 3))
        if cluster.show(job)["state"] == "COMPLETED":
            break
        event = dice.choice(EVENTS)
        story.append(event.__name__)
        event(cluster, job, dice)
    print(f"seed {seed}: {story}")
    view = cluster.wait_completed(job, 120)
    assert weights(cluster, job) == undisturbed_weights(cluster, 4, STEPS, *words)
    assert view["checkpoints"][-1]["step"] == STEPS and not any(one["damaged"] for one in view["checkpoints"])
    cluster.cli("ckpt", "verify", "--all", cluster.checkpoints / f"job-{job}")
    until(lambda: f"no keeper left: {cluster.keepers(job)}", lambda: not cluster.keepers(job), 20)
