"""What an operator and a user do to a living cluster: cancel, hold, drain, priorities, logs, reports; and who is let in."""

import getpass
import glob
import json
import os
import shutil
import subprocess
import time

import pytest

from cluster import GANGLINE
from processes import until
from trainer import steady

FAKETIME = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")


# ---- the queue

def test_cancel_of_a_queued_job(cluster):
    first = cluster.submit("-n", 8, "--", "sleep", "30")
    job = cluster.submit("-n", 1, "--", "sh", "-c", "echo ran > ran")
    cluster.wait_state(job, "QUEUED")
    cluster.cli("cancel", job, "--reason", "wrong data")
    view = cluster.wait_state(job, "CANCELLED", 3)
    assert "wrong data" in view["reason"] and view["attempt"] == 0
    cluster.cli("cancel", first)
    cluster.wait_state(first, "CANCELLED")
    assert not (cluster.work / "ran").exists()
    cluster.cli("cancel", job, code=None)  # again: nothing happens
    assert cluster.show(job)["state"] == "CANCELLED"


def test_cancel_of_a_running_gang(cluster):
    job = cluster.submit("-n", 4, "-N", 2, "--", "sleep", "300")
    cluster.wait_ranks(job)
    cluster.cli("cancel", job)
    view = cluster.wait_state(job, "CANCELLED", 5)
    assert view["exit_code"] == 143
    assert all(node["cards_free"] == 4 for node in cluster.node_views().values())
    cluster.assert_no_gang_left()


def test_priority_then_age_and_a_hold(cluster):
    blocker = cluster.submit("-n", 8, "--", "sleep", "60")
    cluster.wait_ranks(blocker)
    order = {name: cluster.submit("-n", 8, "-J", name, *words, "--", "sh", "-c", 'if [ $RANK = 0 ]; then echo $SLURM_JOB_NAME >> order; fi')
             for name, words in (("old", []), ("young", []), ("urgent", ["--priority", 10]), ("held", ["-H", "--priority", 99]))}
    assert "8 cards" in cluster.cli("why", order["old"]).stdout
    assert "held" in cluster.show(order["held"])["reason"]
    cluster.cli("cancel", blocker)
    for name in ("urgent", "old", "young"):
        cluster.wait_completed(order[name])
    assert cluster.show(order["held"])["state"] == "QUEUED"
    cluster.cli("release", order["held"])
    cluster.wait_completed(order["held"])
    assert (cluster.work / "order").read_text().split() == ["urgent", "old", "young", "held"]


def test_whole_or_nothing(cluster):
    """Two gangs of six on eight cards: never both, never a part of one."""
    jobs = [cluster.submit("-n", 6, "--", "sh", "-c", 'echo $GANGLINE_JOB_ID begin >> marks; sleep 0.4; echo $GANGLINE_JOB_ID end >> marks') for _ in range(3)]
    for job in jobs:
        cluster.wait_completed(job)
    open_jobs = {}
    for line in (cluster.work / "marks").read_text().splitlines():
        job, what = line.split()
        open_jobs[job] = open_jobs.get(job, 0) + (1 if what == "begin" else -1)
        assert sum(count > 0 for count in open_jobs.values()) <= 1, "two gangs at once"


def test_drain_and_resume(cluster):
    job = cluster.submit("-n", 1, "-w", "n1", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done")
    cluster.wait_ranks(job)
    cluster.cli("drain", "n1", "--note", "fan is loud")
    view = cluster.node_views()["n1"]
    assert view["state"] == "draining" and view["note"] == "fan is loud" and view["set_by"] == getpass.getuser()
    waiting = cluster.submit("-n", 1, "-w", "n1", "--", "true")
    elsewhere = cluster.submit("-n", 4, "--", "true")
    assert {place["node"] for place in cluster.wait_completed(elsewhere)["attempts"][0]["gang"]} == {"n0"}
    assert cluster.show(waiting)["state"] == "QUEUED"
    assert "drain" in cluster.cli("why", waiting).stdout
    (cluster.work / "go").touch()
    cluster.wait_completed(job)
    cluster.wait_node("n1", "drained")
    cluster.kill_coordinator()
    cluster.start_coordinator()
    cluster.wait_node("n1", "drained")
    cluster.cli("resume", "n1")
    cluster.wait_completed(waiting)


def test_many_small_jobs_all_end(cluster):
    count = 60
    jobs = [cluster.submit("--", "true") for _ in range(count)]
    assert jobs == list(range(jobs[0], jobs[0] + count))
    until("all completed", lambda: sum(job["state"] == "COMPLETED" for job in cluster.jobs()) == count, 60, pause=0.1)
    cluster.assert_no_gang_left()


# ---- logs, report, why

def test_logs_follow_to_the_end(cluster):
    job = cluster.submit("-n", 2, "--", "sh", "-c", "for i in 1 2 3 4 5; do echo $RANK.$i; sleep 0.1; done; echo $RANK.error >&2")
    follower = cluster.start_cli("logs", "-f", job, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = follower.communicate(timeout=20)
    assert follower.returncode == 0
    for rank in "01":
        assert [line for line in out.splitlines() if line.startswith(rank)] == [f"{rank}.{i}" for i in range(1, 6)]
    assert sorted(err.splitlines()) == ["0.error", "1.error"]
    last = cluster.cli("logs", "--rank", 1, "--tail", 3, job)
    assert last.stdout.splitlines() + last.stderr.splitlines() == ["1.4", "1.5", "1.error"]
    assert cluster.cli("logs", "--err", "--rank", 0, job).stderr.strip() in ("0.error", "")


def test_logs_of_all_attempts_stay(cluster):
    job = cluster.submit("--retries", 1, "--", "sh", "-c", "echo attempt $GANGLINE_ATTEMPT; [ $GANGLINE_ATTEMPT = 2 ]")
    cluster.wait_completed(job)
    assert cluster.logs(job).splitlines() == ["attempt 1", "attempt 2"]
    assert cluster.logs(job, "--attempt", 1).splitlines() == ["attempt 1"]


def test_the_report_adds_up_to_the_wall_clock(cluster):
    job = cluster.submit("-n", 4, *steady("--steps", 100, "--every", 10))
    cluster.wait_step(job, 30)
    cluster.kill_rank(job, 2)
    cluster.wait_completed(job)
    report = cluster.json("report", job)["report"]
    wall = report["wall_s"]
    assert abs(sum(cause["wall_s"] for cause in report["causes"]) - wall) <= max(0.001 * wall, 0.002), report
    assert 0 < report["effective_training_time"] <= 1 and report["steps"] == 100
    assert report["steps_redone"] <= 40
    text = cluster.cli("report", job).stdout
    assert "%" in text or "compute" in text


def test_progress_shows_steps_rate_and_eta(cluster):
    job = cluster.submit("-n", 2, *steady("--steps", 200, "--every", 0))
    view = cluster.wait_step(job, 40)
    assert view["progress"]["total_steps"] == 200 and view["steps_per_s"] > 1 and 0 < view["eta_s"] < 60
    cluster.cli("cancel", job)
    cluster.wait_state(job, "CANCELLED")


# ---- who is let in

def test_a_stranger_gets_nothing(cluster):
    cluster.new_key("stranger", "stranger")
    begun = time.monotonic()
    done = cluster.cli("queue", environment={"GANGLINE_KEY": str(cluster.folder / "keys/stranger.key")}, code=None)
    assert done.returncode in (3, 4) and done.stdout == "", (done.returncode, done.stdout)
    assert time.monotonic() - begun < 6
    assert cluster.submit("--", "true")


def test_a_node_key_is_no_user_key_and_the_other_way_round(cluster):
    done = cluster.cli("queue", environment={"GANGLINE_KEY": str(cluster.folder / "keys/n0.key")}, code=None, timeout=15)
    assert done.returncode in (3, 4)
    agent = cluster.agent_part("n0")
    words = agent.argv.copy()
    words[words.index("--key") + 1] = str(cluster.folder / "keys/user.key")
    words[words.index("--state") + 1] = str(cluster.folder / "impostor")
    words[words.index("--node") + 1] = "n9"  # this machine's n0 has its agent
    impostor = subprocess.Popen([GANGLINE, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=agent.environment)
    try:
        time.sleep(1.5)
        assert cluster.node_state("n0") == "idle"
        cluster.wait_completed(cluster.submit("-w", "n0", "--", "true"))
    finally:
        impostor.kill()
        impostor.wait(5)
        assert not cluster.clean("n9", cluster.folder / "impostor")


def test_the_wrong_coordinator_key_reaches_nobody(cluster):
    other = json.loads(cluster.cli("keys", "new", "other", "--json").stdout)["key"]["public"]
    begun = time.monotonic()
    done = cluster.cli("queue", environment={"GANGLINE_COORDINATOR_KEY": other}, code=None)
    assert done.returncode in (3, 4)
    assert time.monotonic() - begun < 6


def test_nobody_listens_there(cluster):
    begun = time.monotonic()
    done = cluster.cli("queue", environment={"GANGLINE_COORDINATOR": "tcp://127.0.0.1:9"}, code=4)
    assert "tcp://127.0.0.1:9" in done.stderr and time.monotonic() - begun < 6


def test_roles_and_a_revoked_key(cluster):
    account = "nobody"
    rows = (cluster.folder / "authorised").read_text()
    row = cluster.new_key("other", account)
    (cluster.folder / "authorised").write_text(rows + row)
    other = {"GANGLINE_KEY": str(cluster.folder / "keys/other.key")}
    until("the key is known", lambda: cluster.cli("queue", environment=other, code=None).returncode == 0, 5)
    job = cluster.submit("--comment", "mine", "--", "sleep", "60", environment={})
    cluster.wait_ranks(job)
    cluster.cli("cancel", job, environment=other, code=3)
    cluster.cli("drain", "n0", environment=other, code=3)
    assert cluster.show(job)["state"] == "RUNNING"
    spec = json.loads(cluster.cli("show", job, "--json", environment=other, code=None).stdout or "{}").get("job", {}).get("spec") or {}
    assert not spec.get("environment"), "another user's environment is shown"
    (cluster.folder / "authorised").write_text(rows)
    until("the key is refused", lambda: cluster.cli("queue", environment=other, code=None).returncode in (3, 4), 8)
    cluster.cli("cancel", job)
    cluster.wait_state(job, "CANCELLED")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_key_files_that_others_can_read_are_refused(cluster):
    loose = cluster.folder / "keys/loose.key"
    shutil.copy(cluster.folder / "keys/user.key", loose)
    loose.chmod(0o644)
    done = cluster.cli("queue", environment={"GANGLINE_KEY": str(loose)}, code=None)
    assert done.returncode in (2, 3) and "loose.key" in done.stderr, (done.returncode, done.stderr)


def test_secrets_are_for_their_owner_alone(cluster):
    for path in [*cluster.folder.glob("keys/*"), *(cluster.folder / "coordinator/keys").iterdir(), cluster.folder / "coordinator/journal.db"]:
        assert path.stat().st_mode & 0o077 == 0, f"{path} is open to others"


def test_two_agents_of_one_name(cluster):
    """The second is turned away, whatever its folder, and may not clean either: the first serves on, and no gang is hurt."""
    job = cluster.submit("-n", 2, "-w", "n0", *steady("--steps", 400, "--every", 10))
    cluster.wait_step(job, 10)
    before = cluster.rank_pids(job)
    twin = cluster.agent_part("n0")
    words = twin.argv.copy()
    words[words.index("--state") + 1] = str(cluster.folder / "twin")
    second = subprocess.run([GANGLINE, *words], capture_output=True, text=True, env=twin.environment, timeout=20)
    assert second.returncode == 3 and f"(process {cluster.agents['n0'].pid}) serves node n0" in second.stderr, second.stderr
    assert "serves node n0" in cluster.clean("n0", cluster.folder / "twin")
    assert cluster.agents["n0"].is_alive() and cluster.rank_pids(job) == before
    assert cluster.wait_completed(job, 40)["attempt"] == 1


# ---- clocks

@pytest.mark.skipif(not FAKETIME, reason="needs libfaketime (package faketime): a clock that jumps")
@pytest.mark.parametrize("jump", ["+1h", "-1h"])
def test_a_coordinator_whose_clock_jumped_goes_on(cluster, jump):
    job = cluster.submit("-n", 4, "-N", 2, *steady("--steps", 200, "--every", 10))
    cluster.wait_step(job, 20)
    before = cluster.rank_pids(job)
    cluster.kill_coordinator()
    cluster.coordinator.environment.update(LD_PRELOAD=FAKETIME[0], FAKETIME=jump, FAKETIME_DONT_FAKE_MONOTONIC="1")
    cluster.start_coordinator()
    assert cluster.submit("-H", "--", "true")
    submitted = max(cluster.jobs(), key=lambda view: view["id"])["submitted_unix_ms"] / 1000
    assert abs(submitted - time.time()) > 1800, "its clock did not jump"
    cluster.wait_ranks(job, 6)
    assert cluster.rank_pids(job) == before
    assert cluster.wait_completed(job)["attempt"] == 1
    cluster.wait_completed(cluster.submit("-n", 8, "--", "true"))
