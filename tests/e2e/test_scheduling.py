"""Who starts when, on a real cluster: dependencies, begin times, promises and the holes before them, preemption that saves first."""

import signal
import time

import pytest

from processes import Process, read_stat, until
from trainer import steady, undisturbed_weights, weights


def test_a_job_waits_for_the_one_it_depends_on_and_why_says_so(cluster):
    first = cluster.submit("-n", 1, "--", "sleep", "2")
    second = cluster.submit("-n", 1, "-d", f"afterok:{first}", "--", "true")
    cluster.wait_state(second, "QUEUED")
    assert f"afterok:{first} (job {first} has not ended)" in cluster.cli("why", second).stdout
    view = cluster.wait_completed(second)
    assert view["started_unix_ms"] >= cluster.show(first)["ended_unix_ms"]
    refused = cluster.cli("submit", "-d", "afterok:99", "--", "true", code=3)
    assert "there is no job 99" in refused.stderr


def test_a_begin_time_is_kept(cluster):
    job = cluster.submit("-n", 1, "--begin", "now+3", "--", "true")
    view = cluster.wait_completed(job)
    assert view["started_unix_ms"] - view["submitted_unix_ms"] >= 1900  # seconds are whole


def test_a_short_job_fills_the_hole_before_a_promise(cluster):
    running = cluster.submit("-n", 4, "-w", "n0", "-t", 2, "--", "sleep", "6")
    cluster.wait_state(running, "RUNNING")
    big = cluster.submit("-n", 8, "-t", 1, "--", "true")
    unlimited = cluster.submit("-n", 1, "--", "true")
    short = cluster.submit("-n", 1, "-t", 1, "--", "true")
    cluster.wait_completed(short, 5)
    assert cluster.show(unlimited)["state"] == "QUEUED"
    assert cluster.show(big)["promised_unix_ms"] > cluster.show(running)["started_unix_ms"] + 100_000
    assert f"it would delay job {big}" in cluster.cli("why", unlimited).stdout
    assert "places are promised to it from" in cluster.cli("why", big).stdout
    cluster.wait_completed(big)
    cluster.wait_completed(unlimited)


def test_a_preempted_gang_saves_in_its_grace_and_ends_with_the_same_weights(make_cluster):
    cluster = make_cluster(guaranteed_run_ms=1000, preemption_grace_ms=10000)
    steps = 300
    expected = undisturbed_weights(cluster, 8, steps)
    low = cluster.submit("-n", 8, *steady("--steps", steps, "--step-ms", 20, "--every", 20))
    cluster.wait_step(low, 50)
    high = cluster.submit("-n", 8, "--priority", 10, "--", "sleep", "1")
    until("the claim known", lambda: f"job {low} make room" in cluster.cli("why", high).stdout or cluster.show(high)["state"] != "QUEUED", 10)
    cluster.wait_completed(high)
    view = cluster.wait_completed(low, 60)
    first = view["attempts"][0]
    assert first["kind"] == "PREEMPTION" and f"preempted by job {high} of priority 10" in first["cause"]
    assert view["attempts"][1]["restored"]["step"] >= 40
    assert weights(cluster, low) == expected


def test_only_operators_raise_a_priority(make_cluster):
    cluster = make_cluster(start=False)
    text = (cluster.folder / "authorised").read_text()
    (cluster.folder / "authorised").write_text(text.replace("admin", "user"))
    cluster.start()
    refused = cluster.cli("submit", "--priority", 5, "--", "true", code=3)
    assert "only operators raise" in refused.stderr
    cluster.wait_completed(cluster.submit("--nice=5", "--", "true"))


def test_a_coordinator_that_was_stopped_for_half_a_minute_loses_no_node(cluster):
    job = cluster.submit("-n", 4, "-N", 2, *steady("--steps", 100000, "--every", 50))
    cluster.wait_step(job, 20)
    cluster.coordinator.send(signal.SIGSTOP)
    time.sleep(35)
    cluster.coordinator.send(signal.SIGCONT)
    time.sleep(8)
    view = cluster.show(job)
    assert view["state"] == "RUNNING" and view["restarts"] == 0, cluster.story(view)
    cluster.cli("cancel", job)


def test_a_shepherd_that_is_stopped_is_killed_and_its_gang_recovers(cluster):
    job = cluster.submit("-n", 2, "-w", "n0", *steady("--steps", 100000, "--every", 50))
    cluster.wait_step(job, 60)
    rank = cluster.rank_pids(job)[0]
    shepherd = Process(read_stat(rank)[1])
    shepherd.send(signal.SIGSTOP)
    view = cluster.wait(job, "a second attempt", lambda seen: seen["attempt"] == 2 and seen["state"] == "RUNNING", 60)
    assert "shepherd" in view["attempts"][0]["cause"]
    shepherd.wait_gone()
    cluster.cli("cancel", job)


@pytest.mark.parametrize("where", ["environment", "argument", "name"])
def test_bytes_that_are_no_text_are_told_at_once(cluster, where):
    bad = b"\xff".decode(errors="surrogateescape")
    if where == "environment":
        done = cluster.cli("submit", "--parsable", "--", "true", environment={"BAD": bad})
        assert "not UTF-8: BAD" in done.stderr
        cluster.wait_completed(int(done.stdout))
    else:
        words = ["--", "echo", bad] if where == "argument" else ["-J", bad, "--", "true"]
        assert "is not UTF-8" in cluster.cli("submit", *words, code=2).stderr


def test_show_lists_the_checkpoints_that_are_there(cluster):
    job = cluster.submit("-n", 2, *steady("--steps", 100, "--every", 10))
    view = cluster.wait_completed(job)
    listed = {entry["step"] for entry in view["checkpoints"]}
    there = {int(path.name.split("-")[1]) for path in (cluster.checkpoints / f"job-{job}").iterdir() if path.name.startswith("step-")}
    assert listed == there and len(listed) == 3
