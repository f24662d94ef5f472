"""The steady trainer (programs/steady.cpp) as a job: how it is submitted and what it says."""

import os

import pytest

from cluster import built_program


def steady(*words):
    path = built_program("steady")
    if not os.access(path, os.X_OK):
        pytest.fail(f"no {path}: build the target `steady`")
    return ["--", path, *map(str, words)]


def weights(cluster, job):
    """Each rank's last word on its weights."""
    lines = [line for line in cluster.logs(job).splitlines() if line.startswith("weights ")]
    return dict(line.split()[1:3] for line in lines)


def starts(path):
    """(attempt, rank, pid, first step) of each start of each rank."""
    if not path.exists():
        return []
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()]


_undisturbed = {}


def undisturbed_weights(cluster, ranks, steps, *words):
    """The weights of a run that nothing disturbs, with steps that take no time; computed once a session."""
    key = (ranks, steps, words)
    if key not in _undisturbed:
        job = cluster.submit("-n", ranks, *steady("--steps", steps, "--step-ms", 0, "--every", 0, *words))
        cluster.wait_completed(job)
        _undisturbed[key] = weights(cluster, job)
        assert len(_undisturbed[key]) == ranks
    return _undisturbed[key]
