"""A C program on the C interface (examples/regression.c): a rank is killed on the way, and it ends with the very weights of a run
that nothing disturbed."""

import re

from cluster import built_program


def last_words(cluster, job):
    log = cluster.logs(job)
    samples, weights = re.search(r"^samples (\d+)$", log, re.M), re.search(r"^weights (.*)$", log, re.M)
    assert samples and weights, log
    return int(samples.group(1)), weights.group(1)


def regression(*words):
    return ["--", built_program("regression"), *map(str, words)]


def test_a_c_program_whose_rank_is_killed_ends_with_the_same_weights(cluster):
    undisturbed = cluster.submit("-n", 4, *regression(300, 0))
    cluster.wait_completed(undisturbed)
    expected = last_words(cluster, undisturbed)
    assert expected[0] == 300 * 16 * 4
    assert [round(float.fromhex(one), 2) for one in expected[1].split()] == [1, 2, 3, 4, 5, 6, 7, 8, 0.5]

    job = cluster.submit("-n", 4, *regression(300, 10, 10))
    for attempt, step in ((1, 60), (2, 140)):
        cluster.wait_step(job, step, attempt=attempt)
        cluster.kill_rank(job, attempt)
    view = cluster.wait_completed(job, 60)
    assert view["restarts"] == 2
    assert all(one["restored"]["step"] >= 50 for one in view["attempts"][1:]), view["attempts"]
    assert re.search(r"^resumed at step \d+0$", cluster.logs(job), re.M)
    assert last_words(cluster, job) == expected
